"""Limits a WSGI application: Flask, Django, Pyramid, Bottle or plain.

    application = tidegate.wsgi.Middleware(application, tidegate.Client(), domain="api", user=who)

The daemon gets `method`, `path`, `ip`, `user`, `user_agent` and what the application adds, in this order. What may not
start is answered here; everything else reaches the application, also when the daemon or a function given here fails.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from . import Client, Decision, number

Environ = dict[str, Any]
Headers = list[tuple[str, str]]
App = Callable[[Environ, Callable[..., Any]], Iterable[bytes]]
Response = tuple[str, Headers, bytes]


class Middleware:
    """Judges every request before `app` sees it, and adds limit headers to every answer but redirects.

    `user`: environ to the user's name, or None. `attributes`: environ to a mapping of more. `cost` and `priority`: a
    value, or a function of environ. `exempt`: environ to true if nothing is to be judged.
    `on_refused(environ, decision)`: the answer to a refusal, as (status line, headers, body), as a WSGI application, or
    None for the usual one (application/problem+json); limit headers are added to it. `on_failure`: allow or refuse
    (503) when the daemon does not answer.
    `trusted_proxies`: whose X-Forwarded-For and X-Request-Start are believed: networks ("10.0.0.0/8"; a Unix socket's
    peer counts as one of them), or how many proxies stand in front. `headers`: draft, legacy, both or none.
    Attributes must come from what the application knows, the priority never from an end user's header.

    The decision is in `environ["tidegate.decision"]`. A function that raises lets the request pass.
    """

    def __init__(
        self,
        app: App,
        client: Client,
        domain: str = "web",
        *,
        user: Callable[[Environ], object] | None = None,
        attributes: Callable[[Environ], Mapping[str, object]] | None = None,
        cost: int | dict[str, int] | Callable[[Environ], int | dict[str, int]] = 1,
        priority: str | Callable[[Environ], str | None] | None = None,
        exempt: Callable[[Environ], object] | None = None,
        on_refused: Callable[[Environ, Decision], Response | App | None] | None = None,
        on_failure: str = "allow",
        trusted_proxies: int | Iterable[str] = (),
        headers: str = "both",
    ) -> None:
        if on_failure not in ("allow", "refuse") or headers not in _LEFT_OUT:
            raise ValueError("on_failure is allow or refuse; headers are draft, legacy, both or none")
        self.app, self.client, self.domain = app, client, domain
        self._callbacks = {"exempt": exempt, "user": user, "attributes": attributes, "cost": cost, "priority": priority}
        self._on_refused, self._on_failure, self._style = on_refused, on_failure, headers
        self._proxies = trusted_proxies if isinstance(trusted_proxies, int) else _networks(trusted_proxies)

    def __call__(self, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        decision = self._judge(environ)
        if decision is None:
            return self.app(environ, start_response)
        environ["tidegate.decision"] = decision
        answer = _Answer(start_response, decision, self._style)
        if not decision:
            try:
                refusal = self._refusal(environ, decision)
            except Exception as error:
                environ["tidegate.decision"] = self.client.callback_failed("on_refused", error)
                return self.app(environ, start_response)
            return refusal(environ, answer.start)
        try:
            if decision.wait:
                time.sleep(decision.wait)
            body = self.app(environ, answer.start)
            return body if decision.lease is None else _held(body, answer, environ.get("wsgi.file_wrapper"))
        except BaseException:
            decision.release("dropped")
            raise

    def _judge(self, environ: Environ) -> Decision | None:
        """None: exempt."""
        given: dict[str, Any] = {}
        for name, callback in self._callbacks.items():
            try:
                given[name] = callback(environ) if callable(callback) else callback
            except Exception as error:
                return self.client.callback_failed(name, error)
            if name == "exempt" and given[name]:
                return None
        attributes = {
            "method": environ.get("REQUEST_METHOD"),
            "path": path(environ),
            "ip": self._address(environ),
            "user": given["user"],
            "user_agent": environ.get("HTTP_USER_AGENT"),
        }
        if given["attributes"]:
            attributes.update(given["attributes"])
        words = {"priority": given["priority"], "queued": self._queued(environ), "on_failure": self._on_failure}
        return self.client.acquire(self.domain, attributes, given["cost"], **words)

    def _address(self, environ: Environ) -> str:
        peer: str = environ.get("REMOTE_ADDR", "")
        forwarded = environ.get("HTTP_X_FORWARDED_FOR")
        if not forwarded:
            return peer
        if self._proxies == ():
            self.client._log(
                "X-Forwarded-For is there but trusted_proxies is not set: callers are told apart by their proxy",
                once=True,
            )
            return peer
        return client_address(peer, forwarded, self._proxies)

    def _queued(self, environ: Environ) -> float | None:
        """How long the request waited for the application, in seconds, as a trusted proxy says it."""
        said = environ.get("HTTP_X_REQUEST_START")
        if not said or not _is_proxy(environ.get("REMOTE_ADDR", ""), self._proxies):
            return None
        return queued(said, time.time())

    def _refusal(self, environ: Environ, decision: Decision) -> App:
        response = self._on_refused(environ, decision) if self._on_refused else None
        if callable(response):
            return response
        if response is None:
            body = problem(decision)
            length = ("Content-Length", str(len(body)))
            kind = ("Content-Type", "application/problem+json")
            response = (
                f"{decision.status} {_PROBLEMS[decision.status][1]}",
                [kind, length, ("Cache-Control", "no-store")],
                body,
            )
        status, headers, body = response

        def refuse(environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
            start_response(status, list(headers))
            return [] if environ.get("REQUEST_METHOD") == "HEAD" else [body]

        return refuse


def problem(decision: Decision) -> bytes:
    """The body of a refusal, application/problem+json: RFC 9457, with the types of the draft.

    Its `retry_after` is exact to the millisecond, unlike the header. tests/vectors/answers.json has its bytes.
    """
    kind, title = _PROBLEMS.get(decision.status, (None, "OK"))
    about = f"https://iana.org/assignments/http-problem-types#{kind}" if kind else "about:blank"
    answer: dict[str, Any] = {"type": about, "title": title, "status": decision.status, "detail": decision.message}
    if decision.named and decision.verdict == "limit":
        window = number(decision.window or 0)
        answer |= {"violated-policies": [decision.rule], "limit": decision.limit, "window": window}
    if not decision.allowed and decision.retry_after is not None:
        answer["retry_after"] = number(decision.retry_after)
    if decision.help:
        answer["help"] = decision.help
    return json.dumps(answer, ensure_ascii=False, separators=(",", ":")).encode()


class _Answer:
    """Adds limit headers where the application's answer starts, and remembers its status."""

    def __init__(self, start_response: Callable[..., Any], decision: Decision, style: str) -> None:
        self.start_response, self.decision = start_response, decision
        fields = decision.headers().items()
        self.fields = {name: value for name, value in fields if not name.startswith(_LEFT_OUT[style])}
        self.outcome = "dropped"

    def start(self, status: str, headers: Headers, *exc_info: Any) -> Any:
        self.outcome = "ok" if status < "4" else "error"
        if self.fields and not status.startswith("3"):  # a redirect would be followed late because of them
            names = {name.lower() for name, _ in headers}
            headers = headers + [field for field in self.fields.items() if field[0].lower() not in names]
        return self.start_response(status, headers, *exc_info)


