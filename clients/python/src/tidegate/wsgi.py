"""Limits a WSGI application: Flask, Django, Pyramid, Bottle or plain.

    application = tidegate.wsgi.Middleware(application, tidegate.Client(), domain="api", user=caller)

Answers refused requests; all others reach the application, also when the daemon fails.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from . import Client, Decision
from .http import Guard, GuardOptions, Headers, Seen, clean, guard_of, status_line
from .protocol import Outcome

if TYPE_CHECKING:
    from typing_extensions import Unpack

Environ = dict[str, Any]
App = Callable[[Environ, Callable[..., Any]], Iterable[bytes]]


class Middleware:
    """Checks every request before `app` runs, and adds limit headers to every response but redirects.

    Options are those of `tidegate.http.Guard`; requests are environs. `on_refused` may return (status or status line,
    headers, body) or a WSGI application. The decision is in `environ["tidegate.decision"]`.
    """

    def __init__(self, app: App, client: Client, domain: str = "web", **options: Unpack[GuardOptions]) -> None:
        self.app, self.client, self.guard = app, client, guard_of("Middleware", client, domain, options)

    def __call__(self, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        decision = self._judge(environ)
        if decision is None:
            return self.app(environ, start_response)
        environ["tidegate.decision"] = decision
        answer = _Answer(start_response, decision, self.guard)
        if not decision:
            return self._refusal(environ, decision)(environ, answer.start)
        try:
            if decision.wait:
                time.sleep(decision.wait)
            body = self.app(environ, answer.start)
            return body if decision.lease is None else _with_lease(body, answer, environ.get("wsgi.file_wrapper"))
        except BaseException:
            decision.release("dropped")
            raise

    def _judge(self, environ: Environ) -> Decision | None:
        """Returns the decision; None if the request is exempt."""
        started = time.monotonic()
        arguments = self.guard.arguments(seen(environ))
        if isinstance(arguments, dict):
            arguments = self.client.acquire(self.guard.domain, **arguments)
        return None if arguments is None else self.guard.observe(arguments, started)

    def _refusal(self, environ: Environ, decision: Decision) -> App:
        try:
            answer = self.guard.refusal(environ, decision)
            if callable(answer):
                return answer  # type: ignore[no-any-return]
            status, headers, body = answer
        except Exception as error:
            status, headers, body = self.guard.usual_refusal(decision, error)

        def refuse(environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
            start_response(status_line(status), list(headers))
            return [] if environ.get("REQUEST_METHOD") == "HEAD" else [body]

        return refuse


def seen(environ: Environ) -> Seen:
    def header(name: str) -> str | None:
        return environ.get("HTTP_" + name.upper().replace("-", "_"))

    return Seen(environ, environ.get("REQUEST_METHOD"), path(environ), environ.get("REMOTE_ADDR", ""), header)


def path(environ: Environ) -> str:
    """Returns the path, which WSGI passes percent-decoded, its bytes as Latin-1."""
    raw: str = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
    return clean(raw if raw.isascii() else raw.encode("latin-1", "replace").decode("utf-8", "replace"))


class _Answer:
    """Adds limit headers to the start of the application's response, and keeps the outcome of its status."""

    def __init__(self, start_response: Callable[..., Any], decision: Decision, guard: Guard) -> None:
        self.start_response, self.decision, self.guard = start_response, decision, guard
        self.outcome: Outcome = "dropped"

    def start(self, status: str, headers: Headers, *exc_info: Any) -> Any:
        code = int(status[:3]) if status[:3].isdigit() else 500
        self.outcome = self.guard.outcome(code)
        headers = headers + self.guard.fields(self.decision, code, (name for name, _ in headers))
        return self.start_response(status, headers, *exc_info)


class _Body:
    """A body that releases the lease when the server closes it."""

    def __init__(self, body: Iterable[bytes], answer: _Answer) -> None:
        self.body, self.answer, self.finished = body, answer, False
        self.chunks = iter(body)

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            return next(self.chunks)
        except StopIteration:
            self.finished = True
            raise

    def close(self) -> None:
        try:
            if hasattr(self.body, "close"):
                self.body.close()
        finally:
            self.release()

    def release(self) -> None:
        self.answer.decision.release(self.answer.outcome if self.finished else "dropped")

    __del__ = release  # another middleware may drop a body without closing it; a second release does nothing


class _List(_Body):
    """A body of known length, from which some servers compute Content-Length."""

    def __len__(self) -> int:
        return len(self.body)  # type: ignore[arg-type]


def _with_lease(body: Iterable[bytes], answer: _Answer, file_wrapper: Any) -> Iterable[bytes]:
    """Returns the body, with a `close` that releases the lease."""
    if not isinstance(file_wrapper, type) or not isinstance(body, file_wrapper):
        return (_List if hasattr(body, "__len__") else _Body)(body, answer)
    # The server sends a file by sendfile, so keep the object and replace only its `close`. The server does not report
    # how much it sent.
    file: Any = body
    close = getattr(file, "close", None)

    def closed() -> None:
        try:
            if close is not None:
                close()
        finally:
            answer.decision.release(answer.outcome)

    try:
        file.close = closed
    except AttributeError:
        return _Body(body, answer)
    return body
