"""A real application under gunicorn, limited by the real daemon, over HTTP."""

import concurrent.futures
import signal
import statistics
import threading
import time

import pytest

from servers import TIMEOUT, get, gunicorn, wait_until

RULES = "domain: api\nlimits:\n  - {name: per-user, key: [user], rate: 20/s, burst: 40}\n"
BURST, RATE = 40, 20
APP = """
import os, tidegate
from tidegate.wsgi import Middleware

def app(environ, start_response):
    body = b"%d" % os.getpid()
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
    return [body]

client = tidegate.Client()
client.hit("api", {"user": "asked before any fork"})
app = Middleware(app, client, domain="api", user=lambda environ: environ.get("HTTP_X_USER"))
"""


@pytest.fixture
def served(daemon, directory):
    """The port of the application, with three workers forked from a process that has already sent a request."""
    (daemon.rules / "api.yaml").write_text(RULES)
    daemon.start()
    with gunicorn(
        daemon, directory, APP, "--preload", "--workers", "3", "--worker-class", "gthread", "--threads", "4"
    ) as port:
        yield port


class Caller(threading.Thread):
    """Sends `rate` requests a second until it is stopped; records (time, duration, status, worker)."""

    def __init__(self, port, user, rate):
        super().__init__(daemon=True)
        self.port, self.user, self.rate, self.stopped, self.answers = port, user, rate, threading.Event(), []

    def run(self):
        started, turn = time.monotonic(), 0
        while not self.stopped.wait(max(0.0, started + turn / self.rate - time.monotonic())):
            turn += 1
            asked = time.monotonic()
            status, _, body = get(self.port, self.user)
            self.answers.append((asked, time.monotonic() - asked, status, body))

    def end(self):
        self.stopped.set()
        self.join(20)

    def statuses(self):
        return [status for _, _, status, _ in self.answers]


def test_a_greedy_caller_gets_its_quota_and_others_are_unaffected(served):
    callers = [Caller(served, "greedy", 40) for _ in range(4)] + [Caller(served, f"u{i}", 5) for i in range(3)]
    before = time.monotonic()
    for caller in callers:
        caller.start()
    greedy, others = callers[:4], callers[4:]

    def enough():
        statuses = [status for caller in greedy for status in caller.statuses()]
        workers = {body for caller in callers for _, _, status, body in list(caller.answers) if status == 200}
        return statuses.count(429) > BURST and len(workers) == 3 and all(len(caller.answers) >= 5 for caller in others)

    wait_until(enough)
    for caller in callers:
        caller.end()
    span = time.monotonic() - before
    statuses = [status for caller in greedy for status in caller.statuses()]
    assert set(statuses) == {200, 429}
    assert BURST <= statuses.count(200) <= BURST + RATE * span
    assert [set(caller.statuses()) for caller in others] == [{200}] * 3


def test_killing_the_daemon_keeps_the_application_answering_and_starting_it_limits_again(served, daemon):
    callers = [Caller(served, "greedy", 30) for _ in range(4)]
    for caller in callers:
        caller.start()
    wait_until(lambda: any(429 in caller.statuses() for caller in callers))
    daemon.stop(kill=True)
    killed = time.monotonic() + TIMEOUT  # earlier requests may still get their replies
    meanwhile = lambda: [answer for caller in callers for answer in list(caller.answers) if killed < answer[0]]  # noqa: E731
    wait_until(lambda: len(meanwhile()) > 60)
    back = time.monotonic()
    daemon.start()
    wait_until(lambda: any(a[0] > back and a[2] == 429 for caller in callers for a in list(caller.answers)))
    for caller in callers:
        caller.end()
    answers = [answer for caller in callers for answer in caller.answers]
    assert {status for _, _, status, _ in answers} == {200, 429}
    meanwhile = [answer for answer in meanwhile() if answer[0] + answer[1] < back]
    assert len(meanwhile) > 50 and {status for _, _, status, _ in meanwhile} == {200}
    # The deadline plus the time of HTTP on this machine, measured with a running daemon.
    usual = [took for asked, took, _, _ in answers if asked + took < killed - TIMEOUT]
    assert max(took for _, took, _, _ in meanwhile) < TIMEOUT + max(1.0, 3 * max(usual))
    assert statistics.median(took for _, took, _, _ in meanwhile) < max(TIMEOUT, 2 * statistics.median(usual))


def test_under_gevent_a_stopped_daemon_delays_no_other_request(daemon, directory):
    (daemon.rules / "api.yaml").write_text(RULES)
    daemon.start()
    with gunicorn(daemon, directory, APP, "--workers", "1", "--worker-class", "gevent") as port:
        assert "RateLimit" in get(port, "u0")[1]  # a decision of the daemon
        daemon.process.send_signal(signal.SIGSTOP)
        try:
            started = time.monotonic()
            with concurrent.futures.ThreadPoolExecutor(20) as callers:
                assert list(callers.map(lambda i: get(port, f"u{i}")[0], range(20))) == [200] * 20
            assert time.monotonic() - started < 20 * TIMEOUT  # the time if they waited one after the other
        finally:
            daemon.process.send_signal(signal.SIGCONT)
