"""The codec against an independent one and malformed frames; tables of requests."""

import collections
import hashlib

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.protocol import FRAME_MAX, Fault, decode, encode, request

scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1)
scalars |= st.text(max_size=300) | st.binary(max_size=300)
level3 = st.lists(scalars, max_size=20) | st.dictionaries(st.text(max_size=40), scalars, max_size=20) | scalars
level2 = st.lists(level3, max_size=4) | st.dictionaries(st.text(max_size=40), level3, max_size=4) | scalars
messages = st.lists(level2, max_size=20)


@given(messages)
def test_encodes_like_the_reference(message):
    assert encode(message) == msgpack.packb(message)


@given(messages)
def test_decodes_the_reference(message):
    assert decode(msgpack.packb(message)) == message


@given(messages, st.data())
def test_incomplete_or_overlong_frames_are_malformed(message, data):
    payload = msgpack.packb(message)
    for broken in (payload[: data.draw(st.integers(0, len(payload) - 1))], payload + b"\xc0"):
        with pytest.raises(Fault):
            decode(broken)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_malformed(payload):
    try:
        message = decode(payload)
    except Fault:
        return
    assert isinstance(message, list)
    assert msgpack.unpackb(payload, strict_map_key=False) == message


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(payload, id=name)
        for name, payload in {
            "empty": b"",
            "not_an_array": b"\x05",
            "map": b"\x80",
            "float32": b"\x91\xca\x00\x00\x00\x00",
            "float64": b"\x91\xcb" + bytes(8),
            "fixext": b"\x91\xd4\x01\x00",
            "ext8": b"\x91\xc7\x00\x01",
            "unused": b"\x91\xc1",
            "not_utf8": b"\x91\xa1\xff",
            "surrogate": b"\x91\xa3\xed\xa0\x80",
            "key_twice": b"\x91\x82\xa1a\x01\xa1a\x02",
            "key_integer": b"\x91\x81\x01\x02",
            "key_array": b"\x91\x81\x90\x02",
            "too_deep": b"\x91\x91\x91\x91\x90",
            "map_too_deep": b"\x91\x91\x91\x91\x80",
            "count_beyond": b"\xdd\xff\xff\xff\xff",
            "map_count_beyond": b"\x91\xdf\xff\xff\xff\xff",
            "text_beyond": b"\x91\xdb\xff\xff\xff\xff",
            "bin_beyond": b"\x91\xc6\xff\xff\xff\xffx",
            "fixstr_beyond": b"\x91\xa5abc",
            "integer_cut": b"\x91\xce\x00\x00",
            "signed_cut": b"\x91\xd2\x00\x00",
            "trailing": b"\x90\x00",
        }.items()
    ],
)
def test_malformed_frames_raise(payload):
    with pytest.raises(Fault):
        decode(payload)


def test_four_levels_and_wide_forms_are_read():
    assert decode(b"\x91\x91\x91\x90") == [[[[]]]]
    wide = b"\xdc\x00\x04\xcf" + bytes(7) + b"\x05\xd3" + b"\xff" * 8 + b"\xdb\x00\x00\x00\x01a\xde\x00\x00"
    assert decode(wide) == [5, -1, "a", {}]


@pytest.mark.parametrize("value", [1.5, object(), 2**64, -(2**63) - 1, {1.0: 1}])
def test_refuses_to_encode_other_types(value):
    with pytest.raises(Fault):
        encode([value])


def pairs(attributes):
    return msgpack.unpackb(request("api", attributes, 1, None, {})[1])


def sha(text):
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@pytest.mark.parametrize(
    ("attributes", "descriptors"),
    [
        (None, [[]]),
        ({}, [[]]),
        ({"user": "u1"}, [["user", "u1"]]),
        ({"b": "1", "a": "2"}, [["b", "1", "a", "2"]]),  # the order is kept
        ({"user": None, "ip": ""}, [[]]),
        (
            {"n": 7, "t": True, "f": False, "b": b"raw", "x": 1.5},
            [["n", "7", "t", "true", "f", "false", "b", "raw", "x", "1.5"]],
        ),
        ({"b": b"\xff\xfe"}, [["b", "\ufffd\ufffd"]]),
        ({"s": "\ud800x"}, [["s", "?x"]]),
        ({"emoji": "🌊"}, [["emoji", "🌊"]]),
        ([("a", "1"), ("a", "2")], [["a", "1", "a", "2"]]),
        ({"v": "x" * 1024}, [["v", "x" * 1024]]),
        ({"v": "x" * 1025}, [["v", "x" * 960 + "~" + sha("x" * 1025)]]),
        # 960 bytes would end within a character
        ({"v": "x" + "é" * 600}, [["v", "x" + "é" * 479 + "~" + sha("x" + "é" * 600)]]),
        ([{"a": "1"}, {"b": "2", "c": None}, {}], [["a", "1"], ["b", "2"], []]),
        ([{"a": "1"}], [["a", "1"]]),
        ([], [[]]),
        ({f"k{i}": "v" for i in range(16)}, [[part for i in range(16) for part in (f"k{i}", "v")]]),
    ],
)
def test_attributes_as_they_are_sent(attributes, descriptors):
    assert pairs(attributes) == descriptors


