"""The kinds of faults: what each one takes, and what it may cost while it lasts.

A fault is a generator of one `yield`: what stands before it does the harm, what follows undoes it. Its keywords are all
that the oracle knows of it, and they say what docs/failure-modes.md says. A fault without any may cost nothing: every
request is judged, and every bound holds.
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
    """`takes`: of two faults with a word in common only one lasts at a time, on a host or, with `!`, on all."""

    name: str
    play: Play
    takes: frozenset[str]
    blind: bool  # requests of this host may pass unjudged
    loose: tuple[str, ...]  # rules that may admit anything
    loses: tuple[str, ...]  # rules whose keys may be as good as new once
    restarts: bool  # the daemon ends in order and starts: nothing is lost if its state directory is well
    unkept: bool  # the state directory may not be written
    disturbs: bool  # the fleet: Redis is not heard, or a host is not
    empties: bool  # Redis loses its data
    exits: frozenset[int]  # exit codes that may occur
    needs: tuple[str, ...]
    seconds: tuple[float, float]  # how long it lasts


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
    """Whether the machine has what a kind needs: root, or a tool."""
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
        """What it takes, and where."""
        takes = self.kind.takes
        return {(place.rstrip("!"), each) for place in takes for each in hosts if place[-1] == "!" or each == self.host}


def plan(seed: int, seconds: float, count: int, hosts: list[str], only: set[str] | None = None) -> list[Fault]:
    """`count` faults drawn from the seed. Each kind comes once before any comes again."""
    rng = random.Random(seed)
    names = sorted(only or KINDS)
    deck: list[str] = []
    faults: list[Fault] = []
    busy: dict[tuple[str, str], float] = {}  # until when a resource is taken
    for number in range(count):
        if not deck:
            deck = rng.sample(names, len(names))
        name, host = deck.pop(), rng.choice(hosts)
        kind = KINDS[name]
        host = hosts[-1] if "faketime" in kind.needs else host  # the one whose clock can be set
        fault = Fault(number, name, host, seconds * (number + rng.random()) / count, rng.uniform(*kind.seconds))
        places = fault.places(hosts)
        fault = dataclasses.replace(fault, at=max([fault.at, *(busy.get(place, 0.0) for place in places)]))
        ends = fault.at + fault.lasts
        if all(map(is_here, kind.needs)) and ends <= seconds:
            busy |= dict.fromkeys(places, ends + 0.2)
            faults.append(fault)
    return faults
