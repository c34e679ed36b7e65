"""Measures the delays that the machine adds to every process, so that other parts need no allowance.

    twin.py OUT     until its input ends

Writes `FROM TO SECONDS` for delays above 5 ms: of a round trip through another process, of a ready
thread of a daemon or a client that did not run, of a process that waited for a disk or for memory, and
of a processor that ran nothing, as that of a virtual machine may.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import select
import subprocess
import sys
import threading
import time

sys.path.append(str(pathlib.Path(__file__).parents[1] / "clients"))
from yardstick import watch

PAUSE, REPORTED_MIN = 0.020, 0.005
WATCHED = ("tidegate", "ruby", "python3", "roulette", "redis-server")


def threads():
    """The threads of all processes whose delays count."""
    for process in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            with open(f"/proc/{process}/comm") as file:
                name = file.read().strip()
            if name in WATCHED or name.startswith("tidegate"):
                yield from (f"/proc/{process}/task/{task}/schedstat" for task in os.listdir(f"/proc/{process}/task"))


def stalls() -> dict[str, float]:
    """Returns how long some process here waited for a disk or for memory, in seconds since the machine started."""
    found = {}
    for what in ("io", "memory"):
        with contextlib.suppress(OSError), open(f"/proc/pressure/{what}") as file:
            found[what] = int(file.readline().rsplit("=", 1)[1]) / 1e6
    return found


def delays(paths: list[str]) -> dict[str, float]:
    found = {}
    for path in paths:
        with contextlib.suppress(OSError, IndexError), open(path) as stat:  # empty, if the process is exiting
            found[path] = int(stat.read().split()[1]) / 1e9
    return found


def main(out: str) -> None:
    before, turn, watched, pauses = dict[str, float](), 0, list[str](), list[tuple[float, float]]()
    for cpu in os.sched_getaffinity(0):
        threading.Thread(target=watch, args=(cpu, pauses), daemon=True).start()
    with (
        subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as other,
        open(out, "w", 1) as file,
    ):
        slept = since = looked = time.monotonic()
        while not select.select([sys.stdin], [], [], PAUSE)[0]:
            began = time.monotonic()
            os.write(other.stdin.fileno(), b".")
            os.read(other.stdout.fileno(), 1)
            most = time.monotonic() - min(began, slept + PAUSE)
            since = slept
            if turn % 2 == 0:
                since, looked = looked, time.monotonic()
                watched = list(threads()) if turn % 8 == 0 else watched
                now = stalls() | delays(watched)
                # A new thread has waited since it was first seen, except those present at the start.
                most = max([most, *(total - before.get(name, 0.0 if turn else total) for name, total in now.items())])
                before = now if turn % 8 == 0 else before | now
            turn += 1
            if most > REPORTED_MIN:
                file.write(f"{since} {time.monotonic()} {most}\n")
            while pauses:
                since, until = pauses.pop()
                file.write(f"{since} {until} {until - since}\n")
            slept = time.monotonic()
        other.stdin.close()


if __name__ == "__main__":
    main(sys.argv[1])
