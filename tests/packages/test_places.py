"""Visible processes in another PID namespace, as in a container: docs/install.md."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tools import BINARY, run


@dataclass
class Daemon:
    process: subprocess.Popen[bytes]
    socket: Path

    def leases(self) -> int:
        output = run(BINARY, "status", "--json", "--socket", self.socket)
        return int(json.loads(output)["leases"]["held"])

    def watched(self) -> int:
        """Processes of which it holds a descriptor."""
        count = 0
        for link in Path(f"/proc/{self.process.pid}/fd").iterdir():
            # It may be closed meanwhile.
            with contextlib.suppress(FileNotFoundError):
                count += "pidfd" in os.readlink(link)
        return count


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    (tmp_path / "api.yaml").write_text("domain: api\nconcurrency:\n  - {name: jobs, key: [], max: 9}\n")
    socket = tmp_path / "tidegate.sock"
    words = [BINARY, "serve", "--socket", socket, "--rules", tmp_path / "api.yaml"]
    process = subprocess.Popen(words, stderr=subprocess.DEVNULL)
    try:
        eventually(lambda: subprocess.run([BINARY, "status", "--socket", socket], capture_output=True).returncode == 0)
        yield Daemon(process, socket)
    finally:
        process.kill()
        process.wait()


def eventually(condition: Callable[[], bool], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.02)


def work(daemon: Daemon, *before: str) -> subprocess.Popen[bytes]:
    """Runs a command under a lease."""
    words = [*before, str(BINARY), "acquire", "api", "user=u1", "--socket", str(daemon.socket), "--", "sleep", "60"]
    return subprocess.Popen(words, stderr=subprocess.DEVNULL)


def test_a_process_of_another_pid_namespace_is_not_watched(daemon: Daemon) -> None:
    # Its first process ends all of its group.
    apart = ["unshare", "--pid", "--fork", "--kill-child"]
    if subprocess.run([*apart, "true"], capture_output=True).returncode != 0:
        pytest.skip("no space of process numbers of its own can be had here")
    here = work(daemon)
    eventually(lambda: daemon.leases() == 1)
    assert daemon.watched() == 1
    there = work(daemon, *apart)
    eventually(lambda: daemon.leases() == 2)
    assert daemon.watched() == 1, "its number is another one there"
    here.kill()
    here.wait()
    eventually(lambda: daemon.watched() == 0)
    killed = time.monotonic()
    there.kill()
    there.wait()
    # Every lease ends: 5 s after the last connection, not before.
    eventually(lambda: daemon.leases() == 0)
    assert time.monotonic() - killed >= 4.5
