"""Leases: their end in every case, and renewal; charges and signals."""

import contextlib
import math
import os

import pytest
from daemons import ALLOW, LIMIT, frame
from test_client import clock, hits, in_child  # noqa: F401

import tidegate


def grant(connection, message):
    if message[0] == 1:
        return [1, message[1], *ALLOW, 76 + message[1]]
    return [2, message[1], True]


@pytest.fixture
def granting(played):
    played.script = grant
    return played


# -- releases ----------------------------------------------------------------------------------------------------------


def test_an_early_return_is_an_end_like_others(granting, client):
    def work():
        with client.limit("export"):
            return 7

    assert work() == 7
    assert granting.releases() == [[77, 0]]


@pytest.mark.parametrize("leave", ["continue", "break"])
def test_leaving_a_loop_releases(granting, client, leave):
    for _ in range(2):
        with client.limit("export"):
            if leave == "break":
                break
            continue
    assert granting.releases(1 if leave == "break" else 2)[0] == [77, 0]


def test_an_outcome_set_by_the_work_remains(granting, client):
    with client.limit("export") as decision:
        decision.release("error")
    assert client.check() and granting.releases() == [[77, 1]]


def test_an_interrupt_while_waiting_ends_the_lease(played, client, monkeypatch):
    def interrupted(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(tidegate, "sleep", interrupted)
    played.script = lambda connection, message: [1, message[1], 3, "hooks", 21, 1, 20, 1, 250_000, 77]
    with pytest.raises(KeyboardInterrupt), client.limit("hooks"):
        raise AssertionError("the block ran")
    assert played.releases() == [[77, 2]]


def test_nested_leases_are_separate(granting, client):
    with client.limit("export"), client.limit("export"):
        assert granting.releases(0) == []
    assert granting.releases(2) == [[78, 0], [77, 0]]


def test_a_refusal_has_nothing_to_release(played, client):
    played.script = lambda connection, message: [1, message[1], *LIMIT]
    with contextlib.suppress(tidegate.Denied), client.limit("export"):
        pass
    decision = client.acquire("export")
    decision.release()
    assert not decision.renew()
    assert client.check() and {message[0] for message in played.seen} == {0, 1, 8}


def test_an_unwritten_release_is_reported_with_the_next_request(granting, client, clock):  # noqa: F811
    first, second = client.acquire("export"), client.acquire("export")
    granting.script = lambda connection, message: frame(b"\xc1")
    hits(client, 3)  # the breaker opens
    first.release()
    second.release()
    assert granting.releases(0) == []
    granting.script = grant
    clock.now += 10
    assert client.acquire("export").lease
    report = granting.last_report()
    assert sorted(report["abandoned"]) == [[1, 1], [1, 2]] and report["missed"] == {"protocol": 3}


def test_a_lost_report_is_sent_again(granting, client):
    decision = client.acquire("export")
    client._until = math.inf  # simulates an open breaker
    decision.release()
    client._until = 0.0
    granting.script = lambda connection, message: frame(b"\xc1")
    client.hit("export")
    granting.script = grant
    client.acquire("export")
    assert granting.last_report() == {"missed": {"protocol": 1}, "abandoned": [[1, 1]]}


def test_a_release_after_a_close_takes_another_connection(granting, client):
    decision = client.acquire("export")
    granting.hang_up()
    decision.release()
    assert granting.releases() == [[77, 0]]
    first, second = [message[3] for message in granting.seen if message[0] == 0]
    assert first["session"] == second["session"] and (first["connection"], second["connection"]) == (1, 2)


def test_a_child_that_leaves_the_block_ends_nothing_of_its_parent(granting, client):
    def child():
        decision.release()
        return client.check()

    with client.limit("export") as decision:
        assert in_child(child)
    granting.releases(2)
    sessions = [message[3]["session"] for message in granting.seen if message[0] == 0]
    assert len(set(sessions)) == 2  # the daemon knows the session of the lease
    assert decision.lease is None


# -- decorated ---------------------------------------------------------------------------------------------------------


def test_a_generator_holds_the_lease_while_it_runs(granting, client):
    @client.limited("export", lambda org: {"org": org})
    def rows(org):
        got = yield f"{org} 1"
        yield got
        return "end"

    def outer():
        return (yield from rows("o1"))

    running = outer()
    assert [message[0] for message in granting.seen] == []  # no function has run
    assert next(running) == "o1 1" and running.send("sent") == "sent"
    assert granting.releases(0) == []
    with pytest.raises(StopIteration) as stopped:
        next(running)
    assert stopped.value.value == "end"
    assert granting.seen[1][2:] == ["export", [["org", "o1"]], 1] and granting.releases() == [[77, 0]]


@pytest.mark.parametrize("end", ["close", "throw", "raise", "forget"])
def test_an_unfinished_generator_drops_its_lease(granting, client, end):
    @client.limited("export")
    def rows():
        yield 1
        raise LookupError

    running = rows()
    next(running)
    with contextlib.suppress(LookupError):
        if end == "throw":
            running.throw(LookupError)
        elif end == "raise":
            next(running)
        elif end == "close":
            running.close()
    del running
    assert granting.releases() == [[77, 2]]


def test_a_generator_is_refused_where_it_starts(played, client):
    played.script = lambda connection, message: [1, message[1], *LIMIT]

    @client.limited("export")
    def rows():
        yield 1

    running = rows()
    with pytest.raises(tidegate.Denied):
        next(running)


def test_asynchronous_functions_raise_in_limited(client):
    async def run():
        pass

    async def rows():
        yield 1

    for function in (run, rows):
        with pytest.raises(TypeError, match="asynchronous"):
            client.limited("export")(function)


def test_the_priority_may_be_a_function_of_the_arguments(granting, client, caplog):
    @client.limited("export", {"kind": "daily"}, priority=lambda urgent: "critical" if urgent else None)
    def report(urgent):
        return urgent

    assert [report(True), report(False)] == [True, False]
    acquires = [message[2:] for message in granting.seen if message[0] == 1]
    assert acquires == [["export", [["kind", "daily"]], 1, "critical"], ["export", [["kind", "daily"]], 1]]
    with pytest.raises(TypeError):
        report()  # the caller's own exception passes unchanged
    assert "priority raised TypeError" in caplog.text


# -- renewals, charges, signals ----------------------------------------------------------------------------------------


def test_renew(granting, client):
    decision = client.acquire("export")
    assert decision.renew() is True and granting.seen[-1] == [6, 2, 77]
    granting.script = lambda connection, message: [2, message[1], False]
    assert decision.renew() is False and decision.lease == 77
    granting.script = lambda connection, message: frame(b"\xc1")
    assert decision.renew() is False
    decision.release()
    assert decision.renew() is False


@pytest.mark.parametrize(
    ("amount", "written"),
    [(1, 1), (812, 812), ({"tokens": 812}, {"tokens": 812}), (-5, -5), ({"tokens": -3}, {"tokens": -3})],
)
def test_charge(granting, client, amount, written):
    assert client.charge("api", {"user": "u1"}, amount) is True
    assert granting.seen[-1] == [5, 1, "api", [["user", "u1"]], written]
    granting.script = lambda connection, message: [2, message[1], False]
    assert client.charge("api", {"user": "u1"}) is False
    granting.script = lambda connection, message: [3, message[1], 11, "not yours"]
    assert client.charge("api") is False and client.stats()["connections"] == 1


@pytest.mark.parametrize(
    ("value", "permille"),
    [(0, 0), (0.4, 400), (1, 1000), (7, 1000), (-0.2, 0), (0.0004, 0), (math.inf, 1000), (10**400, 1000)],
)
def test_signal(granting, make_client, value, permille):
    client = make_client(pool="web")
    assert client.signal("loop_lag", value) is None
    assert client.check() and granting.requests()[0] == [7, None, "web", "loop_lag", permille]


@pytest.mark.parametrize(("name", "value"), [("a/b", 0.5), ("lag", math.nan), ("lag", None), ("lag", "much")])
def test_an_invalid_signal_is_logged(granting, client, caplog, name, value):
    client.signal(name, value)
    assert granting.seen == [] and len(caplog.messages) == 1


def test_all_of_it_without_a_daemon(make_client):
    client = make_client(socket="/nowhere")
    decision = client.acquire("export")
    assert decision and not decision.renew()
    decision.release()
    client.signal("lag", 0.5)
    assert not client.charge("api", None, 3) and client.stats()["missed"] == {"unreachable": 1}


def test_all_of_it_disabled(granting, make_client):
    client = make_client(enabled=False)
    with client.limit("export") as decision:
        assert not decision.renew()
    client.signal("lag", 0.5)
    assert not client.charge("api") and granting.seen == []


# -- slots of gunicorn -------------------------------------------------------------------------------------------------

STACK = """
def within(self, call, worker=None):
    return call()
"""


class Settings:
    threads, worker_connections = 4, 1_000


def worker(kind, pid):
    base = type(kind, (), {"cfg": Settings, "pid": pid})
    return type("Mine", (base,), {})()


@pytest.mark.parametrize(
    ("kind", "slots"),
    [("SyncWorker", 1), ("ThreadWorker", 4), ("AsyncWorker", 1_000), ("ASGIWorker", 0), ("Arbiter", 0)],
)
@pytest.mark.parametrize("place", ["self", "worker"])
def test_slots_are_found_on_the_stack(granting, make_client, kind, slots, place):
    space = {"__name__": "gunicorn.workers.some"}
    exec(STACK, space)
    mine = worker(kind, "[booting]" if place == "worker" else os.getpid())
    arguments = (None, make_client, mine) if place == "worker" else (mine, make_client)
    client = space["within"](*arguments)
    assert client.check() and granting.seen[0][3]["slots"] == slots


def test_slots_are_sent_once_per_pool_unless_configured(granting, make_client):
    space = {"__name__": "gunicorn.workers.some"}
    exec(STACK, space)
    mine = worker("ThreadWorker", os.getpid())
    within = lambda **given: space["within"](mine, lambda: make_client(**given))  # noqa: E731
    made = [within(pool="a"), within(pool="a"), within(pool="b"), within(pool="a", slots=7)]
    assert [client._info["slots"] for client in made] == [4, 0, 4, 7]


@pytest.mark.parametrize("pid", [os.getppid(), None])
def test_a_child_of_a_worker_has_no_slots(make_client, pid):
    space = {"__name__": "gunicorn.workers.some"}
    exec(STACK, space)
    assert space["within"](worker("SyncWorker", pid), make_client)._info["slots"] == 0


def test_recognizes_only_workers(make_client):
    space = {"__name__": "application.workers"}
    exec(STACK, space)
    assert space["within"](worker("SyncWorker", os.getpid()), make_client)._info["slots"] == 0
