"""Rules by which an answer tells whose it is: of every user there is a limit of his own, of one, that he is denied."""

USERS = 10  # u0 is denied
BURST = 1_000_000  # wide enough that no request is refused
RULES = "domain: api\ndeny: [{name: nobody, match: {user: u0}}]\nlimits:\n" + "".join(
    f"  - {{name: of-{n}, match: {{user: u{n}}}, key: [user], rate: 1000000/s, burst: {BURST + n}}}\n"
    for n in range(1, USERS)
)
# Work that is held: no place may be left behind.
CONCURRENCY = "concurrency: [{name: at-once, key: [], max: 100000, expires: 1h, advertise: false}]\n"


def told(headers):
    """The limit that an answer tells of; None: it was not judged."""
    return int(headers["x-ratelimit-limit"]) if "x-ratelimit-limit" in headers else None
