"""A daemon that is passed its socket, as by systemd, and killed: connections meanwhile wait, and get replies."""

import socket
import threading

import msgpack
import pytest

from lives import ROUNDS, SERVER, START, decided, say, start, wait_for
from servers import gunicorn
from test_restarts import APP
from traffic import Callers, now

RULES = "domain: api\nlimits:\n  - {name: per-user, key: [user], rate: 1000/s}\n"
ASKED = [[0, 0, 1, {}], [3, 1, "api", [["user", "u1"]]]]


class Waiter:
    """Connects and sends a request; collects `replies` until there are two, or until the daemon hangs up."""

    def __init__(self, path):
        self.peer, self.replies = socket.socket(socket.AF_UNIX), []
        self.peer.settimeout(20)
        self.peer.connect(path)
        for message in map(msgpack.packb, ASKED):
            self.peer.sendall(len(message).to_bytes(4, "big") + message)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        data = b""
        with self.peer:
            while len(self.replies) < 2 and (chunk := self.peer.recv(4_096)):
                data += chunk
                while len(data) >= 4 and len(data) >= (end := 4 + int.from_bytes(data[:4], "big")):
                    self.replies.append(msgpack.unpackb(data[4:end]))
                    data = data[end:]


@pytest.fixture
def listener(daemon):
    """The socket, held by the parent that starts the daemon."""
    with socket.socket(socket.AF_UNIX) as held:
        held.bind(daemon.socket)
        held.listen(4_096)
        yield held


def test_the_next_daemon_answers_waiting_connections(daemon, directory, listener):
    (daemon.rules / "api.yaml").write_text(RULES)
    starts, waits = [start(daemon, listener)], []
    with gunicorn(daemon, directory, APP, *SERVER) as port, Callers(port) as callers:
        wait_for(callers, decided, 0)
        for _ in range(ROUNDS):
            daemon.stop(kill=True)
            waiters = [Waiter(daemon.socket) for _ in range(50)]
            starts.append(start(daemon, listener))
            for waiter in waiters:
                waiter.reader.join(20)
                kinds = [(reply[0], reply[1]) for reply in waiter.replies]
                assert kinds == [(0, 0), (1, 1)] and waiter.replies[1][2] == 0, waiter.replies
            waits.append(wait_for(callers, decided, now()))
    assert {answer.status for answer in callers.answers} == {200}, "the application answered every request"
    say("serving after the start", starts, START)
    say("and the first of the application's clients asks again", waits)
