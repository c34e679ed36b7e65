"""One stream to the daemon, one request at a time. After any error it is closed and never reused.

The socket is Python's own, which libraries do not patch, so its calls raise only their own errors: `raised_here`
recognizes exceptions of signal handlers and other threads, which pass.
"""

from __future__ import annotations

import _socket
import errno
import functools
import os
import re
import select
import socket
import struct
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Any

from .protocol import (
    DECISION,
    ERROR,
    ERRORS_KEPT_OPEN,
    FRAME_MAX,
    GOODBYE,
    HELLO,
    INTERNAL,
    WELCOME,
    Fault,
    Map,
    beside,
    decode,
    encode,
    error_fault,
    raised_here,
)

BLOCKING_MIN = 0.01  # seconds: shorter deadlines need polling
GRACE = 0.002  # seconds for the reply, if this process used up the deadline before it wrote the request
PATH_BYTES_MAX, REPLY_BYTES, READ_BYTES = 107, 256, FRAME_MAX  # REPLY_BYTES: first read; allocated faster
SEND_FLAGS = socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT
_SILENT = struct.Struct(">IBBB").pack
no_daemon = "no daemon at {} ({}): start it with `tidegate serve`, or set TIDEGATE_SOCKET".format


class Socket(_socket.socket):
    """Closes itself without a warning when collected; in C, since an exception in Python code would be lost."""

    __slots__ = ()
    __del__ = _socket.socket.close


def connect(path: str) -> Socket:
    """Connects a non-blocking stream."""
    try:
        if len(os.fsencode(path)) > PATH_BYTES_MAX or "\0" in path:
            raise Fault(no_daemon(path, "AF_UNIX path too long, or not a path"), "unreachable")
        made = Socket(socket.AF_UNIX, socket.SOCK_STREAM)
    except OSError as error:
        if not raised_here(error):
            raise
        raise Fault(f"no socket to ask {path}: {error}", "unreachable", code=error.errno or 0) from error
    made.setblocking(False)
    if not (code := made.connect_ex(path)):
        return made
    made.close()
    cause = OSError(code, os.strerror(code))
    raise Fault(beside("connect_error", "explain", no_daemon)(path, cause), "unreachable", code=code)


