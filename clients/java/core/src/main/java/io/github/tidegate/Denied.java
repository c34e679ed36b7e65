package io.github.tidegate;

/** Thrown by {@code limit} if the work may not start. */
public final class Denied extends RuntimeException {
    private static final long serialVersionUID = 1;
    private final transient Decision decision;

    Denied(Decision decision) {
        super(decision.message());
        this.decision = decision;
    }

    /** Returns the decision, which has the rule and the retry time. */
    public Decision decision() {
        return decision;
    }
}
