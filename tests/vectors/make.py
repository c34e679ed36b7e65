#!/usr/bin/env python3
"""Writes good.json and bad.json, the golden frames of protocol version 1.

All frames are written here by hand, with an independent encoder: no tested code makes
them. `make.py --check` changes nothing and fails if the files differ; if the PyPI package `msgpack` is
installed, it also decodes every well-formed frame.
"""

import json
import pathlib
import struct
import sys

HERE = pathlib.Path(__file__).parent


class Raw:
    """Raw bytes of a frame, and their value, if any."""

    def __init__(self, data, value=None):
        self.data, self.value = bytes.fromhex(data) if isinstance(data, str) else data, value


def pack(value):
    """Encodes the shortest MessagePack."""
    if isinstance(value, Raw):
        return value.data
    if value is None or isinstance(value, bool):
        return {None: b"\xc0", False: b"\xc2", True: b"\xc3"}[value]
    if isinstance(value, int):
        if -32 <= value < 128:
            return struct.pack(">b", value)
        unsigned, signed = (">B", ">H", ">I", ">Q"), (">b", ">h", ">i", ">q")
        for width in range(4):
            bits = 8 << width
            if 0 <= value < 1 << bits:
                return bytes([0xCC + width]) + struct.pack(unsigned[width], value)
            if value < 0 and -(1 << bits - 1) <= value:
                return bytes([0xD0 + width]) + struct.pack(signed[width], value)
    if isinstance(value, str):
        data = value.encode()
        return head(len(data), 0xA0, 32, 0xD9, True) + data
    if isinstance(value, bytes):
        return head(len(value), None, 0, 0xC4, True) + value
    if isinstance(value, (list, tuple)):
        return head(len(value), 0x90, 16, 0xDC, False) + b"".join(map(pack, value))
    if isinstance(value, dict):
        pairs = b"".join(pack(key) + pack(item) for key, item in value.items())
        return head(len(value), 0x80, 16, 0xDE, False) + pairs
    raise TypeError(value)


def head(length, fix, below, marker, has8):
    if length < below:
        return bytes([fix | length])
    if has8 and length < 256:
        return struct.pack(">BB", marker, length)
    if length < 65536:
        return struct.pack(">BH", marker + has8, length)
    return struct.pack(">BI", marker + has8 + 1, length)


def frame(payload):
    return struct.pack(">I", len(payload)) + payload


def plain(value):
    """Returns the value of a frame, raw parts included."""
    if isinstance(value, Raw):
        return value.value
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {plain(key): plain(item) for key, item in value.items()}
    return value


def u8(value):
    return Raw(struct.pack(">BB", 0xCC, value), value)


def u16(value):
    return Raw(struct.pack(">BH", 0xCD, value), value)


def u32(value):
    return Raw(struct.pack(">BI", 0xCE, value), value)


def u64(value):
    return Raw(struct.pack(">BQ", 0xCF, value), value)


def i8(value):
    return Raw(struct.pack(">Bb", 0xD0, value), value)


def i64(value):
    return Raw(struct.pack(">Bq", 0xD3, value), value)


def str8(text):
    return Raw(struct.pack(">BB", 0xD9, len(text.encode())) + text.encode(), text)


def str16(text):
    return Raw(struct.pack(">BH", 0xDA, len(text.encode())) + text.encode(), text)


def str32(text):
    return Raw(struct.pack(">BI", 0xDB, len(text.encode())) + text.encode(), text)


def bin32(data):
    return Raw(struct.pack(">BI", 0xC6, len(data)) + data, data)


def array16(items):
    return Raw(struct.pack(">BH", 0xDC, len(items)) + b"".join(map(pack, items)), plain(items))


def array32(items):
    return Raw(struct.pack(">BI", 0xDD, len(items)) + b"".join(map(pack, items)), plain(items))


def map16(items):
    body = b"".join(pack(key) + pack(item) for key, item in items.items())
    return Raw(struct.pack(">BH", 0xDE, len(items)) + body, plain(items))


def map32(items):
    body = b"".join(pack(key) + pack(item) for key, item in items.items())
    return Raw(struct.pack(">BI", 0xDF, len(items)) + body, plain(items))


def twice(*pairs):
    """A map that may have duplicate keys."""
    return Raw(bytes([0x80 | len(pairs)]) + b"".join(pack(key) + pack(item) for key, item in pairs))


def join(*parts):
    """Joins the parts of a payload."""
    return Raw(b"".join(part if isinstance(part, bytes) else pack(part) for part in parts))


def nested(depth):
    value = []
    for _ in range(depth - 1):
        value = [value]
    return value


SESSION = bytes(range(16))
U1 = [["user", "u1"]]
ID_MAX = 2**63 - 1
COST_MAX = 2**32 - 1

# ---------------------------------------------------------------------------------------------------------- good --

GOOD = []


def good(name, direction, payload, meaning, canonical=True):
    data = pack(payload)
    value = None if isinstance(payload, Raw) and payload.value is None else plain(payload)
    GOOD.append((name, direction, data, value, meaning, canonical))


def judged(op, id, descriptors=None, cost=1, priority=None, domain="api", **options):
    descriptors = U1 if descriptors is None else descriptors
    return {
        "op": op, "id": id, "domain": domain, "descriptors": descriptors, "cost": cost, "priority": priority,
        "options": options,
    }


def charged(id, amount, descriptors=None, **options):
    descriptors = U1 if descriptors is None else descriptors
    return {"op": "charge", "id": id, "domain": "api", "descriptors": descriptors, "amount": amount, "options": options}


def hello(id=0, version=1, **info):
    return {"op": "hello", "id": id, "version": version, "info": info}


def request(name, payload, meaning, canonical=True):
    good(name, "request", payload, meaning, canonical)


def reply(name, payload, meaning, canonical=True):
    good(name, "reply", payload, meaning, canonical)


def hex_of(data):
    return {"bin": data.hex()}


# HELLO
INFO = {"client": "python/0.1.0", "session": SESSION, "pid": 4711, "pool": "web", "slots": 8, "connection": 1}
request("hello", [0, 0, 1, INFO], hello(**{**INFO, "session": hex_of(SESSION)}))
request("hello_bare", [0, 0, 1], hello())
request("hello_id", [0, 1234567, 1], hello(1234567))
request("hello_info_nil", [0, 0, 1, None], hello(), False)
request("hello_info_empty", [0, 0, 1, {}], hello(), False)
request("hello_newer_version", [0, 0, 7, {"pool": "jobs"}], hello(version=7, pool="jobs"))
request("hello_newest_version", [0, 0, 2**64 - 1], hello(version=2**64 - 1))
request("hello_unknown_key", [0, 0, 1, {"pool": "web", "zone": [1, {"a": None}]}], hello(pool="web"), False)
request("hello_keys_in_another_order", [0, 0, 1, {"slots": 4, "pool": "web"}], hello(slots=4, pool="web"), False)
request("hello_keys_nil", [0, 0, 1, {"client": None, "session": None, "pid": None, "pool": None, "slots": None,
                                     "connection": None, "missed": None, "abandoned": None}], hello(), False)
