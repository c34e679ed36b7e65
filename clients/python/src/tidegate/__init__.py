"""tidegate: asks the daemon of this host whether a piece of work may start.

    decision = tidegate.Client().hit("api", {"user": user_id})

No call raises because of the daemon or outlasts its deadline (20 ms); without an answer the decision is *allow* and
says so (`degraded`, `reason`). This file is all of the client, to be copied: errors, codec, connection, client.
"""

from __future__ import annotations

import contextlib
import functools
import grp
import hashlib
import inspect
import json
import logging
import math
import os
import pwd
import random
import re
import socket
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from time import monotonic, sleep
from typing import Any, TypeVar

__all__ = ["Client", "Decision", "Denied", "limited"]
__version__ = "0.1.0"
F = TypeVar("F", bound=Callable[..., Any])
Cost = int | dict[str, int]
Map = dict[str, Any]
Attributes = Mapping[str, object] | Iterable[tuple[str, object]] | None
Given = Attributes | Callable[..., Attributes]

class Denied(Exception):
    """Raised by `limit` and `limited` when the work may not start; `decision` says why and until when."""
    def __init__(self, decision: Decision) -> None:
        super().__init__(decision.message)
        self.decision = decision
class Fault(ValueError):
    """What cannot be written or trusted: why, a word to count; `again`: the daemon has had nothing of the request."""
    def __init__(self, text: str, reason: str = "protocol", again: bool = False) -> None:
        super().__init__(text)
        self.reason, self.again = reason, again

# -- codec: MessagePack within the bounds of the protocol, and the request of a judgement ------------------------------
VALUE_MAX, NAME_MAX, PAIRS_MAX, DEPTH_MAX, FRAME_MAX, COST_MAX = 1_024, 64, 16, 4, 16_384, (1 << 32) - 1
HELLO, ACQUIRE, RELEASE, HIT, PEEK, CHARGE, RENEW, SIGNAL, PING = range(9)
WELCOME, DECISION, DONE, ERROR, GOODBYE = range(5)
KEEPING = (5, 6, 7, 10, 11)  # the errors that close nothing
# How a value begins: (first byte of the short form, sizes below this have it, first byte of the others, their bytes).
_FORMS = {
    "uint": (0x00, 128, 0xCC, (1, 2, 4, 8)), "int": (0x100, 32, 0xD0, (1, 2, 4, 8)), "str": (0xA0, 32, 0xD9, (1, 2, 4)),
    "bin": (0xC4, 0, 0xC4, (1, 2, 4)), "array": (0x90, 16, 0xDC, (2, 4)), "map": (0x80, 16, 0xDE, (2, 4)),
}
_STARTS: dict[int, tuple[str, Any, int]] = {0xC0: ("", None, 0), 0xC2: ("", False, 0), 0xC3: ("", True, 0)}
for _kind, (_short, _below, _code, _widths) in _FORMS.items():
    _STARTS |= {_short + n: (_kind, n, 0) for n in (range(-32, 0) if _kind == "int" else range(_below))}
    _STARTS |= {_code + i: (_kind, 0, width) for i, width in enumerate(_widths)}

def encode(value: object) -> bytes:
    """The shortest MessagePack of None, bool, int, str, bytes, list or dict."""
    if value is None or isinstance(value, bool):
        return b"\xc0" if value is None else b"\xc3" if value else b"\xc2"
    if isinstance(value, int):
        return _head("int" if value < 0 else "uint", value)
    if isinstance(value, (str, bytes)):
        raw = value.encode() if isinstance(value, str) else value
        return _head("bin" if raw is value else "str", len(raw)) + raw
    if isinstance(value, (list, dict)):
        parts = value if isinstance(value, list) else [part for pair in value.items() for part in pair]
        return _head("array" if parts is value else "map", len(value)) + b"".join(map(encode, parts))
    raise Fault(f"a {type(value).__name__} has no place in a frame")
