"""Decorators for functions and generators that run under a limit, plain and asynchronous."""

from __future__ import annotations

import contextlib
import difflib
import functools
import inspect
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypedDict, TypeVar, overload

from . import CallOptions, Client, Decision
from .protocol import Cost, Fault, OnFailure, beside, check_word, encode_cost, encode_name, request
from .signals import from_signal

if TYPE_CHECKING:
    from .fallback import Fallback

P = ParamSpec("P")
T = TypeVar("T")


class LimitedOptions(TypedDict, total=False):
    """The keywords of `limited`. Functions get the arguments of the call, `charge` its result."""

    charge: Callable[[Any], Cost | None] | None
    priority: str | Callable[..., str | None] | None
    idem: object
    queued: float | Callable[..., float | None] | None
    max_wait: float | Callable[..., float | None] | None
    on_failure: OnFailure | Callable[..., OnFailure]
    fallback: str | Mapping[str, str] | Fallback | None


class Decorator(Protocol):
    """The type of `AsyncClient.limited(…)`. A result of type Iterator counts as a generator's."""

    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[P, AsyncIterator[T]], /
    ) -> Callable[P, AsyncIterator[T]]: ...
    @overload
    def __call__(self, function: Callable[P, Awaitable[T]], /) -> Callable[P, Coroutine[Any, Any, T]]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[P, Iterator[T]], /
    ) -> Callable[P, AsyncIterator[T]]: ...
    @overload
    def __call__(self, function: Callable[P, T], /) -> Callable[P, Coroutine[Any, Any, T]]: ...


def limited(
    client: Client, domain: str, attributes: Any = None, cost: Any = 1, charge: Any = None, **more: Any
) -> Callable[[Any], Any]:
    """Implements `Client.limited`."""
    more = check_options(domain, attributes, cost, more)

    @contextlib.contextmanager
    def limit_call(args: Any, kwargs: Any) -> Iterator[Callable[[Any], None]]:
        """Yields a function that charges the result."""
        options = call_options(client, args, kwargs, attributes, more)
        with client.limit(domain, cost=cost, **options) as decision:

            def finish(result: Any) -> None:
                if charge is not None:
                    charge_result(client, domain, options["attributes"], decision, charge, result)

            yield finish

    def decorate(function: Any) -> Any:
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError("an asynchronous function needs AsyncClient.limited")

        def call(*args: Any, **kwargs: Any) -> Any:
            with limit_call(args, kwargs) as finish:
                result = function(*args, **kwargs)
                finish(result)
                return result

        def generate(*args: Any, **kwargs: Any) -> Any:
            with limit_call(args, kwargs) as finish:
                result = yield from function(*args, **kwargs)
                finish(result)
                return result

        return functools.wraps(function)(generate if inspect.isgeneratorfunction(function) else call)

    return decorate


def limited_async(
    client: Any, domain: str, attributes: Any, cost: Any, charge: Any = None, **more: Any
) -> Callable[[Any], Any]:
    """Implements `AsyncClient.limited`: makes coroutine functions and asynchronous generators."""
    more = check_options(domain, attributes, cost, more)

    @contextlib.asynccontextmanager
    async def limit_call(args: Any, kwargs: Any) -> AsyncIterator[Callable[[Any], Awaitable[None]]]:
        """Yields a function that charges the result."""
        options = call_options(client, args, kwargs, attributes, more)
        async with client.limit(domain, cost=cost, **options) as made:

            async def finish(result: Any) -> None:
                if charge is not None:
                    charged = charge_result(client, domain, options["attributes"], made, charge, result)
                    if charged is not None:
                        await charged

            yield finish

    def decorate(function: Any) -> Any:
        if charge is not None and (inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)):
            raise TypeError("an asynchronous generator has no result; help: let it call `charge` at its end")

        async def call(*args: Any, **kwargs: Any) -> Any:
            async with limit_call(args, kwargs) as finish:
                result = function(*args, **kwargs)
                result = await result if inspect.isawaitable(result) else result
                await finish(result)
                return result

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
    """Validates the options of a limit and converts `fallback`. Raises an error for options that no call accepts."""
    check_names("limited", more, CallOptions)
    check_name("domain", domain)
    request(domain, None if callable(attributes) else attributes, cost, None, {})
    if not callable(action := more.get("on_failure")):
        check_word("on_failure", action, "allow", "refuse", None)
    fallback = more.get("fallback")
    return more if fallback is None else more | {"fallback": beside("fallback", "as_fallback")(fallback)}


def check_names(function: str, given: Mapping[str, Any], known: Any) -> None:
    """Raises TypeError for an option that the TypedDict `known` does not have, as a call of `function` would."""
    for name in given.keys() - known.__annotations__.keys():
        nearest = difflib.get_close_matches(name, known.__annotations__, 1, 0)[0]
        raise TypeError(f"{function}() got an unexpected keyword argument {name!r}; did you mean {nearest!r}?")


def check_name(kind: str, name: Any) -> None:
    """Raises ValueError for an invalid name in the configuration."""
    try:
        encode_name(name)
    except Fault as fault:
        raise ValueError(f"the {kind} {name!r} is not a name; help: {fault}") from None


def call_options(client: Any, args: Any, kwargs: Any, attributes: Any, more: dict[str, Any]) -> dict[str, Any]:
    """Returns keyword arguments for `limit` or `acquire`, without the options whose function raised."""
    options: dict[str, Any] = {}
    for name, value in {"attributes": attributes, **more}.items():
        try:
            options[name] = value(*args, **kwargs) if callable(value) else value
        except Exception as error:
            callback_failed(client, name, error)
    return {"attributes": None, **options}


def charge_result(
    client: Any, domain: str, attributes: Any, decision: Decision, charge: Callable[[Any], Any], result: Any
) -> Any:
    """Charges `charge(result)`, or refunds it from `decision` if negative; nothing if it is 0, None or raises.

    Returns the result of the client's `charge`, a coroutine of an AsyncClient.
    """
    try:
        amount = charge(result)
        if not amount:
            return None
        encode_cost(amount, signed=True)
    except Exception as error:
        if from_signal(error):
            raise
        text = f"charge raised {type(error).__name__}{location(error)}: such results are not charged"
        client._log(text, once=True)
        return None
    lowest = min(amount.values() if isinstance(amount, Mapping) else [amount])
    return client.charge(domain, attributes, amount, of=decision if lowest < 0 else None)


class WrongResult(TypeError):
    """Raised for the result of a callback; its text is the result's type and the wanted one, never a value."""


def callback_failed(client: Any, name: str, error: Exception, then: str = "requests are checked without it") -> None:
    """Counts and logs a callback that raised, without the message of `error`, which may contain personal data.

    Raises `error` again if a signal handler raised it, such as the time limit of a job.
    """
    if from_signal(error):
        raise error
    core: Client = getattr(client, "_core", client)
    failed = f"raised {type(error).__name__}{location(error)}"
    failed = f"returned {error}" if isinstance(error, WrongResult) else failed
    core._log(f"{name} {failed}: such {then}", once=True)
    core._degrade("callback")  # counts it; the next request reports it


def location(error: Exception) -> str:
    """Returns file and line of the application's function in the traceback, outside this package."""
    at = error.__traceback__
    while at is not None and os.path.dirname(at.tb_frame.f_code.co_filename) == os.path.dirname(__file__):
        at = at.tb_next
    return f" at {at.tb_frame.f_code.co_filename}:{at.tb_lineno}" if at else ""
