"""Replies for the scenarios: the golden frames, and doubtful ones."""

from __future__ import annotations

import json

import msgpack

from daemons import ALLOW, frame
from languages import ROOT
from play import DECIDED, decision, degraded, refused

VECTORS = ROOT / "tests/vectors"
GOOD = {one["name"]: one for one in json.loads((VECTORS / "good.json").read_text())}
DECISIONS = {name: one for name, one in GOOD.items() if one["meaning"].get("kind") == "decision"}
STATUS = {"allow": 200, "limit": 429, "shed": 503, "wait": 200, "deny": 403}
EXACT = 1 << 53  # JSON and JavaScript hold numbers up to this exactly


def golden(one):
    """Replies with the bytes of a golden frame, with the id of the request."""
    payload = bytes.fromhex(one["hex"])[4:]
    old = msgpack.packb(one["meaning"]["id"])
    at = payload.index(b"\x01") + 1
    width = {0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9}.get(payload[at], 1)
    assert msgpack.unpackb(payload[at : at + width]) == msgpack.unpackb(old)
    return lambda message: frame(payload[:at] + msgpack.packb(message[1]) + payload[at + width :])


def meant(one):
    """Returns the fields of the decision that a golden frame means."""
    meaning = one["meaning"]
    fields = {"verdict": meaning["verdict"], "status": STATUS[meaning["verdict"]], "rule": meaning["rule"]}
    fields["allowed"] = fields["status"] == 200
    for field in ("limit", "remaining", "lease"):
        if (meaning[field] or 0) < EXACT and not (field == "remaining" and meaning["limit"] is None):
            fields[field] = meaning[field]
    if not fields["allowed"] and (meaning["retry_us"] or 0) < EXACT:
        fields["retry_us"] = meaning["retry_us"]
    elif meaning["verdict"] == "wait":
        fields["wait_us"] = meaning["retry_us"]
    return DECIDED | fields


def verdict(number, *rest):
    """A decision whose elements from the verdict on are these."""
    return lambda message: [1, message[1], number, *rest, *(10 - len(rest)) * [None]]


def numbers(at, value):
    elements = [*ALLOW, None, None, None, None]
    elements[at] = value
    return lambda message: [1, message[1], *elements]


def extra(**given):
    return numbers(10, given)


