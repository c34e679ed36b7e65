"""Invalid input is never allowed: odd, long or large input is digested, refused by daemon or client, or raises."""

import asyncio
import decimal
import enum
import hashlib
import math
import uuid

import pytest
from daemons import ALLOW, LIMIT

import tidegate
import tidegate.http
import tidegate.wsgi

RULES = "domain: api\nlimits: [{name: per-user, key: [user], rate: 1/day, burst: 1}]\n"
USER = {"user": "u1"}
WIDE = {f"k{i}": "v" for i in range(17)}


@pytest.fixture
def limited(daemon, make_client):
    """A client whose user u1 is over the limit."""
    (daemon.rules / "api.yaml").write_text(RULES)
    daemon.start()
    client = make_client(socket=daemon.socket)
    assert client.hit("api", USER).allowed and not client.hit("api", USER).allowed
    return client


@pytest.mark.parametrize(
    ("attributes", "options"),
    [
        (USER, {"idem": "i" * 65}),
        (USER, {"idem": b"i" * 10_000}),
        (USER, {"idem": "é" * 100}),
        (USER, {"idem": 10**30}),
        (USER, {"idem": ""}),
        (USER, {"idem": object()}),
        (USER, {"cost": 2**32 - 1}),
        (USER, {"priority": "a/b"}),
        (USER, {"priority": "p" * 65}),
        (USER, {"priority": 7}),
        (USER, {"priority": "\ud800"}),
        (USER, {"priority": ["critical"]}),
        (USER, {"queued": math.nan}),
        (USER, {"queued": -1}),
        (USER, {"max_wait": math.inf}),
        (USER, {"queued": 1e300}),
        (USER, {"queued": 1e305}),
        (USER, {"queued": 10**400}),
        (USER, {"queued": "1"}),
        (USER | WIDE, {}),
        (list(USER.items()) + list(WIDE.items()), {}),
        ([USER] * 9, {}),
        (USER | {"a:b": "c"}, {}),
        (USER | {"": "c"}, {}),
        (USER | {"k" * 65: "c"}, {}),
        (USER | {7: "c"}, {}),
        (USER | {"long": "x" * 100_000}, {}),
        (USER | {"n": 10**5000}, {}),
        (USER | {"n": type("Odd", (), {"__str__": lambda self: 1 / 0})()}, {}),
        (USER | {f"k{i}": "x" * 1024 for i in range(15)}, {}),
        ("user", {}),
        (5, {}),
        ([1, 2], {}),
        ([("user", "u1", "more")], {}),
    ],
)
def test_a_limited_caller_stays_limited_with_any_input(limited, attributes, options):
    for call in (limited.hit, limited.acquire, limited.peek):
        for on_failure in ("allow", "refuse"):
            decision = call("api", attributes, **options, on_failure=on_failure)
            assert not decision.allowed and not decision.degraded, (call, decision)
            assert (decision.verdict, decision.reason) in {("limit", None), ("shed", "invalid")}
    assert limited.stats()["missed"] == {}


@pytest.mark.parametrize("domain", ["a/b", "", None, ["x"], "d" * 65, 7, b"api"])
def test_an_invalid_domain_is_refused(played, make_client, caplog, domain):
    client = make_client()
    decisions = [client.acquire(domain, on_failure="allow") for _ in range(3)]
    assert {(d.verdict, d.status, d.reason, d.degraded) for d in decisions} == {("shed", 503, "invalid", False)}
    assert client.stats()["refused"] == {"invalid": 3} and client.stats()["missed"] == {}
    assert len(caplog.messages) == 1 and played.seen == []


COSTS = [-1, -(2**70), 1.5, 1.0, math.nan, True, "1", None, [1], {"tokens": -1}, {"tokens": 0.5}, {"tokens": None}]


@pytest.mark.parametrize("cost", COSTS)
def test_an_invalid_cost_raises(played, client, cost):
    for call in (client.hit, client.acquire, client.peek):
        with pytest.raises(ValueError, match="cost"):
            call("api", USER, cost)
    with pytest.raises(ValueError), client.limit("api", USER, cost):
        raise AssertionError
    with pytest.raises(ValueError):
        client.limited("api", USER, cost)
    with pytest.raises(ValueError):
        tidegate.wsgi.Middleware(None, client, cost=cost)
    assert played.seen == [] and client.stats()["missed"] == {}


@pytest.mark.parametrize("amount", COSTS[2:9] + COSTS[10:])
def test_an_invalid_amount_raises(played, client, amount):
    with pytest.raises(ValueError, match="cost"):
        client.charge("api", USER, amount)
    assert played.seen == []


def test_a_cost_raises_in_asyncio_too_and_not_when_disabled(played, make_client):
    async def main():
        with pytest.raises(ValueError, match="cost"):
            await tidegate.AsyncClient(played.path).hit("api", USER, -1)

    asyncio.run(main())
    assert make_client(enabled=False).hit("api", USER, -1).reason == "disabled"


class Weight(enum.IntEnum):
    HEAVY = 7


@pytest.mark.parametrize(
    ("cost", "written"), [(2**32, 2**32), (2**64 - 1, 2**64 - 1), (2**64, 2**32), (10**30, 2**32), (Weight.HEAVY, 7)]
)
def test_a_cost_however_large_is_written(played, client, cost, written):
    client.hit("api", USER, cost)
    client.hit("api", USER, {"tokens": cost})
    client.charge("api", USER, cost)
    client.charge("api", USER, -cost)
    below = -min(written, 2**32)
    assert [message[4] for message in played.requests()] == [written, {"tokens": written}, written, below]


def sha(raw):
    return hashlib.sha256(raw).hexdigest()[:32]


