"""Sends a small shop three times the traffic that it can serve, without shedding and with it, and shows the results of
critical requests. Both runs send the same requests at the same times.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import random
import socket
import tempfile
import time
from collections import Counter
from dataclasses import dataclass

from stage import bold, exchange, gunicorn, red, say, show, start, wait_for

HERE = pathlib.Path(__file__).resolve().parent / "overload"
WORKERS = 4
CAPACITY = WORKERS * 20  # requests a second: 50 ms each, one at a time in each worker
RATE = 3 * CAPACITY
SECONDS = 10
PATIENCE = 1.0  # seconds until a caller gives up; a later response costs as much, but is useless
# By priority of overload/1-priorities.yaml: the share of all requests, and the request.
TRAFFIC = {
    "critical": (0.10, "POST", "/checkout"),
    "post": (0.20, "POST", "/basket"),
    "get": (0.50, "GET", "/items"),
    "test": (0.20, "GET", "/sandbox/items"),
}
USERS = 500  # many, so that none sends a large part of the traffic
ON_MIN, OFF_MAX = 0.9, 0.6  # expected share of critical requests served in time, with and without shedding
BEHIND_MAX = 0.2  # seconds
BACKLOG = 1024  # connections that the kernel queues for the workers


@dataclass(frozen=True)
class Arrival:
    """One request: its time in seconds from the start, priority and user."""

    at: float
    priority: str
    user: str


class Run:
    """Counts of results: `served`, `refused`, `late` (the caller had given up) or `failed`."""

    def __init__(self, arrivals: list[Arrival], port: int) -> None:
        self.arrivals, self.port = arrivals, port
        self.seconds: list[Counter[tuple[str, str]]] = [Counter() for _ in range(SECONDS)]  # by priority and end
        self.left = Counter(int(arrival.at) for arrival in arrivals)  # requests without an end, by second
        self.behind = 0.0  # seconds by which the latest request was late, on a busy machine
        self.example: tuple[list[tuple[str, str]], bytes] | None = None  # of a refusal
        self.without_hint = 0  # refusals without Retry-After

    async def play(self) -> None:
        say(f"{'':>10}{'critical':>31}{'all others':>31}")
        say(f"{'second':>10}" + f"{'in time  refused  too late':>31}" * 2)
        started = time.monotonic() + 0.1
        lines = asyncio.create_task(self.lines(started))
        asked = []
        for arrival in self.arrivals:
            await asyncio.sleep(max(0.0, started + arrival.at - time.monotonic()))
            self.behind = max(self.behind, time.monotonic() - started - arrival.at)
            asked.append(asyncio.create_task(self.ask(arrival)))
        await asyncio.gather(*asked)
        await lines

    async def lines(self, started: float) -> None:
        """Prints a line for each second, after the end of its last request."""
        for second in range(SECONDS):
            await asyncio.sleep(max(0.0, started + second + 1 + PATIENCE + 0.1 - time.monotonic()))
            while self.left[second]:
                await asyncio.sleep(0.05)
            line = f"{second + 1:>10}"
            for others in (False, True):
                ends = [self.count(end, others, second) for end in ("served", "refused", "late")]
                ends[2] += self.count("failed", others, second)
                late = f"{ends[2]:>10}"
                line += f"{ends[0]:>12}{ends[1]:>9}" + (red(late) if ends[2] else late)
            say(line)

    def count(self, end: str, others: bool, second: int) -> int:
        priorities = [priority for priority in TRAFFIC if others != (priority == "critical")]
        return sum(self.seconds[second][priority, end] for priority in priorities)

    async def ask(self, arrival: Arrival) -> None:
        end = "failed"
        try:
            # With the X-Request-Start of a proxy.
            headers = [f"X-User: {arrival.user}", f"X-Request-Start: t={time.time():.6f}"]
            _, method, path = TRAFFIC[arrival.priority]
            asked = exchange(self.port, f"{method} {path}", headers)
            status, headers, body = await asyncio.wait_for(asked, PATIENCE)
            if status == 200:
                end = "served"
            elif status == 503:
                end = "refused"
                self.example = self.example or (headers, body)
                self.without_hint += not any(name == "Retry-After" for name, _ in headers)
        except asyncio.TimeoutError:
            end = "late"
        except (OSError, ValueError):
            pass
        self.seconds[int(arrival.at)][arrival.priority, end] += 1
        self.left[int(arrival.at)] -= 1

    def total(self, priority: str) -> Counter[str]:
        ends: Counter[str] = Counter()
        for second in self.seconds:
            for (of, end), n in second.items():
                ends[end] += n if of == priority else 0
        return ends

    def share(self, priority: str) -> float:
        total = self.total(priority)
        return total["served"] / max(1, total.total())


def schedule() -> list[Arrival]:
    """Returns random arrivals at 3 times the capacity on average, from a fixed seed."""
    chance, at, arrivals = random.Random(1), 0.0, []
    shares = [share for share, _, _ in TRAFFIC.values()]
    while (at := at + chance.expovariate(RATE)) < SECONDS:
        priority = chance.choices(list(TRAFFIC), shares)[0]
        arrivals.append(Arrival(at, priority, f"user-{chance.randrange(USERS)}"))
    return arrivals


def play(tidegate: str, arrivals: list[Arrival], shedding: bool) -> Run:
    """Plays the arrivals against a new daemon and application, so that the runs are independent."""
    with contextlib.ExitStack() as stack:
        directory = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidegate-demo-")))
        log = stack.enter_context(open(directory / "log", "w+"))
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=BACKLOG))
        port = listener.getsockname()[1]

        rules, path = directory / "rules", str(directory / "tidegate.sock")
        rules.mkdir()
        for file in ("1-priorities.yaml", "2-shed.yaml")[: 1 + shedding]:
            (rules / file).write_text((HERE / file).read_text().replace('":8000"', f'":{port}"'))
        daemon = start([tidegate, "serve", "--socket", path, "--rules", str(rules)], stack, stderr=log)
        wait_for(lambda: os.path.exists(path), daemon, log)

        gunicorn("shop", HERE, listener, path, ["--workers", str(WORKERS)], stack, log)

        run = Run(arrivals, port)
        asyncio.run(run.play())
        return run


def main(tidegate: str) -> int:
    arrivals = schedule()
    shop = f"gunicorn --workers {WORKERS} shop, 50 ms for each request"
    say(f"\n{bold('4')}  an overload:     {shop}: it can serve {CAPACITY} a second")
    callers = f"{RATE} requests a second in total; after {PATIENCE:g} s they give up, and the work is wasted"
    say(f"{bold('5')}  the callers:     {callers}\n")
    say(f"{bold('shedding off')}, the rules are overload/1-priorities.yaml")
    off = play(tidegate, arrivals, shedding=False)
    say(f"\n{bold('shedding on')}, with overload/2-shed.yaml: the same requests again")
    on = play(tidegate, arrivals, shedding=True)
    return report(off, on)


def report(off: Run, on: Run) -> int:
    say(f"\n{'':>18}" + "".join(f"{title:>31}" for title in ("shedding off", "shedding on")))
    say(f"{'priority':>10}{'sent':>8}" + f"{'in time  refused  too late':>31}" * 2)
    for priority in TRAFFIC:
        line = f"{priority:>10}{off.total(priority).total():>8}"
        for run in (off, on):
            ends = run.total(priority)
            line += f"{ends['served']:>12}{ends['refused']:>9}{ends['late'] + ends['failed']:>10}"
        say(line)
    if on.example:
        show(503, *on.example)

    failures = []
    for name, run in (("off", off), ("on", on)):
        if failed := sum(run.total(priority)["failed"] for priority in TRAFFIC):
            say(f"{failed} requests with shedding {name} had no valid response, and count as late")
    if any(off.total(priority)["refused"] for priority in TRAFFIC):
        failures.append("requests were refused although shedding was off")
    if not on.example:
        failures.append("no request was refused although shedding was on")
    elif on.without_hint:
        failures.append(f"{on.without_hint} refusals had no Retry-After")
    if on.share("critical") < ON_MIN or off.share("critical") > OFF_MAX:
        expected = f"at least {ON_MIN:.0%} with shedding on and at most {OFF_MAX:.0%} with it off"
        failures.append(f"expected in time, of the critical requests: {expected}")
        if (behind := max(off.behind, on.behind)) > BEHIND_MAX:
            say(f"\nthis machine is too busy for this act: requests were sent up to {behind:.1f} s late")
    for failure in failures:
        say(red(f"FAILED: {failure}"))
    say(f"\nof the {CAPACITY} requests that the shop can serve in a second it served in time:")
    for name, run in (("off", off), ("on", on)):
        useful = sum(run.total(priority)["served"] for priority in TRAFFIC) / SECONDS
        say(f"{useful:6.1f} with shedding {name}")
    if not failures:
        say(f"{bold('ok')}: {on.share('critical'):.0%} of the critical requests were served in time with shedding on,")
        say(f"    {off.share('critical'):.0%} with it off; every refusal had a Retry-After")
    return 1 if failures else 0
