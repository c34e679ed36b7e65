"""Judges the replies of clients: correct or wrong, given the faults of the run.

It shares only the numbers of the rules with the daemon, and counts in seconds of the machine's monotonic clock.
"""

from __future__ import annotations

import bisect
import collections
import dataclasses
import pathlib
from collections.abc import Iterable

from kinds import EVERY, Fault
from world import BURST, FLEET_BURST, FLEET_RATE, MAX, RATE, TIMEOUT, WINDOW, WINDOW_S

RECOVERY = 4.0  # seconds: after a fault a client's breaker may pause for 2 s, and the probe fail once
SETTLED = 1.5  # seconds until a switch, a file or a reload is certainly in force
KEPT = 8.0  # seconds until a repaired state directory has the rules in force
UNKEPT = 3.0  # seconds until a repaired state directory has a copy
QUIET = 15.0  # seconds after the last disturbance until the fleet's bound holds without an allowance
SHARP = 0.1  # seconds: a slower request counts for no bound, since the time of its decision is unknown
SLACK = 0.020  # seconds by which a call may exceed its deadline, besides delays of the machine
FREE_S = 7.0  # seconds after the end of its clients until a lease is free


@dataclasses.dataclass(frozen=True)
class Call:
    client: str
    began: float
    ended: float
    number: int
    kind: str
    user: str
    verdict: str
    reason: str
    rule: str
    retry: float
    lease: bool

    @property
    def host(self) -> str:
        return self.client.split("-")[1]

    @property
    def judged(self) -> bool:
        return self.reason == "-"

    @property
    def passed(self) -> bool:
        return self.judged and self.verdict == "allow"


@dataclasses.dataclass
class Applied:
    """A fault that was played, and its time span."""

    fault: Fault
    began: float
    ended: float = float("inf")


@dataclasses.dataclass
class Seen:
    """All records of a run."""

    calls: list[Call]
    released: dict[tuple[str, int], float]
    exceptions: list[str]
    applied: list[Applied]
    late: list[tuple[float, float, float]]  # from, to, duration
    began: float
    ended: float


def read_calls(place: pathlib.Path) -> tuple[list[Call], dict[tuple[str, int], float], list[str]]:
    calls, released, exceptions = [], {}, []
    for path in sorted(place.iterdir()):
        for line in path.read_text(errors="replace").splitlines(keepends=True):
            words = line.split()
            if not line.endswith("\n"):
                continue  # its client was killed
            if words[0] == "C":
                began, ended, number, kind, user, verdict, reason, rule, retry, lease = words[1:]
                times = float(began), float(ended), int(number)
                calls.append(Call(path.name, *times, kind, user, verdict, reason, rule, float(retry), lease == "1"))
            elif words[0] == "R":
                released[path.name, int(words[2])] = float(words[1])
            else:
                exceptions.append(f"{path.name}: {line.strip()}")
    return sorted(calls, key=lambda call: call.ended), released, exceptions


class Spans:
    """Time spans, and whether another one touches one of them."""

    def __init__(self, spans: Iterable[tuple[float, float]]) -> None:
        merged: list[list[float]] = []
        for began, ended in sorted(spans):
            if merged and began <= merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], ended)
            else:
                merged.append([began, ended])
        self.begins, self.ends = [span[0] for span in merged], [span[1] for span in merged]

    def touch(self, began: float, ended: float) -> bool:
        at = bisect.bisect_right(self.begins, ended) - 1
        return at >= 0 and self.ends[at] >= began

    def gaps(self, began: float, ended: float) -> list[tuple[float, float]]:
        edges = [began, *(edge for span in zip(self.begins, self.ends) for edge in span), ended]
        return [(a, b) for a, b in zip(edges[::2], edges[1::2]) if b > a]

    def length(self) -> float:
        return sum(b - a for a, b in zip(self.begins, self.ends))