request("hello_says_the_defaults", [0, 0, 1, {"pool": "default", "slots": 0}], hello(), False)
request("hello_further_element", [0, 0, 1, {"slots": 1}, "later"], hello(slots=1), False)
request("hello_pid_largest", [0, 0, 1, {"pid": COST_MAX, "slots": COST_MAX}], hello(pid=COST_MAX, slots=COST_MAX))
request("hello_client_longest", [0, 0, 1, {"client": "c" * 255}], hello(client="c" * 255))
MISSED = {"unreachable": 1, "timeout": 2, "protocol": 300, "breaker": 70000, "callback": 2**64 - 1}
request("hello_reports", [0, 0, 1, {"connection": 2, "missed": MISSED, "abandoned": [[1, 17], [1, ID_MAX]]}],
        hello(connection=2, missed=MISSED, abandoned=[[1, 17], [1, ID_MAX]]))
request("hello_bin32_session", [0, 0, 1, {"session": bin32(SESSION)}], hello(session=hex_of(SESSION)), False)

# ACQUIRE, HIT, PEEK
request("acquire", [1, 1, "api", U1, 1], judged("acquire", 1))
request("hit", [3, 7, "api", U1, 1], judged("hit", 7))
request("peek", [4, 8, "api", U1, 1], judged("peek", 8))
HOT = [["method", "POST", "path", "/v1/charges", "user", "u123456"]]
request("hit_everyday", [3, 100000, "api", HOT, 1], judged("hit", 100000, HOT))
request("hit_id_zero", [3, 0, "api", U1, 1], judged("hit", 0))
for id in (127, 128, 255, 256, 65535, 65536, 2**32 - 1, 2**32, ID_MAX):
    request(f"hit_id_{id}", [3, id, "api", U1, 1], judged("hit", id))
request("hit_cost_left_out", [3, 7, "api", U1], judged("hit", 7), False)
request("hit_cost_nil", [3, 7, "api", U1, None], judged("hit", 7), False)
request("hit_all_nils_written", [3, 7, "api", U1, None, None, None], judged("hit", 7), False)
request("hit_cost_zero", [3, 7, "api", U1, 0], judged("hit", 7, cost=0))
request("hit_cost_largest", [3, 7, "api", U1, COST_MAX], judged("hit", 7, cost=COST_MAX))
# Costs above the largest are encoded unchanged; every rule refuses them for good.
for cost in (2**32, 2**63, 2**64 - 1):
    request(f"hit_cost_{cost}", [3, 7, "api", U1, cost], judged("hit", 7, cost=cost))
request("hit_cost_unit_2_32", [3, 7, "api", U1, {"requests": 1, "tokens": 2**32}],
        judged("hit", 7, cost={"requests": 1, "tokens": 2**32}))
request("hit_cost_units", [3, 7, "api", U1, {"requests": 1, "tokens": 800}],
        judged("hit", 7, cost={"requests": 1, "tokens": 800}))
request("hit_cost_no_unit", [3, 7, "api", U1, {}], judged("hit", 7, cost={}))
SEVENTEEN = {f"unit {n:02}": n * 1000 for n in range(17)}
request("hit_cost_many_units", [3, 7, "api", U1, SEVENTEEN], judged("hit", 7, cost=SEVENTEEN))
request("hit_priority", [3, 7, "api", U1, 1, "get"], judged("hit", 7, priority="get"))
# An invalid priority counts as none.
for name, value in {"empty": "", "65": "p" * 65, "colon": "a:b", "control": "a\n", "integer": 1, "bool": True, "bin": b"get",
                    "array": ["get"], "map": {"get": 1}}.items():
    request(f"acquire_priority_{name}", [1, 7, "api", U1, 1, value, {"all": True}], judged("acquire", 7, all=True), False)
request("hit_options_without_priority", [3, 7, "api", U1, 1, None, {"all": True}], judged("hit", 7, all=True))
ALL_OPTIONS = {"idem": "order-17", "queued_us": 15000, "max_wait_us": 0, "all": True,
               "missed": {"timeout": 3, "callback": 1}, "abandoned": [[1, 5], [2, 900]]}
request("acquire_all_options", [1, 7, "api", U1, 2, "critical", ALL_OPTIONS],
        judged("acquire", 7, cost=2, priority="critical", **ALL_OPTIONS))
request("acquire_idem_bin", [1, 7, "api", U1, 1, None, {"idem": b"\xff\x00\x80"}],
        judged("acquire", 7, idem=hex_of(b"\xff\x00\x80")))
request("acquire_idem_text_as_bin", [1, 7, "api", U1, 1, None, {"idem": b"order"}],
        judged("acquire", 7, idem=hex_of(b"order")), False)
request("acquire_idem_longest", [1, 7, "api", U1, 1, None, {"idem": "i" * 64}], judged("acquire", 7, idem="i" * 64))
request("hit_options_empty", [3, 7, "api", U1, 1, None, {}], judged("hit", 7), False)
request("hit_options_nil_values", [3, 7, "api", U1, 1, None, {"idem": None, "queued_us": None, "max_wait_us": None,
                                                              "all": None, "missed": None, "abandoned": None}],
        judged("hit", 7), False)
request("hit_options_all_false", [3, 7, "api", U1, 1, None, {"all": False}], judged("hit", 7), False)
request("hit_options_unknown_key", [3, 7, "api", U1, 1, None, {"trace": b"\x01", "queued_us": 5, "deep": [[]]}],
        judged("hit", 7, queued_us=5), False)
MANY = {f"k{n}": n for n in range(300)}
request("hit_options_300_unknown_keys", [3, 7, "api", U1, 1, None, {**MANY, "all": True}],
        judged("hit", 7, all=True), False)
request("hit_options_times_largest", [3, 7, "api", U1, 1, None, {"queued_us": 2**64 - 1, "max_wait_us": 2**64 - 1}],
        judged("hit", 7, queued_us=2**64 - 1, max_wait_us=2**64 - 1))
request("hit_missed_unknown_reason", [3, 7, "api", U1, 1, None, {"missed": {"moon": [], "timeout": 1}}],
        judged("hit", 7, missed={"timeout": 1}), False)
