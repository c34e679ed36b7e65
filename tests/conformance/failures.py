"""Scenarios without a daemon that answers: deadlines, the breaker, forks, a delayed caller, kills of a real one."""

from __future__ import annotations

import contextlib
import itertools
import os
import pathlib
import signal
import socket
import time

from daemons import LIMIT, PATIENT, Played, frame
from play import (
    ALLOWED,
    DEADLINE_MS,
    DECIDED,
    HELLO,
    LIMITED,
    PAUSE_MAX,
    PAUSE_MIN,
    PING,
    Fresh,
    Scenario,
    allow,
    allowed_of,
    ask,
    compare,
    decision,
    degraded,
    each,
    hang_up,
    release,
    reports,
    script,
    silence,
    stats,
    until_decided,
)

DEADLINE = "One deadline** for the whole call (connect, write, read), 20 ms by default"
NEVER = "**Never raise** into the application because of the daemon, and never block past the deadline"
NEVER_REUSE = "close the connection, never reuse it"
REPORT = "Report an ACQUIRE that was given up as `abandoned`"
OPENS = (
    "After three, or at once if no process listens, stop for 50 to 100 ms, doubled up to 2 s, with one probe at a time"
)
NO_IO = "meanwhile a call costs no I/O"
DELAYS = "Delays inside the client and cancelled callers are no failures of the daemon"
LATE = "When it passes, read once more without blocking"
FORK = (
    "The child opens its own connection and session, and closes the inherited descriptor without a byte or a `shutdown`"
)
COUNTED = "Count missed decisions, send them as `missed`, show them in `stats()`"
LOGS = "**Log** the first failure with cause and help, then changes of state only"
BUSY = "`busy`: use another open connection or retry until the deadline, then the same"
CLOSED = "Fail closed only if the application asked for it, with 503"
RATES = "domain: api\nlimits: [{name: per-user, key: [user], rate: 5/h}]\n"
AT_ONCE = "domain: api\nconcurrency: [{name: at-once, key: [], max: 1, expires: 1h}]\n"


def in_time(*reasons, clients=5):
    """The fastest of new clients keeps the deadline, of more on a busy machine; each waits for all of it."""

    def step(run):
        took = []
        while len(took) < clients or (min(took) > 1.5 * run.timeout_ms and len(took) < 20 * clients):
            number = len(took)
            run.make(f"c{number}")
            answer = run.ask("acquire", client=f"c{number}", on_failure="refuse" if number == 1 else "allow")
            assert answer["allowed"] == (number != 1) and answer["degraded"] and answer["reason"] in reasons, answer
            took.append(answer["took_us"] / 1_000)
        assert 0.9 * run.timeout_ms <= min(took) <= 1.5 * run.timeout_ms, took
        assert max(took) < PATIENT * 1_000, took

    return step


def drip(connection, message):
    with contextlib.suppress(OSError):
        for byte in frame(decision(message)):
            connection.sendall(bytes((byte,)))
            time.sleep(DEADLINE_MS / 4_000)


