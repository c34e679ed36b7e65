package io.github.tidegate;

/** The cause of a decision without the daemon; the last four refuse an invalid or forbidden request. */
public enum Reason {
    /** No process listens, or the connection ended. */
    UNREACHABLE,
    /** The daemon did not answer before the deadline. */
    TIMEOUT,
    /** The daemon failed, or its reply is malformed. */
    PROTOCOL,
    /** The breaker is open: the request cost no I/O. */
    BREAKER,
    /** A function of the application threw. Only counted: no decision has it. */
    CALLBACK,
    /** The client is disabled. */
    DISABLED,
    /** The fallback decided. */
    FALLBACK,
    /** The request is invalid. */
    INVALID,
    /** The session holds too many leases. */
    QUOTA,
    /** The daemon does not serve this process. */
    FORBIDDEN,
    /** The domain is closed to this user. */
    NOT_ALLOWED;

    private final String word = name().toLowerCase(java.util.Locale.ROOT);

    /** Whether the client refuses the request, whatever the daemon's state. */
    public boolean isRefusal() {
        return ordinal() >= INVALID.ordinal();
    }

    /** Returns the word of the protocol, of logs and of metrics: {@code not_allowed}. */
    @Override
    public String toString() {
        return word;
    }
}
