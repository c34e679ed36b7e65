"""Algorithms that docs/migrate calls equal count equally: one trace, decided by the old limiter and by replay.

Both use the time of the trace, so that a day's windows with their edges take a moment.
"""

import contextlib
import itertools
import json
import random
import subprocess
import types

import pytest

from needs import need

HOUR = 3600
BEGIN = 1_767_225_600 + 111 * 60  # a time within a window
CALLERS = ("192.0.2.1", "192.0.2.2")


def trace(seed, count=400, span=6 * HOUR):
    """(time, caller) in order, uneven: alternating bursts and pauses. Rounded to 10 µs for floats."""
    rng = random.Random(seed)
    moments = sorted(int(1000 * (rng.random() if i % 3 else rng.randrange(6) / 6) * span) for i in range(count))
    return [(BEGIN + moment / 1000 + i / 1e5, rng.choice(CALLERS)) for i, moment in enumerate(moments)]


def judged(daemon, directory, requests, rule, costs=None):
    """Returns the requests that pass under a rule, by the daemon's engine."""
    rules, lines = directory / "one.yaml", directory / "trace.jsonl"
    rules.write_text(f"domain: web\nlimits: [{{name: r, key: [ip], {rule}}}]\n")
    asked = [{"t": round(t, 5), "domain": "web", "descriptors": [["ip", caller]]} for t, caller in requests]
    for one, cost in zip(asked, costs or ()):
        one["cost"] = cost
    lines.write_text("".join(json.dumps(one) + "\n" for one in asked))
    command = [str(daemon.binary), "replay", str(lines), "--rules", str(rules), "--decisions", "-"]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [json.loads(line)["verdict"] == "allow" for line in output.splitlines()]


@contextlib.contextmanager
def at_our_time(*modules):
    """Sets the clock of these modules."""
    clock = types.SimpleNamespace(now=float(BEGIN))
    clock.time = lambda: clock.now
    with pytest.MonkeyPatch.context() as patch:
        for module in modules:
            patch.setattr(module, "time", clock)
        yield clock


def by_limits(strategy, requests, limit, costs=None):
    """Returns the requests that pass under a strategy of limits, which flask-limiter and slowapi use."""
    import limits
    import limits.storage.memory
    import limits.strategies

    with at_our_time(limits.storage.memory, limits.strategies) as clock:
        limiter = limits.strategies.STRATEGIES[strategy](limits.storage.memory.MemoryStorage())
        passed = []
        for (clock.now, caller), cost in zip(requests, costs or [1] * len(requests)):
            passed.append(limiter.hit(limits.parse(limit), caller, cost=cost))
        clock.now += 1e9  # all are expired, for the thread that removes them
    return passed


SAME = {
    "fixed-window": "algorithm: fixed_window, align: first",
    "moving-window": "algorithm: sliding_log",
    "sliding-window-counter": "algorithm: sliding_window, buckets: 1",
}


@pytest.mark.parametrize("strategy", SAME)
def test_the_strategies_of_limits(daemon, directory, strategy):
    need(modules=["limits"])
    for seed in range(3):
        requests = trace(seed)
        old = by_limits(strategy, requests, "20 per hour")
        assert 0.2 < sum(old) / len(old) < 0.95
        assert judged(daemon, directory, requests, f"{SAME[strategy]}, rate: 20/h") == old, f"seed {seed}"


def test_distinguishes_other_algorithms(daemon, directory):
    need(modules=["limits"])
    old = {strategy: by_limits(strategy, trace(1), "20 per hour") for strategy in SAME}
    new = {strategy: judged(daemon, directory, trace(1), f"{rule}, rate: 20/h") for strategy, rule in SAME.items()}
    assert all((old[a] == new[b]) is (a == b) for a in SAME for b in SAME)
    assert judged(daemon, directory, trace(1), "algorithm: fixed_window, rate: 20/h") != old["fixed-window"]


def test_refused_requests_cost_the_same_where_counted(daemon, directory):
    need(modules=["limits"])
    requests, rng = trace(2), random.Random(2)
    costs = [rng.choice((1, 1, 1, 6)) for _ in requests]
    old = by_limits("fixed-window", requests, "20 per hour", costs)
    rule = "algorithm: fixed_window, align: first, rate: 20/h"
    assert judged(daemon, directory, requests, f"{rule}, refused: counted", costs) == old
    assert judged(daemon, directory, requests, rule, costs) != old


