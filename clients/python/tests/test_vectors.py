"""The golden frames, the reference of the protocol."""

import json
import pathlib
import re
import subprocess
import sys

import pytest

from tidegate.protocol import FRAME_MAX, Fault, decode, encode, request

VECTORS = pathlib.Path(__file__).resolve().parents[3] / "tests/vectors"
GOOD = json.loads((VECTORS / "good.json").read_text())
BAD = json.loads((VECTORS / "bad.json").read_text())

OPS = ["hello", "acquire", "release", "hit", "peek", "charge", "renew", "signal", "ping"]
KINDS = ["welcome", "decision", "done", "error", "goodbye"]
VERDICTS = ["allow", "limit", "shed", "wait", "deny"]
OUTCOMES = ["ok", "error", "dropped"]
CODES = {1: "malformed", 2: "too_large", 3: "version", 4: "hello_required", 5: "unknown_op", 6: "invalid", 7: "quota"}
CODES |= {8: "busy", 9: "forbidden", 10: "internal", 11: "not_allowed"}
SILENT = {"pool": "default", "slots": 0, "all": False, "missed": {}, "abandoned": []}
INFO = ("client", "session", "pid", "pool", "slots", "connection", "missed", "abandoned")
OPTIONS = ("idem", "of", "queued_us", "max_wait_us", "all", "missed", "abandoned")
SERVER = ("server", "boot", "connection", "frame_bytes_max", "mode")


def named(frames, *directions):
    return [pytest.param(f, id=f["name"]) for f in frames if not directions or f["direction"] in directions]


def payload_of(vector):
    data = bytes.fromhex(vector["hex"])
    assert int.from_bytes(data[:4], "big") == len(data) - 4
    return data[4:]


def plain(value):
    """Converts byte strings from their JSON form."""
    if isinstance(value, bytes):
        return {"bin": value.hex()}
    if isinstance(value, list):
        return [plain(one) for one in value]
    return {key: plain(one) for key, one in value.items()} if isinstance(value, dict) else value


def real(value):
    if isinstance(value, dict):
        return bytes.fromhex(value["bin"]) if set(value) == {"bin"} else {k: real(v) for k, v in value.items()}
    return [real(one) for one in value] if isinstance(value, list) else value


def known(given, names):
    result = {n: given[n] for n in names if (given or {}).get(n) is not None and given[n] != SILENT.get(n)}
    for name in ("idem", "of"):
        if isinstance(result.get(name), str):  # text and bytes mean the same
            result[name] = result[name].encode()
    if "abandoned" in result:
        result["abandoned"] = [entry[:2] for entry in result["abandoned"]]
    if isinstance(result.get("missed"), dict):
        result["missed"] = {k: v for k, v in result["missed"].items() if k in REASONS}
    return result


COST_MAX, NAME = (1 << 32) - 1, re.compile(r"[^\x00-\x1f\x7f-\x9f:/]{1,64}")
REASONS = ("unreachable", "timeout", "protocol", "breaker", "callback")


def default(value, otherwise):
    return otherwise if value is None else value


def meaning(message, direction):
    kind, *rest = message
    rest += [None] * (13 - len(rest))
    if direction == "reply":
        name = KINDS[kind]
        if name == "welcome":
            return {"kind": name, "id": rest[0], "version": rest[1], "info": known(rest[2], SERVER)}
        if name == "decision":
            keys = ("rule", "limit", "window_us", "remaining", "reset_us", "retry_us", "lease", "notes", "all", "extra")
            result = dict(zip(keys, rest[2:12]))
            if result["notes"] is not None:
                result["notes"] = [list(pair) for pair in zip(result["notes"][::2], result["notes"][1::2])]
            if result["all"] is not None:
                result["all"] = [entry[:5] for entry in result["all"]]
            if result["extra"] is not None:
                result["extra"] = known(result["extra"], ("help", "hide", "unit", "rate", "blocked", "digest"))
            return {"kind": name, "id": rest[0], "verdict": VERDICTS[rest[1]], **result}
        if name == "done":
            return {"kind": name, "id": rest[0], "ok": rest[1]}
        if name == "error":
            return {"kind": name, "id": rest[0], "code": CODES[rest[1]], "message": rest[2]}
        return {"kind": name, "id": rest[0], "reason": rest[1]}
    name = OPS[kind]
    result = {"op": name, "id": rest[0]}
    if name == "hello":
        return result | {"version": rest[1], "info": plain(known(rest[2], INFO))}
    if name == "release":
        return result | {"lease": rest[1], "outcome": OUTCOMES[default(rest[2], 1)]}
    if name == "renew":
        return result | {"lease": rest[1]}
    if name == "signal":
        return result | {"pool": rest[1], "name": rest[2], "permille": rest[3]}
    if name == "ping":
        return result
    result |= {"domain": rest[1], "descriptors": rest[2]}
    if name == "charge":
        return result | {"amount": cut(default(rest[3], 1)), "options": plain(known(rest[4], OPTIONS))}
    options = plain(known(rest[5], OPTIONS))
    priority = rest[4] if isinstance(rest[4], str) and NAME.fullmatch(rest[4]) else None
    return result | {"cost": default(rest[3], 1), "priority": priority, "options": options}


