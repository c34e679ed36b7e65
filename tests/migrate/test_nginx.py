"""docs/migrate/nginx.md, followed with a real nginx; then its arithmetic, request by request."""

import collections
import http.client
import json
import os
import random
import re
import subprocess
import time

import pytest

from needs import ROOT, need
from stack import Stack, need_program

PAGE = ROOT / "docs/migrate/nginx.md"


@pytest.fixture
def stack(daemon, directory):
    need(programs=["curl"], modules=["gunicorn"])
    need_program("nginx")
    with Stack(directory, daemon.binary) as made:
        yield made


@pytest.fixture
def rng():
    seed = int(os.environ.get("SEED", str(random.randrange(1 << 32))))
    print(f"SEED={seed}")
    return random.Random(seed)


def test_the_page(stack):
    assert stack.read(PAGE.read_text()) > 15


# As on the page, with other numbers; nginx responds itself, so that its log has the time of its decision.
RATE, BURST = 20, 5
RULES = f"""
domain: web
limits:
  - {{name: pages, match: {{path: "/page*"}}, key: [ip], rate: {RATE}/s, burst: {BURST + 1}}}
"""


def configuration(stack):
    [page] = re.findall(r"^```nginx\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    page = page.replace("rate=5r/m", f"rate={RATE}r/s").replace("burst=7", f"burst={BURST}").replace("/login", "/page")
    page, replaced = re.subn(r"(limit_req zone=.*\n *)proxy_pass .*;", r"\1empty_gif;", page)
    assert replaced == 1
    return stack.here(page)


@pytest.mark.nightly
def test_nginx_and_the_rule_refuse_the_same_requests(stack, rng):
    """At random times around the limit, for two addresses. Both count in the milliseconds of nginx's log:
    they agree except for a request that nginx decided in one millisecond and logged in the next."""
    (stack.directory / "nginx.conf").write_text(configuration(stack))
    (stack.directory / "rules.yaml").write_text(RULES)
    stack.start("nginx", "nginx -p . -e error.log -c nginx.conf")
    port = stack.ports["8080"]
    callers = [http.client.HTTPConnection("127.0.0.1", port, source_address=(f"127.0.0.{last}", 0)) for last in (2, 3)]
    for number in range(400):
        caller = rng.choice(callers)
        caller.request("GET", f"/page?{number}")
        caller.getresponse().read()
        time.sleep(rng.expovariate(1 / 0.012))
    trace = stack.directory / "trace.jsonl"
    command = [stack.daemon, "replay", trace, "--rules", stack.directory / "rules.yaml", "--decisions", "-"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    met = collections.Counter()
    for line in output.splitlines():
        decision = json.loads(line)
        limited, _, _ = decision["id"]
        met[limited, decision["verdict"]] += 1
    assert met.total() == 400
    same = met["PASSED", "allow"] + met["REJECTED", "limit"]
    assert 400 - same <= 8, met
    assert min(met["PASSED", "allow"], met["REJECTED", "limit"]) > 40, met