ODD = {
    "nothing": lambda message: [],
    "no_verdict": lambda message: [1, message[1]],
    "unknown_kind": lambda message: [9, message[1]],
    "nil_kind": lambda message: [None, message[1]],
    "nil_id": lambda message: [1, None, *ALLOW],
    "wrong_id": lambda message: [1, message[1] + 1, *ALLOW],
    "late_id": lambda message: [1, message[1] - 1, *ALLOW],
    "huge_id": lambda message: frame(b"\x9d\1\xcf" + 8 * b"\xff" + msgpack.packb(decision(message))[-11:]),
    "text_id": lambda message: [1, str(message[1]), *ALLOW],
    "greatest_id": lambda message: [1, (1 << 63) - 1, *ALLOW],
    "unknown_verdict": verdict(5),
    "negative_verdict": verdict(-1),
    "bool_verdict": verdict(True),
    "text_verdict": verdict("allow"),
    "nil_verdict": verdict(None),
    "number_as_rule": verdict(0, 7),
    "bytes_as_rule": verdict(0, b"rule"),
    "negative_limit": numbers(2, -1),
    "text_limit": numbers(2, "40"),
    "bool_window": numbers(3, True),
    "negative_remaining": numbers(4, -1),
    "list_reset": numbers(5, [1]),
    "text_retry": numbers(6, "1"),
    "negative_lease": numbers(7, -7),
    "text_lease": numbers(7, "7"),
    "text_notes": numbers(8, "shadow"),
    "text_all": numbers(9, "all"),
    "list_extra": numbers(10, [1]),
    "number_as_help": extra(help=5),
    "text_hide": extra(hide="yes"),
    "number_as_unit": extra(unit=7),
    "bytes_as_rate": extra(rate=b"5/s"),
    "number_as_digest": extra(digest=5),
    "number_as_blocked": extra(blocked=1),
    "numbers_as_notes": numbers(8, [1, 2]),
    "nil_notes": numbers(8, [None, None]),
    "half_a_note": numbers(8, ["shadow"]),
    "nested_notes": numbers(8, [["shadow", "rule"]]),
    "done": lambda message: [2, message[1], True],
    "welcome_of_the_request": lambda message: [0, message[1], 1, {}],
    "unknown_error": lambda message: [3, message[1], 77, "new"],
    "text_error": lambda message: [3, message[1], "5", "odd"],
    "error_of_another": lambda message: [3, message[1] + 1, 6, "odd"],
    "busy_for_another": lambda message: [3, message[1] + 1, 8, "odd"],
    "error_without_id": lambda message: [3, None, 5, "odd"],
    "invalid_without_id": lambda message: [3, None, 6, "odd"],
    "quota_without_id": lambda message: [3, None, 7, "odd"],
    "error_of_the_old_hello": lambda message: frame([0, 0, 1, {}]) + frame([3, 0, 6, "odd"]),
    "welcome_twice": lambda message: 2 * frame([0, 0, 1, {}]) + frame(decision(message)),
    "flood_of_large_errors": lambda message: 20 * frame([3, None, 6, 9_000 * "x"]),
    "http": lambda message: b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "no_bytes": lambda message: b"\0\0\0\0",
    "oversized": lambda message: b"\0\0\x40\x01" + bytes(16_385),
    "giant": lambda message: b"\xff\xff\xff\xff" + bytes(100),
    "garbage": lambda message: bytes(range(255, 0, -1)),
    "trailing": lambda message: frame(msgpack.packb([1, message[1], *ALLOW]) + b"\0"),
    "one_number": lambda message: frame(b"\1"),
    "float": lambda message: [1, message[1], 0, "rule", 40.0],
    "timestamp": lambda message: frame(msgpack.packb([1, message[1], *ALLOW])[:-1] + b"\xd4\1\0"),
    "deep": lambda message: [1, message[1], *ALLOW, None, None, None, {"x": [[[1]]]}],
    "no_utf8": lambda message: frame(msgpack.packb([1, message[1], 0, "rule"])[:-4] + b"\xff\xfe\xfd\xfc"),
    "key_twice": lambda message: frame(
        msgpack.packb([1, message[1], *ALLOW, None, None, None]) + b"\x82\xa1a\1\xa1a\1"
    ),
    "length_short": lambda message: b"\0\0\0\3" + frame(decision(message))[4:],
    "promised_more": lambda message: frame(b"\xdd\xff\xff\xff\xff\1"),
}


def framed(answer):
    return answer if isinstance(answer, bytes) else frame(answer)


BROKEN = {
    f"{name}": lambda message, one=one: bytes.fromhex(one["hex"])
    for name, one in ((one["name"], one) for one in json.loads((VECTORS / "bad.json").read_text()))
    if one["code"] == "malformed" and one["after_hello"]
}


# In place of WELCOME, and the expected decision.
GREETINGS = (
    ([0, 0, 2, {}], degraded("protocol")),
    ([0, 0, 0, {}], degraded("protocol")),
    ([0, 0, "1", {}], degraded("protocol")),
    ([0, 0], degraded("protocol")),
    ([0, 1 << 40, 1, {}], degraded("protocol")),
    ([0, None, 1, {}], degraded("protocol")),
    ([3, 0, 3, "which version"], degraded("protocol")),
    ([3, 0, 10, "failed"], degraded("protocol")),
    ([3, 0, 6, "invalid"], refused("invalid")),
    ([3, 0, 9, "forbidden"], refused("forbidden")),
    ([3, None, 9, "forbidden"], refused("forbidden")),
    ([3, 0, 11, "not allowed"], refused("not_allowed")),
    ([3, None, 6, "invalid"], degraded("protocol")),
    ([3, None, 4, "hello required"], degraded("protocol")),
)
