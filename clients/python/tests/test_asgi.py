"""The ASGI middleware, message by message."""

import asyncio
import contextlib
import json

import pytest
from daemons import ALLOW, LIMIT, PATIENT, frame
from test_answers import ANSWERS, decided

import tidegate
from tidegate.asgi import Middleware

HTTP = {"type": "http", "method": "GET", "path": "/", "headers": [], "client": ("192.0.2.1", 4711)}
SOCKET = {"type": "websocket", "path": "/", "headers": [], "client": ("192.0.2.1", 4711), "extensions": {}}


@pytest.fixture
def ac(directory, make_client):
    made = tidegate.AsyncClient(str(directory / "s"), timeout=PATIENT)
    yield made
    made.close()


async def plain(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": [(b"x-app", b"1")]})
    await send({"type": "http.response.body", "body": b"hel", "more_body": True})
    await send({"type": "http.response.body", "body": b"lo"})


def call(app, scope=HTTP, sent=None, **more):
    """Returns all sent messages."""
    messages = [] if sent is None else sent

    async def receive():
        return {"type": "websocket.connect"}

    async def send(message):
        messages.append(message)

    asyncio.run(app(scope | more, receive, send))
    return messages


def limit(connection, message):
    return [1, message[1], *LIMIT]


def grant(connection, message):
    return [1, message[1], *ALLOW, 77] if message[0] == 1 else [2, message[1], True]


def test_an_allowed_request_gets_limit_headers(played, ac):
    start, *bodies = call(Middleware(plain, ac, domain="api"))
    assert start["headers"] == [
        (b"x-app", b"1"),
        (b"ratelimit", b'"per-user";r=39;t=1'),
        (b"ratelimit-policy", b'"per-user";q=40;w=2'),
        (b"x-ratelimit-limit", b"40"),
        (b"x-ratelimit-remaining", b"39"),
    ]
    assert b"".join(message["body"] for message in bodies) == b"hello"


@pytest.mark.parametrize("answer", ANSWERS, ids=[answer["name"] for answer in ANSWERS])
def test_an_answer_of_the_vectors(answer):
    """Byte for byte as in every other language."""

    class Decided:
        async def acquire(self, domain, **question):
            made = decided(answer)
            made.lease, made.wait = None, 0.0
            return made

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": answer["status"], "headers": []})
        await send({"type": "http.response.body", "body": b"its own"})

    start, body = call(Middleware(app, Decided(), headers=answer["style"]))
    assert start["status"] == answer["status"]
    assert start["headers"] == [(name.lower().encode(), value.encode()) for name, value in answer["headers"]]
    assert body["body"].decode() == (answer["body"] or "its own")


def test_sends_the_request(played, ac):
    options = {
        "user": lambda scope: "u1",
        "attributes": {"tenant": "X-Tenant", "plan": lambda scope: "free"},
        "cost": lambda scope: 5,
        "priority": "post",
        "trusted_proxies": 1,
    }
    headers = [(b"user-agent", b"curl"), (b"X-Tenant", b"t1"), (b"x-forwarded-for", b"203.0.113.9")]
    headers += [(b"x-forwarded-for", b"192.0.2.7")]  # a second header of the same name extends the first
    call(Middleware(plain, ac, "api", **options), method="PUT", path="//v1/./a/../é", headers=headers)
    pairs = ["method", "PUT", "path", "/v1/é", "ip", "192.0.2.7", "user", "u1", "user_agent", "curl"]
    assert played.seen[1][2:] == ["api", [[*pairs, "tenant", "t1", "plan", "free"]], 5, "post"]


@pytest.mark.parametrize("is_around", [True, False], ids=["around the application", "of the application"])
def test_sends_the_route_of_starlette_if_configured(played, ac, is_around):
    starlette = pytest.importorskip("starlette.applications")
    from starlette.responses import Response
    from starlette.routing import Mount, Route

    async def answer(request):
        return Response()

    orders, users = Route("/orders/{number:int}", answer), Route("/users/{name}", answer, methods=["GET"])
    app = starlette.Starlette(routes=[orders, Mount("/v1", routes=[users]), Mount("/plain", app=plain)])
    if is_around:
        app = Middleware(app, ac, "api", route=True)
    else:
        app.add_middleware(Middleware, client=ac, domain="api", route=True)
    routes = {
        "/orders/7": "/orders/{number:int}",
        "/v1/users/ann": "/v1/users/{name}",
        "/plain/x": "/plain",
        "/orders/seven": None,
    }
    for path in routes:
        call(app, path=path, query_string=b"")
    sent = [dict(zip(frame[3][0][::2], frame[3][0][1::2], strict=True)) for frame in played.seen if frame[0] == 1]
    assert {attributes["path"]: attributes.get("route") for attributes in sent} == routes


def test_further_descriptors(played, ac):
    call(Middleware(plain, ac, descriptors=lambda scope: [{"tenant": "t1", "plan": "free"}, {"route": "/x"}]))
    assert played.seen[1][3][1:] == [["tenant", "t1", "plan", "free"], ["route", "/x"]]
    call(Middleware(plain, ac, descriptors=lambda scope: None))
    assert len(played.seen[-1][3]) == 1
    call(Middleware(plain, ac, descriptors=lambda scope: 7))
    assert ac.stats()["missed"] == {"callback": 1}


@pytest.mark.parametrize("client", [None, ("", 0)])
def test_a_unix_socket_has_no_address(played, ac, client):
    call(Middleware(plain, ac), client=client)
    assert played.seen[1][3] == [["method", "GET", "path", "/"]]


@pytest.mark.parametrize("kind", ["lifespan", "of the future"])
def test_other_scopes_pass(played, ac, kind):
    async def app(scope, receive, send):
        await send({"type": scope["type"]})

    assert call(Middleware(app, ac), {"type": kind}) == [{"type": kind}] and played.seen == []


def test_exempt_requests_and_redirects_stay_as_they_are(played, ac):
    assert call(Middleware(plain, ac, exempt=lambda scope: True)) == call(plain) and played.seen == []

    async def moved(scope, receive, send):
        await send({"type": "http.response.start", "status": 307, "headers": []})
        await send({"type": "http.response.body"})

    assert call(Middleware(moved, ac)) == call(moved)


def test_a_refusal_to_head_has_no_body(played, ac):
    played.script = limit
    start, body = call(Middleware(plain, ac), method="HEAD")
    assert start["status"] == 429 and body["body"] == b"" and dict(start["headers"])[b"content-length"] != b"0"


async def own(scope, receive, send):
    await send({"type": "http.response.start", "status": 420, "headers": []})
    await send({"type": "http.response.body", "body": b"own"})


async def later(scope, decision):
    return 420, [("Content-Type", "text/plain")], b"own"


@pytest.mark.parametrize("on_refused", [lambda s, d: (420, [], b"own"), lambda s, d: own, later])
def test_on_refused(played, ac, on_refused):
    played.script = limit
    start, body = call(Middleware(plain, ac, on_refused=on_refused))
    assert (start["status"], body["body"], dict(start["headers"])[b"retry-after"]) == (420, b"own", b"1")


@pytest.mark.parametrize("name", ["user", "attributes", "cost", "priority", "exempt", "on_refused", "on_failure"])
def test_a_function_that_raises_is_left_out_of_the_check(played, ac, caplog, name):
    played.script = limit

    def broken(*_):
        raise KeyError("secret-user-name")

    middleware = Middleware(plain, ac, **({"on_failure": "refuse"} | {name: broken}))
    for _ in range(3):
        start, _ = call(middleware)
        assert start["status"] == 429 and (b"content-type", b"application/problem+json") in start["headers"]
    assert ac.stats()["missed"] == {"callback": 3} and len(caplog.messages) == 1 and "secret" not in caplog.text


@pytest.mark.parametrize("odd", ["text", "", 7, False, [1, 2], ["ab"], [("a", "b")], []])
def test_attributes_that_are_no_mapping_are_absent(played, ac, caplog, odd):
    middleware = Middleware(plain, ac, attributes=lambda scope: odd)
    assert [call(middleware)[0]["status"] for _ in range(2)] == [200, 200]
    call(Middleware(plain, ac, attributes=lambda scope: None))
    sent = [message[3] for message in played.seen if message[0] == 1]
    assert "path" in sent[0][0] and sent == [sent[2]] * 3
    assert ac.stats()["missed"] == {"callback": 2}
    kind = type(odd).__name__
    said = f"tidegate: attributes returned {kind}, not a mapping: such requests are checked without it"
    assert caplog.messages == [said]


def test_the_wrong_kind_of_client_raises(ac, client):
    from tidegate import wsgi

    with pytest.raises(TypeError, match="AsyncClient"):
        Middleware(plain, client)
    with pytest.raises(TypeError, match="a Client"):
        wsgi.Middleware(plain, ac)


def test_instrument_and_outcome_may_raise(played, ac, caplog):
    def broken(*_):
        raise KeyError("secret-user-name")

    played.script = grant
    start, *_ = call(Middleware(plain, ac, instrument=broken, outcome=broken))
    assert start["status"] == 200 and played.releases() == [[77, 0]] and "secret" not in caplog.text


def test_instrument_and_outcome(played, ac):
    played.script, calls = grant, []
    options = {"instrument": lambda decision, took: calls.append((decision.rule, took))}
    call(Middleware(plain, ac, outcome=lambda status: "error" if status == 200 else None, **options))
    [(rule, took)] = calls
    assert rule == "per-user" and 0 < took < PATIENT and played.releases() == [[77, 1]]


@pytest.mark.parametrize(
    ("on_failure", "path", "status"),
    [
        ("allow", "/", 200),
        ("refuse", "/", 503),
        (lambda scope: "refuse" if scope["path"] == "/login" else "allow", "/login", 503),
        ([("/health", "allow"), ("/", "refuse")], "/health/live", 200),
        ([("/health", "allow"), ("/", "refuse")], "/orders", 503),
        ([("/login", "refuse")], "/orders", 200),
    ],
)
def test_without_a_daemon(make_client, on_failure, path, status):
    ac = tidegate.AsyncClient("/nowhere")
    for _ in range(5):
        assert call(Middleware(plain, ac, on_failure=on_failure), path=path)[0]["status"] == status


# -- leases ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("status", "outcome"), [(200, 0), (404, 1), (503, 1)])
def test_the_lease_ends_with_the_last_body_before_background_tasks(played, ac, status, outcome):
    played.script, at = grant, []

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b"1", "more_body": True})
        await ac.check()
        at.append(played.releases(0))
        await send({"type": "http.response.body", "body": b"2"})
        await ac.check()
        at.append(played.releases(0))

    call(Middleware(app, ac))
    assert at == [[], [[77, outcome]]] and len(played.releases()) == 1


