"""The middleware under the rules of WSGI."""

import io
import json
import time
from wsgiref.util import FileWrapper, setup_testing_defaults
from wsgiref.validate import validator

import pytest
from daemons import ALLOW, LIMIT, frame

import tidegate
from tidegate.http import client_address
from tidegate.wsgi import Middleware, path


def plain(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain"), ("X-App", "1")])
    return [b"hello"]


def call(app, validate=True, **environ):
    """Returns status, headers and body. Validates both sides of `app`, a Middleware, by the rules of WSGI."""
    setup_testing_defaults(environ)
    environ = {"REMOTE_ADDR": "192.0.2.1", "QUERY_STRING": "", "SCRIPT_NAME": ""} | environ
    started = []

    def start_response(status, headers, exc_info=None):
        started[:] = [status, headers]
        return lambda data: None

    if validate:
        app.app = validator(app.app)
    body = (validator(app) if validate else app)(environ, start_response)
    try:
        content = b"".join(body)
    finally:
        if hasattr(body, "close"):
            body.close()
    names = [name.lower() for name, _ in started[1]]
    assert len(set(names)) == len(names)
    return started[0], dict(started[1]), content


def limit(connection, message):
    return [1, message[1], *LIMIT]


def grant(connection, message):
    return [2, message[1], True] if message[0] == 2 else [1, message[1], *ALLOW, 77]


def test_an_allowed_request_gets_limit_headers(played, client):
    status, fields, body = call(Middleware(plain, client, domain="api"))
    assert (status, body) == ("200 OK", b"hello")
    assert fields == {
        "Content-Type": "text/plain",
        "X-App": "1",
        "RateLimit": '"per-user";r=39;t=1',
        "RateLimit-Policy": '"per-user";q=40;w=2',
        "X-Ratelimit-Limit": "40",
        "X-Ratelimit-Remaining": "39",
    }


def test_a_refused_request_does_not_reach_the_application(played, client):
    played.script = limit
    status, fields, body = call(Middleware(lambda *_: 1 / 0, client))
    assert status == "429 Too Many Requests"
    assert fields["Content-Type"] == "application/problem+json"
    assert fields["Retry-After"] == fields["X-Ratelimit-Retry-After"] == "1"
    assert int(fields["Content-Length"]) == len(body)
    assert json.loads(body)["violated-policies"] == ["per-user"]
    status, fields, body = call(Middleware(plain, client), REQUEST_METHOD="HEAD")
    assert status.startswith("429") and body == b"" and int(fields["Content-Length"]) > 0


@pytest.mark.parametrize(("verdict", "status"), [(2, "503 Service Unavailable"), (4, "403 Forbidden")])
def test_other_refusals(played, client, verdict, status):
    played.script = lambda connection, message: [1, message[1], verdict, "x", None, None, None, None, 10]
    assert call(Middleware(plain, client))[0] == status


def test_sends_the_request(played, client):
    middleware = Middleware(
        plain,
        client,
        domain="api",
        user=lambda environ: environ.get("HTTP_X_USER"),
        attributes=lambda environ: {"plan": "free", "user_agent": None},
        cost=lambda environ: int(environ["QUERY_STRING"]),
        priority=lambda environ: "post",
    )
    fields = {"HTTP_X_USER": "u1", "HTTP_USER_AGENT": "curl", "QUERY_STRING": "5", "PATH_INFO": "//v1/./a%2Fb/../é"}
    fields["PATH_INFO"] = fields["PATH_INFO"].encode().decode("latin-1")
    call(middleware, REQUEST_METHOD="PUT", SCRIPT_NAME="/app", **fields)
    pairs = ["method", "PUT", "path", "/app/v1/é", "ip", "192.0.2.1", "user", "u1", "plan", "free"]
    assert played.seen[1][2:] == ["api", [pairs], 5, "post"]


def test_sends_cost_and_priority_without_empty_attributes(played, client):
    call(Middleware(plain, client, cost={"requests": 1, "tokens": 2}, priority="get"), REMOTE_ADDR="")
    assert played.seen[1][2:] == ["web", [["method", "GET", "path", "/"]], {"requests": 1, "tokens": 2}, "get"]


def test_exempt_requests_are_not_checked(played, client):
    middleware = Middleware(plain, client, exempt=lambda environ: environ["PATH_INFO"] == "/healthz")
    assert set(call(middleware, PATH_INFO="/healthz")[1]) == {"Content-Type", "X-App"}
    assert played.seen == []


def test_the_application_sees_the_decision(played, client):
    def app(environ, start_response):
        assert environ["tidegate.decision"].remaining == 39
        return plain(environ, start_response)

    assert call(Middleware(app, client))[0] == "200 OK"


@pytest.mark.parametrize(("status", "there"), [("301 Moved Permanently", False), ("404 Not Found", True)])
def test_redirects_have_no_limit_headers(played, client, status, there):
    def app(environ, start_response):
        start_response(status, [("Content-Type", "text/plain"), ("Location", "/")])
        return [b""]

    assert ("RateLimit" in call(Middleware(app, client))[1]) is there


def test_keeps_headers_of_the_application(played, client):
    def app(environ, start_response):
        start_response("200 OK", [("Content-Type", "text/plain"), ("ratelimit", "mine"), ("X-RateLimit-Limit", "9")])
        return [b""]

    fields = call(Middleware(app, client))[1]
    assert fields["ratelimit"] == "mine" and fields["X-RateLimit-Limit"] == "9" and "RateLimit-Policy" in fields
    assert "RateLimit" not in fields and "X-Ratelimit-Limit" not in fields


@pytest.mark.parametrize("style", ["none", "draft", "legacy"])
def test_styles(played, client, style):
    fields = call(Middleware(plain, client, headers=style))[1]
    assert ("RateLimit" in fields, "X-Ratelimit-Limit" in fields) == (style == "draft", style == "legacy")


def test_unusable_options_raise(client):
    for options, said in (
        ({"headers": "all"}, "headers is both or draft or legacy or none, not 'all'"),
        ({"on_failure": "deny"}, "on_failure is allow or refuse, not 'deny'"),
        ({"on_failure": [("/", "deny")]}, "on_failure is allow or refuse, not 'deny'"),
        ({"trusted_proxies": ["10.0.0.0/99"]}, "10.0.0.0/99"),
    ):
        with pytest.raises(ValueError, match=said):
            Middleware(plain, client, **options)


def test_a_function_that_returns_another_action_refuses(played, client, caplog):
    assert call(Middleware(plain, client, on_failure=lambda environ: "deny"))[0].startswith("503")
    said = "tidegate: on_failure is allow or refuse, not 'deny'; such requests are refused (invalid)"
    assert caplog.messages == [said]
    assert call(Middleware(plain, client, on_failure=lambda environ: None))[0] == "200 OK"


@pytest.mark.parametrize("forwarded", [{}, {"HTTP_X_FORWARDED_FOR": "203.0.113.9"}])
@pytest.mark.parametrize("options", [{}, {"trusted_proxies": 1}, {"trusted_proxies": ["10.0.0.0/8"]}])
def test_a_peer_on_a_unix_socket_without_an_address_is_logged(played, client, caplog, forwarded, options):
    middleware = Middleware(plain, client, **options)
    for _ in range(2):
        call(middleware, REMOTE_ADDR="", **forwarded)
    assert ("ip" in played.requests()[-1][3][0]) is bool(options and forwarded)
    said = "tidegate: requests over a Unix socket have no `ip`: rules by ip do not judge them; "
    said += "help: set trusted_proxies, and let the proxy send X-Forwarded-For"
    assert caplog.messages == ([] if options and forwarded else [said])


@pytest.mark.parametrize("wrong", ["api", None, tidegate.Client, tidegate.AsyncClient("/nowhere"), lambda: None])
def test_another_object_as_client_raises(wrong):
    with pytest.raises(TypeError, match="this takes a Client"):
        Middleware(plain, wrong)


# -- refusals of the application's own ---------------------------------------------------------------------------------


def own_app(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"instead"]


@pytest.mark.parametrize(
    ("on_refused", "status", "body"),
    [
        (lambda e, d: ("420 Calm", [("Content-Type", "text/plain")], d.message.encode()[:4]), "420 Calm", b"Over"),
        (lambda e, d: own_app, "200 OK", b"instead"),
        (lambda e, d: None, "429 Too Many Requests", None),
    ],
)
def test_on_refused(played, client, on_refused, status, body):
    played.script = limit
    got = call(Middleware(plain, client, on_refused=on_refused))
    assert got[0] == status and got[1]["Retry-After"] == "1"
    assert body is None or got[2] == body


# -- failures that must not reach the application ----------------------------------------------------------------------


NAMES = ["user", "attributes", "descriptors", "cost", "priority", "exempt", "on_failure", "on_refused"]


@pytest.mark.parametrize("name", NAMES)
def test_a_function_that_raises_is_left_out_of_the_check(played, client, caplog, name):
    played.script = limit

    def broken(*_):
        raise KeyError("secret-user-name")

    middleware = Middleware(plain, client, **({"on_failure": "refuse"} | {name: broken}))
    for _ in range(3):
        status, fields, _ = call(middleware, validate=False)
        assert (status, fields["Content-Type"]) == ("429 Too Many Requests", "application/problem+json")
    assert client.stats()["missed"] == {"callback": 3}
    assert len(caplog.messages) == 1 and f"{name} raised KeyError" in caplog.text and "secret" not in caplog.text
    assert f"{__file__}:{broken.__code__.co_firstlineno + 1}:" in caplog.text  # the line of the function
    client.hit("api")
    assert sum(message[6]["missed"]["callback"] for message in played.seen if len(message) == 7) == 3


def test_an_attribute_that_raises_is_absent_and_the_others_are_sent(played, client, caplog):
    def user(environ):
        return environ["session"]["user"]

    attributes = {"plan": lambda environ: environ["plan"], "org": lambda environ: "o1"}
    call(Middleware(plain, client, user=user, attributes=attributes))
    [message] = [one for one in played.seen if one[0] == 1]
    sent = dict(zip(message[3][0][::2], message[3][0][1::2]))
    assert sent["org"] == "o1" and sent["ip"] and not sent.keys() & {"user", "plan"}
    assert [line.split(" at ")[0] for line in caplog.messages] == [
        "tidegate: user raised KeyError",
        'tidegate: attributes["plan"] raised KeyError',
    ]
    assert all(line.endswith(": such requests are checked without it") for line in caplog.messages)


def test_a_function_that_raises_does_not_replace_on_failure(make_client):
    client = make_client(socket="/nowhere")
    middleware = Middleware(plain, client, on_failure="refuse", user=lambda environ: environ["user"])
    assert call(middleware)[0] == "503 Service Unavailable"
    assert client.stats()["missed"] == {"callback": 1, "unreachable": 1}


@pytest.mark.parametrize("name", ["user", "exempt", "descriptors", "outcome", "on_refused", "instrument"])
def test_an_option_that_is_no_function_raises(client, name):
    with pytest.raises(TypeError, match=f"{name} is a function, as in {name}=lambda …, not str"):
        Middleware(plain, client, **{name: "u1"})


def test_an_unknown_option_names_the_function_and_the_nearest_option(client):
    said = r"Middleware\(\) got an unexpected keyword argument 'users'; did you mean 'user'\?"
    with pytest.raises(TypeError, match=said):
        Middleware(plain, client, users=lambda environ: "u1")
    flask = pytest.importorskip("flask")
    import tidegate.flask

    with pytest.raises(TypeError, match=said.replace("Middleware", "protect")):
        tidegate.flask.protect(flask.Flask("x"), client, "shop", users=lambda request: "u1")
    with pytest.raises(TypeError, match=r"limited\(\) .* did you mean 'on_failure'\?"):
        client.limited("shop", on_fail="refuse")


@pytest.mark.parametrize(("on_failure", "status"), [("allow", "200 OK"), ("refuse", "503 Service Unavailable")])
def test_without_a_daemon(make_client, on_failure, status):
    middleware = Middleware(plain, make_client(socket="/nowhere"), on_failure=on_failure)
    for _ in range(5):
        got = call(middleware)
        assert got[0] == status and "RateLimit" not in got[1]


def test_bytes_are_the_same_without_the_limiter(make_client):
    client = make_client(enabled=False)
    assert call(Middleware(plain, client)) == ("200 OK", {"Content-Type": "text/plain", "X-App": "1"}, b"hello")


def test_errors_of_the_application_pass(played, client):
    def app(environ, start_response):
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        call(Middleware(app, client), validate=False)
    with pytest.raises(RuntimeError, match="mine"):
        call(Middleware(app, client, exempt=lambda environ: True), validate=False)
    assert client.stats()["missed"] == {}


def test_passes_exc_info(played, client):
    def app(environ, start_response):
        start_response("200 OK", [("Content-Type", "text/plain")])
        try:
            raise RuntimeError
        except RuntimeError:
            import sys

            start_response("500 Oh", [("Content-Type", "text/plain")], sys.exc_info())
        return [b"oh"]

    status, fields, _ = call(Middleware(app, client))
    assert status == "500 Oh" and "RateLimit" in fields


# -- leases ------------------------------------------------------------------------------------------------------------


def test_sleeps_on_wait(played, client, monkeypatch):
    slept = []
    monkeypatch.setattr(time, "sleep", slept.append)
    played.script = lambda connection, message: [1, message[1], 3, "hooks", 21, 1, 20, 1, 250_000]
    assert call(Middleware(plain, client))[0] == "200 OK"
    assert slept == [0.25]


@pytest.mark.parametrize(
    ("status", "outcome"), [("200 OK", 0), ("302 Found", 0), ("399 Odd", 0), ("400 Bad", 1), ("500 Oh", 1)]
)
def test_the_lease_ends_with_the_body(played, client, status, outcome):
    played.script = grant

    def app(environ, start_response):
        start_response(status, [("Content-Type", "text/plain")])

        def body():
            assert played.releases(0) == []
            yield b"one"
            assert played.releases(0) == []

        return body()

    call(Middleware(app, client))
    assert played.releases() == [[77, outcome]]


def test_the_lease_ends_with_an_exception(played, client):
    played.script = grant

    def app(environ, start_response):
        raise RuntimeError

    with pytest.raises(RuntimeError):
        call(Middleware(app, client), validate=False)
    assert played.releases() == [[77, 2]]


def test_the_lease_ends_when_the_caller_hangs_up(played, client):
    played.script = grant
    closed = []

    class Body:
        def __iter__(self):
            return iter([b"one", b"two"])

        def close(self):
            closed.append(True)
            raise RuntimeError

    def app(environ, start_response):
        start_response("200 OK", [])
        return Body()

    body = Middleware(app, client)({"REQUEST_METHOD": "GET"}, lambda *_: None)
    assert next(iter(body)) == b"one"
    with pytest.raises(RuntimeError):
        body.close()
    assert closed and played.releases() == [[77, 2]]


def test_a_file_stays_a_file(played, client):
    def app(environ, start_response):
        start_response("200 OK", [])
        return FileWrapper(io.BytesIO(b"content"))

    assert isinstance(Middleware(app, client)({}, lambda *_: None), FileWrapper)


def test_a_failed_release_raises_nothing(played, client):
    played.script = lambda connection, message: connection.close() if message[0] == 2 else grant(connection, message)
    assert call(Middleware(plain, client))[0] == "200 OK"
    played.releases()
    played.script = lambda connection, message: frame(b"\xc1") if message[0] == 2 else grant(connection, message)
    assert call(Middleware(plain, client))[0] == "200 OK"
    assert client.stats()["missed"] == {}


# -- tables ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script_name", "path_info", "expected"),
    [
        ("", "/", "/"),
        ("", "", "/"),
        ("", "/a/b", "/a/b"),
        ("", "/a/b/", "/a/b/"),
        ("/app", "", "/app"),
        ("/app", "/", "/app/"),
        ("/app", "/x", "/app/x"),
        ("", "//a", "/a"),
        ("", "/a//b///c", "/a/b/c"),
        ("", "/a/./b", "/a/b"),
        ("", "/a/../b", "/b"),
        ("", "/../../a", "/a"),
        ("", "/a/b/..", "/a/"),
        ("", "/a/b/.", "/a/b/"),
        ("", "/a/..", "/"),
        ("", "/..", "/"),
        ("", "///", "/"),
        ("", "a", "/a"),
        ("", "*", "/*"),
        ("", "/.hidden", "/.hidden"),
        ("", "/a.../b", "/a.../b"),
        ("", "/%2e%2e/a", "/%2e%2e/a"),  # was %252e: decoded once, not twice
        ("", "/caf\u00c3\u00a9", "/café"),  # WSGI writes bytes as Latin-1
        ("", "/\u00ff", "/\ufffd"),
    ],
)
def test_paths(script_name, path_info, expected):
    assert path({"SCRIPT_NAME": script_name, "PATH_INFO": path_info}) == expected


