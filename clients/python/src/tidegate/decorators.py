"""Functions and generators that run under a limit: what `limited` makes of them, plain and asynchronous."""

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
    """For `Client.limited`."""
    more = checked(domain, attributes, cost, more)

    @contextlib.contextmanager
    def held(args: Any, kwargs: Any) -> Iterator[None]:
        words = judged(client, args, kwargs, attributes, more)
        with contextlib.nullcontext() if words is None else client.limit(domain, cost=cost, **words):
            yield

    def decorate(function: Any) -> Any:
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError("what is asynchronous is limited by AsyncClient.limited")

        def call(*args: Any, **kwargs: Any) -> Any:
            with held(args, kwargs):
                return function(*args, **kwargs)

        def generate(*args: Any, **kwargs: Any) -> Any:
            with held(args, kwargs):
                return (yield from function(*args, **kwargs))

        return functools.wraps(function)(generate if inspect.isgeneratorfunction(function) else call)

    return decorate


def limited_async(client: Any, domain: str, attributes: Any, cost: Any, **more: Any) -> Callable[[Any], Any]:
    """For `AsyncClient.limited`: what is plain becomes a coroutine function, a generator an asynchronous one."""
    more = checked(domain, attributes, cost, more)

    @contextlib.asynccontextmanager
    async def held(args: Any, kwargs: Any) -> AsyncIterator[None]:
        words = judged(client, args, kwargs, attributes, more)
        async with contextlib.nullcontext() if words is None else client.limit(domain, cost=cost, **words):
            yield

    def decorate(function: Any) -> Any:
        async def call(*args: Any, **kwargs: Any) -> Any:
            async with held(args, kwargs):
                result = function(*args, **kwargs)
                return await result if inspect.isawaitable(result) else result

        async def generate(*args: Any, **kwargs: Any) -> Any:
            async with held(args, kwargs):
                for one in function(*args, **kwargs):
                    yield one

        async def generate_async(*args: Any, **kwargs: Any) -> Any:
            async with held(args, kwargs), contextlib.aclosing(function(*args, **kwargs)) as rows:
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


def checked(domain: str, attributes: Any, cost: Any, more: dict[str, Any]) -> dict[str, Any]:
    """The options of a limit as they are used. Raises ValueError for what no call could be made of."""
    check_name("domain", domain)
    request(domain, None if callable(attributes) else attributes, cost, None, {})
    fallback = more.get("fallback")
    return more if fallback is None else more | {"fallback": beside("fallback", "made")(fallback)}


def check_name(what: str, name: Any) -> None:
    """Raises ValueError for what is no name, where it is configured."""
    try:
        encode_name(name)
    except Fault as fault:
        raise ValueError(f"the {what} {name!r} is no name; help: {fault}") from None


def judged(client: Any, args: Any, kwargs: Any, attributes: Any, more: dict[str, Any]) -> dict[str, Any] | None:
    """What a call is judged by. None: a function that was given raised, and the call passes."""
    try:
        words = {name: value(*args, **kwargs) if callable(value) else value for name, value in more.items()}
        return words | {"attributes": attributes(*args, **kwargs) if callable(attributes) else attributes}
    except Exception as error:
        callback_failed(client, "attributes or priority", error)
        return None


def callback_failed(client: Any, what: str, error: Exception) -> Decision:
    """Allows what an application's function left unjudged by raising. What that says may name a user.

    Raises `error` again if it is a signal handler's, such as the time limit of a job.
    """
    if from_signal(error):
        raise error
    core: Client = getattr(client, "_core", client)
    core._log(f"{what} raised {type(error).__name__}{_place(error)}: such requests are not limited", once=True)
    return core._without("callback")


def _place(error: Exception) -> str:
    """Where the application's function was when it came to that."""
    at = error.__traceback__
    while at is not None and os.path.dirname(at.tb_frame.f_code.co_filename) == os.path.dirname(__file__):
        at = at.tb_next
    return f" at {at.tb_frame.f_code.co_filename}:{at.tb_lineno}" if at else ""
