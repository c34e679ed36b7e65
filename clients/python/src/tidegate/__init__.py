"""tidegate: asks the daemon of this host whether a piece of work may start.

    decision = tidegate.Client().hit("api", {"user": user_id})

No call raises because of the daemon or outlasts its deadline (20 ms); without an answer the decision is *allow* and
says so (`degraded`, `reason`). This file asks by itself, to be copied; beside it stands what it imports when used.
"""
from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import logging
import math
import os
import random
import re
import socket
import struct
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
Attributes = Mapping[str, object] | Iterable[tuple[str, object]] | list[Mapping[str, object]] | None
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

@functools.lru_cache(None)
def _beside(file: str, name: str, alone: Any = None) -> Any:
    """What a file beside this one does. Where that is missing: `alone`, or an ImportError that names it."""
    try:
        return getattr(importlib.import_module(f"{__name__}.{file}"), name)
    except ImportError as error:
        if alone is None:
            raise ImportError(f"{name} needs {file}.py of tidegate in one folder with __init__.py: {error}") from error
        return alone
no_daemon = "no daemon at {} ({}): start it with `tidegate serve`, or set TIDEGATE_SOCKET".format

# -- codec: MessagePack within the bounds of the protocol, and the request of a judgement ------------------------------
VALUE_MAX, NAME_MAX, PAIRS_MAX, DEPTH_MAX, FRAME_MAX, COST_MAX = 1_024, 64, 16, 4, 16_384, (1 << 32) - 1
HELLO, ACQUIRE, RELEASE, HIT, PEEK, CHARGE, RENEW, SIGNAL, PING = range(9)
WELCOME, DECISION, DONE, ERROR, GOODBYE, KEEPING = *range(5), (5, 6, 7, 10, 11)  # the errors that close nothing
# How a value begins: (first byte of the short form, sizes below this have it, first byte of the others, their bytes).
_FORMS = {
    "uint": (0x00, 128, 0xCC, (1, 2, 4, 8)), "int": (0x100, 32, 0xD0, (1, 2, 4, 8)), "str": (0xA0, 32, 0xD9, (1, 2, 4)),
    "bin": (0xC4, 0, 0xC4, (1, 2, 4)), "array": (0x90, 16, 0xDC, (2, 4)), "map": (0x80, 16, 0xDE, (2, 4)),
}
_STARTS: dict[int, tuple[str, Any, int]] = {0xC0: ("", None, 0), 0xC2: ("", False, 0), 0xC3: ("", True, 0)}
for _kind, (_short, _below, _code, _widths) in _FORMS.items():
    _STARTS |= {_short + n: (_kind, n, 0) for n in (range(-32, 0) if _kind == "int" else range(_below))}
    _STARTS |= {_code + i: (_kind, 0, width) for i, width in enumerate(_widths)}
_HEADS = [bytes((0x90 + 2 * n,) if n < 8 else (0xDC, 0, 2 * n)) for n in range(PAIRS_MAX + 1)]
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
    if given.__class__ is dict and cost == 1 and cost.__class__ is int and priority is None and not options:
        for text in given.values():
            if text.__class__ is not str or len(text) >= 100:
                break
        else:
            return _usual(domain, *given.items())
    many = given if isinstance(given, list) and given and isinstance(given[0], Mapping) else None
    texts = _head("array", len(many)) + b"".join(map(_descriptor, many)) if many else b"\x91" + _descriptor(given)
    for amount in cost.values() if isinstance(cost, dict) else (cost,):
        if amount.__class__ is not int or not least <= amount <= COST_MAX:
            raise Fault(f"a cost is an integer from {least} to {COST_MAX}, or a dict of units to such")
    word = b"\xc0" if priority is None else encode_name(priority)
    rest = [encode(cost), word, encode(options)][: 3 if options else 1 if priority is None else 2]
    parts, room = [encode_name(domain), texts, *rest], FRAME_MAX - 11  # array, op and the longest id
    return parts if sum(map(len, parts)) <= room else _beside("fitting", "fitted")(parts, room)
