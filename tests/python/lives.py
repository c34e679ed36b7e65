"""One daemon after the other: ending one, starting the next, and how long that may take."""

import math
import os
import statistics
import subprocess
import time

ROUNDS = int(os.environ.get("KILLS", "5"))  # how often each test ends the daemon; `make nightly`: a hundred times
SERVER = ["--workers", "2", "--worker-class", "gthread", "--threads", "8"]
# Seconds that are promised, and by how much a busy machine and a debug build may exceed them now and then. Their twin
# is a process that only says its version: as many of its times are the machine's.
START, END, SLACK, TWINS = 0.3, 1.0, 10, 5
twins = []
PATIENCE = 60  # with what never ends, on a machine that is busy


def start(daemon, *listener):
    """How long it took until it answered, in seconds."""
    began = time.monotonic()
    subprocess.run([daemon.binary, "--version"], check=True, capture_output=True)
    twins.append(time.monotonic() - began)
    began = time.monotonic()
    daemon.start(*listener)
    return time.monotonic() - began


def end(daemon):
    """How long it took from TERM to the end of the process, in seconds."""
    began = time.monotonic()
    assert daemon.stop() == 0, daemon.log.read_text()
    return time.monotonic() - began


def say(what, seconds, promised=math.inf):
    """Prints a figure, and sees to it that it is what was promised: mostly, and never by far more."""
    most, median = max(seconds), statistics.median(seconds)
    print(f"{what}: at most {most * 1000:.0f} ms, median {median * 1000:.0f} ms of {len(seconds)}")
    promised += TWINS * statistics.median(twins)
    assert median <= promised and most <= SLACK * promised


def wait_for(crowd, is_wanted, since):
    """Until somebody has such an answer to what was asked since then; how long that took from now, in seconds."""
    began = time.monotonic()
    while not any(answer.asked > since and is_wanted(answer) for answer in crowd.latest(since)):
        assert time.monotonic() < began + PATIENCE, f"{type(crowd).__name__}: {crowd.answers[-20:]}"
        time.sleep(0.01)
    return time.monotonic() - began


def decided(answer):
    return answer.decided


def refused(answer):
    return answer.status == 429
