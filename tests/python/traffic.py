"""Traffic during restarts of the daemon: callers of an application, and clients of the daemon's
own socket that pipeline requests. Each records its replies."""

import contextlib
import itertools
import socket
import threading
import time
import typing

import msgpack

from servers import get


class Answer(typing.NamedTuple):
    user: str
    asked: int  # nanoseconds of the boot-time clock, which the daemon uses
    answered: int
    status: int
    decided: bool  # a decision of the daemon

    @property
    def admitted(self):
        return self.decided and self.status == 200


def now():
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class Crowd:
    """Threads that run the same function until the end; `answers` has the results of all."""

    def __init__(self, size, user="greedy"):
        self.user, self.answers, self.stopped = user, [], threading.Event()
        self.threads = [threading.Thread(target=self._run, daemon=True) for _ in range(size)]

    def latest(self, since):
        """Returns results since then, and slightly earlier ones: they are in the order of their end, nearly."""
        return itertools.takewhile(lambda answer: answer.answered > since - 1e9, reversed(self.answers))

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stopped.set()
        for thread in self.threads:
            thread.join(20)


class Callers(Crowd):
    """Callers of an application, each with one request at a time."""

    def __init__(self, port, size=4, path="/v1/orders", **more):
        super().__init__(size, **more)
        self.port, self.path = port, path

    def _run(self):
        while not self.stopped.wait(0.02):
            user, asked = self.user, now()
            status, headers, _ = get(self.port, user, self.path)
            decided = any(name.lower() == "ratelimit" for name in headers)
            self.answers.append(Answer(user, asked, now(), status, decided))


class Pipes(Crowd):
    """Clients of the daemon's own socket that write requests without waiting until the daemon stops reading, and
    reconnect. `ends` has, for each connection, the requests read from it, the replies, and whether the last of them was
    GOODBYE."""

    def __init__(self, daemon, size=2, **more):
        super().__init__(size, **more)
        self.path, self.ends = daemon.socket, []

    def _run(self):
        while not self.stopped.wait(0.002):
            with contextlib.suppress(FileNotFoundError, ConnectionRefusedError), socket.socket(socket.AF_UNIX) as peer:
                peer.connect(self.path)
                self._converse(peer)

    def _converse(self, peer):
        taken, asked = [0], {}
        writer = threading.Thread(target=self._write, args=(peer, taken, asked), daemon=True)
        writer.start()
        count, is_goodbye = 0, False
        unpacker = msgpack.Unpacker()
        rest = b""
        with contextlib.suppress(ConnectionResetError):
            while chunk := peer.recv(65_536):
                rest += chunk
                while len(rest) >= 4 and len(rest) >= (end := 4 + int.from_bytes(rest[:4], "big")):
                    unpacker.feed(rest[4:end])
                    reply, rest = unpacker.unpack(), rest[end:]
                    is_goodbye = reply[0] == 4
                    count += not is_goodbye
                    if reply[0] == 1:
                        user, at = asked[reply[1]]
                        status = {0: 200, 1: 429}[reply[2]]
                        self.answers.append(Answer(user, at, now(), status, decided=True))
        writer.join(20)
        self.ends.append((taken[0], count, is_goodbye and not rest))

    def _write(self, peer, taken, asked):
        with contextlib.suppress(OSError):
            self._send(peer, taken, [0, 0, 1, {}])
            for number in range(1, 1 << 30):
                if self.stopped.is_set():
                    return peer.shutdown(socket.SHUT_WR)
                if number % 10:
                    self._send(peer, taken, [8, number])
                else:
                    asked[number] = self.user, now()
                    self._send(peer, taken, [3, number, "api", [["path", "/v1/orders", "user", self.user]]])
                    time.sleep(0.005)  # lets the other threads run
        return None

    def _send(self, peer, taken, message):
        payload = msgpack.packb(message)
        # So few bytes are written in full or not at all.
        peer.sendall(len(payload).to_bytes(4, "big") + payload)
        taken[0] += 1
