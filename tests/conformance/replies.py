"""Scenarios about replies: each kind decoded, and every doubtful byte."""

from __future__ import annotations

import json
import time

import msgpack

from daemons import ALLOW, LIMIT, frame
from languages import ROOT
from play import (
    ACQUIRE,
    ALLOWED,
    DECIDED,
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
    script,
    stats,
)

VECTORS = ROOT / "tests/vectors"
GOOD = {one["name"]: one for one in json.loads((VECTORS / "good.json").read_text())}
DECISIONS = {name: one for name, one in GOOD.items() if one["meaning"].get("kind") == "decision"}
STATUS = {"allow": 200, "limit": 429, "shed": 503, "wait": 200, "deny": 403}
DOUBT = (
    "if any byte is doubtful (an unknown kind or verdict too), close the connection, never reuse it, and answer *allow,"
    " degraded*"
)
MATCHED = "match replies by `id`"
EXACT = 1 << 53  # JSON and JavaScript hold numbers up to this exactly
REFUSES = (
    "`invalid`, `quota`, `not_allowed`, `forbidden`: refuse the request (shed, 503, reason of that name), count it, log"
    " it once"
)
DEGRADES = "`internal`, `malformed`, `version`, `too_large`: degraded, reason `protocol`"
FRAMES = "A frame is a 4-byte big-endian unsigned length `n`, then `n` bytes of payload"


def golden(one):
    """Replies with the bytes of a golden frame, with the id of the request."""
    payload = bytes.fromhex(one["hex"])[4:]
    old = msgpack.packb(one["meaning"]["id"])
    at = payload.index(b"\x01") + 1
    width = {0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9}.get(payload[at], 1)
    assert msgpack.unpackb(payload[at : at + width]) == msgpack.unpackb(old)
    return lambda message: frame(payload[:at] + msgpack.packb(message[1]) + payload[at + width :])


def meant(one):
    """Returns the fields of the decision that a golden frame means."""
    meaning = one["meaning"]
    fields = {"verdict": meaning["verdict"], "status": STATUS[meaning["verdict"]], "rule": meaning["rule"]}
    fields["allowed"] = fields["status"] == 200
    for field in ("limit", "remaining", "lease"):
        if (meaning[field] or 0) < EXACT and not (field == "remaining" and meaning["limit"] is None):
            fields[field] = meaning[field]
    if not fields["allowed"] and (meaning["retry_us"] or 0) < EXACT:
        fields["retry_us"] = meaning["retry_us"]
    elif meaning["verdict"] == "wait":
        fields["wait_us"] = meaning["retry_us"]
    return DECIDED | fields


def verdict(number, *rest):
    """A decision whose elements from the verdict on are these."""
    return lambda message: [1, message[1], number, *rest, *(10 - len(rest)) * [None]]


def numbers(at, value):
    elements = [*ALLOW, None, None, None, None]
    elements[at] = value
    return lambda message: [1, message[1], *elements]


def extra(**given):
    return numbers(10, given)