def full_backlog(run):
    """A process that listens and accepts nothing."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(run.path)
    listener.listen(0)
    waiting = []
    with contextlib.suppress(BlockingIOError):
        while True:
            waiting.append(socket.socket(socket.AF_UNIX))
            waiting[-1].setblocking(False)
            waiting[-1].connect(run.path)
    in_time("unreachable", "timeout")(run)
    for one in (*waiting, listener):
        one.close()


@Fresh
def late_limit():
    """Limits the user `slow` when the next request has arrived, and allows others."""
    late = []

    def reply(connection, message):
        if message[3][0][1] == "slow":
            late.append((connection, message))
            return None
        while late:
            before, asked = late.pop()
            with contextlib.suppress(OSError):
                before.sendall(frame(decision(asked, LIMIT)))
        return decision(message)

    return reply


def gave_up_is_reported(run):
    run.eventually(lambda: allowed_of(reports(run), "timeout") >= 1)
    first = run.of(1)[0][1]
    assert [1, first] in [which for report in reports(run) for which in report.get("abandoned", [])]
    assert run.stats()["missed"]["timeout"] >= 1


def busy_at_first(run):
    """The daemon has room after a few attempts of one call."""
    left = [5]

    def greet(connection, message):
        left[0] -= 1
        if left[0] > 0:
            connection.sendall(frame([3, None, 8, "busy"]))
            hang_up(connection, message)
            return None
        return [0, message[1], 1, {}]

    run.played.greet = greet
    compare(run.ask("acquire"), ALLOWED)


def crowd_counts_once(run):
    answers = run.ask("crowd", callers=20)["all"]
    assert {(answer["allowed"], answer["reason"]) for answer in answers} == {(True, "timeout")}
    compare(run.stats(), {"breaker_open": False, "missed": {"timeout": 20}})
    run.played.script = allow
    compare(run.ask(), ALLOWED)


def asks_no_read_request_again(run):
    """A connection ends after `internal` while others wait there: the daemon may have charged these."""
    seen = []

    def fails(connection, message):
        seen.append((connection, message))
        if len(seen) == 1:
            return None
        first, one = seen[0]
        if len(seen) == 2:
            first.sendall(frame([3, one[1], 10, "the text"]))
            hang_up(first, one)
        return None if connection is first else decision(message)

    run.played.script = fails
    run.ask("crowd", callers=20)
    asked = [message[3] for _, message in seen]
    assert len(asked) >= 2 and [asked.count(one) for one in asked[:2]] == [1, 1], asked


def opens_at_once(run):
    """Of several clients, one at least that the machine does not delay."""
    seen, at_once = [], ["unreachable", "breaker", "breaker"]
    while at_once not in seen and len(seen) < 50:
        run.make(f"c{len(seen)}")
        seen.append([run.ask(client=f"c{len(seen)}")["reason"] for _ in range(3)])
    assert all(reasons[0] == "unreachable" for reasons in seen) and at_once in seen, seen


def paced(run):
    """Every attempt after the third failure waits twice as long as the one before."""
    times = []
    run.played.greet = lambda connection, message: (times.append(time.monotonic()), hang_up(connection, message))[1]
    until = time.monotonic() + PATIENT
    while len(times) < 6 and time.monotonic() < until:
        assert run.ask()["reason"] in ("unreachable", "breaker"), run.last
        time.sleep(0.002)
    pauses = [later - earlier for earlier, later in itertools.pairwise(times[2:])]
    least = [0.9 * PAUSE_MIN * 2**i for i in range(3)]
    assert len(pauses) >= 3 and all(pause >= wanted for pause, wanted in zip(pauses, least)), pauses


def one_probe(run):
    greet, run.played.greet = run.played.greet, hang_up
    run.eventually(lambda: run.ask()["reason"] == "breaker")
    run.played.greet = greet
    run.played.ping = lambda connection, message: (time.sleep(0.2), [2, message[1], True])[1]
    until, reasons = time.monotonic() + PATIENT, set()
    # In the pause nothing is sent. On a slow machine an earlier call may send the probe.
    while not {None, "breaker"} <= reasons and time.monotonic() < until:
        reasons |= {answer["reason"] for answer in run.ask("crowd", callers=20)["all"]}
        time.sleep(0.01)
    assert reasons == {None, "breaker"} and len(run.of(PING)) == 1, (reasons, len(run.of(PING)))


def herd(run):
    """Clients that lost their daemon together connect again at different times."""
    names = [f"c{number}" for number in range(20)]
    for name in names:
        run.make(name)
    failed, times = {}, {}
    for name in names:
        compare(run.ask(client=name), degraded("unreachable"))
        failed[name] = time.monotonic()
    played = Played(run.path)
    until = time.monotonic() + PATIENT
    while len(times) < len(names) and time.monotonic() < until:
        for name in names:
            if name not in times and not run.ask(client=name)["degraded"]:
                times[name] = time.monotonic() - failed[name]
    played.stop()
    assert len(times) == len(names)
    assert max(times.values()) - min(times.values()) > PAUSE_MIN / 3, times


def stalls(run):
    """The process stops after its request, and goes on long after the reply and the deadline."""

    def stop(connection, message):
        os.kill(run.adapter.pid, signal.SIGSTOP)
        connection.sendall(frame(decision(message, LIMIT)))
        time.sleep(1.2 * run.timeout_ms / 1_000)
        os.kill(run.adapter.pid, signal.SIGCONT)

    run.played.script = stop
    before = run.stats()
    for _ in range(2):
        compare(run.ask("acquire"), LIMITED)
    compare(run.stats(), before)


def busy_loop(run):
    before = run.stats()
    compare(run.ask("busy", busy_ms=1.5 * run.timeout_ms), ALLOWED)
    compare(run.stats(), before)


def forks(run):
    compare(run.ask(), ALLOWED)
    for _ in range(2):
        compare(run.ask("fork"), ALLOWED)
        compare(run.ask("acquire"), ALLOWED)
    infos = [message[3] for message in run.of(HELLO)]
    assert len(infos) == len({info["session"] for info in infos}) == len({info["pid"] for info in infos}) == 3
    assert infos[0]["pid"] == run.adapter.pid


def starts_nothing(run):
    run.make("other")
    time.sleep(0.02)
    assert not run.played.served


def comes_and_goes(run):
    """Logs the first failure, and each change of state once."""
    for _ in range(5):
        run.ask()
    lines = run.log()
    assert len(lines) == 1 and run.path in lines[0] and "tidegate serve" in lines[0], lines
    played = Played(run.path)
    until_decided()(run)
    played.stop()
    lines = run.log()
    assert len(lines) == 1 and "the daemon answers again" in lines[0], lines
    run.eventually(lambda: run.ask()["reason"] == "breaker")
    run.ask()
    assert len(run.log()) == 1


def many_then_idle(run):
    """Closes idle connections, at the latest with the calls after 30 s."""
    names = [f"u{i}" for i in range(16)]
    held = []

    def together(connection, message):
        held.append((connection, message))
        if len(held) == len(names):
            for one, asked in held:
                one.sendall(frame(decision(asked)))

    run.played.script = together
    run.ask("crowd", callers=len(names))
    assert run.stats()["connections"] > 8
    time.sleep(31)
    run.played.script = allow
    for _ in names:
        compare(run.ask(), ALLOWED)
    assert run.stats()["connections"] <= 4


# -- the real daemon ---------------------------------------------------------------------------------------------------


def killed(run):
    for _ in range(2):
        compare(run.ask(), DECIDED | {"rule": "per-user"})
        run.real.stop(kill=True)
        for _ in range(50):
            answer = run.ask()
            assert answer["allowed"] and answer["reason"] in ("unreachable", "breaker"), answer
        began = time.monotonic()
        run.real.start()
        until_decided()(run)
        assert time.monotonic() - began < PAUSE_MAX + PATIENT
    run.eventually(lambda: run.ask()["verdict"] == "limit")


def stop(process):
    """Stops all threads of a process before it returns."""
    process.send_signal(signal.SIGSTOP)
    tasks = pathlib.Path(f"/proc/{process.pid}/task")
    while any("\nState:\tT" not in (task / "status").read_text() for task in tasks.iterdir()):
        time.sleep(0.001)


def stopped(run):
    """A stopped daemon costs deadlines, then nothing; later it decides again, and no abandoned grant remains."""
    until_decided("acquire")(run)
    release("ok")(run)
    for _ in range(2):
        stop(run.real.process)
        answers = [run.ask("acquire") for _ in range(8)]
        run.real.process.send_signal(signal.SIGCONT)
        assert {answer["reason"] for answer in answers} <= {"timeout", "breaker"}, answers
        assert all(answer["allowed"] for answer in answers) and "timeout" in {a["reason"] for a in answers}
        until = time.monotonic() + PATIENT
        while not (answer := run.ask("acquire"))["lease"]:
            assert time.monotonic() < until, answer
            time.sleep(0.005)
        release("ok")(run)


def restarts_in_order(run):
    """A daemon that ends in order loses no decision that comes after its successor listens."""
    for _ in range(3):
        compare(run.ask(), DECIDED)
        run.real.stop()
        run.real.start()
        compare(run.ask(), DECIDED)
    compare(run.stats(), {"missed": {}, "breaker_open": False})


DEADLINES = tuple(
    Scenario(name, (DEADLINE, NEVER, CLOSED), (in_time("timeout"),), play, greet, deadline_ms=DEADLINE_MS)
    for name, play, greet in (
        ("silence", silence, None),
        ("silence_to_hello", silence, silence),
        ("drip", drip, None),
        ("flood_of_goodbyes", lambda c, m: 50 * frame([4, None, "draining"]), None),
        ("cut_frame", lambda c, m: frame(decision(m))[:-1], None),
        ("length_beyond_the_frame", lambda c, m: b"\0\0\1" + frame(decision(m))[3:], None),
        ("cut_length", lambda c, m: frame(decision(m))[:3], None),
    )
)

FAILURES = (
    *DEADLINES,
    Scenario("full_backlog", (DEADLINE, NEVER), (full_backlog,), None, deadline_ms=DEADLINE_MS),
    Scenario(
        "late_reply",
        (NEVER_REUSE, "match replies by `id`"),
        (
            each(
                range(2),
                lambda _: (
                    until_decided(attributes={"user": "quick"}, expect=ALLOWED),
                    ask(attributes={"user": "slow"}, expect=degraded("timeout")),
                    until_decided(attributes={"user": "quick"}, expect=ALLOWED),
                ),
            ),
        ),
        late_limit,
        deadline_ms=DEADLINE_MS,
    ),
    Scenario(
        "reports_after_a_timeout",
        (REPORT, COUNTED),
        (
            ask("acquire", expect=degraded("timeout")),
            script(allow),
            until_decided(),
            until_decided(),
            gave_up_is_reported,
        ),
        silence,
        deadline_ms=4 * DEADLINE_MS,
    ),
    Scenario("no_process_listens", (OPENS, NO_IO), (opens_at_once,), None),
    Scenario(
        "refuses_without_a_daemon_if_configured",
        (CLOSED,),
        (
            ask(
                "acquire",
                on_failure="refuse",
                expect=degraded("unreachable") | {"allowed": False, "verdict": "shed", "status": 503},
            ),
            ask(
                on_failure="refuse",
                times=3,
                expect={"allowed": False, "status": 503, "degraded": True, "retry_us": 1_000_000},
            ),
            ask(expect={"allowed": True, "status": 200, "degraded": True}),
        ),
        None,
    ),
    Scenario("busy_for_a_time", (BUSY,), (busy_at_first, stats(missed={}, breaker_open=False))),
    Scenario(
        "busy_for_ever",
        (BUSY, DEADLINE),
        # In the last attempt the deadline may pass, or the reset overtake the ERROR.
        (in_time("protocol", "timeout", "unreachable"),),
        greet=lambda c, m: (c.sendall(frame([3, None, 8, "busy"])), hang_up(c, m))[1],
        deadline_ms=DEADLINE_MS,
    ),
    Scenario(
        "a_crowd_without_an_answer",
        ("Failures whose waits overlap count as one",),
        (crowd_counts_once,),
        silence,
        deadline_ms=10 * DEADLINE_MS,
        needs=frozenset({"crowd"}),
    ),
    Scenario(
        "internal_beside_others_in_flight",
        ("| 10 `internal` | the daemon failed; a panic during the decision | closes |",),
        (asks_no_read_request_again,),
        needs=frozenset({"crowd"}),
    ),
    Scenario("paced_attempts", (OPENS,), (paced,)),
    Scenario("one_probe_at_a_time", (OPENS, NO_IO), (one_probe,), needs=frozenset({"crowd", "loop"})),
    Scenario("one_probe_at_a_time_of_threads", (OPENS, NO_IO), (one_probe,), needs=frozenset({"crowd", "pools"})),
    Scenario("restart_herd", (OPENS,), (herd,), None),
    Scenario("caller_is_stopped", (LATE, DELAYS), (until_decided(), stalls), deadline_ms=500),
    Scenario(
        "event_loop_is_busy", (LATE, DELAYS), (until_decided(), busy_loop), deadline_ms=250, needs=frozenset({"loop"})
    ),
    Scenario("fork", (FORK,), (forks,), needs=frozenset({"forks"})),
    Scenario("start", ("**Start nothing at import or construction**: no thread, no I/O",), (starts_nothing,)),
    Scenario(
        "disabled",
        ("`TIDEGATE_DISABLE=1`: no I/O at all",),
        (
            ask("acquire", expect=degraded("disabled")),
            ask(on_failure="refuse", expect=degraded("disabled")),
            lambda run: compare(run.ask("work", fails=False), {"ran": True, "raised": None}),
            lambda run: compare({"served": set(run.played.served)}, {"served": set()}),
        ),
        options={"enabled": False},
    ),
    Scenario("log_of_failures", (LOGS,), (comes_and_goes,), None),
    Scenario(
        "fallback",
        ("answer *allow, degraded*",),
        (
            ask("acquire", times=3, expect=degraded("fallback") | {"limit": 3}),
            ask("peek", expect={"allowed": False, "verdict": "limit", "reason": "fallback"}),
            ask(
                expect={
                    "allowed": False,
                    "verdict": "limit",
                    "status": 429,
                    "degraded": True,
                    "reason": "fallback",
                    "remaining": 0,
                }
            ),
            ask(attributes={"user": "u2"}, cost=3, expect=degraded("fallback") | {"remaining": 0}),
            ask(attributes={"user": "u3"}, cost=4, expect={"allowed": False, "verdict": "limit", "retry_us": None}),
            ask(domain="other", on_failure="refuse", expect=degraded("fallback")),
            ask(domain="a/b", expect={"allowed": False, "verdict": "shed", "reason": "invalid"}),
        ),
        None,
        options={"fallback": "3/h"},
    ),
    Scenario(
        "idle_connections",
        ("**Close** connections idle for 10 to 30 s down to a few",),
        (many_then_idle,),
        needs=frozenset({"pools"}),
        nightly=True,
    ),
    Scenario("killed_daemon", (NEVER, OPENS), (killed,), rules=RATES, script=None),
    Scenario("stopped_daemon", (NEVER, REPORT), (stopped,), rules=AT_ONCE, script=None, deadline_ms=60),
    Scenario(
        "restart_in_order",
        ("SIGTERM | answers every frame that it received, sends GOODBYE `draining`, closes",),
        (restarts_in_order,),
        rules=RATES.replace("5/h", "500/h"),
        script=None,
    ),
)
