"""The client and the real daemon: the bound of a token bucket, restarts, bad input, concurrent requests."""

import os
import socket
import threading
import time

import pytest
import tidegate
from tidegate.decorators import callback_failed

RULES = """
domain: api
limits:
  - {name: per-user, key: [user], rate: 20/s, burst: 40, help: "https://example.com/limits"}
  - {name: writes, match: {method: [POST, PUT], path: "/v1/*"}, key: [user], rate: 1/min, burst: 2}
  - {name: new, key: [ip], rate: 1/min, mode: shadow}
"""


@pytest.fixture
def asked(daemon, make_client):
    """A client of a running daemon."""
    (daemon.rules / "api.yaml").write_text(RULES)
    daemon.start()
    return make_client(socket=daemon.socket, timeout=10.0)


def test_fields_of_a_decision(asked):
    assert asked.check()
    decision = asked.hit("api", {"user": "u1"})
    assert (decision.verdict, decision.rule, decision.limit, decision.window) == ("allow", "per-user", 40, 2.0)
    assert (decision.remaining, decision.lease, decision.degraded) == (39, None, False)
    assert 0 < decision.reset_after <= 0.05
    assert asked.peek("api", {"user": "u2"}).remaining == 40
    assert asked.hit("api", {"user": "u2"}, cost=40).remaining == 0
    refused = asked.hit("api", {"user": "u2"}, cost=20)
    assert (refused.verdict, refused.status) == ("limit", 429) and 0 < refused.retry_after <= 1.0
    assert refused.help == "https://example.com/limits" and refused.headers()["Retry-After"] == "1"
    never = asked.hit("api", {"user": "u1"}, cost=41)
    assert (never.verdict, never.retry_after) == ("limit", None) and "Retry-After" not in never.headers()
    assert asked.hit("elsewhere", {"user": "u1"}).rule is None
    assert asked.hit("api").rule is None


def test_charges_all_rules_or_none(asked):
    write = {"user": "u1", "method": "POST", "path": "/v1/charges"}
    assert [asked.acquire("api", write).allowed for _ in range(4)] == [True, True, False, False]
    assert asked.acquire("api", write).rule == "writes"
    assert asked.peek("api", {"user": "u1"}).remaining >= 38  # refused requests cost nothing here


def test_a_shadow_rule_is_noted(asked):
    decisions = [asked.hit("api", {"ip": "192.0.2.1"}) for _ in range(3)]
    assert all(decisions) and decisions[-1].notes == [("shadow", "new")]


def test_admitted_in_any_span_is_at_most_burst_and_rate(asked):
    admitted = []
    until = time.monotonic() + 2.0
    while (before := time.monotonic()) < until:
        decision = asked.hit("api", {"user": "greedy"})
        if decision:
            admitted.append((before, time.monotonic()))
        else:
            assert 0 < decision.retry_after <= 0.05
    for i, (first, _) in enumerate(admitted):
        for j in range(i, len(admitted)):
            # From before the first request to after the last reply: the span is at most this.
            assert j - i + 1 <= 40 + 20 * (admitted[j][1] - first) + 1e-6
    assert len(admitted) >= 40 + 20 * 1.5


def test_refused_until_retry_after_and_admitted_then(asked):
    assert asked.hit("api", {"user": "u1"}, cost=40)
    for _ in range(5):
        # After a pause of the machine the caller has more tokens: spend them first.
        refused = next(one for one in (asked.hit("api", {"user": "u1"}, cost=2) for _ in range(100)) if not one)
        time.sleep(refused.retry_after)
        assert asked.hit("api", {"user": "u1"}, cost=2)


def test_threads_share_one_limit(asked):
    allowed = []

    def ask():
        allowed.extend(asked.hit("api", {"user": "shared"}).allowed for _ in range(50))

    started = time.monotonic()
    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 40 <= sum(allowed) <= 40 + 20 * (time.monotonic() - started)
    assert asked.stats()["missed"] == {}


