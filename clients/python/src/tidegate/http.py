"""Common part of the HTTP middlewares: attributes of a request, options of the check, response to a refusal.

Independent of frameworks: each middleware passes a request as `Seen`.
"""

from __future__ import annotations

import inspect
import ipaddress
import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict

from . import Decision
from .answers import PROBLEMS, problem
from .decorators import WrongResult, callback_failed, check_name, check_names
from .protocol import PAIRS_MAX, Cost, Fault, Outcome, beside, check_word, encode_cost
from .protocol import OnFailure as Action
from .signals import from_signal

if TYPE_CHECKING:
    from .fallback import Fallback

Headers = list[tuple[str, str]]
OnFailure = Action | Callable[[Any], Action] | Iterable[tuple[str, Action]]
Style = Literal["draft", "legacy", "both", "none"]


class Seen(NamedTuple):
    """A request as a middleware sees it. `request` is passed to the application's functions."""

    request: Any
    method: str | None
    path: str
    peer: str
    header: Callable[[str], str | None]
    route: str | None = None


class GuardOptions(TypedDict, total=False):
    """The keywords of every middleware; `Guard` explains them."""

    user: Callable[[Any], object] | None
    attributes: Callable[[Any], Mapping[str, object]] | Mapping[str, str | Callable[[Any], object]] | None
    descriptors: Callable[[Any], Iterable[Mapping[str, object]] | None] | None
    cost: Cost | Callable[[Any], Cost]
    priority: str | Callable[[Any], str | None] | None
    exempt: Callable[[Any], object] | None
    outcome: Callable[[int], Outcome | None] | None
    on_refused: Callable[[Any, Decision], Any] | None
    on_failure: OnFailure
    trusted_proxies: int | Iterable[str]
    headers: Style
    instrument: Callable[[Decision, float], object] | None
    fallback: str | Mapping[str, str] | Fallback | None


def guard_of(function: str, client: Any, domain: str, options: Any, asynchronous: bool = False) -> Guard:
    """Returns a Guard; its TypeError for an unknown option names the public function."""
    check_names(function, options, GuardOptions)
    return Guard(client, domain, asynchronous=asynchronous, **options)


