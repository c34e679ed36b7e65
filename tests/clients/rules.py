"""Rules that make each response identify its user: every user has its own limit, and u0 is denied."""

USERS = 10  # u0 is denied
BURST = 1_000_000  # wide enough that no request is refused
RULES = "domain: api\ndeny: [{name: nobody, match: {user: u0}}]\nlimits:\n" + "".join(
    f"  - {{name: of-{n}, match: {{user: u{n}}}, key: [user], rate: 1000000/s, burst: {BURST + n}}}\n"
    for n in range(1, USERS)
)
# A concurrency limit: no lease may remain.
CONCURRENCY = "concurrency: [{name: at-once, key: [], max: 100000, expires: 1h, advertise: false}]\n"


def limit_of(headers):
    """Returns the limit in a response; None: without a decision of the daemon."""
    return int(headers["x-ratelimit-limit"]) if "x-ratelimit-limit" in headers else None
