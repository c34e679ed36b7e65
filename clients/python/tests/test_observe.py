"""`on_decision` of both clients, and its adapters for OpenTelemetry, Prometheus and StatsD."""

import asyncio
import logging
import signal
import socket
import subprocess
import sys

import pytest
from daemons import ALLOW, LIMIT, PATIENT
from test_package import SOURCE

import tidegate
from tidegate import observe
from tidegate.testing import Fake


@pytest.fixture
def calls():
    return []


@pytest.fixture
def observed(played, calls):
    with tidegate.Client(played.path, timeout=PATIENT, on_decision=lambda *call: calls.append(call)) as client:
        yield client


def refuse(connection, message):
    return [1, message[1], *LIMIT]


def test_reports_each_decision(played, observed, calls):
    played.script = lambda connection, message: [1, message[1], *ALLOW, 77]
    decision = observed.acquire("api", {"user": "u1"})
    observed.hit("api")
    with observed.limit("api"):
        pass
    observed.limited("api")(lambda: None)()
    assert calls[0][0] is decision and len(calls) == 4
    assert all(0 < seconds < PATIENT for _, seconds in calls)


def test_reports_refusals_before_they_raise(played, observed, calls):
    played.script = refuse
    with pytest.raises(tidegate.Denied) as raised, observed.limit("api"):
        raise AssertionError("the block ran")
    assert [decision for decision, _ in calls] == [raised.value.decision]


def test_reports_no_peek_charge_or_check(played, observed, calls):
    assert observed.peek("api") and observed.check()
    observed.charge("api", {}, 1)
    assert calls == []


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda client: client.hit("api"), "unreachable"),
        (lambda client: client.hit("api", on_failure="refuse"), "breaker"),
        (lambda client: client.hit("a:b"), "invalid"),
    ],
)
def test_reports_decisions_without_the_daemon(calls, call, reason):
    quiet = logging.Logger("none")
    client = tidegate.Client("/nonexistent", on_decision=lambda *call: calls.append(call), logger=quiet)
    if reason == "breaker":
        client.hit("api")
    call(client)
    assert calls[-1][0].reason == reason


def test_a_raising_function_is_logged_once(played, caplog):
    def broken(decision, seconds):
        raise RuntimeError("u1@example.com")

    with tidegate.Client(played.path, timeout=PATIENT, on_decision=broken) as client:
        assert client.hit("api").rule == client.hit("api").rule == "per-user"
    (record,) = caplog.records
    assert f"on_decision raised RuntimeError at {__file__}" in record.getMessage()
    assert "example.com" not in record.getMessage()


def test_an_exception_of_a_signal_handler_passes_and_the_grant_is_reported(played):
    def handler(number, frame):
        raise InterruptedError

    def interrupted(decision, seconds):
        if not seen:
            seen.append(decision)
            signal.raise_signal(signal.SIGUSR1)

    seen, before = [], signal.signal(signal.SIGUSR1, handler)
    played.script = lambda connection, message: [1, message[1], *ALLOW, 77]
    try:
        with tidegate.Client(played.path, timeout=PATIENT, on_decision=interrupted) as client:
            with pytest.raises(InterruptedError):
                client.acquire("api")
            client.acquire("api")
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert played.seen[-1][-1]["abandoned"] == [list(seen[0]._asked[1:])]


def test_reports_of_the_async_client(played, calls, caplog):
    played.script = lambda connection, message: [1, message[1], *ALLOW, 77]

    def record(decision, seconds):
        calls.append((decision, seconds))
        raise RuntimeError

    async def use():
        async with tidegate.AsyncClient(played.path, timeout=PATIENT, on_decision=record) as client:
            decision = await client.acquire("api")
            async with client.limit("api"):
                pass
            await client.peek("api")
            return decision

    assert asyncio.run(use()) is calls[0][0]
    assert len(calls) == 2 and 0 < calls[0][1] < PATIENT and len(caplog.records) == 1