class Connection:
    """A stream to the daemon. `asked`: id of the last request, `used`: its start, `leaving`: after a GOODBYE."""

    def __init__(self, path: str, info: Map, timeout: float) -> None:
        self.number, self.asked, self.last, self.rest, self.leaving = info["connection"], 0, -1, b"", False
        self.welcome, self.used = False, 0.0
        self.unproved = deque[list[int]](maxlen=512)  # requests released since the last reply
        hello = encode([HELLO, 0, 1, info])
        self.greeting = len(hello).to_bytes(4, "big") + hello  # sent with the first request: saves a round trip
        self.socket = connect(path)
        # A blocking read saves a call, but signals restart its timeout, so it is short. Under gevent only poll waits.
        self.blocks = timeout >= BLOCKING_MIN and socket.socket.__module__ == "socket"
        try:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", 0, 1_000))
            self.socket.setblocking(self.blocks)
        except OSError as error:
            if not raised_here(error):
                raise
            self.blocks = False  # a seccomp filter may forbid it: poll instead
        self.send, self.recv = self.socket.send, self.socket.recv

    def close(self) -> None:
        """Closes without `shutdown`, which would also end the parent's connection after a fork."""
        self.socket.close()

    def ask(self, op: int, elements: list[bytes], wanted: int, deadline: float) -> re.Match[bytes] | list[Any] | Fault:
        """Writes a request and reads its reply of the kind `wanted`; 0: a frame without id and reply.

        Returns the reply's elements after its id; of most decisions the match of their bytes; or, as a Fault, an error
        that keeps the connection open.
        """
        self.asked = asked = self.asked + 1
        if asked > self.last:  # the id's encoding gets wider: update head size, first byte, packer
            self.last, self.at, self.code, self.head = _numbered(asked)
        body, at, code, head = b"".join(elements), self.at, self.code, self.head
        size, count = len(body), 0x92 + len(elements)
        start = head(at - 4 + size, count, op, code, asked) if wanted else _SILENT(3 + size, count, op, 0xC0)
        data = self.greeting + start + body
        try:
            # Does not block. With one request at a time, the send buffer takes a frame whole.
            if self.send(data, SEND_FLAGS) < len(data):
                raise Fault("the daemon does not read", "timeout")
        except OSError as error:
            if not raised_here(error):
                raise
            if error.errno == errno.EAGAIN:
                raise Fault("the daemon does not read", "timeout") from error
            if self.greeting and wanted:
                self._wait(wanted, 0.0)  # raises a Fault with the daemon's ERROR, if there is one
            raise Fault("the daemon hung up", "unreachable", again=not self.greeting) from error
        self.greeting = b""
        if not wanted:
            return []
        if self.blocks:
            try:
                data = self.recv(REPLY_BYTES)
            except OSError as error:
                if not raised_here(error):
                    raise
                if error.errno == errno.EAGAIN:
                    return self._wait(wanted, deadline)
                raise self._hung_up() from error
            # Fast path of most decisions: compares the head, then matches all other bytes.
            alike = wanted == DECISION and (n := len(data) - 4) > at and data[:at] == head(n, 0x9D, 1, code, asked)
            if alike and (match := match_decision(data[at + 1])(data, at)):
                return match
            self.rest = data
            if not data:
                raise self._hung_up()
        return self._wait(wanted, deadline)

    def _wait(self, wanted: int, deadline: float) -> list[Any] | Fault:
        deadline = max(deadline, monotonic() + GRACE)
        while True:
            while len(self.rest) >= (end := 4 + int.from_bytes(self.rest[:4], "big")):
                reply, self.rest = decode(self.rest[4:end]), self.rest[end:]
                kind, about, what = ([n if n.__class__ is int else None for n in reply[:3]] + 3 * [None])[:3]
                if (kind, about) == (wanted, self.asked):
                    return reply[2:]
                text, hello = f"the daemon answered {kind}: {reply[2:]!r:.200}", about == 0 and not self.welcome
                if kind == ERROR:
                    fault = error_fault(text, what, hello or about == self.asked, about)
                    if about == self.asked and what in ERRORS_KEPT_OPEN:
                        self.leaving = self.leaving or what == INTERNAL
                        return fault
                    raise fault
                if not (kind == GOODBYE or (hello and (kind, what) == (WELCOME, 1))):
                    raise Fault(text)
                self.leaving, self.welcome = self.leaving or kind == GOODBYE, self.welcome or kind == WELCOME
            if end > 4 + FRAME_MAX:
                raise Fault(beside("log_texts", "oversized", "malformed frame {!r:.20}".format)(self.rest))
            if not deadline:
                raise Fault("the daemon did not answer in time", "timeout")
            deadline = deadline if monotonic() < deadline else 0.0  # after it, one last read
            self.rest += self._receive(deadline)

    def _receive(self, deadline: float) -> bytes:
        """Returns the next bytes. After the deadline, reads once without waiting."""
        while True:
            left = max(deadline - monotonic(), 0.0)
            try:
                if left:
                    _await_readable(self.socket.fileno(), left)
                if chunk := self.recv(READ_BYTES, socket.MSG_DONTWAIT):
                    return chunk
            except OSError as error:
                if not raised_here(error):
                    raise
                if error.errno != errno.EAGAIN:
                    raise self._hung_up() from error
                if not left:
                    raise Fault("the daemon did not answer in time", "timeout") from error
            else:
                raise self._hung_up()

    def _hung_up(self) -> Fault:
        """Returns a Fault; after a GOODBYE the request was not processed, since the daemon answers all it has read."""
        return Fault("the daemon hung up", "unreachable", again=self.leaving)


def _await_readable(fd: int, seconds: float) -> None:
    try:
        if hasattr(select, "poll"):  # looked up on each call: gevent replaces it, eventlet removes it
            (poll := select.poll()).register(fd, select.POLLIN)
            poll.poll(seconds * 1_000)
        else:
            select.select([fd], [], [], seconds)
    except OSError as error:
        if not raised_here(error):
            raise
        raise Fault(f"cannot wait for the daemon: {error}", "unreachable") from error


@functools.lru_cache(256)
def match_decision(first: int) -> Callable[[bytes, int], re.Match[bytes] | None]:
    """Matches most decisions from the verdict on: nil or short ASCII as rule, with this first byte; no notes."""
    text = re.escape(bytes((first,))) + b"([ -~]{%d})" % (first - 0xA0) if 0xA0 < first < 0xC0 else b"(?!)"
    rule = b"\\xc0()" if first == 0xC0 else text
    number = rb"([\0-\x7f]|\xc0|\xcc.|\xcd..|\xce....|\xcf[\0-\x7f].......)"
    rate = rb"\xa4rate(?:%b)" % b"|".join(bytes((0xA0 + size,)) + b"[ -~]{%d}" % size for size in range(3, 16))
    extra = rb"(\xc0|(?:\x81|(?:\x82|(?P<long>\x83))%b(?(long)\xa7blocked\xc3))\xa6digest\xd9\x20[0-9a-f]{32})" % rate
    return re.compile(rb"([\0-\4])" + rule + 6 * number + b"\xc0\xc0" + extra, re.DOTALL).fullmatch


def _numbered(asked: int) -> tuple[int, int, bytes, Callable[..., bytes]]:
    first, width = encode(asked)[:1], len(encode(asked)) - 1
    head = struct.Struct(">IBB" + {0: "0sB", 1: "1sB", 2: "1sH", 4: "1sI", 8: "1sQ"}[width])
    return (1 << 8 * width) - 1 or 127, head.size, first if width else b"", head.pack
