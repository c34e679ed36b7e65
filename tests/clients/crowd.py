"""Callers of an application that is served twice: with the limiter, and without. Each request goes to both."""

from __future__ import annotations

import dataclasses
import itertools
import threading
import time

from exchange import Answer, Line
from rules import BURST, USERS, limit_of
from servers import metrics

CALLERS = 2
# Headers that may differ, since they contain times. The limiter's headers may be only in its own responses.
NEUTRAL = ("date", "x-judged-us")
ADDED = ("ratelimit", "ratelimit-policy", "x-ratelimit-limit", "x-ratelimit-remaining")
FREE = 4  # seconds: after 5 s without connections a session ends, and its leases
PATIENCE = 120  # seconds, against endless waits, on a busy machine
# Seconds between two requests of a caller while the breaker is open: nothing is tested then, and a fault is
# due after every few hundred requests.
UNHURRIED = 0.003
IDLE = 20  # seconds: a caller delayed for longer reconnects to both, since servers close idle connections


@dataclasses.dataclass(frozen=True)
class Pair:
    """One request: its start, durations and times of the decision (seconds), limited and not."""

    began: float
    path: str
    judged: bool  # decided by the daemon: the response has limits
    took: tuple[float, float]
    judging: tuple[float, float] | None  # before the application was entered, for plain requests

    @property
    def ended(self) -> float:
        return self.began + sum(self.took)


class Caller:
    """Has a connection to each of the two, open as long as they keep it open."""

    def __init__(self, ports: tuple[int, int]) -> None:
        self.lines = [Line(port) for port in ports]

    def pair(self, number: int) -> tuple[Pair, str | None]:
        """Returns the request's result, and the differences of the responses."""
        path, user, how = path_of(number), 1 + number % (USERS - 1), KINDS.get(number % CYCLE, {})
        began, answers, took = time.monotonic(), [None, None], [0.0, 0.0]
        if began > min(line.last for line in self.lines) + IDLE:
            self.close()
        if number % CYCLE == HUNG_UP:
            for line in self.lines:
                line.hang_up_on(path, f"u{user}")
            return Pair(began, path, False, (time.monotonic() - began, 0.0), None), None
        for which in (0, 1) if number // 10 % 2 else (1, 0):
            asked = time.monotonic()
            try:
                answers[which] = self.lines[which].ask(path, f"u{user}", **how)
            except Exception as error:  # a missing response is a difference, too
                answers[which] = Answer(0, {}, b"", [repr(error).encode()], b"", False, True)
                self.lines[which].close()
            took[which] = time.monotonic() - asked
        limited, plain = answers
        different = f"{path} of u{user} {how}: {limited} limited, {plain} without"
        same = comparable(limited, ADDED) == comparable(plain) and plain.status == (500 if path == "/boom" else 200)
        same = same and rightly_limited(limited, user)
        delays = [int(each.headers.get("x-judged-us", took[i] * 1e6)) / 1e6 for i, each in enumerate(answers)]
        judging = tuple(delays) if path.startswith("/item") else None
        judged = limit_of(limited.headers) is not None
        return Pair(began, path, judged, tuple(took), judging), None if same else different

    def close(self) -> None:
        for line in self.lines:
            line.close()


class Crowd:
    """CALLERS in threads. `different` has all changes by the limiter; `pairs` all requests."""

    def __init__(self, limited: int, plain: int) -> None:
        self.ports = (limited, plain)
        self.pairs, self.different = list[Pair](), list[str]()
        self._numbers, self._stopped, self._threads = itertools.count(), threading.Event(), list[threading.Thread]()

    def __enter__(self):
        self._stopped.clear()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(CALLERS)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._stopped.set()
        for thread in self._threads:
            thread.join(PATIENCE)

    def _run(self) -> None:
        caller = Caller(self.ports)
        while not self._stopped.is_set():
            pair = self.pair(next(self._numbers), caller)
            if not pair.judged and pair.judging and pair.judging[0] < UNHURRIED:
                time.sleep(UNHURRIED)
        caller.close()

    def pair(self, number: int, caller: Caller | None = None) -> Pair:
        one = caller or Caller(self.ports)
        pair, different = one.pair(number)
        if caller is None:
            one.close()
        if different:
            self.different.append(different)
        self.pairs.append(pair)
        return pair

    def wait_for_more(self, count: int) -> None:
        """Waits for further responses."""
        wanted = len(self.pairs) + count
        self.wait_until(lambda: len(self.pairs) >= wanted)

    def wait_until_limited(self, when: str) -> None:
        """Waits until requests reach the daemon again: the client's breaker may have up to 6 s left."""
        since = time.monotonic()

        def limited():
            last = [pair for pair in self.pairs[-20:] if pair.path.startswith("/item") and pair.began > since]
            return len(last) > 10 and sum(not pair.judged for pair in last) < 2

        self.wait_until(limited, f"limited {when}")

    def wait_until(self, true, what: str = "answers") -> None:
        until = time.monotonic() + PATIENCE
        while not true():
            assert time.monotonic() < until, f"{what}: never; {self.news()}"
            time.sleep(0.002)

    def news(self) -> str:
        """Distinguishes a busy machine from a client that sends no more requests."""
        last = self.pairs[-200:]
        judged, took = sum(pair.judged for pair in last), sorted(pair.took for pair in last)[len(last) // 2 :][:1]
        return f"{len(self.pairs)} answers, of the last {len(last)} {judged} judged, {took} s; {self.different[-3:]}"


def free(daemon, request, after):
    """Waits until no lease remains: immediately, or after the daemon has the report of abandoned requests."""
    until = time.monotonic() + FREE
    while held := metrics(daemon)["tidegate_leases"]:
        assert time.monotonic() < until, f"{held:.0f} leases are still held after {after}"
        request()
        time.sleep(0.02)  # the lease is released after the response was sent


# Most requests are plain GETs on a persistent connection; these of every twenty are sent differently.
CYCLE = 20
KINDS = {
    3: {"method": "HEAD"},
    7: {"close": True},
    9: {"method": "HEAD"},
    13: {"version": "1.0"},
    15: {"version": "1.0"},
}
HUNG_UP = 19  # this caller does not wait for the whole response


def path_of(number: int) -> str:
    """Most are plain; of twenty, one fails, one is slow, four are streamed."""
    paths = {5: "/boom", 9: "/stream", 11: "/slow?ms=2", 15: "/stream", 17: "/stream", HUNG_UP: "/stream?ms=5"}
    return paths.get(number % CYCLE, f"/item/{number}")


def comparable(answer, added=()):
    """Returns all bytes from the socket, and whether the connection persists, without headers that may differ."""
    left = [line for line in answer.head if name_of(line) not in (*NEUTRAL, *added)]
    # Puma writes Content-Length if it counts itself; under Rack 3's rules the application may write it in lower case.
    left = [line.replace(b"Content-Length", b"content-length") for line in left]
    return answer.status, left, answer.framed, answer.reused, answer.ended


def rightly_limited(answer, user):
    """True if the response has all headers of the limiter once, for this user, or none."""
    names = sorted(name for name in map(name_of, answer.head) if name in ADDED)
    return not names or (names == sorted(ADDED) and limit_of(answer.headers) == BURST + user)


def name_of(line):
    return line.partition(b":")[0].decode("latin-1").lower()