@functools.lru_cache(2_048)
def _usual(domain: str, *pairs: tuple[str, str]) -> list[bytes]:
    return [encode_name(domain), b"\x91" + _descriptor(pairs), b"\1"]  # what most requests are; nobody changes the list
def _descriptor(given: Any) -> bytes:
    pairs: list[bytes] = []
    for name, value in given.items() if given.__class__ is dict or isinstance(given, Mapping) else given or ():
        if pair := (_known_pair if value.__class__ is str and len(value) < 100 else _pair)(name, value):
            pairs.append(pair)
    if len(pairs) > PAIRS_MAX:
        raise Fault(f"more than {PAIRS_MAX} attributes")
    return _HEADS[len(pairs)] + b"".join(pairs)
def _pair(name: str, value: object) -> bytes:
    return (text := _text(value)) and encode_name(name) + text
def _text(value: object, most: int = VALUE_MAX, kept: int = 960) -> bytes:
    """An attribute as it is sent, the end of a long one as its digest; of None, nothing."""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else "" if value is None else str(value)
    raw = (text.lower() if isinstance(value, bool) else text).encode("utf-8", "replace")
    if len(raw) > most:
        raw = raw[:kept].decode("utf-8", "ignore").encode() + b"~" + hashlib.sha256(raw).hexdigest()[:32].encode()
    return raw and _head("str", len(raw)) + raw
_known_pair = functools.lru_cache(4_096)(_pair)  # of short texts alone: much is sent again and again
@functools.lru_cache(1_024)
def encode_name(name: str) -> bytes:
    if isinstance(name, str) and re.fullmatch(r"[^\x00-\x1f\x7f-\x9f:/]+", name) and len(name.encode()) <= NAME_MAX:
        return encode(name)
    raise Fault("a name is text of 1 to 64 bytes without control characters, ':' and '/'")

