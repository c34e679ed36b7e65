"""A reader of pages that also run nginx, Redis, or envoyproxy's ratelimit.

Their ports are replaced by free ones; scripts/setup has put programs into target/migrate.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest

from needs import ROOT
from reader import PATIENT, Command, Reader
from servers import OWN_GROUP, end, free_port

MADE = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target") / "migrate"
# Listening addresses in the pages.
PORTS = {"redis-server": 6379, "service_cmd": 8080, "nginx": 8080}
ALSO = (6070, 8081)


def need_program(name: str) -> None:
    if shutil.which(name, path=os.pathsep.join([str(MADE), os.environ["PATH"]])) is None:
        pytest.skip(f"missing: {name} (scripts/setup migrate)")


class Stack(Reader):
    def __init__(self, directory: Path, binary: Path) -> None:
        super().__init__(directory, binary)
        self.daemon = binary
        self.environment["PATH"] = os.pathsep.join([str(MADE), self.environment["PATH"]])
        self.ports = {str(port): free_port() for port in {*PORTS.values(), *ALSO}}

    def here(self, text: str) -> str:
        text = super().here(text)
        return re.sub(r"\b(6379|8080|8081|6070)\b", lambda port: str(self.ports[port[1]]), text)

    def type(self, command: Command) -> None:
        words = [word for word in shlex.split(command.line) if "=" not in word]
        if words[0] not in PORTS:
            super().type(command)
        elif "-s" not in words:
            self.start(words[0], self.here(command.line))
        else:
            # Only checks the configuration.
            before = self.workers()
            super().type(command)
            until = time.monotonic() + PATIENT
            while not (now := self.workers()) or now & before:
                assert time.monotonic() < until, f"{command.line} has no effect" + self.logs()
                time.sleep(0.01)

    def workers(self) -> set[str]:
        master = self.running["nginx"].pid
        return set(Path(f"/proc/{master}/task/{master}/children").read_text().split())

    def start(self, name: str, line: str) -> None:
        if name in self.running:
            end(self.running.pop(name))
        with open(self.directory / f"{name}.log", "ab") as log:
            self.running[name] = subprocess.Popen(
                ["bash", "-c", f"exec env {line}"], cwd=self.directory, env=self.environment, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, **OWN_GROUP,
            )  # fmt: skip
        port = self.ports[str(PORTS[name])]
        until = time.monotonic() + PATIENT
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return
            alive = self.running[name].poll() is None and time.monotonic() < until
            assert alive, f"{line} does not answer" + self.logs()
            time.sleep(0.02)
