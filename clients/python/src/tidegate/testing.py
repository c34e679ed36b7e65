"""For tests of applications: a client that decides in this process, without a daemon, and a fixture of pytest's.

    pytest_plugins = ["tidegate.testing"]

    def test_it_says_when(fake_tidegate):
        fake_tidegate.force("per-user", "limit", retry_after=7)
        assert application(client=fake_tidegate).status == 429
        fake_tidegate.assert_released()
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from . import VERDICTS, Client, Decision
from .aio import AsyncClient, AsyncDecision, _awaitable
from .protocol import ACQUIRE, CHARGE, DONE, HIT, PEEK, RELEASE, Fault, decode

OPS = {ACQUIRE: "acquire", HIT: "hit", PEEK: "peek", CHARGE: "charge"}
OUTCOMES = ("ok", "error", "dropped")


@dataclasses.dataclass(frozen=True)
class Asked:
    """What the daemon would have been asked."""

    call: str
    domain: str
    attributes: dict[str, str]
    cost: int | dict[str, int]
    priority: str | None = None
    options: dict[str, Any] = dataclasses.field(default_factory=dict)


class Fake(Client):
    """Allows everything, with a lease to `acquire`, until told otherwise. What it is given is checked as ever.

    `asked`: every call, in order. `charges`: those of `charge`. `outcomes`: how each lease that was released ended.
    `asynchronous`: the same as an AsyncClient.
    """

    def __init__(self, pool: str = "default", fallback: Any = None) -> None:
        super().__init__("/nonexistent", pool=pool, fallback=fallback)
        self._enabled = True  # whatever the environment says
        self.asked: list[Asked] = []
        self.outcomes: dict[int, str] = {}
        self.leases: dict[int, Asked] = {}
        self.asynchronous = _AsyncFake(self)
        self._forced: list[tuple[list[Any], Callable[[Asked], object]]] = []
        self._last_lease, self._gone = 0, ""

    def force(
        self,
        rule: str,
        verdict: str = "limit",
        *,
        retry_after: float | None = 1.0,
        limit: int | None = 10,
        window: float = 60.0,
        remaining: int = 0,
        when: Callable[[Asked], object] = lambda asked: True,
    ) -> None:
        """From now on the answer to whatever `when` is true of. The last one that fits decides."""
        retry = None if retry_after is None or verdict == "deny" else round(retry_after * 1e6)
        if verdict in ("shed", "deny"):
            limit = None
        window_us = None if limit is None else round(window * 1e6)
        left = None if limit is None else remaining
        self._forced.append(([VERDICTS.index(verdict), rule, limit, window_us, left, retry or 0, retry], when))

    def clear(self) -> None:
        """Allows everything again, and forgets what was asked."""
        self._forced.clear()
        self.asked.clear()
        self.outcomes.clear()
        self.leases.clear()
        self._gone = ""

    def fail(self, reason: str = "unreachable") -> None:
        """As if the daemon did not answer any more."""
        self._gone = reason

    @property
    def charges(self) -> list[Asked]:
        return [asked for asked in self.asked if asked.call == "charge"]

    def assert_released(self, outcome: str | None = None) -> None:
        """That no work holds its place any more; and that all of it ended so."""
        assert not self.leases, f"not released: {list(self.leases.values())}"
        if outcome is not None:
            assert set(self.outcomes.values()) <= {outcome}, f"released otherwise: {self.outcomes}"

    def _converse(self, op: int, elements: list[bytes], wanted: int, which: list[int] | None = None) -> Any:
        values = decode(bytes((0xDC, 0, len(elements))) + b"".join(elements))
        if op == RELEASE:
            self.outcomes[values[0]] = OUTCOMES[values[1]]
            self.leases.pop(values[0], None)
            return True
        if self._gone:
            return Fault("as if the daemon did not answer", self._gone)
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
        return decision


class _AsyncFake(AsyncClient):
    def __init__(self, fake: Fake) -> None:
        self._core: Any = _Core(fake)


class _Core:
    """What AsyncClient asks, answered by a Fake."""

    def __init__(self, fake: Fake) -> None:
        self.fake = fake

    async def judge(self, op: int, domain: str, attributes: Any, cost: Any, more: dict[str, Any]) -> AsyncDecision:
        decision = _awaitable(self.fake._judge(op, domain, attributes, cost, more))
        asker = SimpleNamespace(core=self, _tell=self.fake._tell, _report_later=self.fake._report_later)
        decision._asked = (asker, 1, 1)
        return decision

    async def done(self, op: int, elements: Any) -> bool:
        return self.fake._done(op, elements)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.fake, name)


try:
    import pytest
except ImportError:  # for other runners there is Fake
    pass
else:

    @pytest.fixture
    def fake_tidegate() -> Iterator[Fake]:
        """A Fake; when the test has passed, nothing of its may hold a place."""
        fake = Fake()
        yield fake
        fake.assert_released()
