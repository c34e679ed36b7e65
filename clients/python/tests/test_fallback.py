"""The fallback that limits while the daemon is unreachable."""

import asyncio
import os
import threading

import pytest
from daemons import ALLOW, Played
from test_client import in_child

import tidegate
from tidegate import fallback
from tidegate.fallback import Fallback, parse_rate
from tidegate.wsgi import Middleware


class Clock:
    now = 1_000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(fallback, "monotonic", made)
    return made


def hits(client, count, user="u1", **options):
    return [client.hit("api", {"user": user}, **options) for _ in range(count)]


def allowed(decisions):
    return [bool(decision) for decision in decisions]


def test_a_bucket_for_each_domain_and_set_of_attributes(make_client, clock):
    client = make_client(socket="/nowhere", fallback="2/s burst 3")
    assert allowed(hits(client, 5)) == [True] * 3 + [False] * 2
    assert allowed(hits(client, 4, "u2")) == [True] * 3 + [False]
    assert client.hit("other", {"user": "u1"}) and client.hit("api", {"user": "u1", "ip": "::1"})
    assert not client.hit("api", [("user", "u1")])  # the same attributes
    clock.now += 0.5
    assert allowed(hits(client, 2)) == [True, False]
    clock.now += 100
    assert allowed(hits(client, 4)) == [True] * 3 + [False]
    assert sum(client.stats()["missed"].values()) == 18 and client.stats()["refused"] == {}


def test_fields_of_a_fallback_decision(make_client, clock):
    client = make_client(socket="/nowhere", fallback="2/s burst 3")
    first, *_, last = hits(client, 4)
    assert (first.degraded, first.reason, first.verdict, first.rule, first.status) == (
        True, "fallback", "allow", None, 200,
    )
    assert (first.limit, first.window, first.remaining, first.retry_after) == (3, 1.5, 2, 0)
    assert (last.verdict, last.status, last.limit, last.remaining, last.retry_after) == ("limit", 429, 3, 0, 0.5)
    assert last.headers() == {"Retry-After": "1", "X-Ratelimit-Retry-After": "1"}
    assert client.hit("api", {"user": "u3"}, cost=4).retry_after is None
    assert client.hit("api", {"user": "u3"}, cost={"requests": 3, "tokens": 800})
    assert not client.hit("api", {"user": "u3"}, cost={"tokens": 800})  # one request
    assert client.hit("api", {"user": "u3"}, cost=0)


def test_after_its_retry_after_a_request_passes(make_client, clock):
    client = make_client(socket="/nowhere", fallback="7/3s")
    for _ in range(200):
        decision = hits(client, 1)[0]
        if not decision:
            clock.now += decision.retry_after
            assert hits(client, 1)[0]


def test_peek_charges_nothing(make_client, clock):
    client = make_client(socket="/nowhere", fallback="1/h")
    assert [client.peek("api", {"user": "u1"}).remaining for _ in range(3)] == [1] * 3
    assert allowed(hits(client, 2)) == [True, False] and not client.peek("api", {"user": "u1"})


def test_on_failure_decides_where_there_is_no_entry(make_client):
    client = make_client(socket="/nowhere", fallback={"per-user": "1/h"})
    assert allowed(hits(client, 3)) == [True] * 3
    assert allowed(hits(client, 3, on_failure="refuse")) == [False] * 3


def test_a_rule_is_remembered_by_domain_and_names(directory, make_client, clock):
    made = Played(str(directory / "s"))
    rules = {"api": "per-user", "login": "attempts", "other": "else"}
    made.script = lambda c, m: [1, m[1], 0, rules[m[2]], *ALLOW[2:]]
    client = make_client(fallback={"per-user": "2/h", "login/attempts": "1/h", "*": "3/h"})
    for domain in rules:
        client.hit(domain, {"user": "u1", "ip": None})
    made.stop()
    for domain, burst in (("api", 2), ("login", 1), ("other", 3)):
        got = [client.hit(domain, {"ip": None, "user": "u9"}) for _ in range(5)]
        assert allowed(got) == [True] * burst + [False] * (5 - burst), domain
        assert {one.limit for one in got} == {burst}
    assert client.hit("api", {"org": "o1"}).limit == 3  # other names: no rule is known


