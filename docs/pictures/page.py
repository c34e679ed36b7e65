"""Takes the pictures of the daemon's page for docs/operate.md: two daemons that share a Redis, an application of eight
slots that is overloaded for a while, and a headless Chromium. It runs in real time: ten minutes.

Usage: page.py TIDEGATE [DIRECTORY [MINUTES]]
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / "clients/python/src"), str(ROOT / "tests/python")]

from browser import Browser  # noqa: E402
from tidegate import AsyncClient  # noqa: E402

RULES = """\
domain: api
priorities: [critical, post, get, test]
prioritize:
  - {match: {mode: test}, priority: test}
  - {match: {path: "/v1/charges*"}, priority: critical}
  - {match: {method: POST}, priority: post}
  - {priority: get}
exempt: [{name: probes, match: {path: /healthz}}]
deny: [{name: bots, match: {agent: bot}}]
limits:
  - {name: per-user, key: [user], rate: 4/s, burst: 40}
  - {name: per-plan, key: [plan], rate: 30/s, burst: 60, mode: shadow, show_keys: [plan]}
  - {name: charges, match: {path: "/v1/charges*"}, key: [user], rate: 300/min, scope: fleet}
concurrency: [{name: exports, match: {job: export}, key: [user], max: 2, expires: 1h}]
shed:
  - {pool: web, callers: {by: [user]}, workers: {}, brake: {mode: shadow}}
"""
SLOTS = 8
SIZES = {"page-light": (1_000, 1_250, False), "page-dark": (1_000, 1_250, True), "page-narrow": (360, 1_200, True)}


@contextlib.contextmanager
def run(command: list[str], **options):
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, **options)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def rate_at(share: float) -> float:
    """Requests per second at a fraction of the time: a calm morning, an overload, and calm again."""
    return 15 if share < 0.35 else 62 if share < 0.75 else 22


async def work(client: AsyncClient, slots: asyncio.Semaphore, rng: random.Random) -> None:
    user = f"u{min(int(rng.expovariate(0.25)), 40)}"
    attributes = {"user": user, "plan": rng.choice(["gold", "free", "free"]), "method": rng.choice(["GET", "POST"])}
    attributes["path"] = rng.choice(["/v1/charges", "/v1/orders", "/v1/orders", "/healthz"])
    attributes |= rng.choice([{}, {}, {"mode": "test"}])
    async with slots:
        decision = await client.acquire("api", attributes)
        if decision:
            await asyncio.sleep(rng.uniform(0.08, 0.28))
            decision.release()


async def load(socket: str, seconds: float) -> None:
    rng, began = random.Random(1), time.monotonic()
    slots, pending = asyncio.Semaphore(SLOTS), set()
    async with AsyncClient(socket, timeout=1.0, pool="web", slots=SLOTS) as client:
        while (elapsed := time.monotonic() - began) < seconds:
            if len(pending) < 200:  # callers that waited for long hang up
                task = asyncio.create_task(work(client, slots, rng))
                pending.add(task)
                task.add_done_callback(pending.discard)
            await asyncio.sleep(rng.expovariate(rate_at(elapsed / seconds)))
        await asyncio.gather(*pending)


def daemon(tidegate: str, home: pathlib.Path, redis: pathlib.Path, stack: contextlib.ExitStack) -> pathlib.Path:
    (home / "rules").mkdir(parents=True)
    (home / "rules/api.yaml").write_text(RULES)
    (home / "tidegate.yaml").write_text(
        "socket: {path: tidegate.sock}\nrules: rules\n"
        f'redis: {{url: "unix://{redis}", fleet_secret_files: [{home.parent / "secret"}]}}\n'
    )
    log = stack.enter_context((home / "log").open("w"))
    stack.enter_context(run([tidegate, "serve", "--config", str(home / "tidegate.yaml")], stderr=log))
    until = time.monotonic() + 30
    while "budgets are shared" not in (home / "log").read_text():
        assert time.monotonic() < until, (home / "log").read_text()
        time.sleep(0.05)
    return home


async def show(tidegate: str, home: pathlib.Path, directory: pathlib.Path, seconds: float) -> None:
    """The pictures are taken shortly before the end of the load."""
    at_work = asyncio.create_task(load(str(home / "tidegate.sock"), seconds + 120))
    await asyncio.sleep(seconds)
    await asyncio.to_thread(photograph, tidegate, home / "tidegate.admin.sock", directory)
    at_work.cancel()


def photograph(tidegate: str, admin: pathlib.Path, directory: pathlib.Path) -> None:
    with run([tidegate, "dashboard", "--admin", str(admin)], stdout=subprocess.PIPE, text=True) as dashboard:
        address = dashboard.stdout.readline().strip()
        browser = Browser()
        try:
            for name, (width, height, dark) in SIZES.items():
                browser.look(width, dark=dark)
                browser.open(address)
                browser.listen(3)
                # Hides the name of this host.
                browser.get("document.querySelector('.host').textContent = 'web-3'")
                browser.picture(directory / f"{name}.png", height)
        finally:
            browser.close()


def main(tidegate: str, directory: pathlib.Path, minutes: float) -> None:
    directory.mkdir(exist_ok=True)
    with contextlib.ExitStack() as stack:
        home = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tg-")))
        (home / "secret").write_bytes(os.urandom(32))
        (home / "secret").chmod(0o600)
        redis = home / "redis.sock"
        command = ["redis-server", "--port", "0", "--unixsocket", str(redis), "--save", "", "--appendonly", "no"]
        stack.enter_context(run(command, stdout=subprocess.DEVNULL))
        while not redis.exists():
            time.sleep(0.05)
        one = daemon(tidegate, home / "one", redis, stack)
        daemon(tidegate, home / "other", redis, stack)
        asyncio.run(show(tidegate, one, directory, minutes * 60))


if __name__ == "__main__":
    if not 2 <= len(sys.argv) <= 4:
        sys.exit(__doc__)
    main(
        sys.argv[1],
        pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else HERE / "page",
        float(sys.argv[3]) if len(sys.argv) > 3 else 10.0,
    )