# -- connection: one stream, one request at a time; after any doubt it is closed, never used again ---------------------
class Connection:
    def __init__(self, path: str, info: Map, timeout: float) -> None:
        self.number, self.asked, self.last, self.rest, self.leaving = info["connection"], 0, -1, b"", False
        hello = encode([HELLO, 0, 1, info])
        self.greeting = len(hello).to_bytes(4, "big") + hello  # goes out with the first request: no round trip more
        try:
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.setblocking(False)
            self.socket.connect(path)
            # A blocking read saves a call, but signals start its time anew: it is short. Those of gevent have no time.
            self.blocks = timeout >= BLOCKING_MIN and type(self.socket).__module__ == "socket"
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", 0, 1_000))
            self.socket.setblocking(self.blocks)
        except (OSError, ValueError) as error:
            if hasattr(self, "socket"):
                self.socket.close()
            raise Fault(_beside("trouble", "trouble", no_daemon)(path, error), "unreachable") from error
        self.send, self.recv = self.socket.send, self.socket.recv
    def ask(self, op: int, elements: list[bytes], wanted: int, deadline: float) -> Decision | list[Any] | Fault:
        """Writes a request and reads its reply, of the kind `wanted`; without an id (0) there is none."""
        self.asked = asked = self.asked + 1
        if asked > self.last:  # longer until the next `last`: a head's size, how the number begins, what packs a head
            self.last, self.at, self.code, self.head = _numbered(asked)
        body, at, code, head, sent = b"".join(elements), self.at, self.code, self.head, 0
        size, count, greeting = len(body), 0x92 + len(elements), self.greeting
        start = head(at - 4 + size, count, op, code, asked) if wanted else _SILENT(3 + size, count, op, 0xC0)
        data, self.greeting = greeting + start + body, b""
        try:
            # Does not wait, however much the daemon has not read yet; a part is unheard of with one request at a time.
            if (sent := self.send(data, SEND_FLAGS)) < len(data):
                raise TimeoutError
            if self.blocks and wanted:
                try:
                    self.rest = data = self.recv(4_096)
                except BlockingIOError:
                    return self._wait(wanted, deadline)
                # What most decisions are is read at once: begun as ours is, and checked whole before it is trusted.
                alike = wanted == DECISION and (n := len(data) - 4) > at and data[:at] == head(n, 0x9D, 1, code, asked)
                if alike and (match := _shape(data[at + 1])(data, at)):
                    decision, self.rest = object.__new__(Decision), b""
                    decision._read, decision.allowed = match, data[at] in GRANTS
                    return decision
            return self._wait(wanted, deadline) if wanted else []
        except (BlockingIOError, TimeoutError) as error:
            raise Fault("the daemon did not answer in time", "timeout") from error
        except OSError as error:  # after a goodbye it has answered what it received: this request was not
            raise Fault("the daemon hung up", "unreachable", not greeting and (self.leaving or not sent)) from error
    def _wait(self, wanted: int, deadline: float) -> Decision | list[Any] | Fault:
        left = -1.0
        while True:
            while len(self.rest) >= (end := 4 + int.from_bytes(self.rest[:4], "big")):
                reply, self.rest = decode(self.rest[4:end]), self.rest[end:]
                kind, about, what = ([n if n.__class__ is int else None for n in reply[:3]] + 3 * [None])[:3]
                fault = Fault(f"the daemon answered {kind}: {reply[2:]!r:.200}")
                keeping = kind == ERROR and about == self.asked and what in KEEPING
                if keeping or (kind, about) == (wanted, self.asked):
                    self.socket.settimeout(None if self.blocks else 0)
                    return fault if keeping else Decision(reply[2:]) if kind == DECISION else reply[2:]
                if kind != GOODBYE and (kind, about, what) != (WELCOME, 0, 1):
                    raise fault
                self.leaving = self.leaving or kind == GOODBYE
            if not left or end > 4 + FRAME_MAX:
                raise Fault(f"doubtful bytes: a frame of {end - 4} bytes") if left else TimeoutError
            left = max(deadline - monotonic(), 0)
            self.socket.settimeout(left)  # 0 does not block: a reply that is there after the deadline counts
            if not (chunk := self.recv(4_096)):
                raise ConnectionResetError
            self.rest += chunk
@functools.lru_cache(256)
def _shape(first: int) -> Callable[[bytes, int], re.Match[bytes] | None]:
    """Matches a decision from its verdict on: a rule that begins so, nil or short and plain; no notes, all, extra."""
    text = re.escape(bytes((first,))) + b"([ -~]{%d})" % (first - 0xA0) if 0xA0 < first < 0xC0 else b"(?!)"
    rule = b"\\xc0()" if first == 0xC0 else text
    number = rb"([\0-\x7f]|\xc0|\xcc.|\xcd..|\xce....|\xcf[\0-\x7f].......)"
    return re.compile(rb"([\0-\4])" + rule + 6 * number + b"\xc0\xc0\xc0", re.DOTALL).fullmatch
def _numbered(asked: int) -> tuple[int, int, bytes, Callable[..., bytes]]:
    first, width = encode(asked)[:1], len(encode(asked)) - 1
    head = struct.Struct(">IBB" + {0: "0sB", 1: "1sB", 2: "1sH", 4: "1sI", 8: "1sQ"}[width])
    return (1 << 8 * width) - 1 or 127, head.size, first if width else b"", head.pack
_SILENT, SEND_FLAGS = struct.Struct(">IBBB").pack, socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT

