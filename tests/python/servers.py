"""gunicorn and uvicorn with an application of the test on a free port, with the daemon; and callers."""

import contextlib
import http.client
import os
import pathlib
import socket
import subprocess
import sys
import time

import tidegate

SOURCE = pathlib.Path(tidegate.__file__).resolve().parents[1]
# Options for a process in its own group. Not a session: Linux divides the processor by sessions (autogroups), and
# one with mostly sleeping processes may wait for seconds beside a busy one.
OWN_GROUP = {"process_group": 0} if sys.version_info >= (3, 11) else {"preexec_fn": os.setpgrp}
TIMEOUT = 0.25  # longer than the default, so that a busy machine does not degrade decisions


def free_port():
    """A port for a server that binds it itself. A closed connection keeps it from all others for a minute."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()):
        listener.accept()[0].close()
        return listener.getsockname()[1]


def gunicorn(daemon, directory, app, *options):
    """Serves `app`, the source of a module; yields the port."""
    command = ["gunicorn", *options, "--chdir", str(directory)]
    return served(daemon, directory, app, command, "--bind=fd://{}", "app:app")


def uvicorn(daemon, directory, app, *options):
    """Serves `app`, the source of a module; yields the port."""
    command = ["uvicorn", *options, "--app-dir", str(directory), "--log-level", "warning"]
    return served(daemon, directory, app, command, "--fd={}", "app:app")


@contextlib.contextmanager
def served(daemon, directory, app, command, bind, *rest):
    (directory / "app.py").write_text(app)
    environment = os.environ | {
        "TIDEGATE_SOCKET": daemon.socket,
        "TIDEGATE_TIMEOUT_MS": str(int(TIMEOUT * 1000)),
        "PYTHONPATH": str(SOURCE),
        "HOME": str(directory),
    }
    with socket.create_server(("127.0.0.1", 0)) as listener, open(directory / "log", "w") as log:
        command = [sys.executable, "-m", *command, bind.format(listener.fileno()), *rest]
        process = subprocess.Popen(
            command, env=environment, pass_fds=[listener.fileno()], stdout=log, stderr=log, **OWN_GROUP
        )
        port = listener.getsockname()[1]
        try:
            until = time.monotonic() + 20
            while get(port, "nobody")[0] != 200:
                assert process.poll() is None and time.monotonic() < until, (directory / "log").read_text()
                time.sleep(0.02)
            yield port
        finally:
            end(process)


def end(process):
    process.terminate()
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def get(port, user, path="/v1/orders", **headers):
    """Returns status, headers, body; status 0 without a response."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    with contextlib.suppress(OSError, http.client.HTTPException), contextlib.closing(connection):
        connection.request("GET", path, headers={"X-User": user} | headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    return 0, {}, b""


def metrics(daemon):
    """Returns the metrics of the admin socket, by series."""
    with socket.socket(socket.AF_UNIX) as admin:
        admin.connect(daemon.socket.removesuffix(".sock") + ".admin.sock")
        admin.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        text = b"".join(iter(lambda: admin.recv(65_536), b"")).decode()
    lines = (line.rpartition(" ") for line in text.splitlines() if line.startswith("tidegate_"))
    return {series: float(value) for series, _, value in lines}


def wait_until(true, seconds=60):
    """Polls immediately, then at growing intervals, since polling slows down the awaited process."""
    until, pause = time.monotonic() + seconds, 0.001
    while not true():
        assert time.monotonic() < until
        time.sleep(pause)
        pause = min(1.5 * pause, 0.02)
