#!/usr/bin/env python3
"""The cost that a middleware adds to a request of a real application: gunicorn, uvicorn, Puma, net/http.

    .venv/bin/python benches/middleware.py [--daemon target/release/tidegate] [--rounds 60]

The applications are those of tests/clients. Each is served twice, limited and with TIDEGATE_DISABLE=1, where the
middleware sends no request. One caller with persistent connections alternates short rounds, so that other load affects
both. CPU is that of the application's processes. It only prints: it is not a test.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / part) for part in ("tests/clients", "tests/python", "clients/python/src")]

from applications import APPLICATIONS  # noqa: E402

from python_client import RULES, wait_for  # noqa: E402

PER_ROUND, WARM_ROUNDS = 100, 3


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--daemon", type=pathlib.Path, default=ROOT / "target/release/tidegate")
    arguments.add_argument("--rounds", type=int, default=60)
    given = arguments.parse_args()
    print(f"{given.rounds} rounds of {PER_ROUND} requests each; in microseconds: with the middleware, without, added")
    with serving_daemon(given.daemon) as path:
        for application in APPLICATIONS:
            if why := application.needs():
                print(f"{application.name}: {why}")
                continue
            with application.serving(path) as limited, application.serving(path, TIDEGATE_DISABLE="1") as plain:
                show(application.name, measured([limited, plain], given.rounds))


@contextlib.contextmanager
def serving_daemon(binary: pathlib.Path) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="tg-") as directory:
        path = os.path.join(directory, "s")
        pathlib.Path(directory, "rules").mkdir()
        pathlib.Path(directory, "rules/api.yaml").write_text(RULES)
        command = [binary, "serve", "--socket", path, "--rules", os.path.join(directory, "rules")]
        daemon = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_for(path)
            yield path
        finally:
            daemon.terminate()
            daemon.wait()


Figures = list[tuple[float, float, float]]  # p50, p99 and CPU of a request, by port


def measured(ports: list[int], rounds: int) -> Figures:
    connections = [http.client.HTTPConnection("127.0.0.1", port, timeout=10) for port in ports]
    took: list[list[float]] = [[] for _ in ports]
    spent = [0.0 for _ in ports]
    for number in range(-WARM_ROUNDS, rounds):
        for i in range(len(ports)):
            which = (i + number) % len(ports)  # alternates the first one
            before = cpu_of(ports[which])
            times = [one(connections[which], number * PER_ROUND + n) for n in range(PER_ROUND)]
            if number >= 0:
                took[which] += times
                spent[which] += cpu_of(ports[which]) - before
    for connection in connections:
        connection.close()
    requests = rounds * PER_ROUND
    return [
        (statistics.median(times) * 1e6, statistics.quantiles(times, n=100)[98] * 1e6, cpu / requests * 1e6)
        for times, cpu in zip(took, spent, strict=True)
    ]


def one(connection: http.client.HTTPConnection, number: int) -> float:
    began = time.perf_counter()
    connection.request("GET", f"/item/{number % 100}", headers={"X-User": f"u{number % 1000}"})
    answer = connection.getresponse()
    answer.read()
    took = time.perf_counter() - began
    assert answer.status == 200, answer.status
    return took


def cpu_of(port: int) -> float:
    """Returns the CPU seconds of the application's processes, which have this port in their environment."""
    variable, total = f"PORT={port}".encode(), 0
    for directory in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if variable in (directory / "environ").read_bytes().split(b"\0"):
                threads = (directory / "task").glob("*/schedstat")
                total += sum(int(thread.read_text().split()[0]) for thread in threads)
    return total / 1e9


def show(name: str, figures: Figures) -> None:
    for i, figure in enumerate(("p50", "p99", "CPU")):
        limited, plain = figures[0][i], figures[1][i]
        print(f"{name:10} {figure} {limited:7.0f} {plain:7.0f} {limited - plain:+7.0f}")


if __name__ == "__main__":
    main()
