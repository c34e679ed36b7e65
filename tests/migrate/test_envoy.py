"""Envoy's rate limit service itself, with a Redis, beside the daemon: random trees and requests, over gRPC to both."""

import collections
import json
import os
import pathlib
import random
import socket
import subprocess
import time

import pytest

from needs import ROOT
from servers import OWN_GROUP, end, free_port
from stack import MADE, need_program

TREES = int(os.environ.get("ENVOY_TREES", "300"))
REQUESTS_OF_TREE = 70
SEED = int(os.environ.get("SEED") or random.randrange(1 << 32))
HOUR = 3600
UNITS = ("hour", "day", "week", "month", "year")
UNIT_NUMBERS = {"hour": 3, "day": 4, "month": 5, "year": 6, "week": 7}
OVER = 2


class Trees:
    """Random trees of one seed, and requests that mostly find their nodes."""

    def __init__(self, rng):
        self.rng = rng

    def tree(self, name):
        # Half have no replacements, which do not reach a descriptor with an addend of its own.
        self.replaces = self.rng.random() < 0.5
        return {"domain": name, "descriptors": self.level(1)}

    def level(self, depth):
        nodes = {}
        for _ in range(self.rng.randint(1, 4)):
            node = {"key": self.rng.choice("abc")}
            if self.rng.random() < 0.6:
                node["value"] = self.rng.choice(["1", "2", "10", "1*", "*"])
            is_pattern = node.get("value", "").endswith("*")
            if self.rng.random() < 0.75:
                node["rate_limit"] = self.limit()
                is_limited = "unit" in node["rate_limit"]
                if self.rng.random() < 0.1 and is_limited:
                    node[self.rng.choice(["shadow_mode", "quota_mode"])] = True
            if is_pattern and self.rng.random() < 0.4:
                node["share_threshold"] = True
            if depth < 3 and self.rng.random() < 0.4:
                node["descriptors"] = self.level(depth + 1)
            nodes.setdefault((node["key"], node.get("value")), node)
        return list(nodes.values())

    def limit(self):
        if self.rng.random() < 0.1:
            limit = {"unlimited": True}
        else:
            limit = {"unit": self.rng.choice(UNITS), "requests_per_unit": self.rng.choice([0, 1, 2, 3, 5, 8])}
        names = self.rng.sample(["x", "y", "z"], 2)
        if self.rng.random() < 0.2:
            limit["name"] = names[0]
        if self.replaces and self.rng.random() < 0.4:
            limit["replaces"] = [{"name": names[1]}]
        return limit

    def descriptor(self, tree):
        entries, level = [], tree["descriptors"]
        while level:
            node = self.rng.choice(level)
            value = node.get("value", self.rng.choice("123")).replace("*", self.rng.choice(["", "0", "7"]))
            entries.append([node["key"], value])
            level = node.get("descriptors") if self.rng.random() < 0.8 else None
        if self.rng.random() < 0.1:
            entries.append([self.rng.choice("abc"), self.rng.choice("123")])
        has_own = self.rng.random() < 0.3 and "replaces" not in json.dumps(tree)
        addend = self.rng.choice([0, 1, 2, 4]) if has_own else None
        limit = self.own_limit(entries) if self.rng.random() < 0.15 else None
        return {"entries": entries, "addend": addend, "limit": limit}

    def own_limit(self, entries):
        # There a node with the same entries, and a limit of another unit at some times, share its counter.
        unit = entries[-1][1] = self.rng.choice(UNITS)
        return {"requests": self.rng.choice([0, 1, 2, 3, 5, 8]), "unit": UNIT_NUMBERS[unit]}

    def request(self, tree):
        descriptors = [self.descriptor(tree) for _ in range(self.rng.choice([1, 1, 2, 3]))]
        return {"domain": tree["domain"], "addend": self.rng.choice([0, 0, 1, 2]), "descriptors": descriptors}


def difference(request, there, here):
    """Returns in what the two answers differ, beside what docs/envoy.md says; None: in nothing."""
    if len(there["statuses"]) != len(here["statuses"]):
        return "statuses"
    shared = collections.Counter(status["name"] for status in here["statuses"] if status["has_limit"])
    checks_full = False
    for descriptor, one, other in zip(request["descriptors"], there["statuses"], here["statuses"]):
        if one["has_limit"] != other["has_limit"]:
            return "has_limit"
        if not one["has_limit"]:
            if one["code"] != other["code"]:
                return "code without limit"
            continue
        if (one["limit"], one["unit"]) != (other["limit"], other["unit"]):
            return "current_limit"
        if descriptor["addend"] == 0 and one["remaining"] == 0 and one["code"] != other["code"]:
            checks_full = True  # here, an addend of 0 asks whether one more would pass
            continue
        if shared[other["name"]] > 1 and not descriptor["limit"]:
            checks_full |= descriptor["addend"] == 0 and one["code"] != other["code"]
            continue  # descriptors that share a counter: there one after the other, here together
        if (one["code"], one["remaining"]) != (other["code"], other["remaining"]):
            return "status"
        # Here it is 0 where no time brings more: nothing is counted, or nothing ever passes.
        has_reset = descriptor["addend"] != 0 and one["limit"] > 0
        if has_reset and one["reset"] and abs(one["reset"] - other["reset"]) > 2:
            return "reset"
    if there["code"] != here["code"] and not (checks_full and here["code"] == OVER):
        return "overall"
    return None


