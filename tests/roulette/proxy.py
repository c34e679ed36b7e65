"""Forwards between each host and Redis, and injects faults into the replies on command.

    proxy.py SOCKET_OF_REDIS HOST=PORT…     then lines: `HOST MODE [NUMBER]`, `target SOCKET`, `HOST drop`

Confirms each line once it is active. The modes: forward; slow (milliseconds); silent; refuse (no connection);
lose (replies of Redis are lost in one of NUMBER reads, and the connection ends); mangle (bytes are changed in one of
NUMBER reads); drip (a byte at a time); huge (an endless reply).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys

rng = random.Random(1)


class Front:
    def __init__(self) -> None:
        self.mode, self.number, self.open = "forward", 0, set[asyncio.StreamWriter]()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open.add(writer)
        with contextlib.suppress(OSError, EOFError), contextlib.closing(writer):
            if self.mode == "refuse":
                return
            up, down = await asyncio.open_unix_connection(target[0])
            with contextlib.closing(down):
                back = asyncio.ensure_future(self.bring(up, writer))
                back.add_done_callback(lambda ended: (ended.cancelled() or ended.exception(), writer.close()))
                while data := await reader.read(65_536):
                    if self.mode == "refuse":
                        break
                    down.write(data)
                back.cancel()
        self.open.discard(writer)

    async def bring(self, up: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await up.read(65_536):
            if writer.is_closing():
                return
            mode, number = self.mode, self.number
            if mode == "slow":
                await asyncio.sleep(number / 1000)
            elif mode == "silent":
                while self.mode == "silent":
                    await asyncio.sleep(0.02)
                return
            elif mode == "lose" and not rng.randrange(number):
                return
            elif mode == "mangle" and not rng.randrange(number):
                spoilt = bytearray(data)
                for _ in range(rng.randint(1, 4)):
                    spoilt[rng.randrange(len(spoilt))] = rng.choice(b"0123456789:*$-+\r\n\0\xff")
                data = bytes(spoilt)
            elif mode == "drip":
                for byte in data:
                    if writer.is_closing():
                        return
                    writer.write(bytes([byte]))
                    await asyncio.sleep(0.002)
                continue
            elif mode == "huge":
                data = rng.choice([b"*2147483647\r\n" + b"*1\r\n" * 1000, b"$9223372036854775807\r\n" + bytes(60_000)])
            writer.write(data)


target = [sys.argv[1]]


async def main() -> None:
    fronts = {}
    for word in sys.argv[2:]:
        host, port = word.split("=")
        fronts[host] = Front()
        await asyncio.start_server(fronts[host].serve, "127.0.0.1", int(port))
    print("ready", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        name, *words = line.split()
        if name == "target":
            target[0] = words[0]
        elif words[0] != "drop":
            fronts[name].mode, fronts[name].number = words[0], int([*words, "0"][1])
        if name == "target" or words[0] in ("drop", "refuse"):
            for front in fronts.values() if name == "target" else [fronts[name]]:
                for writer in list(front.open):
                    writer.close()
        print(line.strip(), flush=True)


asyncio.run(main())
