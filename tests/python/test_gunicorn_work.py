"""Leases under a real gunicorn: requests of every kind, and a killed worker, free their permits."""

import contextlib
import os
import pathlib
import signal
import socket
import threading
import time

import pytest

from servers import get, gunicorn, wait_until

MAX = 3
RULES = f"""
domain: api
priorities: [critical, other]
concurrency: [{{name: at-once, key: [], max: {MAX}, expires: 1h}}]
shed: [{{pool: web, slots: 8, queue_age: {{others: 500ms, critical: 2500ms}}}}]
"""
APP = """
import ctypes, os, pathlib, threading, time, tidegate
from tidegate.wsgi import Middleware

here = pathlib.Path(__file__).parent

def app(environ, start_response):
    path = environ["PATH_INFO"]
    if path == "/raise":
        raise RuntimeError("mine")
    if path.startswith("/hold"):
        # Past Python, so that it keeps the socket; not as CDLL, which would let go of the lock that a child waits for.
        if path == "/hold-with-a-child" and ctypes.PyDLL(None).fork() == 0:
            (here / f"child-{os.getpid()}").touch()
            time.sleep(60)
            os._exit(0)
        (here / f"held-{os.getpid()}-{threading.get_ident()}").touch()
        while here.exists() and not (here / "go").exists():  # the folder goes with the test
            time.sleep(0.005)
    start_response("503 Oh" if path == "/503" else "200 OK", [("Content-Type", "text/plain")])
    if path == "/file":
        return environ["wsgi.file_wrapper"](open(here / "app.py", "rb"))
    if path == "/raise-late":
        return (1 / 0 if i else b"some" for i in range(2))
    if path == "/stream":
        return (b"x" * 65536 for _ in range(1000))
    return [str(os.getpid()).encode()]

client = tidegate.Client(pool="web")
client.check()  # when it is preloaded: before any fork
app = Middleware(app, client, domain="api", trusted_proxies=["127.0.0.0/8"])
"""
SERVERS = [
    ["--worker-class", "sync", "--workers", "2"],
    ["--threads", "4", "--workers", "1"],
    ["--threads", "4", "--workers", "2", "--preload"],
]


@pytest.fixture
def asking(daemon, make_client):
    """A client that reads the number of free permits."""
    (daemon.rules / "api.yaml").write_text(RULES)
    daemon.start()
    return make_client(socket=daemon.socket)


def free(client):
    return client.peek("api").remaining


def hang_up_in(port, path):
    """A caller that hangs up in the middle of the response."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert connection.recv(1_000)


@pytest.mark.parametrize("options", SERVERS, ids=["sync", "threads", "preloaded"])
def test_every_request_releases_its_lease(daemon, directory, asking, options):
    with gunicorn(daemon, directory, APP, *options) as port:
        for _ in range(2 * MAX):
            assert get(port, "u1")[0] == 200
            assert get(port, "u1", "/503")[0] == 503
            assert get(port, "u1", "/raise")[0] == 500
            assert get(port, "u1", "/raise-late")[0] in (0, 200)
            assert get(port, "u1", "/file")[2] == APP.encode()
            hang_up_in(port, "/stream")
            wait_until(lambda: free(asking) == MAX)
        assert len(get(port, "u1", "/stream")[2]) == 65_536_000


def test_refuses_requests_queued_too_long(daemon, directory, asking):
    with gunicorn(daemon, directory, APP, *SERVERS[0]) as port:
        ago = lambda seconds: {"X-Request-Start": f"t={time.time() - seconds:.3f}"}  # noqa: E731
        assert get(port, "u1", **ago(0.0))[0] == 200
        status, fields, _ = get(port, "u1", **ago(3))
        assert status == 503 and int(fields["Retry-After"]) >= 1
        assert get(port, "u1", **ago(100))[0] == 200  # a wrong clock
        wait_until(lambda: free(asking) == MAX)  # the lease is released after the response was sent


@pytest.mark.parametrize("path", ["/hold", "/hold-with-a-child"])
@pytest.mark.parametrize("options", SERVERS, ids=["sync", "threads", "preloaded"])
def test_a_killed_worker_frees_its_leases(daemon, directory, asking, options, path):
    with gunicorn(daemon, directory, APP, *options) as port, ended(directory):
        callers = [threading.Thread(target=get, args=(port, f"u{i}", path), daemon=True) for i in range(2)]
        for caller in callers:
            caller.start()
        wait_until(lambda: len(list(directory.glob("held-*"))) == 2)
        assert free(asking) == MAX - 2
        held = [int(file.name.split("-")[1]) for file in directory.glob("held-*")]
        os.kill(held[0], signal.SIGKILL)
        # Because the process has exited, which the kernel reports immediately; its session would end only after 5 s.
        wait_until(lambda: free(asking) == MAX - 2 + held.count(held[0]), 4)
        (directory / "go").touch()
        wait_until(lambda: free(asking) == MAX)


@contextlib.contextmanager
def ended(directory: pathlib.Path):
    """Ends children that the workers left."""
    try:
        yield
    finally:
        for file in directory.glob("child-*"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(file.name.partition("-")[2]), signal.SIGKILL)
