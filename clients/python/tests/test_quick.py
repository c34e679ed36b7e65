"""Fast paths: plain decisions, waiting under signals, and replaced sockets, with the same results as the slow ones."""

import enum
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import msgpack
import pytest
from daemons import ALLOW, PATIENT, frame
from hypothesis import example, given
from hypothesis import strategies as st
from test_client import SLACK

import tidegate
from tidegate import Decision, Fault
from tidegate.connection import match_decision
from tidegate.protocol import decode, request

VECTORS = pathlib.Path(__file__).resolve().parents[3] / "tests/vectors"
GOOD = json.loads((VECTORS / "good.json").read_text())
REPLIES = [bytes.fromhex(vector["hex"]) for vector in GOOD if vector["direction"] == "reply"]
FIELDS = ("allowed", "verdict", "status", "rule", "limit", "window", "remaining", "reset_after", "retry_after", "wait")
FIELDS += ("lease", "notes", "help", "extra", "digest", "degraded", "reason")
SOURCE = pathlib.Path(tidegate.__file__).resolve().parents[1]


def at_once(payload):
    """Returns the result of `Connection.ask` for elements from the verdict on, if its fast path reads them."""
    if len(payload) < 2 or not (match := match_decision(payload[1])(payload, 0)):
        return None
    decision = Decision.__new__(Decision)
    decision._read, decision.allowed = match, payload[0] in (0, 3)
    return decision


def same(payload):
    """Compares the fast path, if it applies, with the full decoder."""
    quick = at_once(payload)
    if quick is None:
        return False
    slow = Decision(decode(b"\x9b" + payload))
    assert [getattr(quick, name) for name in FIELDS] == [getattr(slow, name) for name in FIELDS]
    return True


sizes = st.none() | st.integers(0, 2**63 - 1) | st.integers(0, 300)
rules = st.none() | st.text(min_size=1, max_size=40) | st.from_regex(r"[a-z-]{1,31}", fullmatch=True)
rates = st.none() | st.text(max_size=20) | st.from_regex("[0-9]{1,9}/[0-9]{0,2}(s|min|month)", fullmatch=True)
digests = st.text(max_size=40) | st.from_regex("[0-9a-f]{32}", fullmatch=True)
refusals = st.fixed_dictionaries({}, optional={"rate": rates, "blocked": st.booleans(), "digest": digests})


def is_plain(text, shortest=0, longest=31):
    return text is None or (shortest <= len(text) <= longest and text.isascii() and text.isprintable())


@given(st.integers(0, 4), rules, st.lists(sizes, min_size=6, max_size=6))
def test_fast_and_full_decoder_agree(verdict, rule, numbers):
    payload = msgpack.packb([verdict, rule, *numbers, None, None, None])[1:]
    assert same(payload) == is_plain(rule)


@given(refusals)
@example({"rate": "1/s", "digest": 32 * "0"})
@example({"rate": 15 * "1", "blocked": True, "digest": 32 * "f"})
def test_fast_and_full_decoder_agree_on_refusals(extra):
    payload = msgpack.packb([1, "per-user", 40, 2_000_000, 0, 50_000, 50_000, None, None, None, extra])[1:]
    known = re.fullmatch("[0-9a-f]{32}", extra.get("digest", ""))
    known = known and list(extra) in (["digest"], ["rate", "digest"], ["rate", "blocked", "digest"])
    if "rate" in extra:
        known = known and extra["rate"] is not None and is_plain(extra["rate"], 3, 15)
    assert same(payload) == bool(known and extra.get("blocked", True))


@pytest.mark.parametrize("name", ["decision_digest", "decision_digest_alone", "decision_blocked"])
def test_fast_decoder_reads_refusals(name):
    [vector] = [vector for vector in GOOD if vector["name"] == name]
    payload = bytes.fromhex(vector["hex"])[7:]
    assert same(payload)
    for at in range(len(payload)):
        for byte in range(256):
            same(payload[:at] + bytes((byte,)) + payload[at + 1 :])


@given(st.sampled_from([r for r in REPLIES if r[5] == 1]), st.integers(0, 300), st.integers(0, 255))
def test_no_changed_byte_is_trusted_unread(reply, at, byte):
    payload = bytearray(reply[7:])
    payload[at % len(payload)] = byte
    same(bytes(payload))  # the full decoder would raise a Fault here


@given(st.binary(max_size=60))
def test_fast_and_full_decoder_agree_on_any_bytes(payload):
    same(payload)


def test_fast_decoder_skips_other_frames():
    whole = msgpack.packb([0, "r", 1, 2, 3, 4, 5, 6, None, None, None])[1:]
    assert same(whole) and not any(at_once(broken) for broken in (whole + b"\xc0", whole[:-1], whole[1:], b""))


class Name(str, enum.Enum):
    """Names equal to plain ones, with another text."""

    USER = "user"


names = st.sampled_from(["user", "plan", "é", Name.USER])
values = st.text(max_size=40) | st.sampled_from([None, 7, True, b"u1", Name.USER, 31 * "x", 32 * "x", 2_000 * "x"])


