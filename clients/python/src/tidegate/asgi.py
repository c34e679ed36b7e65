"""Limits an ASGI application: FastAPI, Starlette, Quart, Django's ASGI handler or plain. HTTP and WebSockets.

    app = tidegate.asgi.Middleware(app, tidegate.AsyncClient(), domain="api", user=caller)

Answers refused requests; all others reach the application, also when the daemon fails. Never blocks the event loop.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any

from . import Decision
from .aio import AsyncClient
from .http import Guard, GuardOptions, Headers, Seen, clean, guard_of, status_code
from .protocol import Outcome
from .signals import from_signal

if TYPE_CHECKING:
    from typing_extensions import Unpack

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Any, Any, Any], Awaitable[Any]]


class Middleware:
    """Checks every request before `app` runs, and adds limit headers to every response but redirects.

    Options are those of `tidegate.http.Guard`; requests are scopes. `on_refused` may return (status, headers, body), an
    ASGI application, or a coroutine of either. The decision is in `scope["tidegate.decision"]`.
    The lease of a request ends with the last part of the body, before background tasks; that of a WebSocket ends with
    the connection. A refused WebSocket gets the response of a refused request if the server supports it; otherwise it
    is closed before it is accepted, with 1013 (try again later).
    `route`: true to send the pattern of the route of Starlette or FastAPI, too. They look it up only after their
    middlewares, so it is then looked up twice.
    """

    def __init__(
        self, app: App, client: AsyncClient, domain: str = "web", route: bool = False, **options: Unpack[GuardOptions]
    ) -> None:
        self.app, self.client, self.guard = app, client, guard_of("Middleware", client, domain, options, True)
        self.by_route = route

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        decision = await self._judge(scope) if scope["type"] in ("http", "websocket") else None
        if decision is None:
            await self.app(scope, receive, send)
            return
        scope["tidegate.decision"] = decision
        if not decision:
            refusal = await self._refusal(scope, decision)
            await refusal(scope, receive, _Answer(send, decision, self.guard).send)
            return
        answer = _Answer(send, decision, self.guard)
        try:
            if decision.wait:
                await asyncio.sleep(decision.wait)
            await self.app(scope, receive, answer.send)
            if scope["type"] == "websocket":
                answer.outcome, answer.finished = "ok", True
        finally:
            answer.release()

    async def _judge(self, scope: Scope) -> Decision | None:
        """Returns the decision; None if the request is exempt."""
        started = time.monotonic()
        route = _route(scope.get("app", self.app), scope) if self.by_route else None
        arguments = self.guard.arguments(seen(scope)._replace(route=route))
        if isinstance(arguments, dict):
            arguments = await self.client.acquire(self.guard.domain, **arguments)
        return None if arguments is None else self.guard.observe(arguments, started)

    async def _refusal(self, scope: Scope, decision: Decision) -> App:
        try:
            answer = self.guard.refusal(scope, decision)
            if inspect.isawaitable(answer):
                answer = await answer
            if callable(answer):
                return answer  # type: ignore[no-any-return]
            return _denial(scope, *answer)
        except Exception as error:
            return _denial(scope, *self.guard.usual_refusal(decision, error))


def seen(scope: Scope) -> Seen:
    def header(name: str) -> str | None:
        wanted = name.lower().encode()
        found = [value for key, value in scope.get("headers", ()) if key.lower() == wanted]
        return b", ".join(found).decode("latin-1") if found else None

    peer = (scope.get("client") or ("",))[0] or ""
    return Seen(scope, scope.get("method", "GET"), clean(scope.get("path", "")), peer, header)


def _route(router: Any, scope: Scope) -> str | None:
    """Returns the pattern of the route that takes a request, or None. The application reports errors later."""
    try:
        for route in getattr(router, "routes", None) or ():
            match, child = route.matches(scope)
            if match.name == "FULL":
                return getattr(route, "path", "") + (_route(route, {**scope, **child}) or "")
    except Exception as error:
        if from_signal(error):
            raise
    return None


def _denial(scope: Scope, status: int | str, headers: Headers, body: bytes) -> App:
    fields = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]
    start = {"status": status_code(status), "headers": fields}
    body = b"" if scope.get("method") == "HEAD" else body
    kind = "http.response"
    if scope["type"] == "websocket":
        can_answer = "websocket.http.response" in (scope.get("extensions") or {})
        kind = "websocket.http.response" if can_answer else "websocket.close"

    async def deny(scope: Scope, receive: Receive, send: Send) -> None:
        if kind == "websocket.close":
            await receive()  # the websocket.connect event
            await send({"type": kind, "code": 1013, "reason": ""})
            return
        await send({"type": f"{kind}.start", **start})
        await send({"type": f"{kind}.body", "body": body})

    return deny


class _Answer:
    """Adds limit headers to the start of the application's response; releases the lease at its end."""

    def __init__(self, send: Send, decision: Decision, guard: Guard) -> None:
        self._send, self.decision, self.guard = send, decision, guard
        self.finished = False
        self.outcome: Outcome = "dropped"

    async def send(self, message: MutableMapping[str, Any]) -> None:
        kind = message["type"]
        if kind in ("http.response.start", "websocket.http.response.start"):
            headers = list(message.get("headers", ()))
            there = (bytes(name).decode("latin-1") for name, _ in headers)
            fields = self.guard.fields(self.decision, message["status"], there)
            headers += [(name.lower().encode(), value.encode()) for name, value in fields]
            message = {**message, "headers": headers}
            self.outcome = self.guard.outcome(message["status"])
        await self._send(message)
        # A server with the extension sends a file whose path it gets.
        if kind == "http.response.pathsend" or (
            kind == "http.response.body" and not message.get("more_body", False)
        ):
            self.finished = True
            self.release()

    def release(self) -> None:
        self.decision.release(self.outcome if self.finished else "dropped")
