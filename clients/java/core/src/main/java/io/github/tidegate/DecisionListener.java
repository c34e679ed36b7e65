package io.github.tidegate;

import java.time.Duration;

/** Called after each decision, by the thread of the request. Record and return; an exception is logged once. */
@FunctionalInterface
public interface DecisionListener {
    /**
     * Records a decision.
     *
     * @param took the time that the application waited for it
     */
    void decided(Decision decision, Duration took);
}
