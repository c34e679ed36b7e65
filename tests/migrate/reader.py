"""A reader of a page: writes its files, runs its commands, and compares the output with the page.

It reads three kinds of blocks, in their order; others (`sh`) are for people alone:

* a block whose first line is a comment with a path, `# rules/web.yaml` or `// shop/main.go`, is that file;
* `console` has commands after `$ `, each followed by its output. There `…` stands for any text in a line, and
  alone for any lines;
* a command of `console` that starts a server runs in its own terminal; the same server again replaces it, and so does
  another application at the page's port.

Port 8000 is replaced by a free one.
"""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import tidegate

from servers import OWN_GROUP, SOURCE, end, free_port

ROOT = Path(__file__).resolve().parents[2]
RUBY = ROOT / "clients/ruby/lib"
APPLICATIONS = ("gunicorn", "uvicorn", "puma", "shop/shop", "node")
SERVERS = ("tidegate serve", *APPLICATIONS)
PATIENT = 30.0
# A busy machine must not count as a failed daemon: else requests would pass without a decision.
TIMEOUT_MS = 5000


class Block(NamedTuple):
    kind: str
    text: str


class Command(NamedTuple):
    line: str
    shown: list[str]


def blocks(page: str) -> list[Block]:
    return [Block(kind, text) for kind, text in re.findall(r"^```(\w+)\n(.*?)^```$", page, re.M | re.S)]


def commands(text: str) -> list[Command]:
    """Parses a block of `console`. A backslash continues a command."""
    found: list[Command] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append(Command(line[2:], []))
        elif found and found[-1].line.endswith("\\"):
            found[-1] = Command(found[-1].line[:-1] + line.strip(), [])
        else:
            found[-1].shown.append(line)
    return found


def agrees(shown: list[str], output: str) -> bool:
    """True if the page shows this output, ignoring blanks at the end of lines."""
    any_lines = "(?:.*\n)*?"
    lines = [re.escape(line.rstrip()).replace("…", ".*") + "\n" if line != "…" else any_lines for line in shown]
    output = "".join(line.rstrip() + "\n" for line in output.splitlines())
    return re.fullmatch("".join(lines), output) is not None


def server(line: str) -> str | None:
    """Returns the server that a command starts, if any."""
    words = [word for word in shlex.split(line) if "=" not in word]
    return next((name for name in SERVERS if words[: len(name.split())] == name.split()), None)


class Reader:
    def __init__(self, directory: Path, binary: Path) -> None:
        self.directory, self.running = directory, dict[str, subprocess.Popen[bytes]]()
        self.port = free_port()
        places = [str(binary.parent), str(Path(sys.executable).parent), os.environ["PATH"]]
        self.environment = os.environ | {
            "PATH": os.pathsep.join(places),
            "TIDEGATE_SOCKET": str(directory / "tidegate.sock"),
            "TIDEGATE_TIMEOUT_MS": str(TIMEOUT_MS),
            "PYTHONPATH": str(SOURCE),
            "RUBYLIB": str(RUBY),
            "CHECKOUT": str(ROOT),
            "GOCACHE": os.environ.get("GOCACHE", os.path.expanduser("~/.cache/go-build")),
            "GOFLAGS": "-mod=mod",
            "GOPROXY": "off",
            "HOME": str(directory),
            "LC_ALL": "C.UTF-8",  # the order of `sort`
        }

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.running.values():
            end(process)

    def read(self, page: str) -> int:
        """Follows the page, and fails if an output differs. Returns the number of commands."""
        count = 0
        for block in blocks(page):
            name = re.match(r"(?:#|//) (\S+\.\w+)\n", block.text)
            if block.kind == "console":
                for command in commands(block.text):
                    self.type(command)
                    count += 1
            elif name:
                path = self.directory / name[1]
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(self.here(block.text))
        return count

    def here(self, text: str) -> str:
        return re.sub(r"\b8000\b", str(self.port), text)

    def type(self, command: Command) -> None:
        line = self.here(command.line)
        if name := server(line):
            self.serve(name, line)
            return
        ended = subprocess.run(
            ["bash", "-c", line], cwd=self.directory, env=self.environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120,
        )  # fmt: skip
        shown = [self.here(each) for each in command.shown]
        # The daemon names its rules absolutely, and a page as its reader would.
        output = ended.stdout.replace(f"{self.directory}/", "")
        difference = "\n".join([f"$ {line}", output, "the page shows:", *shown])
        assert agrees(shown, output), difference + self.logs()

    def serve(self, name: str, line: str) -> None:
        for replaced in APPLICATIONS if name in APPLICATIONS else (name,):
            if replaced in self.running:
                end(self.running.pop(replaced))
        with open(self.directory / f"{name.split()[0].split('/')[-1]}.log", "ab") as log:
            self.running[name] = subprocess.Popen(
                ["bash", "-c", f"exec env {line}"], cwd=self.directory, env=self.environment, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, **OWN_GROUP,
            )  # fmt: skip
        until = time.monotonic() + PATIENT
        while not (self.decides() if name == "tidegate serve" else self.listens()):
            alive = self.running[name].poll() is None and time.monotonic() < until
            assert alive, f"{line} does not answer" + self.logs()
            time.sleep(0.02)

    def decides(self) -> bool:
        if not os.path.exists(self.environment["TIDEGATE_SOCKET"]):
            return False
        client = tidegate.Client(self.environment["TIDEGATE_SOCKET"], timeout=1.0)
        try:
            return client.check()
        finally:
            client.close()

    def listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def logs(self) -> str:
        logs = sorted(self.directory.glob("*.log"))
        return "".join(f"\n--- {log.name}\n{log.read_text(errors='replace')[-1000:]}" for log in logs)
