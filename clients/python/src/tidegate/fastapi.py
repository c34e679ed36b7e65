"""Limits single routes of FastAPI, as a dependency. A whole application: tidegate.asgi.Middleware.

    @app.get("/export", dependencies=[Depends(tidegate.fastapi.limit(client, "export", user=caller))])
    async def export(): ...
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

from fastapi import BackgroundTasks, HTTPException, Request, Response
from starlette.background import BackgroundTask

from . import Decision
from .aio import AsyncClient
from .asgi import seen
from .http import Guard, GuardOptions, guard_of, refusal
from .protocol import Outcome

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Refused(HTTPException):
    """Raised if a route may not run, for `decision`. FastAPI responds with its status, headers and message."""

    def __init__(self, decision: Decision, headers: dict[str, str]) -> None:
        super().__init__(decision.status, decision.message, headers)
        self.decision = decision


def limit(
    client: AsyncClient, domain: str = "web", **options: Unpack[GuardOptions]
) -> Callable[..., AsyncIterator[Decision | None]]:
    """Returns a dependency for `Depends`. Options are those of `tidegate.http.Guard`; requests are Starlette's.

    The attribute `route` is sent, too. The lease ends with the body, before FastAPI's background tasks; if a route
    returns a Response with its own background tasks, which replace those, when FastAPI exits its dependencies. The
    status of a Response that a route returns is unknown here, and counts as 200: raise an HTTPException for a failure,
    or use tidegate.asgi.Middleware. The dependency's value is the decision, None for exempt requests. `on_refused` may
    raise an HTTPException.
    """
    guard = guard_of("limit", client, domain, options, True)

    async def limited(
        request: Request, response: Response, background: BackgroundTasks
    ) -> AsyncIterator[Decision | None]:
        started = time.monotonic()
        route = getattr(request.scope.get("route"), "path", None)
        arguments: Any = guard.arguments(seen(request.scope)._replace(request=request, route=route))
        if arguments is None:
            yield None
            return
        asked = await client.acquire(domain, **arguments) if isinstance(arguments, dict) else arguments
        decision: Decision = guard.observe(asked, started)
        if not decision:
            raise _refused(guard, request, decision)
        for name, value in guard.fields(decision, 200, ()):
            response.headers[name] = value
        outcome: Outcome = "dropped"

        def status() -> int:
            return response.status_code or getattr(request.scope.get("route"), "status_code", None) or 200

        async def sent() -> None:
            decision.release(guard.outcome(status()))

        if decision.lease is not None:
            background.tasks.insert(0, BackgroundTask(sent))
        try:
            if decision.wait:
                await asyncio.sleep(decision.wait)
            yield decision
            outcome = guard.outcome(status())
        except HTTPException as error:
            outcome = guard.outcome(error.status_code)
            raise
        finally:
            decision.release(outcome)

    return limited


def _refused(guard: Guard, request: Request, decision: Decision) -> Refused:
    """Returns the refusal, or raises the HTTPException of `on_refused`."""
    try:
        guard.refusal(request, decision)
    except HTTPException:
        raise
    except Exception as error:
        guard.usual_refusal(decision, error)
    return Refused(decision, dict(guard.fields(decision, decision.status, ())))


async def answer(request: Request, refused: Refused) -> Response:
    """Exception handler with the usual application/problem+json body: `app.add_exception_handler(Refused, answer)`."""
    status, headers, body = refusal(refused.decision)
    fields = {name: value for name, value in headers if name != "Content-Length"}
    return Response(body, status, {**fields, **(refused.headers or {})})