request("hit_abandoned_longer_entries", [3, 7, "api", U1, 1, None, {"abandoned": [[1, 5, "later"], [1, 6]]}],
        judged("hit", 7, abandoned=[[1, 5], [1, 6]]), False)
ABANDONED = [[n % 3 + 1, n] for n in range(1100)]
request("hit_abandoned_1100", [3, 7, "api", U1, 1, None, {"abandoned": ABANDONED}],
        judged("hit", 7, abandoned=ABANDONED))
request("hit_further_elements", [3, 7, "api", U1, 1, None, None, 12, ["x"], {"y": None}], judged("hit", 7), False)
request("hit_further_elements_deep", [3, 7, "api", U1, 1, None, None, [[[]]]], judged("hit", 7), False)

# descriptors
request("hit_no_descriptor", [3, 7, "api", [], 1], judged("hit", 7, []))
request("hit_empty_descriptor", [3, 7, "api", [[]], 1], judged("hit", 7, [[]]))
request("hit_two_descriptors", [3, 7, "api", [["user", "u1", "path", "/a"], ["user", "u2"]], 1],
        judged("hit", 7, [["user", "u1", "path", "/a"], ["user", "u2"]]))
request("hit_a_name_twice", [3, 7, "api", [["user", "u1", "user", "u2"]], 1],
        judged("hit", 7, [["user", "u1", "user", "u2"]]))
FULL = [[f"k{d}{p:02}" if i == 0 else f"v{p}" for p in range(16) for i in (0, 1)] for d in range(8)]
request("hit_128_attributes", [3, 7, "api", FULL, 1], judged("hit", 7, FULL))
for size in (0, 31, 32, 255, 256, 1024):
    request(f"hit_value_{size}", [3, 7, "api", [["v", "x" * size]], 1], judged("hit", 7, [["v", "x" * size]]))
ODD = [["path", "/a:b/\n\x00c", "name", "Zoë ✓ 𝄞"]]
request("hit_value_any_text", [3, 7, "api", ODD, 1], judged("hit", 7, ODD))
request("hit_names_longest", [3, 7, "d" * 64, [["k" * 64, "v"]], 1, "p" * 64],
        judged("hit", 7, [["k" * 64, "v"]], domain="d" * 64, priority="p" * 64))
request("hit_names_beyond_ascii", [3, 7, "größe", [["naïve key", "v"]], 1], judged("hit", 7, [["naïve key", "v"]],
                                                                             domain="größe"))
BIG = [[text for p in range(15) for text in (f"k{p}", "y" * 1024)], ["rest", "z" * 908]]
request("hit_frame_largest", [3, 7, "api", BIG, 1], judged("hit", 7, BIG))

# widths
request("hit_wide_integers", [u64(3), u32(7), "api", U1, u16(1)], judged("hit", 7), False)
request("hit_signed_widths", [i8(3), i64(7), "api", U1, i8(1)], judged("hit", 7), False)
request("hit_wide_texts", [3, 7, str8("api"), [[str16("user"), str32("u1")]], 1], judged("hit", 7), False)
request("hit_wide_arrays", array32([3, 7, "api", array16([array32(["user", "u1"])]), u8(1)]), judged("hit", 7), False)
request("hit_wide_maps", [3, 7, "api", U1, map32({"tokens": 5}), None, map16({"all": True})],
        judged("hit", 7, cost={"tokens": 5}, all=True), False)

# the others
for number, outcome in enumerate(("ok", "error", "dropped")):
    request(f"release_{outcome}", [2, 9, 123456789, number],
            {"op": "release", "id": 9, "lease": 123456789, "outcome": outcome})
request("release_without_reply", [2, None, ID_MAX, 0], {"op": "release", "id": None, "lease": ID_MAX, "outcome": "ok"})
request("release_outcome_left_out", [2, 9, 5], {"op": "release", "id": 9, "lease": 5, "outcome": "error"}, False)
request("release_outcome_nil", [2, 9, 5, None], {"op": "release", "id": 9, "lease": 5, "outcome": "error"}, False)
request("release_lease_zero", [2, 9, 0, 0], {"op": "release", "id": 9, "lease": 0, "outcome": "ok"})
request("charge", [5, 10, "api", U1, {"tokens": 812}], charged(10, {"tokens": 812}))
request("charge_without_reply", [5, None, "api", U1, 3], charged(None, 3))
for amount in (0, -1, -32, -33, -128, -129, -32768, -32769, -(2**31), -(2**31) - 1, -COST_MAX, COST_MAX):
    request(f"charge_{amount}", [5, 10, "api", U1, amount], charged(10, amount))
request("charge_units_signed", [5, 10, "api", U1, {"requests": -1, "tokens": 300}],
        charged(10, {"requests": -1, "tokens": 300}))
request("charge_amount_left_out", [5, 10, "api", U1], charged(10, 1), False)
request("charge_options", [5, 10, "api", U1, 2, {"idem": "x", "missed": {"breaker": 9}}],
        charged(10, 2, idem="x", missed={"breaker": 9}))
request("charge_refund_of_idem", [5, 10, "api", U1, -2, {"of": "order-17"}], charged(10, -2, of="order-17"))
request("charge_refund_of_idem_bin", [5, 10, "api", U1, -2, {"of": b"\xff\x00\x80"}],
        charged(10, -2, of=hex_of(b"\xff\x00\x80")))
request("charge_refund_of_idem_text_as_bin", [5, 10, "api", U1, -2, {"of": b"order"}],
        charged(10, -2, of=hex_of(b"order")), False)
request("charge_refund_of_idem_longest", [5, None, "api", U1, -1, {"of": "i" * 64}], charged(None, -1, of="i" * 64))
request("charge_refund_of_lease", [5, 10, "api", U1, {"tokens": -300}, {"of": 123456789}],
        charged(10, {"tokens": -300}, of=123456789))
request("charge_refund_of_lease_largest", [5, 10, "api", U1, -1, {"of": ID_MAX}], charged(10, -1, of=ID_MAX))
request("charge_refund_with_idem", [5, 10, "api", U1, -2, {"idem": "refund-3", "of": "order-17"}],
        charged(10, -2, idem="refund-3", of="order-17"))
request("charge_refund_of_nil", [5, 10, "api", U1, 2, {"of": None}], charged(10, 2), False)
# A reader clamps amounts beyond the largest, in both directions: no rule counts further.
for name, amount, cut in (("2_32", 2**32, COST_MAX), ("minus_2_32", -(2**32), -COST_MAX), ("least", -(2**63), -COST_MAX),
                          ("largest", 2**64 - 1, COST_MAX)):
    request(f"charge_{name}", [5, 10, "api", U1, amount], charged(10, cut), False)