@pytest.mark.parametrize("when", ["at once", "in the body", "when it is sent", "cancelled", "silent"])
def test_the_lease_ends_with_whatever_ends_the_request(played, ac, when):
    played.script = grant

    async def app(scope, receive, send):
        if when == "at once":
            raise LookupError
        if when == "silent":
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"1", "more_body": True})
        raise asyncio.CancelledError if when == "cancelled" else LookupError

    class Gone(list):
        def append(self, message):
            raise LookupError

    async def main(messages):
        async def send(message):
            messages.append(message)

        with contextlib.suppress(LookupError, asyncio.CancelledError):
            await Middleware(app, ac)(dict(HTTP), None, send)
        await ac.check()

    asyncio.run(main(Gone() if when == "when it is sent" else []))
    assert played.releases() == [[77, 2]]


def test_a_wait_does_not_delay_other_requests(played, ac):
    played.script = lambda connection, message: [1, message[1], 3, "hooks", 21, 1, 20, 1, 300_000]
    started = []

    async def app(scope, receive, send):
        started.append(asyncio.get_running_loop().time())
        await plain(scope, receive, send)

    async def main():
        async def send(message):
            pass

        before = asyncio.get_running_loop().time()
        await asyncio.gather(*(Middleware(app, ac)(dict(HTTP), None, send) for _ in range(10)))
        return before

    before = asyncio.run(main())
    assert min(started) - before >= 0.3 and max(started) - before < 10 * 0.3


