"""Flask, FastAPI and Django in this process: sleep on WAIT, and a released lease at every end of a request.

Their real servers: tests/python/test_frameworks.py.
"""

import asyncio
import gc
import time

import pytest
from daemons import ALLOW, LIMIT, PATIENT
from test_asgi import HTTP, call

import tidegate

WAIT = 0.05


def grant(connection, message):
    return [1, message[1], *ALLOW, 77] if message[0] == 1 else [2, message[1], True]


def wait(connection, message):
    return [1, message[1], 3, *ALLOW[1:-1], int(WAIT * 1e6), 77]


def took(work):
    started = time.monotonic()
    work()
    return time.monotonic() - started


@pytest.fixture
def ac(directory, make_client):
    made = tidegate.AsyncClient(str(directory / "s"), timeout=PATIENT)
    yield made
    made.close()


# -- Flask -------------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["protect", "limit"])
def flask_app(request, client):
    flask = pytest.importorskip("flask")
    import tidegate.flask

    app = flask.Flask(__name__)
    app.config["kind"] = request.param
    limited = tidegate.flask.limit(client) if request.param == "limit" else lambda view: view
    if request.param == "protect":
        tidegate.flask.protect(app, client)

    @app.get("/<what>")
    @limited
    def view(what):
        if what.isdigit():
            flask.abort(int(what))
        return {"raise": lambda: 1 / 0, "file": lambda: flask.send_file(__file__)}.get(what, lambda: what)()

    return app


def test_flask_sleeps_on_wait(played, flask_app):
    played.script = wait
    assert took(lambda: flask_app.test_client().get("/x").close()) >= WAIT and played.releases() == [[77, 0]]


@pytest.mark.parametrize(("path", "outcome"), [("/x", 0), ("/404", 1), ("/503", 1)])
def test_flask_reports_the_outcome(played, flask_app, path, outcome):
    played.script = grant
    flask_app.test_client().get(path).close()
    assert played.releases() == [[77, outcome]]


def test_flask_has_the_decision_after_the_response(played, flask_app):
    import flask

    seen = []

    @flask_app.after_request
    def look(response):
        seen.append((response.status_code, flask.request.environ["tidegate.decision"].verdict))
        return response

    flask_app.test_client().get("/x").close()
    played.script = lambda connection, message: [1, message[1], *LIMIT]
    flask_app.test_client().get("/x").close()
    assert seen == [(200, "allow"), (429, "limit")]


@pytest.mark.parametrize(
    ("what", "outcomes"),
    [
        ("file", {"protect": 0, "limit": 0}),
        ("replaced", {"protect": 0, "limit": 2}),
        ("unsaved", {"protect": 1, "limit": 2}),
    ],
)
def test_flask_releases_with_a_response_that_nothing_closes(played, flask_app, what, outcomes):
    import flask
    from werkzeug.test import EnvironBuilder, run_wsgi_app

    class Sessions(flask.sessions.SessionInterface):
        def open_session(self, app, request):
            return flask.sessions.SecureCookieSession()

        def save_session(self, app, session, response):
            if what == "unsaved":
                raise ValueError("no JSON")

    flask_app.session_interface, played.script = Sessions(), grant
    flask_app.logger.disabled = True  # the test's records would keep the response
    flask_app.after_request(lambda response: flask.Response("other") if what == "replaced" else response)
    body, _, _ = run_wsgi_app(flask_app, EnvironBuilder(path=f"/{what}").get_environ())
    list(body)
    if close := getattr(body, "close", None):
        close()
    gc.collect()
    assert played.releases() == [[77, outcomes[flask_app.config["kind"]]]]


def test_flask_releases_without_a_response(played, flask_app):
    played.script, flask_app.testing = grant, True  # exceptions pass
    with pytest.raises(ZeroDivisionError):
        flask_app.test_client().get("/raise")
    assert played.releases() == [[77, 2]]


