"""Work under a limit: `limit`, `limited`, `release`."""

import asyncio

import pytest
from daemons import ALLOW, LIMIT, PATIENT

import tidegate


def grant(connection, message):
    return None if message[0] == 2 else [1, message[1], *ALLOW, 77]


def test_limit_holds_the_lease_for_the_block(played, client):
    played.script = grant
    with client.limit("export", {"org": "o1"}) as decision:
        assert decision.lease == 77 and played.releases(0) == []
    assert played.releases() == [[77, 0]]
    decision.release()
    assert client.check() and played.releases() == [[77, 0]]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_limit_releases_when_the_block_raises(played, client, error):
    played.script = grant
    with pytest.raises(error), client.limit("export"):
        raise error
    assert played.releases() == [[77, 2]]


def test_limit_raises_denied(played, client):
    played.script = lambda connection, message: [1, message[1], *LIMIT]
    with pytest.raises(tidegate.Denied) as raised, client.limit("export", cost=3, priority="post"):
        raise AssertionError("the block ran")
    assert raised.value.decision.rule == "per-user"
    assert played.seen[-1][4:] == [3, "post"]


def test_limit_sleeps_off_a_wait(played, client, monkeypatch):
    slept = []
    monkeypatch.setattr(tidegate, "sleep", slept.append)
    played.script = lambda connection, message: [1, message[1], 3, "hooks", 21, 1, 20, 1, 250_000]
    with client.limit("hooks"):
        assert slept == [0.25]


@pytest.mark.parametrize("outcome", ["ok", "error", "dropped"])
def test_release_reports_the_outcome(played, client, outcome):
    played.script = grant
    client.acquire("export").release(outcome)
    assert played.releases() == [[77, ["ok", "error", "dropped"].index(outcome)]]


def test_limited(played, client):
    played.script = grant

    @client.limited("login", lambda name, *, door="front": {"account": name, "door": door}, cost=2)
    def login(name: str, *, door: str = "front") -> str:
        """Logs in."""
        assert played.releases(0) == []
        return f"{name} by the {door}"

    assert (login.__name__, login.__doc__) == ("login", "Logs in.")
    assert login("ann", door="back") == "ann by the back"
    assert played.seen[1] == [1, 1, "login", [["account", "ann", "door", "back"]], 2]
    assert played.releases() == [[77, 0]]
    played.script = lambda connection, message: [1, message[1], *LIMIT]
    with pytest.raises(tidegate.Denied):
        login("ann")


def test_limited_as_a_function_with_fixed_attributes(played, client):
    @tidegate.limited(client, "report", {"kind": "daily"})
    def report():
        return 1

    assert report() == 1
    assert played.seen[1][2:4] == ["report", [["kind", "daily"]]]


def test_a_function_of_the_arguments_that_raises_is_left_out_of_the_check(played, client, caplog):
    played.script = lambda connection, message: [1, message[1], *LIMIT]

    @client.limited("login", lambda name: {"account": name.missing}, on_failure="refuse", priority=lambda name: "post")
    def login(name):
        return name

    for name in ("ann", "bob"):
        with pytest.raises(tidegate.Denied):
            login(name)
    assert played.seen[1][2:6] == ["login", [[]], 1, "post"]
    assert client.stats()["missed"] == {"callback": 2}
    assert len(caplog.messages) == 1 and "ann" not in caplog.text


def test_without_a_daemon_jobs_continue(make_client):
    client = make_client(socket="/nowhere")
    with client.limit("export") as decision:
        assert decision.degraded
    with pytest.raises(tidegate.Denied) as raised, client.limit("export", on_failure="refuse"):
        pass
    assert raised.value.decision.status == 503


# -- charging by the result


def charges(played):
    return [message for message in played.seen if message[0] == 5]


def charging(connection, message):
    return [2, message[1], True] if message[0] == 5 else grant(connection, message)


@pytest.mark.parametrize(
    ("charge", "amount"),
    [
        (len, 6),
        (lambda result: {"tokens": len(result)}, {"tokens": 6}),
        (lambda result: 0, None),
        (lambda result: None, None),
        (lambda result: {}, None),
    ],
)
def test_limited_charges_by_the_result(played, client, charge, amount):
    played.script = charging
    assert client.limited("llm", lambda text: {"model": text}, charge=charge)(str.upper)("answer") == "ANSWER"
    assert [message[2:] for message in charges(played)] == ([["llm", [["model", "answer"]], amount]] if amount else [])


def test_a_negative_charge_refunds_the_decision(played, client):
    played.script = charging
    client.limited("llm", cost={"tokens": 9}, charge=lambda result: {"tokens": result - 9})(lambda: 4)()
    assert [message[4:] for message in charges(played)] == [[{"tokens": -5}, {"of": 77}]]
    assert played.releases() == [[77, 0]]
    assert [message[0] for message in played.seen][-2:] == [5, 2]


def test_limited_charges_by_the_return_value_of_a_generator(played, client):
    played.script = charging

    def rows():
        yield "a"
        return 3

    assert list(client.limited("llm", charge=lambda result: result)(rows)()) == ["a"]
    assert [message[4] for message in charges(played)] == [3]


@pytest.mark.parametrize("charge", [lambda result: 1 / 0, lambda result: "many", lambda result: 1.5])
def test_a_charge_that_raises_is_logged_once(played, client, caplog, charge):
    played.script = charging
    work = client.limited("llm", charge=charge)(lambda: "result")
    assert [work(), work()] == ["result", "result"] and charges(played) == []
    (record,) = caplog.records
    assert "charge raised" in record.getMessage()


def test_a_function_that_raises_charges_nothing(played, client):
    played.script = charging

    @client.limited("llm", charge=lambda result: 5)
    def work():
        raise KeyError

    with pytest.raises(KeyError):
        work()
    assert charges(played) == [] and played.releases() == [[77, 2]]


def test_the_async_client_charges_by_the_result(played):
    played.script = charging

    async def use():
        async with tidegate.AsyncClient(played.path, timeout=PATIENT) as client:

            @client.limited("llm", {"model": "large"}, charge=lambda result: {"tokens": result})
            async def work():
                return 7

            assert await work() == 7
            assert await client.limited("llm", charge=lambda result: result)(lambda: 8)() == 8

    asyncio.run(use())
    assert [message[4] for message in charges(played)] == [{"tokens": 7}, 8]


@pytest.mark.parametrize("kind", ["plain", "asynchronous"])
def test_the_async_client_charges_no_generators(kind):
    def rows():
        yield

    async def rows_later():
        yield

    with pytest.raises(TypeError, match="no result"):
        tidegate.AsyncClient("/nonexistent").limited("llm", charge=len)(rows if kind == "plain" else rows_later)


def test_flask_answers_denied_by_a_handler(played, client):
    """The handler of the README."""
    flask = pytest.importorskip("flask")
    played.script = lambda connection, message: [1, message[1], *LIMIT]
    app = flask.Flask("x")

    @app.errorhandler(tidegate.Denied)
    def refused(error):
        return error.decision.message, error.decision.status, error.decision.headers()

    @app.get("/")
    @client.limited("api")
    def export():
        return "done"

    answer = app.test_client().get("/")
    assert (answer.status_code, answer.headers["Retry-After"]) == (429, "1") and "per-user" in answer.text