def test_buckets_and_rules_are_bounded(monkeypatch, make_client, directory):
    monkeypatch.setattr(fallback, "BUCKETS_MAX", 10)
    monkeypatch.setattr(fallback, "BOUND_MAX", 4)
    client = make_client(fallback={"per-user": "1/h", "*": "1/h"})
    made = Played(str(directory / "s"))
    for i in range(20):
        client.hit("api", {f"name{i}": "v"})
    made.stop()
    assert len(client._fallback._bound) == 4
    for i in range(100):
        assert client.hit("api", {"user": f"u{i}" * 100})
    assert len(client._fallback._buckets) == 10 and max(map(len, client._fallback._buckets)) <= 64
    assert not client.hit("api", {"user": "u99" * 100}) and client.hit("api", {"user": "u0" * 100})


def test_threads_share_a_bucket(make_client):
    client, passed = make_client(socket="/nowhere", fallback="500/day"), []
    threads = [threading.Thread(target=lambda: passed.extend(allowed(hits(client, 200)))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(passed) == 500


def test_a_child_of_a_fork_limits_by_itself(make_client):
    client = make_client(socket="/nowhere", fallback="1/day")
    client._fallback._lock.acquire()  # another thread holds the lock during the fork
    assert in_child(lambda: allowed(hits(client, 2)) == [True, False], os.fork)


def test_is_off_by_default_and_unused_while_the_daemon_answers(played, make_client):
    assert allowed(hits(make_client(socket="/nowhere"), 5)) == [True] * 5
    client = make_client(fallback="1/day")
    assert {d.reason for d in hits(client, 5)} == {None}


@pytest.mark.parametrize(
    ("text", "rate", "burst"),
    [("20/s", 20, 20), ("20/s burst 40", 20, 40), ("30/30s", 1, 30), ("60/min", 1, 60), ("3600/h burst 1", 1, 1)],
)
def test_rates(text, rate, burst):
    assert parse_rate(text) == (rate, burst)


@pytest.mark.parametrize(
    "wrong", ["", "20", "20/", "0/s", "20/s burst 0", "-1/s", "1.5/s", "20 / s", "20/0s", "20/year", 20, None, "9" * 11]
)
def test_an_invalid_rate_raises(client, wrong):
    for make in (
        lambda: Fallback(wrong),
        lambda: Fallback({"per-user": wrong}),
        lambda: tidegate.Client(fallback={"*": wrong}),
        lambda: Middleware(None, client, fallback={"*": wrong}),
    ):
        with pytest.raises(ValueError, match="help: write it like 20/s"):
            make()
    with pytest.raises(ValueError, match="names no rule"):
        Fallback({})


def test_fallback_of_a_call_must_be_made_before(client):
    with pytest.raises(ValueError, match="made once"):
        client.hit("api", fallback="20/s")


def test_in_middlewares_and_decorators(make_client):
    client, got = make_client(socket="/nowhere"), []
    limited = Middleware(lambda environ, start: [start("200 OK", []) or b""], client, "api", fallback="2/h")
    for _ in range(4):
        environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/"}
        limited(environ, lambda status, headers: got.append((status, dict(headers))))
    assert [status for status, _ in got] == ["200 OK"] * 2 + ["429 Too Many Requests"] * 2
    assert got[-1][1]["Retry-After"]

    @client.limited("api", fallback="1/h")
    def report():
        return 7

    assert report() == 7
    with pytest.raises(tidegate.Denied):
        report()


def test_in_asyncio():
    async def main():
        ac = tidegate.AsyncClient("/nowhere", fallback="2/h")
        return [await ac.hit("api", {"user": "u1"}) for _ in range(4)]

    decisions = asyncio.run(main())
    assert allowed(decisions) == [True] * 2 + [False] * 2 and {d.reason for d in decisions} == {"fallback"}