def test_an_exception_that_passes_releases_the_grant_of_the_async_client(played):
    class Stop(BaseException):
        pass

    def stop(decision, seconds):
        raise Stop

    async def use():
        async with tidegate.AsyncClient(played.path, timeout=PATIENT, on_decision=stop) as client:
            with pytest.raises(Stop):
                await client.acquire("api")
            return await client.check()

    played.script = lambda connection, message: [1, message[1], *ALLOW, 77]
    assert asyncio.run(use()) and played.releases() == [[77, 2]]


@pytest.mark.parametrize("kind", [tidegate.Client, tidegate.AsyncClient])
def test_refuses_a_coroutine_function(kind):
    async def record(decision, seconds):
        pass

    with pytest.raises(TypeError, match="plain function"):
        kind(on_decision=record)


def test_the_fake_reports(calls):
    fake = Fake(on_decision=lambda *call: calls.append(call))
    fake.hit("api")
    asyncio.run(fake.asynchronous.hit("api"))
    assert [decision.verdict for decision, _ in calls] == ["allow", "allow"]


def test_without_a_function_the_client_is_unchanged(played, client, observed):
    assert "_judge" not in vars(client) and "_judge" in vars(observed)


# -- adapters


@pytest.fixture
def receiver():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(("127.0.0.1", 0))
        receiver.settimeout(PATIENT)
        yield receiver


@pytest.mark.parametrize(
    ("tags", "rule", "lines"),
    [
        (False, "per-user", ["tidegate.client.decisions.limit.per-user:1|c", "tidegate.client.decision_time:1.500|ms"]),
        (False, "a.b|c é", ["tidegate.client.decisions.limit.a_b_c__:1|c", "tidegate.client.decision_time:1.500|ms"]),
        (
            True,
            "per-user",
            [
                "tidegate.client.decisions:1|c|#verdict:limit,rule:per-user",
                "tidegate.client.decision_time:1.500|ms|#verdict:limit,rule:per-user",
            ],
        ),
    ],
)
def test_statsd(receiver, tags, rule, lines):
    record = observe.statsd(*receiver.getsockname(), tags=tags)
    record(tidegate.Decision([1, rule, *LIMIT[2:]]), 0.0015)
    assert receiver.recv(1_000).decode().split("\n") == lines


def test_statsd_names_the_reason(receiver):
    observe.statsd(*receiver.getsockname(), prefix="shop")(tidegate.Decision([0], "timeout"), 0.02)
    assert receiver.recv(1_000) == b"shop.decisions.allow.timeout:1|c\nshop.decision_time:20.000|ms"


def test_prometheus():
    library = pytest.importorskip("prometheus_client")
    registry = library.CollectorRegistry()
    fake = Fake(on_decision=observe.prometheus(registry))
    fake.force("per-user", "limit", when=lambda asked: asked.domain == "full")
    for domain in ("api", "full", "full"):
        fake.hit(domain)

    def value(name, **labels):
        return registry.get_sample_value(name, labels)

    assert value("tidegate_client_decisions_total", verdict="limit", rule="per-user", reason="") == 2
    assert value("tidegate_client_decisions_total", verdict="allow", rule="", reason="") == 1
    assert value("tidegate_client_decision_seconds_count") == 3


def test_opentelemetry():
    metrics = pytest.importorskip("opentelemetry.sdk.metrics")
    reader = metrics.export.InMemoryMetricReader()
    provider = metrics.MeterProvider([reader])
    fake = Fake(on_decision=observe.opentelemetry(provider.get_meter("shop")))
    fake.hit("api")
    fake.fail("timeout")
    fake.hit("api")
    (metric,) = reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics
    assert (metric.name, metric.unit) == ("tidegate.client.decision.duration", "s")
    points = {tuple(point.attributes.items()): point for point in metric.data.data_points}
    assert set(points) == {
        (("tidegate.verdict", "allow"),),
        (("tidegate.verdict", "allow"), ("tidegate.reason", "timeout")),
    }
    assert all(point.count == 1 and point.explicit_bounds == observe.BOUNDS for point in points.values())
    provider.shutdown()


def test_importing_the_adapters_imports_no_library():
    code = f"import sys; sys.path.insert(0, {str(SOURCE.parent)!r}); import tidegate.observe"
    code += "; print(*{name.split('.')[0] for name in sys.modules} & {'prometheus_client', 'opentelemetry'})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
