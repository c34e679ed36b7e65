"""The bytes of the protocol, version 1: MessagePack within bounds, and a judgement's request. No socket, no clock."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

Cost = int | dict[str, int]
# One descriptor, as a mapping or as (name, value) pairs; several, as a list of mappings.
Attributes = Mapping[str, object] | Iterable[tuple[str, object]] | Iterable[Mapping[str, object]] | None


class Malformed(ValueError):
    """These bytes are no frame of the protocol, or this request cannot be written as one."""


def encode(value: object) -> bytes:
    """The shortest MessagePack of None, bool, int, str, bytes, list, tuple or dict."""
    if value.__class__ is int and 0xFF < value < 0x10000:  # most ids
        return b"\xcd" + value.to_bytes(2, "big")
    if value is None or value is True or value is False:
        return b"\xc0" if value is None else b"\xc3" if value else b"\xc2"
    if isinstance(value, int):
        if -32 <= value < 128:
            return bytes((value & 0xFF,))
        for code, width in ((0xCC, 1), (0xCD, 2), (0xCE, 4), (0xCF, 8)):
            if 0 < value < 1 << 8 * width:
                return bytes((code,)) + value.to_bytes(width, "big")
            if -1 << 8 * width - 1 <= value < 0:
                return bytes((code + 4,)) + value.to_bytes(width, "big", signed=True)
    elif isinstance(value, (str, bytes)):
        raw = value.encode() if isinstance(value, str) else value
        return (_head(len(raw), 0xA0, 32, 0xD9) if isinstance(value, str) else _head(len(raw), 0, 0, 0xC4)) + raw
    elif isinstance(value, (list, tuple)):
        return _head(len(value), 0x90, 16, 0xDB) + b"".join(map(encode, value))
    elif isinstance(value, dict):
        return _head(len(value), 0x80, 16, 0xDD) + b"".join(encode(k) + encode(v) for k, v in value.items())
    raise Malformed(f"a {type(value).__name__} of this size has no place in a frame")


def _head(size: int, fix: int, fix_max: int, code: int) -> bytes:
    if size < fix_max:
        return bytes((fix | size,))
    if size < 0x100 and code < 0xDB:  # arrays and maps have no 8-bit form: their `code` is where it would stand
        return bytes((code, size))
    return bytes((code + 1,)) + size.to_bytes(2, "big")


def decode(data: bytes) -> list[Any]:
    """The one array that `data` holds; Malformed for whatever the protocol forbids."""
    try:
        if not 0x90 <= data[0] < 0xA0:
            values, position = _decode(data, 0, 1)
        else:  # what every decision is made of, without a call for each; what runs over the end is noticed below
            values, position = [], 1
            for _ in range(data[0] & 0x0F):
                byte = data[position]
                if byte < 0x80:
                    values.append(byte)
                    position += 1
                elif byte == 0xC0:
                    values.append(None)
                    position += 1
                elif 0xCC <= byte <= 0xCF:
                    start, position = position + 1, position + _WIDTHS[byte]
                    values.append(int.from_bytes(data[start:position], "big"))
                elif 0xA0 <= byte < 0xC0:
                    start, position = position + 1, position + byte - 0x9F
                    values.append(data[start:position].decode())
                else:
                    value, position = _decode(data, position, 2)
                    values.append(value)
    except (IndexError, UnicodeDecodeError) as error:
        raise Malformed("bytes missing or not UTF-8") from error
    if position != len(data) or values.__class__ is not list:
        raise Malformed("not one array and nothing after it")
    return values


def _decode(data: bytes, position: int, depth: int) -> tuple[Any, int]:
    """The value at `position` and where the next one starts; `depth` is its own if it is an array or a map."""
    byte, position = data[position], position + 1
    if byte < 0x80 or byte >= 0xE0:
        return byte if byte < 0x80 else byte - 0x100, position
    kind, size = (0xA0, byte & 0x1F) if byte >= 0xA0 else (byte & 0xF0, byte & 0x0F)
    if byte >= 0xC0:
        if byte in _CONSTANTS:
            return _CONSTANTS[byte], position
        if byte not in _SIZED:
            raise Malformed(f"type {byte:#x} has no place in a frame")
        kind, width = _SIZED[byte]
        size = int.from_bytes(data[position : position + width], "big", signed=kind == 0xD0)
        position += width
    if kind >= 0xCC:
        return size, position
    if size > len(data) - position or (depth > DEPTH_MAX and kind < 0xA0):  # an element takes one byte at least
        raise Malformed("bytes missing, or nested too deep")
    if kind >= 0xA0:
        raw = data[position : position + size]
        return str(raw, "utf-8") if kind == 0xA0 else raw, position + size
    values = []
    for _ in range(size if kind == 0x90 else 2 * size):
        value, position = _decode(data, position, depth + 1)
        values.append(value)
    if kind == 0x90:
        return values, position
    if not all(type(key) is str for key in values[::2]) or len(set(values[::2])) < size:
        raise Malformed("a key that is no text or comes twice")
    return dict(zip(values[::2], values[1::2])), position


def request(domain: str, attributes: Attributes, cost: Cost, tail: bytes) -> bytes:
    """The elements of a judgement after its id, `tail` last; Malformed where the daemon would say `invalid`."""
    given: Any = attributes
    if attributes.__class__ is not dict:
        given = list(attributes or ()) if not isinstance(attributes, Mapping) else attributes
    several = given.__class__ is list and given and all(isinstance(one, Mapping) for one in given)
    parts = [_NAMES.get(domain) or encode_name(domain), _ARRAYS[1]]
    for descriptor in given if several else (given,):
        start = len(parts)
        parts.append(b"")
        for name, value in descriptor if descriptor.__class__ is list else descriptor.items():
            if value.__class__ is str and value.isascii():
                raw = value.encode()
            elif value is None:
                continue
            else:
                raw = _text(value)
            if len(raw) > VALUE_MAX:
                raw = raw[:960].decode("utf-8", "ignore").encode() + _digest(raw)
            if raw:
                parts += (_NAMES.get(name) or encode_name(name), _TEXTS[len(raw)], raw)
        pairs = len(parts) - start - 1
        if pairs > 3 * PAIRS_MAX:
            raise Malformed(f"more than {PAIRS_MAX} attributes in a descriptor")
        parts[start] = _ARRAYS[pairs // 3 * 2]
    if several:
        if len(given) > DESCRIPTORS_MAX:
            raise Malformed(f"more than {DESCRIPTORS_MAX} descriptors")
        parts[1] = _ARRAYS[len(given)]
    if cost == 1 and cost.__class__ is int:
        parts += (b"\x01", tail)
    else:
        parts += (_cost(cost), tail)
    body = b"".join(parts)
    return body if len(body) <= BODY_MAX else _fitted(parts)


def _fitted(parts: list[bytes]) -> bytes:
    """The request with its longest values shortened until it fits."""
    while sum(map(len, parts)) > BODY_MAX:
        longest = max(range(len(parts) - 2), key=lambda i: len(parts[i]))
        if len(parts[longest]) <= NAME_MAX + 2:
            raise Malformed("it does not fit into a frame")
        parts[longest - 1 : longest + 1] = _TEXTS[33], _digest(parts[longest])
    return b"".join(parts)


def _cost(cost: Cost) -> bytes:
    for amount in cost.values() if isinstance(cost, dict) else (cost,):
        if type(amount) is not int or not 0 <= amount < 1 << 32:
            raise Malformed("a cost is an integer from 0 to 4294967295, or a dict of units to such")
    return encode(cost)


def _text(value: object) -> bytes:
    if isinstance(value, (bool, bytes)):
        value = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value).lower()
    return str(value).encode("utf-8", "replace") if not isinstance(value, str) else value.encode("utf-8", "replace")


def _digest(raw: bytes) -> bytes:
    return b"~" + hashlib.sha256(raw).hexdigest()[:32].encode()


def microseconds(seconds: float) -> int:
    # Rounded up, though 0.07 s are 70 000 and 0.07 * 1e6 is a little more; never below 0, whatever a clock did.
    return max(0, math.ceil(round(seconds * 1e6, 3)))


def encode_name(name: object) -> bytes:
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name.encode()) > NAME_MAX:
        raise Malformed("a name is text of 1 to 64 bytes without control characters, ':' and '/'")
    if len(_NAMES) < 1_024:  # a program that makes names up must not fill memory
        _NAMES[name] = encode(name)
    return encode(name)


FRAME_MAX, VALUE_MAX, NAME_MAX, PAIRS_MAX, DESCRIPTORS_MAX, DEPTH_MAX = 16_384, 1_024, 64, 16, 8, 4
BODY_MAX = FRAME_MAX - 11  # the array, the op and the longest id stand before it
HELLO, ACQUIRE, RELEASE, HIT, PEEK, RENEW, PING = 0, 1, 2, 3, 4, 6, 8
WELCOME, DECISION, DONE, ERROR, GOODBYE = range(5)
KEEPING = {5: "unknown_op", 6: "invalid", 7: "quota", 10: "internal", 11: "not_allowed"}  # errors that close nothing
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
_SIZED = {0xC4: (0xC4, 1), 0xC5: (0xC4, 2), 0xC6: (0xC4, 4), 0xD9: (0xA0, 1), 0xDA: (0xA0, 2), 0xDB: (0xA0, 4)}
_SIZED |= {0xDC: (0x90, 2), 0xDD: (0x90, 4), 0xDE: (0x80, 2), 0xDF: (0x80, 4)}
_SIZED |= {code + i: (code, 1 << i) for code in (0xCC, 0xD0) for i in range(4)}
_WIDTHS = {0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9}  # with the byte that says so
_ARRAYS = [_head(size, 0x90, 16, 0xDB) for size in range(2 * PAIRS_MAX + 1)]
_TEXTS = [_head(size, 0xA0, 32, 0xD9) for size in range(VALUE_MAX + 1)]
_NAME = re.compile(r"[^\x00-\x1f\x7f-\x9f:/]+")
_NAMES: dict[object, bytes] = {}
