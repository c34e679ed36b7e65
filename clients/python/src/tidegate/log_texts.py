"""Lines of the log that explain a state: texts with causes and help, never a value of an attribute."""

from __future__ import annotations

from . import LOGGED_MAX, Client, Decision
from .protocol import decode


def log_unmatched(client: Client, elements: list[bytes], decision: Decision) -> None:
    """Logs, once for each domain, that none of its rules matched a request with these encoded elements."""
    key = f"no rule of {elements[0]!r}"
    if ("unmatched", "rule") not in decision.notes or key in client._logged or len(client._logged) >= LOGGED_MAX:
        return
    client._logged.add(key)
    domain, lists = decode(b"\x92" + elements[0] + elements[1])
    names = ", ".join(dict.fromkeys(name for one in lists for name in one[::2]))
    about = f"a request with the attributes {names}" if names else "a request without attributes"
    why = f"it is not limited; `tidegate why {domain} …` says why"
    client._log(f'no rule of the domain "{domain}" matches {about}: {why}')


def consequence(client: Client) -> str:
    """Returns what happens to requests while the daemon does not answer."""
    if client._fallback:
        return "are limited by the fallback"
    return "with on_failure refuse get status 503, others are not limited" if client._refuses else "are not limited"


def oversized(start: bytes) -> str:
    """Explains a frame whose length is above the maximum."""
    if start[:4] == b"HTTP":
        return "the daemon answered in HTTP: that is the admin socket; set TIDEGATE_SOCKET to the one beside it"
    return f"malformed frame of {int.from_bytes(start[:4], 'big')} bytes"
