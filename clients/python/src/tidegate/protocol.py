"""MessagePack within the limits of the protocol, and the elements of a request. Uses no socket and no clock."""

from __future__ import annotations

import errno
import functools
import hashlib
import importlib
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

Cost = int | Mapping[str, int]
Map = dict[str, Any]
Attributes = Mapping[str, object] | Iterable[tuple[str, object]] | Sequence[Mapping[str, object]] | None
OnFailure = Literal["allow", "refuse"]
Outcome = Literal["ok", "error", "dropped"]
Verdict = Literal["allow", "limit", "shed", "wait", "deny"]

VALUE_MAX, NAME_MAX, IDEM_MAX, PAIRS_MAX, DESCRIPTORS_MAX = 1_024, 64, 64, 16, 8
DEPTH_MAX, FRAME_MAX, TOO_LARGE = 4, 16_384, 1 << 32
HELLO, ACQUIRE, RELEASE, HIT, PEEK, CHARGE, RENEW, SIGNAL, PING = range(9)
WELCOME, DECISION, DONE, ERROR, GOODBYE = range(5)
ERRORS_KEPT_OPEN = (5, 6, 7, 10, 11)  # errors of one request: the rest of the connection is not doubtful
BUSY = 8  # the daemon accepts no further connection
REFUSALS = {6: "invalid", 7: "quota", 9: "forbidden", 11: "not_allowed"}  # errors that refuse; others are degraded
FORBIDDEN, INTERNAL = 9, 10  # after INTERNAL the daemon closes the connection; only this request failed


class Fault(ValueError):
    """An unsendable request, a failed exchange or an invalid reply. `reason`: the key it is counted under.

    `again`: the daemon did not process the request. `code`: errno of a failed connection; EAGAIN: the daemon is full.
    """

    def __init__(self, text: str, reason: str = "protocol", again: bool = False, code: int = 0) -> None:
        super().__init__(text)
        self.reason, self.again, self.code = reason, again, code


def error_fault(text: str, code: int | None, known: bool, about: int | None) -> Fault:
    """Returns the Fault of an ERROR. `known`: about a request in flight, or HELLO; another with an id is doubtful."""
    known = known or (about is None and (code == FORBIDDEN or code not in REFUSALS))
    reason = REFUSALS.get(code or 0, "protocol") if known else "protocol"
    return Fault(text, reason, code=errno.EAGAIN if known and code == BUSY else 0)


def raised_here(error: BaseException) -> bool:
    """True if the call in the catching frame raised `error`, false if a signal handler or another thread did.

    A handler adds a frame to the traceback; an exception set by another thread has no arguments.
    """
    trace = error.__traceback__
    return bool(error.args) and trace is not None and trace.tb_next is None


@functools.lru_cache(None)
def beside(file: str, name: str, alone: Any = None) -> Any:
    """Imports `name` from a file of this package. Without the file: `alone`, or an ImportError that names it."""
    try:
        return getattr(importlib.import_module(f"{__package__}.{file}"), name)
    except (ImportError, OSError) as error:
        if alone is None:
            text = f"{name} needs {file}.py of tidegate in one folder with __init__.py: {error}"
            raise ImportError(text) from error
        return alone


# Heads of values: (first byte of the short form, its sizes are below this, first byte of longer forms, their widths).
_FORMS = {
    "uint": (0x00, 128, 0xCC, (1, 2, 4, 8)),
    "int": (0x100, 32, 0xD0, (1, 2, 4, 8)),
    "str": (0xA0, 32, 0xD9, (1, 2, 4)),
    "bin": (0xC4, 0, 0xC4, (1, 2, 4)),
    "array": (0x90, 16, 0xDC, (2, 4)),
    "map": (0x80, 16, 0xDE, (2, 4)),
}
_STARTS: dict[int, tuple[str, Any, int]] = {0xC0: ("", None, 0), 0xC2: ("", False, 0), 0xC3: ("", True, 0)}
for _kind, (_short, _below, _code, _widths) in _FORMS.items():
    _STARTS |= {_short + n: (_kind, n, 0) for n in (range(-32, 0) if _kind == "int" else range(_below))}
    _STARTS |= {_code + i: (_kind, 0, width) for i, width in enumerate(_widths)}
_NONE: tuple[str, Any, int] = ("", ..., 0)  # an invalid first byte
_HEADS = [bytes((0x90 + 2 * n,) if n < 8 else (0xDC, 0, 2 * n)) for n in range(PAIRS_MAX + 1)]
_LISTS, _SIZES = [f"\x91{head.decode('latin-1')}" for head in _HEADS], [chr(0xA0 + size) for size in range(32)]


def encode(value: object) -> bytes:
    """Encodes None, bool, int, str, bytes, list or dict as the shortest MessagePack."""
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
    raise Fault(f"a frame cannot hold a {type(value).__name__}", "invalid")


