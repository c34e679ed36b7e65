"""One run: the faults of a plan, each at its time, and the verdict."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import heapq
import itertools
import os
import pathlib
import random
import re
import tempfile
import time
import traceback
from collections.abc import Sequence

import faults_files  # noqa: F401
import faults_host  # noqa: F401
import faults_peers  # noqa: F401
import faults_redis  # noqa: F401
from kinds import Fault
from oracle import FREE_S, Applied, Oracle, Seen, read_calls
from world import RULES, World, Wrong, metric

RESIDENT_MAX = 200 << 20  # bytes of its private memory
DESCRIPTORS_MAX = 64  # once all clients have ended
CALM = 5.0  # seconds without a fault at the end
# Errors that the faults explain; any other one is a finding.
ERRORS = re.compile(
    "|".join(
        [
            r"set aside",
            r"NO LIMITS",
            r"keeps its last good rules",
            r"YESTERDAY",
            r"rules",
            r"REFUSES MOST CALLERS",
            r"Redis",
            r"password",
            r"another tidegate is running here",
            r"is not kept",
            r"state",
            r"cannot be",
            r"cannot start a single decision thread",
        ]
    )
)


@dataclasses.dataclass
class Result:
    wrong: list[str]
    faults: int
    kinds: list[str]
    calls: int
    unjudged: int
    blind: float  # seconds of all hosts
    seconds: float
    resident: int

    @property
    def families(self) -> set[str]:
        """Kinds of findings."""
        return {text.split(":")[0] for text in self.wrong}


def run(
    seed: int, faults: Sequence[Fault], seconds: float, binary: pathlib.Path, pause_ms: float = 25, rules: str = RULES
) -> Result:
    """`rules` may differ from those of the oracle, to test that it notices."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tg-", ignore_cleanup_errors=True) as directory:
        world = World(pathlib.Path(directory), binary, seed, pause_ms, rules)
        try:
            return _play(world, seed, faults, seconds, began)
        finally:
            world.close()


def _play(world: World, seed: int, faults: Sequence[Fault], seconds: float, created: float) -> Result:
    wrong, applied, resident = list[str](), list[Applied](), 0
    time.sleep(1.0)  # hosts exchange heartbeats, clients connect
    began, order = time.monotonic(), itertools.count()
    due = [(fault.at, next(order), fault, None, None) for fault in faults]
    heapq.heapify(due)
    taken = set[tuple[str, str]]()
    while due and not wrong:
        at, _, fault, steps, one = heapq.heappop(due)
        while (wait := began + at - time.monotonic()) > 0:
            time.sleep(min(wait, 0.25))
            resident = max(resident, *(host.resident() for host in world.hosts.values()))
            wrong += _ended(world, applied)
        places = fault.places(list(world.hosts))
        if steps is None and not places.isdisjoint(taken):  # another one lasts longer than planned
            heapq.heappush(due, (time.monotonic() - began + 0.1, next(order), fault, None, None))
            continue
        try:
            if steps is None:
                taken |= places
                one = Applied(fault, time.monotonic())
                applied.append(one)
                steps = fault.kind.play(world, world.hosts[fault.host], random.Random(f"{seed} {fault.number}"))
                next(steps)
                heapq.heappush(due, (time.monotonic() - began + fault.lasts, next(order), fault, steps, one))
            else:
                next(steps, None)
                one.ended = time.monotonic()
                taken -= places
        except Wrong as what:
            wrong.append(f"{fault.name}: {what}")
        except Exception:  # report an error of the roulette itself with its seed
            wrong.append(f"{fault.name}: {traceback.format_exc()}")
    if not wrong:
        time.sleep(max(CALM, began + seconds - time.monotonic()))
        wrong += _ended(world, applied)
        with contextlib.suppress(Wrong):
            wrong += _finish(world)
    ended = time.monotonic()
    for one in applied:
        one.ended = min(one.ended, ended)
    if (code := world.twin.poll()) is not None:
        wrong.append(f"twin: it ended with {code}, so nothing is known of the machine")
    world.twin.stdin.close()
    world.twin.wait()
    late = [tuple(map(float, line.split())) for line in (world.place / "late").read_text().splitlines()]
    late.sort(key=lambda one: one[1])
    calls, released, exceptions = read_calls(world.calls)
    oracle = Oracle(Seen(calls, released, exceptions, applied, late, began, ended))
    wrong += oracle.judge() + _logs(world, applied) + _errors(world)
    if resident > RESIDENT_MAX:
        wrong.append(f"memory: {resident >> 20} MiB")
    return Result(
        wrong=abridged(wrong),
        faults=len(applied),
        kinds=sorted({one.fault.name for one in applied}),
        calls=len(calls),
        unjudged=sum(not call.judged for call in calls),
        blind=sum(spans.length() for spans in oracle.blind.values()),
        seconds=time.monotonic() - created,
        resident=resident,
    )


