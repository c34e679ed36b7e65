"""AsyncClient: the client for asyncio, with one connection per event loop for concurrent requests.

client = tidegate.AsyncClient()
async with client.limit("api", {"user": user_id}):
    ...
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any

from . import DEFAULTS, STOPPED, CallOptions, Client, Decision, Denied, Options, Request, add_report
from .decorators import Decorator, LimitedOptions, limited_async
from .pipe import Pipe
from .protocol import (
    ACQUIRE,
    CHARGE,
    DECISION,
    DONE,
    FRAME_MAX,
    HIT,
    PEEK,
    PING,
    REFUSALS,
    RENEW,
    Attributes,
    Cost,
    Fault,
    Outcome,
    encode,
    request,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

REPORTED_MAX = FRAME_MAX // 2  # bytes of a request that a report may join; with more, a value might become its digest


class AsyncClient:
    """As `Client`, with coroutines. Make one for the program: each event loop gets its own connection.

    If a task is cancelled while it waits, a late grant is released.
    """

    def __init__(
        self,
        socket: str | os.PathLike[str] | None = None,
        timeout: float = 0.020,
        pool: str = "default",
        slots: int = 0,
        enabled: bool = True,
        logger: logging.Logger | None = None,
        fallback: str | Mapping[str, str] | None = None,
        on_decision: Callable[[Decision, float], object] | None = None,
    ) -> None:
        self._core = _Core(socket, timeout, pool, slots, enabled, logger, fallback, on_decision)

    async def acquire(
        self, domain: str, attributes: Attributes = None, cost: Cost = 1, **more: Unpack[CallOptions]
    ) -> AsyncDecision:
        """Asks whether work may start that ends with `release`. `more`: see `tidegate.CallOptions`."""
        return await self._core.judge(ACQUIRE, domain, attributes, cost, more)

    async def hit(
        self, domain: str, attributes: Attributes = None, cost: Cost = 1, **more: Unpack[CallOptions]
    ) -> AsyncDecision:
        """As `acquire`, without a lease: for a message, a login attempt."""
        return await self._core.judge(HIT, domain, attributes, cost, more)

    async def peek(
        self, domain: str, attributes: Attributes = None, cost: Cost = 1, **more: Unpack[CallOptions]
    ) -> AsyncDecision:
        """Returns the decision that `acquire` would get; charges nothing."""
        return await self._core.judge(PEEK, domain, attributes, cost, more)

    @contextlib.asynccontextmanager
    async def limit(
        self, domain: str, attributes: Attributes = None, cost: Cost = 1, **more: Unpack[CallOptions]
    ) -> AsyncIterator[AsyncDecision]:
        """Async context manager: sleeps `wait`, releases at the end; raises Denied if the work may not start."""
        outcome: Outcome = "dropped"
        decision = await self.acquire(domain, attributes, cost, **more)
        if not decision:
            raise Denied(decision)
        try:
            if decision.wait:
                await asyncio.sleep(decision.wait)
            yield decision
            outcome = "ok"
        finally:
            decision.release(outcome)

    def limited(
        self,
        domain: str,
        attributes: Attributes | Callable[..., Attributes] = None,
        cost: Cost = 1,
        **more: Unpack[LimitedOptions],
    ) -> Decorator:
        """Decorates a function or a generator, plain or asynchronous; the result is asynchronous.

        `charge`: a function from the result of a function, not of a generator, to an amount, which is charged after it.
        """
        return limited_async(self, domain, attributes, cost, **more)

    async def charge(
        self, domain: str, attributes: Attributes = None, amount: Cost = 1, idem: Any = None, of: Any = None
    ) -> bool:
        """Charges all matching rates after the fact, into debt. False: none was charged.

        A negative amount refunds part of `of`: a decision, its lease, or the `idem` of a grant or charge.
        """
        return await self._core.done(CHARGE, lambda: self._core._charge(domain, attributes, amount, idem, of))

    def signal(self, name: str, value: float) -> None:
        """Reports a utilization of this process, from 0 to 1; the daemon drops it after 3 s."""
        self._core.signal(name, value)

    async def check(self) -> bool:
        """Pings the daemon; false if it does not answer, the breaker is open or the client disabled."""
        return await self._core.done(PING, list)

    def stats(self) -> dict[str, Any]:
        """Counts decisions without the daemon and own refusals by reason, and connections; state of the breaker."""
        return self._core.stats()

    def close(self) -> None:
        """Closes the connections of this event loop and of closed loops. The client may be used again."""
        self._core.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def _log(self, text: str, once: bool = False) -> None:
        self._core._log(text, once)


class AsyncDecision(Decision):
    """A Decision whose `renew` is a coroutine; `release` is not, since it does not wait."""

    async def renew(self) -> bool:  # type: ignore[override]
        """Restarts the lease's time; false if the lease has expired or the daemon does not answer."""
        lease = self.lease
        if lease is None or not self._asked:
            return False
        core: _Core = self._asked[0].core
        return await core.done(RENEW, lambda: [encode(lease)])


