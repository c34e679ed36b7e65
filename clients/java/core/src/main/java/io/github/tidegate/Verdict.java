package io.github.tidegate;

/** The answer to a request. */
public enum Verdict {
    /** The request may start. */
    ALLOW(200),
    /** The caller is over a limit, or blocked. */
    LIMIT(429),
    /** The host or the fleet is full. */
    SHED(503),
    /** The request may start after {@link Decision#waitTime()}. */
    WAIT(200),
    /** The caller is on a deny list. */
    DENY(403);

    private final int status;

    Verdict(int status) {
        this.status = status;
    }

    /** Returns the HTTP status: 200, 403, 429 or 503. */
    public int status() {
        return status;
    }
}