def abridged(wrong: list[str], most: int = 4) -> list[str]:
    """Returns the first finding of each family, and the number of others."""
    families = collections.defaultdict[str, list[str]](list)
    for text in wrong:
        families[text.split(":")[0]].append(text)
    short = [
        [*texts[:most], *([f"{family}: {len(texts) - most} more"] if len(texts) > most else [])]
        for family, texts in families.items()
    ]
    return [text for texts in short for text in texts]


def _ended(world: World, applied: list[Applied]) -> list[str]:
    """Processes that have exited unexpectedly."""
    wrong = []
    for host in world.hosts.values():
        code = host.process.poll()
        playing = [one for one in applied if one.ended == float("inf") and one.fault.host == host.name]
        if code is not None and not any("process" in one.fault.kind.takes for one in playing):
            wrong.append(f"ended: the daemon of {host.name} with {code}: {host.last_lines()}")
    for name, client in world.clients.items():
        playing = [one for one in applied if one.ended == float("inf") and "client" in one.fault.kind.takes]
        if client.poll() is not None and not playing:
            wrong.append(f"ended: the client {name} with {client.returncode}")
    return wrong


def _finish(world: World) -> list[str]:
    """All requests get decisions again; clients exit without leaving state; daemons exit orderly."""
    wrong = []
    for name in world.clients:
        try:
            world.end_client(name)
        except Wrong as what:
            wrong.append(f"ended: {what}")
    until = time.monotonic() + FREE_S
    for host in world.hosts.values():
        while (held := metric(page := host.ask("/metrics"), "tidegate_leases")) and time.monotonic() < until:
            time.sleep(0.1)
        if not page or held:
            wrong.append(f"leases: {held} on {host.name} after the end of all clients")
        if page and metric(page, "tidegate_thread_restarts_total"):
            wrong.append(f"panic: a thread of {host.name} was run again")
        descriptors = len(os.listdir(f"/proc/{host.pid}/fd")) if host.process.poll() is None else 0
        if descriptors > DESCRIPTORS_MAX:
            wrong.append(f"descriptors: {descriptors} of {host.name} after the end of all clients")
        try:
            host.stop()
        except Wrong as what:
            wrong.append(f"end: {what}")
    return wrong


def _logs(world: World, applied: Sequence[Applied]) -> list[str]:
    wrong = []
    # The standard library panics without memory for a new thread, and the process exits.
    expected = "stack_overflow.rs" if any(one.fault.name == "no_memory" for one in applied) else None
    for host in world.hosts.values():
        counted = collections.Counter()
        for _, line in host.lines:
            if expected and expected in line:
                continue
            if "panicked" in line or "please report" in line:
                wrong.append(f"log: {host.name}: {line}")
            elif " ERROR " in line and not ERRORS.search(line):
                counted[line] += 1
        wrong += [f"log: {host.name}: {line}" for line in counted]
    return wrong


def _errors(world: World) -> list[str]:
    """Output of clients other than the lines of client.py."""
    wrong = []
    for path in world.place.glob("*.err"):
        lines = [
            line for line in path.read_text(errors="replace").splitlines() if "tidegate: " not in line and line.strip()
        ]
        wrong += [f"exception: {path.stem}: {line}" for line in lines[:5]]
    return wrong