def _head(kind: str, size: int) -> bytes:
    short, below, code, widths = _FORMS[kind]
    if max(size, ~size) < below:
        return bytes((short + size,))
    for i, width in enumerate(widths):
        if max(size, ~size) < 1 << 8 * width - (size < 0):
            return bytes((code + i,)) + size.to_bytes(width, "big", signed=size < 0)
    raise Fault("a number too large for a frame")

def decode(data: bytes) -> list[Any]:
    """The one array that `data` holds; a Fault for whatever the protocol forbids."""
    with contextlib.suppress(LookupError, UnicodeDecodeError):
        (message,), end = _values(data, 0, 1, DEPTH_MAX)
        if end == len(data) and isinstance(message, list):
            return message
    raise Fault("doubtful bytes: not one array of what has a place in a frame, and nothing after it")
def _values(data: bytes, at: int, count: int, depth: int) -> tuple[list[Any], int]:
    values: list[Any] = []  # the next `count`, and where they end, maybe behind `data`; `depth` is what may still nest
    for _ in range(count):
        kind, value, width = _STARTS[data[at]]
        at += 1 + width
        if width:
            value = int.from_bytes(data[at - width : at], "big", signed=kind == "int")
        if kind in ("str", "bin"):
            raw, at = data[at : at + value], at + value
            value = raw.decode() if kind == "str" else raw
        elif kind in ("array", "map"):
            if not depth or value > len(data) - at:  # an element takes one byte at least
                raise LookupError
            value, at = _values(data, at, value if kind == "array" else 2 * value, depth - 1)
        if kind == "map":
            keys = value[::2]
            if any(key.__class__ is not str for key in keys) or len(set(keys)) < len(keys):
                raise LookupError
            value = dict(zip(keys, value[1::2]))
        values.append(value)
    return values, at

def request(domain: str, given: Attributes, cost: Cost, priority: Any, options: Map, least: int = 0) -> list[bytes]:
    """A judgement's elements after its id, without trailing nils; a Fault where the daemon would say `invalid`."""
    texts: list[bytes] = []
    for name, value in given.items() if isinstance(given, Mapping) else given or ():
        if text := _text(value):
            texts += (encode_name(name), text)
    if len(texts) > 2 * PAIRS_MAX:
        raise Fault(f"more than {PAIRS_MAX} attributes")
    for amount in cost.values() if isinstance(cost, dict) else (cost,):
        if amount.__class__ is not int or not least <= amount <= COST_MAX:
            raise Fault(f"a cost is an integer from {least} to {COST_MAX}, or a dict of units to such")
    word = b"\xc0" if priority is None else encode_name(priority)
    rest = [encode(cost), word, encode(options)][: 3 if options else 1 if priority is None else 2]
    while True:
        parts = [encode_name(domain), b"\x91" + _head("array", len(texts)) + b"".join(texts), *rest]
        if sum(map(len, parts)) <= FRAME_MAX - 11:  # beside the array, the op and the longest id
            return parts
        longest = max(range(1, len(texts), 2), key=lambda i: len(texts[i]), default=0)
        if not longest or len(texts[longest]) <= 35:
            raise Fault("it does not fit into a frame")
        texts[longest] = _text(decode(b"\x91" + texts[longest])[0], 33, 0)
def _text(value: object, most: int = VALUE_MAX, kept: int = 960) -> bytes:
    """An attribute as it is sent, the end of a long one as its digest; of None, nothing."""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else "" if value is None else str(value)
    raw = (text.lower() if isinstance(value, bool) else text).encode("utf-8", "replace")
    if len(raw) > most:
        raw = raw[:kept].decode("utf-8", "ignore").encode() + b"~" + hashlib.sha256(raw).hexdigest()[:32].encode()
    return raw and _head("str", len(raw)) + raw
@functools.lru_cache(1_024)
def encode_name(name: str) -> bytes:
    if isinstance(name, str) and re.fullmatch(r"[^\x00-\x1f\x7f-\x9f:/]+", name) and len(name.encode()) <= NAME_MAX:
        return encode(name)
    raise Fault("a name is text of 1 to 64 bytes without control characters, ':' and '/'")

