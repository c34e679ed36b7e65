"""HTTP over a plain socket: every byte that a server writes, the framing of bodies, and persistence of connections."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import struct
import time

TIMEOUT = 60  # seconds, on a machine that pauses at times
PATIENCE = 0.005  # of a caller that hangs up
CHUNK = 65_536


@dataclasses.dataclass(frozen=True)
class Answer:
    """`head` and `framed` are raw bytes; `body` is decoded."""

    status: int
    headers: dict[str, str]  # names in lower case
    body: bytes
    head: list[bytes]
    framed: bytes
    reused: bool  # the connection had a response before
    ended: bool  # the server has closed it


class Line:
    """A connection to the server at `port`, for one caller, open as long as the server keeps it open."""

    def __init__(self, port: int) -> None:
        self.port, self.socket, self.came = port, None, b""
        self.last = 0.0  # time of the last complete response

    def ask(self, path, user, method="GET", version="1.1", close=False) -> Answer:
        leaves = close and version == "1.1"
        request = f"{method} {path} HTTP/{version}\r\nHost: 127.0.0.1:{self.port}\r\nX-User: {user}\r\n"
        request = f"{request}{'Connection: close' if leaves else 'Accept: */*'}\r\n\r\n".encode()
        if not (reused := self.socket is not None and self._begun(request)):
            self.close()
            self.socket = socket.create_connection(("127.0.0.1", self.port), TIMEOUT)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            assert self._begun(request), "no answer"
        while b"\r\n\r\n" not in self.came:
            self._more()
        head, _, self.came = self.came.partition(b"\r\n\r\n")
        first, *lines = head.split(b"\r\n")
        fields = (line.decode("latin-1").partition(":") for line in lines)
        headers = {name.lower(): value.strip() for name, _, value in fields}
        kept = version == "1.1" and not leaves and headers.get("connection", "").lower() != "close"
        body, size = self._body(headers, method, kept)
        if not kept:
            self._until_the_end()
            size = len(self.came)
            self.close(forget=False)
        framed, self.came = self.came[:size], self.came[size:]
        self.last = time.monotonic()
        return Answer(int(first.split()[1]), headers, body, [first, *lines], framed, reused, not kept)

    def hang_up_on(self, path, user) -> None:
        """Sends a request on a new connection, and resets it within the response, which Puma sends at its end."""
        with socket.create_connection(("127.0.0.1", self.port), TIMEOUT) as other:
            other.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nX-User: {user}\r\n\r\n".encode())
            other.settimeout(PATIENCE)
            with contextlib.suppress(TimeoutError):
                other.recv(1)
            other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def close(self, forget=True) -> None:
        if self.socket is not None:
            self.socket.close()
        self.socket, self.came = None, b"" if forget else self.came

    def _begun(self, request: bytes) -> bool:
        """True if a response begins; a persistent connection may have been closed."""
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            self.socket.sendall(request)
            self.came += self.socket.recv(CHUNK)
        return self.came != b""

    def _body(self, headers: dict[str, str], method: str, kept: bool) -> tuple[bytes, int]:
        """Decodes a framed body; returns it and its size in bytes."""
        if method == "HEAD":
            return b"", 0
        if headers.get("transfer-encoding") == "chunked":
            return self._chunks()
        if "content-length" in headers:
            size = int(headers["content-length"])
            while len(self.came) < size:
                self._more()
            return self.came[:size], size
        assert not kept, f"a body of any length on a connection that goes on: {headers}"
        self._until_the_end()
        return self.came, len(self.came)

    def _chunks(self) -> tuple[bytes, int]:
        body, at = b"", 0
        while True:
            while (end := self.came.find(b"\r\n", at)) < 0:
                self._more()
            size = int(self.came[at:end], 16)
            at = end + 2 + size + 2  # after the last chunk, of 0 bytes, the same end: no server here sends trailers
            while len(self.came) < at:
                self._more()
            assert self.came[at - 2 : at] == b"\r\n", "a chunk longer than it says"
            body += self.came[end + 2 : at - 2]
            if not size:
                return body, at

    def _more(self) -> None:
        if not (data := self.socket.recv(CHUNK)):
            raise EOFError(f"the answer ended after {self.came[-200:]!r}")
        self.came += data

    def _until_the_end(self) -> None:
        while data := self.socket.recv(CHUNK):
            self.came += data