request("charge_unit_minus_2_32", [5, 10, "api", U1, {"tokens": -(2**32)}], charged(10, {"tokens": -COST_MAX}), False)
request("charge_abandoned", [5, None, "api", U1, 1, {"abandoned": [[1, 7], [2, ID_MAX]]}],
        charged(None, 1, abandoned=[[1, 7], [2, ID_MAX]]))
request("charge_wide_negative", [5, 10, "api", U1, i64(-1)], charged(10, -1), False)
request("renew", [6, 11, 77], {"op": "renew", "id": 11, "lease": 77})
request("renew_lease_largest", [6, ID_MAX, ID_MAX], {"op": "renew", "id": ID_MAX, "lease": ID_MAX})
request("renew_further_element", [6, 11, 77, 5000000], {"op": "renew", "id": 11, "lease": 77}, False)
for permille in (0, 400, 1000):
    request(f"signal_{permille}", [7, 12, "web", "loop_lag", permille],
            {"op": "signal", "id": 12, "pool": "web", "name": "loop_lag", "permille": permille})
request("signal_without_reply", [7, None, "web", "pool wait", 999],
        {"op": "signal", "id": None, "pool": "web", "name": "pool wait", "permille": 999})
request("signal_names_longest", [7, 12, "p" * 64, "größe" + "s" * 57, 1],
        {"op": "signal", "id": 12, "pool": "p" * 64, "name": "größe" + "s" * 57, "permille": 1})
request("ping", [8, 13], {"op": "ping", "id": 13})
request("ping_further_elements", [8, 13, None, {"x": {"y": [1]}}], {"op": "ping", "id": 13}, False)

# replies
WELCOME_INFO = {"server": "tidegate/0.1.0", "boot": 16045690984503111000, "connection": 1, "frame_bytes_max": 16384,
                "mode": "enforce"}


def welcome(id, version, info):
    return {"kind": "welcome", "id": id, "version": version, "info": info}


reply("welcome", [0, 0, 1, WELCOME_INFO], welcome(0, 1, WELCOME_INFO))
for mode in ("shadow", "disabled"):
    info = {**WELCOME_INFO, "boot": 5, "connection": 0, "mode": mode}
    reply(f"welcome_{mode}", [0, 3, 1, info], welcome(3, 1, info))
reply("welcome_unknown_key", [0, 0, 1, {"zone": {"a": []}, **WELCOME_INFO}, "later"], welcome(0, 1, WELCOME_INFO), False)
reply("welcome_wide", [0, u16(0), u64(1), map16({**WELCOME_INFO, "connection": u32(1)})], welcome(0, 1, WELCOME_INFO),
      False)

FIELDS = ("rule", "limit", "window_us", "remaining", "reset_us", "retry_us", "lease", "notes", "all", "extra")
VERDICTS = ("allow", "limit", "shed", "wait", "deny")


def decision(name, id, verdict, canonical=True, elements=None, **fields):
    values = [fields.get(field) for field in FIELDS]
    meaning = {"kind": "decision", "id": id, "verdict": VERDICTS[verdict], **dict(zip(FIELDS, values))}
    notes = meaning["notes"]
    flat = None if notes is None else [text for note in notes for text in note]
    written = [1, id, verdict, *values[:7], flat, *values[8:]]
    reply(name, written if elements is None else elements, meaning, canonical)


ENTRIES = [["per-user", 100, 60000000, 42, 600000], ["per-path", 2**40, 2**33, 2**32, 0]]
RATE = {"rule": "per-user", "limit": 100, "window_us": 60000000, "remaining": 42, "reset_us": 600000, "retry_us": 0}
decision("decision_allow", 7, 0, **RATE)
decision("decision_allow_lease", 7, 0, **RATE, lease=ID_MAX)
decision("decision_allow_no_rule", 7, 0, retry_us=0)
decision("decision_allow_full", 2**32, 0, rule="per-user", limit=1, window_us=1, remaining=1, reset_us=0, retry_us=0)
decision("decision_limit", 7, 1, rule="per-user", limit=100, window_us=60000000, remaining=0, reset_us=599999,
         retry_us=599999)
decision("decision_limit_never", 7, 1, rule="per-user", limit=100, window_us=60000000, remaining=100, reset_us=0)
decision("decision_limit_concurrency", 7, 1, rule="in-flight", limit=4, window_us=0, remaining=0, reset_us=81234,
         retry_us=81234)
decision("decision_shed", 7, 2, rule="web/queue_age", retry_us=1250000)
decision("decision_shed_notes", 7, 2, rule="web/fleet", retry_us=1000000, notes=[["shadow", "web/brake"]], all=ENTRIES)
decision("decision_shed_full_name", 7, 2, rule="api/web/workers", retry_us=1250000)
decision("decision_wait", 7, 3, **{**RATE, "retry_us": 250000}, lease=12)
decision("decision_deny", 7, 4, rule="blocked-addresses")
decision("decision_notes", 7, 0, **RATE, notes=[["shadow", "new-limit"], ["candidate", "per-user"], ["over", "soft"],
                                                ["near", "per-user"], ["quota", "plan_free"]])
decision("decision_all", 7, 0, **RATE, all=ENTRIES)
decision("decision_all_empty", 7, 0, retry_us=0, all=[])
decision("decision_help", 7, 1, **RATE, extra={"help": "see https://example.com/limits"})
decision("decision_extra_full", 7, 0, **RATE, extra={"help": "ask us", "hide": True, "unit": "tokens"})
decision("decision_limit_rate", 7, 1, rule="per-user", limit=3, window_us=36000000, remaining=0, reset_us=11900000,
         retry_us=11900000, extra={"rate": "5/min"})
decision("decision_digest", 7, 1, **RATE, extra={"rate": "100/min", "digest": "5f0c0f6ae0b54c1d9a2f6be0c1d4e7a3"})
decision("decision_digest_alone", 7, 1, rule="exports", limit=2, window_us=0, remaining=0, retry_us=1000000,
         extra={"digest": "5f0c0f6ae0b54c1d9a2f6be0c1d4e7a3"})
decision("decision_blocked", 7, 1, **{**RATE, "retry_us": 3600000000},
         extra={"rate": "100/min", "blocked": True, "digest": "5f0c0f6ae0b54c1d9a2f6be0c1d4e7a3"})
decision("decision_unmatched", 7, 0, retry_us=0, notes=[["unmatched", "domain"]])
decision("decision_hidden", 7, 0, **RATE, extra={"hide": True})
decision("decision_everything", ID_MAX, 0, **RATE, lease=1, notes=[["near", "per-user"]], all=ENTRIES,
         extra={"help": "Zoë", "unit": "tokens"})
