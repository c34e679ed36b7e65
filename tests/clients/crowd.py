"""Callers of one application that is served twice: limited, and with TIDEGATE_DISABLE=1. Each request goes to both."""

from __future__ import annotations

import dataclasses
import itertools
import threading
import time

from applications import ask
from servers import metrics

USERS, CALLERS = 10, 2
# Headers that may differ: of the time, of the limiter, and how the server frames the body; and x-ratelimit-*.
NEUTRAL = ("date", "x-judged-us", "ratelimit", "ratelimit-policy", "content-length", "transfer-encoding")
FREE = 4  # seconds: a session that has no connections would end, and its leases, after 5 s
PATIENCE = 30  # seconds, with what never ends, on a busy machine


@dataclasses.dataclass(frozen=True)
class Pair:
    """One request: when it began, how long it took and was judged (seconds), limited and not."""

    began: float
    path: str
    judged: bool  # by the daemon: the answer has limits
    took: tuple[float, float]
    judging: tuple[float, float] | None  # before the application was entered, of plain requests


class Crowd:
    """CALLERS in threads of their own. `different` has whatever the limiter changed; `pairs` everything."""

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
        while not self._stopped.is_set():
            self.pair(next(self._numbers))

    def pair(self, number: int) -> None:
        path, user = path_of(number), f"u{number % USERS + 1}"
        order = (0, 1) if number // 10 % 2 else (1, 0)
        began, answers, took = time.monotonic(), [None, None], [0.0, 0.0]
        for which in order:
            asked = time.monotonic()
            try:
                answers[which] = ask(self.ports[which], path, user)
            except Exception as error:  # no answer is a difference too
                answers[which] = (0, {}, repr(error).encode())
            took[which] = time.monotonic() - asked
        limited, plain = answers
        if comparable(limited) != comparable(plain) or not limited[0]:
            self.different.append(f"{path} of {user}: {limited} limited, {plain} without")
        said = [int(headers.get("x-judged-us", took[i] * 1e6)) / 1e6 for i, (_, headers, _) in enumerate(answers)]
        judging = tuple(said) if path.startswith("/item") else None
        self.pairs.append(Pair(began, path, "x-ratelimit-limit" in limited[1], tuple(took), judging))

    def wait_for_more(self, count: int) -> None:
        """Until so many more requests have been answered."""
        wanted = len(self.pairs) + count
        self.wait_until(lambda: len(self.pairs) >= wanted)

    def wait_until_limited(self, when: str) -> None:
        """Until the daemon is asked again: the client's breaker may have up to 6 s left."""
        since = time.monotonic()

        def limited():
            last = [pair for pair in self.pairs[-20:] if pair.path.startswith("/item") and pair.began > since]
            return len(last) > 10 and sum(not pair.judged for pair in last) < 2

        self.wait_until(limited, f"limited {when}")

    def wait_until(self, true, what: str = "answers") -> None:
        until = time.monotonic() + PATIENCE
        while not true():
            assert time.monotonic() < until, f"{what}: never; {len(self.pairs)} answers, {self.different[-3:]}"
            time.sleep(0.002)


def free(daemon, request, after):
    """Nothing is held any more: at once, or when the daemon has been told, with requests, of those given up."""
    until = time.monotonic() + FREE
    while held := metrics(daemon)["tidegate_leases"]:
        assert time.monotonic() < until, f"{held:.0f} leases are still held after {after}"
        request()
        time.sleep(0.02)  # a place is given back after the answer was sent


def path_of(number: int) -> str:
    """Most are plain; in every twenty one fails, one is slow, one comes in parts."""
    return {5: "/boom", 11: "/slow?ms=2", 17: "/stream"}.get(number % 20, f"/item/{number}")


def comparable(answer):
    """Status, body, and headers without those that the limiter adds or that tell the time."""
    status, headers, body = answer
    left = {k: v for k, v in headers.items() if k not in NEUTRAL and not k.startswith("x-ratelimit-")}
    return status, left, body
