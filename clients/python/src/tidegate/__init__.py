"""tidegate: asks the daemon of this host whether a piece of work may start.

    decision = tidegate.Client().hit("api", {"user": user_id})

A limiter must not hurt what it protects: no call raises because of the daemon or outlasts its deadline (20 ms); without
an answer the decision is *allow* and says so (`degraded`, `reason`). The bytes are in `_wire`, the socket in
`_connection`, HTTP in `_http`, the decision and the client here. This directory needs nothing but Python, so it may be
copied into a program.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import random
import re
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from time import monotonic
from typing import TYPE_CHECKING, Any, ParamSpec, TypedDict, TypeVar

from . import _http
from ._connection import Connection, Fault
from ._wire import (
    ACQUIRE,
    DECISION,
    DONE,
    ERROR,
    FRAME_MAX,
    HIT,
    KEEPING,
    PEEK,
    PING,
    RELEASE,
    RENEW,
    Attributes,
    Cost,
    Malformed,
    encode,
    encode_name,
    microseconds,
    request,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["Client", "Decision", "Denied", "limited"]
__version__ = "0.1.0"
P = ParamSpec("P")
R = TypeVar("R")
Given = Attributes | Callable[..., Attributes]


class Denied(Exception):
    """Raised by `limit` and `limited` when the work may not start; `decision` says why and until when."""

    def __init__(self, decision: Decision) -> None:
        super().__init__(decision.message)
        self.decision = decision


class Decision:
    """The answer to a request: true if the work may start. Times are in seconds.

    `allowed`, `verdict` (allow, limit, shed, wait, deny), `status` (200, 429, 503, 403). `rule`, `limit`, `window`,
    `remaining`, `reset_after` of the binding rule, None where there is none. `retry_after` (None: never), `wait` (start
    after it), `lease`, `notes` as (kind, rule). `degraded`: made without the daemon, for `reason`.
    """

    def __init__(self, fields: list[Any], client: Client | None = None, reason: str | None = None) -> None:
        """`fields` is a DECISION of the protocol; Malformed if one of them is not what it should be."""
        fields = fields + _NILS[len(fields) :] if len(fields) < 13 else fields[:13]
        _, _, verdict, self.rule, self.limit, window, self.remaining, reset, retry, self.lease, notes, _, extra = fields
        for number in fields[4:10]:
            if number is not None and (number.__class__ is not int or number < 0):
                raise Malformed("a decision with a number that is none")
        if verdict.__class__ is not int or not 0 <= verdict <= 4 or self.rule.__class__ not in (str, type(None)):
            raise Malformed("a decision with an unknown verdict or rule")
        if (notes or extra) and not (isinstance(notes or [], list) and isinstance(extra or {}, dict)):
            raise Malformed("a decision with doubtful notes")
        self.verdict, self.status = VERDICTS[verdict], STATUSES[verdict]
        self.allowed: bool = verdict == 0 or verdict == 3
        self.window: float | None = None if window is None else window / 1e6
        self.reset_after: float | None = None if reset is None else reset / 1e6
        self.retry_after: float | None = None if retry is None else retry / 1e6
        self.wait: float = (self.retry_after or 0.0) if verdict == 3 else 0.0
        self.notes: list[tuple[str, str]] = list(zip(notes[::2], notes[1::2])) if notes else []
        self.degraded, self.reason, self._client = reason is not None, reason, client
        self.help: str | None = None
        self.unit, self.hidden = "requests", False
        if extra:
            self.help = str(extra.get("help") or "") or None
            self.unit, self.hidden = str(extra.get("unit") or "requests"), extra.get("hide") is True

    def __bool__(self) -> bool:
        return self.allowed

    def headers(self, style: str = "both") -> dict[str, str]:
        """HTTP fields of the answer, also of an allowed one; `style`: draft, legacy, both or none."""
        return _http.headers(self, style)

    @property
    def message(self) -> str:
        """For people: which limit, how much, and when to try again."""
        return _http.message(self)

    def problem(self) -> bytes:
        """The body of a refusal, application/problem+json."""
        return _http.problem(self)

    def release(self, outcome: str = "ok") -> None:
        """Ends the work: ok, error or dropped. Without a lease, or the second time, nothing happens."""
        lease, self.lease = self.lease, None
        if lease is not None and self._client is not None:
            self._client._tell(RELEASE, lease, {"ok": 0, "dropped": 2}.get(outcome, 1))

    def renew(self) -> bool:
        """Starts the lease's time again; False if there is none any more."""
        return self.lease is not None and self._client is not None and self._client._tell(RENEW, self.lease)


