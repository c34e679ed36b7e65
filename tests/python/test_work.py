"""Leases, counted by the real daemon: every permit is freed, however the work ends."""

import contextlib
import os
import signal
import time

import pytest
import tidegate

from servers import wait_until

MAX = 4
RULES = f"""
domain: api
concurrency:
  - {{name: at-once, match: {{job: export}}, key: [], max: {MAX}, expires: 1h}}
  - {{name: short, match: {{job: report}}, key: [], max: {MAX}, expires: 1s}}
limits:
  - {{name: tokens, match: {{job: model}}, key: [], unit: tokens, rate: 1000/h, max_debt: 1000}}
"""
EXPORT = {"job": "export"}


@pytest.fixture
def client(daemon, make_client):
    (daemon.rules / "api.yaml").write_text(RULES)
    daemon.start()
    return make_client(socket=daemon.socket)


def free(client, job="export"):
    return client.peek("api", {"job": job}).remaining


def test_a_lease_holds_and_frees_a_permit(client):
    with client.limit("api", EXPORT) as decision:
        assert decision.lease and (decision.rule, decision.remaining) == ("at-once", MAX - 1)
        assert free(client) == MAX - 1
    assert free(client) == MAX


def test_refuses_when_all_permits_are_taken(client):
    held = [client.acquire("api", EXPORT) for _ in range(MAX)]
    refused = client.acquire("api", EXPORT)
    assert (refused.verdict, refused.rule, refused.status) == ("limit", "at-once", 429) and refused.retry_after > 0
    with pytest.raises(tidegate.Denied), client.limit("api", EXPORT):
        pass
    held.pop().release()
    assert client.acquire("api", EXPORT)


def ends():
    """Ends of work, as functions of a client."""

    def returns(client):
        with client.limit("api", EXPORT):
            return

    def raises(client):
        with client.limit("api", EXPORT):
            raise LookupError

    def nested(client):
        with client.limit("api", EXPORT), client.limit("api", EXPORT):
            raise KeyboardInterrupt

    def generator(client):
        return list(client.limited("api", EXPORT)(lambda: (yield 1))())

    def left_generator(client):
        @client.limited("api", EXPORT)
        def rows():
            yield 1
            yield 2

        for _ in rows():
            break

    def decorated(client):
        @client.limited("api", EXPORT)
        def work():
            raise LookupError

        work()

    def set_outcome(client):
        with client.limit("api", EXPORT) as decision:
            decision.release("error")
            decision.release()

    return [returns, raises, nested, generator, left_generator, decorated, set_outcome]


@pytest.mark.parametrize("end", ends(), ids=lambda end: end.__name__)
def test_every_end_releases_the_lease(client, end):
    for _ in range(3):
        with contextlib.suppress(LookupError, KeyboardInterrupt):
            end(client)
    assert free(client) == MAX and client.stats()["missed"] == {}


def test_a_child_that_leaves_the_block_frees_nothing_of_its_parents(client):
    with client.limit("api", EXPORT) as decision:
        pid = os.fork()
        if pid == 0:
            decision.release()
            os._exit(0 if client.check() and free(client) == MAX - 1 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert free(client) == MAX - 1
    assert free(client) == MAX


def test_a_child_has_leases_of_its_own_that_end_with_it(client):
    pid = os.fork()
    if pid == 0:
        client.acquire("api", EXPORT)
        os._exit(0 if free(client) == MAX - 1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    wait_until(lambda: free(client) == MAX, 3)


@pytest.fixture
def paused(daemon):
    """Stops the daemon for a block, like a swapping machine."""

    @contextlib.contextmanager
    def pause():
        daemon.process.send_signal(signal.SIGSTOP)
        os.waitpid(daemon.process.pid, os.WUNTRACED)  # all of its threads have stopped
        try:
            yield
        finally:
            daemon.process.send_signal(signal.SIGCONT)

    return pause


def test_a_connection_closed_on_a_timeout_frees_nothing_else_of_its_session(client, paused):
    held = client.acquire("api", EXPORT)
    client._timeout = 0.05
    with paused():
        given_up = client.acquire("api", EXPORT)
    assert (given_up.reason, client.stats()["connections"]) == ("timeout", 0)
    client._timeout = 5.0
    # Held leases remain; abandoned requests that were granted all the same have none.
    wait_until(lambda: free(client) == MAX - 1)
    assert held.renew()
    held.release()
    assert free(client) == MAX


def test_a_release_with_open_breaker_is_reported_later(client, paused):
    held = client.acquire("api", EXPORT)
    client._timeout = 0.05
    with paused():
        assert [client.hit("api").reason for _ in range(3)] == ["timeout"] * 3
        held.release()
    client._timeout = 5.0
    client._until = time.monotonic()  # ends the breaker's pause
    wait_until(lambda: free(client) == MAX)


def test_renewed_leases_outlast_the_rules_time(client):
    decision, started = client.acquire("api", {"job": "report"}), time.monotonic()
    while time.monotonic() < started + 1.5:
        assert decision.renew() and free(client, "report") == MAX - 1
        time.sleep(0.05)
    wait_until(lambda: free(client, "report") == MAX, 5)  # no renewal follows
    assert not decision.renew()


def test_charges(client):
    tokens = lambda: client.peek("api", {"job": "model"}, {"tokens": 0}).remaining  # noqa: E731
    assert tokens() == 1000
    assert client.charge("api", {"job": "model"}, {"tokens": 812}, idem="answer-1")
    assert tokens() == 188
    assert not client.charge("api", {"job": "model"}, {"tokens": -500})  # a refund without `of` is refused
    assert client.charge("api", {"job": "model"}, {"tokens": -500}, of="answer-1")
    assert not client.charge("api", {"job": "model"}, {"tokens": -300}, of="answer-1")  # once
    assert tokens() == 688
    assert not client.charge("api", {"job": "nothing"}, {"tokens": 1})
    assert client.stats() == {"missed": {}, "refused": {"not_allowed": 1}, "connections": 1, "breaker_open": False}


def test_a_signal_costs_nothing(client):
    client.signal("loop_lag", 0.4)
    assert client.check() and client.stats() == {"missed": {}, "refused": {}, "connections": 1, "breaker_open": False}