decision("decision_rule_longest", 7, 2, rule="r" * 255, retry_us=1)
decision("decision_largest_numbers", 7, 1, rule="r", limit=2**64 - 1, window_us=2**64 - 1, remaining=2**64 - 1,
         reset_us=2**64 - 1, retry_us=2**64 - 1, lease=ID_MAX)
for value in (127, 128, 255, 256, 65535, 65536, 2**32 - 1, 2**32):
    decision(f"decision_remaining_{value}", 7, 0, **{**RATE, "remaining": value})
decision("decision_nils_left_out", 7, 4, False, [1, 7, 4, "list"], rule="list")
decision("decision_bare", 7, 0, False, [1, 7, 0])
decision("decision_further_element", 7, 0, False, [1, 7, 0, "r", 5, 6, 1, 2, 0, None, None, None, None, {"new": 1}],
         rule="r", limit=5, window_us=6, remaining=1, reset_us=2, retry_us=0)
decision("decision_unknown_extra", 7, 0, False, [1, 7, 0, "r", 5, 6, 1, 2, 0, None, None, None,
                                                 {"cost": 3, "unit": "tokens"}],
         rule="r", limit=5, window_us=6, remaining=1, reset_us=2, retry_us=0, extra={"unit": "tokens"})
decision("decision_longer_entry", 7, 0, False, [1, 7, 0] + [None] * 8 + [[["r", 5, 6, 1, 2, False, 0, "new"]]],
         all=[["r", 5, 6, 1, 2]])
decision("decision_node_entry", 7, 1, False, [1, 7, 1] + [None] * 8 + [[["r", 5, 6, 0, 2, True, 5], ["s", 5, 6, 1, 2, True]]],
         all=[["r", 5, 6, 0, 2], ["s", 5, 6, 1, 2]])
decision("decision_wide", 7, 0, False, array16([u8(1), u64(7), i8(0), str32("r"), u64(5), u64(6), u64(1), u64(2), u64(0)]),
         rule="r", limit=5, window_us=6, remaining=1, reset_us=2, retry_us=0)

for ok in (True, False):
    reply(f"done_{str(ok).lower()}", [2, 9, ok], {"kind": "done", "id": 9, "ok": ok})
CODES = ("malformed", "too_large", "version", "hello_required", "unknown_op", "invalid", "quota", "busy", "forbidden",
         "internal", "not_allowed")
NUMBERS = {code: number for number, code in enumerate(CODES, 1)}
CLOSES = ("malformed", "too_large", "version", "hello_required", "busy", "forbidden")
for code, number in NUMBERS.items():
    id = None if code in ("malformed", "too_large", "busy") else 9
    reply(f"error_{code}", [3, id, number, f"what {code} means here"],
          {"kind": "error", "id": id, "code": code, "message": f"what {code} means here"})
reply("error_empty_message", [3, 9, 10, ""], {"kind": "error", "id": 9, "code": "internal", "message": ""})
reply("goodbye", [4, None, "draining"], {"kind": "goodbye", "id": None, "reason": "draining"})
reply("goodbye_further_element", [4, None, "draining", 5], {"kind": "goodbye", "id": None, "reason": "draining"}, False)

# ----------------------------------------------------------------------------------------------------------- bad --

BAD = []
ANY = object()


def bad(name, payload, code, meaning, after_hello=True, id=None, reply=True, framed=True):
    """`id` is the id of the ERROR; `reply` is false if no ERROR is sent."""
    data = payload if isinstance(payload, bytes) else pack(payload)
    BAD.append((name, frame(data) if framed else data, code, meaning, after_hello, id, reply))


def malformed(name, payload, meaning, **more):
    bad(name, payload, "malformed", meaning, **more)


def invalid(name, payload, meaning, id=7, **more):
    bad(name, payload, "invalid", meaning, id=id, **more)


# framing
malformed("length_zero", b"", "the length is 0")
malformed("length_zero_then_good", frame(b"") + frame(pack([8, 1])), "the length is 0, whatever follows", framed=False)
bad("length_16385", struct.pack(">I", 16385) + b"\x90" * 16385, "too_large", "one byte above the bound", framed=False)
bad("length_16385_header_only", struct.pack(">I", 16385), "too_large", "the length alone is enough", framed=False)
bad("length_2_31", bytes.fromhex("80000000"), "too_large", "the length is unsigned", framed=False)
bad("length_largest", bytes.fromhex("ffffffff"), "too_large", "4 GiB are announced", framed=False)
bad("http", b"GET / HTTP/1.1\r\n\r\n", "too_large", "another protocol's bytes are a length", framed=False)
bad("length_largest_first", bytes.fromhex("ffffffff"), "too_large", "the same before HELLO", after_hello=False,
    framed=False)

# not one array
malformed("payload_nil", None, "not an array")
malformed("payload_integer", 8, "not an array")
malformed("payload_text", "hit", "not an array")
malformed("payload_bin", b"hit", "not an array")
malformed("payload_map", {"op": 8}, "not an array")
malformed("payload_reserved", b"\xc1", "the byte MessagePack never uses")
malformed("payload_ext", bytes.fromhex("d40100"), "an extension type")
malformed("payload_float", bytes.fromhex("ca00000000"), "a float")
malformed("array_empty", [], "no op")
malformed("array_two", pack([8, 1]) + pack([8, 2]), "two arrays in one frame")
malformed("trailing_nil", pack([8, 1]) + b"\xc0", "a byte after the array")
malformed("trailing_after_hit", pack([3, 7, "api", U1, 1]) + b"\x00", "a byte after the array")
malformed("trailing_after_ignored", pack([8, 1, "later"]) + b"\x00", "a byte after an array with further elements")
malformed("truncated_array", join(b"\x95", 3, 7, "api", U1), "five elements announced, four there")
malformed("truncated_text", join(b"\x93", 3, 7, b"\xa5api"), "a text ends after the frame")
malformed("truncated_text_head", join(b"\x93", 3, 7, b"\xd9"), "the length of a text is missing")
malformed("truncated_integer", bytes.fromhex("9208ce0001"), "an integer ends after the frame")
malformed("truncated_head_only", bytes.fromhex("92"), "nothing after the array's head")
malformed("truncated_array16_head", bytes.fromhex("dc00"), "half a head")
malformed("truncated_descriptor", join(b"\x94", 3, 7, "api", b"\x91\x92\xa4user"), "a descriptor ends after the frame")
malformed("truncated_in_ignored", join(b"\x93", 8, 1, b"\xc4\x05abc"), "an ignored element ends after the frame")
malformed("truncated_map", join(b"\x97", 3, 7, "api", U1, 1, None, b"\x82\xa3all\xc3"), "a map ends after the frame")
malformed("array32_bomb", bytes.fromhex("ddffffffff030790"), "2^32-1 elements announced in eight bytes")
malformed("array32_bomb_descriptors", join(b"\x94", 3, 7, "api", b"\xdd\xff\xff\xff\xff"), "2^32-1 descriptors announced")
malformed("array32_bomb_ignored", join(b"\x93", 8, 1, b"\xdd\xff\xff\xff\xff\xc0"), "2^32-1 ignored elements announced")
malformed("array32_bomb_filled", bytes.fromhex("ddffffffff") + b"\x01" * 16379, "2^32-1 elements, the largest frame full")
malformed("map32_bomb_cost", join(b"\x95", 3, 7, "api", U1, b"\xdf\xff\xff\xff\xff"), "2^32-1 units announced")
malformed("map32_bomb_options", join(b"\x97", 3, 7, "api", U1, 1, None, b"\xdf\xff\xff\xff\xff\xa3all\xc3"),
          "2^32-1 options announced")