@pytest.fixture
def redis(directory):
    port = free_port()
    command = ["redis-server", "--port", str(port), "--save", "", "--dir", str(directory)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, **OWN_GROUP)
    yield port
    end(process)


def await_service(port, process):
    until = time.monotonic() + 30
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert process.poll() is None and time.monotonic() < until, "the service does not answer"
        time.sleep(0.05)


def await_socket(address):
    until = time.monotonic() + 30
    while not pathlib.Path(address.removeprefix("unix://")).exists():
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.nightly
def test_decides_as_the_service(daemon, envoy, directory, redis, monkeypatch):
    for program in ("service_cmd", "asker", "redis-server"):
        need_program(program)
    monkeypatch.setenv("TIDEGATE_DEBUG_PATIENT", "1")  # a busy machine must not decide the test
    print(f"SEED={SEED} ENVOY_TREES={TREES}")
    config = directory / "runtime/ratelimit/config"
    config.mkdir(parents=True)
    trees = Trees(random.Random(SEED))
    counts = collections.Counter()
    for first in range(0, TREES, 200):
        batch = [trees.tree(f"d{first + index}") for index in range(min(200, TREES - first))]
        for old in (*config.glob("*"), *daemon.rules.glob("*")):
            old.unlink()
        for tree in batch:
            for place in (config, daemon.rules):
                (place / f"{tree['domain']}.yaml").write_text(json.dumps(tree))
        requests = [trees.request(tree) for _ in range(REQUESTS_OF_TREE) for tree in batch]
        # No window ends meanwhile.
        if (left := HOUR - time.time() % HOUR) < 180:
            time.sleep(left)
        counts += compared(daemon, envoy, directory, redis, requests)
    print(dict(counts))
    assert sum(counts.values()) >= TREES * REQUESTS_OF_TREE and counts["refused"] > counts["asked"] / 10


@pytest.fixture
def envoy(daemon, directory):
    """The address of the daemon's adapter, for gRPC clients."""
    settings = directory / "settings.yaml"
    settings.write_text(f"adapters: {{envoy: {{socket: {directory}/envoy.sock}}}}\n")
    daemon.options = ["--config", str(settings)]
    return f"unix://{directory}/envoy.sock"


@pytest.mark.nightly
def test_grpcurl_asks_by_reflection(daemon, envoy):
    for program in ("asker", "grpcurl"):
        need_program(program)
    published = subprocess.run([MADE / "asker", "-descriptors"], check=True, stdout=subprocess.PIPE).stdout
    served = ROOT / "src/adapters/envoy/services.binpb"
    assert published == served.read_bytes(), f"write it anew: target/migrate/asker -descriptors >{served}"
    (daemon.rules / "shop.yaml").write_text(
        "domain: shop\nlimits: [{name: per-user, key: [user], rate: 1/h, burst: 1}]\n"
    )
    daemon.start()
    await_socket(envoy)

    def grpcurl(*words):
        command = [MADE / "grpcurl", "-plaintext", *words]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=60).stdout

    assert grpcurl(envoy, "list").split() == ["envoy.service.ratelimit.v3.RateLimitService", "grpc.health.v1.Health"]
    assert "rpc ShouldRateLimit" in grpcurl(envoy, "describe", "envoy.service.ratelimit.v3.RateLimitService")
    assert json.loads(grpcurl(envoy, "grpc.health.v1.Health/Check")) == {"status": "SERVING"}
    asked = {"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "u1"}]}]}
    method = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
    codes = [json.loads(grpcurl("-d", json.dumps(asked), envoy, method))["overallCode"] for _ in range(2)]
    assert codes == ["OK", "OVER_LIMIT"]


def compared(daemon, envoy, directory, redis, requests):
    """Asks both, and returns the number of requests, and of refusals."""
    port, environment = free_port(), os.environ | {
        "RUNTIME_ROOT": str(directory / "runtime"), "RUNTIME_SUBDIRECTORY": "ratelimit", "RUNTIME_WATCH_ROOT": "false",
        "REDIS_SOCKET_TYPE": "tcp", "REDIS_URL": f"127.0.0.1:{redis}", "USE_STATSD": "false",
        "PORT": str(free_port()), "DEBUG_PORT": str(free_port()), "LOG_LEVEL": "ERROR",
    }  # fmt: skip
    environment["GRPC_PORT"] = str(port)
    daemon.start()
    with (directory / "service.log").open("w") as log:
        service = subprocess.Popen([MADE / "service_cmd"], env=environment, stdout=log, stderr=log, **OWN_GROUP)
    try:
        await_service(port, service)
        await_socket(envoy)
        lines = "".join(json.dumps(request) + "\n" for request in requests)
        command = [MADE / "asker", f"127.0.0.1:{port}", envoy]
        output = subprocess.run(command, input=lines, check=True, stdout=subprocess.PIPE, text=True).stdout
    finally:
        end(service)
        daemon.stop()
    answers = [json.loads(line) for line in output.splitlines()]
    assert len(answers) == len(requests)
    for request, (there, here) in zip(requests, answers):
        found = difference(request, there, here)
        tree = (daemon.rules / f"{request['domain']}.yaml").read_text()
        assert found is None, f"{found}: {json.dumps(request)}\nthere {there}\nhere {here}\n{tree}"
    refused = sum(there["code"] == OVER for there, _ in answers)
    return collections.Counter(asked=len(requests), refused=refused)