@pytest.mark.parametrize(
    ("idem", "written"),
    [
        ("x" * 64, "x" * 64),
        ("x" * 65, "x" * 30 + "~" + sha(b"x" * 65)),
        ("x" + "é" * 40, "x" + "é" * 14 + "~" + sha(("x" + "é" * 40).encode())),
        (b"\xff" * 64, b"\xff" * 64),
        (b"\xff" * 65, b"\xff" * 30 + b"~" + sha(b"\xff" * 65).encode()),
        (7, "7"),
    ],
)
def test_an_idem_is_written_as_it_is_or_as_its_digest(played, client, idem, written):
    client.hit("api", USER, idem=idem)
    client.charge("api", USER, idem=idem)
    assert [message[-1] for message in played.requests()] == [{"idem": written}, {"idem": written}]


def test_middlewares_raise_for_invalid_options(client):
    for options in (
        {"domain": "a/b"},
        {"attributes": {f"k{i}": "X-K" for i in range(11)}},
        {"attributes": {"a:b": "X-K"}},
        {"cost": -1},
        {"fallback": "often"},
    ):
        with pytest.raises(ValueError):
            tidegate.http.Guard(client, **options)
    tidegate.http.Guard(client, attributes={f"k{i}": "X-K" for i in range(10)})
    for arguments in ({"domain": ""}, {"domain": "api", "attributes": WIDE}, {"domain": "api", "fallback": "often"}):
        with pytest.raises(ValueError):
            client.limited(**arguments)


@pytest.mark.parametrize("cost", [-1, 0.5, "5"])
def test_a_cost_of_a_middlewares_function_is_refused_and_never_raises(played, client, cost):
    asked = tidegate.wsgi.Middleware(None, client, "api", cost=lambda environ: cost)
    got = []
    asked({"REQUEST_METHOD": "GET", "PATH_INFO": "/"}, lambda status, headers: got.append(status))
    assert got == ["503 Service Unavailable"] and client.stats()["refused"] == {"invalid": 1}


def test_refuses_in_asyncio_too(played):
    async def main():
        ac = tidegate.AsyncClient(played.path, timeout=5)
        decisions = [await ac.acquire("api", WIDE), await ac.hit("a/b")]
        played.script = lambda connection, message: [3, message[1], 6, "text"]
        decisions.append(await ac.peek("api"))
        assert await ac.charge("api", USER, -1, of="x") is False
        ac.close()
        return [(d.verdict, d.reason, d.degraded, type(d).__name__) for d in decisions], ac.stats()["refused"]

    assert asyncio.run(main()) == ([("shed", "invalid", False, "AsyncDecision")] * 3, {"invalid": 4})


# -- refunds have a reference ------------------------------------------------------------------------------------------


def test_a_refund_names_a_lease_a_decision_or_an_idem(played, client):
    played.script = lambda c, m: [2, m[1], True] if m[0] == 5 else [1, m[1], *ALLOW, 77 if m[0] == 1 else None]
    work, named = client.acquire("api", USER), client.hit("api", USER, idem="order-7")
    work.release()
    for of in (work, 77, named, "order-7", "o" * 70, b"raw"):
        assert client.charge("api", USER, -1, of=of)
    assert client.charge("api", USER, 5, idem="c1")
    long = "o" * 30 + "~" + sha(b"o" * 70)
    of = [message[5].get("of") for message in played.of(5)]
    assert of == [77, 77, "order-7", "order-7", long, b"raw", None] and played.of(5)[-1][5] == {"idem": "c1"}


def test_a_refund_without_reference_is_not_sent(played, client, caplog):
    nameless = client.hit("api", USER)
    assert client.charge("api", USER, -1, of=nameless) is False
    assert played.of(5) == [] and "lease or an idem" in caplog.text


def test_the_daemon_decides_on_a_bare_refund(played, client, caplog):
    played.script = lambda connection, message: [3, message[1], 11, "a refund names what it refunds"]
    assert [client.charge("api", USER, -1) for _ in range(3)] == [False] * 3
    assert len(played.of(5)) == 3 and len(caplog.messages) == 1


def test_limit_of_a_limited_caller(played, client):
    played.script = lambda connection, message: [1, message[1], *LIMIT]
    with pytest.raises(tidegate.Denied):
        client.limit("api", USER, idem="x" * 100).__enter__()


class User:
    """Has no text of its own."""

    def name(self):
        return "ann"


class Proxy:
    """As werkzeug's LocalProxy: passes `str` to another object."""

    def __str__(self):
        return str(User())


@pytest.mark.parametrize("value", [User(), Proxy(), User().name, lambda: "u1", [User()], iter("u1"), {"id": object()}])
def test_an_object_without_a_text_is_refused(played, client, caplog, value):
    for _ in range(2):
        assert (decision := client.hit("api", {"user": value})).status == 503 and decision.reason == "invalid"
    said = "tidegate: the attribute user has no text; help: send its id; such requests are refused (invalid)"
    assert caplog.messages == [said] and not played.requests()


class Lazy:
    """As Django's SimpleLazyObject, whose evaluation fails: its class is that of another object."""

    @property
    def __class__(self):
        raise ConnectionError("secret")


def test_a_lazy_value_whose_evaluation_fails_is_refused(played, client, caplog):
    for attributes in ({"user": Lazy()}, [("user", Lazy())], [USER, {"org": Lazy()}]):
        assert client.hit("api", attributes).reason == "invalid"
    assert "a value has no text: ConnectionError; such" in caplog.text and "secret" not in caplog.text
    assert not played.requests()


def test_objects_with_a_text_are_sent(played, client):
    for value in (uuid.UUID(int=7), decimal.Decimal("1.5"), OSError("no"), ["a", 1], "<User object at 0x7f00>"):
        client.hit("api", {"user": value})
        assert played.requests()[-1][3] == [["user", str(value)]]