class Oracle:
    def __init__(self, seen: Seen) -> None:
        self.seen, self.wrong = seen, list[str]()
        self.hosts = sorted({call.host for call in seen.calls})
        self.blind, self.loose, self.losses = {}, {}, {}
        for host in self.hosts:
            self._read_faults(host)
        self.late_at = [until for _, until, _ in seen.late]

    def _read_faults(self, host: str) -> None:
        faults = [one for one in self.seen.applied if one.fault.reaches(host)]
        unkept = Spans((one.began, one.ended + UNKEPT) for one in faults if one.fault.kind.unkept)
        # Invalid rules at a start are replaced by the last good ones, if those could be stored.
        lost = Spans((one.began, one.ended + KEPT) for one in faults if "state" in one.fault.kind.takes)
        bare = []
        for start in faults:
            if "process" in start.fault.kind.takes and start.fault.kind.blind and lost.touch(start.began, start.ended):
                bad = [
                    one
                    for one in faults
                    if "rules" in one.fault.kind.takes and one.began < start.ended and start.began < one.ended
                ]
                bare += [(start.began, max(one.ended for one in bad) + SETTLED)] if bad else []
        self.blind[host] = Spans((one.began, one.ended + RECOVERY) for one in faults if one.fault.kind.blind)
        losses = collections.defaultdict(list)
        for rule in EVERY:
            loose = [(one.began, one.ended + SETTLED) for one in faults if rule in one.fault.kind.loose]
            self.loose[host, rule] = Spans(loose + bare)
        for one in faults:
            kind = one.fault.kind
            again = kind.loses or (
                ("steady", "window", "work") if kind.restarts and unkept.touch(one.began, one.ended) else ()
            )
            for rule in again:
                losses[rule].append((one.began, one.ended + 0.2))
        for rule in EVERY:
            self.losses[host, rule] = sorted(losses[rule])

    def judge(self) -> list[str]:
        self.wrong += [f"exception: {text}" for text in self.seen.exceptions[:5]]
        for host in self.hosts:
            calls = [call for call in self.seen.calls if call.host == host]
            self._verdicts(host, calls)
            self._unjudged(host, calls)
            self._work(host, calls)
            for rule, most, rate in (("steady", BURST, RATE), ("window", WINDOW, 0.0)):
                for user in {call.user for call in calls if call.kind == rule}:
                    self._bucket(host, rule, user, most, rate, [c for c in calls if (c.kind, c.user) == (rule, user)])
        self._deadlines()
        self._fleet()
        return self.wrong

    def lateness(self, began: float, ended: float) -> float:
        """Returns how long the machine kept some process from running then."""
        first, total = bisect.bisect_left(self.late_at, began - 0.05), 0.0
        for since, _, late in self.seen.late[first:]:
            if since > ended + 1.0:
                break
            total += late if since <= ended + 0.05 else 0.0
        return total

    def spent(self, call: Call) -> str:
        taken = self.lateness(call.began, call.ended)
        return f"{call.ended - call.began:.3f} s, of which the machine took {taken:.3f} s"

    def _verdicts(self, host: str, calls: list[Call]) -> None:
        """Callers below their limit are not refused, those on a list are, and each reply names its rule."""
        names = {"denied": "nobody"}
        for call in calls:
            rule = names.get(call.kind, call.kind)
            at = f"{call.client} {call.kind} {call.user} at {call.began - self.seen.began:.3f} s"
            if call.kind == "calm" and call.verdict != "allow":
                self.wrong.append(f"false refusal: {at} was refused: {call.verdict} by {call.rule} {call.reason}")
            if call.reason in ("invalid", "quota", "not_allowed", "forbidden"):
                self.wrong.append(f"client refused: {at}: {call.reason}")
            if self.loose[host, rule].touch(call.began, call.ended) or not call.judged:
                continue
            if call.kind == "denied" and call.verdict != "deny":
                self.wrong.append(f"not denied: {at}: {call.verdict}")
            if call.rule != rule:
                self.wrong.append(f"no limit: {at} was judged by {call.rule}, not {rule}: {call.verdict}")
            most = {"steady": BURST / RATE, "window": WINDOW_S, "fleet": FLEET_BURST / FLEET_RATE}.get(call.kind)
            if most and call.retry > most + 1:
                self.wrong.append(f"retry time too long: {at}: {call.retry} s")

    def _unjudged(self, host: str, calls: list[Call]) -> None:
        """While the daemon works, no request passes without a decision, except for delays of the machine."""
        explained = dict[str, float]()
        for call in calls:
            if call.judged:
                continue
            is_blind = "misled" in call.client or self.blind[host].touch(call.began, call.ended)
            is_late = call.reason in ("timeout", "unreachable") and self.lateness(call.began, call.ended) > TIMEOUT / 4
            is_late = is_late or call.ended - call.began > 2 * TIMEOUT  # the client itself was delayed
            follows = call.reason == "breaker" and call.began < explained.get(call.client, -9.0) + RECOVERY
            if is_blind or is_late or (call.reason == "breaker" and follows):
                explained[call.client] = max(
                    explained.get(call.client, -9.0), call.ended if call.reason != "breaker" else -9.0
                )
                continue
            at = f"{call.client} {call.kind} at {call.began - self.seen.began:.3f} s"
            self.wrong.append(f"unjudged: {at}: {call.reason} after {self.spent(call)}")

    def _bucket(self, host: str, rule: str, user: str, most: int, rate: float, calls: list[Call]) -> None:
        """Admitted in any span: at most a burst, the rate, and a burst for each loss in it."""
        loose, losses = self.loose[host, rule], self.losses[host, rule]
        admitted = []
        for call in calls:
            span = call.began, call.ended
            doubtful = loose.touch(*span) or any(began <= span[1] and span[0] <= ended for began, ended in losses)
            if call.passed and span[1] - span[0] <= SHARP and not doubtful:
                admitted.append(call)
        worst, when = (
            most_admitted(admitted, most, rate, [ended for _, ended in losses])
            if rate
            else most_in_window(admitted, losses)
        )
        allowed = most + rate * SHARP + (1 if rate else 0)
        if worst > allowed:
            text = f"{worst:.1f} of {user} where {allowed:.1f} may be, at {when - self.seen.began:.3f} s"
            self.wrong.append(f"too much: {rule} of {host}: {text}")
        if rate:
            self._false_refusals(host, user, most, rate, calls)

    def _false_refusals(self, host: str, user: str, most: int, rate: float, calls: list[Call]) -> None:
        """A refused request cannot fit into a bucket from which all possible grants were taken."""
        level, before = 0.0, 0.0
        for call in calls:
            level = max(0.0, level - rate * (call.ended - before))
            before = call.ended
            if call.passed or (not call.judged and call.reason in ("timeout", "protocol")):
                level = min(level + 1, most)
            elif (
                call.judged
                and call.verdict == "limit"
                and level + 1 + rate * (SHARP + call.ended - call.began) + 2 < most
            ):
                at = f"{call.client} at {call.began - self.seen.began:.3f} s"
                self.wrong.append(f"false refusal: {user} of {host} by {at}, with {most - level:.1f} left")

    def _work(self, host: str, calls: list[Call]) -> None:
        """Requests that were certainly concurrent."""
        edges = []
        losses, loose = self.losses[host, "work"], self.loose[host, "work"]
        for call in calls:
            if call.kind != "work" or not call.lease or loose.touch(call.began, call.ended + 2):
                continue
            until = min(self.seen.released.get((call.client, call.number), call.ended), call.ended + 2)
            until = min([until, *(max(began, call.ended) for began, ended in losses if ended > call.began - 1.0)])
            if until > call.ended:
                edges += [(call.ended, 1, call.user), (until, -1, call.user)]
        held = collections.Counter()
        for at, change, user in sorted(edges):
            held[user] += change
            if held[user] > MAX:
                self.wrong.append(f"too much at once: {held[user]} of {user} on {host} at {at - self.seen.began:.3f} s")
                break

    def _deadlines(self) -> None:
        """Calls end by their deadline, except while their client is stopped."""
        stopped = [
            (one.fault.host, one.began, one.ended) for one in self.seen.applied if one.fault.name == "client_stopped"
        ]
        spans = {host: Spans((a, b) for where, a, b in stopped if where == host) for host in self.hosts}
        for call in self.seen.calls:
            took = 0.0 if spans[call.host].touch(call.began, call.ended) else call.ended - call.began
            if took > TIMEOUT + SLACK and took > TIMEOUT + SLACK + 4 * self.lateness(call.began, call.ended):
                at = f"{call.client} {call.kind} at {call.began - self.seen.began:.3f} s"
                self.wrong.append(f"deadline: {at} took {self.spent(call)}: {call.verdict} {call.reason}")

    def _fleet(self) -> None:
        """Over all hosts: B + R·W without faults; in a whole run one B more, and 1.5 R.

        One B more if every host restarted after Redis lost its data: none may know the spent tokens.
        """
        loose = [self.loose[host, "fleet"] for host in self.hosts]
        disturbed = Spans((one.began - 0.5, one.ended + QUIET) for one in self.seen.applied if one.fault.kind.disturbs)
        restarts = [one for one in self.seen.applied if one.fault.kind.restarts or one.fault.kind.loses]
        forgotten = [
            one
            for one in self.seen.applied
            if one.fault.kind.empties
            and set(self.hosts) <= {each.fault.host for each in restarts if each.began > one.began}
        ]
        most = (2 + len(forgotten)) * FLEET_BURST
        for user in {call.user for call in self.seen.calls if call.kind == "fleet"}:
            calls = [call for call in self.seen.calls if call.kind == "fleet" and call.user == user and call.passed]
            calls = [
                call
                for call in calls
                if call.ended - call.began <= SHARP and not any(each.touch(call.began, call.ended) for each in loose)
            ]
            for began, ended in disturbed.gaps(self.seen.began, self.seen.ended):
                inside = [call for call in calls if began <= call.began and call.ended <= ended]
                worst, when = most_admitted(inside, FLEET_BURST, FLEET_RATE, [])
                if worst > FLEET_BURST + FLEET_RATE * (SHARP + 0.1) + 1:
                    self.wrong.append(
                        f"fleet: {worst:.1f} of {user} at {when - self.seen.began:.3f} s, where {FLEET_BURST} may be"
                    )
            worst, when = most_admitted(calls, FLEET_BURST, FLEET_RATE * 1.5, [])
            if worst > most:
                self.wrong.append(
                    f"fleet: {worst:.1f} of {user} at {when - self.seen.began:.3f} s, where {most} may be"
                )


def most_admitted(calls: list[Call], most: int, rate: float, losses: list[float]) -> tuple[float, float]:
    """Returns the largest excess of any span over the rate and the losses in it, and its time, by a bucket."""
    level, before, worst, when, losses = 0.0, 0.0, 0.0, 0.0, sorted(losses)
    for call in calls:
        while losses and losses[0] < call.ended:
            level = max(0.0, level - rate * max(0.0, losses[0] - before) - most)
            before = max(before, losses.pop(0))
        level = max(0.0, level - rate * (call.ended - before)) + 1
        before = call.ended
        if level > worst:
            worst, when = level, call.ended
    return worst, when


def most_in_window(calls: list[Call], losses: list[tuple[float, float]]) -> tuple[float, float]:
    """Returns the most that was certainly admitted in a window, from one loss to the next."""
    worst, when, first = 0, 0.0, 0
    edges = [ended for _, ended in losses]
    for at, call in enumerate(calls):
        while calls[first].began <= call.ended - WINDOW_S + SHARP or any(
            calls[first].ended <= edge <= call.ended for edge in edges
        ):
            first += 1
        if at - first + 1 > worst:
            worst, when = at - first + 1, call.ended
    return worst, when
