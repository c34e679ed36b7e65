"""Limits single Flask routes, or a whole application; sends the attribute `route`. See also tidegate.wsgi.Middleware.
The decision is in `request.environ["tidegate.decision"]`.

    tidegate.flask.protect(app, client, domain="api", user=lambda request: session.get("user"))

    @app.get("/export")
    @tidegate.flask.limit(client, "export", user=caller)
    def export(): ...
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import flask

from . import Client, Decision
from .http import Guard, GuardOptions, guard_of
from .wsgi import _Answer, _with_lease, seen

if TYPE_CHECKING:
    from typing_extensions import Unpack


def protect(app: flask.Flask, client: Client, domain: str = "web", **options: Unpack[GuardOptions]) -> None:
    """Checks every request of `app`. Options are those of `tidegate.http.Guard`; requests are Flask's."""
    guard, key = guard_of("protect", client, domain, options), f"tidegate_{id(client)}_{domain}"
    answered = key + "_answered"

    @app.before_request
    def check() -> Any:
        decision, answer = _check(guard)
        setattr(flask.g, key, decision)
        return answer

    @app.after_request
    def add_headers(response: flask.Response) -> flask.Response:
        # Flask calls it again for the response to an error that follows, such as a session that cannot be saved.
        decision: Decision | None = flask.g.get(key)
        setattr(flask.g, answered, True)
        return response if decision is None else _add_headers(guard, decision, response)

    @app.teardown_request
    def drop(error: BaseException | None) -> None:
        decision: Decision | None = flask.g.pop(key, None)
        if decision is not None and not flask.g.pop(answered, False):  # the request ended without a response
            decision.release("dropped")


def limit(
    client: Client, domain: str = "web", **options: Unpack[GuardOptions]
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorates a view. Options are those of `tidegate.http.Guard`; requests are Flask's."""
    guard = guard_of("limit", client, domain, options)

    def decorate(view: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(view)
        def limited(*args: Any, **kwargs: Any) -> Any:
            decision, answer = _check(guard)
            if answer is not None:
                return answer if decision is None else _add_headers(guard, decision, flask.make_response(answer))
            if decision is None:
                return flask.current_app.ensure_sync(view)(*args, **kwargs)
            try:
                response = flask.make_response(flask.current_app.ensure_sync(view)(*args, **kwargs))
            except BaseException as error:
                code = getattr(error, "code", None)  # an HTTPException is a response, too
                decision.release(guard.outcome(code) if isinstance(code, int) else "dropped")
                raise
            return _add_headers(guard, decision, response)

        return limited

    return decorate


def _check(guard: Guard) -> tuple[Decision | None, Any]:
    """Returns the decision, None if the request is exempt, and the response to a refusal."""
    started, request = time.monotonic(), flask.request
    route = request.url_rule.rule if request.url_rule is not None else None
    arguments: Any = guard.arguments(seen(request.environ)._replace(request=request, route=route))
    if arguments is None:
        return None, None
    asked = guard.client.acquire(guard.domain, **arguments) if isinstance(arguments, dict) else arguments
    decision = request.environ["tidegate.decision"] = guard.observe(asked, started)
    if not decision:
        try:
            answer = guard.refusal(request, decision)
        except Exception as error:
            answer = guard.usual_refusal(decision, error)
        if isinstance(answer, tuple) and len(answer) == 3 and isinstance(answer[2], bytes):
            status, headers, body = answer
            answer = flask.Response(body, status, headers)
        return decision, answer
    try:
        time.sleep(decision.wait)
    except BaseException:
        decision.release("dropped")
        raise
    return decision, None


def _add_headers(guard: Guard, decision: Decision, response: flask.Response) -> flask.Response:
    """Adds limit headers; releases the lease at the end of the body."""
    response.headers.extend(guard.fields(decision, response.status_code, response.headers.keys()))
    if decision.lease is None:
        return response
    outcome = guard.outcome(response.status_code)
    if response.direct_passthrough:  # Werkzeug gives the server a file without the response's `close`
        answer = _Answer(flask.Response, decision, guard)
        answer.outcome = outcome
        body: Any = response.response
        response.response = _with_lease(body, answer, flask.request.environ.get("wsgi.file_wrapper"))
        return response
    held = _Held(decision)
    response.call_on_close(lambda: held.decision.release(outcome))
    return response


class _Held:
    """Releases the lease with a response that another handler replaced; after the first release it does nothing."""

    def __init__(self, decision: Decision) -> None:
        self.decision = decision

    def __del__(self) -> None:
        self.decision.release("dropped")
