"""The daemon killed again and again under a real application's traffic: nobody's request fails, and it limits again."""

import os
import threading
import time

import pytest

from servers import get, gunicorn

RULES = "domain: api\nlimits:\n  - {name: per-user, key: [user], rate: 20/s, burst: 20}\n"
BURST, RATE = 20, 20
KILLS = int(os.environ.get("KILLS", "10"))  # `make nightly` kills a hundred times
APP = """
import tidegate
from tidegate.wsgi import Middleware

def app(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "2")])
    return [b"ok"]

app = Middleware(app, tidegate.Client(), domain="api", user=lambda environ: environ.get("HTTP_X_USER"))
"""


@pytest.fixture
def served(daemon, directory):
    (daemon.rules / "api.yaml").write_text(RULES)
    daemon.start()
    with gunicorn(daemon, directory, APP, "--workers", "2", "--worker-class", "gthread", "--threads", "4") as port:
        yield port


class Callers:
    """Four threads that ask as one greedy user; keep (when, status, whether the daemon decided)."""

    def __init__(self, port):
        self.port, self.answers, self.stopped = port, [], threading.Event()
        self.threads = [threading.Thread(target=self._run, daemon=True) for _ in range(4)]

    def _run(self):
        while not self.stopped.wait(0.02):
            asked = time.monotonic()
            status, headers, _ = get(self.port, "greedy")
            self.answers.append((asked, status, any(name.lower() == "ratelimit" for name in headers)))

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stopped.set()
        for thread in self.threads:
            thread.join(20)


def is_limited(callers, since):
    return any(asked > since and status == 429 for asked, status, _ in list(callers.answers))


def wait_until_limited(callers, since):
    until = time.monotonic() + 30
    while not is_limited(callers, since):
        assert time.monotonic() < until
        time.sleep(0.01)


def test_killed_in_mid_traffic_it_costs_no_request_and_no_more_than_a_burst_each_time(served, daemon):
    started = time.monotonic()
    starts = []
    with Callers(served) as callers:
        wait_until_limited(callers, started)
        for _ in range(KILLS):
            daemon.stop(kill=True)
            began = time.monotonic()
            daemon.start()
            starts.append(time.monotonic() - began)
            wait_until_limited(callers, time.monotonic())
    span = time.monotonic() - started
    statuses = [status for _, status, _ in callers.answers]
    assert set(statuses) == {200, 429}, "the application answered every request"
    decided = sum(by_daemon for _, status, by_daemon in callers.answers if status == 200)
    assert decided > BURST
    # Without a state directory each life begins with a whole burst, and no life gives more.
    assert decided <= (KILLS + 1) * BURST + RATE * span
    print(f"{KILLS} kills, serving again after at most {max(starts) * 1_000:.0f} ms")
