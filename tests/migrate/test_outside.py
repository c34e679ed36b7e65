"""Statements of docs/migrate on the old limiters that no command there shows: failures, proxies, routes."""

import asyncio
import subprocess
import sys

import pytest

from needs import need
from servers import free_port


@pytest.fixture
def nowhere():
    """The address of a missing Redis."""
    return f"redis://127.0.0.1:{free_port()}"


def flask_app(**options):
    import flask
    import flask_limiter
    from flask_limiter.util import get_remote_address

    app = flask.Flask(__name__)
    limiter = flask_limiter.Limiter(get_remote_address, app=app, **options)
    app.get("/")(limiter.limit("5/hour")(lambda: "here"))
    return app.test_client()


def test_flask_limiter_without_its_redis(nowhere):
    need(modules=["flask_limiter", "redis"])
    assert flask_app(storage_uri=nowhere).get("/").status_code == 500
    assert flask_app(storage_uri=nowhere, swallow_errors=True).get("/").status_code == 200
    fallen_back = flask_app(storage_uri=nowhere, in_memory_fallback_enabled=True)
    assert [fallen_back.get("/").status_code for _ in range(6)] == [200] * 5 + [429]


def test_flask_limiter_sends_no_headers_by_default():
    need(modules=["flask_limiter"])
    plain, with_headers = (flask_app(storage_uri="memory://", headers_enabled=each) for each in (False, True))
    answers = [plain.get("/") for _ in range(6)]
    assert answers[-1].status_code == 429
    assert not any({"X-RateLimit-Limit", "Retry-After"} & set(answer.headers.keys()) for answer in answers)
    assert {"X-RateLimit-Limit", "X-RateLimit-Reset", "Retry-After"} <= set(with_headers.get("/").headers.keys())


def test_flask_limiter_limits_routes_only(daemon, make_client):
    """`protect` also checks requests without a route, unless they are exempt."""
    need(modules=["flask_limiter"])
    import tidegate.flask

    (daemon.rules / "web.yaml").write_text("domain: web\nlimits: [{name: r, key: [ip], rate: 1/h, burst: 3}]\n")
    daemon.start()
    client = make_client(socket=daemon.socket)
    for options, last in (({}, 429), ({"exempt": lambda request: request.url_rule is None}, 404)):
        made = flask_app(storage_uri="memory://", application_limits=["3/hour"])
        tidegate.flask.protect(made.application, client, **options)
        assert [made.get("/nothing").status_code for _ in range(4)][-1] == last
    alone = flask_app(storage_uri="memory://", application_limits=["3/hour"])
    assert {alone.get("/nothing").status_code for _ in range(5)} == {404}


def slow_app(middleware=False, **options):
    from fastapi import FastAPI, Request
    from slowapi import Limiter, _rate_limit_exceeded_handler
    from slowapi.errors import RateLimitExceeded
    from slowapi.middleware import SlowAPIASGIMiddleware
    from slowapi.util import get_remote_address

    app = FastAPI()
    app.state.limiter = limiter = Limiter(key_func=get_remote_address, **options)
    app.add_exception_handler(RateLimitExceeded, _rate_limit_exceeded_handler)
    if middleware:
        app.add_middleware(SlowAPIASGIMiddleware)

    async def here(request: Request):
        return "here"

    async def plain(request: Request):
        return "plain"

    app.get("/")(limiter.limit("5/hour")(here))
    app.get("/plain")(plain)
    return app


def asked(app, path="/"):
    """Returns the status of an ASGI application; 500 for an exception, as its server does."""
    scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b""}
    scope |= {"client": ("192.0.2.1", 1), "server": ("x", 80), "scheme": "http", "http_version": "1.1", "headers": ()}
    sent = []

    async def receive():
        return {"type": "http.request", "body": b""}

    async def send(message):
        sent.append(message)

    async def call():
        try:
            await app(scope, receive, send)
        except Exception:
            return 500
        return sent[0]["status"]

    return asyncio.run(call())


def test_slowapi_without_its_redis(nowhere):
    need(modules=["slowapi", "fastapi", "redis"])
    assert asked(slow_app(storage_uri=nowhere)) == 500
    assert asked(slow_app(storage_uri=nowhere, swallow_errors=True)) == 500
    fallen_back = slow_app(storage_uri=nowhere, in_memory_fallback_enabled=True)
    assert [asked(fallen_back) for _ in range(6)] == [200] * 5 + [429]


def test_slowapi_has_no_application_limits_for_decorated_routes():
    need(modules=["slowapi", "fastapi"])
    app = slow_app(middleware=True, application_limits=["1/hour"])
    assert [asked(app, "/plain") for _ in range(2)] == [200, 429]
    assert [asked(app) for _ in range(6)] == [200] * 5 + [429]


def test_slowapi_believes_a_header_with_underscores():
    need(modules=["slowapi"])
    from slowapi.util import get_ipaddr
    from starlette.requests import Request

    for name, address in ((b"x_forwarded_for", "made up"), (b"x-forwarded-for", "192.0.2.1")):
        scope = {"type": "http", "headers": [(name, b"made up")], "client": ("192.0.2.1", 1)}
        assert get_ipaddr(Request(scope)) == address


DJANGO = """
import sys
from django.conf import settings
cache = {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": sys.argv[1]}
settings.configure(CACHES={"default": cache}, RATELIMIT_FAIL_OPEN=True)
import redis
from django.test import RequestFactory
from django_ratelimit.decorators import ratelimit

view = ratelimit(key="ip", rate="5/h")(lambda request: "here")
for address in ("192.0.2.1", ""):
    try:
        view(RequestFactory().get("/", REMOTE_ADDR=address))
    except Exception as error:
        print(isinstance(error, redis.exceptions.ConnectionError), "REMOTE_ADDR is empty" in str(error))
"""


def test_django_ratelimit_without_its_cache(nowhere):
    """In another process, since Django's settings are global."""
    need(modules=["django_ratelimit", "redis"])
    command = [sys.executable, "-c", DJANGO, nowhere]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert output == "True False\nFalse True\n"


RACK = """
require "redis"
require "rack/attack"
Rack::Attack.throttle("r", limit: 1, period: 3600) { |request| request.ip }
app = Rack::Attack.new(->(_) { [200, {}, ["here"]] })
ask = -> { app.call({ "PATH_INFO" => "/login/", "REQUEST_METHOD" => "GET", "REMOTE_ADDR" => "192.0.2.1" }).first }
begin
  ask.call
rescue Rack::Attack::MissingStoreError
  print "missing "
end
Rack::Attack.cache.store = Redis.new(url: ARGV[0], reconnect_attempts: 0)
print ask.call, " ", ask.call, " "
env = { "REMOTE_ADDR" => "10.0.0.1", "HTTP_X_FORWARDED_FOR" => "192.0.2.9" }
print Rack::Attack::Request.new(env).ip
"""


def test_rack_attack_without_its_redis_and_behind_a_private_address(nowhere):
    need(programs=["ruby"], libraries=["rack/attack", "redis"])
    command = ["ruby", "-W0", "-e", RACK, nowhere]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert output == "missing 200 200 192.0.2.9"
