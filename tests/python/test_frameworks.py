"""The middlewares in real applications of their frameworks, under real servers, with the real daemon.

Each application has the same routes: open, raising, streaming, slow under a lease;
and a background task if its framework has them. Tests refusals, headers, and that no lease remains.
"""

import concurrent.futures
import contextlib
import json
import signal
import socket
import time

import pytest

from servers import get, gunicorn, uvicorn, wait_until

MAX = 4
RULES = f"""
domain: api
limits: [{{name: per-user, key: [user], rate: 1/min, burst: 12}}]
concurrency: [{{name: at-once, key: [], max: {MAX}, expires: 1h}}]
"""
ASGI = """
import asyncio, tidegate
from tidegate.asgi import Middleware

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        return await send({"type": "lifespan.shutdown.complete"})
    path = scope["path"]
    if path == "/boom":
        raise RuntimeError("mine")
    if path == "/slow":
        await asyncio.sleep(0.5)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    for _ in range(500 if path == "/stream" else 1):
        await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
    await send({"type": "http.response.body", "body": path.encode()})
    if path == "/background":
        await asyncio.sleep(30)

app = Middleware(app, tidegate.AsyncClient(), domain="api", user=lambda scope: dict(scope["headers"]).get(b"x-user"))
"""
FASTAPI = """
import asyncio, tidegate, tidegate.fastapi
from fastapi import BackgroundTasks, Depends, FastAPI
from fastapi.responses import PlainTextResponse, StreamingResponse

client = tidegate.AsyncClient()
held = tidegate.fastapi.limit(client, "api", user=lambda request: request.headers.get("x-user"))
app = FastAPI(dependencies=[Depends(held)])
app.add_exception_handler(tidegate.fastapi.Refused, tidegate.fastapi.answer)

@app.get("/boom")
async def boom():
    raise RuntimeError("mine")

@app.get("/slow")
async def slow():
    await asyncio.sleep(0.5)
    return {}

@app.get("/stream")
async def stream():
    return StreamingResponse(b"x" * 65536 for _ in range(500))

@app.get("/background")
async def background(tasks: BackgroundTasks):
    tasks.add_task(asyncio.sleep, 30)
    return PlainTextResponse("/background")

@app.get("/{path:path}")
async def open_to_all(path: str):
    return {"path": path}
"""
STARLETTE = """
import asyncio, tidegate
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route
import tidegate.asgi

async def answer(request):
    path = request.url.path
    if path == "/boom":
        raise RuntimeError("mine")
    if path == "/slow":
        await asyncio.sleep(0.5)
    if path == "/stream":
        return StreamingResponse(b"x" * 65536 for _ in range(500))
    return PlainTextResponse(path, background=BackgroundTask(asyncio.sleep, 30) if path == "/background" else None)

user = lambda scope: dict(scope["headers"]).get(b"x-user")
limits = Middleware(tidegate.asgi.Middleware, client=tidegate.AsyncClient(), domain="api", user=user)
app = Starlette(routes=[Route("/{path:path}", answer)], middleware=[limits])
"""
FLASK = """
import time, flask, tidegate, tidegate.flask

app = flask.Flask(__name__)
tidegate.flask.protect(app, tidegate.Client(), domain="api", user=lambda request: request.headers.get("X-User"))

@app.get("/<path:path>")
def answer(path):
    if path == "boom":
        raise RuntimeError("mine")
    if path == "slow":
        time.sleep(0.5)
    if path == "stream":
        return flask.Response(b"x" * 65536 for _ in range(500))
    return path
"""
FLASK_VIEW = FLASK.replace("tidegate.flask.protect(app, ", "limited = tidegate.flask.limit(").replace(
    '@app.get("/<path:path>")\n', '@app.get("/<path:path>")\n@limited\n'
)
DJANGO = """
import asyncio, time, django, tidegate
from django.conf import settings
from django.http import HttpResponse, StreamingHttpResponse
from django.urls import re_path

settings.configure(
    ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__, SECRET_KEY="x", MIDDLEWARE=["tidegate.django.Middleware"],
    TIDEGATE={"domain": "api", "user": lambda request: request.headers.get("X-User")}, LOGGING_CONFIG=None,
)

def answer(request):
    if request.path == "/boom":
        raise RuntimeError("mine")
    if request.path == "/slow":
        time.sleep(0.5)
    if request.path == "/stream":
        return StreamingHttpResponse(b"x" * 65536 for _ in range(500))
    return HttpResponse(request.path)

async def answer_async(request):
    if request.path == "/boom":
        raise RuntimeError("mine")
    if request.path == "/slow":
        await asyncio.sleep(0.5)
    async def many():
        for _ in range(500):
            yield b"x" * 65536
    return StreamingHttpResponse(many()) if request.path == "/stream" else HttpResponse(request.path)

urlpatterns = [re_path("", answer)]
from django.core.wsgi import get_wsgi_application
app = get_wsgi_application()
"""
DJANGO_ASGI = DJANGO.replace('re_path("", answer)', 're_path("", answer_async)').replace("wsgi", "asgi")
DJANGO_ROUTES = DJANGO.replace('TIDEGATE={', 'TIDEGATE={"route": True, ').replace(
    're_path("", answer)', 'path("v1/orders/<int:number>", answer), path("v1/orders", answer)'
)
DJANGO_ROUTES = DJANGO_ROUTES.replace("import re_path", "import path").replace("(request)", "(request, number=0)")
DJANGO_ROUTES = DJANGO_ROUTES.replace("lambda request, number=0", "lambda request")
THREADS = ("--threads", "8", "--workers", "1")
APPLICATIONS = {
    "asgi": (uvicorn, ASGI, ()),
    "fastapi": (uvicorn, FASTAPI, ()),
    "starlette": (uvicorn, STARLETTE, ()),
    "flask": (gunicorn, FLASK, THREADS),
    "flask_view": (gunicorn, FLASK_VIEW, THREADS),
    "django": (gunicorn, DJANGO, THREADS),
    "django_asgi": (uvicorn, DJANGO_ASGI, ()),
    "asgi_uvloop": (uvicorn, ASGI, ("--loop", "uvloop")),
}