ONE = ("10.0.0.0/8", "2001:db8::/32")


@pytest.mark.parametrize(
    ("peer", "forwarded", "proxies", "expected"),
    [
        ("10.0.0.1", "192.0.2.7", ONE, "192.0.2.7"),
        ("10.0.0.1", "192.0.2.7, 10.0.0.2", ONE, "192.0.2.7"),
        ("10.0.0.1", "203.0.113.9, 192.0.2.7, 10.0.0.2", ONE, "192.0.2.7"),  # the first may be forged by the caller
        ("192.0.2.1", "203.0.113.9", ONE, "192.0.2.1"),  # a peer that is no proxy is the caller
        ("10.0.0.1", "10.0.0.3, 10.0.0.2", ONE, "10.0.0.3"),  # all are trusted
        ("10.0.0.1", "unknown", ONE, "10.0.0.1"),
        ("10.0.0.1", "192.0.2.7, nonsense", ONE, "10.0.0.1"),
        ("10.0.0.1", "192.0.2.7:4711", ONE, "192.0.2.7"),
        ("10.0.0.1", "[2001:db9::7]:4711", ONE, "2001:db9::7"),
        ("10.0.0.1", '"[2001:db9:0:0::7]"', ONE, "2001:db9::7"),
        ("2001:db8::1", "2001:DB9:0:0:0:0:0:7", ONE, "2001:db9::7"),
        ("::ffff:10.0.0.1", "192.0.2.7", ONE, "192.0.2.7"),
        ("::ffff:192.0.2.1", "", ONE, "192.0.2.1"),  # an IPv4 peer of a dual-stack socket
        ("::ffff:192.0.2.1", "203.0.113.9", ONE, "192.0.2.1"),
        ("10.0.0.1", "::ffff:192.0.2.7", ONE, "192.0.2.7"),
        ("", "192.0.2.7", ONE, "192.0.2.7"),  # over a Unix socket
        ("", "192.0.2.7, 10.0.0.2", ONE, "192.0.2.7"),
        ("10.0.0.1", "203.0.113.9, 192.0.2.7", 1, "192.0.2.7"),
        ("10.0.0.1", "203.0.113.9, 192.0.2.7, 10.0.0.2", 2, "192.0.2.7"),
        ("10.0.0.1", "192.0.2.7", 5, "192.0.2.7"),
        ("10.0.0.1", "192.0.2.7", 0, "10.0.0.1"),
        ("", "192.0.2.7", 1, "192.0.2.7"),
        ("10.0.0.1", "nonsense", 1, "10.0.0.1"),
        ("10.0.0.1", ", ,", 1, "10.0.0.1"),
    ],
)
def test_trusted_proxies(played, client, peer, forwarded, proxies, expected):
    call(Middleware(plain, client, trusted_proxies=proxies), REMOTE_ADDR=peer, HTTP_X_FORWARDED_FOR=forwarded)
    pairs = played.seen[1][3][0]
    assert pairs[pairs.index("ip") + 1] == expected


def test_warns_once_of_an_untrusted_header(played, client, caplog):
    for _ in range(3):
        call(Middleware(plain, client), HTTP_X_FORWARDED_FOR="203.0.113.9")
    assert "203.0.113.9" not in str(played.seen)
    assert len(caplog.messages) == 1 and "trusted_proxies" in caplog.text
    assert client_address("192.0.2.1", "x" * 10_000, ()) == "192.0.2.1"