# -- FastAPI -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def fast_app(ac):
    fastapi = pytest.importorskip("fastapi")
    import tidegate.fastapi

    app = fastapi.FastAPI()

    @app.get("/{what}", dependencies=[fastapi.Depends(tidegate.fastapi.limit(ac))])
    async def view(what: str):
        if what.isdigit():
            raise fastapi.HTTPException(int(what))
        return {"raise": lambda: 1 / 0}.get(what, lambda: what)()

    return app


def ask(app, path):
    return call(app, HTTP | {"path": path, "query_string": b"", "http_version": "1.1", "scheme": "http"})


def test_fastapi_sleeps_on_wait(played, fast_app):
    played.script = wait
    assert took(lambda: ask(fast_app, "/x")) >= WAIT and played.releases() == [[77, 0]]


@pytest.mark.parametrize(("path", "outcome"), [("/x", 0), ("/404", 1), ("/302", 0)])
def test_fastapi_reports_the_outcome(played, fast_app, path, outcome):
    played.script = grant
    ask(fast_app, path)
    assert played.releases() == [[77, outcome]]


def test_fastapi_releases_without_a_response(played, fast_app):
    played.script = grant
    with pytest.raises(ZeroDivisionError):
        ask(fast_app, "/raise")
    assert played.releases() == [[77, 2]]


# -- Django ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def django_request(client, ac):
    """Runs a middleware around `get_response`, plain or asynchronous; closes the response as a server does."""
    pytest.importorskip("django")
    from django.conf import settings
    from django.http import HttpResponse
    from django.test import RequestFactory

    if not settings.configured:
        settings.configure(ALLOWED_HOSTS=["*"], SECRET_KEY="x", ROOT_URLCONF=__name__)
    from tidegate.django import Middleware

    def run(asynchronous, status=200, error=None):
        def get_response(request):
            if error is not None:
                raise error
            return HttpResponse(status=status)

        async def get_response_async(request):
            return get_response(request)

        settings.TIDEGATE = {"client": ac if asynchronous else client}
        middleware = Middleware(get_response_async if asynchronous else get_response)
        request = RequestFactory().get("/x")

        def close(response):
            response._resource_closers.append(request.close)  # as Django's handler does
            response.close()
            return response

        async def main():
            try:
                return close(await middleware(request))
            finally:
                await ac.check()  # after the lease's release

        if asynchronous:
            return asyncio.run(main())
        return close(middleware(request))

    return run


@pytest.mark.parametrize("asynchronous", [False, True])
def test_django_sleeps_on_wait(played, django_request, asynchronous):
    played.script = wait
    assert took(lambda: django_request(asynchronous)) >= WAIT and played.releases() == [[77, 0]]


@pytest.mark.parametrize(("status", "outcome"), [(200, 0), (302, 0), (404, 1), (500, 1)])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_django_reports_the_outcome(played, django_request, asynchronous, status, outcome):
    played.script = grant
    response = django_request(asynchronous, status)
    assert played.releases() == [[77, outcome]] and ("RateLimit" in response.headers) == (status != 302)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("error", [RuntimeError("mine"), asyncio.CancelledError()])
def test_django_releases_without_a_response(played, django_request, asynchronous, error):
    played.script = grant
    with pytest.raises(type(error)):
        django_request(asynchronous, error=error)
    assert played.releases() == [[77, 2]]


urlpatterns = []  # every path is unknown to Django


def redirecting(get_response):
    """A middleware that replaces the response, as APPEND_SLASH does with that to an unknown path."""
    from django.http import HttpResponse

    def replace(request):
        get_response(request)
        return HttpResponse(status=301)

    return replace


def test_django_releases_with_a_response_that_another_middleware_replaces(played, client, django_request):
    from django.test import Client, override_settings

    played.script = grant
    middleware = [f"{__name__}.redirecting", "tidegate.django.Middleware"]
    with override_settings(TIDEGATE={"client": client}, MIDDLEWARE=middleware, ROOT_URLCONF=__name__):
        response = Client().get("/x")
        response.close()
    assert response.status_code == 301 and played.releases() == [[77, 1]]