@pytest.fixture
def asking(daemon, make_client):
    """A client that reads the number of free permits."""
    (daemon.rules / "api.yaml").write_text(RULES)
    daemon.start()
    return make_client(socket=daemon.socket)


def all_free(client):
    wait_until(lambda: client.peek("api").remaining == MAX and client.peek("api").rule == "at-once")


def hang_up(port, path, user):
    """A caller that hangs up in the middle of the response."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nX-User: {user}\r\n\r\n".encode())
        assert connection.recv(1_000)


def at_once(port, path, count):
    """Returns the statuses of concurrent requests."""
    with concurrent.futures.ThreadPoolExecutor(count) as callers:
        return list(callers.map(lambda i: get(port, f"caller{i}", path)[0], range(count)))


@pytest.mark.parametrize("name", APPLICATIONS)
def test_a_real_application(daemon, directory, asking, name):
    if "uvloop" in name:
        pytest.importorskip("uvloop")
    server, app, options = APPLICATIONS[name]
    with server(daemon, directory, app, *options) as port:
        answers = [get(port, "greedy", "/v1/orders") for _ in range(14)]
        assert [status for status, _, _ in answers] == [200] * 12 + [429] * 2
        fields = {key.lower(): value for key, value in answers[0][1].items()}
        assert fields["ratelimit-policy"] in ('"per-user";q=12;w=720', '"at-once";q=4;qu="concurrent-requests"')
        _, fields, body = answers[-1]
        fields = {key.lower(): value for key, value in fields.items()}
        assert fields["content-type"].startswith("application/problem+json")
        assert 1 <= int(fields["retry-after"]) <= 60 and fields["x-ratelimit-remaining"] == "0"
        assert json.loads(body)["violated-policies"] == ["per-user"]
        assert get(port, "other", "/v1/orders")[0] == 200
        for turn in range(MAX + 1):
            assert get(port, f"raises{turn}", "/boom")[0] == 500
            hang_up(port, "/stream", f"away{turn}")
            assert get(port, f"reads{turn}", "/stream")[0] == 200
        all_free(asking)
        assert sorted(at_once(port, "/slow", MAX + 2)) == [200] * MAX + [429] * 2
        all_free(asking)
        daemon.stop(kill=True)
        assert {get(port, "greedy", "/v1/orders")[0] for _ in range(5)} == {200}


@pytest.mark.parametrize("name", ["asgi", "fastapi", "starlette"])
def test_background_tasks_have_no_lease(daemon, directory, asking, name):
    with uvicorn(daemon, directory, APPLICATIONS[name][1], "--timeout-graceful-shutdown", "1") as port:
        for turn in range(2 * MAX):
            with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
                connection.sendall(f"GET /background HTTP/1.1\r\nHost: x\r\nX-User: b{turn}\r\n\r\n".encode())
                data = b""
                while b"/background" not in data:
                    data += connection.recv(65_536)
                assert data.startswith(b"HTTP/1.1 200"), data[:100]
            all_free(asking)


@pytest.mark.parametrize("server", [gunicorn, uvicorn])
def test_django_sends_the_route_if_configured(daemon, directory, make_client, server):
    rules = ["{name: by-route, key: [route], rate: 1/min, burst: 2}", "{name: all, key: [], rate: 1/min, burst: 99}"]
    (daemon.rules / "api.yaml").write_text(f"domain: api\nlimits: [{', '.join(rules)}]\n")
    daemon.start()
    app = DJANGO_ROUTES if server is gunicorn else DJANGO_ROUTES.replace("wsgi", "asgi")
    with server(daemon, directory, app) as port:
        assert [get(port, "u1", f"/v1/orders/{number}")[0] for number in range(3)] == [200, 200, 429]
        status, fields, _ = get(port, "u1", "/v1/nothing")
        assert status == 404 and "ratelimit" in {name.lower() for name in fields}  # it was checked, without a route
    asking = make_client(socket=daemon.socket)
    left = {route: asking.peek("api", {"route": route}).remaining for route in ("v1/orders", "v1/orders/<int:number>")}
    assert left["v1/orders"] < 2 and left["v1/orders/<int:number>"] == 0


def test_slow_replies_do_not_block_the_loop(daemon, directory, asking):
    """A stopped daemon delays each request by its own deadline only."""
    with uvicorn(daemon, directory, ASGI) as port:
        daemon.process.send_signal(signal.SIGSTOP)
        try:
            started = time.monotonic()
            assert at_once(port, "/", 20) == [200] * 20
            assert time.monotonic() - started < 20 * 0.25  # the time if they waited one after the other
        finally:
            with contextlib.suppress(ProcessLookupError):
                daemon.process.send_signal(signal.SIGCONT)
