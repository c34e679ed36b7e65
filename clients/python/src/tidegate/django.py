"""Limits a Django project, under WSGI and ASGI.

    MIDDLEWARE = ["tidegate.django.Middleware", ...]
    TIDEGATE = {"domain": "api", "user": lambda request: request.headers.get("X-User")}
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

from django.conf import settings  # type: ignore[import-untyped]
from django.http import HttpResponse  # type: ignore[import-untyped]
from django.urls import resolve  # type: ignore[import-untyped]

from . import Client, Decision
from .aio import AsyncClient
from .http import Headers, Seen, clean, guard_of, status_code
from .signals import from_signal


class Middleware:
    """Checks every request, and adds limit headers to every response but redirects.

    settings.TIDEGATE: the options of `tidegate.http.Guard`, whose requests are Django's; `client`: a Client or its
    options; `route`: true to send the pattern of `urlpatterns`, too. Django resolves it only after its middlewares, so
    it is then resolved twice.
    `on_refused` may return (status, headers, body) or an HttpResponse. The decision: `request.tidegate`.
    List it before slow middlewares, but after AuthenticationMiddleware if `user` reads `request.user`.
    """

    sync_capable = async_capable = True

    def __init__(self, get_response: Callable[[Any], Any]) -> None:
        self.get_response, self.is_async = get_response, inspect.iscoroutinefunction(get_response)
        options = dict(getattr(settings, "TIDEGATE", {}))
        made, self.by_route = options.pop("client", {}), options.pop("route", False)
        if isinstance(made, dict):
            made = AsyncClient(**made) if self.is_async else Client(**made)
        domain = options.pop("domain", "web")
        self.client, self.guard = made, guard_of("settings.TIDEGATE", made, domain, options, self.is_async)
        if self.is_async:
            from asgiref.sync import markcoroutinefunction

            markcoroutinefunction(self)

    def __call__(self, request: Any) -> Any:
        if self.is_async:
            return self._call_async(request)
        started, arguments = time.monotonic(), self._arguments(request)
        if arguments is None:
            return self.get_response(request)
        asked = self.client.acquire(self.guard.domain, **arguments) if isinstance(arguments, dict) else arguments
        decision, response = self._check(request, asked, started)
        try:
            if response is None:
                time.sleep(decision.wait)
                response = self.get_response(request)
        except BaseException:
            decision.release("dropped")
            raise
        return self._add_headers(request, decision, response)

    async def _call_async(self, request: Any) -> Any:
        started, arguments = time.monotonic(), self._arguments(request)
        if arguments is None:
            return await self.get_response(request)
        asked = await self.client.acquire(self.guard.domain, **arguments) if isinstance(arguments, dict) else arguments
        decision, response = self._check(request, asked, started)
        try:
            if response is None:
                if decision.wait:
                    await asyncio.sleep(decision.wait)
                response = await self.get_response(request)
        except BaseException:
            decision.release("dropped")
            raise
        return self._add_headers(request, decision, response)

    def _arguments(self, request: Any) -> Any:
        peer = request.META.get("REMOTE_ADDR", "")
        path, route = clean(request.path), self._route(request) if self.by_route else None
        return self.guard.arguments(Seen(request, request.method, path, peer, request.headers.get, route))

    def _route(self, request: Any) -> str | None:
        """Returns the route's pattern, or None. Django reports errors later, when it resolves the path itself."""
        try:
            return str(resolve(request.path_info, getattr(request, "urlconf", None)).route)
        except Exception as error:
            if from_signal(error):
                raise
            return None

    def _check(self, request: Any, asked: Decision, started: float) -> tuple[Decision, Any]:
        """Returns the decision, and the response to a refusal."""
        decision = request.tidegate = self.guard.observe(asked, started)
        if decision:
            return decision, None
        try:
            answer = self.guard.refusal(request, decision)
            return decision, _response(*answer) if isinstance(answer, tuple) else answer
        except Exception as error:
            return decision, _response(*self.guard.usual_refusal(decision, error))

    def _add_headers(self, request: Any, decision: Decision, response: Any) -> Any:
        """Adds limit headers; releases the lease when the server closes the response, or what replaces it."""
        for name, value in self.guard.fields(decision, response.status_code, response.headers.keys()):
            response.headers[name] = value
        if decision.lease is not None:
            close = request.close

            def closed() -> None:
                try:
                    close()
                finally:
                    decision.release(self.guard.outcome(response.status_code))

            request.close = closed  # Django calls it at the end of the response that it sends
        return response


def _response(status: int | str, headers: Headers, body: bytes) -> Any:
    return HttpResponse(body, status=status_code(status), headers=dict(headers))
