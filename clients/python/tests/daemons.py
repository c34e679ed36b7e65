"""A scripted daemon, and the real one, on a socket in a temporary directory; the fixtures of both suites."""

from __future__ import annotations

import contextlib
import os
import pathlib
import socket
import subprocess
import tempfile
import threading
import time

import msgpack
import pytest

import tidegate

ROOT = pathlib.Path(__file__).resolve().parents[3]
ALLOW = [0, "per-user", 40, 2_000_000, 39, 50_000, 0]
LIMIT = [1, "per-user", 40, 2_000_000, 0, 50_000, 50_000]
PATIENT = 10.0  # for tests that are not about the deadline, on a busy machine


def frame(message: object) -> bytes:
    payload = message if isinstance(message, bytes) else msgpack.packb(message)
    return len(payload).to_bytes(4, "big") + payload


def wait_until(condition) -> None:
    until = time.monotonic() + PATIENT
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.001)


class Played:
    """A scripted daemon: `script(connection, message)` gets every request but HELLO.

    `seen` has every message, HELLO too; replies of `script` that are lists or bytes are framed and sent. `greet` is the
    script of HELLO, `ping` that of PING. `silent`: sends no reply, not even to these.
    """

    def __init__(self, path: str) -> None:
        self.path, self.seen, self.connections, self.stopped, self.silent = path, [], [], False, False
        self.served, self.most, self.refused = set(), 1_000, 0  # further connections get the error `busy`
        self.script = lambda connection, message: [1, message[1], *ALLOW]
        self.greet = lambda connection, message: [0, message[1], 1, {"server": "played/1", "boot": 1, "connection": 1}]
        self.ping = lambda connection, message: [2, message[1], True]
        self.hears = self.seen.append
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen(16)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                if len(self.served) >= self.most:
                    connection.sendall(frame([3, None, 8, "busy"]))
                    connection.close()
                    self.refused += 1
                    continue
                self.served.add(connection)
                self.connections.append(connection)
                if self.stopped:  # since the accept
                    connection.close()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        data = b""
        with contextlib.suppress(OSError):
            while chunk := connection.recv(65_536):
                data += chunk
                while len(data) >= 4 and len(data) >= (end := 4 + int.from_bytes(data[:4], "big")):
                    message, data = msgpack.unpackb(data[4:end]), data[end:]
                    self.hears(message)
                    if self.silent:
                        answer = None
                    elif message[0] in (0, 8):
                        answer = (self.ping if message[0] else self.greet)(connection, message)
                    else:
                        answer = self.script(connection, message)
                        if message[1] is None and not isinstance(answer, bytes):
                            answer = None  # without an id there is no reply, not even an ERROR
                    if isinstance(answer, list) and answer[:1] == [1]:  # in full, like the real daemon
                        answer += (13 - len(answer)) * [None]
                    if answer is not None:
                        connection.sendall(answer if isinstance(answer, bytes) else frame(answer))

    def requests(self) -> list:
        return [message for message in self.seen if message[0] != 0]

    def last_report(self):
        """The last message with a request. The daemon may read an abandoned request after a later one."""
        return [message[6] for message in list(self.seen) if len(message) > 6][-1]

    def of(self, op: int) -> list:
        """Returns all messages of one kind, in the order of arrival, which may differ between connections."""
        return [message for message in list(self.seen) if message[0] == op]

    def releases(self, count: int = 1) -> list:
        """Waits for RELEASEs, which the client does not wait for, and returns their leases and outcomes."""
        wait_until(lambda: len(self.of(2)) >= count)
        assert all(message[1] is None for message in self.seen if message[0] == 2)
        return [message[2:] for message in self.seen if message[0] == 2]

    def hang_up(self) -> None:
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        self.connections.clear()

    def stop(self) -> None:
        self.stopped = True
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.hang_up()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)


@pytest.fixture
def directory():
    # Not pytest's tmp_path, which may be too long for a socket.
    with tempfile.TemporaryDirectory(prefix="tg-") as path:
        yield pathlib.Path(path)


@pytest.fixture
def played(directory):
    daemon = Played(str(directory / "s"))
    yield daemon
    daemon.stop()


@pytest.fixture
def make_client(directory, monkeypatch):
    for name in ("TIDEGATE_SOCKET", "TIDEGATE_TIMEOUT_MS", "TIDEGATE_DISABLE", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    made = []

    def make(**options):
        options.setdefault("socket", str(directory / "s"))
        options.setdefault("timeout", PATIENT)
        made.append(tidegate.Client(**options))
        return made[-1]

    yield make
    for client in made:
        client.close()


@pytest.fixture
def long_pauses(monkeypatch):
    """Keeps an open breaker open for the whole test, on slow machines too."""
    monkeypatch.setattr(tidegate, "PAUSE_MIN", 60.0)
    monkeypatch.setattr(tidegate, "PAUSE_MAX", 120.0)


@pytest.fixture
def client(make_client):
    return make_client()


class Daemon:
    """A real daemon. `options` are those of `serve`; it keeps its state in the directory `state`, if that exists."""

    def __init__(self, binary: pathlib.Path, directory: pathlib.Path) -> None:
        self.binary, self.socket, self.rules = binary, str(directory / "tidegate.sock"), directory / "rules"
        self.state, self.log, self.options = directory / "state", directory / "daemon.log", list[str]()
        self.rules.mkdir(exist_ok=True)
        self.process: subprocess.Popen | None = None

    def start(self, listener: socket.socket | None = None) -> None:
        """Waits until it answers. `listener` is passed to it as by systemd."""
        command = [str(self.binary), "serve", "--socket", self.socket, "--rules", str(self.rules), *self.options]
        if listener is not None:
            command = ["sh", "-c", 'LISTEN_PID=$$ LISTEN_FDS=1 exec "$@" 3<&0 0</dev/null', "sh", *command]
        environment = os.environ | ({"STATE_DIRECTORY": str(self.state)} if self.state.exists() else {})
        with open(self.log, "a") as log:
            self.process = subprocess.Popen(
                command, env=environment, stdin=listener or subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log
            )
        probe = tidegate.Client(self.socket, timeout=1.0)
        until = time.monotonic() + 20
        while not probe.check():
            probe = tidegate.Client(self.socket, timeout=1.0)
            assert self.process.poll() is None, "the daemon ended"
            assert time.monotonic() < until, "the daemon does not answer"
            time.sleep(0.002)
        probe.close()

    def stop(self, kill: bool = False) -> int | None:
        """Returns the exit code, if it ran."""
        process, self.process = self.process, None
        if process is None:
            return None
        process.kill() if kill else process.terminate()
        return process.wait(60)


@pytest.fixture
def daemon(directory):
    places = [ROOT / "target/release/tidegate", ROOT / "target/debug/tidegate"]
    if "TIDEGATE_BIN" in os.environ:
        places = [pathlib.Path(os.environ["TIDEGATE_BIN"])]
    # The newest build: an older one may be of another version.
    binary = max((place for place in places if place.exists()), key=lambda place: place.stat().st_mtime, default=None)
    if binary is None:
        pytest.fail("no tidegate to test with: cargo build, or set TIDEGATE_BIN")
    made = Daemon(binary, directory)
    yield made
    made.stop(kill=True)