def _head(kind: str, size: int) -> bytes:
    short, below, code, widths = _FORMS[kind]
    if max(size, ~size) < below:
        return bytes((short + size,))
    for i, width in enumerate(widths):
        if max(size, ~size) < 1 << 8 * width - (size < 0):
            return bytes((code + i,)) + size.to_bytes(width, "big", signed=size < 0)
    raise Fault("a number is too large for a frame", "invalid")


def decode(data: bytes) -> list[Any]:
    """Decodes `data`, which is exactly one array. Raises a Fault for anything that the protocol forbids."""
    (message,), end = _values(data, 0, 1, DEPTH_MAX)
    if end == len(data) and isinstance(message, list):
        return message
    raise _malformed()


def _values(data: bytes, at: int, count: int, depth: int) -> tuple[list[Any], int]:
    values: list[Any] = []  # returns the next `count` values and their end; `depth`: levels left for nesting
    for _ in range(count):
        kind, value, width = _STARTS.get(data[at], _NONE) if at < len(data) else _NONE
        at += 1 + width
        if value is ... or at > len(data):
            raise _malformed()
        if width:
            value = int.from_bytes(data[at - width : at], "big", signed=kind == "int")
        if kind in ("str", "bin"):
            raw, at = data[at : at + value], at + value
            value = _decode_text(raw) if kind == "str" else raw
        elif kind in ("array", "map"):
            if not depth or value > len(data) - at:  # an element takes one byte at least
                raise _malformed()
            value, at = _values(data, at, value if kind == "array" else 2 * value, depth - 1)
        if kind == "map":
            keys = value[::2]
            if any(key.__class__ is not str for key in keys) or len(set(keys)) < len(keys):
                raise _malformed()
            value = dict(zip(keys, value[1::2]))
        values.append(value)
    if at > len(data):
        raise _malformed()
    return values, at


def _decode_text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        if not raised_here(error):
            raise
        raise _malformed() from None


def _malformed() -> Fault:
    return Fault("malformed frame: not exactly one array of valid values")


def request(domain: str, attributes: Any, cost: Any, priority: Any, options: Map, signed: bool = False) -> list[bytes]:
    """Encodes the elements of a request after its id, without trailing nils; of a CHARGE, if `signed`.

    Raises ValueError for an invalid cost, and a Fault `invalid` for other values that the daemon would refuse.
    """
    usual = type(attributes) is dict and type(cost) is int and cost == 1 and priority is None and not options
    if usual and type(domain) is str and len(attributes) <= PAIRS_MAX:
        text = _LISTS[len(attributes)]  # of bytes: formatting is faster than joining them
        for name, value in attributes.items():
            if type(value) is not str or type(name) is not str or not value or len(value) > 31 or not value.isascii():
                break
            text = f"{text}{_name_text(name)}{_SIZES[len(value)]}{value}"
        else:
            return [_encode_name(domain), text.encode("latin-1"), b"\1"]
    amount = encode_cost(cost, signed)
    several = attributes.__class__ is not dict and isinstance(attributes, Sequence)
    several = several and bool(attributes) and isinstance(attributes[0], Mapping)
    given: list[Any] = list(attributes) if several else [attributes]
    if len(given) > DESCRIPTORS_MAX:
        raise Fault(f"more than {DESCRIPTORS_MAX} descriptors", "invalid")
    parts = [encode_name(domain), _head("array", len(given)) + b"".join(map(_descriptor, given)), amount]
    if priority is not None and (word := _priority(priority)) is not None:
        parts.append(word)
    if options:
        parts += ([] if signed or len(parts) > 3 else [b"\xc0"]) + [encode(options)]
    return _fitted(parts, FRAME_MAX - 11)  # array, op and the longest id


def _fitted(parts: list[bytes], room: int) -> list[bytes]:
    """Replaces the longest attribute values in `parts` by digests until `parts` fit into `room` bytes."""
    while sum(map(len, parts)) > room:
        lists = decode(parts[1])
        spots = [(one, i) for one in lists for i in range(1, len(one), 2)]
        one, i = max(spots, key=lambda spot: len(spot[0][spot[1]].encode()), default=([""], 0))
        if len(one[i].encode()) <= 33:
            raise Fault("a request does not fit into a frame", "invalid")
        one[i] = _cut(one[i].encode(), 0).decode()
        parts[1] = encode(lists)
    return parts


