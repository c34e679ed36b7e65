"""State of another version and of the same again, under an application's traffic: a daemon ignores the former."""

import subprocess

from lives import ROUNDS, SERVER, START, end, refused, say, start, wait_for
from servers import get, gunicorn, metrics, wait_until
from test_restarts import APP
from traffic import Callers, now

BURST = 30
RULES = f"""
domain: api
limits:
  - {{name: per-user, match: {{path: /v1/orders}}, key: [user], rate: 1/h, burst: {BURST}}}
  - {{name: before, match: {{path: /before}}, key: [user], rate: 1/h, burst: 1}}
  - {{name: meanwhile, match: {{path: /meanwhile}}, key: [user], rate: 1/h, burst: 1}}
"""


def operate(daemon, *words):
    admin = daemon.socket.removesuffix(".sock") + ".admin.sock"
    subprocess.run([daemon.binary, *words, "--admin", admin], check=True, capture_output=True)


def age(state):
    """Edits the files of a stopped daemon to have a later version, which no checksum covers."""
    for name, before, after in (
        ("tables", b"tidegate\x02", b"tidegate\x03"),
        ("rules", b"tidegate rules 1 ", b"tidegate rules 2 "),
        ("switches", b'"version":1', b'"version":2'),
    ):
        path = state / name
        kept = path.read_bytes()
        # The daemon writes switches only on a change, so they may still have the later version.
        assert before in kept or name == "switches", name
        path.write_bytes(kept.replace(before, after, 1))


def is_off(client, rule):
    """True if a rule for one request allows three."""
    asked = [client.hit("api", {"path": f"/{rule}", "user": "u"}) for _ in range(3)]
    assert not any(decision.degraded for decision in asked)
    return all(asked)


def test_upgrades_and_downgrades_keep_switches_and_refuse_nothing(daemon, directory, make_client):
    (daemon.rules / "api.yaml").write_text(RULES)
    daemon.state.mkdir()
    daemon.start()
    operate(daemon, "switch", "before", "disabled")
    operate(daemon, "block", "per-user", "user=blocked", "--for", "1h")
    gaps, changes = [], 0
    with gunicorn(daemon, directory, APP, *SERVER) as port:
        with Callers(port) as callers, Callers(port, path="/work") as workers:
            wait_for(callers, refused, 0)
            for number in range(ROUNDS):
                # Alternately with state of another version and of its own.
                is_change = number % 2 == 0
                changes += is_change
                gap = end(daemon)
                if is_change:
                    age(daemon.state)
                gaps.append(gap + start(daemon))
                wait_for(callers, refused, now())
                counts = metrics(daemon)
                bad = {
                    file: counts[f'tidegate_state_bad_total{{file="{file}"}}']
                    for file in ("tables", "switches", "rules")
                }
                assert bad == {"tables": is_change, "switches": 0, "rules": is_change}
                if is_change:
                    aside = (daemon.state / "tables.bad").read_bytes()
                    assert aside[:16] == b"tidegate" + (3).to_bytes(8, "little")
                client = make_client(socket=daemon.socket)
                assert is_off(client, "before") and is_off(client, "meanwhile") == (number > 0), number
                assert client.peek("api", {"path": "/v1/orders", "user": "blocked"}).verdict == "limit"
                if number == 0:
                    operate(daemon, "switch", "meanwhile", "shadow")
        assert {answer.status for answer in callers.answers} == {200, 429}, "the application answered every request"
        assert {answer.status for answer in workers.answers} == {200}
        admitted = sum(answer.admitted for answer in callers.answers)
        print(f"{changes} changes of version: {admitted} admitted, at most {(1 + changes) * BURST}")
        assert BURST < admitted <= (1 + changes) * BURST
        say("from TERM until the next serves", gaps, START)
        wait_until(lambda: metrics(daemon)["tidegate_leases"] == 0 or not get(port, "last", "/last"))
