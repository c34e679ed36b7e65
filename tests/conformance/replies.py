"""Scenarios about replies: each kind decoded, and every doubtful byte."""

from __future__ import annotations

import time

from daemons import ALLOW, LIMIT, frame
from frames import BROKEN, DECISIONS, GREETINGS, ODD, framed, golden, meant
from play import (
    ACQUIRE,
    ALLOWED,
    HELLO,
    HIT,
    LIMITED,
    Scenario,
    allow,
    ask,
    by_frame,
    decision,
    degraded,
    each,
    error,
    goodbye,
    hang_up,
    in_turn,
    limit,
    logged,
    nil,
    pause,
    refused,
    reports,
    script,
    stats,
)

DOUBT = (
    "if any byte is doubtful (an unknown kind or verdict too), close the connection, never reuse it, and answer *allow,"
    " degraded*"
)
MATCHED = "match replies by `id`"
REFUSES = (
    "`invalid`, `quota`, `not_allowed`, `forbidden`: refuse the request (shed, 503, reason of that name), count it, log"
    " it once"
)
DEGRADES = "`internal`, `malformed`, `version`, `too_large`: degraded, reason `protocol`"
FRAMES = "A frame is a 4-byte big-endian unsigned length `n`, then `n` bytes of payload"


def one_after_another(frames):
    """Each doubtful reply, and then a good one, which needs a new connection."""

    def each(run):
        for name in frames:
            before = len(run.of(HELLO))
            answer = run.ask("acquire", attributes={"frame": name})
            assert (answer["allowed"], answer["degraded"], answer["reason"]) == (True, True, "protocol"), (name, answer)
            assert run.ask()["reason"] is None, (name, run.last)
            given_up = [len(run.of(HELLO)) - 1, run.of(ACQUIRE)[-1][1]]
            assert run.of(HIT)[-1][6] == {"missed": {"protocol": 1}, "abandoned": [given_up]}, (name, run.of(HIT)[-1])
            assert len(run.of(HELLO)) == before + 1 + (before == 0), f"{name}: the connection is used again"

    return each


def greeted(greetings):
    def step(run):
        for number, (greeting, expected) in enumerate(greetings):
            run.played.greet = lambda connection, message, greeting=greeting: greeting
            run.make(f"c{number}")
            answer = run.ask("acquire", client=f"c{number}")
            assert {name: answer.get(name) for name in expected} == expected, (greeting, answer)

    return step


# -- bytes in pieces ---------------------------------------------------------------------------------------------------


def nothing_abandoned(run):
    """A request with a reply has no grant that could be lost."""
    assert not any(report.get("abandoned") for report in reports(run))


def in_two(connection, message):
    """Writes a reply in two parts, at the byte that the request names."""
    at, whole = int(message[3][0][1]), frame(decision(message))
    connection.sendall(whole[:at])
    time.sleep(0.0005)
    connection.sendall(whole[at:])


def split_everywhere(run):
    size = len(frame(decision([3, 1 << 62, "api"])))
    for at in range(1, size):
        answer = run.ask(attributes={"at": str(at)})
        assert (answer["verdict"], answer["reason"], answer["rule"]) == ("allow", None, "per-user"), (at, answer)
    assert len(run.of(HELLO)) == 1


def slowly(connection, message):
    for byte in frame(decision(message, LIMIT)):
        connection.sendall(bytes((byte,)))
        time.sleep(0.001)


def greet_slowly(connection, message):
    for byte in frame([0, message[1], 1, {"server": "played/1", "boot": 1}]):
        connection.sendall(bytes((byte,)))
        time.sleep(0.0005)


def half(connection, message):
    connection.sendall(frame(decision(message))[:9])
    hang_up(connection, message)


def twice(connection, message):
    return 2 * frame(decision(message))


def again_later(connection, message):
    whole = frame(decision(message))
    connection.sendall(whole)
    time.sleep(0.005)
    connection.sendall(whole)


def own_or_none(answer):
    assert answer["verdict"] == "limit" or answer["reason"] == "protocol", answer


def with_goodbye(order):
    return lambda c, m: b"".join([frame(decision(m, LIMIT)), frame([4, None, "draining"])][::order])


def flood(connection, message):
    return 2_000 * frame([3, None, 5, "flood"]) + frame(decision(message))


def different_texts(run):
    for number in range(250):
        run.adapter.send({"do": "hit", "client": "", "domain": "api", "attributes": {"number": str(number)}})
    reasons = {run.adapter.receive()["reason"] for _ in range(250)}
    assert reasons == {"invalid"} and len(run.log()) <= 101


def one_line(run):
    (line,) = run.log()
    line = line.rstrip("\n")  # Go's logger ends lines
    assert "invalid" in line and len(line) < 400 and not any(c < " " or "\x7f" <= c < "\xa0" for c in line), line


