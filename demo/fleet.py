"""Three daemons share one budget through a Redis, which is killed and restarted without its data, under traffic."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
import shutil
import subprocess
import tempfile
import time
from collections import Counter

from tidegate import AsyncClient

from stage import bold, red, say, start, wait_for

RULES = pathlib.Path(__file__).resolve().parent / "fleet"
BUDGET = 100  # per second, and burst, of fleet/tenants.yaml
RATES = (100, 60, 20)  # requests per second of each host: 1.8 times the budget in total
UP, AWAY, BACK = 5, 6, 7  # seconds with Redis, without it, with it again
SECONDS = UP + AWAY + BACK
CREDIT = 0.1  # of a burst: hosts admit this on credit (docs/fleet.md)
RETURN = 1.5  # bursts that may exceed the budget while hosts reconnect to Redis one after the other
USED_MIN = 0.8  # of the budget


class Redis:
    """A Redis on a temporary socket, without persistence."""

    def __init__(self, directory: pathlib.Path, stack: contextlib.ExitStack) -> None:
        self.path, self.stack = directory / "redis.sock", stack
        self.log = stack.enter_context((directory / "redis.log").open("w+"))
        self.process: subprocess.Popen | None = None

    def start(self) -> None:
        command = ["redis-server", "--port", "0", "--unixsocket", str(self.path), "--save", "", "--appendonly", "no"]
        self.process = start(command, self.stack, stderr=self.log)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.path.unlink(missing_ok=True)


class Host:
    """A daemon, and counts of its decisions for each second."""

    def __init__(self, number: int, tidegate: str, redis: Redis, directory: pathlib.Path, stack) -> None:
        self.rate = RATES[number]
        self.home = directory / f"host-{number + 1}"
        self.home.mkdir()
        (self.home / "tidegate.yaml").write_text(
            f'socket: {{path: tidegate.sock}}\nrules: {RULES}\n'
            f'redis: {{url: "unix://{redis.path}", fleet_secret_files: [{directory / "secret"}]}}\n'
        )
        self.log = stack.enter_context((self.home / "log").open("w+"))
        self.socket = self.home / "tidegate.sock"
        command = [tidegate, "serve", "--config", str(self.home / "tidegate.yaml")]
        self.daemon = start(command, stack, stderr=self.log)
        wait_for(self.socket.exists, self.daemon, self.log)
        wait_for(lambda: "budgets are shared" in (self.home / "log").read_text(), self.daemon, self.log)
        self.seconds = [Counter() for _ in range(SECONDS)]
        self.slowest = [0.0] * SECONDS

    async def ask(self, started: float) -> None:
        # 1 s instead of 20 ms, so that a busy machine does not change the result.
        async with AsyncClient(str(self.socket), timeout=1.0) as client:
            for turn in range(self.rate * SECONDS):
                at = turn / self.rate
                await asyncio.sleep(max(0.0, started + at - time.monotonic()))
                asked = time.monotonic()
                decision = await client.hit("api", {"tenant": "acme"})
                second = min(int(asked - started), SECONDS - 1)
                kind = "unjudged" if decision.degraded else "allowed" if decision else "refused"
                self.seconds[second][kind] += 1
                self.slowest[second] = max(self.slowest[second], time.monotonic() - asked)

    def total(self) -> Counter:
        return sum(self.seconds, Counter())


async def play(hosts: list[Host], redis: Redis) -> None:
    started = time.monotonic() + 0.1
    asking = [asyncio.create_task(host.ask(started)) for host in hosts]
    names = "".join(f"{f'host {number + 1}':>20}" for number in range(len(hosts)))
    say(f"{'':>10}{names}{'all':>10}{'slowest':>12}")
    say(f"{'second':>10}" + f"{'allowed  refused':>20}" * len(hosts) + f"{'allowed':>10}{'answer':>12}")
    for second in range(SECONDS):
        if second == UP:
            redis.kill()
            say(red("Redis is killed: each host admits at most its third of the budget"))
        if second == UP + AWAY:
            redis.start()
            say(bold("Redis is back, without its data"))
        await asyncio.sleep(max(0.0, started + second + 1.05 - time.monotonic()))
        line = f"{second + 1:>10}"
        for host in hosts:
            line += f"{host.seconds[second]['allowed']:>11}{host.seconds[second]['refused']:>9}"
        admitted = sum(host.seconds[second]["allowed"] for host in hosts)
        say(f"{line}{admitted:>10}{1_000 * max(host.slowest[second] for host in hosts):>9.1f} ms")
    await asyncio.gather(*asking)


def main(tidegate: str) -> int:
    say(f"\n{bold('6')}  a fleet:         three daemons and one Redis; the rule is fleet/tenants.yaml")
    if shutil.which("redis-server") is None:
        say("redis-server is missing (on Debian: apt-get install redis-server): this act is skipped")
        return 0
    rates = ", ".join(map(str, RATES))
    say(f"{bold('7')}  the caller:      one tenant sends {rates} requests a second; its budget is {BUDGET} in total\n")
    with contextlib.ExitStack() as stack:
        directory = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidegate-demo-")))
        (directory / "secret").write_bytes(b"the same on every host, 32 bytes")
        redis = Redis(directory, stack)
        redis.start()
        hosts = [Host(number, tidegate, redis, directory, stack) for number in range(len(RATES))]
        time.sleep(1.5)  # until the hosts have seen each other's heartbeats, one per second
        asyncio.run(play(hosts, redis))
        say("\ntidegate fleet, on host 1:")
        shown = subprocess.run([tidegate, "fleet", "--socket", str(hosts[0].socket)], capture_output=True, text=True)
        say(shown.stdout + shown.stderr)
        return report(hosts)


def report(hosts: list[Host]) -> int:
    total = sum((host.total() for host in hosts), Counter())
    budget = BUDGET + BUDGET * SECONDS
    bound = budget + CREDIT * BUDGET + RETURN * BUDGET
    failures = []
    if total["unjudged"]:
        failures.append(f"{total['unjudged']} requests passed unjudged: a daemon did not answer")
    if total["allowed"] > bound:
        failures.append(f"{total['allowed']} were admitted, more than {bound:.0f}")
    if total["allowed"] < USED_MIN * BUDGET * SECONDS:
        failures.append(f"only {total['allowed']} of {budget} were admitted")
    for failure in failures:
        say(red(f"FAILED: {failure}"))
    if not failures:
        allowance = f"{BUDGET} at once + {BUDGET}/s x {SECONDS} s = {budget}"
        say(f"{bold('ok')}: three hosts admitted {total['allowed']} together ({allowance}), with and without Redis;")
        say("    every request got a decision of its own host's daemon, and none waited for Redis")
    return 1 if failures else 0
