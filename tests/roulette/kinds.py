"""The kinds of faults: their resources, and their permitted effects while they last.

A fault is a generator with one `yield`: the part before it injects the fault, the part after it ends it. Its keywords
are all that the oracle knows of it, and agree with docs/failure-modes.md. A fault without any may have no effect: every
request gets a decision, and every bound holds.
"""

from __future__ import annotations

import dataclasses
import os
import random
import shutil
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from world import Host, World

    Steps = Iterator[None]
    Play = Callable[[World, Host, random.Random], Steps]

EVERY = ("steady", "window", "calm", "fleet", "work", "nobody")  # the rules, and the entry of `deny`


@dataclasses.dataclass(frozen=True)
class Kind:
    """`takes`: two faults with a common resource are never active together, on a host or, with `!`, on all."""

    name: str
    play: Play
    takes: frozenset[str]
    blind: bool  # requests of this host may pass without a decision
    loose: tuple[str, ...]  # rules that may admit any number
    loses: tuple[str, ...]  # rules whose keys may once start fresh
    restarts: bool  # the daemon exits orderly and restarts: it loses nothing if its state directory works
    unkept: bool  # the state directory may not be writable
    disturbs: bool  # the fleet: Redis or a host is unreachable
    empties: bool  # Redis loses its data
    exits: frozenset[int]  # exit codes that may occur
    needs: tuple[str, ...]
    seconds: tuple[float, float]  # its duration


KINDS: dict[str, Kind] = {}


def kind(
    takes: str,
    *,
    blind: bool = False,
    loose: tuple[str, ...] = (),
    loses: tuple[str, ...] = (),
    restarts: bool = False,
    unkept: bool = False,
    disturbs: bool = False,
    empties: bool = False,
    exits: tuple[int, ...] = (),
    needs: str = "",
    seconds: tuple[float, float] = (0.3, 2.0),
) -> Callable[[Play], Play]:
    """Registers a fault by the name of its function."""

    def register(play: Play) -> Play:
        name = play.__name__
        assert name not in KINDS, name
        KINDS[name] = Kind(
            name=name,
            play=play,
            takes=frozenset(takes.split()),
            blind=blind or restarts,
            loose=loose,
            loses=loses,
            restarts=restarts,
            unkept=unkept,
            disturbs=disturbs or blind or restarts,
            empties=empties,
            exits=frozenset(exits),
            needs=tuple(needs.split()),
            seconds=seconds,
        )
        return play

    return register


def is_here(need: str) -> bool:
    """True if the machine has root or the tool that a kind needs."""
    return os.geteuid() == 0 if need == "root" else shutil.which(need) is not None


@dataclasses.dataclass(frozen=True)
class Fault:
    """One fault of a plan, at `at` seconds for `lasts` seconds."""

    number: int
    name: str
    host: str
    at: float
    lasts: float

    @property
    def kind(self) -> Kind:
        return KINDS[self.name]

    def reaches(self, host: str) -> bool:
        return host == self.host or any(place[-1] == "!" for place in self.kind.takes)

    def places(self, hosts: list[str]) -> set[tuple[str, str]]:
        """Returns its resources with their hosts."""
        takes = self.kind.takes
        return {(place.rstrip("!"), each) for place in takes for each in hosts if place[-1] == "!" or each == self.host}


def plan(seed: int, seconds: float, count: int, hosts: list[str], only: set[str] | None = None) -> list[Fault]:
    """Draws `count` faults from the seed. Each kind occurs once before any occurs again."""
    rng = random.Random(seed)
    names = sorted(only or KINDS)
    deck: list[str] = []
    faults: list[Fault] = []
    busy: dict[tuple[str, str], float] = {}  # end of the use of each resource
    for number in range(count):
        if not deck:
            deck = rng.sample(names, len(names))
        name, host = deck.pop(), rng.choice(hosts)
        kind = KINDS[name]
        host = hosts[-1] if "faketime" in kind.needs else host  # the process whose clock can be set
        fault = Fault(number, name, host, seconds * (number + rng.random()) / count, rng.uniform(*kind.seconds))
        places = fault.places(hosts)
        fault = dataclasses.replace(fault, at=max([fault.at, *(busy.get(place, 0.0) for place in places)]))
        ends = fault.at + fault.lasts
        if all(map(is_here, kind.needs)) and ends <= seconds:
            busy |= dict.fromkeys(places, ends + 0.2)
            faults.append(fault)
    return faults