def test_any_attribute_is_taken(asked):
    odd = ["x" * 10**6, "🌊" * 500, b"\xff", "\ud800", "a\x00b", -1, "y" * 1024]
    for value in odd:
        decision = asked.hit("api", {"user": value})
        assert decision.rule == "per-user" and decision.remaining == 39
    assert (
        asked.hit("api", {f"k{i}" + "k" * 60: "x" * 1024 for i in range(10)} | {"user": "w" * 1024}).rule == "per-user"
    )
    assert asked.hit("api", {f"k{i:02}": "x" * 1024 for i in range(15)} | {"user": "v" * 1024}).degraded is False
    assert asked.stats()["missed"] == {}


def test_options_and_reports_are_taken(asked):
    callback_failed(asked, "user", KeyError())
    asked._report_later({"abandoned": [[1, 5], [2, 900]]})
    decision = asked.acquire("api", {"user": "u1"}, priority="post", idem="x", queued=0.001, max_wait=0)
    assert not decision.degraded and asked._report == {}


@pytest.mark.parametrize("kill", [False, True], ids=["term", "kill"])
def test_a_restart(asked, daemon, kill):
    for _ in range(3):
        assert not asked.hit("api", {"user": "u1"}).degraded
    daemon.stop(kill)
    decision = asked.hit("api", {"user": "u1"})
    assert decision.allowed and decision.reason == "unreachable"
    daemon.start()
    until = time.monotonic() + 60
    while asked.hit("api", {"user": "u1"}).degraded:  # for 50 to 100 ms after a refused connection
        assert time.monotonic() < until
        time.sleep(0.005)
    daemon.stop(kill)
    daemon.start()
    assert not asked.hit("api", {"user": "u1"}).degraded  # a closed idle connection degrades no decision
    missed = asked.stats()["missed"]
    assert missed["unreachable"] == 1 and set(missed) <= {"unreachable", "breaker"}


def test_forked_children_send_their_own_requests(asked):
    assert asked.hit("api", {"user": "u1"})
    pids = []
    for _ in range(4):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                mine = [asked.hit("api", {"user": f"pid-{os.getpid()}"}) for _ in range(30)]
                code = 0 if all(d and not d.degraded and d.remaining >= 9 for d in mine) else 1
            finally:
                os._exit(code)
        pids.append(pid)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids] == [0] * 4
    assert not asked.hit("api", {"user": "u1"}).degraded


def test_unknown_requests_degrade_without_opening_the_breaker(asked):
    decision = asked.acquire("api", {"user": "u1"})
    decision.lease = 77  # a field of a newer daemon
    decision.release()
    assert asked.hit("api", {"user": "u1"}).degraded is False and asked.stats()["breaker_open"] is False


def test_a_stopped_daemon_costs_the_deadline_and_then_nothing(daemon, make_client):
    (daemon.rules / "api.yaml").write_text(RULES)
    daemon.start()
    client = make_client(socket=daemon.socket, timeout=0.05)
    os.kill(daemon.process.pid, 19)  # SIGSTOP: the kernel still accepts connections for the daemon
    try:
        started = time.monotonic()
        decisions = [client.hit("api", {"user": "u1"}) for _ in range(1_000)]
        assert time.monotonic() - started < 1_000 * 0.05 / 5  # a fifth of the time without the breaker
        reasons = [decision.reason for decision in decisions]
        assert reasons[:3] == ["timeout"] * 3 and reasons.count("breaker") > 900
    finally:
        os.kill(daemon.process.pid, 18)
    until = time.monotonic() + 60
    while client.hit("api", {"user": "u1"}).degraded:
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_malformed_frame_gets_an_error(asked, daemon):
    """A malformed frame costs only its own connection."""
    with socket.socket(socket.AF_UNIX) as rude:
        rude.settimeout(5)
        rude.connect(daemon.socket)
        rude.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert rude.recv(100)[4:6] == b"\x94\x03"
        assert rude.recv(100) == b""
    assert isinstance(asked.hit("api"), tidegate.Decision) and asked.check()