class _Body:
    """Holds the lease until the server has sent the answer or given up on it."""

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

    __del__ = release  # what stands between may drop a body without closing it; the second time nothing happens


class _List(_Body):
    """A body whose length is known, of which some servers make the Content-Length."""

    def __len__(self) -> int:
        return len(self.body)  # type: ignore[arg-type]


def _held(body: Iterable[bytes], answer: _Answer, file_wrapper: Any) -> Iterable[bytes]:
    """The body, whose end is that of the lease."""
    if not isinstance(file_wrapper, type) or not isinstance(body, file_wrapper):
        return (_List if hasattr(body, "__len__") else _Body)(body, answer)
    # A file stays as it is, because the server sends it without asking for chunks: only its `close` is another. How
    # much of it was sent nobody says.
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


def path(environ: Environ) -> str:
    """The path as the application means it: decoded once (by the server), without dot segments and repeated slashes."""
    raw: str = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
    text = raw if raw.isascii() else raw.encode("latin-1", "replace").decode("utf-8", "replace")
    if text.startswith("/") and "//" not in text and "/." not in text:
        return text
    kept: list[str] = []
    for segment in text.split("/"):
        if segment == "..":
            del kept[-1:]
        elif segment not in ("", "."):
            kept.append(segment)
    return "/" + "/".join(kept) + ("/" if kept and text.endswith(("/", "/.", "/..")) else "")