def _descriptor(given: Any) -> bytes:
    if isinstance(given, (str, bytes)) or not (given is None or isinstance(given, Iterable)):
        raise Fault("attributes are a mapping, or pairs of a name and a value", "invalid")
    pairs: list[bytes] = []
    for pair in given.items() if isinstance(given, Mapping) else given or ():
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise Fault("attributes are a mapping, or pairs of a name and a value", "invalid")
        name, value = pair
        # Not `__class__`, by which a lazy object, such as Django's request.user, evaluates itself and may raise.
        short = type(value) is str and len(value) < 100 and type(name) is str
        if encoded := _known_pair(name, value) if short else _pair(name, value):
            if len(pairs) == PAIRS_MAX:
                raise Fault(f"more than {PAIRS_MAX} attributes", "invalid")
            pairs.append(encoded)
    return _HEADS[len(pairs)] + b"".join(pairs)


def _pair(name: str, value: object) -> bytes:
    raw = _text(value, name)
    raw = raw if len(raw) <= VALUE_MAX else _cut(raw, 960)
    return raw and encode_name(name) + _head("str", len(raw)) + raw


_known_pair = functools.lru_cache(4_096)(_pair)  # only for short texts, which repeat often


def _text(value: object, name: object = "idem") -> bytes:
    """Returns the text of a value in UTF-8; empty for None."""
    try:
        if isinstance(value, bytes):
            text = value.decode("utf-8", "replace")
        elif type(value) is int and value.bit_length() > 10_000:
            text = hex(value)  # Python refuses to convert such a number to decimal
        else:
            text = "" if value is None else str(value)
        text, shown = text.lower() if isinstance(value, bool) else text, value.__class__
    except Exception as error:
        if beside("signals", "from_signal", bool)(error):
            raise
        raise Fault(f"a value has no text: {type(error).__name__}", "invalid") from error
    # Each object, and each function, would be another caller.
    if shown is not str and not isinstance(value, bytes) and _ADDRESS.search(text):
        raise Fault(f"the attribute {name!s:.64} has no text; help: send its id", "invalid")
    return text.encode("utf-8", "replace")


def _cut(raw: bytes, kept: int) -> bytes:
    """Returns at most `kept` bytes, up to the end of a character, and the digest of all of `raw`."""
    head = raw[:kept].decode("utf-8", "ignore").encode()
    return head + b"~" + hashlib.sha256(raw).hexdigest()[:32].encode()


def shorten_idem(idem: object) -> str | bytes | None:
    """Returns an idempotency key as text or unchanged bytes, shortened by a digest above 64 bytes; None if empty."""
    if isinstance(idem, bytes):
        digest = b"~" + hashlib.sha256(idem).hexdigest()[:32].encode()
        return (idem if len(idem) <= IDEM_MAX else idem[:30] + digest) or None
    raw = _text(idem)
    return (raw if len(raw) <= IDEM_MAX else _cut(raw, 30)).decode() or None


def encode_cost(cost: Any, signed: bool = False) -> bytes:
    """Encodes a cost or, if `signed`, an amount: an integer or a mapping of units to integers, else ValueError."""
    if isinstance(cost, Mapping):
        parts = [encode_name(unit) + _amount(amount, signed) for unit, amount in cost.items()]
        return _head("map", len(parts)) + b"".join(parts)
    return _amount(cost, signed)


def _amount(amount: Any, signed: bool) -> bytes:
    if amount.__class__ is not int:
        if isinstance(amount, bool) or not hasattr(type(amount), "__index__"):
            raise ValueError(f"a cost is an integer, or a mapping of units to integers, not {type(amount).__name__}")
        amount = operator.index(amount)
    if amount < 0 and not signed:
        raise ValueError("a cost is 0 or more; help: refund with charge(…, amount=-1, of=decision)")
    if not -1 << 63 <= amount < 1 << 64:
        amount = TOO_LARGE if amount > 0 else -TOO_LARGE  # also above every limit
    return encode(amount)


def check_word(option: str, given: object, *words: str | None) -> None:
    """Raises ValueError, which names the option and the value, if `given` is none of the words."""
    if given not in words:
        raise ValueError(f"{option} is {' or '.join(filter(None, words))}, not {given!r:.99}")


def _priority(priority: Any) -> bytes | None:
    """Encodes a priority; None for an invalid name: the rules decide."""
    is_name = isinstance(priority, str) and _NAME.fullmatch(priority) and len(_text(priority)) <= NAME_MAX
    return encode_name(priority) if is_name else None


def encode_name(name: Any) -> bytes:
    return _encode_name(str(name) if isinstance(name, str) else "")


@functools.lru_cache(1_024)
def _encode_name(name: str) -> bytes:
    if _NAME.fullmatch(name) and len(name.encode()) <= NAME_MAX:
        return encode(name)
    raise Fault("a name is text of 1 to 64 bytes without control characters, ':' and '/'", "invalid")


_name_text = functools.lru_cache(1_024)(lambda name: _encode_name(name).decode("latin-1"))
_ADDRESS = re.compile(" at 0x[0-9a-fA-F]+>")  # as in <User object at 0x7f00>
_NAME = re.compile(r"[^\x00-\x1f\x7f-\x9f:/\ud800-\udfff]{1,64}")