# -- connection: one stream, one request at a time; after any doubt it is closed, never used again ---------------------
class Connection:
    def __init__(self, path: str, info: Map) -> None:
        self.number, self.asked, self.rest, self.leaving = info["connection"], 0, b"", False
        hello = encode([HELLO, 0, 1, info])
        self.greeting = len(hello).to_bytes(4, "big") + hello  # goes out with the first request: no round trip more
        try:
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.setblocking(False)
            self.socket.connect(path)
        except (OSError, ValueError) as error:
            if hasattr(self, "socket"):
                self.socket.close()
            why = f"no daemon at {path} ({error}): start it with `tidegate serve`, or set TIDEGATE_SOCKET"
            if isinstance(error, BlockingIOError):
                why = f"the daemon at {path} takes no connections: it is stopped or overloaded"
            with contextlib.suppress(KeyError, OSError):
                if isinstance(error, PermissionError):
                    user, group = pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(os.stat(path).st_gid).gr_name
                    why = f"permission denied on {path}: user {user} is not in group {group}"
            raise Fault(why, "unreachable") from error

    def ask(self, op: int, elements: list[bytes], wanted: int, deadline: float) -> list[Any] | Fault:
        """Writes a request and reads its reply, of the kind `wanted`; without an id (0) there is none."""
        self.asked += 1
        payload = b"".join((bytes((0x92 + len(elements), op)), encode(self.asked if wanted else None), *elements))
        data = self.greeting + len(payload).to_bytes(4, "big") + payload
        idle, self.greeting, sent = not self.greeting, b"", 0
        try:
            self.socket.setblocking(False)  # who only releases does not wait, however much the daemon has not read yet
            sent = self.socket.send(data, socket.MSG_NOSIGNAL)
            if sent < len(data):  # unheard of with one request at a time
                raise TimeoutError
            while wanted:
                left = max(deadline - monotonic(), 0)
                self.socket.settimeout(left)  # 0 does not block: a reply that is there after the deadline counts
                chunk = self.socket.recv(4_096)
                self.rest += chunk
                while len(self.rest) >= (end := 4 + int.from_bytes(self.rest[:4], "big")):
                    if (reply := self._reply(end, wanted)) is not None:
                        return reply
                if end > 4 + FRAME_MAX:
                    raise Fault(f"doubtful bytes: a frame of {end - 4} bytes")
                if not chunk or not left:
                    raise TimeoutError if chunk else ConnectionResetError
        except (BlockingIOError, TimeoutError) as error:
            raise Fault("the daemon did not answer in time", "timeout") from error
        except OSError as error:  # after a goodbye it has answered what it received: this request was not
            raise Fault("the daemon hung up", "unreachable", idle and (self.leaving or not sent)) from error
        return []
    def _reply(self, end: int, wanted: int) -> list[Any] | Fault | None:
        reply, self.rest = decode(self.rest[4:end]), self.rest[end:]
        kind, about, what = ([value if value.__class__ is int else None for value in reply[:3]] + 3 * [None])[:3]
        if (kind, about) == (wanted, self.asked):
            return reply[2:]
        fault = Fault(f"the daemon answered {kind}: {reply[2:]!r:.200}")
        if kind == ERROR and about == self.asked and what in KEEPING:
            return fault
        if kind != GOODBYE and (kind, about, what) != (WELCOME, 0, 1):
            raise fault
        self.leaving = self.leaving or kind == GOODBYE
        return None

# -- client: the decision, and what an application asks ----------------------------------------------------------------
def number(seconds: float) -> int | float:  # for people: up to the next millisecond
    thousandths = math.ceil(round(seconds * 1e6) / 1000)
    return thousandths / 1000 if thousandths % 1000 else thousandths // 1000
