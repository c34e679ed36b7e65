"""The words of the table: a scenario, its steps, and scripts of the daemon."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import time
from collections.abc import Callable

from daemons import ALLOW, LIMIT, PATIENT, frame

HELLO, ACQUIRE, RELEASE, HIT, PEEK, CHARGE, RENEW, SIGNAL, PING = range(9)
PATIENT_MS = 10_000  # the longest that every client accepts
DEADLINE_MS = 40  # of scenarios whose daemon does not answer in time
PAUSE_MIN, PAUSE_MAX = 0.05, 2.0  # seconds of the breaker's pauses

DECIDED = {"degraded": False, "reason": None, "raised": None}
ALLOWED = DECIDED | {"allowed": True, "verdict": "allow", "status": 200}
LIMITED = DECIDED | {"allowed": False, "verdict": "limit", "status": 429}


def degraded(reason: str) -> dict:
    return {"allowed": True, "verdict": "allow", "status": 200, "degraded": True, "reason": reason, "raised": None}


def refused(reason: str) -> dict:
    """A refusal by the client itself, or for an ERROR about the request."""
    return {"allowed": False, "verdict": "shed", "status": 503, "degraded": False, "reason": reason, "raised": None}


@dataclasses.dataclass(frozen=True)
class Scenario:
    """`guards`: sentences of docs/protocol.md. `script`: of the requests; None: no daemon. `rules`: the real daemon.

    `steps` are functions of a Run. `needs`: features of the language, `crowd` included.
    """

    name: str
    guards: tuple[str, ...]
    steps: tuple[Callable, ...]
    script: Callable | None = lambda connection, message: [1, message[1], *ALLOW]
    greet: Callable | None = None
    rules: str | None = None
    deadline_ms: float = PATIENT_MS
    options: dict = dataclasses.field(default_factory=dict)
    needs: frozenset[str] = frozenset()
    nightly: bool = False

    def applies(self, language) -> bool:
        return (self.needs - {"crowd"}) <= language.features and ("crowd" not in self.needs or language.crowd > 0)


# -- steps -------------------------------------------------------------------------------------------------------------


def ask(do="hit", expect=ALLOWED, times=1, client="", **given) -> Callable:
    """Asks and compares the fields of `expect`: values, or functions of them."""

    def step(run):
        for _ in range(times):
            compare(run.ask(do, client, **given), expect)

    return step


def compare(answer: dict, expect: dict) -> None:
    for name, wanted in expect.items():
        found = answer.get(name)
        assert wanted(found) if callable(wanted) else found == wanted, f"{name} is {found!r} in {answer}"


def script(new: Callable) -> Callable:
    """Changes what the daemon does."""
    return lambda run: setattr(run.played, "script", begun(new))


def stats(**expect) -> Callable:
    return lambda run: compare(run.stats(), expect)


def logged(*parts: str) -> Callable:
    """Compares the log: one line for each part, which it contains."""

    def step(run):
        lines = run.log()
        assert len(lines) == len(parts) and all(part in line for part, line in zip(parts, lines)), lines

    return step


def release(outcome: str) -> Callable:
    return lambda run: run.command({"do": "release", "client": "", "outcome": outcome})


def until_decided(do="hit", expect=DECIDED, **given) -> Callable:
    """Asks until the daemon decides again, which a busy machine may delay."""

    def step(run):
        until = time.monotonic() + PATIENT
        while run.ask(do, **given)["degraded"]:
            assert time.monotonic() < until, run.last
            time.sleep(0.002)
        compare(run.last, expect)

    return step


def pause(seconds: float) -> Callable:
    return lambda run: time.sleep(seconds)


def each(values, steps: Callable) -> Callable:
    """Runs the steps that `steps` makes of each value."""

    def step(run):
        for value in values:
            for one in steps(value):
                one(run)

    return step


# -- scripts: functions of connection and message, which return a message, bytes of frames, or None for nothing --------


def decision(message, verdict=ALLOW, *rest):
    """Returns a DECISION in full, with the elements `rest` after the retry time."""
    reply = [1, message[1], *verdict, *rest]
    return [*reply, *(13 - len(reply)) * [None]]


def allow(connection, message):
    return decision(message)


def limit(connection, message):
    return decision(message, LIMIT)


def silence(connection, message):
    return None


def error(code, text="the text", about=lambda message: message[1]):
    return lambda connection, message: [3, about(message), code, text]


def nil(message):
    return None


def in_turn(*scripts):
    """The first script for the first request, and so on; the last one for all further ones."""

    def make():
        left = list(scripts)
        return lambda connection, message: (left.pop(0) if len(left) > 1 else left[0])(connection, message)

    return Fresh(make)


class Fresh:
    """A script with a state of its own in each run."""

    def __init__(self, make: Callable[[], Callable]) -> None:
        self.make = make


def begun(script):
    return script.make() if isinstance(script, Fresh) else script


def hang_up(connection, message):
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def goodbye(reason):
    def reply(connection, message):
        connection.sendall(frame([4, None, reason]))
        hang_up(connection, message)

    return reply


def by_frame(frames: dict):
    """Replies with the bytes of the frame that the request names in its attribute `frame`, else allows."""

    def reply(connection, message):
        descriptor = message[3][0] if len(message) > 4 else []
        named = descriptor[1] if descriptor[:1] == ["frame"] else None
        return decision(message) if named is None else frames[named](message)

    return reply


def granting(lease):
    """Grants ACQUIRE with a lease, and allows the rest."""
    return lambda connection, message: decision(message, ALLOW, *([lease] if message[0] == ACQUIRE else []))


def allowed_of(reports: list, reason: str) -> int:
    return sum(report.get("missed", {}).get(reason, 0) for report in reports)


def reports(run) -> list[dict]:
    """Returns the options of all requests and the infos of all HELLOs."""
    seen = list(run.played.seen)
    return [message[6] for message in seen if len(message) > 6] + [
        message[3] for message in seen if message[0] == HELLO
    ]