malformed("str32_bomb", join(b"\x93", 3, 7, b"\xdb\xff\xff\xff\xffapi"), "a text of 4 GiB announced")
malformed("bin32_bomb", join(b"\x97", 3, 7, "api", U1, 1, None, b"\x81\xa4idem\xc6\xff\xff\xff\xff"),
          "an idem of 4 GiB announced")

# types that are not part of the protocol
malformed("float32_cost", join(b"\x95", 3, 7, "api", U1, b"\xca\x3f\x80\x00\x00"), "cost 1.0")
malformed("float64_cost", join(b"\x95", 3, 7, "api", U1, b"\xcb\x3f\xf0\x00\x00\x00\x00\x00\x00"), "cost 1.0")
malformed("float_nan", join(b"\x95", 3, 7, "api", U1, b"\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00"), "cost not a number")
malformed("float_id", bytes.fromhex("9208ca3f800000"), "id 1.0")
malformed("float_in_ignored_element", join(b"\x93", 8, 1, b"\xca\x00\x00\x00\x00"), "a float in an ignored element")
malformed("float_in_unknown_option", join(b"\x97", 3, 7, "api", U1, 1, None, b"\x81\xa1x\x91\xca\x00\x00\x00\x00"),
          "a float inside an unknown option")
malformed("ext_timestamp", join(b"\x93", 8, 1, b"\xd6\xff\x00\x00\x00\x00"), "a timestamp")
for name, data in {"fixext1": "d40100", "fixext2": "d5010000", "fixext8": "d701" + "00" * 8,
                   "fixext16": "d801" + "00" * 16, "ext8": "c7000100", "ext16": "c8000001", "ext32": "c90000000001"}.items():
    malformed(f"ext_{name}", join(b"\x93", 8, 1, bytes.fromhex(data)), "an extension type in an ignored element")
malformed("reserved_byte", join(b"\x93", 8, 1, b"\xc1"), "the byte MessagePack never uses")

# depth
malformed("depth_5_arrays", [8, 1, nested(4)], "an ignored element reaches depth 5")
malformed("depth_5_map_in_option", [3, 7, "api", U1, 1, None, {"x": [[{}]]}], "an unknown option reaches depth 5")
malformed("depth_1000", b"\x91" * 1000 + b"\xc0", "a thousand arrays in each other")
malformed("depth_4000", b"\x91" * 4000, "the same, never closed")
malformed("depth_maps", join(b"\x93", 8, 1, b"\x81\xa1a" * 500, b"\xc0"), "five hundred maps in each other")

# texts
for name, data in {"lone_continuation": "80", "cut": "c3", "overlong": "c0af", "surrogate": "eda080", "above": "f4908080",
                   "latin1": "e9"}.items():
    text = bytes.fromhex(data)
    malformed(f"utf8_{name}", join(b"\x95", 3, 7, "api", b"\x91\x92\xa1v" + bytes([0xA0 | len(text)]) + text, 1),
              "a value is not UTF-8")
malformed("utf8_domain", join(b"\x94", 3, 7, b"\xa1\xff", []), "a domain that is not UTF-8")
malformed("utf8_key", join(b"\x95", 3, 7, "api", b"\x91\x92\xa1\xff\xa1v", 1), "an attribute key that is not UTF-8")
malformed("utf8_map_key", join(b"\x97", 3, 7, "api", U1, 1, None, b"\x81\xa1\xff\xc0"), "an option's key is not UTF-8")
malformed("utf8_in_ignored_element", join(b"\x93", 8, 1, b"\xa1\xff"), "a text in an ignored element")
malformed("utf8_beats_invalid", join(b"\x95", 3, 7, "", [["v", Raw(b"\xa1\xff")]], 1),
          "a bad field comes first, the bad text decides")

# keys of maps
malformed("key_integer", [3, 7, "api", U1, 1, None, Raw("8101c3")], "an option's key is a number")
malformed("key_nil", [3, 7, "api", U1, Raw("81c001")], "a unit is nil")
malformed("key_bin", [3, 7, "api", U1, Raw("81c4017401")], "a unit is bin")
malformed("key_array", [8, 1, Raw("819001")], "a key is an array")
malformed("key_twice_option", [3, 7, "api", U1, 1, None, twice(("all", True), ("all", True))], "an option twice")
malformed("key_twice_unknown", [3, 7, "api", U1, 1, None, twice(("x", 1), ("x", 2))], "an unknown option twice")
malformed("key_twice_unit", [3, 7, "api", U1, twice(("tokens", 1), ("tokens", 1))], "a unit twice")
malformed("key_twice_width", [3, 7, "api", U1, twice(("tokens", 1), (str8("tokens"), 1))], "a unit twice, once in a wider form")
malformed("key_twice_amount", [5, 7, "api", U1, twice(("tokens", 1), ("tokens", -1))], "a unit twice")
malformed("key_twice_info", [0, 0, 1, twice(("pool", "a"), ("pool", "a"))], "a HELLO key twice", after_hello=False)
malformed("key_twice_missed", [3, 7, "api", U1, 1, None, {"missed": twice(("timeout", 1), ("timeout", 1))}], "a reason twice")
malformed("key_twice_nil", [3, 7, "api", U1, 1, None, twice(("idem", None), ("idem", "x"))], "an option twice, once nil")
malformed("key_twice_in_ignored", [8, 1, [twice(("", 1), ("", 2))]], "a repeated empty key in an ignored element")
THOUSANDS = [(f"{n:x}", None) for n in range(2500)]
malformed("key_twice_of_2500", join(b"\x93", 8, 1, struct.pack(">BH", 0xDE, 2501),
                                    *[part for pair in THOUSANDS + [("9c3", None)] for part in pair]),
          "one key of 2501 comes twice")
