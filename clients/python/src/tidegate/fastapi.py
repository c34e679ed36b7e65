"""Limits single routes of FastAPI, as a dependency. A whole application: tidegate.asgi.Middleware.

    @app.get("/export", dependencies=[Depends(tidegate.fastapi.limit(client, "export", user=who))])
    async def export(): ...
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from fastapi import BackgroundTasks, HTTPException, Request, Response
from starlette.background import BackgroundTask

from . import Decision
from .aio import AsyncClient
from .asgi import seen
from .http import Guard, refusal


class Refused(HTTPException):
    """Raised where a route may not run; `decision` says why. FastAPI answers with its status, headers and message."""

    def __init__(self, decision: Decision, headers: dict[str, str]) -> None:
        super().__init__(decision.status, decision.message, headers)
        self.decision = decision


def limit(client: AsyncClient, domain: str = "web", **options: Any) -> Callable[..., AsyncIterator[Decision | None]]:
    """What `Depends` takes. Options are those of `tidegate.http.Guard`; requests are Starlette's, `route` is sent too.

    The lease ends with the body, before FastAPI's tasks in the background; where a route returns a Response with a
    background of its own, which replaces those, when FastAPI ends its dependencies. What the route gives is the
    decision, None if it is exempt. `on_refused` may raise an HTTPException of the application's own.
    """
    guard = Guard(client, domain, asynchronous=True, **options)

    async def limited(
        request: Request, response: Response, background: BackgroundTasks
    ) -> AsyncIterator[Decision | None]:
        started = time.monotonic()
        route = getattr(request.scope.get("route"), "path", None)
        question: Any = guard.question(seen(request.scope)._replace(request=request, route=route))
        if question is None:
            yield None
            return
        asked = await client.acquire(domain, **question) if isinstance(question, dict) else question
        decision: Decision = guard.judged(asked, started)
        if not decision:
            decision = _refused(guard, request, decision)
        for name, value in guard.fields(decision, 200, ()):
            response.headers[name] = value
        outcome = "dropped"

        async def sent() -> None:
            decision.release(guard.outcome(response.status_code or 200))

        if decision.lease is not None:
            background.tasks.insert(0, BackgroundTask(sent))
        try:
            if decision.wait:
                await asyncio.sleep(decision.wait)
            yield decision
            outcome = guard.outcome(response.status_code or 200)
        except HTTPException as error:
            outcome = guard.outcome(error.status_code)
            raise
        finally:
            decision.release(outcome)

    return limited


def _refused(guard: Guard, request: Request, decision: Decision) -> Decision:
    """Raises, unless a function of the application's failed at it."""
    try:
        guard.refusal(request, decision)
    except HTTPException:
        raise
    except Exception as error:
        return guard.failed("on_refused", error)
    raise Refused(decision, dict(guard.fields(decision, decision.status, ())))


async def answer(request: Request, refused: Refused) -> Response:
    """The usual body, application/problem+json: `app.add_exception_handler(Refused, answer)`."""
    status, headers, body = refusal(refused.decision)
    fields = {name: value for name, value in headers if name != "Content-Length"}
    return Response(body, status, {**fields, **(refused.headers or {})})
