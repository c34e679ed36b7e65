"""A decision as HTTP: fields, sentence and body. Fields of draft-ietf-httpapi-ratelimit-headers-11 (May 2026)."""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import Decision


def headers(decision: Decision, style: str) -> dict[str, str]:
    """`style` is draft, legacy (X-Ratelimit-*), both or none. A shedder has no quota to tell a caller about."""
    fields: dict[str, str] = {}
    draft, legacy = style in ("draft", "both"), style in ("legacy", "both")
    if _named(decision) and decision.verdict != "shed":
        limit, left = min(decision.limit or 0, INTEGER_MAX), min(decision.remaining or 0, INTEGER_MAX)
        name = _string(decision.rule)
        if draft:
            unit = decision.unit if decision.window else "concurrent-requests"
            named_unit = "" if unit == "requests" else f";qu={_string(unit)}"
            fields["RateLimit"] = f"{name};r={left}"
            fields["RateLimit-Policy"] = f"{name};q={limit}{named_unit}"
        if draft and decision.window:
            fields["RateLimit"] += f";t={math.ceil(decision.reset_after or 0)}"
            fields["RateLimit-Policy"] += f";w={math.ceil(decision.window)}"
        if legacy:
            fields |= {"X-Ratelimit-Limit": str(limit), "X-Ratelimit-Remaining": str(left)}
    if not decision.allowed and decision.retry_after is not None and (draft or legacy):
        fields["Retry-After"] = _seconds(decision)
        if legacy and not decision.hidden:
            fields["X-Ratelimit-Retry-After"] = _seconds(decision)
    return fields


def message(decision: Decision) -> str:
    if decision.allowed or decision.verdict == "deny":
        return "Allowed." if decision.allowed else "This request is not allowed."
    again = f"Try again in {_seconds(decision)} s."
    if decision.retry_after is None:
        again = "It asks for more than the limit holds: it can never pass."
    if decision.degraded:
        return f"The request could not be judged. {again}"
    if decision.verdict == "shed":
        return f"The service is at its capacity. {again}"
    if not _named(decision):
        return f"Too many requests. {again}"
    amount = f"{decision.unit} in {decision.window:g} s" if decision.window else "at once"
    return f"Over the limit {decision.rule} of {decision.limit} {amount}. {again}"


def problem(decision: Decision) -> bytes:
    """RFC 9457, with the draft's types; its `retry_after` is exact to the millisecond, unlike the header."""
    kind = {429: "quota-exceeded", 503: "temporary-reduced-capacity"}.get(decision.status)
    title = {429: "Too Many Requests", 503: "Service Unavailable", 403: "Forbidden"}.get(decision.status, "OK")
    about = f"https://iana.org/assignments/http-problem-types#{kind}" if kind else "about:blank"
    answer: dict[str, Any] = {"type": about, "title": title, "status": decision.status, "detail": message(decision)}
    if _named(decision) and decision.verdict == "limit":
        answer |= {"violated-policies": [decision.rule], "limit": decision.limit, "window": decision.window}
    if not decision.allowed and decision.retry_after is not None:
        answer["retry_after"] = math.ceil(decision.retry_after * 1000) / 1000
    if decision.help:
        answer["help"] = decision.help
    return json.dumps(answer).encode()


def _named(decision: Decision) -> bool:
    return decision.rule is not None and decision.limit is not None and not decision.hidden


def _string(text: str | None) -> str:
    """A String of a structured field, which knows ASCII only."""
    return '"' + re.sub(r'(["\\])', r"\\\1", re.sub(r"[^ -~]", "?", text or "")) + '"'


def _seconds(decision: Decision) -> str:
    return str(max(1, math.ceil(decision.retry_after or 0)))


INTEGER_MAX = 10**15 - 1  # of a structured field
