"""For tests of applications: a client that decides in this process, without a daemon, and a pytest fixture.

    pytest_plugins = ["tidegate.testing"]

    def test_sends_retry_after(fake_tidegate):
        fake_tidegate.force("per-user", "limit", retry_after=7)
        assert application(client=fake_tidegate).status == 429
        fake_tidegate.assert_released()
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from . import VERDICTS, CallOptions, Client, Decision
from .aio import AsyncClient, AsyncDecision, _make_async
from .protocol import ACQUIRE, CHARGE, DONE, HIT, PEEK, RELEASE, Fault, Outcome, Verdict, decode

OPS = {ACQUIRE: "acquire", HIT: "hit", PEEK: "peek", CHARGE: "charge"}
OUTCOMES: tuple[Outcome, ...] = ("ok", "error", "dropped")


@dataclasses.dataclass(frozen=True)
class Asked:
    """A request that the daemon would have received."""

    call: str
    domain: str
    attributes: dict[str, str]
    cost: int | dict[str, int]
    priority: str | None = None
    options: dict[str, Any] = dataclasses.field(default_factory=dict)


class Fake(Client):
    """Allows every request, and grants leases to `acquire`, unless `force` or `fail` changes that. Validates arguments.

    `asked`: all calls in order. `charges`: calls of `charge`. `outcomes`: outcomes of released leases.
    `asynchronous`: the same fake as an AsyncClient.
    """

    def __init__(
        self,
        pool: str = "default",
        fallback: str | Mapping[str, str] | None = None,
        on_decision: Callable[[Decision, float], object] | None = None,
    ) -> None:
        super().__init__("/nonexistent", pool=pool, fallback=fallback, on_decision=on_decision)
        self._enabled = True  # ignores TIDEGATE_DISABLE
        self.asked: list[Asked] = []
        self.outcomes: dict[int, Outcome] = {}
        self.leases: dict[int, Asked] = {}
        self.asynchronous = _AsyncFake(self)
        self._forced: list[tuple[list[Any], Callable[[Asked], object]]] = []
        self._last_lease, self._failure = 0, ""

    def force(
        self,
        rule: str,
        verdict: Verdict = "limit",
        *,
        retry_after: float | None = 1.0,
        limit: int | None = 10,
        window: float = 60.0,
        remaining: int = 0,
        when: Callable[[Asked], object] = lambda asked: True,
    ) -> None:
        """Sets the decision of requests for which `when` is true. The last matching call applies."""
        retry = None if retry_after is None or verdict == "deny" else round(retry_after * 1e6)
        if verdict in ("shed", "deny"):
            limit = None
        window_us = None if limit is None else round(window * 1e6)
        left = None if limit is None else remaining
        self._forced.append(([VERDICTS.index(verdict), rule, limit, window_us, left, retry or 0, retry], when))

    def clear(self) -> None:
        """Allows all requests again, and clears all records."""
        self._forced.clear()
        self.asked.clear()
        self.outcomes.clear()
        self.leases.clear()
        self._failure = ""

    def fail(self, reason: str = "unreachable") -> None:
        """Simulates a daemon that does not answer."""
        self._failure = reason

    @property
    def charges(self) -> list[Asked]:
        return [asked for asked in self.asked if asked.call == "charge"]

    def assert_released(self, outcome: Outcome | None = None) -> None:
        """Asserts that all leases were released and, with `outcome`, that all had this outcome."""
        assert not self.leases, f"not released: {list(self.leases.values())}"
        if outcome is not None:
            assert set(self.outcomes.values()) <= {outcome}, f"released otherwise: {self.outcomes}"

    def _converse(self, op: int, elements: list[bytes], wanted: int, which: Any = None, domain: str = "") -> Any:
        values = decode(bytes((0xDC, 0, len(elements))) + b"".join(elements))
        if op == RELEASE:
            self.outcomes[values[0]] = OUTCOMES[values[1]]
            self.leases.pop(values[0], None)
            return True
        if self._failure:
            return Fault("the fake daemon does not answer", self._failure)
        if op not in OPS:
            return True
        flat = values[1][0]
        pairs = dict(zip(flat[::2], flat[1::2], strict=True))
        if op == CHARGE:
            values.insert(3, None)  # it has no priority
        asked = Asked(OPS[op], values[0], pairs, *values[2:])
        self.asked.append(asked)
        return True if wanted == DONE else self._decided(op, asked)

    def _decided(self, op: int, asked: Asked) -> Decision:
        forced = (fields for fields, when in reversed(self._forced) if when(asked))
        fields = list(next(forced, [0, None, None, None, None, None, 0]))
        if op == ACQUIRE and VERDICTS[fields[0]] in ("allow", "wait"):
            self._last_lease += 1
            self.leases[self._last_lease] = asked
            fields.append(self._last_lease)
        decision = Decision(fields)
        decision._asked = (self, 1, len(self.asked))
        decision.domain = None if decision.allowed else asked.domain
        return decision


class _AsyncFake(AsyncClient):
    def __init__(self, fake: Fake) -> None:
        self._core: Any = _Core(fake)


class _Core:
    """The core of an AsyncClient, backed by a Fake."""

    def __init__(self, fake: Fake) -> None:
        self.fake = fake

    async def judge(self, op: int, domain: str, attributes: Any, cost: Any, more: CallOptions) -> AsyncDecision:
        decision = _make_async(self.fake._judge(op, domain, attributes, cost, more))
        client = SimpleNamespace(core=self, _send=self.fake._send, _report_later=self.fake._report_later)
        decision._asked = (client, 1, 1)
        return decision

    async def done(self, op: int, elements: Any) -> bool:
        return self.fake._done(op, elements)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.fake, name)


try:
    import pytest
except ImportError:  # other test runners use Fake
    pass
else:

    @pytest.fixture
    def fake_tidegate() -> Iterator[Fake]:
        """Yields a Fake; fails a test that passed without releasing all leases."""
        fake = Fake()
        yield fake
        fake.assert_released()
