"""Measures the delays that this machine currently adds to timed operations.

A separate process that prints when its input ends: the 99th percentile of a round trip through `cat`, in seconds,
since a client of another process waits for a shared processor; and pauses, in which a processor ran
nothing although a thread was ready, as that of a virtual machine may for a second.
"""

import contextlib
import json
import os
import select
import subprocess
import sys
import threading
import time
from typing import NamedTuple

PAUSE = 0.002  # seconds between two round trips
PERIOD, SHORT = 0.005, 0.02  # seconds that a watcher sleeps; delay of a busy scheduler


class Machine(NamedTuple):
    """Measurements in seconds; pauses by the monotonic clock, which all processes share."""

    round_trip: float
    pauses: list[tuple[float, float]]

    def paused(self, began: float, ended: float) -> bool:
        return any(since < ended and until > began for since, until in self.pauses)


def main():
    took, pauses = [], []
    for cpu in os.sched_getaffinity(0):
        threading.Thread(target=watch, args=(cpu, pauses), daemon=True).start()
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as other:
        while not select.select([sys.stdin], [], [], PAUSE)[0]:
            began = time.monotonic()
            os.write(other.stdin.fileno(), b".")
            os.read(other.stdout.fileno(), 1)
            took.append(time.monotonic() - began)
        other.stdin.close()
    print(json.dumps([sorted(took)[int(0.99 * len(took))], pauses]))


def watch(cpu, pauses):
    os.sched_setaffinity(0, {cpu})  # by this thread
    while True:
        began = time.monotonic()
        time.sleep(PERIOD)
        ended = time.monotonic()
        if ended - began > PERIOD + SHORT:
            pauses.append((began, ended))


@contextlib.contextmanager
def measuring():
    """Yields a function that ends the measurement and returns its result."""
    command, pipe = [sys.executable, __file__], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:

        def end():
            process.stdin.close()
            return Machine(*json.loads(process.stdout.read()))

        try:
            yield end
        finally:
            process.kill()


if __name__ == "__main__":
    main()