# -- client: the decision, and what an application asks ----------------------------------------------------------------
class Decision:
    """The answer to a request: true if the work may start. Times are in seconds.
    `allowed`, `verdict` (allow, limit, shed, wait, deny), `status` (200, 429, 503, 403). `rule`, `limit`, `window`,
    `remaining`, `reset_after` of the binding rule. `retry_after` (None: never), `wait` (start after it), `lease`,
    `notes` as (kind, rule), `help`. `degraded`: made without the daemon, for `reason`. None is what there is not.
    """
    reason: str | None = None
    _asked: Any = None  # by whom, on which connection and as which request
    _read: Any = None  # the fields as the daemon wrote them, checked, until somebody asks for one
    def __init__(self, elements: list[Any], reason: str | None = None) -> None:
        given = (elements + 11 * [None])[:11]
        fits = all(map(tuple.__contains__, KINDS, map(type, given)))
        if not fits or given[0] not in range(5) or min(filter(None, given[2:8]), default=0) < 0:
            raise Fault(f"doubtful bytes: {elements!r:.200} as a decision")
        self.reason = reason
        self._fill(*given)
    def __getattr__(self, name: str) -> Any:
        if name[0] != "_" and (read := self._read) is not None:
            verdict, rule, *numbers = read.groups()
            fields = [None if n == b"\xc0" else int.from_bytes(n[1:] or n, "big") for n in numbers]
            self._fill(verdict[0], rule.decode() or None, *fields, None, None, None)
            self._read = None
        return object.__getattribute__(self, name)
    def _fill(self, verdict: int, *fields: Any) -> None:
        rule, limit, window, remaining, reset, retry, lease, notes, _, extra = fields
        self.allowed, self.verdict, self.status = verdict in GRANTS, VERDICTS[verdict], STATUSES[verdict]
        self.rule, self.limit, self.remaining, self.lease = rule, limit, remaining, lease
        self.window, self.reset_after, self.retry_after = [t if t is None else t / 1e6 for t in (window, reset, retry)]
        self.wait: float = (self.retry_after or 0.0) if verdict == 3 else 0.0
        self.notes: list[tuple[str, str]] = list(zip(notes[::2], notes[1::2])) if notes else []
        self.extra, self.degraded = extra or {}, self.reason is not None
        self.help: str | None = str(self.extra.get("help") or "") or None
    def __bool__(self) -> bool:
        return self.allowed
    def headers(self) -> dict[str, str]:
        """The limit of allowed answers too, as ratelimit-headers-11 has it and as X-Ratelimit; when to try again."""
        return _beside("answers", "headers", plain_headers)(self)  # type: ignore[no-any-return]
    @property
    def message(self) -> str:
        """For people: which limit, how much, and when to try again."""
        return _beside("answers", "message", plain_message)(self)  # type: ignore[no-any-return]
    def release(self, outcome: str = "ok") -> None:
        """Ends the work: ok, error or dropped. Without a lease, or the second time, nothing happens."""
        lease, self.lease = self.lease, None
        if lease is not None and self._asked:
            client, *which = self._asked
            if client._exchange(RELEASE, 0, lambda: [encode(lease), encode({"ok": 0, "dropped": 2}.get(outcome, 1))]):
                client._report_later({"abandoned": [which]})  # it was not written: the next request tells
    def renew(self) -> bool:
        """Starts the lease's time again, for long work; false if it has ended, or the daemon does not answer."""
        lease = self.lease
        return bool(lease and self._asked) and self._asked[0]._exchange(RENEW, DONE, lambda: [encode(lease)]) is True
