"""For callers of limited services: slows down before it is refused, waits as it is told, and gives up in time.

    pace = tidegate.pace.Pace()
    response = pace.call(lambda: requests.get(url))     # requests, httpx and the like: status_code and headers
    response = await pace.call_async(lambda: client.get(url))
"""

from __future__ import annotations

import asyncio
import datetime
import email.utils
import random
import re
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, TypeVar

R = TypeVar("R")
RETRIED = (429, 503)


class Level(NamedTuple):
    """What a service says of a limit: how much is left of it, of how much, and seconds until there is more."""

    remaining: int
    limit: int | None
    reset: float | None
    window: float | None


class Pace:
    """One for each service and caller. Safe in threads and tasks.

    `reserve`: below this share of a limit, calls are spread over the time that is left. `tries`: in all, of one call.
    `budget`: retries for each call that went well, so that who is many does not make an overload worse; up to `saved`.
    `longest`: seconds; where the service wants more, its refusal is the answer.
    """

    def __init__(
        self, reserve: float = 0.1, tries: int = 4, budget: float = 0.1, saved: float = 10.0, longest: float = 60.0
    ) -> None:
        self.reserve, self.tries, self.budget, self.saved, self.longest = reserve, tries, budget, saved, longest
        self._retries, self._next, self._gap, self._lock = saved, 0.0, 0.0, threading.Lock()

    def call(self, send: Callable[[], R]) -> R:
        """What `send` gives, at last: `send` has to be safe to repeat."""
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
        """Seconds until the next call may go out, which is taken to do so."""
        with self._lock:
            now = time.monotonic()
            start = min(max(now, self._next), now + self.longest)
            self._next = start + self._gap
            return start - now

    def told(self, status: int, headers: Mapping[str, str], tried: int = 1) -> float | None:
        """Learns from an answer. Seconds until the call may be repeated; None: it is over, well or not."""
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
            never = after is None and known is not None  # who says so much would say when
            if never or tried >= self.tries or self._retries < 1 or (after or 0.0) > self.longest:
                return None
            self._retries -= 1
            if after is not None:
                self._next = max(self._next, time.monotonic() + after)
            return wait

    def _learn(self, known: Level | None) -> None:
        """How far apart calls are to be from now on."""
        self._gap = 0.0
        if known is None:
            return
        if known.limit and known.remaining > known.limit * self.reserve:
            return
        if known.window and known.limit:
            self._gap = known.window / known.limit  # as fast as it comes back
        elif known.reset:
            self._gap = known.reset / (known.remaining + 1)
        if not known.remaining and known.reset:
            self._next = max(self._next, time.monotonic() + known.reset)


def level(fields: Mapping[str, str]) -> Level | None:
    """Of the limit that is nearest to its end. Names of fields are lower-case."""
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
    """Seconds, from seconds or a date. Names of fields are lower-case."""
    said = fields.get("retry-after", fields.get("x-ratelimit-retry-after", "")).strip()
    if re.fullmatch(r"[0-9]{1,9}", said):
        return float(said)
    try:
        date = email.utils.parsedate_to_datetime(said)
    except ValueError:
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=datetime.timezone.utc)
    return max(0.0, date.timestamp() - time.time())


def _items(text: str, first: str, second: str) -> list[tuple[str, str | None, str | None]]:
    """The members of a List of RFC 9651: each one's name and two of its parameters."""
    found = []
    for item in re.finditer(r'"((?:[^"\\]|\\.)*)"((?:;[a-z*][a-z0-9_.*-]*(?:=(?:"(?:[^"\\]|\\.)*"|[^;,"]*))?)*)', text):
        given = dict(re.findall(r";([a-z*][a-z0-9_.*-]*)=([0-9]{1,15})(?=;|$)", item[2]))
        found.append((item[1], given.get(first), given.get(second)))
    return found


def _number(text: str | None) -> float | None:
    return float(text) if text is not None and re.fullmatch(r"\s*[0-9]{1,15}\s*", text) else None
