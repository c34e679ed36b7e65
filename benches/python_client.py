#!/usr/bin/env python3
"""The cost of the Python client: `hit` and `acquire`, compared with the same requests encoded beforehand, their replies
not decoded, and with a GCRA script in Redis over its socket.

    .venv/bin/python benches/python_client.py [--daemon target/release/tidegate] [--repetitions 7]

Starts the daemon, and Redis if installed, on temporary sockets. Client and servers share one CPU, so that every call is
two switches. A repetition alternates short rounds of all; its figure is the median round, and a ratio compares figures
of one repetition. Calls cycle through 1,000 users. Leases are released between rounds. It only prints: it is no test.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "clients/python/src"))

import tidegate  # noqa: E402
from tidegate import protocol  # noqa: E402

RULES = "domain: api\nlimits:\n  - {name: per-user, key: [user], rate: 1000000/s, burst: 2000000}\n"
USERS = [{"user": f"u{i}"} for i in range(1_000)]
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
        at = f"{directory}/redis"
        commands = [command, ["redis-server", "--port", "0", "--unixsocket", at, "--save", "", "--dir", directory]]
        commands = [command for command in commands if shutil.which(command[0])]
        quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        servers = [subprocess.Popen(command, **quiet) for command in commands]
        try:
            client = tidegate.Client(path, timeout=1.0)
            wait_for(path)
            print(f"Python {sys.version.split()[0]}, CPU {cpu}, {given.repetitions} repetitions; median [min-max]")
            compare(client, path, at if len(servers) > 1 else None, given.repetitions)
            assert client.stats()["missed"] == {}, client.stats()
        finally:
            for server in servers:
                server.terminate()
                server.wait()


def compare(client: tidegate.Client, path: str, at: str | None, repetitions: int) -> None:
    kinds = {
        "bytes of a hit": (*bare(path, 3)[:2], None),
        "hit": (lambda user: client.hit("api", user), USERS, None),
        "bytes of an acquire": bare(path, 1),
        "acquire": (lambda user: client.acquire("api", user), USERS, tidegate.Decision.release),
    }
    if at is not None:
        kinds["redis"] = (*redis(at), None)
    figures: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(repetitions):
        rounds: dict[str, list[float]] = {name: [] for name in kinds}
        for turn in range(ROUNDS):
            for name, (call, given, after) in kinds.items():
                rounds[name].append(one_round(call, given, after, turn))
        for name in kinds:
            figures[name].append(statistics.median(rounds[name]))
    for name, alone in (("hit", "bytes of a hit"), ("acquire", "bytes of an acquire")):
        show(alone, figures[alone], "µs")
        show(name, figures[name], "µs")
        show(f"{name} ÷ bytes", [one / bare for one, bare in zip(figures[name], figures[alone], strict=True)], "")
    if at is not None:
        show("GCRA in Redis", figures["redis"], "µs")
        ratios = [one / other for one, other in zip(figures["acquire"], figures["redis"], strict=True)]
        show("acquire ÷ GCRA in Redis", ratios, "")


def bare(path: str, op: int) -> tuple[Callable[[bytes], bytes], list[bytes], Callable[[bytes], None]]:
    """Returns a function that sends a request and reads its reply without a deadline, the requests, and a release."""
    stream = socket.socket(socket.AF_UNIX)
    stream.connect(path)
    stream.sendall(frame(b"\x94\x00\x00\x01\x80"))
    stream.recv(4096)
    requests = []
    for user in USERS:
        body = b"".join(protocol.request("api", user, 1, None, {}))
        requests.append(frame(bytes((0x95, op)) + b"\xcd\x10\x00" + body))
    send, recv = stream.send, stream.recv

    def call(request: bytes) -> bytes:
        send(request)
        return recv(4096)

    def release(reply: bytes) -> None:
        lease = protocol.decode(reply[4:])[9]
        send(frame(protocol.encode([2, None, lease, 0])))

    return call, requests, release


def redis(at: str) -> tuple[Callable[[bytes], bytes], list[bytes]]:
    """Returns a function that sends a request to Redis and reads its reply, and the requests: a preloaded script."""
    until = time.monotonic() + 10
    stream = socket.socket(socket.AF_UNIX)
    while stream.connect_ex(at):
        if time.monotonic() > until:
            sys.exit("Redis does not answer")
        time.sleep(0.02)
    stream.sendall(resp("SCRIPT", "LOAD", (ROOT / "benches/sockets/gcra.lua").read_text()))
    digest = stream.recv(4096).split()[1].decode()
    requests = [resp("EVALSHA", digest, "1", f"api:{user['user']}", "1", "2000000", "1") for user in USERS]
    send, recv = stream.send, stream.recv

    def call(request: bytes) -> bytes:
        send(request)
        return recv(4096)

    return call, requests


def resp(*words: str) -> bytes:
    raw = [word.encode() for word in words]
    return b"*%d\r\n" % len(raw) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in raw)


def frame(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "big") + payload


def one_round(call: Callable[[Any], Any], given: list[Any], after: Callable[[Any], object] | None, turn: int) -> float:
    first = turn * CALLS_PER_ROUND % len(given)
    answers = []
    started = time.perf_counter()
    for one in given[first : first + CALLS_PER_ROUND]:
        answers.append(call(one))
    took = (time.perf_counter() - started) / CALLS_PER_ROUND * 1e6
    for answer in answers if after else ():
        after(answer)
    return took


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
