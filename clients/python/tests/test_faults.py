"""System calls of the client fail, by strace, if tracing is permitted."""

import os
import pathlib
import subprocess
import sys

import pytest

import tidegate

CALLS = ("socket", "connect", "setsockopt", "sendto", "recvfrom", "poll")

ENVIRONMENT = os.environ | {"PYTHONPATH": str(pathlib.Path(tidegate.__file__).parents[1])}

# Forty requests, each of which must reach the application exactly once.
APPLICATION = """
import sys
import tidegate
from tidegate.wsgi import Middleware
reached = []
def app(environ, start_response):
    reached.append(environ["number"])
    start_response("200 OK", [])
    return [b"hello"]
client = tidegate.Client(sys.argv[1], timeout=0.05)
limited = Middleware(app, client, domain="api", user=lambda environ: "u")
statuses = []
for number in range(40):
    client._until = 0.0  # asks each time
    environ = {"number": number, "REQUEST_METHOD": "GET", "PATH_INFO": "/"}
    body = limited(environ, lambda status, *_: statuses.append(status))
    assert b"".join(body) == b"hello"
    getattr(body, "close", int)()
assert reached == list(range(40)), reached
assert set(statuses) == {"200 OK"}, statuses
print(sum(client.stats()["missed"].values()))
"""


@pytest.mark.parametrize("error", ["EIO", "ENOMEM", "EPERM"])
def test_requests_reach_the_application_once_if_calls_fail(played, directory, error):
    trace = directory / "trace"
    # Each system call in turn: its first, second, third or fourth use fails.
    injected = [f"-einject={call}:error={error}:when={2 + number % 3}+4" for number, call in enumerate(CALLS)]
    strace = ["strace", "-f", "-qq", "--seccomp-bpf", "-o", str(trace), "-e", "trace=" + ",".join(CALLS), *injected]
    if subprocess.run([*strace, "true"], capture_output=True).returncode:
        pytest.skip("there is no strace here that may trace")
    command = [*strace, sys.executable, "-c", APPLICATION, played.path]
    ran = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT)
    assert ran.returncode == 0, ran.stderr
    failed = {line.split("(")[0].split()[-1] for line in trace.read_text().splitlines() if "(INJECTED)" in line}
    assert {"socket", "connect", "sendto", "recvfrom"} <= failed, failed
    assert 0 < int(ran.stdout) < 40, ran.stdout
