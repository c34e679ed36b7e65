"""Client of tidegate, the rate limiting daemon of this host.

    decision = tidegate.Client().hit("api", {"user": user_id})

No call raises because of the daemon or outlasts its deadline (20 ms); without a reply the decision is *allow*, with
`degraded` and `reason` set. This file, `protocol.py` and `connection.py` work alone and can be copied; the other files
are imported with the first client, or on first use.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import os
import random
import re
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, TypeVar

from .connection import Connection
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
    RELEASE,
    RENEW,
    SIGNAL,
    Attributes,
    Cost,
    Fault,
    Map,
    OnFailure,
    Outcome,
    Verdict,
    beside,
    check_word,
    decode,
    encode,
    encode_name,
    raised_here,
    request,
    shorten_idem,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack  # of the type checker; typing has it from Python 3.11

    from .aio import AsyncClient as AsyncClient
    from .decorators import LimitedOptions
    from .fallback import Fallback

__all__ = ["Client", "Decision", "Denied", "limited"]
__version__ = "0.1.0"
F = TypeVar("F", bound=Callable[..., Any])
FIELDS = ("X-Ratelimit-Limit", "X-Ratelimit-Remaining", "Retry-After", "X-Ratelimit-Retry-After")
KINDS = [(kind, type(None)) for kind in (int, str, *6 * [int], list, list, dict)]  # of the elements of a decision
EXTRA = {"help": str, "unit": str, "rate": str, "digest": str, "hide": bool, "blocked": bool}
VERDICTS: tuple[Verdict, ...] = ("allow", "limit", "shed", "wait", "deny")
STATUSES, GRANTS = (200, 429, 503, 200, 403), (0, 3)
SHOWN = ("domain", "rule", "limit", "remaining", "retry_after", "lease", "digest", "reason")
new, Match = object.__new__, re.Match
ABANDONED_MAX, LOGGED_MAX = 512, 100
BESIDE = ("answers", "connect_error", "decorators", "gunicorn_slots", "log_texts", "page", "signals")
IDLE_MAX, IDLE_KEPT, IDLE_SECONDS = 64, 2, 20.0  # connections; IDLE_KEPT of them stay open after IDLE_SECONDS
TIMEOUT_MAX, SLOTS_MAX = 10, (1 << 32) - 1  # seconds; of the protocol
FAILURES_MAX, PAUSE_MIN, PAUSE_MAX = 3, 0.1, 2.0  # of the breaker; jitter shortens a pause (s) to 50 to 100 %
STOPPED = Fault("the daemon did not answer before", "breaker")


class Denied(Exception):
    """Raised by `limit` and `limited` if the work may not start; `decision` has the rule and the retry time."""

    def __init__(self, decision: Decision) -> None:
        super().__init__(decision.message)
        self.decision = decision

    def __reduce__(self) -> Any:
        return type(self), (self.decision,)


class Decision:
    """The answer to a request: true if the work may start. Times are in seconds; absent fields are None.

    `allowed`, `verdict` (allow, limit, shed, wait, deny), `status` (200, 429, 503, 403). `rule`, `limit`, `window`,
    `remaining`, `reset_after` of the binding rule. `retry_after` (None: never), `wait` (sleep before the start),
    `lease`, `notes` as (kind, rule), `help`. `degraded`: made without the daemon, for `reason`; of a refusal by the
    client, `reason` is `invalid`, `quota`, `not_allowed` or `forbidden`. Of other refusals, `domain` and `digest`.
    """

    allowed: bool
    verdict: Verdict
    status: int
    rule: str | None
    limit: int | None
    remaining: int | None
    lease: int | None
    window: float | None
    reset_after: float | None
    retry_after: float | None
    domain: str | None = None
    reason: str | None = None
    _asked: Any = None  # client, connection number and id of the request
    _read: Any = None  # match of the reply's bytes, until a field is first read
    _named: Any = None  # the idempotency key of the request

    def __init__(self, elements: list[Any], reason: str | None = None) -> None:
        given = (elements + 11 * [None])[:11]
        fits = all(map(tuple.__contains__, KINDS, map(type, given)))
        if fits and (given[8] or given[10]):
            extra, fits = given[10] or {}, not given[8] or not (len(given[8]) % 2 or {*map(type, given[8])} - {str})
            fits = fits and all(extra.get(key, kind()).__class__ in (kind, type(None)) for key, kind in EXTRA.items())
        if not fits or given[0] not in range(5) or min(filter(None, given[2:8]), default=0) < 0:
            raise Fault(f"malformed decision: {elements!r:.200}")
        self.reason = reason
        self._fill(*given)

    if not TYPE_CHECKING:  # else it would give every name the type Any

        def __getattr__(self, name: str) -> Any:
            if name[0] != "_" and (read := self._read) is not None:
                verdict, rule, *numbers, extra, _ = read.groups()
                fields = [None if n == b"\xc0" else int.from_bytes(n[1:] or n, "big") for n in numbers]
                more = decode(b"\x91" + extra)[0] if len(extra) > 1 else None
                self._fill(verdict[0], rule.decode() or None, *fields, None, None, more)
                self._read = None
            return object.__getattribute__(self, name)

    def _fill(self, verdict: int, *fields: Any) -> None:
        rule, limit, window, remaining, reset, retry, lease, notes, _, extra = fields
        self.allowed, self.verdict, self.status = verdict in GRANTS, VERDICTS[verdict], STATUSES[verdict]
        self.rule, self.limit, self.remaining, self.lease, self._granted = rule, limit, remaining, lease, lease
        self.window, self.reset_after, self.retry_after = [t if t is None else t / 1e6 for t in (window, reset, retry)]
        self.wait: float = (self.retry_after or 0.0) if verdict == 3 else 0.0
        self.notes: list[tuple[str, str]] = list(zip(notes[::2], notes[1::2])) if notes else []
        self.extra, self.degraded = extra or {}, self.reason is not None and self.reason not in REFUSALS.values()
        self.help: str | None = str(self.extra.get("help") or "") or None
        self.digest: str | None = str(self.extra.get("digest") or "") or None

    def __bool__(self) -> bool:
        return self.allowed

    def __repr__(self) -> str:
        shown = [f"{name}={getattr(self, name)!r}" for name in SHOWN if getattr(self, name) is not None]
        return f"<Decision {' '.join([self.verdict, *shown])}>"

    def __getstate__(self) -> Map:
        """Returns all fields but the client, for pickle and copy: only the original can release the lease."""
        getattr(self, "rule", None)  # fills the fields from `_read`
        return {name: value for name, value in self.__dict__.items() if name not in ("_asked", "_read")}

    def headers(self) -> dict[str, str]:
        """Returns RateLimit (ratelimit-headers-11), X-Ratelimit and, of a refusal, Retry-After headers."""
        return beside("answers", "headers", plain_headers)(self)  # type: ignore[no-any-return]

    @property
    def message(self) -> str:
        """One sentence for people: the rule, its limit, and the time of a retry."""
        return beside("answers", "message", plain_message)(self)  # type: ignore[no-any-return]

    def release(self, outcome: Outcome = "ok") -> None:
        """Ends the lease with an outcome; does nothing without a lease or the second time."""
        lease = self.lease
        if lease is None or not self._asked:
            return
        client, *which = self._asked
        elements = [encode(lease), encode({"ok": 0, "dropped": 2}.get(outcome, 1))]
        self.lease, written = None, False
        try:
            written = client._send(RELEASE, elements, which)
        finally:
            if not written:  # or a signal handler raised
                client._report_later({"abandoned": [which]})  # sent with the next request

    def renew(self) -> bool:
        """Restarts the lease's time; false if the lease has expired or the daemon does not answer."""
        lease = self.lease
        return bool(lease and self._asked) and self._asked[0]._done(RENEW, lambda: [encode(lease)])