def plain_headers(decision: Decision) -> dict[str, str]:
    """What needs no other file: X-Ratelimit, unless the rule is not advertised, and when to try again."""
    hidden, again = decision.extra.get("hide") is True, None if decision.allowed else decision.retry_after
    wait = None if again is None else max(1, math.ceil(again))
    limit = None if hidden or decision.rule is None else decision.limit
    told = (limit, None if limit is None else decision.remaining or 0, wait, None if hidden else wait)
    return {name: str(min(number, 10**15 - 1)) for name, number in zip(FIELDS, told) if number is not None}

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
        list(map(self._close, list(self._open)))
        self._pid, self._lock = os.getpid(), threading.RLock()
        self._page = _beside("page", "page", bytes)(1)  # asked before the pid, which costs more
        with contextlib.suppress(Exception):
            self._info["slots"] = self._slots or _beside("gunicorn_slots", "slots")(self, self._info["pool"])
        self._info |= {"session": os.urandom(16), "pid": self._pid, "connection": 0}
        self._idle, self._missed, self._report = list[Connection](), Counter[str](), Map()  # the last used goes first
        self._failures, self._until, self._pause, self._told = 0, 0.0, 0.0, ""  # the breaker; the state that was logged
    def acquire(self, domain: str, attributes: Attributes = None, cost: Cost = 1, **more: Any) -> Decision:
        """May this work start? It ends with `release`. `more`: priority, idem, queued, max_wait, on_failure."""
        judge = self._judge  # an empty `**more` would cost more than the question
        return judge(ACQUIRE, domain, attributes, cost, **more) if more else judge(ACQUIRE, domain, attributes, cost)
    def hit(self, domain: str, attributes: Attributes = None, cost: Cost = 1, **more: Any) -> Decision:
        """As `acquire`, for what has no end: a message, a login attempt."""
        judge = self._judge
        return judge(HIT, domain, attributes, cost, **more) if more else judge(HIT, domain, attributes, cost)
    def peek(self, domain: str, attributes: Attributes = None, cost: Cost = 1, **more: Any) -> Decision:
        """What `acquire` would say; nothing is charged."""
        return self._judge(PEEK, domain, attributes, cost, **more)
    @contextlib.contextmanager
    def limit(self, domain: str, attributes: Attributes = None, cost: Cost = 1, **more: Any) -> Iterator[Decision]:
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
    def limited(self, domain: str, attributes: Any = None, cost: Cost = 1, **more: Any) -> Callable[[F], F]:
        """Decorates a function or a generator; `attributes` and `priority` may be functions of its arguments."""
        return _beside("decorators", "limited")(self, domain, attributes, cost, **more)  # type: ignore[no-any-return]
    def charge(self, domain: str, attributes: Attributes = None, amount: Cost = 1) -> bool:
        """After the fact: takes from all rates that match, into debt; below 0 gives back. False: from none."""
        return self._exchange(CHARGE, DONE, lambda: request(domain, attributes, amount, None, {}, -COST_MAX)) is True
    def signal(self, name: str, value: float) -> None:
        """Says how loaded this process is by a measure of its own, from 0 to 1; the daemon forgets it after 3 s."""
        self._exchange(SIGNAL, 0, lambda: [self._pool, encode_name(name), encode(round(1000 * min(max(value, 0), 1)))])
    def check(self) -> bool:
        """Whether the daemon answers; false, without asking, if the breaker is open or the client disabled."""
        return self._exchange(PING, DONE, list) is True
    def stats(self) -> dict[str, Any]:
        """How many decisions were made without the daemon, by reason; connections; whether the breaker is open."""
        return {"missed": dict(self._missed), "connections": len(self._open), "breaker_open": self._until > 0}
    def close(self) -> None:
        """Closes what is idle. The client may be used again."""
        while self._idle:
            with contextlib.suppress(IndexError):  # when another thread took the last one
                self._close(self._idle.pop())
    def _judge(
        self, op: int, domain: str, attributes: Attributes, cost: Cost, priority: Any = None, idem: Any = None,
        queued: float | None = None, max_wait: float | None = None, on_failure: str = "allow",
    ) -> Decision:
        if not self._enabled:
            return Decision([0], reason="disabled")
        report: Map = {}
        options: Map = {} if idem is None else {"idem": idem}
        try:
            if queued is not None or max_wait is not None:  # rounded up, but 0.07 * 1e6 is above 70 000
                times = (("queued_us", queued), ("max_wait_us", max_wait))
                options |= {name: max(0, math.ceil(round(t * 1e6, 3))) for name, t in times if t is not None}
            elements = request(domain, attributes, cost, priority, options)
            if self._report and sum(map(len, elements)) < FRAME_MAX // 2:  # where it cannot cost an attribute its text
                with self._lock:
                    report, self._report = self._report, {}
                elements = [*elements[:3], encode(priority), encode(options | report)]
            answer = self._converse(op, elements, DECISION)
        except Exception as error:
            answer = self._unwritten(error)
        return answer if type(answer) is Decision else self._without(answer, on_failure, report)
    def _exchange(self, op: int, wanted: int, elements: Callable[[], list[bytes]]) -> Any:
        """DONE's `ok`, or the reason why there is no answer in time that can be trusted. Never raises."""
        try:
            return self._converse(op, elements(), wanted) if self._enabled else "disabled"
        except Exception as error:
            return self._unwritten(error)
    def _unwritten(self, error: Exception) -> str:
        text = error if isinstance(error, (Fault, ImportError)) else f"{type(error).__name__}: not a mapping or pairs?"
        self._log(f"a request cannot be written, so the daemon is not asked: {text}", once=True)
        return "protocol"
    def _converse(self, op: int, elements: list[bytes], wanted: int) -> Any:
        if not self._page[0] and self._pid != os.getpid():
            self._begin()
        deadline = monotonic() + self._timeout
        if (probe := self._until > 0) and not self._may_probe(wanted):
            return "breaker"
        while True:
            connection = None
            try:
                try:
                    connection = self._idle.pop()
                except IndexError:
                    with self._lock:
                        self._info["connection"] += 1
                        self._open.add(connection := Connection(self._find(), self._info, self._timeout))
                reply: Any = connection.ask(op, elements, wanted, deadline)
                if type(reply) is Decision:
                    reply._asked = (self, connection.number, connection.asked)
                break
            except BaseException as error:
                if connection is not None:
                    self._close(connection)
                    self._report_later({"abandoned": [[connection.number, connection.asked]]} if op == ACQUIRE else {})
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
        if type(reply) is Fault:
            self._log(f"{reply}; such requests are not limited", once=True)
            return reply.reason
        return reply[:1] == [True] if type(reply) is list else reply
    def _may_probe(self, wanted: int) -> bool:
        with self._lock:
            if may := wanted > 0 and monotonic() >= self._until:
                self._until = self._until and monotonic() + PAUSE_MAX  # one at a time, and none if closed
        return may
    def _close(self, connection: Connection) -> None:
        self._open.discard(connection)
        connection.socket.close()  # no `shutdown`, which would reach through to the process this one was forked from
    def _without(self, reason: str, on_failure: str = "allow", report: Map | None = None) -> Decision:
        with self._lock:
            self._missed[reason] += 1
        self._report_later({"missed": Counter([reason])})
        self._report_later(report or {})  # which did not reach the daemon
        return Decision([2, *5 * [None], 1_000_000] if on_failure == "refuse" else [0], reason=reason)
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
            elif (probe and self._until > 0) or self._failures == FAILURES_MAX:
                self._pause = min(2 * self._pause, PAUSE_MAX) or PAUSE_MIN
                self._until = monotonic() + self._pause * random.uniform(0.8, 1.2)
            trouble = bool(fault) and (self._told != "well" or self._failures >= FAILURES_MAX)
            change, self._told = trouble != (self._told == "trouble"), "trouble" if trouble else "well"
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

plain_message = "{0.verdict}: {0.rule} (retry_after: {0.retry_after})".format
FIELDS = ("X-Ratelimit-Limit", "X-Ratelimit-Remaining", "Retry-After", "X-Ratelimit-Retry-After")
KINDS = [(kind, type(None)) for kind in (int, str, *6 * [int], list, list, dict)]  # what a decision is made of
VERDICTS, STATUSES, GRANTS = ("allow", "limit", "shed", "wait", "deny"), (200, 429, 503, 200, 403), (0, 3)
ABANDONED_MAX, IDLE_MAX, FAILURES_MAX, PAUSE_MIN, PAUSE_MAX, BLOCKING_MIN = 512, 64, 3, 1.0, 5.0, 0.01
def __getattr__(name: str) -> Any:
    if name == "AsyncClient":
        return _beside("aio", name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
limited = Client.limited
_CLIENTS: weakref.WeakSet[Client] = weakref.WeakSet()
os.register_at_fork(after_in_child=lambda: list(map(Client._begin, list(_CLIENTS))))
