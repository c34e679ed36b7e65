"""The limit while the daemon is unreachable: token buckets in this process.

client = tidegate.Client(fallback="20/s")
client = tidegate.Client(fallback={"per-user": "20/s burst 40", "api/exports": "5/min", "*": "100/s"})
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
import weakref
from collections import OrderedDict
from collections.abc import Mapping
from time import monotonic
from typing import Any, NamedTuple

from . import Decision, Request
from .protocol import PEEK, decode

BUCKETS_MAX = 10_000  # some 3 MB; the least recently used one is evicted
BOUND_MAX = 256  # pairs of domain and attribute names with a remembered rule
KEY_BYTES_MAX = 64  # longer keys are replaced by their digests
ERROR_MAX = 1e-6  # tokens lost to rounding
NUMBER_MAX, PERIOD_MAX = (1 << 32) - 1, 366 * 86_400.0
UNITS = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3_600.0, "day": 86_400.0, "week": 604_800.0, "month": 2_592_000.0}
_RATE = re.compile(r"(\d{1,10})/(\d{0,10})(ms|s|min|h|day|week|month)(?: burst (\d{1,10}))?")


class Quota(NamedTuple):
    """Tokens per second, and tokens of a full bucket."""

    rate: float
    burst: int


class Fallback:
    """Local limits. `rates`: one rate, or rates by rule name, also as `domain/name`; "*" is for all other requests.

    The rule of a request is the one that bound in the daemon's last decision with its domain and attribute names.
    Safe in threads and over forks.
    """

    def __init__(self, rates: str | Mapping[str, str]) -> None:
        entries = rates if isinstance(rates, Mapping) else {"*": rates}
        if not entries:
            raise ValueError('a fallback names no rule; help: write {"*": "20/s"}')
        self._quotas = {name: parse_rate(text) for name, text in entries.items()}
        self._by_rule = set(self._quotas) != {"*"}
        self._bound: OrderedDict[tuple[bytes, frozenset[str]], str] = OrderedDict()
        self._buckets: OrderedDict[bytes, tuple[float, float]] = OrderedDict()  # tokens, and the time of that level
        self._lock = threading.RLock()
        _FALLBACKS.add(self)

    def remember(self, asked: Request, decision: Decision) -> None:
        """Remembers the binding rule, if entries are by rule."""
        if not self._by_rule or decision.limit is None or decision.rule is None:
            return
        key = (asked.elements[0], _names(asked))
        with self._lock:
            self._bound[key] = decision.rule
            self._bound.move_to_end(key)
            if len(self._bound) > BOUND_MAX:
                self._bound.popitem(last=False)

    def decide(self, asked: Request) -> Decision | None:
        """Charges the request's bucket; None if no entry applies."""
        entry = self._entry(asked)
        if entry is None:
            return None
        quota, cost = self._quotas[entry], _requests(asked.cost)
        key = _key(entry, asked.elements)
        with self._lock:
            now = monotonic()
            tokens, before = self._buckets.get(key, (float(quota.burst), now))
            tokens = min(quota.burst, tokens + (now - before) * quota.rate)
            allowed = cost <= tokens + ERROR_MAX
            if allowed and asked.op != PEEK:
                tokens = max(tokens - cost, 0.0)
            if asked.op != PEEK:
                self._buckets[key] = (tokens, now)
                self._buckets.move_to_end(key)
                if len(self._buckets) > BUCKETS_MAX:
                    self._buckets.popitem(last=False)
        retry = None if cost > quota.burst else 0 if allowed else _micros((cost - tokens) / quota.rate)
        reset = 0 if tokens >= quota.burst else _micros((int(tokens) + 1 - tokens) / quota.rate)
        window = _micros(quota.burst / quota.rate)
        return Decision([0 if allowed else 1, None, quota.burst, window, int(tokens), reset, retry], "fallback")

    def _entry(self, asked: Request) -> str | None:
        """Returns the name of the entry that limits the request."""
        if self._by_rule:
            rule = self._bound.get((asked.elements[0], _names(asked)))
            domain = decode(b"\x91" + asked.elements[0])[0]
            for name in (f"{domain}/{rule}", rule):
                if name in self._quotas:
                    return name
        return "*" if "*" in self._quotas else None


def as_fallback(given: Fallback | str | Mapping[str, str]) -> Fallback:
    """Converts the `fallback` option of a middleware or a decorator."""
    return given if isinstance(given, Fallback) else Fallback(given)


def parse_rate(text: object) -> Quota:
    """Parses `N/PERIOD` or `N/PERIOD burst M`, as in rules: 20/s, 5/15min, 100/h burst 200."""
    found = _RATE.fullmatch(text) if isinstance(text, str) else None
    number, burst = (int(found[1]), int(found[4] or found[1])) if found else (0, 0)
    period = int(found[2] or 1) * UNITS[found[3]] if found else 0.0
    if not (0 < number <= NUMBER_MAX and 0 < burst <= NUMBER_MAX and 0 < period <= PERIOD_MAX):
        raise ValueError(f"the fallback {text!r} is not a rate; help: write it like 20/s, 5/15min or 100/h burst 200")
    return Quota(number / period, burst)


def _requests(cost: Any) -> int:
    return int(cost.get("requests", 1) if isinstance(cost, Mapping) else cost)


def _names(asked: Request) -> frozenset[str]:
    """Returns the names of the attributes that are sent."""
    given = asked.attributes
    if given.__class__ is dict:
        return frozenset([name for name, value in given.items() if value is not None and value != ""])
    return frozenset(name for one in decode(asked.elements[1]) for name in one[::2])


def _key(entry: str, elements: list[bytes]) -> bytes:
    """Returns the bucket key: entry, domain, and each descriptor as a set of attributes."""
    lists = sorted(sorted(zip(one[::2], one[1::2])) for one in decode(elements[1]))
    key = repr((entry, elements[0], lists)).encode("utf-8", "backslashreplace")
    return key if len(key) <= KEY_BYTES_MAX else hashlib.sha256(key).digest()


def _micros(seconds: float) -> int:
    """Rounds up to microseconds, but ignores rounding errors below 1 ns."""
    return -int(-(seconds * 1e6 - 1e-3) // 1)


def _renew_locks() -> None:
    for one in list(_FALLBACKS):
        one._lock = threading.RLock()


_FALLBACKS: weakref.WeakSet[Fallback] = weakref.WeakSet()
os.register_at_fork(after_in_child=_renew_locks)
