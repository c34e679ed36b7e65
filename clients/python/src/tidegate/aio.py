"""AsyncClient: the client for asyncio, with one connection per event loop on which requests do not wait for each other.

    client = tidegate.AsyncClient()
    async with client.limit("api", {"user": user_id}):
        ...
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from inspect import isawaitable
from typing import Any

from . import (
    ACQUIRE,
    CHARGE,
    COST_MAX,
    DONE,
    HIT,
    PEEK,
    PING,
    RENEW,
    Attributes,
    Client,
    Cost,
    Decision,
    Denied,
    Fault,
    encode,
    request,
)
from .decorators import limited_async
from .pipe import Pipe


class AsyncClient:
    """As `Client`, to be awaited. One for the program: every event loop that asks has a connection of its own.

    A task that is cancelled while it asks leaves nothing behind: its late grant is given back.
    """

    def __init__(self, *given: Any, **options: Any) -> None:
        self._core = _Core(*given, **options)

    async def acquire(self, domain: str, attributes: Attributes = None, cost: Cost = 1, **more: Any) -> AsyncDecision:
        """May this work start? It ends with `release`. `more`: priority, idem, queued, max_wait, on_failure."""
        return await self._core.judge(ACQUIRE, domain, attributes, cost, more)

    async def hit(self, domain: str, attributes: Attributes = None, cost: Cost = 1, **more: Any) -> AsyncDecision:
        """As `acquire`, for what has no end: a message, a login attempt."""
        return await self._core.judge(HIT, domain, attributes, cost, more)

    async def peek(self, domain: str, attributes: Attributes = None, cost: Cost = 1, **more: Any) -> AsyncDecision:
        """What `acquire` would say; nothing is charged."""
        return await self._core.judge(PEEK, domain, attributes, cost, more)

    @contextlib.asynccontextmanager
    async def limit(
        self, domain: str, attributes: Attributes = None, cost: Cost = 1, **more: Any
    ) -> AsyncIterator[AsyncDecision]:
        """For `async with`: sleeps off a WAIT, releases at the end; raises Denied if the work may not start."""
        decision, outcome = await self.acquire(domain, attributes, cost, **more), "dropped"
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
        self, domain: str, attributes: Any = None, cost: Cost = 1, **more: Any
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Decorates a function or a generator, plain or asynchronous; what comes out is asynchronous."""
        return limited_async(self, domain, attributes, cost, **more)

    async def charge(self, domain: str, attributes: Attributes = None, amount: Cost = 1) -> bool:
        """After the fact: takes from all rates that match, into debt; below 0 gives back. False: from none."""
        return await self._core.done(CHARGE, lambda: request(domain, attributes, amount, None, {}, -COST_MAX))

    def signal(self, name: str, value: float) -> None:
        """Says how loaded this process is by a measure of its own, from 0 to 1; the daemon forgets it after 3 s."""
        self._core.signal(name, value)

    async def check(self) -> bool:
        """Whether the daemon answers; false, without asking, if the breaker is open or the client disabled."""
        return await self._core.done(PING, list)

    def stats(self) -> dict[str, Any]:
        """How many decisions were made without the daemon, by reason; connections; whether the breaker is open."""
        return self._core.stats()

    def close(self) -> None:
        """Closes the connections of this event loop and of those that have ended. The client may be used again."""
        self._core.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def _log(self, text: str, once: bool = False) -> None:
        self._core._log(text, once)


class AsyncDecision(Decision):
    """A Decision whose `renew` is awaited; `release` is not, because nothing is waited for."""

    async def renew(self) -> bool:  # type: ignore[override]
        """Starts the lease's time again, for long work; false if it has ended, or the daemon does not answer."""
        lease = self.lease
        if lease is None or not self._asked:
            return False
        core: _Core = self._asked[0].core
        return await core.done(RENEW, lambda: [encode(lease)])


class _Core(Client):
    """What a Client knows and counts, with connections of another kind."""

    def _begin(self) -> None:
        self._pipes: dict[asyncio.AbstractEventLoop, Pipe] = {}
        super()._begin()

    async def judge(
        self, op: int, domain: str, attributes: Attributes, cost: Cost, more: dict[str, Any]
    ) -> AsyncDecision:
        decision: Any = self._judge(op, domain, attributes, cost, **more)
        if isawaitable(decision):
            decision = await decision
        if type(decision) is Decision:  # made without the daemon
            decision.__class__ = AsyncDecision
        made: AsyncDecision = decision
        return made

    async def done(self, op: int, elements: Callable[[], list[bytes]]) -> bool:
        answer = self._exchange(op, DONE, elements)
        return (await answer if isawaitable(answer) else answer) is True

    def _without(self, reason: Any, on_failure: str = "allow", report: dict[str, Any] | None = None) -> Any:
        if not isawaitable(reason):
            return super()._without(reason, on_failure, report)
        return self._awaited(reason, on_failure, report)

    async def _awaited(self, answer: Any, on_failure: str, report: dict[str, Any] | None) -> Decision:
        try:
            answer = await answer
        except Exception as error:
            answer = self._unwritten(error)
        return answer if isinstance(answer, Decision) else super()._without(answer, on_failure, report)

    def _converse(self, op: int, elements: list[bytes], wanted: int) -> Any:
        if wanted:
            return self._ask(op, elements, wanted)
        try:
            self.pipe(asyncio.get_running_loop()).tell(op, elements, None)
        except (Fault, RuntimeError):
            return "unreachable"
        return None

    async def _ask(self, op: int, elements: list[bytes], wanted: int) -> Any:
        if not self._page[0] and self._pid != os.getpid():
            self._begin()
        if (probe := self._until > 0) and not self._may_probe(wanted):
            return "breaker"
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout
        while True:
            try:
                pipe = self.pipe(loop)
            except Fault as fault:
                self._settle(fault, probe)
                return fault.reason
            try:
                reply = await pipe.ask(op, elements, wanted, deadline)
            except Fault as fault:
                if fault.again and loop.time() < deadline:
                    continue
                return fault.reason
            if self._failures:
                self._settle(None, probe)
            if isinstance(reply, Fault):
                self._log(f"{reply}; such requests are not limited", once=True)
                return reply.reason
            return reply

    def pipe(self, loop: asyncio.AbstractEventLoop) -> Pipe:
        if not self._page[0] and self._pid != os.getpid():
            self._begin()
        pipe = self._pipes.get(loop)
        if pipe is None or pipe.leaving or pipe.closed:
            self._forget()
            with self._lock:
                self._info["connection"] += 1
                pipe = self._pipes[loop] = Pipe(self, loop, self._find(), dict(self._info), AsyncDecision)
                self._open.add(pipe)  # type: ignore[arg-type]
        return pipe

    def broken(self, pipe: Pipe, fault: Fault | None) -> None:
        """For a pipe that has ended: many requests may have, but it is one failure."""
        self._open.discard(pipe)
        if fault is not None:
            self._settle(fault, self._until > 0)

    def close(self) -> None:
        self._forget()
        with contextlib.suppress(RuntimeError):
            if (pipe := self._pipes.get(asyncio.get_running_loop())) is not None:
                pipe.end(None)

    def _forget(self) -> None:
        """Connections of loops that have ended."""
        for pipe in [one for one in list(self._pipes.values()) if one.loop.is_closed()]:
            self._pipes.pop(pipe.loop, None)
            pipe.end(None)