malformed("key_twice_many_units", [3, 7, "api", U1, Raw(b"\xde\x00\x0a" + b"".join(
    pack(f"u{n % 9}") + b"\x01" for n in range(10)))], "one unit of ten comes twice")
malformed("keys_5000_alike", join(b"\x93", 8, 1, struct.pack(">BH", 0xDE, 5000), b"\xa1k\xc0" * 5000),
          "five thousand keys, all the same")

# op and id
for name, value in {"nil": None, "negative": -1, "text": "3", "bool": True, "array": [3], "map": {}, "bin": b"\x03",
                    "least": -(2**63)}.items():
    malformed(f"op_{name}", [value, 7, "api", U1, 1], "the op is not an unsigned integer")
for name, value in {"negative": -1, "text": "7", "bool": False, "array": [], "map": {}, "bin": b"\x07"}.items():
    malformed(f"id_{name}", [3, value, "api", U1, 1], "the id is not an unsigned integer")
malformed("id_text_release", [2, "7", 5, 0], "the id is neither nil nor an unsigned integer")
malformed("id_text_unknown_op", [99, "7"], "the op is unknown, but the id is not an unsigned integer")
bad("op_9", [9, 7], "unknown_op", "the first number without a meaning", id=7)
bad("op_largest", [2**64 - 1, 7, "x"], "unknown_op", "the largest number", id=7)
bad("op_unknown_with_anything", [200, 7, {"x": []}, None], "unknown_op", "what an unknown op carries is its own", id=7)
bad("op_unknown_without_id", [9], "unknown_op", "no id to answer to", id=None)
malformed("op_unknown_not_whole", join(b"\x93", 9, 7, b"\xca\x00\x00\x00\x00"), "an unknown op with a float is malformed")
invalid("id_missing", [3], "no id", id=None)
invalid("id_nil_hit", [3, None, "api", U1, 1], "a HIT needs an id", id=None)
invalid("id_nil_ping", [8, None], "a PING needs an id", id=None)
invalid("id_nil_renew", [6, None, 5], "a RENEW needs an id", id=None)
invalid("id_2_63", [3, 2**63, "api", U1, 1], "the id is above 2^63-1", id=None)
invalid("id_largest_ping", [8, 2**64 - 1], "the id is above 2^63-1", id=None)
invalid("id_2_63_release", [2, 2**63, 5, 0], "the id is above 2^63-1", id=None)

# the first frame
bad("first_hit", [3, 7, "api", U1, 1], "hello_required", "HIT before HELLO", after_hello=False, id=7)
bad("first_ping", [8, 7], "hello_required", "PING before HELLO", after_hello=False, id=7)
bad("first_unknown_op", [9, 7], "hello_required", "an unknown op before HELLO", after_hello=False, id=7)
bad("first_invalid_hit", [3, 7, "", [["user"]], -1], "hello_required", "its fields are not looked at", after_hello=False, id=7)
bad("first_release_without_reply", [2, None, 5, 0], "hello_required", "an ERROR before a close is always sent", after_hello=False, id=None)
malformed("first_malformed_hit", join(b"\x94", 3, 7, "api", b"\xca\x00\x00\x00\x00"), "bytes come first", after_hello=False)
malformed("first_op_text", ["hello", 0, 1], "the op is not an unsigned integer", after_hello=False)
bad("version_0", [0, 5, 0], "version", "version 0", after_hello=False, id=5)
bad("version_0_with_info", [0, 5, 0, {"pool": 5}], "version", "the version decides before the rest", after_hello=False, id=5)
invalid("hello_version_missing", [0, 5], "no version", id=5, after_hello=False)
invalid("hello_version_nil", [0, 5, None, {}], "no version", id=5, after_hello=False)
invalid("hello_version_negative", [0, 5, -1], "a version below 0", id=5, after_hello=False)
invalid("hello_version_text", [0, 5, "1"], "the version is a text", id=5, after_hello=False)
invalid("hello_id_nil", [0, None, 1], "HELLO needs an id", id=None, after_hello=False)
for name, info in {
    "info_array": [], "client_integer": {"client": 5}, "client_256": {"client": "c" * 256},
    "session_text": {"session": "0123456789abcdef"}, "session_15": {"session": b"x" * 15},
    "session_17": {"session": b"x" * 17}, "pid_negative": {"pid": -1}, "pid_2_32": {"pid": 2**32},
    "pool_empty": {"pool": ""}, "pool_slash": {"pool": "a/b"}, "pool_65": {"pool": "p" * 65}, "slots_text": {"slots": "8"},
    "slots_2_32": {"slots": 2**32}, "slots_negative": {"slots": -1}, "connection_0": {"connection": 0},
    "connection_text": {"connection": "1"}, "missed_array": {"missed": []}, "missed_negative": {"missed": {"timeout": -1}},
    "abandoned_map": {"abandoned": {}}, "abandoned_flat": {"abandoned": [1, 5]},
}.items():
    invalid(f"hello_{name}", [0, 5, 1, info], "a known key of info has a wrong type or range", id=5, after_hello=False)
invalid("hello_again", [0, 5, 1], "HELLO comes once", id=5)

# fields
for name, value in {"missing": Raw(b""), "nil": None, "integer": 5, "bin": b"api", "empty": "", "65": "d" * 65, "colon": "a:b",
                    "slash": "a/b", "newline": "a\n", "nul": "\0", "delete": "\x7f", "c1": "\x85"}.items():
    payload = [3, 7] if name == "missing" else [3, 7, value, U1, 1]
    invalid(f"domain_{name}", payload, "the domain is no name")
for name, value in {"missing": None, "nil": None, "map": {"user": "u1"}, "text": "user", "flat": ["user", "u1"],
                    "odd": [["user"]], "odd_3": [["user", "u1", "path"]], "nine": [["a", "b"]] * 9,
                    "17_pairs": [["k", "v"] * 17], "inner_map": [{"user": "u1"}], "inner_nil": [None],
                    "key_nil": [[None, "u1"]], "value_nil": [["user", None]], "value_integer": [["user", 1]],
                    "value_bin": [["user", b"u1"]], "value_bool": [["user", True]], "value_1025": [["user", "x" * 1025]],
                    "key_empty": [["", "x"]], "key_65": [["k" * 65, "x"]], "key_colon": [["a:b", "x"]],
                    "key_slash": [["a/b", "x"]], "key_control": [["a\tb", "x"]], "key_integer": [[1, "x"]],
                    "second_odd": [["user", "u1"], ["x"]]}.items():
    payload = [3, 7, "api"] if name == "missing" else [3, 7, "api", value, 1]
    invalid(f"descriptors_{name}", payload, "the descriptors are not as they must be")
