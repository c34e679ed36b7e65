#!/usr/bin/env python3
"""The time of one `hit` in each client, as its caller sees it, in one run.

    .venv/bin/python benches/clients.py [--daemon target/release/tidegate] [--rounds 5]

Drives the adapters of tests/conformance, which measure their calls, in turn: one request at a time, nothing pinned, a
timeout of a second. A client that cannot run here is named with the reason: `make test-node test-java` build theirs,
`cargo build --release --package tidegate-client --example conformance` that of Rust. It only prints: it is no test.
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / of) for of in ("tests/conformance", "clients/python/tests", "clients/python/src")]

from adapter import Adapter  # noqa: E402
from languages import LANGUAGES, TARGET, Language  # noqa: E402

RULES = "domain: api\nlimits: [{name: per-user, key: [user], rate: 1000000/s, burst: 2000000}]\n"
CALLS, WARM = 500, 3_000


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--daemon", type=pathlib.Path, default=TARGET / "release/tidegate")
    arguments.add_argument("--rounds", type=int, default=5)
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="tg-") as directory:
        socket, rules = pathlib.Path(directory, "s"), pathlib.Path(directory, "api.yaml")
        rules.write_text(RULES)
        command = [given.daemon, "serve", "--socket", socket, "--rules", rules]
        daemon = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        adapters = {}
        try:
            while not socket.exists():
                time.sleep(0.01)
            for language in map(optimised, LANGUAGES):
                if why := language.needs():
                    print(f"{language.name:16} not measured: {why}")
                    continue
                adapter = adapters[language.name] = Adapter(language)
                adapter.send({"do": "make", "client": "", "socket": str(socket), "timeout_ms": 1_000})
                adapter.receive()
                calls(adapter, WARM)
            rounds = [{name: calls(adapter, CALLS) for name, adapter in adapters.items()} for _ in range(given.rounds)]
        finally:
            for adapter in adapters.values():
                adapter.end()
            daemon.terminate()
            daemon.wait()
    for name in adapters:
        medians = sorted(statistics.median(one[name]) for one in rounds)
        print(f"{name:16} {statistics.median(medians):6.0f} µs [{medians[0]:.0f}-{medians[-1]:.0f}]")


def optimised(language: Language) -> Language:
    """Returns the language with an optimised build of its adapter, if it is Rust."""
    if not language.name.startswith("rust"):
        return language
    path = TARGET / "release/examples/conformance"
    needs = "" if path.exists() else f"missing: {path}"
    return dataclasses.replace(language, command=lambda: [str(path), *language.command()[1:]], needs=lambda: needs)


def calls(adapter: Adapter, count: int) -> list[int]:
    """The times of hits of a thousand users, one after the other."""
    times = []
    for number in range(count):
        adapter.send({"do": "hit", "client": "", "domain": "api", "attributes": {"user": f"u{number % 1_000}"}})
        answer = adapter.receive()
        assert answer["verdict"] == "allow" and not answer["degraded"], answer
        times.append(answer["took_us"])
    return times


if __name__ == "__main__":
    main()
