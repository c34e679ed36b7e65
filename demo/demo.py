"""Starts the daemon and an application under gunicorn, sends requests of several callers, and shows the results.

Usage: demo.py PATH-OF-TIDEGATE. Takes about a minute. Exits with 0 if the greedy caller got no more than its quota, the
others were not refused, the shadow rules counted would-be refusals, an overloaded application served its critical
requests with shedding on and failed them with it off (overload.py), three daemons shared one budget while their Redis
was killed and restarted (fleet.py), and three applications that ask in different ways shared one budget (together.py);
else 1.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import pathlib
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import fleet
import overload
import together
from stage import bold, gunicorn, red, say, show, start, wait_for

HERE = pathlib.Path(__file__).resolve().parent
SECONDS = 8
WORKERS = 3


@dataclass
class Watch:
    """A rule in shadow, with its numbers of config/rules/api.yaml and the note that it adds to decisions."""

    title: str
    note: str
    burst: int
    rate: float


@dataclass
class Load:
    """The requests of a caller, their rate per second, and the shadow rule that checks them."""

    rate: int
    method: str
    path: str
    watch: Watch | None = None


LOGIN = Watch("The shadow rule login-attempts (30/min)", "shadow login-attempts", 30, 0.5)
WRITES = Watch("The candidate of writes-per-user (3/s, burst 5)", "candidate writes-per-user", 5, 3.0)
# The limit of the greedy caller is not in this file: it is read from the responses.
CALLERS = {
    "ann": Load(4, "GET", "/v1/orders"),
    "ben": Load(8, "POST", "/login", LOGIN),
    "cleo": Load(5, "POST", "/v1/orders", WRITES),
    "greedy": Load(100, "GET", "/v1/orders"),
}


class Caller:
    """One user of the application, with evenly spaced requests from several threads: a response delays no request."""

    def __init__(self, name: str, load: Load, port: int) -> None:
        self.name, self.load, self.rate, self.port = name, load, load.rate, port
        self.notes: Counter[str] = Counter()  # notes of shadow rules
        self.seconds = [Counter() for _ in range(SECONDS + 1)]  # answers by status, for each second
        self.example: dict[int, tuple[list[tuple[str, str]], bytes]] = {}
        self.turns: Iterator[int] = iter(range(load.rate * SECONDS))
        self.lock = threading.Lock()
        self.span = [float("inf"), 0.0]  # from before the first request to after the last answer

    def run(self, started: float, stop: threading.Event) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        while True:
            with self.lock:
                turn = next(self.turns, None)
            if turn is None or stop.wait(max(0.0, started + turn / self.rate - time.monotonic())):
                return
            self.span[0] = min(self.span[0], time.monotonic())
            try:
                connection.request(self.load.method, self.load.path, headers={"X-User": self.name})
                answer = connection.getresponse()
                status, headers, body = answer.status, answer.getheaders(), answer.read()
            except (OSError, http.client.HTTPException):
                connection.close()
                status, headers, body = 0, [], b""
            now = time.monotonic()
            with self.lock:
                self.span[1] = max(self.span[1], now)
                self.seconds[min(int(now - started), SECONDS)][status] += 1
                self.example.setdefault(status, (headers, body))
                if status == 200:
                    self.notes.update(json.loads(body)["notes"])

    @property
    def total(self) -> Counter:
        return sum(self.seconds, Counter())


def main(tidegate: str) -> int:
    acts = (quotas, overload.main, fleet.main, together.main)
    return max([act(tidegate) for act in acts])


def quotas(tidegate: str) -> int:
    with contextlib.ExitStack() as stack:
        directory = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidegate-demo-")))
        log = stack.enter_context(open(directory / "log", "w+"))
        path = str(directory / "tidegate.sock")
        rules = HERE.parent / "config/rules"
        say(f"{bold('1')}  the daemon:      tidegate serve --socket {path} --rules config/rules")
        daemon = start([tidegate, "serve", "--socket", path, "--rules", str(rules)], stack, stderr=log)
        wait_for(lambda: os.path.exists(path), daemon, log)

        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        port = listener.getsockname()[1]
        say(
            f"{bold('2')}  the application: gunicorn --workers {WORKERS} app, wrapped by the middleware, on port {port}"
        )
        options = ["--workers", str(WORKERS), "--worker-class", "gthread", "--threads", "8"]
        gunicorn("app", HERE, listener, path, options, stack, log)

        callers = [Caller(name, load, port) for name, load in CALLERS.items()]
        described = ", ".join(f"{name} {load.rate} {load.method} {load.path}" for name, load in CALLERS.items())
        say(f"{bold('3')}  the callers, with requests a second: {described}\n")
        traffic(callers, stack)
        return report(callers)


def traffic(callers: list[Caller], stack: contextlib.ExitStack) -> None:
    say("          " + "".join(f"{caller.name:>22}" for caller in callers))
    say(f"{'second':>10}" + f"{'allowed  refused':>22}" * len(callers))
    started, stop = time.monotonic() + 0.1, threading.Event()
    stack.callback(stop.set)
    threads = []
    for caller in callers:
        for _ in range(1 + caller.rate // 15):
            threads.append(threading.Thread(target=caller.run, args=(started, stop), daemon=True))
    for thread in threads:
        thread.start()
    for second in range(SECONDS):
        time.sleep(max(0.0, started + second + 1.02 - time.monotonic()))
        line = f"{second + 1:>10}"
        for caller in callers:
            with caller.lock:
                counts = Counter(caller.seconds[second])
            allowed, refused = counts.pop(200, 0), sum(counts.values())
            line += f"{allowed:>13}" + (red(f"{refused:>9}") if refused else f"{refused:>9}")
        say(line)
    for thread in threads:
        thread.join(15)


def report(callers: list[Caller]) -> int:
    greedy = callers[-1]
    failures = []
    say(f"\n{'caller':>10}{'sent':>8}{'200':>8}{'429':>8}{'other':>8}{'would be refused':>20}")
    for caller in callers:
        total = caller.total
        sent, other = sum(total.values()), sum(n for status, n in total.items() if status not in (200, 429))
        would = caller.notes.total()
        say(f"{caller.name:>10}{sent:>8}{total[200]:>8}{total[429]:>8}{other:>8}{would or '':>20}")
        if other:
            failures.append(f"{caller.name} got {other} answers that are neither 200 nor 429")
        if caller is not greedy and total[200] != sent:
            failures.append(f"{caller.name} asked within its limit and was refused {sent - total[200]} times")
    if 429 not in greedy.example or 200 not in greedy.example:
        failures.append("the greedy caller did not see both answers")
    else:
        for status in (200, 429):
            show(status, *greedy.example[status])
        # The numbers of the rule, from the response.
        problem = json.loads(greedy.example[429][1])
        burst, rate = problem["limit"], problem["limit"] / problem["window"]
        span, admitted = greedy.span[1] - greedy.span[0], greedy.total[200]
        bound = burst + rate * span
        say(f"\ngreedy was admitted {admitted} times.")
        say(f"Its limit allows at most {burst} at once + {rate:g}/s x {span:.2f} s = {bound:.1f}.")
        if admitted > bound:
            failures.append("the greedy caller got more than its quota")
    for caller in callers:
        failures += watched(caller)
    for failure in failures:
        say(red(f"FAILED: {failure}"))
    if not failures:
        say(f"{bold('ok')}: the greedy caller got its quota and no more; the others were untouched")
        say("    the rules in shadow refused no request, and counted would-be refusals")
    return 1 if failures else 0


def watched(caller: Caller) -> list[str]:
    """Prints the would-be refusals of a shadow rule, and returns failures of its numbers."""
    watch = caller.load.watch
    if watch is None:
        return [f"{caller.name} met {dict(caller.notes)}"] if caller.notes else []
    refused, sent = caller.notes.pop(watch.note, 0), caller.total[200]
    span, passed = caller.span[1] - caller.span[0], sent - refused
    bound = watch.burst + watch.rate * span
    say(f"\n{caller.name} was admitted {sent} times. {watch.title} would have refused {refused} of these:")
    allows = f"{watch.burst} at once + {watch.rate:g}/s x {span:.2f} s = {bound:.1f}"
    say(f"it allows at most {allows}, and passed {passed}.")
    failures = [f"{caller.name} met {dict(caller.notes)} as well"] if caller.notes else []
    if not refused or not watch.burst <= passed <= bound:
        failures.append(f"{watch.title} would have allowed {passed} of {sent}")
    return failures


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        sys.exit(main(sys.argv[1]))
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # as with `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