class Guard:
    """The options of a middleware, with the same names in every middleware and language.

    `user`: a function from the request to the caller's name or None. `attributes`: further attributes: a function from
    the request to a mapping, or a mapping from names to header names or functions. `descriptors`: a function from the
    request to mappings, sent as further descriptors. `cost`, `priority`: a value or a function. `exempt`: a function;
    true: no check. `outcome`: a function from the status to ok, error or dropped.
    `on_refused(request, decision)`: another response to a refusal, None for the usual one (application/problem+json).
    `on_failure`: allow or refuse (503) when the daemon does not answer; also a function of the request, or pairs of
    path prefix and allow or refuse. `trusted_proxies`: networks of proxies whose X-Forwarded-For and X-Request-Start
    count (with any network, also the peer of a Unix socket), or the number of proxies. `headers`: draft, legacy, both
    or none. `instrument(decision, seconds)`: called after each decision. `fallback`: replaces the client's.
    Attributes must come from trusted sources; never take the priority from a caller's header.
    """

    def __init__(
        self,
        client: Any,
        domain: str = "web",
        *,
        user: Callable[[Any], object] | None = None,
        attributes: Callable[[Any], Mapping[str, object]] | Mapping[str, str | Callable[[Any], object]] | None = None,
        descriptors: Callable[[Any], Iterable[Mapping[str, object]] | None] | None = None,
        cost: Cost | Callable[[Any], Cost] = 1,
        priority: str | Callable[[Any], str | None] | None = None,
        exempt: Callable[[Any], object] | None = None,
        outcome: Callable[[int], Outcome | None] | None = None,
        on_refused: Callable[[Any, Decision], Any] | None = None,
        on_failure: OnFailure = "allow",
        trusted_proxies: int | Iterable[str] = (),
        headers: Style = "both",
        instrument: Callable[[Decision, float], object] | None = None,
        fallback: str | Mapping[str, str] | Fallback | None = None,
        asynchronous: bool = False,
    ) -> None:
        acquire = None if isinstance(client, type) else getattr(client, "acquire", None)
        if not callable(acquire) or inspect.iscoroutinefunction(acquire) is not asynchronous:
            raise TypeError(f"this takes {'an AsyncClient' if asynchronous else 'a Client'} instance")
        by_path = () if isinstance(on_failure, str) or callable(on_failure) else tuple(on_failure)
        actions = {on_failure} if isinstance(on_failure, str) else {action for _, action in by_path}
        for action in actions:
            check_word("on_failure", action, "allow", "refuse")
        check_word("headers", headers, *_LEFT_OUT)
        functions = {"user": user, "descriptors": descriptors, "exempt": exempt, "outcome": outcome}
        for name, function in (functions | {"on_refused": on_refused, "instrument": instrument}).items():
            if not (function is None or callable(function)):
                raise TypeError(f"{name} is a function, as in {name}=lambda …, not {type(function).__name__}")
        check_name("domain", domain)
        if not callable(cost):
            encode_cost(cost)
        names = list(attributes) if isinstance(attributes, Mapping) else []
        for name in names:
            check_name("attribute", name)
        if len({*names, *ALWAYS}) > PAIRS_MAX:
            raise ValueError(f"more than {PAIRS_MAX} attributes, of which {len(ALWAYS)} are always sent")
        self.client, self.domain = client, domain
        self._fallback = None if fallback is None else beside("fallback", "as_fallback")(fallback)
        self._callbacks: dict[str, Any] = {"exempt": exempt, "user": user, "attributes": attributes, "cost": cost}
        self._callbacks |= {"descriptors": descriptors, "priority": priority, "on_failure": by_path or on_failure}
        self._outcome, self._on_refused, self._instrument, self._style = outcome, on_refused, instrument, headers
        self._proxies = trusted_proxies if isinstance(trusted_proxies, int) else _networks(trusted_proxies)

    def arguments(self, seen: Seen) -> dict[str, Any] | Decision | None:
        """Returns keyword arguments for `acquire`, without those whose callback raised; None if the request is exempt;
        a refusal of an invalid cost or action.
        """
        given: dict[str, Any] = {}
        for name, callback in self._callbacks.items():
            try:
                given[name] = callback(seen.request) if callable(callback) else callback
                if name == "attributes" and isinstance(callback, Mapping):
                    given[name] = {key: self._attribute(seen, key, source) for key, source in callback.items()}
                if name == "attributes":
                    given[name] = _mapping(given[name])
                if name == "descriptors":
                    given[name] = [_mapping(one) for one in given[name] or ()]
                if name == "on_failure" and isinstance(callback, tuple):
                    given[name] = next((then for start, then in given[name] if seen.path.startswith(start)), "allow")
                if name == "on_failure":
                    check_word(name, given[name], "allow", "refuse", None)
                if name == "cost":
                    encode_cost(given[name])
            except Exception as error:
                if name in ("cost", "on_failure") and name in given:  # the function returned an invalid value
                    core = getattr(self.client, "_core", self.client)
                    return core._refuse(Fault(str(error), "invalid"))  # type: ignore[no-any-return]
                callback_failed(self.client, name, error)
                given[name] = {"attributes": {}, "cost": 1, "on_failure": "allow"}.get(name)
            if name == "exempt" and given[name]:
                return None
        attributes: dict[str, object] = {"method": seen.method, "path": seen.path}
        if seen.route is not None:
            attributes["route"] = seen.route
        attributes["ip"] = self._address(seen)
        attributes["user"] = given["user"]
        attributes["user_agent"] = seen.header("User-Agent")
        attributes.update(given["attributes"])
        arguments = {"attributes": [attributes, *given["descriptors"]] if given["descriptors"] else attributes}
        arguments |= {"cost": given["cost"], "priority": given["priority"]}
        if self._fallback is not None:
            arguments["fallback"] = self._fallback
        return arguments | {"queued": self._queued(seen), "on_failure": given["on_failure"]}

    def observe(self, decision: Decision, started: float) -> Decision:
        """Calls `instrument` with a decision requested at `started`, and returns the decision."""
        if self._instrument is not None:
            try:
                self._instrument(decision, time.monotonic() - started)
            except Exception as error:
                if from_signal(error):
                    raise
                self.client._log(f"instrument raised {type(error).__name__}", once=True)
        return decision

    def refusal(self, request: Any, decision: Decision) -> Any:
        """Returns the result of `on_refused`, whose exceptions pass, or (status, headers, body)."""
        answer = self._on_refused(request, decision) if self._on_refused else None
        return refusal(decision) if answer is None else answer

    def usual_refusal(self, decision: Decision, error: Exception) -> tuple[int, Headers, bytes]:
        """Returns the default response if `on_refused` raised `error`."""
        callback_failed(self.client, "on_refused", error, "refusals get the usual response")
        return refusal(decision)

    def fields(self, decision: Decision, status: int, there: Iterable[str]) -> Headers:
        """Returns the limit headers to add to a response with `status` and headers named `there`."""
        if 300 <= status < 400:  # clients would delay following a redirect
            return []
        names = {name.lower() for name in there}
        left_out = _LEFT_OUT[self._style]
        fields = decision.headers().items()
        return [field for field in fields if not field[0].startswith(left_out) and field[0].lower() not in names]

    def outcome(self, status: int) -> Outcome:
        usual: Outcome = "ok" if status < 400 else "error"
        try:
            return (self._outcome(status) if self._outcome else None) or usual
        except Exception as error:
            if from_signal(error):
                raise
            self.client._log(f"outcome raised {type(error).__name__}: the status decides", once=True)
            return usual

    def _attribute(self, seen: Seen, name: str, source: str | Callable[[Any], object]) -> object:
        try:
            return source(seen.request) if callable(source) else seen.header(source)
        except Exception as error:
            callback_failed(self.client, f'attributes["{name}"]', error)
            return None

    def _address(self, seen: Seen) -> str:
        forwarded = seen.header("X-Forwarded-For")
        # A dual-stack socket reports IPv4 peers as mapped IPv6 addresses.
        peer = seen.peer[7:] if seen.peer.startswith("::ffff:") and "." in seen.peer else seen.peer
        address = client_address(peer, forwarded, self._proxies) if forwarded and self._proxies != () else peer
        if not address:
            self.client._log(NO_ADDRESS, once=True)
        elif forwarded and self._proxies == ():
            self.client._log(UNTRUSTED, once=True)
        return address

    def _queued(self, seen: Seen) -> float | None:
        """Returns the seconds that the request waited for the application, by the header of a trusted proxy."""
        start = seen.header("X-Request-Start")
        return queued(start, time.time()) if start and _is_proxy(seen.peer, self._proxies) else None


