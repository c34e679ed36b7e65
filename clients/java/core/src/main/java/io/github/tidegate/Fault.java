package io.github.tidegate;

/** An unsendable request, a failed exchange or an invalid reply. Has no stack trace, since callers get it as a value. */
final class Fault extends RuntimeException {
    private static final long serialVersionUID = 1;
    final Reason reason;
    /** The daemon did not process the request. */
    boolean again;
    /** The daemon accepts no further connection. */
    boolean full;
    /** The connection stays open. */
    boolean kept;
    /** No process listens. */
    boolean absent;

    Fault(Reason reason, String message) {
        super(message, null, false, false);
        this.reason = reason;
    }

    static Fault malformed(String message) {
        return new Fault(Reason.PROTOCOL, message);
    }

    static Fault invalid(String message) {
        return new Fault(Reason.INVALID, message);
    }

    Fault full() {
        full = true;
        return this;
    }

    Fault again(boolean value) {
        Fault copy = new Fault(reason, getMessage());
        copy.again = value;
        copy.full = full;
        copy.absent = absent;
        return copy;
    }
}