class Decision:
    """The answer to a request: true if the work may start. Times are in seconds.

    `allowed`, `verdict` (allow, limit, shed, wait, deny), `status` (200, 429, 503, 403). `rule`, `limit`, `window`,
    `remaining`, `reset_after` of the binding rule, None where there is none. `retry_after` (None: never), `wait` (start
    after it), `lease`, `notes` as (kind, rule). `degraded`: made without the daemon, for `reason`.
    """

    def __init__(self, elements: list[Any], asked: Any = None, reason: str | None = None) -> None:
        self._asked, self.reason, self.degraded = asked, reason, reason is not None  # by whom and as which request
        given = (elements + 11 * [None])[:11]
        verdict, self.rule, self.limit, window, self.remaining, reset, retry, self.lease, notes, _, extra = given
        fits = all(map(tuple.__contains__, KINDS, map(type, given)))
        if not fits or verdict not in range(5) or min(filter(None, given[2:8]), default=0) < 0:
            raise Fault(f"doubtful bytes: {elements!r:.200} as a decision")
        self.allowed, self.verdict, self.status = verdict in GRANTS, VERDICTS[verdict], STATUSES[verdict]
        self.window, self.reset_after, self.retry_after = [t if t is None else t / 1e6 for t in (window, reset, retry)]
        self.wait: float = (self.retry_after or 0.0) if verdict == 3 else 0.0
        self.notes: list[tuple[str, str]] = list(zip(notes[::2], notes[1::2])) if notes else []
        self.help: str | None = str((extra or {}).get("help") or "") or None
        self.unit, self.hidden = str((extra or {}).get("unit") or "requests"), (extra or {}).get("hide") is True
        self.named = self.rule is not None and self.limit is not None and not self.hidden  # to whoever is refused
    def __bool__(self) -> bool:
        return self.allowed

    def headers(self) -> dict[str, str]:
        """The limit of allowed answers too, as ratelimit-headers-11 has it and as X-Ratelimit; when to try again."""
        fields: dict[str, str] = {}
        if self.named:
            limit, left = (min(number or 0, 10**15 - 1) for number in (self.limit, self.remaining))  # of 15 digits
            unit = self.unit if self.window else "concurrent-requests"
            name, unit_name = (json.dumps(s.encode("ascii", "replace").decode()) for s in (self.rule or "", unit))
            policy = f"{name};q={limit}" + ("" if unit == "requests" else f";qu={unit_name}")
            fields["RateLimit"] = f"{name};r={left}" + (f";t={math.ceil(self.reset_after or 0)}" if self.window else "")
            fields["RateLimit-Policy"] = policy + (f";w={math.ceil(self.window)}" if self.window else "")
            fields |= {"X-Ratelimit-Limit": str(limit), "X-Ratelimit-Remaining": str(left)}
        if not self.allowed and self.retry_after is not None:
            names = ("Retry-After",) if self.hidden else ("Retry-After", "X-Ratelimit-Retry-After")
            fields |= dict.fromkeys(names, str(max(1, math.ceil(self.retry_after))))
        return fields

    @property
    def message(self) -> str:
        """For people: which limit, how much, and when to try again."""
        if self.allowed or self.verdict == "deny":
            return "Allowed." if self.allowed else "This request is not allowed."
        what = "The request could not be judged." if self.degraded else "The service is at its capacity."
        what = "Too many requests." if self.verdict == "limit" else what
        if self.named and self.verdict == "limit":
            amount = f"{self.unit} in {number(self.window)} s" if self.window else "at once"
            what = f"Over the limit {self.rule} of {self.limit} {amount}."
        if self.retry_after is None:
            return f"{what} It asks for more than the limit holds: it can never pass."
        return f"{what} Try again in {max(1, math.ceil(self.retry_after))} s."

    def release(self, outcome: str = "ok") -> None:
        """Ends the work: ok, error or dropped. Without a lease, or the second time, nothing happens."""
        lease, self.lease = self.lease, None
        if lease is not None and self._asked:
            client, which = self._asked
            if client._exchange(RELEASE, lambda: [encode(lease), encode({"ok": 0, "dropped": 2}.get(outcome, 1))], 0):
                # It was not written, for a reason: the daemon is told so with the next request.
                client._report_later({"abandoned": [which]})
    def renew(self) -> bool:
        """Starts the lease's time again, for long work; false if it has ended, or the daemon does not answer."""
        lease = self.lease
        return bool(lease and self._asked) and self._asked[0]._exchange(RENEW, lambda: [encode(lease)], DONE) is True

