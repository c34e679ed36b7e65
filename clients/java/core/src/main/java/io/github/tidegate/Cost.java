package io.github.tidegate;

import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Objects;

/**
 * Amounts by unit. A cost above 2^32 - 1 is refused by the daemon for good.
 *
 * @param units amounts in the order in which they are sent
 */
public record Cost(Map<String, Long> units) {
    /** The unit of a plain number. */
    static final String REQUESTS = "requests";

    /** One request. */
    public static final Cost ONE = of(1);

    /** Makes an immutable copy: an IllegalArgumentException if it or an amount is null, since no rule would check it. */
    public Cost {
        if (units == null || units.values().stream().anyMatch(Objects::isNull)) {
            throw new IllegalArgumentException("a cost has an amount for each of its units");
        }
        units = Collections.unmodifiableMap(new LinkedHashMap<>(units));
    }

    /** Returns a number of requests. */
    public static Cost of(long requests) {
        return of(REQUESTS, requests);
    }

    /** Returns an amount of a unit, such as {@code tokens}. */
    public static Cost of(String unit, long amount) {
        return new Cost(Collections.singletonMap(unit, amount));
    }

    /** Returns these amounts and another. */
    public Cost and(String unit, long amount) {
        Map<String, Long> more = new LinkedHashMap<>(units);
        more.put(unit, amount);
        return new Cost(more);
    }

    /** Returns the form of the protocol: a number of requests alone is a plain number. */
    Object wire() {
        Long requests = units.size() == 1 ? units.get(REQUESTS) : null;
        return requests != null ? requests : units;
    }

    /** Throws an IllegalArgumentException if an amount is negative: a programmer's error. */
    void checkNotNegative() {
        for (Long amount : units.values()) {
            if (amount < 0) {
                throw new IllegalArgumentException("a cost is 0 or more; help: refund with charge(…, Cost.of(-1), ChargeOptions.refundOf(decision))");
            }
        }
    }
}