def crossed(waiting, callers):
    """Answers when all callers have asked, the last one first; `remaining` is the number of the caller."""

    def reply(connection, message):
        waiting.append((connection, message))
        if len(waiting) == callers:
            for one, asked in reversed(waiting):
                number = int(asked[3][0][1][1:])
                one.sendall(frame(decision(asked, [0, "per-user", 1 << 20, 60_000_000, number, 0, 0])))
            waiting.clear()

    return reply


def own_replies(callers, at_once=True):
    """Concurrent callers get their own replies."""

    def step(run):
        count = callers or run.language.crowd
        run.played.script = crossed([], count) if at_once else numbered
        answers = run.ask("crowd", callers=count)["all"]
        assert {answer["reason"] for answer in answers} == {None}
        assert [answer["remaining"] for answer in answers] == list(range(count))
        # Blocking callers may each have a connection; the others share them.
        assert len(run.of(HELLO)) <= (100 if count <= 100 else 64)

    return step


def numbered(connection, message):
    number = int(message[3][0][1][1:])
    return decision(message, [0, "per-user", 1 << 20, 60_000_000, number, 0, 0])


DECODING = (
    Scenario(
        "golden_decisions",
        ("which decide any doubt", "Requests may be pipelined. Replies come in any order."),
        tuple(ask("acquire", meant(one), attributes={"frame": name}) for name, one in DECISIONS.items()),
        by_frame({name: golden(one) for name, one in DECISIONS.items()}),
    ),
    Scenario(
        "trailing_nils_and_more_elements",
        ("Readers accept both", "map keys and array elements beyond the known ones are ignored: version 1 grows so"),
        (
            ask(attributes={"frame": "short"}, expect=ALLOWED | {"rule": "per-user", "remaining": 39}),
            ask(attributes={"frame": "shortest"}, expect=ALLOWED | {"rule": None}),
            ask(attributes={"frame": "long"}, expect=ALLOWED | {"rule": "per-user"}),
            ask(attributes={"frame": "keys"}, expect=LIMITED | {"retry_us": 50_000}),
        ),
        by_frame(
            {
                "short": lambda m: [1, m[1], *ALLOW],
                "shortest": lambda m: [1, m[1], 0],
                "long": lambda m: [*decision(m), 1, "more", {"and": [2]}],
                "keys": lambda m: [*decision(m, LIMIT)[:12], {"newer": [1], "help": None, "hide": None}],
            }
        ),
        greet=lambda c, m: [0, m[1], 1, {"server": "played/2", "newer": {"and": 1}}, "more"],
    ),
    Scenario(
        "errors_that_refuse",
        (REFUSES, "Fail closed only if the application asked for it, with 503"),
        (
            each(
                ((6, "invalid"), (7, "quota"), (9, "forbidden"), (11, "not_allowed")),
                lambda one: (
                    script(error(one[0], f"the text of {one[1]}")),
                    ask(expect=refused(one[1]), times=4),
                    ask("acquire", expect=refused(one[1]), on_failure="refuse"),
                    ask("peek", expect=refused(one[1])),
                    logged(f"the text of {one[1]}"),
                ),
            ),
            script(allow),
            ask(),
            stats(missed={}, refused=dict.fromkeys(("invalid", "quota", "forbidden", "not_allowed"), 6)),
        ),
        options={"fallback": "1/h"},
    ),
    Scenario(
        "errors_that_degrade",
        (DEGRADES,),
        (
            each(
                [error(code, about=about) for code in (1, 2, 3, 4, 5, 10, 77) for about in (nil, lambda m: m[1])],
                lambda play: (script(play), ask("acquire", expect=degraded("protocol")), script(allow), ask()),
            ),
        ),
    ),
    Scenario(
        "errors_of_one_request_leave_the_breaker_closed",
        (
            "| 10 `internal` | the daemon failed; a panic during the decision |",
            "| 5 `unknown_op` | an op above 8 | stays |",
        ),
        (
            each(
                (5, 10),
                lambda code: (script(error(code)), ask("acquire", degraded("protocol"), times=6), script(allow), ask()),
            ),
            nothing_abandoned,
            stats(breaker_open=False, missed={"protocol": 12}),
        ),
    ),
    Scenario(
        "internal_and_the_end_of_the_connection",
        ("| 10 `internal` | the daemon failed; a panic during the decision | closes |",),
        (ask(expect=degraded("protocol")), ask(), ask(expect=degraded("protocol")), ask()),
        in_turn(
            lambda c, m: (c.sendall(frame([3, m[1], 10, "the text"])), hang_up(c, m))[1],
            allow,
            lambda c, m: (c.sendall(frame([3, m[1], 10, "the text"])), hang_up(c, m))[1],
            allow,
        ),
    ),
    Scenario(
        "hello_is_forbidden",
        ("9 `forbidden` | in HELLO: another user's session", REFUSES),
        (ask(expect=refused("forbidden"), times=5), stats(missed={}, breaker_open=False), logged("forbidden")),
        greet=error(9),
        script=lambda c, m: None,
    ),
    Scenario(
        "odd_replies_to_hello",
        ("`[0, id, version, info]`: the smaller version of both sides", DEGRADES, REFUSES, DOUBT),
        (greeted(GREETINGS),),
    ),
    Scenario(
        "reply_before_welcome",
        ("Replies come in any order",),
        (ask(expect=LIMITED, times=2),),
        lambda c, m: frame(decision(m, LIMIT)) + frame([0, 0, 1, {}]),
        greet=lambda c, m: None,
    ),
    Scenario(
        "close_after_hello",
        ("answer *allow, degraded*", "After three, or at once if no process listens, stop"),
        (
            ask("acquire", expect=degraded("unreachable"), times=3),
            ask(expect=degraded("breaker")),
            lambda run: run.eventually(lambda: len(run.played.served) <= 6),
        ),
        greet=lambda c, m: hang_up(c, m),
    ),
)