def _mapping(given: Any) -> dict[str, object]:
    """Copies what a function returned as attributes; raises WrongResult for no mapping."""
    if not (given is None or hasattr(given, "keys")):
        raise WrongResult(f"{type(given).__name__}, not a mapping")
    return {**(given or {})}


def refusal(decision: Decision) -> tuple[int, Headers, bytes]:
    """Returns the default response to a refusal, without limit headers."""
    body = problem(decision)
    kind, length = ("Content-Type", "application/problem+json"), ("Content-Length", str(len(body)))
    return decision.status, [kind, length, ("Cache-Control", "no-store")], body


def status_code(status: int | str) -> int:
    return status if isinstance(status, int) else int(status[:3])


def status_line(status: int | str) -> str:
    if isinstance(status, str):
        return status
    return f"{status} {PROBLEMS[status][1]}" if status in PROBLEMS else f"{status} Refused"


def clean(path: str) -> str:
    """Normalizes a decoded path: removes dot segments and repeated slashes."""
    if path.startswith("/") and "//" not in path and "/." not in path:
        return path
    kept: list[str] = []
    for segment in path.split("/"):
        if segment == "..":
            del kept[-1:]
        elif segment not in ("", "."):
            kept.append(segment)
    return "/" + "/".join(kept) + ("/" if kept and path.endswith(("/", "/.", "/..")) else "")


def queued(text: str, now: float) -> float | None:
    """Returns seconds since an X-Request-Start: Unix time, optionally after "t=", in seconds, milliseconds or
    microseconds, recognized by their size. None for times in the future or more than 60 s ago.
    """
    found = re.fullmatch(r"(?:t=)?([0-9]{1,20}(?:[.][0-9]{1,9})?)", text.strip())
    if found is None:
        return None
    started = float(found[1])
    waited = now - started / (1e6 if started >= 1e14 else 1e3 if started >= 1e11 else 1)
    return waited if 0 <= waited <= QUEUED_MAX else None


def client_address(peer: str, forwarded: str, proxies: Any) -> str:
    """Returns the caller: the nearest hop that is not a trusted proxy. Hops left of it may be forged."""
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
                continue  # a Unix socket: the peer is a proxy on this host
            return nearest
        plain = getattr(address, "ipv4_mapped", None) or address
        nearest = str(plain)
        if not any(plain in network for network in proxies):
            break
    return nearest


def _is_proxy(peer: str, proxies: Any) -> bool:
    """True if the peer is a trusted proxy; a Unix socket's peer has no address and is trusted if any proxy is."""
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
    return tuple(ipaddress.ip_network(proxy) for proxy in ([proxies] if isinstance(proxies, str) else proxies))


ALWAYS = ("method", "path", "route", "ip", "user", "user_agent")  # attributes of every request
NO_ADDRESS = (
    "requests over a Unix socket have no `ip`: rules by ip do not judge them; "
    "help: set trusted_proxies, and let the proxy send X-Forwarded-For"
)
UNTRUSTED = "X-Forwarded-For is present but trusted_proxies is not set: callers are counted by their proxy"
QUEUED_MAX = 60.0  # seconds; a longer time means that the proxy's clock differs
# Prefixes of the headers that a style omits. Every refusal has Retry-After.
_LEFT_OUT = {"both": (), "draft": ("X-",), "legacy": ("RateLimit",), "none": ("X-", "RateLimit")}
