"""Paces calls to a limited service: slows down before the limit, honours Retry-After, and limits retries.

    pace = tidegate.pace.Pace()
    response = pace.call(lambda: requests.get(url))     # requests, httpx and the like: status_code and headers
    response = await pace.call_async(lambda: client.get(url))
"""

from __future__ import annotations

import asyncio
import datetime
import email.utils
import os
import random
import re
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, TypeVar

R = TypeVar("R")
RETRIED = (429, 503)


class Level(NamedTuple):
    """A limit as reported by a service. Times are in seconds."""

    remaining: int
    limit: int | None
    reset: float | None
    window: float | None


class Pace:
    """Paces calls to one service as one caller. Safe in threads, tasks and signal handlers, and over forks.

    `reserve`: below this share of a limit, calls are spread over the time left. `tries`: attempts of one call.
    `budget`: retries earned by each successful call, at most `saved`, so that retries do not amplify an overload.
    `longest`: maximum wait in seconds; if the service asks for more, `call` returns its refusal.
    """

    def __init__(
        self, reserve: float = 0.1, tries: int = 4, budget: float = 0.1, saved: float = 10.0, longest: float = 60.0
    ) -> None:
        self.reserve, self.tries, self.budget, self.saved, self.longest = reserve, tries, budget, saved, longest
        self._retries, self._next, self._gap, self._lock = saved, 0.0, 0.0, threading.RLock()
        _PACES.add(self)

    def call(self, send: Callable[[], R]) -> R:
        """Returns the last response of `send`, which must be safe to repeat."""
        for tried in range(1, self.tries + 1):
            time.sleep(self.turn())
            response: Any = send()
            wait = self.told(response.status_code, response.headers, tried)
            if wait is None:
                break
            time.sleep(wait)
        return response  # type: ignore[no-any-return]

    async def call_async(self, send: Callable[[], Awaitable[R]]) -> R:
        for tried in range(1, self.tries + 1):
            await asyncio.sleep(self.turn())
            response: Any = await send()
            wait = self.told(response.status_code, response.headers, tried)
            if wait is None:
                break
            await asyncio.sleep(wait)
        return response  # type: ignore[no-any-return]

    def turn(self) -> float:
        """Reserves the time of the next call; returns seconds until then."""
        with self._lock:
            now = time.monotonic()
            start = min(max(now, self._next), now + self.longest)
            self._next = start + self._gap
            return start - now

    def told(self, status: int, headers: Mapping[str, str], tried: int = 1) -> float | None:
        """Learns from a response. Returns seconds until a retry; None: success, or no retry."""
        fields = {name.lower(): value for name, value in headers.items()}
        refused = status in RETRIED
        with self._lock:
            known = level(fields)
            self._learn(known)
            if not refused:
                self._retries = min(self.saved, self._retries + self.budget)
                return None
            after = retry_after(fields)
            wait = (after or 0.0) + random.uniform(0, min(2.0**tried, self.longest))  # full jitter
            never = after is None and known is not None  # limit headers without Retry-After: can never pass
            if never or tried >= self.tries or self._retries < 1 or (after or 0.0) > self.longest:
                return None
            self._retries -= 1
            if after is not None:
                self._next = max(self._next, time.monotonic() + after)
            return wait

    def _learn(self, known: Level | None) -> None:
        """Sets the gap between further calls."""
        self._gap = 0.0
        if known is None:
            return
        if known.limit and known.remaining > known.limit * self.reserve:
            return
        if known.window and known.limit:
            self._gap = known.window / known.limit  # the rate of refill
        elif known.reset:
            self._gap = known.reset / (known.remaining + 1)
        if not known.remaining and known.reset:
            self._next = max(self._next, time.monotonic() + known.reset)


def level(fields: Mapping[str, str]) -> Level | None:
    """Returns the most used limit of a response. Names of fields are lower-case."""
    policies = {name: (_number(q), _number(w)) for name, q, w in _items(fields.get("ratelimit-policy", ""), "q", "w")}
    found = []
    for name, left, reset in _items(fields.get("ratelimit", ""), "r", "t"):
        if left is not None:
            limit, window = policies.get(name, (None, None))
            found.append(Level(int(left), None if limit is None else int(limit), _number(reset), window))
    legacy = _number(fields.get("x-ratelimit-remaining"))
    if not found and legacy is not None:
        whole, again = _number(fields.get("x-ratelimit-limit")), _number(fields.get("x-ratelimit-retry-after"))
        found.append(Level(int(legacy), None if whole is None else int(whole), again, None))
    return min(found, key=lambda one: one.remaining / (one.limit or 1)) if found else None


def retry_after(fields: Mapping[str, str]) -> float | None:
    """Returns seconds, from seconds or a date. Names of fields are lower-case."""
    text = fields.get("retry-after", fields.get("x-ratelimit-retry-after", "")).strip()
    if re.fullmatch(r"[0-9]{1,9}", text):
        return float(text)
    try:
        date = email.utils.parsedate_to_datetime(text)
    except ValueError:
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=datetime.timezone.utc)
    return max(0.0, date.timestamp() - time.time())


def _items(text: str, first: str, second: str) -> list[tuple[str, str | None, str | None]]:
    """Parses a List of RFC 9651: the name and two parameters of each member."""
    found = []
    for item in re.finditer(r'"((?:[^"\\]|\\.)*)"((?:;[a-z*][a-z0-9_.*-]*(?:=(?:"(?:[^"\\]|\\.)*"|[^;,"]*))?)*)', text):
        given = dict(re.findall(r";([a-z*][a-z0-9_.*-]*)=([0-9]{1,15})(?=;|$)", item[2]))
        found.append((item[1], given.get(first), given.get(second)))
    return found


def _number(text: str | None) -> float | None:
    return float(text) if text is not None and re.fullmatch(r"\s*[0-9]{1,15}\s*", text) else None


def _renew_locks() -> None:
    for one in list(_PACES):
        one._lock = threading.RLock()


_PACES: weakref.WeakSet[Pace] = weakref.WeakSet()
os.register_at_fork(after_in_child=_renew_locks)