def _make_async(decision: Decision) -> AsyncDecision:
    decision.__class__ = AsyncDecision
    made: Any = decision
    return made  # type: ignore[no-any-return]


class _Core(Client):
    """State and counters of a Client, with asynchronous connections."""

    def _begin(self) -> None:
        for pipe in list(getattr(self, "_pipes", {}).values()):
            pipe.close_inherited()
        self._pipes: dict[asyncio.AbstractEventLoop, Pipe] = {}
        super()._begin()

    async def judge(
        self, op: int, domain: str, attributes: Attributes, cost: Cost, more: CallOptions
    ) -> AsyncDecision:
        if not self._enabled:
            return _make_async(self._pass())
        given = Options(**more) if more else DEFAULTS
        self._refuses = self._refuses or given.on_failure == "refuse"
        try:
            elements = request(domain, attributes, cost, given.priority, given.options())
        except Fault as fault:
            return _make_async(self._refuse(fault))
        asked = Request(op, attributes, cost, elements)
        report: dict[str, Any] = {}
        try:
            if self._report and sum(map(len, elements)) < REPORTED_MAX:
                with self._lock:
                    report, self._report = self._report, {}
                elements = add_report(elements, given, report)
            answer = await self._ask(op, elements, DECISION)
            if isinstance(answer, Decision):
                self._explain(domain, elements, answer)
        except BaseException:
            self._report_later(report)
            raise
        return _make_async(self._conclude(answer, asked, given, report))

    async def done(self, op: int, elements: Callable[[], list[bytes]]) -> bool:
        if not self._enabled:
            return False
        try:
            answer = await self._ask(op, elements(), DONE)
        except Fault as fault:
            answer = fault
        if isinstance(answer, Fault) and answer.reason in REFUSALS.values():
            self._refuse(answer)
        return answer is True

    def _converse(self, op: int, elements: list[bytes], wanted: int, which: Any = None, domain: str = "") -> Any:
        """Writes a frame without a reply on the running loop; true if written."""
        loop = asyncio._get_running_loop()
        if loop is None or (self._until and (loop not in self._pipes or self._pipes[loop].closed)):
            return False
        try:
            self.pipe(loop).send(op, elements, which)
        except Fault:
            return False
        return True

    async def _ask(self, op: int, elements: list[bytes], wanted: int) -> Any:
        """Returns the reply or a Fault."""
        if not self._page[0] and self._pid != os.getpid():
            self._begin()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout
        if self._until:
            if self._may_probe(wanted, monotonic()):
                answer = await self._exchange(loop, PING, [], DONE, deadline)
                if isinstance(answer, Fault):
                    return answer
                self._answered_probe()
            elif self._until:
                return STOPPED
        return await self._exchange(loop, op, elements, wanted, deadline)

    async def _exchange(
        self, loop: asyncio.AbstractEventLoop, op: int, elements: list[bytes], wanted: int, deadline: float
    ) -> Any:
        repeated, started = False, monotonic()
        while True:
            pipe = None
            try:
                pipe = self.pipe(loop)
                answer = await pipe.ask(op, elements, wanted, deadline)
                if isinstance(answer, Fault):
                    self._log_error(answer)
                if self._failures and op != PING:
                    self._settle(None, started)
                return answer
            except Fault as fault:
                full = fault.code == errno.EAGAIN
                if full and loop.time() < deadline:
                    await asyncio.sleep(0.001)  # the daemon is at its limit of connections
                    continue
                if pipe is None or full:  # other failures of a pipe are counted once, by `broken`
                    self._settle(fault, started)
                elif fault.again and not repeated and loop.time() < deadline:
                    repeated = True
                    continue
                return fault

    def pipe(self, loop: asyncio.AbstractEventLoop) -> Pipe:
        if not self._page[0] and self._pid != os.getpid():
            self._begin()
        pipe = self._pipes.get(loop)
        if pipe is None or pipe.leaving or pipe.closed:
            self._forget()
            with self._lock:
                self._info["connection"] += 1
                pipe = self._pipes[loop] = Pipe(self, loop, self._find(), dict(self._info), AsyncDecision)
        return pipe

    def broken(self, pipe: Pipe, fault: Fault | None, since: float) -> None:
        """Counts a failed pipe once for all its waiting requests, of which the oldest started at `since`."""
        if fault is not None and fault.reason not in REFUSALS.values():
            self._settle(fault, since)

    def stats(self) -> dict[str, Any]:
        return super().stats() | {"connections": sum(not pipe.closed for pipe in list(self._pipes.values()))}

    def close(self) -> None:
        self._forget()
        with contextlib.suppress(RuntimeError):
            if (pipe := self._pipes.get(asyncio.get_running_loop())) is not None:
                pipe.end(None)

    def _forget(self) -> None:
        """Closes the connections of closed loops."""
        for pipe in [one for one in list(self._pipes.values()) if one.loop.is_closed()]:
            self._pipes.pop(pipe.loop, None)
            pipe.end(None)