def queued(said: str, now: float) -> float | None:
    """Seconds since X-Request-Start, as "t=" and Unix time or without it: seconds, milliseconds or microseconds, which
    are told apart by their size. None for what cannot be: before it began, or longer than 60 s ago.
    """
    found = re.fullmatch(r"(?:t=)?([0-9]{1,20}(?:[.][0-9]{1,9})?)", said.strip())
    if found is None:
        return None
    started = float(found[1])
    waited = now - started / (1e6 if started >= 1e14 else 1e3 if started >= 1e11 else 1)
    return waited if 0 <= waited <= QUEUED_MAX else None


def client_address(peer: str, forwarded: str, proxies: Any) -> str:
    """Who called: the nearest hop that is not a trusted proxy. What stands left of it may be made up."""
    import ipaddress

    hops = [_without_port(hop) for hop in forwarded.split(",")] + [peer]
    if isinstance(proxies, int):
        hops = hops[-1 - proxies :][:1] if len(hops) > proxies else hops[:1]
        proxies = ()
    nearest = peer
    for i, hop in enumerate(reversed(hops)):
        try:
            address = ipaddress.ip_address(hop)
        except ValueError:
            if i == 0 and not hop and len(hops) > 1:
                continue  # a Unix socket: only this machine's proxy can be behind it
            return nearest
        nearest = str(address)
        plain = getattr(address, "ipv4_mapped", None) or address
        if not any(plain in network for network in proxies):
            break
    return nearest


def _is_proxy(peer: str, proxies: Any) -> bool:
    """Whether the request came from a proxy that is trusted, be it over a Unix socket (no address)."""
    import ipaddress

    if isinstance(proxies, int):
        return proxies > 0
    try:
        address = ipaddress.ip_address(peer)
    except ValueError:
        return not peer and proxies != ()
    plain = getattr(address, "ipv4_mapped", None) or address
    return any(plain in network for network in proxies)


def _without_port(hop: str) -> str:
    hop = hop.strip().strip('"')
    if hop.startswith("["):
        return hop[1:].partition("]")[0]
    return hop.partition(":")[0] if hop.count(":") == 1 else hop


def _networks(proxies: Iterable[str]) -> tuple[Any, ...]:
    import ipaddress

    return tuple(ipaddress.ip_network(proxy) for proxy in ([proxies] if isinstance(proxies, str) else proxies))


QUEUED_MAX = 60.0  # seconds: who says more has another clock
_PROBLEMS = {
    403: (None, "Forbidden"),
    429: ("quota-exceeded", "Too Many Requests"),
    503: ("temporary-reduced-capacity", "Service Unavailable"),
}
# How headers begin that a style has not; Retry-After every refusal has.
_LEFT_OUT = {"both": (), "draft": ("X-",), "legacy": ("RateLimit",), "none": ("X-", "RateLimit")}
