"""One stream to the daemon: a request and its reply before one deadline. Nothing here is tried again or forgiven."""

from __future__ import annotations

import contextlib
import os
import select
import socket
from time import monotonic
from typing import Any

from ._wire import DECISION, DONE, ERROR, FRAME_MAX, GOODBYE, HELLO, KEEPING, WELCOME, Malformed, decode, encode


class Fault(Exception):
    """No decision: a word to count, a text for the log. `again`: the daemon left an idle connection without having
    had the request, so that asking again charges nobody twice."""

    def __init__(self, reason: str, text: str, again: bool = False) -> None:
        super().__init__(text)
        self.reason, self.again = reason, again


class Connection:
    """One stream, one request at a time. After any doubt it is closed, never used again."""

    def __init__(self, path: str, info: dict[str, Any]) -> None:
        self.number, self.asked, self.rest, self.leaving = info["connection"], 0, b"", False
        hello = encode([HELLO, 0, 1, info])
        self.greeting = len(hello).to_bytes(4, "big") + hello  # goes out with the first request: no round trip more
        self.socket, self.poll = socket.socket(socket.AF_UNIX), select.poll()
        try:
            if len(os.fsencode(path)) > PATH_MAX:
                raise ValueError(f"it is longer than {PATH_MAX} bytes")
            self.socket.setblocking(False)
            self.socket.connect(path)
        except (OSError, ValueError) as error:
            self.socket.close()
            raise Fault("unreachable", _cause(path, error)) from error
        self.poll.register(self.socket, select.POLLIN)

    def ask(self, head: bytes, body: bytes, deadline: float) -> list[Any]:
        """Writes one request and reads its reply."""
        self.asked += 1
        number = encode(self.asked)
        payload = b"%b%b%b" % (head, number, body)
        frame = b"%b%b%b" % (self.greeting, len(payload).to_bytes(4, "big"), payload)
        idle, self.greeting = not self.greeting, b""
        try:
            sent = self.socket.send(frame, _NOSIGNAL)
            if sent < len(frame):  # unheard of with one request at a time
                self.socket.settimeout(max(deadline - monotonic(), 0.001))
                self.socket.sendall(frame[sent:])
                self.socket.setblocking(False)
        except (BlockingIOError, TimeoutError) as error:
            raise Fault("timeout", "the daemon does not read what it is sent") from error
        except OSError as error:
            raise Fault("unreachable", "the daemon hung up", again=idle) from error
        while True:
            left = deadline - monotonic()
            if left > 0:
                self.poll.poll(left * 1000)
            try:
                chunk = self.socket.recv(RECEIVE_BYTES)  # once after the deadline too: a reply that is there counts
                self.rest = self.rest + chunk if self.rest else chunk
                if (reply := self._reply()) is not None:
                    return reply
                if not chunk:
                    raise ConnectionResetError
            except BlockingIOError:
                pass
            except OSError as error:  # after a goodbye it answers what it has received: this request was not
                raise Fault("unreachable", "the daemon hung up", again=idle and self.leaving) from error
            if left <= 0:
                raise Fault("timeout", "the daemon did not answer in time")

    def _reply(self) -> list[Any] | None:
        """Takes frames off what was read, up to the one that answers the request."""
        while len(self.rest) >= 4:
            end = 4 + int.from_bytes(self.rest[:4], "big")
            if not 4 < end <= 4 + FRAME_MAX:
                raise Malformed(f"a frame of {end - 4} bytes")
            if len(self.rest) < end:
                break
            reply, self.rest = decode(self.rest[4:end]), self.rest[end:]
            kind, about, what = reply[:3] if len(reply) > 2 else (*reply, None, None, None)[:3]
            if about == self.asked and about.__class__ is int and (kind in (DECISION, DONE) or what in KEEPING):
                return reply
            if kind == ERROR:
                raise Fault("protocol", f"the daemon closes the connection: {reply[2:]!r:.200}")
            if kind != GOODBYE and (kind, about, what) != (WELCOME, 0, 1):
                raise Malformed("a reply to nothing that was asked")
            self.leaving = self.leaving or kind == GOODBYE
        return None


def _cause(path: str, error: Exception) -> str:
    """Why there is no connection, and the mend."""
    with contextlib.suppress(Exception):
        if isinstance(error, PermissionError):
            from grp import getgrgid
            from pwd import getpwuid

            user, group = getpwuid(os.geteuid()).pw_name, getgrgid(os.stat(path).st_gid).gr_name
            return f"permission denied on {path}: user {user} is not in group {group}"
    if isinstance(error, BlockingIOError):
        return f"the daemon at {path} takes no connections: it is stopped or overloaded"
    return f"no daemon at {path} ({error}): start it with `tidegate serve`, or set TIDEGATE_SOCKET"


PATH_MAX, RECEIVE_BYTES = 107, 4_096
_NOSIGNAL: int = getattr(socket, "MSG_NOSIGNAL", 0)