DOUBTS = (
    Scenario(
        "odd_replies",
        (DOUBT, MATCHED),
        (one_after_another(ODD),),
        by_frame({n: lambda m, f=f: framed(f(m)) for n, f in ODD.items()}),
    ),
    Scenario("broken_frames", (DOUBT, FRAMES), (one_after_another(BROKEN),), by_frame(BROKEN)),
    Scenario("frame_split_at_every_byte", (FRAMES,), (split_everywhere,), in_two),
    Scenario("slow_writes", (FRAMES,), (ask(expect=LIMITED, times=2),), slowly, greet_slowly),
    Scenario(
        "half_a_frame_and_the_end", (FRAMES, DOUBT), (ask(expect=degraded("unreachable")), ask()), in_turn(half, allow)
    ),
    Scenario("reply_twice", (MATCHED, DOUBT), (ask(), ask(expect=LIMITED), stats(missed={})), in_turn(twice, limit)),
    Scenario(
        "reply_again_later",
        (MATCHED, DOUBT),
        (ask(), pause(0.01), lambda run: own_or_none(run.ask())),
        in_turn(again_later, limit),
    ),
    Scenario("flood_of_errors", (DOUBT,), (ask("acquire", expect=degraded("protocol")), ask()), in_turn(flood, allow)),
    Scenario("many_texts_of_errors", (REFUSES,), (different_texts,), lambda c, m: [3, m[1], 6, f"text {m[3]}"]),
    Scenario(
        "texts_of_errors_are_one_line",
        (REFUSES,),
        (ask(expect=refused("invalid")), one_line),
        error(6, "a\nb\x1b[31m" + 9_000 * "x"),
    ),
    Scenario("crossed_replies", ("Replies come in any order", MATCHED), (own_replies(16),), needs=frozenset({"crowd"})),
    Scenario("a_crowd", (MATCHED,), (own_replies(None, at_once=False),), needs=frozenset({"crowd"})),
)

GOODBYES = (
    Scenario(
        "goodbye_instead_of_the_reply",
        (
            "GOODBYE `draining`, closes; later writes fail at once. Reconnect",
            "Unread requests are not decided: send them again on another connection",
        ),
        (
            each(
                ("draining", "idle", "newer"),
                lambda reason: (
                    ask(),
                    script(in_turn(goodbye(reason), limit)),
                    ask("acquire", expect=LIMITED),
                    script(allow),
                ),
            ),
            stats(missed={}, breaker_open=False),
        ),
    ),
    Scenario(
        "goodbye_on_an_idle_connection",
        ("first closes connections idle for 0.1 s of sessions with more than four, GOODBYE `idle`",),
        (
            each(
                ("draining", "idle", "newer"),
                lambda reason: (ask(), lambda run: goodbye(reason)(run.played.connections[-1], None), ask("acquire")),
            ),
            stats(missed={}, breaker_open=False),
        ),
    ),
    Scenario(
        "goodbye_with_the_reply",
        ("answers every frame that it received, sends GOODBYE `draining`, closes",),
        (
            each(
                (with_goodbye(1), with_goodbye(-1)),
                lambda play: (script(play), ask(expect=LIMITED), script(allow), ask()),
            ),
            lambda run: run.eventually(lambda: len(run.of(HELLO)) == 3),
            stats(missed={}, breaker_open=False),
        ),
    ),
    Scenario(
        "idle_close_without_a_goodbye",
        ("no HELLO for 5 s, or an incomplete frame for 1 s | closes without a reply",),
        (
            each(range(5), lambda _: (ask(), lambda run: run.played.hang_up(), pause(0.005), ask("acquire"))),
            stats(missed={}, breaker_open=False),
        ),
    ),
)
