"""Helpers of all acts of the demonstration: child processes, and terminal output."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import pathlib
import socket
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


def gunicorn(
    app: str, directory: pathlib.Path, listener: socket.socket, path: str, options: list[str], stack, log
) -> None:
    """Serves an application of a directory on a listener, with the daemon at `path`."""
    # 1 s instead of 20 ms, so that a busy machine does not change the result.
    environment = os.environ | {"TIDEGATE_SOCKET": path, "TIDEGATE_TIMEOUT_MS": "1000"}
    command = [sys.executable, "-m", "gunicorn", "--bind", f"fd://{listener.fileno()}", "--chdir", str(directory)]
    command += [*options, "--no-control-socket", "--log-level", "warning", app]
    served = start(command, stack, stderr=log, env=environment, pass_fds=[listener.fileno()])
    wait_for(lambda: answers(listener.getsockname()[1], "/v1/orders"), served, log)


def answers(port: int, path: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
    with contextlib.suppress(OSError, http.client.HTTPException), contextlib.closing(connection):
        connection.request("GET", path)
        return connection.getresponse().status == 200
    return False


async def exchange(
    port: int, request: str, headers: list[str], source: str = "127.0.0.1"
) -> tuple[int, list[tuple[str, str]], bytes]:
    """Sends a request from an address of loopback, on a new connection; returns status, headers and body."""
    lines = [f"{request} HTTP/1.1", "Host: demo", "Connection: close", "Content-Length: 0", *headers]
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))
    try:
        writer.write("\r\n".join([*lines, "", ""]).encode())
        head, end, body = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.transport.abort()
    first, *fields = head.decode("latin-1").split("\r\n")
    if not end:
        raise ValueError("half an answer")
    return int(first.split()[1]), [(name, value) for name, _, value in (line.partition(": ") for line in fields)], body


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