def plain_headers(decision: Decision) -> dict[str, str]:
    """Returns X-Ratelimit, unless the rule is not advertised, and Retry-After; used without `answers.py`."""
    hidden, again = decision.extra.get("hide") is True, None if decision.allowed else decision.retry_after
    wait = None if again is None else max(1, math.ceil(again))
    limit = None if hidden or decision.rule is None else decision.limit
    values = (limit, None if limit is None else decision.remaining or 0, wait, None if hidden else wait)
    return {name: str(min(number, 10**15 - 1)) for name, number in zip(FIELDS, values) if number is not None}


unlimited = "are not limited".format
plain_message = "{0.verdict}: {0.rule} (retry_after: {0.retry_after})".format


class Options:
    """The less common options of a request."""

    def __init__(
        self,
        priority: Any = None,
        idem: Any = None,
        queued: Any = None,
        max_wait: Any = None,
        on_failure: OnFailure = "allow",
        fallback: Fallback | None = None,
    ) -> None:
        if not (fallback is None or hasattr(fallback, "decide")):
            raise ValueError('the fallback of a call is made once: fallback = tidegate.fallback.Fallback("20/s")')
        check_word("on_failure", on_failure, "allow", "refuse", None)
        self.priority, self.idem, self.on_failure, self.fallback = priority, idem, on_failure, fallback
        self.times = (("queued_us", queued), ("max_wait_us", max_wait))

    def options(self) -> Map:
        """Returns the options as the protocol has them. Raises a Fault for an invalid time or `idem`."""
        self.idem = shorten_idem(self.idem)
        options: Map = {} if self.idem is None else {"idem": self.idem}
        for name, seconds in self.times:
            if seconds is not None:
                if not isinstance(seconds, (int, float)) or not abs(seconds) < 1e308:
                    raise Fault("queued and max_wait are numbers of seconds", "invalid")
                # Rounded up, but 0.07 * 1e6 is above 70 000.
                options[name] = math.ceil(round(min(max(0, seconds), 1e12) * 1e6, 3))
        return options


