"""An adapter's process, and a scenario that runs with it."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time

from daemons import PATIENT, Played
from languages import Language, environment
from play import begun

DEFAULTS = {"domain": "api", "attributes": {"user": "u1"}}
ASKED = ("hit", "acquire", "peek", "crowd", "busy", "fork", "work")


class Adapter:
    def __init__(self, language: Language, **variables: str) -> None:
        self.language = language
        self.process = subprocess.Popen(
            language.command(), env=environment() | variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        self.read = b""

    @property
    def pid(self) -> int:
        return self.process.pid

    def send(self, *commands: dict) -> None:
        self.process.stdin.write("".join(json.dumps(one, separators=(",", ":")) + "\n" for one in commands).encode())

    def receive(self, patience: float = 2 * PATIENT) -> dict:
        """Returns the answer to the oldest command without one."""
        until = time.monotonic() + patience
        while b"\n" not in self.read:
            left = until - time.monotonic()
            assert left > 0 and select.select([self.process.stdout], [], [], left)[0], "the adapter does not answer"
            chunk = os.read(self.process.stdout.fileno(), 1 << 20)
            assert chunk, f"the adapter ended: {self.process.wait(5)}"
            self.read += chunk
        line, _, self.read = self.read.partition(b"\n")
        return json.loads(line)

    def end(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.stdin.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


class Run:
    """One scenario with one client: its adapter, the scripted daemon or the real one, and all answers."""

    def __init__(self, adapter: Adapter, scenario, daemon, directory) -> None:
        self.adapter, self.language, self.directory = adapter, adapter.language, directory
        self.real = daemon
        self.path = str(directory / "s") if daemon is None else daemon.socket
        self.played = Played(self.path) if daemon is None and scenario.script is not None else None
        if self.played:
            self.played.script = begun(scenario.script)
            self.played.greet = scenario.greet or self.played.greet
        self.timeout_ms = scenario.deadline_ms
        self.last, self.kept = {}, {}
        self.command({"do": "log", "client": ""})  # lines of the scenario before

    def make(self, name: str = "", **options) -> None:
        """Makes a client; each name has a path of its own, since PHP's clients of one path share a breaker."""
        path = self.path + name
        if name and not os.path.lexists(path):
            os.symlink(self.path, path)
        options = {"socket": path, "timeout_ms": self.timeout_ms} | options
        assert self.command({"do": "make", "client": name, **options}) == {}

    def command(self, given: dict) -> dict:
        self.adapter.send(given)
        return self.adapter.receive()

    def ask(self, do: str = "hit", client: str = "", **given) -> dict:
        assert do in ASKED
        self.last = self.command({"do": do, "client": client} | DEFAULTS | given)
        return self.last

    def stats(self, client: str = "") -> dict:
        return self.command({"do": "stats", "client": client})

    def log(self) -> list[str]:
        return self.command({"do": "log", "client": ""})["lines"]

    def of(self, op: int) -> list:
        return self.played.of(op)

    def eventually(self, condition) -> None:
        until = time.monotonic() + PATIENT
        while not condition():
            assert time.monotonic() < until, "not in time"
            time.sleep(0.001)
