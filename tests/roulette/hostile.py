"""A hostile client of another user.

    hostile.py SOCKET MODE SEED     until it is killed

Modes are the functions below whose names do not begin with `_`. None uses keys that the oracle counts.
"""

from __future__ import annotations

import array
import contextlib
import random
import socket
import sys
import time

from tidegate.protocol import encode


def _frame(message) -> bytes:
    payload = message if isinstance(message, bytes) else encode(message)
    return len(payload).to_bytes(4, "big") + payload


HELLO = _frame([0, 0, 1, {}])


def _hit(number, user, op=3, **more) -> bytes:
    pairs = ["user", user]
    for name, value in more.items():
        pairs += [name, value]
    return _frame([op, number, "others", [pairs]])


def _connect(path, hello=True) -> socket.socket:
    peer = socket.socket(socket.AF_UNIX)
    peer.settimeout(1)
    peer.connect(path)
    if hello:
        peer.sendall(HELLO)
    return peer


def _again(path, act, pause=0.0, hello=True):
    """Yields connections one after the other, ignoring errors of each."""
    while True:
        with contextlib.suppress(OSError), _connect(path, hello) as peer:
            act(peer)
        time.sleep(pause)


def random_bytes(path, rng):
    _again(path, lambda peer: (peer.sendall(rng.randbytes(rng.randint(1, 9000))), peer.recv(100)), 0.002, hello=False)


def random_frames(path, rng):
    def act(peer):
        for _ in range(20):
            peer.sendall(_frame(rng.randbytes(rng.randint(1, 300))))
            peer.recv(4096)

    _again(path, act, 0.002)


def near_frames(path, rng):
    """Good requests with one changed byte."""

    def act(peer):
        for number in range(50):
            frame = bytearray(_hit(number, f"u{rng.randrange(50)}", rng.choice([1, 3, 4])))
            frame[rng.randrange(4, len(frame))] = rng.randrange(256)
            peer.sendall(frame)
            peer.recv(4096)

    _again(path, act, 0.002)


def half_frames(path, rng):
    peers = []
    while True:
        with contextlib.suppress(OSError):
            peers.append(_connect(path))
            peers[-1].sendall(_hit(1, "u1")[: rng.randint(1, 12)])
        if len(peers) > 100:
            peers.pop(rng.randrange(len(peers))).close()
        time.sleep(0.005)


def huge_lengths(path, rng):
    lengths = [0, 16_385, 1 << 20, 1 << 31, (1 << 32) - 1]
    act = lambda peer: (peer.sendall(rng.choice(lengths).to_bytes(4, "big") + bytes(1000)), peer.recv(100))  # noqa: E731
    _again(path, act, 0.002)


def silent_peers(path, rng):
    peers = []
    while len(peers) < 400:
        with contextlib.suppress(OSError):
            peers.append(_connect(path, hello=rng.random() < 0.5))
    time.sleep(3600)


def dripping(path, rng):
    def act(peer):
        for byte in _hit(1, "u1") * 20:
            peer.sendall(bytes([byte]))
            time.sleep(0.005)

    _again(path, act)


def connecting(path, rng):
    _again(path, lambda peer: None, hello=False)


def greeting(path, rng):
    """Thousands of sessions, each with another name."""

    def act(peer):
        peer.sendall(
            _frame([0, 0, 1, {"session": rng.randbytes(16), "pid": rng.randrange(1, 99_999), "connection": 1}])
        )
        peer.recv(200)

    _again(path, act, hello=False)


def _flood(path, make):
    def act(peer):
        number = 0
        while True:
            peer.sendall(b"".join(make(number + i) for i in range(50)))
            number += 50
            peer.recv(65_536)

    _again(path, act)


def requests(path, rng):
    _flood(path, lambda number: _hit(number, "u1"))


def pings(path, rng):
    _flood(path, lambda number: _frame([8, number]))


def large_frames(path, rng):
    pad = [f"k{i}" if i % 2 == 0 else "v" * 1000 for i in range(30)]
    _flood(path, lambda number: _frame([3, number, "others", [pad]]))


def keys(path, rng):
    """A new key for each request, beyond the capacity of the tables."""
    _flood(path, lambda number: _hit(number, f"k{rng.getrandbits(60)}"))


def unread(path, rng):
    """Sends requests and never reads."""
    peers = []
    while True:
        with contextlib.suppress(OSError):
            if len(peers) < 30:
                peers.append(_connect(path))
                peers[-1].setblocking(False)
            rng.choice(peers).send(b"".join(_hit(number, "u1") for number in range(300)))
        time.sleep(0.005)


def hoarding(path, rng):
    """Acquires leases and never releases them."""

    def act(peer):
        for number in range(1, 3000):
            peer.sendall(_hit(number, "u1", 1, hold="1"))
            peer.recv(4096)

    _again(path, act)


def abandoning(path, rng):
    def act(peer):
        for number in range(200):
            options = {"abandoned": [[1, rng.getrandbits(40)] for _ in range(200)], "missed": {"timeout": 1 << 40}}
            peer.sendall(_frame([3, number, "others", [["user", "u1"]], 1, None, options]))
            peer.recv(4096)

    _again(path, act)


def releasing(path, rng):
    """Releases and renews leases of others."""
    _flood(path, lambda number: _frame([rng.choice([2, 6]), number, rng.getrandbits(62), 0][: 4 if number % 2 else 3]))


def nested(path, rng):
    def act(peer):
        peer.sendall(
            _frame(
                rng.choice(
                    [b"\x91" * 9000, b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\x94\x03\x01\xa6others"]
                )
            )
        )
        peer.recv(200)

    _again(path, act, 0.002)


def descriptors(path, rng):
    def act(peer):
        with open("/dev/null") as null:
            for number in range(100):
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [null.fileno()] * 20))]
                peer.sendmsg([_hit(number, "u1")], rights)
                peer.recv(4096)

    _again(path, act, 0.002)


def hanging_up(path, rng):
    """Sends requests and closes before the reply."""
    _again(path, lambda peer: peer.sendall(b"".join(_hit(n, "u1", 1, hold="1") for n in range(30))), 0.001)


def signals(path, rng):
    _flood(path, lambda number: _frame([7, None if number % 50 else number, "default", "lag", number % 1001]))


def main(path, mode, seed):
    globals()[mode](path, random.Random(int(seed)))


MODES = [
    name
    for name, value in list(globals().items())
    if callable(value) and getattr(value, "__module__", "") == __name__ and name[0] != "_" and name != "main"
]

if __name__ == "__main__":
    main(*sys.argv[1:])