ODD = {
    "nothing": lambda message: [],
    "no_verdict": lambda message: [1, message[1]],
    "unknown_kind": lambda message: [9, message[1]],
    "nil_kind": lambda message: [None, message[1]],
    "nil_id": lambda message: [1, None, *ALLOW],
    "wrong_id": lambda message: [1, message[1] + 1, *ALLOW],
    "late_id": lambda message: [1, message[1] - 1, *ALLOW],
    "text_id": lambda message: [1, str(message[1]), *ALLOW],
    "greatest_id": lambda message: [1, (1 << 63) - 1, *ALLOW],
    "unknown_verdict": verdict(5),
    "negative_verdict": verdict(-1),
    "bool_verdict": verdict(True),
    "text_verdict": verdict("allow"),
    "nil_verdict": verdict(None),
    "number_as_rule": verdict(0, 7),
    "bytes_as_rule": verdict(0, b"rule"),
    "negative_limit": numbers(2, -1),
    "text_limit": numbers(2, "40"),
    "bool_window": numbers(3, True),
    "negative_remaining": numbers(4, -1),
    "list_reset": numbers(5, [1]),
    "text_retry": numbers(6, "1"),
    "negative_lease": numbers(7, -7),
    "text_lease": numbers(7, "7"),
    "text_notes": numbers(8, "shadow"),
    "text_all": numbers(9, "all"),
    "list_extra": numbers(10, [1]),
    "number_as_help": extra(help=5),
    "text_hide": extra(hide="yes"),
    "number_as_unit": extra(unit=7),
    "bytes_as_rate": extra(rate=b"5/s"),
    "number_as_digest": extra(digest=5),
    "number_as_blocked": extra(blocked=1),
    "numbers_as_notes": numbers(8, [1, 2]),
    "nil_notes": numbers(8, [None, None]),
    "half_a_note": numbers(8, ["shadow"]),
    "nested_notes": numbers(8, [["shadow", "rule"]]),
    "done": lambda message: [2, message[1], True],
    "welcome_of_the_request": lambda message: [0, message[1], 1, {}],
    "unknown_error": lambda message: [3, message[1], 77, "new"],
    "text_error": lambda message: [3, message[1], "5", "odd"],
    "error_of_another": lambda message: [3, message[1] + 1, 6, "odd"],
    "busy_for_another": lambda message: [3, message[1] + 1, 8, "odd"],
    "error_without_id": lambda message: [3, None, 5, "odd"],
    "invalid_without_id": lambda message: [3, None, 6, "odd"],
    "quota_without_id": lambda message: [3, None, 7, "odd"],
    "error_of_the_old_hello": lambda message: frame([0, 0, 1, {}]) + frame([3, 0, 6, "odd"]),
    "welcome_twice": lambda message: 2 * frame([0, 0, 1, {}]) + frame(decision(message)),
    "http": lambda message: b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "no_bytes": lambda message: b"\0\0\0\0",
    "oversized": lambda message: b"\0\0\x40\x01" + bytes(16_385),
    "giant": lambda message: b"\xff\xff\xff\xff" + bytes(100),
    "garbage": lambda message: bytes(range(255, 0, -1)),
    "trailing": lambda message: frame(msgpack.packb([1, message[1], *ALLOW]) + b"\0"),
    "one_number": lambda message: frame(b"\1"),
    "float": lambda message: [1, message[1], 0, "rule", 40.0],
    "timestamp": lambda message: frame(msgpack.packb([1, message[1], *ALLOW])[:-1] + b"\xd4\1\0"),
    "deep": lambda message: [1, message[1], *ALLOW, None, None, None, {"x": [[[1]]]}],
    "no_utf8": lambda message: frame(msgpack.packb([1, message[1], 0, "rule"])[:-4] + b"\xff\xfe\xfd\xfc"),
    "key_twice": lambda message: frame(
        msgpack.packb([1, message[1], *ALLOW, None, None, None]) + b"\x82\xa1a\1\xa1a\1"
    ),
    "length_short": lambda message: b"\0\0\0\3" + frame(decision(message))[4:],
    "promised_more": lambda message: frame(b"\xdd\xff\xff\xff\xff\1"),
}


def framed(answer):
    return answer if isinstance(answer, bytes) else frame(answer)


BROKEN = {
    f"{name}": lambda message, one=one: bytes.fromhex(one["hex"])
    for name, one in ((one["name"], one) for one in json.loads((VECTORS / "bad.json").read_text()))
    if one["code"] == "malformed" and one["after_hello"]
}


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


# -- bytes in pieces ---------------------------------------------------------------------------------------------------


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
        assert len(run.of(HELLO)) <= 64

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
                lambda code: (script(error(code)), ask(expect=degraded("protocol"), times=6), script(allow), ask()),
            ),
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
        greet=lambda c, m: [3, m[1], 9, "not for you"],
        script=lambda c, m: None,
    ),
    Scenario(
        "wrong_version_of_the_protocol",
        ("`[0, id, version, info]`: the smaller version of both sides", DOUBT),
        (ask("acquire", expect=degraded("protocol")),),
        greet=lambda c, m: [0, m[1], 2, {}],
    ),
    Scenario(
        "error_of_the_version",
        ("| 3 `version` | version 0 in HELLO | closes |", DEGRADES),
        (ask(expect=degraded("protocol")),),
        greet=lambda c, m: (c.sendall(frame([3, m[1], 3, "which version"])), hang_up(c, m))[1],
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
