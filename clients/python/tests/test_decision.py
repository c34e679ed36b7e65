"""Fields, text and headers of a decision."""

import json

import pytest

from tidegate import Decision, Denied, Fault
from tidegate.answers import problem


def decision(verdict, rule=None, limit=None, window=None, remaining=None, reset=None, retry=None, lease=None, **more):
    notes, extra = more.get("notes"), more.get("extra")
    return Decision([verdict, rule, limit, window, remaining, reset, retry, lease, notes, None, extra])


ALLOW = decision(0, "per-user", 40, 2_000_000, 39, 50_000, 0)
LIMIT = decision(1, "per-user", 40, 2_000_000, 0, 50_000, 1_050_001)
NEVER = decision(1, "per-user", 40, 2_000_000, 39, 50_000, None)
PLACES = decision(1, "exports", 2, 0, 0, 300_000, 300_000)
HIDDEN = decision(1, "login", 5, 900_000_000, 0, 9_000_000, 9_000_000, extra={"hide": True})
TOKENS = decision(0, "model", 800, 60_000_000, 7, 1, 0, extra={"unit": "tokens"})
SHED = decision(2, "web/workers", None, None, None, None, 700_000)
WAIT = decision(3, "hooks", 21, 4_200_000, 20, 1, 250_000)
DENY = decision(4, "bots")
NOTHING = decision(0, retry=0)


def test_fields():
    assert (ALLOW.allowed, ALLOW.verdict, ALLOW.status, bool(ALLOW)) == (True, "allow", 200, True)
    assert (ALLOW.rule, ALLOW.limit, ALLOW.window, ALLOW.remaining) == ("per-user", 40, 2.0, 39)
    assert (ALLOW.reset_after, ALLOW.retry_after, ALLOW.wait, ALLOW.lease) == (0.05, 0.0, 0.0, None)
    assert (LIMIT.allowed, LIMIT.verdict, LIMIT.status, LIMIT.retry_after) == (False, "limit", 429, 1.050001)
    assert NEVER.retry_after is None
    assert (SHED.verdict, SHED.status, DENY.verdict, DENY.status) == ("shed", 503, "deny", 403)
    assert (WAIT.allowed, WAIT.wait, WAIT.status) == (True, 0.25, 200)
    assert (ALLOW.degraded, ALLOW.reason, ALLOW.notes) == (False, None, [])
    noted = decision(0, notes=["near", "per-user", "shadow", "new"])
    assert noted.notes == [("near", "per-user"), ("shadow", "new")]


def test_a_short_decision_and_one_from_the_future():
    assert Decision([0]).allowed
    assert Decision([1, "r", 1, 2, 3, 4, 5, None, None, None, None, "more", {}]).rule == "r"


@pytest.mark.parametrize(
    "fields",
    [
        [1, 7],
        [1, 7, None],
        [1, 7, 5],
        [1, 7, -1],
        [1, 7, True],
        [1, 7, "0"],
        [1, 7, 0, 5],
        [1, 7, 0, b"r"],
        [1, 7, 0, "r", "40"],
        [1, 7, 0, "r", -1],
        [1, 7, 0, "r", 1, True],
        [1, 7, 0, "r", 1, 1, 1, 1, []],
        [1, 7, 0, "r", 1, 1, 1, 1, 1, "lease"],
        [1, 7, 0, "r", 1, 1, 1, 1, 1, None, "near"],
        [1, 7, 0, "r", 1, 1, 1, 1, 1, None, None, None, ["help"]],
    ],
)
def test_malformed_decisions(fields):
    with pytest.raises(Fault):
        Decision(fields[2:])


BOTH_ALLOW = {
    "RateLimit": '"per-user";r=39;t=1',
    "RateLimit-Policy": '"per-user";q=40;w=2',
    "X-Ratelimit-Limit": "40",
    "X-Ratelimit-Remaining": "39",
}


@pytest.mark.parametrize(
    ("made", "fields"),
    [
        (ALLOW, BOTH_ALLOW),
        (
            LIMIT,
            {
                "RateLimit": '"per-user";r=0;t=1',
                "RateLimit-Policy": '"per-user";q=40;w=2',
                "X-Ratelimit-Limit": "40",
                "X-Ratelimit-Remaining": "0",
                "Retry-After": "2",
                "X-Ratelimit-Retry-After": "2",
            },
        ),
        (NEVER, BOTH_ALLOW),  # no retry time
        (
            PLACES,
            {
                "RateLimit": '"exports";r=0',
                "RateLimit-Policy": '"exports";q=2;qu="concurrent-requests"',
                "X-Ratelimit-Limit": "2",
                "X-Ratelimit-Remaining": "0",
                "Retry-After": "1",
                "X-Ratelimit-Retry-After": "1",
            },
        ),
        (HIDDEN, {"Retry-After": "9"}),
        (SHED, {"Retry-After": "1", "X-Ratelimit-Retry-After": "1"}),
        (DENY, {}),
        (NOTHING, {}),
        (
            TOKENS,
            {
                "RateLimit": '"model";r=7;t=1',
                "RateLimit-Policy": '"model";q=800;qu="tokens";w=60',
                "X-Ratelimit-Limit": "800",
                "X-Ratelimit-Remaining": "7",
            },
        ),
    ],
)
def test_headers(made, fields):
    assert made.headers() == fields


def test_a_rule_may_have_any_name_and_any_size():
    odd = decision(0, 'a"b\\c é\u2028', 2**63, 1, 2**63, 0, 0).headers()
    assert odd["RateLimit"] == '"a\\"b\\\\c ??";r=999999999999999;t=0'
    assert odd["RateLimit-Policy"] == '"a\\"b\\\\c ??";q=999999999999999;w=1'


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (ALLOW, "Allowed."),
        (LIMIT, "Over the limit per-user of 40 requests in 2 s. Try again in 2 s."),
        (
            NEVER,
            "Over the limit per-user of 40 requests in 2 s. It asks for more than the limit holds: it can never pass.",
        ),
        (PLACES, "Over the limit exports of 2 at once. Try again in 1 s."),
        (HIDDEN, "Too many requests. Try again in 9 s."),
        (SHED, "The service is at its capacity. Try again in 1 s."),
        (DENY, "This request is not allowed."),
    ],
)
def test_messages(made, message):
    assert made.message == message
    assert str(Denied(made)) == message


TYPES = "https://iana.org/assignments/http-problem-types"


@pytest.mark.parametrize(
    ("made", "members"),
    [
        (
            decision(1, "per-user", 40, 2_000_000, 0, 50_000, 1_050_001, extra={"help": "https://example.com/limits"}),
            {
                "type": f"{TYPES}#quota-exceeded",
                "title": "Too Many Requests",
                "status": 429,
                "violated-policies": ["per-user"],
                "limit": 40,
                "window": 2.0,
                "retry_after": 1.051,
                "help": "https://example.com/limits",
            },
        ),
        (NEVER, {"type": f"{TYPES}#quota-exceeded", "retry_after": None, "help": None}),
        (HIDDEN, {"violated-policies": None, "limit": None, "window": None, "retry_after": 9.0}),
        (SHED, {"type": f"{TYPES}#temporary-reduced-capacity", "status": 503, "violated-policies": None}),
        (DENY, {"type": "about:blank", "title": "Forbidden", "status": 403, "violated-policies": None}),
    ],
)
def test_problems(made, members):
    body = json.loads(problem(made))
    assert body["detail"] == made.message
    assert {name: body.get(name) for name in members} == members


def test_without_a_lease_there_is_nothing_to_release():
    assert ALLOW.release() is None
