"""Decorators for functions and generators that run under a limit, plain and asynchronous."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from . import Client, Decision
from .connection import beside
from .protocol import Fault, encode_name, request
from .signals import from_signal


def limited(client: Client, domain: str, attributes: Any = None, cost: Any = 1, **more: Any) -> Callable[[Any], Any]:
    """Implements `Client.limited`."""
    more = check_options(domain, attributes, cost, more)

    @contextlib.contextmanager
    def limit_call(args: Any, kwargs: Any) -> Iterator[None]:
        options = call_options(client, args, kwargs, attributes, more)
        with contextlib.nullcontext() if options is None else client.limit(domain, cost=cost, **options):
            yield

    def decorate(function: Any) -> Any:
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError("an asynchronous function needs AsyncClient.limited")

        def call(*args: Any, **kwargs: Any) -> Any:
            with limit_call(args, kwargs):
                return function(*args, **kwargs)

        def generate(*args: Any, **kwargs: Any) -> Any:
            with limit_call(args, kwargs):
                return (yield from function(*args, **kwargs))

        return functools.wraps(function)(generate if inspect.isgeneratorfunction(function) else call)

    return decorate


def limited_async(client: Any, domain: str, attributes: Any, cost: Any, **more: Any) -> Callable[[Any], Any]:
    """Implements `AsyncClient.limited`: makes coroutine functions and asynchronous generators."""
    more = check_options(domain, attributes, cost, more)

    @contextlib.asynccontextmanager
    async def limit_call(args: Any, kwargs: Any) -> AsyncIterator[None]:
        options = call_options(client, args, kwargs, attributes, more)
        async with contextlib.nullcontext() if options is None else client.limit(domain, cost=cost, **options):
            yield

    def decorate(function: Any) -> Any:
        async def call(*args: Any, **kwargs: Any) -> Any:
            async with limit_call(args, kwargs):
                result = function(*args, **kwargs)
                return await result if inspect.isawaitable(result) else result

        async def generate(*args: Any, **kwargs: Any) -> Any:
            async with limit_call(args, kwargs):
                for one in function(*args, **kwargs):
                    yield one

        async def generate_async(*args: Any, **kwargs: Any) -> Any:
            async with limit_call(args, kwargs), contextlib.aclosing(function(*args, **kwargs)) as rows:
                step = rows.asend(None)
                while True:
                    try:
                        row = await step
                    except StopAsyncIteration:
                        return
                    try:
                        step = rows.asend((yield row))
                    except GeneratorExit:
                        raise
                    except BaseException as error:
                        step = rows.athrow(error)

        if inspect.isasyncgenfunction(function):
            return functools.wraps(function)(generate_async)
        return functools.wraps(function)(generate if inspect.isgeneratorfunction(function) else call)

    return decorate


def check_options(domain: str, attributes: Any, cost: Any, more: dict[str, Any]) -> dict[str, Any]:
    """Validates the options of a limit and converts `fallback`. Raises ValueError for options that no call accepts."""
    check_name("domain", domain)
    request(domain, None if callable(attributes) else attributes, cost, None, {})
    fallback = more.get("fallback")
    return more if fallback is None else more | {"fallback": beside("fallback", "as_fallback")(fallback)}


def check_name(kind: str, name: Any) -> None:
    """Raises ValueError for an invalid name in the configuration."""
    try:
        encode_name(name)
    except Fault as fault:
        raise ValueError(f"the {kind} {name!r} is not a name; help: {fault}") from None


def call_options(client: Any, args: Any, kwargs: Any, attributes: Any, more: dict[str, Any]) -> dict[str, Any] | None:
    """Returns keyword arguments for `limit` or `acquire`; None if a callback raised: the call passes."""
    try:
        options = {name: value(*args, **kwargs) if callable(value) else value for name, value in more.items()}
        return options | {"attributes": attributes(*args, **kwargs) if callable(attributes) else attributes}
    except Exception as error:
        callback_failed(client, "attributes or priority", error)
        return None


def callback_failed(client: Any, name: str, error: Exception) -> Decision:
    """Allows a request whose callback raised. Does not log the message of `error`, which may contain personal data.

    Raises `error` again if a signal handler raised it, such as the time limit of a job.
    """
    if from_signal(error):
        raise error
    core: Client = getattr(client, "_core", client)
    core._log(f"{name} raised {type(error).__name__}{_location(error)}: such requests are not limited", once=True)
    return core._degrade("callback")


def _location(error: Exception) -> str:
    """Returns file and line of the application's function in the traceback, outside this package."""
    at = error.__traceback__
    while at is not None and os.path.dirname(at.tb_frame.f_code.co_filename) == os.path.dirname(__file__):
        at = at.tb_next
    return f" at {at.tb_frame.f_code.co_filename}:{at.tb_lineno}" if at else ""