class Client:
    """Asks the daemon of this host; safe in threads and over forks. Nothing is opened before the first question.

    `socket`: the path, else TIDEGATE_SOCKET, else tidegate's usual places. `timeout`: seconds for a whole call. `pool`,
    `slots`: the application this is, and how many requests this process works on at once (0: what gunicorn says).
    """

    def __init__(
        self, socket: str | os.PathLike[str] | None = None, timeout: float = 0.020, pool: str = "default",
        slots: int = 0, enabled: bool = True, logger: logging.Logger | None = None,
    ) -> None:
        if timeout == 0.020 and re.fullmatch(r"\d+([.]\d+)?", os.environ.get("TIDEGATE_TIMEOUT_MS", "")):
            timeout = float(os.environ["TIDEGATE_TIMEOUT_MS"]) / 1000
        if timeout <= 0 or slots < 0:
            raise ValueError("the timeout is above 0 s, slots are 0 or more")
        self._path, self._timeout = os.fspath(socket or os.environ.get("TIDEGATE_SOCKET", "")), timeout
        self._pool, self._info = encode_name(pool), Map(client=f"python/{__version__}", pool=pool, slots=slots)
        self._slots, self._enabled = slots, enabled and os.environ.get("TIDEGATE_DISABLE", "") in ("", "0")
        self._logger, self._logged, self._open = logger or logging.getLogger("tidegate"), set[str](), set[Connection]()
        self._begin()
        _CLIENTS.add(self)

    def _begin(self) -> None:
        """This process' own session: after a fork no lock, count or socket of the parent is used."""
        for connection in list(self._open):
            self._close(connection)
        self._pid, self._lock = os.getpid(), threading.RLock()
        with contextlib.suppress(Exception):  # it stands beside this file, unless that was copied alone
            from .gunicorn_slots import slots
            self._info["slots"] = self._slots or slots(self, self._info["pool"])
        self._info |= {"session": os.urandom(16), "pid": self._pid, "connection": 0}
        self._idle, self._missed, self._report = list[Connection](), Counter[str](), Map()  # the last used goes first
        self._failures, self._until, self._pause = 0, 0.0, 0.0  # the breaker is open until then; 0.0: it is closed
        self._told: bool | None = None  # of the trouble there is; None: of none ever

    def acquire(self, domain: str, attributes: Given = None, cost: Cost = 1, **more: Any) -> Decision:
        """May this work start? It ends with `release`. `more`: priority, idem, queued, max_wait, on_failure."""
        return self._judge(ACQUIRE, domain, attributes, cost, **more)
    def hit(self, domain: str, attributes: Given = None, cost: Cost = 1, **more: Any) -> Decision:
        """As `acquire`, for what has no end: a message, a login attempt."""
        return self._judge(HIT, domain, attributes, cost, **more)
    def peek(self, domain: str, attributes: Given = None, cost: Cost = 1, **more: Any) -> Decision:
        """What `acquire` would say; nothing is charged."""
        return self._judge(PEEK, domain, attributes, cost, **more)

    @contextlib.contextmanager
    def limit(self, domain: str, attributes: Given = None, cost: Cost = 1, **more: Any) -> Iterator[Decision]:
        """For `with`: sleeps off a WAIT, releases at the end; raises Denied if the work may not start."""
        decision, outcome = self.acquire(domain, attributes, cost, **more), "dropped"
        if not decision:
            raise Denied(decision)
        try:
            sleep(decision.wait)
            yield decision
            outcome = "ok"
        finally:
            decision.release(outcome)
    def limited(self, domain: str, attributes: Given = None, cost: Cost = 1, **more: Any) -> Callable[[F], F]:
        """Decorates a function or a generator; `attributes` and `priority` may be functions of its arguments."""
        def decorate(function: F) -> F:
            if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
                raise TypeError("what is asynchronous cannot be limited so: use `acquire` and `release` in it")
            def call(*args: Any, **kwargs: Any) -> Any:
                with self.limit(domain, attributes, cost, call=(args, kwargs), **more):
                    return function(*args, **kwargs)
            def generate(*args: Any, **kwargs: Any) -> Any:
                with self.limit(domain, attributes, cost, call=(args, kwargs), **more):
                    return (yield from function(*args, **kwargs))
            decorated = generate if inspect.isgeneratorfunction(function) else call
            return functools.wraps(function)(decorated)  # type: ignore[return-value]
        return decorate
    def charge(self, domain: str, attributes: Attributes = None, amount: Cost = 1) -> bool:
        """After the fact: takes from all rates that match, into debt; below 0 gives back. False: from none."""
        return self._exchange(CHARGE, lambda: request(domain, attributes, amount, None, {}, -COST_MAX), DONE) is True
    def signal(self, name: str, value: float) -> None:
        """Says how loaded this process is by a measure of its own, from 0 to 1; the daemon forgets it after 3 s."""
        self._exchange(SIGNAL, lambda: [self._pool, encode_name(name), encode(round(1000 * min(max(value, 0), 1)))], 0)
    def check(self) -> bool:
        """Whether the daemon answers; false, without asking, if the breaker is open or the client disabled."""
        return self._exchange(PING, list, DONE) is True
    def stats(self) -> dict[str, Any]:
        """How many decisions were made without the daemon, by reason; connections; whether the breaker is open."""
        return {"missed": dict(self._missed), "connections": len(self._open), "breaker_open": self._until > 0}
    def close(self) -> None:
        """Closes what is idle. The client may be used again."""
        while self._idle:
            with contextlib.suppress(IndexError):  # when another thread took the last one
                self._close(self._idle.pop())
    def callback_failed(self, what: str, error: Exception) -> Decision:
        """Allows what an application's function left unjudged by raising; for middlewares."""
        self._log(f"{what} raised {type(error).__name__}: such requests are not limited", once=True)  # no user's data
        return self._without("callback")

    def _judge(
        self, op: int, domain: str, attributes: Given, cost: Cost, priority: Any = None, idem: Any = None,
        queued: float | None = None, max_wait: float | None = None, on_failure: str = "allow", call: Any = ((), {}),
    ) -> Decision:
        if not self._enabled:
            return Decision([0], reason="disabled")
        report: Map = {}
        def written() -> list[bytes]:
            nonlocal report
            times = (("queued_us", queued), ("max_wait_us", max_wait))  # rounded up, but 0.07 * 1e6 is above 70 000
            options: Map = {name: max(0, math.ceil(round(t * 1e6, 3))) for name, t in times if t is not None}
            options |= {} if idem is None else {"idem": idem}
            elements = request(domain, given, cost, priority, options)
            if self._report and sum(map(len, elements)) < FRAME_MAX // 2:  # where it cannot cost an attribute its text
                with self._lock:
                    report, self._report = self._report, {}
                elements[3:] = [encode(priority), encode(options | report)]
            return elements
        try:
            given = attributes(*call[0], **call[1]) if callable(attributes) else attributes
            priority = priority(*call[0], **call[1]) if callable(priority) else priority
        except Exception as error:
            return self.callback_failed("attributes or priority", error)
        answer = self._exchange(op, written, DECISION)
        return answer if answer.__class__ is Decision else self._without(answer, on_failure, report)

    def _exchange(self, op: int, elements: Callable[[], list[bytes]], wanted: int) -> Any:
        """A Decision, DONE's `ok`, or the reason why there is no answer in time that can be trusted. Never raises."""
        try:
            return self._converse(op, elements(), wanted) if self._enabled else "disabled"
        except Exception as error:
            text = error if isinstance(error, Fault) else type(error).__name__
            self._log(f"a request cannot be written, so the daemon is not asked: {text}", once=True)
            return "protocol"

    def _converse(self, op: int, elements: list[bytes], wanted: int) -> Any:
        if self._pid != os.getpid():
            self._begin()
        deadline, probe = monotonic() + self._timeout, self._until > 0
        if probe:
            with self._lock:
                if monotonic() < self._until or not wanted:  # one probe at a time; should it die, another may follow
                    return "breaker"
                probe, self._until = self._until > 0, self._until and monotonic() + PAUSE_MAX  # if closed, it stays so
        while True:
            connection = None
            try:
                try:
                    connection = self._idle.pop()
                except IndexError:
                    with self._lock:
                        self._info["connection"] += 1
                        self._open.add(connection := Connection(self._find(), self._info))
                reply: Any = connection.ask(op, elements, wanted, deadline)
                which = [connection.number, connection.asked]
                if reply.__class__ is not Fault:
                    reply = Decision(reply, (self, which)) if wanted == DECISION else reply[:1] == [True]
                break
            except BaseException as error:
                if connection is not None:
                    self._close(connection)
                    if op == ACQUIRE:
                        self._report_later({"abandoned": [[connection.number, connection.asked]]})
                if not isinstance(error, Fault):
                    raise
                if not error.again:
                    self._settle(error, probe)
                    return error.reason
        if connection.leaving or connection.rest or len(self._idle) >= IDLE_MAX:
            self._close(connection)
        else:
            self._idle.append(connection)
        if self._failures and wanted:
            self._settle(None, probe)
        if reply.__class__ is Fault:
            self._log(f"{reply}; such requests are not limited", once=True)
            return reply.reason
        return reply

    def _close(self, connection: Connection) -> None:
        self._open.discard(connection)
        connection.socket.close()  # no `shutdown`, which would reach through to the process this one was forked from
    def _without(self, reason: str, on_failure: str = "allow", report: Map | None = None) -> Decision:
        with self._lock:
            self._missed[reason] += 1
        self._report_later({"missed": Counter([reason])})
        self._report_later(report or {})  # which did not reach the daemon
        return Decision([0] if on_failure == "allow" else [2, *5 * [None], 1_000_000], reason=reason)
    def _report_later(self, report: Map) -> None:
        with self._lock:
            for name, news in report.items():
                self._report[name] = news + self._report.get(name, type(news)())
            del self._report.get("abandoned", [])[ABANDONED_MAX:]

    def _settle(self, fault: Fault | None, probe: bool) -> None:  # a first failure is told at once, others as a state
        with self._lock:
            self._failures = self._failures + 1 if fault else 0
            if not fault:
                self._pause = self._until = 0.0
            elif probe or self._failures == FAILURES_MAX:
                self._pause = min(2 * self._pause, PAUSE_MAX) or PAUSE_MIN
                self._until = monotonic() + self._pause * random.uniform(0.8, 1.2)
            trouble = bool(fault) and (self._told is not False or self._failures >= FAILURES_MAX)
            change, self._told = trouble != bool(self._told), trouble
        if change:
            again = f"the daemon answers again; {sum(self._missed.values())} requests so far were not limited"
            self._log(f"{fault}; requests are not limited" if fault else again)

    def _find(self) -> str:
        own = os.path.join(os.environ.get("XDG_RUNTIME_DIR", ""), "tidegate/tidegate.sock")
        return self._path or (own if own[0] == "/" and os.path.exists(own) else "/run/tidegate/tidegate.sock")
    def _log(self, text: str, once: bool = False) -> None:
        if not once or (text not in self._logged and len(self._logged) < 100):
            self._logged |= {text} if once else set()
            with contextlib.suppress(Exception):
                self._logger.warning("tidegate: %s", text)

KINDS = [(kind, type(None)) for kind in (int, str, *6 * [int], list, list, dict)]  # what a decision is made of
VERDICTS, STATUSES, GRANTS = ("allow", "limit", "shed", "wait", "deny"), (200, 429, 503, 200, 403), (0, 3)
ABANDONED_MAX, IDLE_MAX, FAILURES_MAX, PAUSE_MIN, PAUSE_MAX = 512, 64, 3, 1.0, 5.0
limited = Client.limited
_CLIENTS: weakref.WeakSet[Client] = weakref.WeakSet()
os.register_at_fork(after_in_child=lambda: list(map(Client._begin, list(_CLIENTS))))
