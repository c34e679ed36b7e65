"""The promise: whatever happens to the daemon, an application responds as without the limiter, and in time.

REQUESTS=N: requests to each application (all faults once; `make nightly`: 50 000), each sent also to
the same application without the limiter.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import pathlib
import signal
import time

import pytest

from applications import APPLICATIONS
from crowd import CALLERS, Caller, Crowd, free
from front import LATE, REPLIES, spinning
from rules import CONCURRENCY, RULES
from servers import wait_until
from yardstick import measuring

REQUESTS = int(os.environ.get("REQUESTS", "0"))
EACH = 90 if REQUESTS else 25  # requests before a fault, and minimum during it
DEADLINE, GRACE, ADDED = 0.020, 0.005, 0.001  # promised seconds; the second and third over the first, and p99
# The onset of a fault: three failures in a row of each caller, after which the breaker opens.
ONSET = 3 * CALLERS
# A busy machine takes the processor away for longer than the measured times. Requests during a pause of a processor are
# not timed. A request that waits for two processes, the roulette and the daemon, and shares its own with other threads,
# may lose the processor up to eight times: this number of round trips of the yardstick is the machine's part; or twice
# the time of the same request without the limiter, which waits for one process. And a few calls may be late, as many as
# are late without the limiter, none by more than a moment, or than twice the longest of those.
ROUND_TRIPS, WAITS, SLACK_CALLS, SLACK_CALL = 8, 2, 0.01, 1
# Most requests are faster. Of few requests, probes of a breaker that wait for the deadline are one in a hundred.
MOST = 0.99 if REQUESTS else 0.97


def killed(daemon, turn):
    turn("gone")
    daemon.stop(kill=True)
    yield
    daemon.start()
    turn("forward")


def stopped(daemon, turn):
    daemon.process.send_signal(signal.SIGSTOP)
    status = pathlib.Path(f"/proc/{daemon.process.pid}/stat")
    wait_until(lambda: status.read_text().rpartition(")")[2].split()[0] == "T")
    yield
    daemon.process.send_signal(signal.SIGCONT)


def restarted(daemon, turn):
    assert daemon.stop() == 0
    daemon.start()
    yield


def spoilt(fault):
    def play(daemon, turn):
        turn(fault)
        yield
        turn("forward")

    play.__name__ = fault
    return play


FAULTS = [killed, stopped, restarted, *map(spoilt, ("removed", "full", *REPLIES, "seldom"))]
ANSWERED = ("restarted", "seldom")  # good replies exist during these


@dataclasses.dataclass
class Spell:
    """A fault, from its start to its end."""

    name: str
    began: float
    held: float = 0.0
    ended: float = 0.0


@pytest.mark.parametrize("application", APPLICATIONS, ids=str)
def test_an_application_answers_as_without_the_limiter(application, daemon, directory):
    (daemon.rules / "api.yaml").write_text(RULES + CONCURRENCY)
    daemon.start()
    path = directory / "front.sock"
    with (
        measuring() as machine,
        spinning(path, daemon.socket) as turn,
        application.serving(path) as limited,
        application.serving(path, WITHOUT_LIMITER="1", ASK_FIRST="0") as plain,
    ):
        crowd, spells = Crowd(limited, plain), list[Spell]()
        for turns, fault in enumerate(itertools.cycle(FAULTS)):
            if turns >= len(FAULTS) and len(crowd.pairs) >= REQUESTS:
                break
            suffer(crowd, fault, spells, daemon, turn)
        timely(application, crowd.pairs, spells, machine())


def suffer(crowd, fault, spells, daemon, turn):
    """Plays one fault, from a working limiter to a working one without leases."""
    name = fault.__name__
    with crowd:
        crowd.wait_until_limited(f"before {name}")
        crowd.wait_for_more(EACH)
        first = len(crowd.pairs)
        spells.append(spell := Spell(name, time.monotonic()))
        steps = fault(daemon, turn)
        next(steps)
        spell.held = time.monotonic()
        crowd.wait_for_more(EACH)
        if name != "restarted":  # may end between two requests
            crowd.wait_until(lambda: any(pair.judging and not pair.judged for pair in crowd.pairs[first:]), name)
        spell.ended = time.monotonic()
        next(steps, None)
        crowd.wait_until_limited(f"after {name}")
    met = [pair for pair in crowd.pairs[first:] if pair.judging]
    believed = [pair for pair in met if pair.judged and spell.held <= pair.began and pair.ended <= spell.ended]
    if name in ("late", "dripping"):  # complete by then, for a client without a processor
        believed = [pair for pair in believed if pair.judging[0] < LATE]
    assert name in ANSWERED or not believed, f"{name}: what the daemon did not say was believed: {believed[:3]}"
    free(daemon, lambda: crowd.pair(0), after=name)
    assert crowd.different == [], f"{name}: {len(crowd.different)} differ, such as {crowd.different[:3]}"


@pytest.mark.parametrize("application", APPLICATIONS, ids=str)
def test_a_disabled_limiter_changes_nothing(application, played):
    with (
        application.serving(played.path, TIDEGATE_DISABLE="1") as disabled,
        application.serving(played.path, WITHOUT_LIMITER="1", ASK_FIRST="0") as plain,
    ):
        caller = Caller((disabled, plain))
        came = [caller.pair(number) for number in range(100)]
        caller.close()
    assert [different for _, different in came if different] == []
    assert not any(pair.judged for pair, _ in came)
    assert played.seen == []


def timely(application, pairs, spells, machine):
    asked = [pair for pair in pairs if pair.judging]
    beside = {id(pair) for pair in asked if machine.paused(pair.began, pair.ended)}
    timed = [pair for pair in asked if id(pair) not in beside]
    calm = [pair for pair in outside_onsets(asked, spells) if id(pair) not in beside]
    with_limits, without = ([pair.judging[i] for pair in calm] for i in (0, 1))
    whole, alone = ([pair.took[i] for pair in calm] for i in (0, 1))
    added, longest = at(MOST, with_limits) - at(MOST, without), max(pair.judging[0] for pair in timed)
    waited = [pair.judging[0] for pair in timed if pair.judging[0] > 0.75 * DEADLINE]  # for missing ones
    late = sum(pair.judging[0] > DEADLINE + GRACE for pair in timed)
    usual = at(0.5, alone)
    waits = [pair.took[1] - usual for pair in timed]  # for the machine
    noise, lost = sum(wait > GRACE for wait in waits), max(ROUND_TRIPS * machine.round_trip, WAITS * at(0.99, waits))
    print(
        f"\n{application}: {len(pairs)} requests, {len(spells)} faults, {sum(not p.judged for p in asked)} not judged,"
        f" {len(beside)} beside {len(machine.pauses)} pauses;"
        f" p50 {at(0.5, with_limits) * 1e6:.0f} us (without {at(0.5, without) * 1e6:.0f}),"
        f" p99 {at(0.99, with_limits) * 1e6:.0f} us (without {at(0.99, without) * 1e6:.0f});"
        f" over HTTP p99 {at(0.99, whole) * 1e6:.0f} us (without {at(0.99, alone) * 1e6:.0f});"
        f" a round trip through cat p99 {machine.round_trip * 1e6:.0f} us;"
        f" {len(waited)} waited {at(0.5, waited) * 1e3:.1f} ms,"
        f" longest {longest * 1e3:.1f} ms, {late} above {(DEADLINE + GRACE) * 1e3:.0f} ms"
        f" (without: {noise} late by {GRACE * 1e3:.0f} ms)"
    )
    assert len(asked) > len(pairs) / 2 and len(timed) > len(asked) / 2
    assert added <= ADDED + lost
    assert at(0.5, waited) <= DEADLINE + GRACE + at(0.99, waits)
    assert late <= noise + SLACK_CALLS * len(timed)
    assert longest <= DEADLINE + GRACE + max(SLACK_CALL, 2 * max(waits))


def outside_onsets(pairs, spells):
    pairs, onsets = sorted(pairs, key=lambda pair: pair.began), set[int]()
    for spell in spells:
        failed = [i for i, pair in enumerate(pairs) if not pair.judged and pair.ended > spell.began]
        onset = [i for i in failed if i not in onsets][:ONSET]
        if spell.name == "seldom":  # every malformed reply is a separate fault
            onset = [i for i in failed if pairs[i].began <= spell.ended]
        onsets.update(onset)
    return [pair for i, pair in enumerate(pairs) if i not in onsets]


def at(share, values):
    return sorted(values)[int(share * len(values))]
