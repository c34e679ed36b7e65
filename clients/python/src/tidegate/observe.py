"""Reports each decision of a client to OpenTelemetry, Prometheus or StatsD.

    client = tidegate.Client(on_decision=tidegate.observe.prometheus())

Each function imports its library when it is called. Labels are verdict, rule and reason, never an attribute.
"""

from __future__ import annotations

import importlib
import inspect
import re
import socket
import weakref
from collections.abc import Callable
from time import monotonic
from typing import Any

from . import Client, Decision
from .connection import Socket
from .decorators import location
from .protocol import ACQUIRE, PEEK
from .signals import from_signal

OnDecision = Callable[[Decision, float], object]
# Seconds; a call with the daemon takes tens of microseconds, without it at most its deadline, by default 20 ms.
BOUNDS = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05)


def opentelemetry(meter: Any = None) -> OnDecision:
    """Records the histogram `tidegate.client.decision.duration` in seconds, which counts the decisions, too.

    `meter`: of the OpenTelemetry API, else the global provider's.
    """
    if meter is None:
        meter = importlib.import_module("opentelemetry.metrics").get_meter("tidegate")
    name, text = "tidegate.client.decision.duration", "Duration of decisions, as the application waits for them."
    try:
        duration = meter.create_histogram(name, unit="s", description=text, explicit_bucket_boundaries_advisory=BOUNDS)
    except TypeError:  # an API before 1.30 has no bounds
        duration = meter.create_histogram(name, unit="s", description=text)

    def record(decision: Decision, seconds: float) -> None:
        names = {f"tidegate.{name}": value for name, value in labels(decision).items() if value}
        duration.record(seconds, names)

    return record


def prometheus(registry: Any = None) -> OnDecision:
    """Counts `tidegate_client_decisions_total` and observes `tidegate_client_decision_seconds`.

    `registry`: a CollectorRegistry, else the global one, which takes these metrics once: make one function for all
    clients.
    """
    library: Any = importlib.import_module("prometheus_client")
    registry = library.REGISTRY if registry is None else registry
    name, text = "tidegate_client_decisions", "Decisions of the client."
    decisions = library.Counter(name, text, ["verdict", "rule", "reason"], registry=registry)
    name, text = "tidegate_client_decision_seconds", "Duration of decisions, as the application waits for them."
    duration = library.Histogram(name, text, registry=registry, buckets=BOUNDS)

    def record(decision: Decision, seconds: float) -> None:
        decisions.labels(**labels(decision)).inc()
        duration.observe(seconds)

    return record


def statsd(
    host: str = "127.0.0.1", port: int = 8125, prefix: str = "tidegate.client", tags: bool = False
) -> OnDecision:
    """Sends a counter and a timing of each decision as one UDP datagram; drops it if the socket is full.

    The counter's name ends with verdict and rule (`tidegate.client.decisions.limit.per-user`), and with the reason of
    decisions without the daemon. `tags`: sends them as DogStatsD tags instead. Raises OSError for an unknown host.
    """
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    sender = Socket(family, kind)
    sender.setblocking(False)

    def record(decision: Decision, seconds: float) -> None:
        words = {key: re.sub(r"[^A-Za-z0-9_-]", "_", value) for key, value in labels(decision).items() if value}
        if tags:
            name, tail = f"{prefix}.decisions", "|#" + ",".join(f"{key}:{word}" for key, word in words.items())
        else:
            name, tail = ".".join([f"{prefix}.decisions", *words.values()]), ""
        lines = f"{name}:1|c{tail}\n{prefix}.decision_time:{seconds * 1000:.3f}|ms{tail}"
        try:
            sender.sendto(lines.encode(), address)
        except BlockingIOError:  # a full socket
            return

    return record


def labels(decision: Decision) -> dict[str, str]:
    """Returns verdict, rule and reason; empty if absent."""
    return {"verdict": decision.verdict, "rule": decision.rule or "", "reason": decision.reason or ""}


def watch(client: Client, call: OnDecision) -> None:
    """Implements `on_decision`: replaces the method that decides, so that clients without it do no more than before."""
    if not callable(call) or inspect.iscoroutinefunction(call):
        raise TypeError("on_decision is a plain function of a decision and seconds")
    kind: Any = type(client)
    reference = weakref.ref(client)  # no cycle: a dropped client closes its connections at once

    def report(core: Any, decision: Decision, started: float) -> None:
        try:
            call(decision, monotonic() - started)
        except Exception as error:
            if from_signal(error):
                raise
            text = f"on_decision raised {type(error).__name__}{location(error)}: the decision is not affected"
            core._log(text, once=True)

    def judge(op: int, domain: Any, attributes: Any, cost: Any, more: Any) -> Decision:
        core, started, decision = reference(), monotonic(), None
        try:
            decision = kind._judge(core, op, domain, attributes, cost, more)
            if op != PEEK:
                report(core, decision, started)
            return decision  # type: ignore[no-any-return]
        except BaseException:  # of a signal handler: the caller does not get the grant
            if op == ACQUIRE and decision is not None and decision._asked:
                core._report_later({"abandoned": [list(decision._asked[1:])]})  # type: ignore[union-attr]
            raise

    async def judge_async(op: int, domain: Any, attributes: Any, cost: Any, more: Any) -> Decision:
        core, started = reference(), monotonic()
        decision: Decision = await kind.judge(core, op, domain, attributes, cost, more)
        try:
            if op != PEEK:
                report(core, decision, started)
        except BaseException:
            decision.release("dropped")
            raise
        return decision

    target: Any = client
    if hasattr(kind, "judge"):
        target.judge = judge_async
    else:
        target._judge = judge