for name, value in {"negative": -1, "text": "1", "bool": True, "array": [1],
                    "unit_negative": {"tokens": -1}, "unit_nil": {"tokens": None},
                    "unit_text": {"tokens": "5"}, "unit_empty": {"": 1}, "unit_slash": {"a/b": 1}, "unit_65": {"u" * 65: 1}}.items():
    invalid(f"cost_{name}", [3, 7, "api", U1, value], "the cost is neither a number in range nor a map of units to such")
malformed("priority_not_utf8", join(b"\x96", 1, 7, "api", U1, 1, b"\xa1\xff"), "a priority is not UTF-8")
malformed("priority_float", join(b"\x96", 1, 7, "api", U1, 1, b"\xca\x3f\x80\x00\x00"), "the priority is 1.0")
for name, value in {
    "array": [], "text": "all", "false": False, "idem_empty": {"idem": ""}, "idem_bin_empty": {"idem": b""}, "idem_65": {"idem": "i" * 65},
    "idem_bin_65": {"idem": b"i" * 65}, "idem_integer": {"idem": 5}, "of_empty": {"of": ""}, "of_65": {"of": "i" * 65},
    "of_bin_65": {"of": b"i" * 65}, "of_negative": {"of": -1}, "of_2_63": {"of": 2**63}, "of_bool": {"of": True},
    "of_array": {"of": [5]}, "queued_negative": {"queued_us": -1},
    "queued_text": {"queued_us": "5"}, "max_wait_negative": {"max_wait_us": -5}, "max_wait_bool": {"max_wait_us": False},
    "all_integer": {"all": 1}, "all_text": {"all": "true"}, "missed_array": {"missed": []}, "missed_text": {"missed": {"timeout": "1"}},
    "abandoned_integer": {"abandoned": 5}, "abandoned_flat": {"abandoned": [1, 5]}, "abandoned_short": {"abandoned": [[1]]},
    "abandoned_nil": {"abandoned": [[None, 5]]}, "abandoned_id_2_63": {"abandoned": [[1, 2**63]]},
}.items():
    invalid(f"options_{name}", [4, 7, "api", U1, 1, None, value], "an option has a wrong type or range")
for name, value in {"missing": None, "nil": None, "negative": -1, "text": "5", "2_63": 2**63}.items():
    invalid(f"release_lease_{name}", [2, 7] if name == "missing" else [2, 7, value, 0], "the lease is not as it must be")
    invalid(f"renew_lease_{name}", [6, 7] if name == "missing" else [6, 7, value], "the lease is not as it must be")
for name, value in {"3": 3, "negative": -1, "text": "ok", "bool": True}.items():
    invalid(f"release_outcome_{name}", [2, 7, 5, value], "no such outcome")
invalid("release_silent", [2, None, "5", 0], "invalid, and without an id: nothing is sent", id=None, reply=False)
invalid("charge_silent", [5, None, "api", U1, "5"], "invalid, and without an id: nothing is sent", id=None, reply=False)
invalid("signal_silent", [7, None, "web", "lag", 1001], "invalid, and without an id: nothing is sent", id=None, reply=False)
malformed("release_malformed_without_id", join(b"\x94", 2, None, 5, b"\xca\x00\x00\x00\x00"), "an ERROR before a close is always sent")
for name, value in {"text": "5", "bool": True, "unit_nil": {"tokens": None}, "unit_colon": {"a:b": 1}}.items():
    invalid(f"charge_{name}", [5, 7, "api", U1, value], "the amount is neither an integer in range nor a map of units to such")
invalid("charge_options_array", [5, 7, "api", U1, 1, []], "the options are no map")
invalid("charge_descriptors_missing", [5, 7, "api"], "no descriptors")
for name, rest in {"pool_missing": [], "pool_nil": [None, "lag", 5], "pool_colon": ["a:b", "lag", 5], "name_missing": ["web"],
                   "name_empty": ["web", "", 5], "name_slash": ["web", "a/b", 5], "permille_missing": ["web", "lag"],
                   "permille_1001": ["web", "lag", 1001], "permille_negative": ["web", "lag", -1],
                   "permille_text": ["web", "lag", "5"]}.items():
    invalid(f"signal_{name}", [7, 7, *rest], "a field of SIGNAL is missing or out of range")


# ---------------------------------------------------------------------------------------------------------------- #


def good_rows():
    names = set()
    for name, direction, data, value, meaning, canonical in GOOD:
        assert name not in names, name
        names.add(name)
        assert 1 <= len(data) <= 16384, (name, len(data))
        check_good(name, data, value, canonical)
        yield {"name": name, "direction": direction, "hex": frame(data).hex(), "meaning": meaning, "canonical": canonical}


def bad_rows():
    names = set()
    for name, data, code, meaning, after_hello, id, answered in BAD:
        assert name not in names, name
        names.add(name)
        check_bad(name, data, code)
        yield {"name": name, "hex": data.hex(), "code": code, "number": NUMBERS[code], "closes": code in CLOSES,
               "after_hello": after_hello, "id": id, "reply": answered, "meaning": meaning}


try:
    import msgpack
except ImportError:
    msgpack = None


def check_good(name, data, value, canonical):
    if msgpack is None:
        return
    assert msgpack.unpackb(data) == value, name
    # The package writes the shortest form too; no other form is canonical.
    assert (not canonical) or msgpack.packb(value) == data, name


def check_bad(name, data, code):
    if msgpack is None or code in ("malformed", "too_large"):
        return
    assert isinstance(msgpack.unpackb(data[4:]), list), name


def render(rows):
    return "[\n" + ",\n".join(json.dumps(row, ensure_ascii=True) for row in rows) + "\n]\n"


def put(path, text):
    """Writes a file, or with --check fails if it differs."""
    if "--check" not in sys.argv[1:]:
        path.write_text(text)
    elif path.read_text() != text:
        sys.exit(f"{path} is not what {pathlib.Path(sys.argv[0]).name} writes")


def main():
    with_package = "held against msgpack" if msgpack else "msgpack is not installed: not held against it"
    for name, rows in {"good.json": good_rows(), "bad.json": bad_rows()}.items():
        put(HERE / name, render(rows))
    print(f"{len(GOOD)} good frames, {len(BAD)} bad ones; {with_package}")


if __name__ == "__main__":
    main()