@given(st.dictionaries(names, values, max_size=3))
@example({"user": "u1"})
@example({Name.USER: "u1"})
def test_fast_and_full_encoder_agree(attributes):
    assert request("api", attributes, 1, None, {}) == request("api", attributes, 1, None, {"idem": "k"})[:3]


@pytest.mark.parametrize("asked", [1, 127, 128, 254, 255, 256, 65_534, 65_535, 65_536, 2**32])
def test_ids_of_every_width(played, client, asked):
    client.hit("api")
    client._idle[0].asked = asked - 1
    for number in (asked, asked + 1):
        assert not client.hit("api").degraded and played.seen[-1][1] == number


@pytest.mark.parametrize("wrong", [0, 2, 257, 300 + 65_536])
def test_a_wrong_id_of_any_width_is_malformed(played, client, wrong):
    client.hit("api")
    client._idle[0].asked = 299
    played.script = lambda connection, message: [1, wrong, *ALLOW]
    assert client.hit("api").reason == "protocol"


def test_fast_decoder_skips_two_replies(played, client):
    client.hit("api")
    played.script = lambda connection, message: frame([1, message[1], *ALLOW]) * 2
    assert client.hit("api").rule == "per-user"
    played.script = lambda connection, message: [1, message[1], *ALLOW]
    assert not client.hit("api").degraded
    assert client.stats() == {"missed": {}, "refused": {}, "connections": 1, "breaker_open": False}
    assert [message[3]["connection"] for message in played.seen if message[0] == 0] == [1, 2]


@pytest.fixture
def interval():
    """A timer that interrupts every call of this thread, like a profiler's."""
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_signals_do_not_extend_the_deadline(played, make_client, interval):
    client = make_client()
    client.hit("api")  # so that the connection has no pending input
    client._timeout = 0.1
    played.script = lambda connection, message: None
    interval(0.012)
    started = time.monotonic()
    assert client.hit("api").reason == "timeout"
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert 0.1 <= time.monotonic() - started < 0.1 + SLACK


def test_reads_a_reply_after_the_blocking_read(played, make_client):
    client = make_client(timeout=PATIENT)
    client.hit("api")
    played.script = lambda connection, message: (time.sleep(0.1), [1, message[1], *ALLOW])[1]
    assert [client.hit("api").reason for _ in range(3)] == [None] * 3
    assert client.stats()["connections"] == 1 and client._idle[0].socket.getblocking()


def test_a_short_deadline_uses_polling(played, make_client, monkeypatch):
    client = make_client(timeout=0.004)
    played.script = lambda connection, message: None
    assert client.hit("api").degraded
    client._timeout = PATIENT
    played.script = lambda connection, message: [1, message[1], *ALLOW]
    assert not client.hit("api").degraded and client._idle[0].blocks
    monkeypatch.setattr(tidegate.connection, "BLOCKING_MIN", 2 * PATIENT)
    client = make_client()
    assert [client.hit("api").reason for _ in range(3)] == [None] * 3 and not client._idle[0].blocks


def test_a_fields_first_reader_may_be_any_thread(played, client):
    for _ in range(50):
        decision, got = client.hit("api"), []
        threads = [threading.Thread(target=lambda d=decision, g=got: g.append((d.rule, d.limit))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert got == [("per-user", 40)] * 4


def test_a_decision_has_no_other_attributes(played, client):
    decision = client.hit("api")
    assert not hasattr(decision, "nonsense") and not hasattr(decision, "_nonsense") and decision.rule == "per-user"
    with pytest.raises(Fault):
        Decision([9])


GREEN = """
from gevent import monkey; monkey.patch_all()
import sys, time, gevent, tidegate
client = tidegate.Client(sys.argv[1], timeout=float(sys.argv[2]))
started = time.monotonic()
asked = [gevent.spawn(client.hit, "api", {"user": f"u{i}"}) for i in range(10)]
gevent.joinall(asked)
assert all(not connection.blocks for connection in client._connections())
print(time.monotonic() - started, *(job.value.reason for job in asked))
"""


def green(path, timeout):
    command = [sys.executable, "-c", GREEN, path, str(timeout)]
    environment = os.environ | {"PYTHONPATH": str(SOURCE)}
    took, *reasons = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()
    return float(took), reasons


def test_under_gevent_calls_wait_concurrently(played):
    pytest.importorskip("gevent")

    def slow(connection, message):
        time.sleep(0.3)
        return [1, message[1], *ALLOW]

    played.script = slow
    took, reasons = green(played.path, PATIENT)
    assert reasons == ["None"] * 10 and took < 10 * 0.3


def test_under_gevent_the_deadline_is_kept(played):
    pytest.importorskip("gevent")
    played.script = lambda connection, message: None
    took, reasons = green(played.path, 0.2)
    assert set(reasons) <= {"timeout", "breaker"} and took < 0.2 + SLACK


def test_detects_replaced_sockets(played, client, monkeypatch):
    class Stand(socket.socket):
        """Like a library that replaces sockets."""

    monkeypatch.setattr(socket, "socket", Stand)
    assert client.check() and not client._idle[0].blocks
    assert not client.hit("api").degraded
