"""A Python, a Node.js and an nginx-fronted application spend one budget together. At the end their daemon is killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import random
import re
import shutil
import socket
import sys
import tempfile
import time
from collections import Counter

from stage import answers, bold, exchange, gunicorn, red, say, start, wait_for

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
NAMES = ("Python", "Node.js", "nginx")
RATE, BURST = 30, 30  # of together/api.yaml
# Seconds, and the requests per second of one address to each application: twice the budget in total.
PHASES = ((3, (60, 0, 0)), (3, (30, 30, 0)), (3, (20, 20, 20)))
GREEDY, OTHER = "127.0.0.1", "127.0.0.2"
OTHER_RATE = 3  # requests per second of the other address to each application
USED_MIN = 0.8  # of the budget


class Traffic:
    """Requests of two addresses, and counts of their results by address and application."""

    def __init__(self, ports: list[int]) -> None:
        self.ports = ports
        self.chance = random.Random(1)
        self.examples: dict[str, dict[str, str]] = {}  # headers of a refusal, by application

    async def second(self, rates: tuple[int, ...]) -> Counter[tuple[str, str, str]]:
        """Sends the requests of a second at random times, and prints a line when all are answered."""
        started, counts = time.monotonic(), Counter()

        async def ask(source: str, number: int, at: float) -> None:
            await asyncio.sleep(max(0.0, started + at - time.monotonic()))
            status, headers = 0, {}
            with contextlib.suppress(OSError, ValueError, asyncio.TimeoutError):
                asked = exchange(self.ports[number], "GET /v1/orders", [], source)
                status, fields, _ = await asyncio.wait_for(asked, 10)
                headers = {name.lower(): value for name, value in fields}
            passed = "allowed" if "ratelimit" in headers else "unjudged"
            result = {200: passed, 429: "refused"}.get(status, "failed")
            counts[source, NAMES[number], result] += 1
            if status == 429:
                self.examples.setdefault(NAMES[number], headers)

        asking = []
        for number, rate in enumerate(rates):
            for source, requests in ((GREEDY, rate), (OTHER, OTHER_RATE)):
                asking += [ask(source, number, (turn + self.chance.random()) / requests) for turn in range(requests)]
        await asyncio.gather(*asking)
        await asyncio.sleep(max(0.0, started + 1 - time.monotonic()))
        return counts


def total(counts: Counter[tuple[str, str, str]], source: str, *results: str, name: str | None = None) -> int:
    return sum(n for (by, at, end), n in counts.items() if by == source and end in results and name in (None, at))


def line(second: int, counts: Counter[tuple[str, str, str]]) -> str:
    def pair(source: str, name: str | None = None) -> str:
        refused = total(counts, source, "refused", "failed", name=name)
        shown = f"{refused:>9}"
        return f"{total(counts, source, 'allowed', 'unjudged', name=name):>11}{red(shown) if refused else shown}"

    together = total(counts, GREEDY, "allowed", "unjudged")
    return f"{second:>10}{''.join(pair(GREEDY, name) for name in NAMES)}{together:>10}{pair(OTHER)}"


async def play(ports: list[int], daemon) -> int:
    say(f"{'':>10}{''.join(f'{name:>20}' for name in NAMES)}{'together':>10}{OTHER:>20}")
    pair = f"{'allowed  refused':>20}"
    say(f"{'second':>10}{pair * len(NAMES)}{'allowed':>10}{pair}")
    traffic, counts, second = Traffic(ports), Counter(), 0
    started = time.monotonic()
    for seconds, rates in PHASES:
        for _ in range(seconds):
            second += 1
            counts.update(new := await traffic.second(rates))
            say(line(second, new))
    span = time.monotonic() - started
    daemon.kill()
    daemon.wait()
    say(bold("The daemon is killed: every request passes"))
    without = await traffic.second(PHASES[-1][1])
    say(line(second + 1, without))
    return report(traffic, counts, span, without)


def report(traffic: Traffic, counts: Counter, span: float, without: Counter) -> int:
    say(f"\n{'refused by':>10}{'RateLimit':>22}{'RateLimit-Policy':>22}{'Retry-After':>13}")
    for name, headers in traffic.examples.items():
        values = [headers.get(each, "") for each in ("ratelimit", "ratelimit-policy", "retry-after")]
        say(f"{name:>10}{values[0]:>22}{values[1]:>22}{values[2]:>13}")
    admitted, bound = total(counts, GREEDY, "allowed"), BURST + RATE * span
    failures = []
    if any(end == "failed" for _, _, end in counts + without):
        failures.append("some requests had neither 200 nor 429")
    if not USED_MIN * RATE * span <= admitted <= bound:
        failures.append(f"{admitted} were admitted, not {USED_MIN * RATE * span:.0f} to {bound:.0f}")
    for name in NAMES:
        if not total(counts, GREEDY, "allowed", name=name) or name not in traffic.examples:
            failures.append(f"{name} did not both allow and refuse")
    if total(counts + without, OTHER, "refused"):
        failures.append(f"{OTHER} asked within its limit and was refused")
    if total(without, GREEDY, "refused"):
        failures.append("requests were refused without the daemon")
    if unjudged := total(counts, GREEDY, "unjudged"):
        say(f"\n{unjudged} of the requests passed unjudged: this machine is busy, and the daemon answered late")
    for failure in failures:
        say(red(f"FAILED: {failure}"))
    if not failures:
        allowance = f"{BURST} at once + {RATE}/s x {span:.2f} s = {bound:.1f}"
        say(f"\n{bold('ok')}: three applications admitted {admitted} together ({allowance}) of one address;")
        say("    the other address was untouched, and without the daemon every request passed")
    return 1 if failures else 0


def missing(nginx: str | None) -> str | None:
    """Returns the first thing that this act lacks."""
    if shutil.which("node") is None:
        return "node is missing (on Debian: apt-get install nodejs npm)"
    if not (ROOT / "clients/node/dist").is_dir():
        return "the client for Node.js is not built (clients/node/test/build)"
    return None if nginx else "nginx is missing (on Debian: apt-get install nginx-light)"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def nginx_conf(directory: pathlib.Path, port: int, application: int) -> str:
    """Returns the configuration of docs/http.md, with the paths and ports of this demonstration."""
    [text] = re.findall(r"^```nginx\n(.*?)^```$", (ROOT / "docs/http.md").read_text(), re.M | re.S)
    # 1 s instead of 100 ms, so that a busy machine does not change the result.
    changes = {"/run/tidegate": str(directory), "8080": f"127.0.0.1:{port}", "8000": str(application), "100ms": "1s"}
    for old, new in changes.items():
        text = re.sub(rf"{re.escape(old)}\b", new, text)
    user = "user root;" if os.geteuid() == 0 else ""  # its workers open the daemon's socket
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    places = " ".join(f"{kind}_temp_path {directory}/{kind};" for kind in kinds)
    main = f"{user} daemon off; error_log stderr; pid {directory}/pid; events {{}}"
    return f"{main} http {{ access_log off; {places}\n{text}}}"


def main(tidegate: str) -> int:
    places = os.pathsep.join([os.environ["PATH"], str(pathlib.Path(tidegate).parents[1] / "proxies")])
    nginx = shutil.which("nginx", path=places)
    say(f"\n{bold('8')}  one budget:      {RATE} a second, burst {BURST}, for each address (together/api.yaml), of")
    say(f"{'':20}gunicorn app, Express together/orders.cjs, and an http.server behind the nginx of docs/http.md")
    if lack := missing(nginx):
        say(f"{lack}: this act is skipped")
        return 0
    sent = f"{GREEDY} sends {sum(PHASES[0][1])} requests a second in total, {OTHER} {OTHER_RATE} to each application"
    say(f"{bold('9')}  the callers:     {sent}\n")
    with contextlib.ExitStack() as stack:
        directory = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidegate-demo-")))
        log = stack.enter_context(open(directory / "log", "w+"))
        auth = "auth: {domain: api, attributes: {ip: X-Real-IP}}"
        (directory / "tidegate.yaml").write_text(
            f"socket: {{path: tidegate.sock}}\nrules: {HERE / 'together'}\n"
            f"adapters: {{http: {{socket: http.sock, {auth}}}}}\n"
        )
        daemon = start([tidegate, "serve", "--config", str(directory / "tidegate.yaml")], stack, stderr=log)
        path = str(directory / "tidegate.sock")
        wait_for(lambda: os.path.exists(path) and (directory / "http.sock").exists(), daemon, log)

        listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in "12"]
        gunicorn("app", HERE, listeners[0], path, ["--worker-class", "gthread", "--threads", "8"], stack, log)

        (directory / "node_modules").mkdir()
        (directory / "node_modules/tidegate").symlink_to(ROOT / "clients/node")
        modules = f"{directory}/node_modules:{ROOT}/clients/node/node_modules"
        environment = os.environ | {"TIDEGATE_SOCKET": path, "TIDEGATE_TIMEOUT_MS": "1000", "NODE_PATH": modules}
        environment["LISTEN_FD"] = str(listeners[1].fileno())
        node = ["node", str(HERE / "together/orders.cjs")]
        served = start(node, stack, stderr=log, env=environment, pass_fds=[listeners[1].fileno()])
        ports = [listener.getsockname()[1] for listener in listeners]
        wait_for(lambda: answers(ports[1], "/v1/orders"), served, log)

        (directory / "www/v1").mkdir(parents=True)
        (directory / "www/v1/orders").write_text("[]")
        ports += [free_port(), free_port()]
        plain = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", "--directory", str(directory / "www")]
        served = start([*plain, str(ports[3])], stack, stderr=log)
        wait_for(lambda: answers(ports[3], "/v1/orders"), served, log)
        (directory / "nginx.conf").write_text(nginx_conf(directory, ports[2], ports[3]))
        served = start([nginx, "-c", str(directory / "nginx.conf")], stack, stderr=log)
        wait_for(lambda: answers(ports[2], "/v1/orders"), served, log)
        return asyncio.run(play(ports[:3], daemon))