def cut(amount):
    """Clamps to the largest amount that a rule counts."""
    if isinstance(amount, dict):
        return {unit: cut(one) for unit, one in amount.items()}
    return min(max(amount, -COST_MAX), COST_MAX)


def message_of(meant):
    """Returns the array of this meaning: a request without trailing nils, a reply in full."""
    m = real(meant)
    if "kind" in m:
        kind = KINDS.index(m["kind"])
        if kind == 0:
            return [kind, m["id"], m["version"], m["info"]]
        if kind == 1:
            notes = None if m["notes"] is None else [part for note in m["notes"] for part in note]
            numbers = [m[k] for k in ("rule", "limit", "window_us", "remaining", "reset_us", "retry_us", "lease")]
            return [kind, m["id"], VERDICTS.index(m["verdict"]), *numbers, notes, m["all"], m["extra"]]
        if kind == 2:
            return [kind, m["id"], m["ok"]]
        if kind == 3:
            return [kind, m["id"], next(n for n, name in CODES.items() if name == m["code"]), m["message"]]
        return [kind, m["id"], m["reason"]]
    op = OPS.index(m["op"])
    message = [op, m["id"]]
    message += {
        "hello": lambda: [m["version"], m["info"] or None],
        "release": lambda: [m["lease"], OUTCOMES.index(m["outcome"])],
        "renew": lambda: [m["lease"]],
        "signal": lambda: [m["pool"], m["name"], m["permille"]],
        "ping": list,
        "charge": lambda: [m["domain"], m["descriptors"], m["amount"], m["options"] or None],
    }.get(m["op"], lambda: [m["domain"], m["descriptors"], m["cost"], m["priority"], m["options"] or None])()
    while message[-1] is None and len(message) > 2:
        message.pop()
    return message


@pytest.mark.parametrize("vector", named(GOOD))
def test_decodes_the_meaning(vector):
    meant = vector["meaning"]
    if options := meant.get("options"):
        texts = {name: options[name] for name in ("idem", "of") if isinstance(options.get(name), str)}
        meant = meant | {"options": options | {name: {"bin": text.encode().hex()} for name, text in texts.items()}}
    assert meaning(decode(payload_of(vector)), vector["direction"]) == meant


@pytest.mark.parametrize("vector", [p for p in named(GOOD) if p.values[0]["canonical"]])
def test_encodes_the_meaning(vector):
    message = message_of(vector["meaning"])
    assert encode(message) == payload_of(vector)


@pytest.mark.parametrize(
    "vector",
    [
        p
        for p in named(GOOD)
        if p.values[0]["canonical"] and p.values[0]["meaning"].get("op") in ("acquire", "hit", "peek", "charge")
    ],
)
def test_the_fast_encoder_writes_the_same(vector):
    message = message_of(vector["meaning"])
    descriptors = [list(zip(d[::2], d[1::2])) for d in message[3]]
    if not descriptors or any(value == "" for one in descriptors for _, value in one):
        pytest.skip("a descriptor is always written, and empty values are not sent")
    if len(payload_of(vector)) > FRAME_MAX - 11:
        pytest.skip("room is kept for the longest id")
    priority, options = ([*message[5:], None, None])[:2]
    charge = message[0] == 5
    if charge:
        priority, options = None, priority
    head = bytes((0x90 | len(message), message[0])) + encode(message[1])
    given = descriptors[0] if len(descriptors) == 1 else [dict(one) for one in descriptors]
    elements = request(message[2], given, message[4], priority, options or {}, charge)
    assert head + b"".join(elements) == payload_of(vector)


@pytest.mark.parametrize("vector", [p for p in named(BAD) if p.values[0]["code"] == "malformed"])
def test_refuses_malformed_frames(vector):
    data = bytes.fromhex(vector["hex"])
    size = int.from_bytes(data[:4], "big")
    if size == 0:
        return  # not a frame
    try:
        message = decode(data[4 : 4 + size])
    except Fault:
        return
    # Only a reader of requests detects the rest: op or id is no unsigned integer.
    op, number = [*message, None, None][:2]
    assert not all(type(n) is int and 0 <= n < 2**63 for n in (op, number))


def test_frames_are_generated():
    """It also compares each frame with the msgpack package."""
    pytest.importorskip("msgpack")
    done = subprocess.run([sys.executable, VECTORS / "make.py", "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "held against msgpack" in done.stdout, done.stdout + done.stderr
