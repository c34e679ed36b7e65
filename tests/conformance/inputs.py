"""Scenarios about the application: odd input, leases, and what is logged."""

from __future__ import annotations

import hashlib
import time

from play import (
    ACQUIRE,
    ALLOWED,
    HELLO,
    HIT,
    LIMITED,
    RELEASE,
    Scenario,
    ask,
    compare,
    decision,
    error,
    granting,
    limit,
    logged,
    refused,
    release,
    reports,
    script,
    stats,
)

INPUT = "**Input never means allow.**"
DIGEST = "A value above 1 024 bytes becomes its first 960 bytes, `~` and 32 hex digits of its SHA-256"
ABSENT = "Do not send absent or empty attributes"
COST = "A negative or non-integer cost is a programmer's error"
FITS = "If a frame is too large, replace the longest values by `~` and that digest"
NAME = "1 to 64 bytes without `:`, `/` and control characters"
PASSES = "**Exceptions of the application** (signal handlers, job deadlines) pass through every call unchanged"


def digest(text: str) -> str:
    return "~" + hashlib.sha256(text.encode()).hexdigest()[:32]


def sends(attributes: dict, wanted: dict | None) -> tuple:
    """A limited caller stays limited; the daemon gets these attributes."""

    def step(run):
        compare(run.ask("acquire", attributes=attributes), LIMITED)
        flat = run.of(ACQUIRE)[-1][3]
        got = dict(zip(flat[0][::2], flat[0][1::2])) if flat else {}
        if wanted is not None:
            assert got == wanted, got
        assert all(isinstance(value, str) and len(value.encode()) <= 1_024 for value in got.values())

    return step


def refuses(**given):
    """The client refuses the request without the daemon."""

    def step(run):
        before = len(run.played.requests())
        compare(run.ask("acquire", on_failure="allow", **given), refused("invalid"))
        assert len(run.played.requests()) == before

    return step


def errs(cost):
    """A programmer's error: raised, or a refusal in languages without exceptions."""

    def step(run):
        before = len(run.played.requests())
        answer = run.ask(cost=cost)
        assert answer.get("raised") or (answer["allowed"], answer["reason"]) == (False, "invalid"), (cost, answer)
        assert len(run.played.requests()) == before

    return step


def raises(do, on_failure):
    """An option that is none of its words is a programmer's error, with the daemon and without."""

    def step(run):
        assert run.ask(do, on_failure=on_failure).get("raised"), run.last

    return step


def costs(cost, wanted=None):
    def step(run):
        compare(run.ask(cost=cost), LIMITED)
        assert run.of(HIT)[-1][4] == (cost if wanted is None else wanted)

    return step


def fits(run):
    values = {f"a{i:02}": chr(ord("a") + i) * (1_024 - i) for i in range(16)}
    compare(run.ask(attributes=values), LIMITED)
    flat = run.of(HIT)[-1][3][0]
    got = dict(zip(flat[::2], flat[1::2]))
    assert got.keys() == values.keys()
    cut = [name for name in values if got[name] != values[name]]
    assert cut and cut == sorted(values)[: len(cut)] and all(got[name] == digest(values[name]) for name in cut)


def idem(key, wanted):
    def step(run):
        compare(run.ask(idem=key), LIMITED)
        found = run.of(HIT)[-1][6]["idem"]
        assert (found if isinstance(found, bytes) else found.encode()) == wanted.encode()

    return step


def priority(name, wanted):
    def step(run):
        compare(run.ask(priority=name), LIMITED)
        assert (run.of(HIT)[-1] + [None])[5] == wanted

    return step


def greeted(run):
    """HELLO names session, process and the number of the connection, also after a reconnect."""
    for _ in range(3):
        compare(run.ask(), ALLOWED)
        run.played.hang_up()
        time.sleep(0.005)
    infos = [message[3] for message in run.of(HELLO)]
    assert [info["connection"] for info in infos] == [1, 2, 3]
    assert {info["pid"] for info in infos} == {run.adapter.pid}
    assert len({info["session"] for info in infos}) == 1 and len(infos[0]["session"]) == 16
    assert infos[0]["client"].split("/")[0] in run.language.name and {message[2] for message in run.of(HELLO)} == {1}


def released(*wanted):
    """The daemon got these leases and outcomes, and each lease once."""

    def step(run):
        assert run.played.releases(len(wanted)) == [list(one) for one in wanted]

    return step


def works(fails, expect):
    return lambda run: compare(run.ask("work", fails=fails), expect)


def released_elsewhere(run):
    """A RELEASE whose connection has closed arrives on another, or the grant is reported as abandoned."""
    compare(run.ask("acquire"), ALLOWED)
    ids = [message[1] for message in run.of(ACQUIRE)]
    run.played.hang_up()
    time.sleep(0.005)
    release("ok")(run)
    compare(run.ask(), ALLOWED)
    run.eventually(
        lambda: (
            [77, 0] in [message[2:] for message in run.of(RELEASE)]
            or [1, ids[0]] in [which for report in reports(run) for which in report.get("abandoned", [])]
        )
    )


def unmatched(reason):
    return lambda connection, message: decision(
        message, [0, None, None, None, None, None, 0], None, ["unmatched", reason]
    )


