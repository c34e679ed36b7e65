"""Listens at the path that applications use, forwards to the real daemon, and injects faults on command.

    python front.py PATH SOCKET_OF_THE_DAEMON    then one fault per line; confirms each once it is active

A separate process, so that it costs its driver no time. It never decides and never invents a valid reply.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import subprocess
import sys

import msgpack

# Faults of the daemon's replies, and faults of the path.
REPLIES = ("garbage", "dripping", "oversized", "wrong_id", "stale", "half", "late")
PATHS = ("gone", "removed", "full")
LATE, DROP = 0.030, 0.005  # seconds: after the deadline of 20 ms; between two bytes
ID_OFFSET = 5  # offset of a wrong id; pending ids are avoided, which a client could not tell from correct ones
CORRUPT_ONE_IN = 7  # one reply of this number is corrupted, so that a client continues


class Front:
    def __init__(self, path: str, daemon: str) -> None:
        self.path, self.daemon, self.fault, self.rng = path, daemon, "forward", random.Random(7)
        self.listener, self.fillers = self._listen(64), list[socket.socket]()
        self.open, self.tasks = set[socket.socket](), set[asyncio.Task]()

    def turn(self, fault: str) -> None:
        """Activates this fault."""
        if self.fault in PATHS:
            self._close()
            self.listener = self._listen(64)
        self.fault = fault
        if fault in PATHS:
            self._close()
            for connection in self.open:
                hang_up(connection)
        if fault == "gone":  # a path without a listener, as a killed daemon leaves it
            unheard = socket.socket(socket.AF_UNIX)
            unheard.bind(self.path)
            unheard.close()
        if fault == "full":  # connections would wait: the backlog is full and the socket does not accept
            self.listener = self._listen(0, accepts=False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    self.fillers.append(socket.socket(socket.AF_UNIX))
                    self.fillers[-1].setblocking(False)
                    self.fillers[-1].connect(self.path)

    def _listen(self, backlog: int, accepts: bool = True) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX)
        listener.setblocking(False)
        listener.bind(self.path)
        listener.listen(backlog)
        if accepts:
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)
        return listener

    def _close(self) -> None:
        if self.listener.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self.listener)
        for each in (self.listener, *self.fillers):
            each.close()
        self.fillers.clear()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                connection, _ = listener.accept()
                self.open.add(connection)  # immediately: a fault of the path closes it from here on
                self._spawn(self._serve(connection))

    def _spawn(self, work) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _serve(self, connection: socket.socket) -> None:
        reader, writer = await asyncio.open_unix_connection(sock=connection)
        with contextlib.suppress(OSError, EOFError), contextlib.closing(writer):
            up, down = await asyncio.open_unix_connection(self.daemon)
            with contextlib.closing(down):
                answering = asyncio.ensure_future(self._answer(up, writer))
                answering.add_done_callback(lambda ended: (ended.cancelled() or ended.exception(), hang_up(connection)))
                while data := await reader.read(65_536):
                    down.write(data)
                answering.cancel()
                await asyncio.gather(answering, return_exceptions=True)
        self.open.discard(connection)

    async def _answer(self, up: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        given = None
        while True:
            length = await up.readexactly(4)
            reply = length + await up.readexactly(int.from_bytes(length, "big"))
            fault = self.fault
            if fault == "seldom":
                fault = "forward" if self.rng.randrange(CORRUPT_ONE_IN) else self.rng.choice(REPLIES)
            if fault == "dripping":
                for i in range(len(reply)):
                    writer.write(reply[i : i + 1])
                    await asyncio.sleep(DROP)
            elif fault == "late":
                await asyncio.sleep(LATE)
                writer.write(reply)
            elif fault == "half":
                writer.write(reply[: len(reply) // 2])
                return
            else:
                sent = self._corrupt(fault, reply, given)
                writer.write(sent)
                given = sent if sent is reply else given

    def _corrupt(self, fault: str, reply: bytes, given: bytes | None) -> bytes:
        if fault == "garbage":
            whole = self.rng.randbytes(len(reply) - 4)
            return self.rng.choice([self.rng.randbytes(len(reply)), reply[:4] + whole, framed(self._nonsense(reply))])
        if fault == "oversized":
            return self.rng.choice([16_385, 1 << 20, (1 << 32) - 1]).to_bytes(4, "big") + bytes(65_536)
        if fault == "wrong_id":
            message = msgpack.unpackb(reply[4:])
            return framed([message[0], (message[1] or 0) + self.rng.choice([ID_OFFSET, 1 << 40]), *message[2:]])
        if fault == "stale" and given:  # an earlier reply
            return given
        return reply

    def _nonsense(self, reply: bytes) -> list:
        """A well-formed frame that the protocol does not have."""
        kind, number, *rest = msgpack.unpackb(reply[4:])
        return self.rng.choice([[9, number, *rest], [kind, number, 77, *rest[1:]], [kind, number, 0.5], []])


def hang_up(connection: socket.socket) -> None:
    """Writes and reads no more; bytes already read still reach the daemon, since their loss would be undetectable."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def framed(message: list) -> bytes:
    payload = msgpack.packb(message)
    return len(payload).to_bytes(4, "big") + payload


async def main(path: str, daemon: str) -> None:
    front = Front(path, daemon)
    print("ready", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        front.turn(line.strip())
        print(line.strip(), flush=True)


@contextlib.contextmanager
def spinning(path, daemon):
    """A front at `path`; yields the function that sets its fault."""
    command = [sys.executable, __file__, str(path), str(daemon)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def turn(fault):
            process.stdin.write(f"{fault}\n")
            process.stdin.flush()
            assert process.stdout.readline().strip() == fault, "the front ended"

        assert process.stdout.readline().strip() == "ready"
        try:
            yield turn
        finally:
            process.kill()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
