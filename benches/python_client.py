#!/usr/bin/env python3
"""What the Python client costs: one `hit` and one `acquire` beside the same bytes written and read without it.

    .venv/bin/python benches/python_client.py [--daemon target/release/tidegate] [--repetitions 7]

Starts the daemon on a socket of its own. Client and daemon share one CPU, so that every call is two switches. In one
repetition short rounds of all three take turns; its figure is the median round, and the ratio compares figures of the
same repetition. Nothing here is a test: it prints, it does not judge.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "clients/python/src"))

import tidegate  # noqa: E402

RULES = "domain: api\nlimits:\n  - {name: per-user, key: [user], rate: 1000000/s, burst: 2000000}\n"
USER = {"user": "u1"}
ROUNDS, CALLS_PER_ROUND = 200, 50


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--daemon", type=pathlib.Path, default=ROOT / "target/release/tidegate")
    arguments.add_argument("--repetitions", type=int, default=7)
    given = arguments.parse_args()
    cpu = max(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpu})  # the daemon inherits it
    with tempfile.TemporaryDirectory(prefix="tg-") as directory:
        path = os.path.join(directory, "s")
        pathlib.Path(directory, "rules").mkdir()
        pathlib.Path(directory, "rules/api.yaml").write_text(RULES)
        command = [given.daemon, "serve", "--socket", path, "--rules", os.path.join(directory, "rules")]
        daemon = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            client = tidegate.Client(path, timeout=1.0)
            wait_for(path)
            print(f"Python {sys.version.split()[0]}, CPU {cpu}, {given.repetitions} repetitions; median [min-max]")
            compare(client, path, given.repetitions)
            assert client.stats()["missed"] == {}, client.stats()
        finally:
            daemon.terminate()
            daemon.wait()


def compare(client: tidegate.Client, path: str, repetitions: int) -> None:
    calls = {
        "bytes": bare(path),
        "hit": lambda: client.hit("api", USER),
        "acquire": lambda: client.acquire("api", USER),
    }
    for call in calls.values():
        median_round(call, 20)
    figures: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repetitions):
        rounds: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(ROUNDS):
            for name, call in calls.items():
                rounds[name].append(one_round(call))
        for name in calls:
            figures[name].append(statistics.median(rounds[name]))
    show("bytes written and read", figures["bytes"], "µs")
    for name in ("hit", "acquire"):
        show(name, figures[name], "µs")
        show(f"{name} ÷ bytes", [one / bare for one, bare in zip(figures[name], figures["bytes"], strict=True)], "")


def bare(path: str) -> Callable[[], object]:
    """A HIT encoded beforehand, its reply read and not looked at. Blocking, without a deadline."""
    stream = socket.socket(socket.AF_UNIX)
    stream.connect(path)
    stream.sendall(frame(b"\x94\x00\x00\x01\x80"))
    stream.recv(4096)
    hit = frame(b"\x95\x03\xcd\x10\x00\xa3api\x91\x92\xa4user\xa2u1\x01")
    send, recv = stream.send, stream.recv

    def call() -> object:
        send(hit)
        return recv(4096)

    return call


def frame(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "big") + payload


def one_round(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    for _ in range(CALLS_PER_ROUND):
        call()
    return (time.perf_counter() - started) / CALLS_PER_ROUND * 1e6


def median_round(call: Callable[[], object], rounds: int) -> float:
    return statistics.median(one_round(call) for _ in range(rounds))


def wait_for(path: str) -> None:
    until = time.monotonic() + 10
    while not tidegate.Client(path, timeout=1.0).check():
        if time.monotonic() > until:
            sys.exit("the daemon does not answer")
        time.sleep(0.02)


def show(name: str, figures: list[float], unit: str) -> None:
    middle = statistics.median(figures)
    print(f"{name:24} {middle:6.2f} [{min(figures):.2f}-{max(figures):.2f}] {unit}")


if __name__ == "__main__":
    main()