# -- WebSockets --------------------------------------------------------------------------------------------------------


def test_a_websocket_holds_its_lease_until_it_ends(played, ac):
    played.script = grant

    async def app(scope, receive, send):
        await send({"type": "websocket.accept"})
        await ac.check()
        assert played.releases(0) == []

    assert call(Middleware(app, ac), SOCKET) == [{"type": "websocket.accept"}]
    assert played.releases() == [[77, 0]]


def test_a_refused_websocket_is_closed_before_it_is_accepted(played, ac):
    played.script = limit
    assert call(Middleware(plain, ac), SOCKET) == [{"type": "websocket.close", "code": 1013, "reason": ""}]


def test_a_refused_websocket_gets_a_response_if_supported(played, ac):
    played.script = limit
    start, body = call(Middleware(plain, ac), SOCKET, extensions={"websocket.http.response": {}})
    assert (start["type"], start["status"]) == ("websocket.http.response.start", 429)
    assert dict(start["headers"])[b"retry-after"] == b"1" and json.loads(body["body"])["status"] == 429


def test_the_application_sees_the_decision_despite_garbage(played, ac):
    played.script = lambda connection, message: frame(b"\xc1")
    seen = []

    async def app(scope, receive, send):
        seen.append(scope["tidegate.decision"].reason)
        await plain(scope, receive, send)

    assert call(Middleware(app, ac)) == call(plain) and seen == ["protocol"]