class Options(TypedDict, total=False):
    """What else a judgement may say. `queued` (how long it waited for the application) and `max_wait` are seconds."""

    priority: str | None
    idem: str | bytes | None  # a repeat within a minute is not charged; never an end user's header as it stands
    queued: float | None
    max_wait: float | None  # None: as long as the rule's queue; 0: never WAIT
    on_failure: str  # without the daemon: allow, or refuse with 503


class Client:
    """Asks the daemon of this host; safe in threads and over forks. Nothing is opened before the first question.

    `socket`: the path, else TIDEGATE_SOCKET, else tidegate's usual places. `timeout`: seconds for a whole call. `pool`,
    `slots`: the application this is, and how many requests this process works on at once (0: unknown).
    """

    def __init__(
        self, socket: str | os.PathLike[str] | None = None, timeout: float = 0.020, pool: str = "default",
        slots: int = 0, enabled: bool = True, logger: logging.Logger | None = None,
    ) -> None:  # fmt: skip
        if timeout == 0.020 and re.fullmatch(r"\d+([.]\d+)?", os.environ.get("TIDEGATE_TIMEOUT_MS", "")):
            timeout = float(os.environ["TIDEGATE_TIMEOUT_MS"]) / 1000
        if not encode_name(pool) or timeout <= 0 or slots < 0:
            raise ValueError("the timeout is above 0 s, slots are 0 or more")
        self._path, self._timeout = os.fspath(socket or os.environ.get("TIDEGATE_SOCKET", "")), timeout
        self._info = {"client": f"python/{__version__}", "pool": pool, "slots": slots}
        self._enabled = enabled and os.environ.get("TIDEGATE_DISABLE", "") in ("", "0")
        self._logger, self._logged, self._open = logger or logging.getLogger("tidegate"), set[str](), set[Connection]()
        self._begin()
        _CLIENTS.add(self)

    def _begin(self) -> None:
        """A session of this process' own: after a fork no lock, count or socket of the parent is used."""
        for connection in list(self._open):
            self._close(connection)
        self._pid, self._id, self._lock = os.getpid(), os.urandom(16), threading.RLock()
        self._idle: list[Connection] = []  # the last one used goes first; append and pop are atomic
        self._missed: Counter[str] = Counter()
        self._report: dict[str, Any] = {}  # to be told to the daemon: `missed` and `abandoned` of the protocol
        self._connections = self._failures = 0
        self._until = self._pause = 0.0  # the breaker is open until then; 0.0: it is closed
        self._told: bool | None = None  # of the trouble there is; None: of none ever

    def acquire(self, domain: str, attributes: Given = None, cost: Cost = 1, **more: Unpack[Options]) -> Decision:
        """May this work start? True or false; never raises. The work ends with the decision's `release`."""
        return self._judge(ACQUIRE, domain, attributes, cost, **more)

    def hit(self, domain: str, attributes: Given = None, cost: Cost = 1, **more: Unpack[Options]) -> Decision:
        """As `acquire`, for what has no end: a message, a login attempt."""
        return self._judge(HIT, domain, attributes, cost, **more)

    def peek(self, domain: str, attributes: Given = None, cost: Cost = 1, **more: Unpack[Options]) -> Decision:
        """What `acquire` would say; nothing is charged."""
        return self._judge(PEEK, domain, attributes, cost, **more)

    @contextlib.contextmanager
    def limit(
        self, domain: str, attributes: Given = None, cost: Cost = 1, **more: Unpack[Options]
    ) -> Iterator[Decision]:
        """For `with`: sleeps off a WAIT, releases at the end; raises Denied if the work may not start."""
        decision, outcome = self.acquire(domain, attributes, cost, **more), "dropped"
        if not decision:
            raise Denied(decision)
        try:
            time.sleep(decision.wait)
            yield decision
            outcome = "ok"
        finally:
            decision.release(outcome)

    def limited(
        self, domain: str, attributes: Given = None, cost: Cost = 1, **more: Unpack[Options]
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Decorates a plain function with `limit`; `attributes` may be a function of the call's arguments."""

        def decorate(function: Callable[P, R]) -> Callable[P, R]:
            @functools.wraps(function)
            def call(*args: P.args, **kwargs: P.kwargs) -> R:
                given = functools.partial(attributes, *args, **kwargs) if callable(attributes) else attributes
                with self.limit(domain, given, cost, **more):
                    return function(*args, **kwargs)

            return call

        return decorate

    def check(self) -> bool:
        """Whether the daemon answers; false, without asking, if the breaker is open or the client disabled."""
        return self._tell(PING)

    def stats(self) -> dict[str, Any]:
        """How many decisions were made without the daemon, by reason; connections; whether the breaker is open."""
        return {"missed": dict(self._missed), "connections": len(self._open), "breaker_open": self._until > 0}

    def close(self) -> None:
        """Closes what is idle. The client may be used again."""
        while connection := self._take_idle():
            self._close(connection)

    def callback_failed(self, what: str, error: Exception) -> Decision:
        """Allows what an application's function left unjudged by raising; for middlewares."""
        self._log(f"{what} raised {type(error).__name__}: such requests are not limited", once=True)  # no user's data
        return self._without("callback")

    def _judge(
        self, op: int, domain: str, attributes: Given, cost: Cost, priority: str | None = None,
        idem: str | bytes | None = None, queued: float | None = None, max_wait: float | None = None,
        on_failure: str = "allow",
    ) -> Decision:  # fmt: skip
        if not self._enabled:
            return Decision([DECISION, 0, 0], reason="disabled")
        try:
            given = attributes() if callable(attributes) else attributes
        except Exception as error:
            return self.callback_failed("attributes", error)
        report: dict[str, Any] | None = None
        try:
            options: dict[str, Any] = {} if idem is None else {"idem": idem}
            if queued is not None:
                options["queued_us"] = microseconds(queued)
            if max_wait is not None:
                options["max_wait_us"] = microseconds(max_wait)
            tail = b"" if priority is None else encode_name(priority)
            more = (tail or b"\xc0") + encode(options) if options else tail
            body = request(domain, given, cost, more)
            if self._report and len(body) < FRAME_MAX // 2:  # where it cannot cost an attribute its text
                with self._lock:
                    report = self._report
                    self._report = {}
                more = (tail or b"\xc0") + encode(options | report)
                body = request(domain, given, cost, more)
            head = bytes((0x97 if len(more) > len(tail) else 0x96 if tail else 0x95, op))
        except Exception as error:
            text = error if isinstance(error, Malformed) else type(error).__name__
            self._log(f"a request cannot be written, so it is not limited: {text}", once=True)
            return self._without("protocol", on_failure)
        try:
            decision: Decision = self._exchange(op, head, body)
            return decision
        except Fault as fault:
            if report:
                self._report_later(report)
            return self._without(fault.reason, on_failure)

    def _tell(self, op: int, *rest: int) -> bool:
        with contextlib.suppress(Fault):
            return self._enabled and self._exchange(op, bytes((0x92 + len(rest), op)), b"".join(map(encode, rest)))
        return False

    def _exchange(self, op: int, head: bytes, body: bytes) -> Any:
        """A Decision, or DONE's `ok`; a Fault if no answer comes in time that can be trusted."""
        if self._pid != os.getpid():
            self._begin()
        deadline, probe = monotonic() + self._timeout, self._until > 0
        if probe and not self._may_probe():
            raise Fault("breaker", "the daemon is left alone for a while")
        try:
            try:
                answer = self._over(self._take_idle(), op, head, body, deadline)
            except Fault as fault:
                if not fault.again:
                    raise
                answer = self._over(None, op, head, body, deadline)
        except Fault as fault:
            self._failed(fault, probe)
            raise
        if self._failures:
            self._recovered()
        if isinstance(answer, Fault):
            self._log(f"{answer}; such requests are not limited", once=True)
            raise answer
        return answer

    def _over(self, connection: Connection | None, op: int, head: bytes, body: bytes, deadline: float) -> Any:
        if connection is None:
            with self._lock:
                self._connections += 1
                info = self._info | {"session": self._id, "pid": self._pid, "connection": self._connections}
            connection = Connection(self._find(), info)
            self._open.add(connection)
        try:
            reply = connection.ask(head, body, deadline)
            if reply[0] == (DONE if op in JUDGEMENTS else DECISION):
                raise Malformed("a reply of another kind")
            answer = Decision(reply, self) if reply[0] == DECISION else reply[2:3] == [True]
        except BaseException as error:
            self._close(connection)
            if op == ACQUIRE:
                self._report_later({"abandoned": [[connection.number, connection.asked]]})
            if isinstance(error, Malformed):
                raise Fault("protocol", f"the daemon sent doubtful bytes: {error}") from error
            raise
        if connection.leaving or connection.rest or len(self._idle) >= IDLE_MAX:
            self._close(connection)
        else:
            self._idle.append(connection)
        if reply[0] == ERROR:
            return Fault("protocol", f"the daemon refuses a request, {KEEPING[reply[2]]}: {reply[3:4]!r:.200}")
        return answer

    def _take_idle(self) -> Connection | None:
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _close(self, connection: Connection) -> None:
        """Without `shutdown`, which would reach through to the process this one was forked from."""
        self._open.discard(connection)
        connection.socket.close()

    def _without(self, reason: str, on_failure: str = "allow") -> Decision:
        with self._lock:
            self._missed[reason] += 1
            self._report_later({"missed": Counter([reason])})
        refused = [DECISION, 0, 2, None, None, None, None, None, 1_000_000]
        return Decision([DECISION, 0, 0] if on_failure == "allow" else refused, reason=reason)

    def _report_later(self, report: dict[str, Any]) -> None:
        """Adds to what the daemon will be told; also what it was told when no reply came."""
        with self._lock:
            for name, empty in ("missed", Counter[str]()), ("abandoned", []):
                if name in report:
                    self._report[name] = report[name] + self._report.get(name, empty)
            del self._report.get("abandoned", [])[ABANDONED_MAX:]

    def _may_probe(self) -> bool:
        """While the breaker is open: may this call ask? One at a time; should it die, another may after a while."""
        with self._lock:
            due = monotonic() >= self._until
            self._until = monotonic() + PAUSE_MAX if due else self._until
            return due

    def _failed(self, fault: Fault, probe: bool) -> None:
        with self._lock:
            self._failures += 1
            if probe or self._failures == FAILURES_MAX:
                self._pause = min(2 * self._pause, PAUSE_MAX) or PAUSE_MIN
                self._until = monotonic() + self._pause * random.uniform(0.8, 1.2)
            # The very first failure is told at once, later ones only when they are a state.
            tell = self._told is None or (not self._told and self._failures == FAILURES_MAX)
            self._told = self._told or tell
        if tell:
            self._log(f"{fault}; requests are not limited")

    def _recovered(self) -> None:
        with self._lock:
            tell, self._told = self._told, False
            self._failures, self._pause, self._until = 0, 0.0, 0.0
        if tell:
            self._log(f"the daemon answers again; {sum(self._missed.values())} requests so far were not limited")

    def _find(self) -> str:
        own = os.path.join(os.environ.get("XDG_RUNTIME_DIR", ""), "tidegate/tidegate.sock")
        return self._path or (own if own[0] == "/" and os.path.exists(own) else "/run/tidegate/tidegate.sock")

    def _log(self, text: str, once: bool = False) -> None:
        if not (once and text in self._logged):
            if once and len(self._logged) < 100:
                self._logged.add(text)
            with contextlib.suppress(Exception):
                self._logger.warning("tidegate: %s", text)


JUDGEMENTS = frozenset((ACQUIRE, HIT, PEEK))
ABANDONED_MAX, IDLE_MAX = 256, 64
FAILURES_MAX, PAUSE_MIN, PAUSE_MAX = 3, 1.0, 5.0
VERDICTS, STATUSES = ("allow", "limit", "shed", "wait", "deny"), (200, 429, 503, 200, 403)
_NILS: list[Any] = [None] * 13
limited = Client.limited
_CLIENTS: weakref.WeakSet[Client] = weakref.WeakSet()
os.register_at_fork(after_in_child=lambda: list(map(Client._begin, list(_CLIENTS))))