THROTTLES = """
require "active_support"
require "active_support/cache"
require "rack/attack"
now = nil
Time.define_singleton_method(:now) { now }
Rack::Attack.cache.store = ActiveSupport::Cache::MemoryStore.new
throttle = Rack::Attack::Throttle.new("r", limit: 20, period: Integer(ARGV[0])) { |request| request.ip }
$stdin.each_line do |line|
  at, caller = line.split
  now = Time.at(Rational(at))
  puts throttle.matched_by?(Rack::Attack::Request.new("REMOTE_ADDR" => caller)) ? "refused" : "passed"
end
"""


def by_rack_attack(requests, *options, script=THROTTLES):
    need(programs=["ruby"], libraries=["rack/attack", "active_support"])
    lines = "".join(f"{t:.5f} {caller}\n" for t, caller in requests)
    command = ["ruby", "-e", script, *map(str, options)]
    output = subprocess.run(command, input=lines, check=True, capture_output=True, text=True).stdout
    return [line == "passed" for line in output.split()]


NIGHTLY = pytest.mark.nightly


@pytest.mark.parametrize(
    ("period", "rate", "same"),
    [
        (HOUR, "20/h", True),
        pytest.param(600, "20/10min", True, marks=NIGHTLY),
        pytest.param(24 * HOUR, "20/day", True, marks=NIGHTLY),
        # Periods that do not divide a day restart at midnight here, and a week on Monday.
        pytest.param(11 * 60, "20/11min", False, marks=NIGHTLY),
        pytest.param(7 * 24 * HOUR, "20/week", False, marks=NIGHTLY),
    ],
)
def test_throttles_of_rack_attack(daemon, directory, period, rate, same):
    old = by_rack_attack(requests := trace(3, span=period * 6), period)
    assert 0.2 < sum(old) / len(old) < 0.95
    assert (judged(daemon, directory, requests, f"algorithm: fixed_window, rate: {rate}") == old) is same


BANS = """
require "active_support"
require "active_support/cache"
require "rack/attack"
now = nil
Time.define_singleton_method(:now) { now }
Rack::Attack.cache.store = ActiveSupport::Cache::MemoryStore.new
$stdin.each_line do |line|
  at, caller = line.split
  now = Time.at(Rational(at))
  puts Rack::Attack::Allow2Ban.filter(caller, maxretry: 20, findtime: 60, bantime: 3600) { true } ? "refused" : "passed"
end
"""


@NIGHTLY
def test_bans_of_rack_attack(daemon, directory):
    """A ban of Allow2Ban begins with the last request that passes, ours with the next: one request apart."""
    requests = [(BEGIN + 2.0 * i, CALLERS[0]) for i in range(3 * HOUR // 2)]
    old = by_rack_attack(requests, script=BANS)
    new = judged(daemon, directory, requests, "algorithm: fixed_window, rate: 20/min, block: 1h")
    bans = sum(1 for before, after in itertools.pairwise(old) if before and not after)
    assert bans == 3 and old[:20] == new[:20] == [True] * 20 and not old[20] and not new[20]
    assert sum(a != b for a, b in zip(old, new)) <= bans


def test_windows_of_django_ratelimit(daemon, directory):
    """As many in a window, but each caller's window begins at another time: no algorithm of ours has the same edges."""
    need(modules=["django_ratelimit"])
    from django_ratelimit import core

    requests = trace(5)
    with at_our_time(core) as clock:
        ends = []
        for clock.now, caller in requests:
            ends.append((caller, core._get_window(caller, HOUR)))
    edges = {caller: {end % HOUR for of, end in ends if of == caller} for caller in CALLERS}
    assert all(len(edge) == 1 for edge in edges.values()) and edges[CALLERS[0]] != edges[CALLERS[1]]
    old = [ends[: i + 1].count(window) <= 20 for i, window in enumerate(ends)]  # `count > limit` refuses
    for align in ("first", "utc"):
        new = judged(daemon, directory, requests, f"algorithm: fixed_window, align: {align}, rate: 20/h")
        assert new != old and abs(sum(new) - sum(old)) <= 40  # at most one window of difference each
