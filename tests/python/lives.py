"""Restarts of the daemon: ending one, starting the next, and their times."""

import math
import os
import statistics
import subprocess
import time

ROUNDS = int(os.environ.get("KILLS", "5"))  # number of restarts in each test; `make nightly`: 100
SERVER = ["--workers", "2", "--worker-class", "gthread", "--threads", "8"]
# Promised seconds, and the excess that a busy machine and a debug build may cause in some restarts. A twin process that
# only prints the daemon's version measures the machine's part.
START, END, SLACK, TWINS = 0.3, 1.0, 10, 5
twins = []
PATIENCE = 60  # against endless waits, on a busy machine


def start(daemon, *listener):
    """Returns the seconds until its first answer."""
    began = time.monotonic()
    subprocess.run([daemon.binary, "--version"], check=True, capture_output=True)
    twins.append(time.monotonic() - began)
    began = time.monotonic()
    daemon.start(*listener)
    return time.monotonic() - began


def end(daemon):
    """Returns the seconds from TERM to the exit of the process."""
    began = time.monotonic()
    assert daemon.stop() == 0, daemon.log.read_text()
    return time.monotonic() - began


def say(what, seconds, promised=math.inf):
    """Prints a figure, and asserts the promise: kept mostly, and never missed by much."""
    most, median = max(seconds), statistics.median(seconds)
    print(f"{what}: at most {most * 1000:.0f} ms, median {median * 1000:.0f} ms of {len(seconds)}")
    promised += TWINS * statistics.median(twins)
    assert median <= promised and most <= SLACK * promised


def wait_for(crowd, is_wanted, since):
    """Waits for such an answer to a later request; returns the seconds from now."""
    began = time.monotonic()
    while not any(answer.asked > since and is_wanted(answer) for answer in crowd.latest(since)):
        assert time.monotonic() < began + PATIENCE, f"{type(crowd).__name__}: {crowd.answers[-20:]}"
        time.sleep(0.01)
    return time.monotonic() - began


def decided(answer):
    return answer.decided


def refused(answer):
    return answer.status == 429