class CallOptions(TypedDict, total=False):
    """The keywords of a call; `queued` and `max_wait` in seconds. Other values of `idem` become text."""

    priority: str | None
    idem: object
    queued: float | None
    max_wait: float | None
    on_failure: OnFailure
    fallback: Fallback | None


DEFAULTS = Options()


class Request(NamedTuple):
    """A request as the application made it, and its encoded elements."""

    op: int
    attributes: Attributes
    cost: Cost
    elements: list[bytes]


class Client:
    """Sends requests to the daemon of this host; safe in threads and over forks. The first request connects.

    `socket`: path, else TIDEGATE_SOCKET, else the default paths. `timeout`: seconds for a whole call. `pool`: name of
    the application. `slots`: requests that this process works on concurrently (0: read from gunicorn's settings).
    `fallback`: a rate such as "20/s" or "100/min burst 200", or a dict from rule names and "*" to rates: the limit for
    each domain and set of attributes while the daemon is unreachable. `on_decision(decision, seconds)` is called after
    each decision of `acquire`, `hit`, `limit` and `limited`; `tidegate.observe` has such functions.
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
        self._logger, self._logged = logger or logging.getLogger("tidegate"), set[str]()
        if timeout == 0.020 and (text := os.environ.get("TIDEGATE_TIMEOUT_MS", "")):
            if re.fullmatch("[0-9]{1,5}([.][0-9]{1,6})?", text) and 0 < float(text) <= TIMEOUT_MAX * 1000:
                timeout = float(text) / 1000
            else:
                self._log(f'TIDEGATE_TIMEOUT_MS is "{text:.40}", not above 0 and up to 10000: the timeout is 20 ms')
        fits = isinstance(slots, int) and slots is not True and 0 <= slots <= SLOTS_MAX
        if not (fits and 0 < timeout <= TIMEOUT_MAX):
            raise ValueError(f"the timeout is above 0 s, at most {TIMEOUT_MAX} s; slots are 0 to {SLOTS_MAX}, an int")
        path = os.fsencode(socket or os.environ.get("TIDEGATE_SOCKET", ""))  # raises a ValueError for other text
        self._path, self._timeout = os.fsdecode(path), timeout
        self._pool, self._info = encode_name(pool), Map(client=f"python/{__version__}", pool=pool, slots=slots)
        off = os.environ.get("TIDEGATE_DISABLE", "")
        self._slots, self._enabled, self._off = slots, enabled and off in ("", "0"), off
        self._fallback = None if fallback is None else beside("fallback", "Fallback")(fallback)
        for file in BESIDE:  # imported now: a call may have no free descriptor
            beside(file, "__name__", "")
        self._open, self._refuses = list[weakref.ref[Connection]](), False  # whether a request had "refuse"
        self._begin()
        _CLIENTS.add(self)
        if on_decision is not None:
            beside("observe", "watch")(self, on_decision)

    def _begin(self) -> None:
        """Starts a session of this process; a forked child uses no lock, count or socket of its parent."""
        for connection in self._connections():
            connection.close()
        self._lock, self._open = threading.RLock(), []
        page = beside("page", "page", bytes)(1)  # checked before the pid, which costs a system call
        self._info["slots"] = self._slots or beside("gunicorn_slots", "slots", "".format)(self, self._info["pool"]) or 0
        self._info |= {"session": os.urandom(16), "pid": os.getpid(), "connection": 0}
        self._idle = list[Connection]()  # a stack: the last used is reused first
        self._missed, self._refused, self._report = Counter[str](), Counter[str](), Map()
        # The breaker: failures, end of the last counted one, end and length of the pause, last logged state.
        self._failures, self._failed_at, self._until, self._pause, self._state = 0, 0.0, 0.0, 0.0, ""
        self._pid, self._page = os.getpid(), page  # last: an interrupted `_begin` runs again

    def acquire(
        self, domain: str, attributes: Attributes = None, cost: Cost = 1, **more: Unpack[CallOptions]
    ) -> Decision:
        """Asks whether work may start that ends with `release`. `more`: see CallOptions."""
        return self._judge(ACQUIRE, domain, attributes, cost, more)

    def hit(self, domain: str, attributes: Attributes = None, cost: Cost = 1, **more: Unpack[CallOptions]) -> Decision:
        """As `acquire`, without a lease: for a message, a login attempt."""
        return self._judge(HIT, domain, attributes, cost, more)

    def peek(self, domain: str, attributes: Attributes = None, cost: Cost = 1, **more: Unpack[CallOptions]) -> Decision:
        """Returns the decision that `acquire` would get; charges nothing."""
        return self._judge(PEEK, domain, attributes, cost, more)

    @contextlib.contextmanager
    def limit(
        self, domain: str, attributes: Attributes = None, cost: Cost = 1, **more: Unpack[CallOptions]
    ) -> Iterator[Decision]:
        """Context manager: sleeps `wait`, releases at the end; raises Denied if the work may not start."""
        decision, outcome = self._judge(ACQUIRE, domain, attributes, cost, more), "dropped"  # type: Decision, Outcome
        if not decision.allowed:
            raise Denied(decision)
        try:
            sleep(decision.wait)
            yield decision
            outcome = "ok"
        finally:
            try:
                decision.release(outcome)
            except BaseException:  # of a signal handler, perhaps before `release` began
                decision.release(outcome)
                raise

    def limited(
        self,
        domain: str,
        attributes: Attributes | Callable[..., Attributes] = None,
        cost: Cost = 1,
        **more: Unpack[LimitedOptions],
    ) -> Callable[[F], F]:
        """Decorates a function or a generator; `attributes` and `priority` may be functions of its arguments.

        `charge`: a function from its result to an amount, which is charged after it.
        """
        return beside("decorators", "limited")(self, domain, attributes, cost, **more)  # type: ignore[no-any-return]

    def charge(
        self, domain: str, attributes: Attributes = None, amount: Cost = 1, idem: Any = None, of: Any = None
    ) -> bool:
        """Charges all matching rates after the fact, into debt. False: none was charged.

        A negative amount refunds part of `of`: a decision, its lease, or the `idem` of a grant or charge.
        """
        return self._done(CHARGE, lambda: self._charge(domain, attributes, amount, idem, of))

    def signal(self, name: str, value: float) -> None:
        """Reports a utilization of this process, from 0 to 1; the daemon drops it after 3 s."""
        try:
            if not isinstance(value, (int, float)) or value != value:  # NaN
                raise Fault("a signal's value is a number from 0 to 1", "invalid")
            elements = [self._pool, encode_name(name), encode(round(1000 * min(max(value, 0), 1)))]
        except Fault as fault:
            self._log(f"{fault}; such signals are not sent", once=True)
        else:
            self._send(SIGNAL, elements)

    def check(self) -> bool:
        """Pings the daemon; false if it does not answer, the breaker is open or the client disabled."""
        return self._done(PING, list)

    def stats(self) -> dict[str, Any]:
        """Counts decisions without the daemon and own refusals by reason, and connections; state of the breaker."""
        counts: Map = {"missed": dict(self._missed), "refused": dict(self._refused)}
        return counts | {"connections": len(self._connections()), "breaker_open": self._until > 0}

    def close(self) -> None:
        """Closes idle connections. The client may be used again."""
        while oldest := self._idle[:1]:
            self._close_idle(oldest)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- one request: its frame, the exchange, and the decision without a reply

    def _judge(self, op: int, domain: str, attributes: Attributes, cost: Cost, more: CallOptions) -> Decision:
        """Not `**more`: after such a call an exception of a signal handler would lose the grant."""
        if not self._enabled:
            return self._pass()
        given = Options(**more) if more else DEFAULTS
        self._refuses = self._refuses or given.on_failure == "refuse"
        try:
            elements = request(domain, attributes, cost, given.priority, given.options() if more else {})
        except Fault as fault:
            return self._refuse(fault)
        report, answer = {}, None  # type: Map, Any
        try:
            if self._report and sum(map(len, elements)) < FRAME_MAX // 2:  # else a value might become its digest
                with self._lock:
                    report, self._report = self._report, {}
                elements = add_report(elements, given, report)
            answer = self._converse(op, elements, DECISION, None, domain)
            if given is DEFAULTS and self._fallback is None and type(answer) is Decision:
                return answer
            return self._conclude(answer, Request(op, attributes, cost, elements), given, report)
        except BaseException:  # of a signal handler
            self._report_later(report)
            if op == ACQUIRE and isinstance(answer, Decision) and answer._asked:
                self._report_later({"abandoned": [list(answer._asked[1:])]})
            raise

    def _pass(self) -> Decision:
        """Allows a request of a disabled client."""
        if self._off not in ("", "0"):
            self._log(f'TIDEGATE_DISABLE is "{self._off:.40}": nothing is limited', once=True)
        return Decision([0], reason="disabled")

    def _explain(self, domain: str, elements: list[bytes], decision: Decision) -> None:
        """Sets the domain of a refusal; logs that the domain does not exist or that none of its rules matched."""
        decision.domain = None if decision.allowed else domain
        if decision._read is None:
            if ("unmatched", "domain") in decision.notes:
                self._log(f'the rules have no domain "{domain}"; its requests are not limited', once=True)
            beside("log_texts", "log_unmatched", "".format)(self, elements, decision)

    def _conclude(self, answer: Any, asked: Request, given: Options, report: Map) -> Decision:
        """Returns the decision of a reply or of a failure."""
        fallback = self._fallback if given.fallback is None else given.fallback
        if isinstance(answer, Decision):
            answer._named = given.idem
            if fallback is not None:
                fallback.remember(asked, answer)
            return answer
        self._report_later(report)  # it may not have reached the daemon
        if answer.reason in REFUSALS.values():
            return self._refuse(answer)
        missed = self._degrade(answer.reason, given.on_failure)
        decided = None if fallback is None else fallback.decide(asked)
        return missed if decided is None else decided

    def _charge(self, domain: str, attributes: Attributes, amount: Cost, idem: Any, of: Any) -> list[bytes]:
        if isinstance(of, Decision):
            of = of._named or (of.verdict and of._granted)
            if of is None:
                raise Fault("a refund needs a decision with a lease or an idem; this one has none", "invalid")
        of = of if of.__class__ is int else of and shorten_idem(of)
        options = {name: value for name, value in (("idem", idem and shorten_idem(idem)), ("of", of)) if value}
        return request(domain, attributes, amount, None, options, signed=True)

    def _done(self, op: int, elements: Callable[[], list[bytes]]) -> bool:
        """Sends an operation; true if the daemon replies DONE with true."""
        if not self._enabled:
            return False
        try:
            answer = self._converse(op, elements(), DONE)
        except Fault as fault:
            answer = fault
        if isinstance(answer, Fault) and answer.reason in REFUSALS.values():
            self._refuse(answer)
        return answer is True

    def _send(self, op: int, elements: list[bytes], which: list[int] | None = None) -> bool:
        """Writes a frame without a reply; true if written. `which`: connection and id of the request that it ends."""
        return self._enabled and self._converse(op, elements, 0, which) is True

    def _converse(self, op: int, elements: list[bytes], wanted: int, which: Any = None, domain: str = "") -> Any:
        """Returns the Decision, the bool of a DONE, True for a frame without a reply, or a Fault."""
        if not self._page[0] and self._pid != os.getpid():
            self._begin()
        started = monotonic()
        deadline = started + self._timeout
        if self._until and (fault := self._probe(wanted, started, deadline)):
            return fault
        repeated, pause, idle = False, 0.0005, self._idle
        while True:
            connection, kept, decision, clear = None, False, None, False  # clear: a grant that needs no log
            try:
                connection = self._checkout(repeated)
                reply: Any = connection.ask(op, elements, wanted, deadline)
                if type(reply) is Match:
                    decision = new(Decision)
                    decision._read, decision.allowed = reply, (clear := reply[1] in (b"\0", b"\3"))
                    decision._asked = (self, connection.number, connection.asked)
                elif wanted == DECISION and type(reply) is list:
                    decision = Decision(reply)
                    decision._asked = (self, connection.number, connection.asked)
                if which is not None:
                    connection.unproved.append(which)
                elif connection.unproved:
                    connection.unproved.clear()
                if kept := not (connection.leaving or connection.rest):
                    connection.used = started
                    idle.append(connection)
                    if len(idle) > IDLE_KEPT:
                        self._close_idle(idle[:1], started - IDLE_SECONDS if len(idle) <= IDLE_MAX else math.inf)
                else:
                    connection.close()
                if self._failures and wanted:
                    self._settle(None, started)
                if decision is not None:
                    if not clear:
                        self._explain(domain, elements, decision)
                    return decision
                if type(reply) is Fault:
                    return self._log_error(reply)
                return reply[:1] == [True] if wanted else True
            except BaseException as error:
                # The daemon read no request; without a free descriptor only a connection of another thread helps.
                code = error.code if isinstance(error, Fault) else 0
                full = code == errno.EAGAIN or (code in (errno.EMFILE, errno.ENFILE) and bool(self._connections()))
                if connection is not None:
                    self._abandon(connection, PING if full else op, kept, decision)
                if not isinstance(error, Fault):
                    raise
                if error.again and not repeated and monotonic() < deadline:
                    repeated = connection is not None and connection.leaving  # else other idle ones may be closed too
                    continue
                if full and wanted and (left := deadline - monotonic()) > 0:
                    sleep(min(pause, left))  # until the daemon has room or another thread returns a connection
                    pause *= 2
                    continue
                if error.reason not in REFUSALS.values():
                    self._settle(error, started)
                return error

    def _log_error(self, fault: Fault) -> Fault:
        """Logs an ERROR of the daemon, each text once, and returns it."""
        if fault.reason not in REFUSALS.values():
            self._log(f"{fault}; such requests {beside('log_texts', 'consequence', unlimited)(self)}", once=True)
        return fault

    def _checkout(self, fresh: bool = False) -> Connection:
        if not fresh:
            try:
                return self._idle.pop()
            except IndexError as error:
                if not raised_here(error):
                    raise
        with self._lock:
            self._info["connection"] += 1
            info = dict(self._info)
        connection = Connection(self._find(), info, self._timeout)
        with self._lock:
            self._open = [*map(weakref.ref, self._connections()), weakref.ref(connection)]
        return connection

    def _connections(self) -> list[Connection]:
        """Returns open connections. The finalizer closes those that an exception dropped."""
        return [one for ref in self._open if (one := ref()) is not None and one.socket.fileno() >= 0]

    def _close_idle(self, connections: list[Connection], before: float = math.inf) -> None:
        """Closes connections last used earlier than `before`, unless another thread takes them."""
        for connection in connections:
            if connection.used < before:
                try:
                    self._idle.remove(connection)
                except ValueError as error:
                    if not raised_here(error):
                        raise
                else:
                    connection.close()

    def _abandon(self, connection: Connection, op: int, kept: bool, decision: Decision | None) -> None:
        """Closes a connection after a failure or an exception, and reports grants that may be lost."""
        asked = decision._asked[2] if decision is not None else connection.asked
        lost = [[connection.number, asked]] if op == ACQUIRE else []
        if not kept:
            lost += connection.unproved
            connection.close()
        self._report_later({"abandoned": lost} if lost else {})

    def _probe(self, wanted: int, started: float, deadline: float) -> Fault | None:
        """Pings the daemon over one new connection at a time; None if it answers again."""
        if not self._may_probe(wanted, started):
            return STOPPED if self._until else None
        connection = None
        try:
            connection = self._checkout(fresh=True)
            connection.ask(PING, [], DONE, deadline)
        except BaseException as error:
            if connection is not None:
                connection.close()
            if not isinstance(error, Fault):
                raise
            self._settle(error, started)
            return error
        self._answered_probe()
        connection.used = started
        self._idle.append(connection)
        return None

    def _may_probe(self, wanted: int, now: float) -> bool:
        if not wanted or now < self._until:
            return False
        with self._lock:
            if may := 0 < self._until <= now:
                self._until = now + PAUSE_MAX  # one probe at a time; the next one if this thread dies
        return may

    def _answered_probe(self) -> None:
        with self._lock:
            self._until, self._failures = 0.0, FAILURES_MAX - 1  # one failure opens it again before the next decision

    def _settle(self, fault: Fault | None, started: float) -> None:
        """Counts a failure of the daemon, or resets the count. Overlapping failures count once."""
        with self._lock:
            probed = self._until > 0
            if fault is None:
                self._failures, self._pause, self._until = 0, 0.0, 0.0
            elif started >= self._failed_at:
                self._failures, self._failed_at = self._failures + 1, monotonic()
                if fault.code in (errno.ENOENT, errno.ECONNREFUSED) or probed or self._failures >= FAILURES_MAX:
                    self._failures = max(self._failures, FAILURES_MAX)
                    self._pause = min(2 * self._pause, PAUSE_MAX) or PAUSE_MIN
                    self._until = self._failed_at + self._pause * random.uniform(0.5, 1.0)
            failing = fault is not None and (self._state != "well" or self._failures >= FAILURES_MAX)
            change, self._state = failing != (self._state == "failing"), "failing" if failing else "well"
            missed = sum(self._missed.values()) - self._missed["callback"]
        if change:  # a failure before any success is logged immediately, later ones when the breaker opens
            again = f"the daemon answers again; {missed} request{'s' * (missed != 1)} so far decided without it"
            failed = f"{fault}; requests {beside('log_texts', 'consequence', unlimited)(self)}"
            self._log(failed if fault else again)

    def _degrade(self, reason: str, on_failure: OnFailure = "allow") -> Decision:
        with self._lock:
            self._missed[reason] += 1
        self._report_later({"missed": Counter([reason])})
        return Decision([2, *5 * [None], 1_000_000] if on_failure == "refuse" else [0], reason=reason)

    def _refuse(self, fault: Fault) -> Decision:
        """Refuses an invalid or forbidden request: independent of the daemon's state, never *allow*."""
        with self._lock:
            self._refused[fault.reason] += 1
        self._log(f"{fault}; such requests are refused ({fault.reason})", once=True)
        return Decision([2, *5 * [None], 1_000_000], reason=fault.reason)

    def _report_later(self, report: Map) -> None:
        with self._lock:
            for name, news in report.items():
                self._report[name] = news + self._report.get(name, type(news)())
            del self._report.get("abandoned", [])[ABANDONED_MAX:]

    def _find(self) -> str:
        own = os.path.join(os.environ.get("XDG_RUNTIME_DIR", ""), "tidegate/tidegate.sock")
        return self._path or (own if own[0] == "/" and os.path.exists(own) else "/run/tidegate/tidegate.sock")

    def _log(self, text: str, once: bool = False) -> None:
        if not once or (text not in self._logged and len(self._logged) < LOGGED_MAX):
            self._logged |= {text} if once else set()
            try:
                self._logger.warning("tidegate: %s", text)
            except Exception as error:
                if beside("signals", "from_signal", bool)(error):
                    raise


def add_report(elements: list[bytes], given: Options, report: Map) -> list[bytes]:
    """Adds a report of missed and abandoned requests to the options of a request."""
    head = [*elements, b"\xc0"][:4] if len(elements) < 5 else elements[:4]
    return [*head, encode(given.options() | report)]


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name == "AsyncClient":
            return beside("aio", name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


limited = Client.limited
_CLIENTS: weakref.WeakSet[Client] = weakref.WeakSet()
os.register_at_fork(after_in_child=lambda: list(map(Client._begin, list(_CLIENTS))))
