"""The limit while the daemon cannot be asked: token buckets in this process.

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

from . import Asked, Decision
from .protocol import PEEK, decode

BUCKETS_MAX = 10_000  # the least recently used one goes: some 3 MB
BOUND_MAX = 256  # domains and sets of names whose rule is remembered
KEY_BYTES_MAX = 64  # of a longer key the digest is kept
ERROR_MAX = 1e-6  # tokens that the arithmetic may lose
NUMBER_MAX, PERIOD_MAX = (1 << 32) - 1, 366 * 86_400.0
UNITS = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3_600.0, "day": 86_400.0, "week": 604_800.0, "month": 2_592_000.0}
_RATE = re.compile(r"(\d{1,10})/(\d{0,10})(ms|s|min|h|day|week|month)(?: burst (\d{1,10}))?")


class Quota(NamedTuple):
    """A rate in tokens a second, and the tokens of a full bucket."""

    rate: float
    burst: int


class Fallback:
    """`rates`: a rate, or rates by the names of rules, also as `domain/name`; "*" is for all other requests.

    The rule of a request is the one that bound the last time the daemon judged its domain and set of attribute names.
    Safe in threads and over forks.
    """

    def __init__(self, rates: str | Mapping[str, str]) -> None:
        entries = rates if isinstance(rates, Mapping) else {"*": rates}
        if not entries:
            raise ValueError('a fallback names no rule; help: write {"*": "20/s"}')
        self._quotas = {name: parse_rate(text) for name, text in entries.items()}
        self._by_rule = set(self._quotas) != {"*"}
        self._bound: OrderedDict[tuple[bytes, frozenset[str]], str] = OrderedDict()
        self._buckets: OrderedDict[bytes, tuple[float, float]] = OrderedDict()  # tokens, and when there were so many
        self._lock = threading.RLock()
        _FALLBACKS.add(self)

    def remember(self, asked: Asked, decision: Decision) -> None:
        """Notes the rule that bound, where entries are by rule."""
        if not self._by_rule or decision.limit is None or decision.rule is None:
            return
        key = (asked.elements[0], _names(asked))
        with self._lock:
            self._bound[key] = decision.rule
            self._bound.move_to_end(key)
            if len(self._bound) > BOUND_MAX:
                self._bound.popitem(last=False)

    def decide(self, asked: Asked) -> Decision | None:
        """None where no entry is for the request."""
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

    def _entry(self, asked: Asked) -> str | None:
        """Whose quota is the request's."""
        if self._by_rule:
            rule = self._bound.get((asked.elements[0], _names(asked)))
            domain = decode(b"\x91" + asked.elements[0])[0]
            for name in (f"{domain}/{rule}", rule):
                if name in self._quotas:
                    return name
        return "*" if "*" in self._quotas else None


def made(given: Fallback | str | Mapping[str, str]) -> Fallback:
    """What the option of a middleware or a decorator stands for."""
    return given if isinstance(given, Fallback) else Fallback(given)


def parse_rate(text: object) -> Quota:
    """`N/PERIOD` or `N/PERIOD burst M` as rules have them: 20/s, 5/15min, 100/h burst 200."""
    found = _RATE.fullmatch(text) if isinstance(text, str) else None
    number, burst = (int(found[1]), int(found[4] or found[1])) if found else (0, 0)
    period = int(found[2] or 1) * UNITS[found[3]] if found else 0.0
    if not (0 < number <= NUMBER_MAX and 0 < burst <= NUMBER_MAX and 0 < period <= PERIOD_MAX):
        raise ValueError(f"the fallback {text!r} is no rate; help: write it like 20/s, 5/15min or 100/h burst 200")
    return Quota(number / period, burst)


def _requests(cost: Any) -> int:
    return int(cost.get("requests", 1) if isinstance(cost, Mapping) else cost)


def _names(asked: Asked) -> frozenset[str]:
    """Of the attributes that are sent."""
    given = asked.attributes
    if given.__class__ is dict:
        return frozenset([name for name, value in given.items() if value is not None and value != ""])
    return frozenset(name for one in decode(asked.elements[1]) for name in one[::2])


def _key(entry: str, elements: list[bytes]) -> bytes:
    """Entry, domain, and each descriptor as a set of attributes."""
    lists = sorted(sorted(zip(one[::2], one[1::2])) for one in decode(elements[1]))
    key = repr((entry, elements[0], lists)).encode("utf-8", "backslashreplace")
    return key if len(key) <= KEY_BYTES_MAX else hashlib.sha256(key).digest()


def _micros(seconds: float) -> int:
    """Rounded up, but not for an error of the arithmetic."""
    return -int(-(seconds * 1e6 - 1e-3) // 1)


def _renew_locks() -> None:
    for one in list(_FALLBACKS):
        one._lock = threading.RLock()


_FALLBACKS: weakref.WeakSet[Fallback] = weakref.WeakSet()
os.register_at_fork(after_in_child=_renew_locks)