INPUTS = (
    Scenario(
        "values",
        (INPUT, DIGEST, ABSENT),
        (
            sends({"user": "a\0b"}, {"user": "a\0b"}),
            sends({"user": "\u2028 \U0001f980"}, {"user": "\u2028 \U0001f980"}),
            sends({"user": "x" * 1_024}, {"user": "x" * 1_024}),
            sends({"user": "x" * 1_025}, {"user": "x" * 960 + digest("x" * 1_025)}),
            sends({"user": "x" * 65_536}, {"user": "x" * 960 + digest("x" * 65_536)}),
            sends({"user": "x" + "é" * 600}, {"user": "x" + "é" * 479 + digest("x" + "é" * 600)}),
            sends({"user": {"invalid": True}}, None),
            sends({"user": "", "plan": "free", "team": None}, {"plan": "free"}),
            sends({"user": ""}, {}),
            sends({}, {}),
            sends({"n": 42, "yes": True, "no": False}, {"n": "42", "yes": "true", "no": "false"}),
            sends({f"a{i}": str(i) for i in range(16)}, {f"a{i}": str(i) for i in range(16)}),
            stats(missed={}),
        ),
        limit,
    ),
    Scenario("longest_values_of_a_large_frame", (FITS,), (fits,), limit),
    Scenario(
        "objects_without_a_text",
        (INPUT,),
        (
            *2 * (refuses(attributes={"user": {"object": True}, "plan": "free"}),),
            logged("the attribute user has no text; help: send its id; such requests are refused (invalid)"),
            stats(missed={}, refused={"invalid": 2}),
        ),
        limit,
        needs=frozenset({"objects"}),
    ),
    Scenario(
        "another_on_failure",
        (INPUT,),
        tuple(raises(do, word) for do in ("acquire", "hit", "peek") for word in ("deny", "")),
        needs=frozenset({"dynamic"}),
    ),
    Scenario(
        "names",
        (INPUT, NAME),
        (
            *(
                refuses(attributes={name: "v"})
                for name in ("", "a:b", "a/b", "a\nb", "a\x7f", "a\x85b", "n" * 65, "é" * 33)
            ),
            *(refuses(domain=name) for name in ("", "a/b", "a:b", "d" * 65)),
            refuses(attributes={f"a{i}": "v" for i in range(17)}),
            sends({"é" * 32: "v", "a b": "w"}, {"é" * 32: "v", "a b": "w"}),
            priority("critical", "critical"),
            priority("a/b", None),
            priority("p" * 65, None),
            stats(missed={}, refused={"invalid": 13}),
        ),
        limit,
    ),
    Scenario(
        "idempotency_keys",
        ("an `idem` above 64 its first 30 bytes likewise",),
        (idem("x" * 64, "x" * 64), idem("x" * 65, "x" * 30 + digest("x" * 65)), idem("\0", "\0")),
        limit,
    ),
    Scenario(
        "costs",
        (COST, "A cost above 2³² \u2212 1 is refused for good: LIMIT with `retry_us` nil, never `invalid`"),
        (
            costs(0),
            costs(1),
            costs((1 << 32) - 1),
            costs(1 << 32),
            costs((1 << 53) - 1),
            errs(-1),
            errs(-(1 << 53)),
            costs(2),
        ),
        limit,
    ),
    Scenario(
        "odd_costs",
        (COST,),
        (
            *(errs(cost) for cost in (1.5, -0.5, "1", [1], True, {"tokens": -1}, {"tokens": 0.5}, {"tokens": None})),
            costs({"requests": 1, "tokens": 800}),
            costs({"tokens": 0}),
        ),
        limit,
        needs=frozenset({"dynamic"}),
    ),
    Scenario(
        "hello",
        ("`session` | `bin`, 16 random bytes: one per process, kept over reconnects, new after a fork",),
        (greeted,),
    ),
    Scenario(
        "leases",
        ("every grant has a lease that ends with RELEASE", "Every granted ACQUIRE has a lease"),
        (
            ask("acquire", expect=ALLOWED | {"lease": 77}),
            *(
                step
                for outcome in ("ok", "error", "dropped")
                for step in (release(outcome), ask("acquire", expect=ALLOWED))
            ),
            release("ok"),
            release("ok"),
            ask("hit", expect=ALLOWED | {"lease": None}),
            release("ok"),
            ask(),
            released((77, 0), (77, 1), (77, 2), (77, 0)),
        ),
        granting(77),
    ),
    Scenario(
        "work_under_a_lease",
        (PASSES, "every grant has a lease that ends with RELEASE"),
        (
            works(False, {"ran": True, "raised": None}),
            works(True, {"ran": True, "raised": lambda name: name and "Denied" not in name}),
            lambda run: run.eventually(lambda: len(run.of(RELEASE)) == 2),
            lambda run: compare(
                {"outcomes": [m[3] for m in run.of(RELEASE)]}, {"outcomes": lambda o: o[0] == 0 and o[1] in (1, 2)}
            ),
            script(limit),
            works(False, {"ran": False, "raised": lambda name: name and "Denied" in name}),
            script(error(7)),
            works(False, {"ran": False, "raised": lambda name: name and "Denied" in name}),
        ),
        granting(77),
    ),
    Scenario(
        "release_after_the_end_of_the_connection",
        ("any connection of that session may release or renew it",),
        (released_elsewhere,),
        granting(77),
    ),
    Scenario(
        "unmatched_is_logged_once",
        ("nothing limits the request: the domain does not exist, or none of its rules matches",),
        (
            ask(times=3),
            ask("acquire", attributes={"other": "secret"}),
            logged('no rule of the domain "api" matches a request with the attributes user'),
            ask(domain="second", attributes={}, times=2),
            logged('no rule of the domain "second"'),
            script(unmatched("domain")),
            ask(domain="third", times=2),
            logged('the rules have no domain "third"'),
        ),
        unmatched("rule"),
    ),
)
