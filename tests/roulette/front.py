"""Holds the path that applications use, hands everything on to the real daemon, and misbehaves when it is told to.

    python front.py PATH SOCKET_OF_THE_DAEMON    then a fault a line; each is answered once it holds

A process of its own, so that what it does costs its driver no time. It never judges and never makes up a good reply.
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

# What becomes of the daemon's replies, and what becomes of the path.
REPLIES = ("garbage", "dripping", "oversized", "wrong_id", "stale", "half", "late")
PATHS = ("gone", "removed", "full")
LATE, DROP = 0.030, 0.005  # seconds: behind the deadline of 20 ms; between two bytes
NOBODYS = 5  # so many ids on nobody waits: a client cannot tell the id of another request from a right one
SELDOM = 7  # one reply of so many is spoilt, so that a client goes on asking


class Front:
    def __init__(self, path: str, daemon: str) -> None:
        self.path, self.daemon, self.fault, self.dice = path, daemon, "forward", random.Random(7)
        self.listener, self.fillers = self._listen(64), list[socket.socket]()
        self.open, self.tasks = set[socket.socket](), set[asyncio.Task]()

    def turn(self, fault: str) -> None:
        """From now on this is what goes wrong."""
        if self.fault in PATHS:
            self._close()
            self.listener = self._listen(64)
        self.fault = fault
        if fault in PATHS:
            self._close()
            for connection in self.open:
                hang_up(connection)
        if fault == "gone":  # a path without anybody behind it, as a daemon that was killed leaves it
            unheard = socket.socket(socket.AF_UNIX)
            unheard.bind(self.path)
            unheard.close()
        if fault == "full":  # who connects would have to wait: nobody accepts, and others wait already
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
                self.open.add(connection)  # at once: a fault of the path hangs up on it from here on
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
                fault = "forward" if self.dice.randrange(SELDOM) else self.dice.choice(REPLIES)
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
                sent = self._spoilt(fault, reply, given)
                writer.write(sent)
                given = sent if sent is reply else given

    def _spoilt(self, fault: str, reply: bytes, given: bytes | None) -> bytes:
        if fault == "garbage":
            whole = self.dice.randbytes(len(reply) - 4)
            return self.dice.choice([self.dice.randbytes(len(reply)), reply[:4] + whole, framed(self._nonsense(reply))])
        if fault == "oversized":
            return self.dice.choice([16_385, 1 << 20, (1 << 32) - 1]).to_bytes(4, "big") + bytes(65_536)
        if fault == "wrong_id":
            message = msgpack.unpackb(reply[4:])
            return framed([message[0], (message[1] or 0) + self.dice.choice([NOBODYS, 1 << 40]), *message[2:]])
        if fault == "stale" and given:  # what answered another request already
            return given
        return reply

    def _nonsense(self, reply: bytes) -> list:
        """A frame that can be read, of what the protocol has not."""
        kind, number, *rest = msgpack.unpackb(reply[4:])
        return self.dice.choice([[9, number, *rest], [kind, number, 77, *rest[1:]], [kind, number, 0.5], []])


def hang_up(connection: socket.socket) -> None:
    """Nothing more is written or taken; what was taken still reaches the daemon, for nobody could know of its loss."""
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
    """A front at `path`; yields the function that tells it what goes wrong from now on."""
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
