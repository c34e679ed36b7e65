"""A connection for asyncio: concurrent requests of many tasks, matched by id. Any error closes it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections import deque
from math import inf
from time import monotonic
from typing import Any

from . import ABANDONED_MAX, GRANTS, Decision
from .connection import SEND_FLAGS, connect, match_decision
from .log_texts import oversized
from .protocol import (
    ACQUIRE,
    DECISION,
    ERROR,
    ERRORS_KEPT_OPEN,
    FRAME_MAX,
    GOODBYE,
    HELLO,
    INTERNAL,
    WELCOME,
    Fault,
    decode,
    encode,
    error_fault,
    raised_here,
)

IN_FLIGHT_MAX = 256  # requests written and not answered, which the daemon keeps for one connection
WAITING_MAX = 8_192  # waiting tasks; further requests fail immediately
READ_BYTES = 65_536
READS_MAX = IN_FLIGHT_MAX * FRAME_MAX // READ_BYTES  # for the largest replies to all requests in flight


class Waiting:
    """A request that waits for its reply. `deadline`: by the loop's clock, restarted when the request is written.

    Thus a busy loop does not use up the daemon's time. In the queue there is none: those in flight have theirs, so the
    queue moves or the connection ends.
    """

    __slots__ = ("deadline", "future", "op", "since", "wanted")

    def __init__(self, op: int, wanted: int, deadline: float, future: asyncio.Future[Any]) -> None:
        self.op, self.wanted, self.deadline, self.future = op, wanted, deadline, future
        self.since = monotonic()


class Grant:
    """The origin of an asynchronous decision, which `Decision.release` uses as its client."""

    __slots__ = ("core", "pipe", "which")

    def __init__(self, core: Any, pipe: Pipe, which: list[int]) -> None:
        self.core, self.pipe, self.which = core, pipe, which

    def _send(self, op: int, elements: list[bytes], which: list[int]) -> bool:
        """Writes a RELEASE without waiting; another thread hands it to the loop."""
        loop = asyncio._get_running_loop()
        if loop is None:
            return self._hand_over(op, elements)
        if self.pipe.loop is loop and not self.pipe.closed:
            self.pipe.send(op, elements, self.which)
            return True
        return self.core._converse(op, elements, 0, self.which) is True

    def _hand_over(self, op: int, elements: list[bytes]) -> bool:
        def release() -> None:
            if not self._send(op, elements, self.which):
                self._report_later({"abandoned": [self.which]})

        if not self.pipe.loop.is_running():
            return False
        self.pipe.loop.call_soon_threadsafe(release)
        return True

    def _report_later(self, report: dict[str, Any]) -> None:
        self.core._report_later(report)


class Pipe:
    def __init__(
        self, core: Any, loop: asyncio.AbstractEventLoop, path: str, info: dict[str, Any], kind: type[Decision]
    ) -> None:
        self.core, self.loop, self.kind, self.number = core, loop, kind, info["connection"]
        self.asked, self.rest, self.leaving, self.goodbye, self.closed = 0, b"", False, False, False
        self.waiting: dict[int, Waiting] = {}  # oldest first
        self.unsent: deque[tuple[bytes, int]] = deque()  # frames and their ids
        self.queued: deque[tuple[bytes, int]] = deque()  # requests beyond IN_FLIGHT_MAX
        # Released grants with the id of the request before: a reply to a later one proves that the RELEASE arrived.
        self.unproved: deque[tuple[int, list[int]]] = deque(maxlen=ABANDONED_MAX)
        self.welcome = False
        self.flushing = self.writing = False
        self.timer: asyncio.TimerHandle | None = None
        self.timeout = core._timeout
        self.socket = connect(path)
        hello = encode([HELLO, 0, 1, info])
        self.unsent.append((len(hello).to_bytes(4, "big") + hello, 0))
        loop.add_reader(self.socket.fileno(), self._readable)

    async def ask(self, op: int, elements: list[bytes], wanted: int, deadline: float) -> Any:
        """Returns the reply or a Fault that keeps the connection; raises a Fault that ends it."""
        if len(self.waiting) >= WAITING_MAX:
            raise Fault("too many requests wait", "timeout")
        self.asked = number = self.asked + 1
        asked = self.waiting[number] = Waiting(op, wanted, deadline, self.loop.create_future())
        frame = _frame(op, encode(number), elements)
        if len(self.waiting) > IN_FLIGHT_MAX:
            self.queued.append((frame, number))
            asked.deadline = inf
        else:
            self._write(frame, number)
        if self.timer is None:
            self.timer = self.loop.call_at(deadline, self._expire)
        try:
            return await asked.future
        except Fault:
            raise
        except BaseException:  # the task was cancelled, or a signal handler raised
            self._abandon(number, asked)
            raise

    def send(self, op: int, elements: list[bytes], which: list[int] | None) -> None:
        """Writes a frame without a reply."""
        if which is not None:
            self.unproved.append((self.asked, which))
        self._write(_frame(op, b"\xc0", elements), 0)

    def _abandon(self, number: int, asked: Waiting) -> None:
        """Releases the grant of a cancelled request, or reports the request as abandoned."""
        if asked.op != ACQUIRE:
            return
        if asked.future.done() and not asked.future.cancelled():
            if asked.future.exception() is None and isinstance(decision := asked.future.result(), Decision):
                decision.release("dropped")
            return
        self.core._report_later({"abandoned": [[self.number, number]]})

    def _write(self, frame: bytes, number: int) -> None:
        self.unsent.append((frame, number))
        if not self.flushing and not self.writing:  # one write for all frames of this iteration of the loop
            self.flushing = True
            self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self.flushing = False
        while self.unsent and not self.closed:
            data = b"".join([frame for frame, _ in self.unsent])
            try:
                sent = self.socket.send(data, SEND_FLAGS)
            except OSError as error:
                if not raised_here(error):
                    raise
                if error.errno != errno.EAGAIN:
                    self._readable()  # ends with the daemon's ERROR, if there is one
                    self._hung_up()
                    return
                sent = 0
            whole, deadline = sent == len(data), self.loop.time() + self.timeout
            while self.unsent and sent >= len(self.unsent[0][0]):
                frame, number = self.unsent.popleft()
                sent -= len(frame)
                if (asked := self.waiting.get(number)) is not None:
                    asked.deadline = deadline
            if sent:
                frame, number = self.unsent.popleft()
                self.unsent.appendleft((frame[sent:], number))
            if not whole:
                if not self.writing:
                    self.writing = True
                    self.loop.add_writer(self.socket.fileno(), self._flush)
                return
        if self.writing and not self.closed:
            self.writing = False
            self.loop.remove_writer(self.socket.fileno())

    def _readable(self) -> bool:
        """Reads once. Returns whether more bytes may wait."""
        try:
            data = self.socket.recv(READ_BYTES)
        except OSError as error:
            if not raised_here(error):
                raise
            if error.errno == errno.EAGAIN:
                return False
            data = b""
        try:
            if not data:
                self._hung_up()
                return False
            self.rest += data
            self._read()
        except Fault as fault:
            self.end(fault)
        if self.leaving and not self.waiting:
            self.end(None)
        return len(data) == READ_BYTES and not self.closed

    def _read(self) -> None:
        data, at = self.rest, 0
        try:
            while len(data) - at >= 4:
                end = at + 4 + int.from_bytes(data[at : at + 4], "big")
                if end - at - 4 > FRAME_MAX:
                    raise Fault(oversized(data[at:]))
                if len(data) < end:
                    break
                payload, at = data[at + 4 : end], end
                self._reply(payload)
        finally:
            self.rest = data[at:]
        while self.queued and len(self.waiting) - len(self.queued) < IN_FLIGHT_MAX:
            frame, number = self.queued.popleft()
            self.waiting[number].deadline = self.loop.time() + self.timeout
            self._write(frame, number)

    def _reply(self, payload: bytes) -> None:
        if (made := self._read_plain(payload)) is not None:
            about, answer = made
            asked = self.waiting.get(about)
            if asked is not None and asked.wanted == DECISION:
                self._finish(about, asked, answer)
                return
        reply = decode(payload)
        kind, number, what = ([n if n.__class__ is int else None for n in reply[:3]] + 3 * [None])[:3]
        about = -1 if number is None else number
        asked, hello = self.waiting.get(about), about == 0 and not self.welcome
        fault = Fault(f"the daemon answered {kind}: {reply[2:]!r:.200}")
        if kind == ERROR:
            fault = error_fault(str(fault), what, hello or asked is not None, number)
        if asked is not None and kind == ERROR and what in ERRORS_KEPT_OPEN:
            self.leaving = self.leaving or what == INTERNAL
            self._finish(about, asked, fault)
        elif asked is not None and kind == asked.wanted:
            self._finish(about, asked, self.kind(reply[2:]) if kind == DECISION else reply[2:3] == [True])
        elif kind == GOODBYE:
            self.leaving = self.goodbye = True
        elif hello and (kind, what) == (WELCOME, 1):
            self.welcome = True
        else:
            raise fault

    def _read_plain(self, payload: bytes) -> tuple[int, Decision] | None:
        """Reads the most common form of a decision by one match, as `Connection.ask` does."""
        if payload[:2] != b"\x9d\1" or len(payload) < 8:
            return None
        width = {0xCC: 1, 0xCD: 2, 0xCE: 4}.get(payload[2], 0)
        at = 3 + width
        match = match_decision(payload[at + 1])(payload, at)
        if match is None or (not width and payload[2] > 127):
            return None
        decision = self.kind.__new__(self.kind)
        decision._read, decision.allowed = match, payload[at] in GRANTS
        return int.from_bytes(payload[at - width : at], "big") if width else payload[2], decision

    def _finish(self, about: int, asked: Waiting, answer: Any) -> None:
        del self.waiting[about]
        while self.unproved and self.unproved[0][0] < about:
            self.unproved.popleft()
        if isinstance(answer, Decision):
            answer._asked = (Grant(self.core, self, [self.number, about]), self.number, about)
        if not asked.future.done():
            asked.future.set_result(answer)
        elif isinstance(answer, Decision) and asked.op == ACQUIRE:  # its task was cancelled
            answer.release("dropped")

    def _expire(self) -> None:
        """Ends the connection if the deadline of a request has passed."""
        self.timer = None
        if not self.writing:
            self._flush()  # the loop may have been too busy
        for _ in range(READS_MAX):  # replies that arrived count; loops other than asyncio's may run timers before reads
            if not self._readable():
                break
        if self.closed or not self.waiting:
            return
        deadline = min(asked.deadline for asked in self.waiting.values())
        if deadline <= self.loop.time():
            self.end(Fault("the daemon did not answer in time", "timeout"))
        else:
            self.timer = self.loop.call_at(deadline, self._expire)

    def _hung_up(self) -> None:
        self.end(Fault("the daemon hung up", "unreachable"), hung_up=True)

    def end(self, fault: Fault | None, hung_up: bool = False) -> None:
        """Closes once. `fault`: the cause, if requests wait.

        If the daemon hung up, unwritten requests and those left unanswered after a GOODBYE are retried on another
        connection, but only if this one had a WELCOME: otherwise retries could go on for ever.
        """
        if self.closed:
            return
        self.closed = True
        with contextlib.suppress(Exception):  # the loop may be closed
            self.loop.remove_reader(self.socket.fileno())
            self.loop.remove_writer(self.socket.fileno())
        if self.timer is not None:
            self.timer.cancel()
        self.socket.close()
        unsent = {number for _, number in [*self.unsent, *self.queued]}
        waiting, self.waiting = self.waiting, {}
        abandoned = [which for _, which in self.unproved]
        cause, failed = fault or Fault("the client was closed", "unreachable"), False
        for number, asked in waiting.items():
            again = hung_up and self.welcome and (self.goodbye or number in unsent)
            unread = again or cause.code == errno.EAGAIN
            failed = failed or not unread
            if asked.op == ACQUIRE and number not in unsent and not unread:
                abandoned.append([self.number, number])
            if not asked.future.done():
                asked.future.set_exception(Fault(str(cause), cause.reason, again, cause.code))
        if abandoned:
            self.core._report_later({"abandoned": abandoned[:ABANDONED_MAX]})
        self.unsent.clear()
        self.queued.clear()
        since = min((asked.since for asked in waiting.values()), default=monotonic())
        self.core.broken(self, fault if failed or not (hung_up or cause.code) else None, since)

    def close_inherited(self) -> None:
        """Closes without using the loop, whose selector the parent shares."""
        self.closed = True
        self.socket.close()


def _frame(op: int, number: bytes, elements: list[bytes]) -> bytes:
    payload = b"".join((bytes((0x92 + len(elements), op)), number, *elements))
    return len(payload).to_bytes(4, "big") + payload
