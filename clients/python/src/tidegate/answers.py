"""Headers, message and body of an HTTP response, as in tests/vectors/answers.json."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from . import Decision, plain_headers


def headers(decision: Decision) -> dict[str, str]:
    """Returns RateLimit (ratelimit-headers-11), X-Ratelimit and, of a refusal, Retry-After headers."""
    fields: dict[str, str] = {}
    if _is_named(decision):
        limit, left = (min(number or 0, 10**15 - 1) for number in (decision.limit, decision.remaining))  # of 15 digits
        unit = _unit(decision) if decision.window else "concurrent-requests"
        name, unit_name = (json.dumps(s.encode("ascii", "replace").decode()) for s in (decision.rule or "", unit))
        policy = f"{name};q={limit}" + ("" if unit == "requests" else f";qu={unit_name}")
        window = decision.window
        fields["RateLimit"] = f"{name};r={left}" + (f";t={math.ceil(decision.reset_after or 0)}" if window else "")
        fields["RateLimit-Policy"] = policy + (f";w={math.ceil(window)}" if window else "")
    return fields | plain_headers(decision)


def message(decision: Decision) -> str:
    """One sentence for people: the rule, its limit, and the time of a retry."""
    if decision.allowed or decision.verdict == "deny":
        return "Allowed." if decision.allowed else "This request is not allowed."
    cause = "The request could not be judged." if decision.reason is not None else "The service is at its capacity."
    cause = "Too many requests." if decision.verdict == "limit" else cause
    if decision.extra.get("blocked") is True and decision.verdict == "limit":
        cause = "This caller is blocked."
    elif _is_named(decision) and decision.verdict == "limit":
        cause = f"Over the limit {decision.rule} of {_quota(decision)}."
    if decision.retry_after is None:
        return f"{cause} It asks for more than the limit holds: it can never pass."
    return f"{cause} Try again in {max(1, math.ceil(decision.retry_after))} s."


def problem(decision: Decision) -> bytes:
    """Returns the body of a refusal, application/problem+json: RFC 9457, with the types of the draft.

    Its `retry_after` is exact to the millisecond, unlike the header.
    """
    kind, title = PROBLEMS.get(decision.status, (None, "OK"))
    about = f"https://iana.org/assignments/http-problem-types#{kind}" if kind else "about:blank"
    if decision.extra.get("blocked") is True and decision.verdict == "limit":
        about = "urn:tidegate:problem:blocked"
    answer: dict[str, Any] = {"type": about, "title": title, "status": decision.status, "detail": decision.message}
    if _is_named(decision) and decision.verdict == "limit":
        window = _thousandths(decision.window or 0)
        answer |= {"violated-policies": [decision.rule], "limit": decision.limit, "window": window}
        answer |= {"domain": decision.domain, "digest": decision.digest} if decision.digest else {}
    if not decision.allowed and decision.retry_after is not None:
        answer["retry_after"] = _thousandths(decision.retry_after)
    if decision.help:
        answer["help"] = decision.help
    return json.dumps(answer, ensure_ascii=False, separators=(",", ":")).encode()


def _is_named(decision: Decision) -> bool:
    """True if the response names the rule and its limit."""
    return decision.rule is not None and decision.limit is not None and decision.extra.get("hide") is not True


def _quota(decision: Decision) -> str:
    """Returns the quota as the rule writes it, if the daemon sends that, else the limit and its window."""
    if found := RATE.fullmatch(str(decision.extra.get("rate"))):
        count, periods, period = found.groups()
        unit = "request" if (count, _unit(decision)) == ("1", "requests") else _unit(decision)
        article, noun = PERIODS[period]
        return f"{count} {unit} {article} {noun}" if periods in ("", "1") else f"{count} {unit} in {periods} {noun}s"
    window = decision.window
    amount = f"{_unit(decision)} in {_thousandths(window)} s" if window else "at once"
    return f"{decision.limit} {amount}"


def _unit(decision: Decision) -> str:
    return str(decision.extra.get("unit") or "requests")


def _thousandths(seconds: float) -> int | float:
    """Rounds up to milliseconds."""
    count = math.ceil(round(seconds * 1e6) / 1000)
    return count / 1000 if count % 1000 else count // 1000


PROBLEMS = {
    403: (None, "Forbidden"),
    429: ("quota-exceeded", "Too Many Requests"),
    503: ("temporary-reduced-capacity", "Service Unavailable"),
}

RATE = re.compile("([0-9]{1,10})/([0-9]{0,10})(ms|s|min|h|day|week|month)")

PERIODS = {
    "ms": ("a", "millisecond"),
    "s": ("a", "second"),
    "min": ("a", "minute"),
    "h": ("an", "hour"),
    "day": ("a", "day"),
    "week": ("a", "week"),
    "month": ("a", "month"),
}
