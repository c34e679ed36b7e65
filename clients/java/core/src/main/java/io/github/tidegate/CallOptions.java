package io.github.tidegate;

import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Objects;

/**
 * Options of a request, immutable: {@code CallOptions.NONE.cost(3).idem("order-17")}.
 *
 * @param cost one request by default
 * @param descriptors further descriptors beside the attributes; at most 7
 * @param priority importance of the request, a word of the rules. Never from an end user's header
 * @param idem idempotency key, a String or byte[]: a repeat within 60 s of the grant gets the same grant. Never from an end
 *     user's header alone
 * @param queued how long the request already waited for the application
 * @param maxWait longest wait to accept; zero: never wait; null: the rule's queue
 * @param onFailure the decision if the daemon does not answer
 * @param fallback replaces the client's fallback; null: the client's
 */
public record CallOptions(Cost cost, List<? extends Map<String, ?>> descriptors, String priority, Object idem, Duration queued,
        Duration maxWait, OnFailure onFailure, Fallback fallback) {
    /** The defaults. */
    public static final CallOptions NONE = new CallOptions(Cost.ONE, List.of(), null, null, null, null, OnFailure.ALLOW, null);

    /** Replaces null by the default, and checks the cost: an IllegalArgumentException if it is negative. */
    public CallOptions {
        cost = cost == null ? Cost.ONE : cost;
        descriptors = descriptors == null ? List.of() : descriptors.stream().filter(Objects::nonNull).toList();
        onFailure = onFailure == null ? OnFailure.ALLOW : onFailure;
        cost.checkNotNegative();
        if (idem != null && !(idem instanceof String || idem instanceof byte[])) {
            throw new IllegalArgumentException("idem is a String or a byte[]");
        }
    }

    /** Returns these options with a number of requests. */
    public CallOptions cost(long requests) {
        return cost(Cost.of(requests));
    }

    /** Returns these options with a cost. */
    public CallOptions cost(Cost value) {
        return new CallOptions(value, descriptors, priority, idem, queued, maxWait, onFailure, fallback);
    }

    /** Returns these options with further descriptors. */
    public CallOptions descriptors(List<? extends Map<String, ?>> value) {
        return new CallOptions(cost, value, priority, idem, queued, maxWait, onFailure, fallback);
    }

    /** Returns these options with a priority. */
    public CallOptions priority(String value) {
        return new CallOptions(cost, descriptors, value, idem, queued, maxWait, onFailure, fallback);
    }

    /** Returns these options with an idempotency key. */
    public CallOptions idem(String value) {
        return new CallOptions(cost, descriptors, priority, value, queued, maxWait, onFailure, fallback);
    }

    /** Returns these options with an idempotency key. */
    public CallOptions idem(byte[] value) {
        return new CallOptions(cost, descriptors, priority, value, queued, maxWait, onFailure, fallback);
    }

    /** Returns these options with the time that the request already waited. */
    public CallOptions queued(Duration value) {
        return new CallOptions(cost, descriptors, priority, idem, value, maxWait, onFailure, fallback);
    }

    /** Returns these options with the longest wait to accept. */
    public CallOptions maxWait(Duration value) {
        return new CallOptions(cost, descriptors, priority, idem, queued, value, onFailure, fallback);
    }

    /** Returns these options with the decision if the daemon does not answer. */
    public CallOptions onFailure(OnFailure value) {
        return new CallOptions(cost, descriptors, priority, idem, queued, maxWait, value, fallback);
    }

    /** Returns these options with a fallback. */
    public CallOptions fallback(Fallback value) {
        return new CallOptions(cost, descriptors, priority, idem, queued, maxWait, onFailure, value);
    }
}