@pytest.mark.parametrize(
    "attributes",
    [
        {f"k{i}": "v" for i in range(17)},
        [(f"k{i}", "v") for i in range(17)],
        {"a:b": "1"},
        {"a/b": "1"},
        {"": "1"},
        {"a\n": "1"},
        {"a\x85": "1"},
        {"k" * 65: "1"},
        {"é" * 33: "1"},
        {1: "1"},
    ],
)
def test_invalid_requests_are_not_encoded(attributes):
    with pytest.raises(Fault):
        request("api", attributes, 1, None, {})


@pytest.mark.parametrize("number", [-1, -32, -33, -128, -129, -(2**15), -(2**15) - 1, -(2**31), -(2**31) - 1, -(2**63)])
def test_numbers_below_0_take_the_shortest_form(number):
    assert encode(number) == msgpack.packb(number) and decode(encode([number])) == [number]


@pytest.mark.parametrize("cost", [0, 1, 2**32 - 1, {"requests": 1, "tokens": 800}, {}])
def test_costs_are_written(cost):
    assert msgpack.unpackb(request("api", None, cost, None, {})[2]) == cost


def test_the_longest_values_become_digests_until_the_frame_fits():
    values = [f"{i:02}" + "x" * (1_000 + i % 2) for i in range(16)]
    body = b"".join(request("api", {f"k{i}": value for i, value in enumerate(values)}, 1, None, {}))
    assert b"~" not in body  # it fits
    wide = {"k" * 64 if i == 0 else f"{i:064}": value + "y" * 20 for i, value in enumerate(values)}
    body = b"".join(request("api", wide, 1, None, {}))
    sent = msgpack.unpackb(b"\x93" + body)[1][0][1::2]
    assert len(body) <= FRAME_MAX - 11
    shortened = [i for i, value in enumerate(sent) if value.startswith("~")]
    assert shortened == [1, 3][: len(shortened)] and shortened  # the longest, the first of equal ones
    assert sent[1] == "~" + sha(values[1] + "y" * 20)


def test_the_longest_value_of_any_descriptor_becomes_a_digest():
    several = [{f"k{i}": "x" * 1_020 for i in range(8)}, {f"k{i}": "y" * 1_024 for i in range(8)}, {"z": "z"}]
    sent = msgpack.unpackb(request("api", several, 1, None, {})[1])
    assert [value[0] for value in sent[0][1::2]] == ["x"] * 8 and sent[2] == ["z", "z"]
    assert [value[0] for value in sent[1][1::2]][:1] == ["~"]


def test_long_values_with_equal_prefixes_stay_distinct():
    one, other = pairs({"v": "x" * 10**6 + "1"}), pairs({"v": "x" * 10**6 + "2"})
    assert one != other


@pytest.mark.parametrize(
    ("seconds", "expected"), [(0, 0), (0.07, 70_000), (0.0000001, 1), (1, 1_000_000), (-3, 0), (1e-9, 1), (2.5e-6, 3)]
)
def test_durations_are_rounded_up(played, client, seconds, expected):
    assert client.hit("api", queued=seconds)
    assert played.seen[-1][6] == {"queued_us": expected}


@pytest.mark.parametrize("kind", [list, tuple, collections.deque])
def test_any_sequence_of_mappings_is_several_descriptors(kind):
    several = kind([{"user": "u1"}, {"org": 3}])
    elements = request("api", several, 1, None, {})
    assert msgpack.unpackb(elements[1]) == [["user", "u1"], ["org", "3"]]
    pairs_of_one = request("api", kind([("user", "u1"), ("org", 3)]), 1, None, {})
    assert msgpack.unpackb(pairs_of_one[1]) == [["user", "u1", "org", "3"]]
