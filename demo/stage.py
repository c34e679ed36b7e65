"""Helpers of all acts of the demonstration: child processes, and terminal output."""

from __future__ import annotations

import contextlib
import http.client
import os
import subprocess
import sys
import time


def start(command: list[str], stack: contextlib.ExitStack, **options: object) -> subprocess.Popen:
    # A separate process group, so that Ctrl-C reaches only this program, which ends the others in order.
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, preexec_fn=os.setpgrp, **options)

    def end() -> None:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    stack.callback(end)
    return process


def wait_for(ready, process: subprocess.Popen, log) -> None:
    until = time.monotonic() + 20
    while not ready():
        if process.poll() is not None or time.monotonic() > until:
            log.seek(0)
            sys.exit(f"{process.args[0]} did not start:\n{log.read()[-4000:]}")
        time.sleep(0.02)


def answers(port: int, path: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
    with contextlib.suppress(OSError, http.client.HTTPException), contextlib.closing(connection):
        connection.request("GET", path)
        return connection.getresponse().status == 200
    return False


def show(status: int, headers: list[tuple[str, str]], body: bytes) -> None:
    say(f"\n{bold(f'HTTP/1.1 {status} {http.client.responses[status]}')}")
    for name, value in headers:
        if name not in ("Server", "Date", "Connection"):
            say(f"{name}: {value}")
    say(f"\n{body.decode()}")


def say(text: str) -> None:
    print(text, flush=True)


def bold(text: str) -> str:
    return f"\033[1m{text}\033[0m" if COLOUR else text


def red(text: str) -> str:
    return f"\033[31m{text}\033[0m" if COLOUR else text


COLOUR = sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
