package io.github.tidegate;

import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.function.BiFunction;
import java.util.function.Function;
import java.util.function.IntFunction;
import java.util.function.Predicate;

/**
 * Options of a filter or interceptor; do not change them after it is made. A function that throws is left out: its attribute
 * is absent, the cost is 1, the request is not exempt, and the daemon is asked; the client logs the line once.
 *
 * @param <R> the framework's request
 */
public final class GuardOptions<R> {
    /** The limit headers that a response gets. */
    public enum Headers {
        /** RateLimit and X-Ratelimit. */
        BOTH,
        /** RateLimit, of the draft. */
        DRAFT,
        /** X-Ratelimit. */
        LEGACY,
        /** No limit headers. */
        NONE
    }

    /** Another response to a refusal, to which limit headers are added. */
    public record Refusal(int status, Map<String, String> headers, byte[] body) {
        /** Checks that nothing is null. */
        public Refusal {
            Objects.requireNonNull(headers, "headers");
            Objects.requireNonNull(body, "body");
        }
    }

    Function<R, ?> user = request -> null;
    Function<R, String> route = request -> null;
    Function<R, ? extends Map<String, ?>> attributes = request -> Map.of();
    final Map<String, Function<R, ?>> named = new LinkedHashMap<>();
    Function<R, ? extends List<? extends Map<String, ?>>> descriptors = request -> List.of();
    Function<R, Cost> cost = request -> Cost.ONE;
    Function<R, String> priority = request -> null;
    Predicate<R> exempt = request -> false;
    IntFunction<Outcome> outcome = status -> null;
    BiFunction<R, Decision, Refusal> onRefused = (request, decision) -> null;
    Function<R, OnFailure> onFailure = request -> OnFailure.ALLOW;
    Map<String, OnFailure> onFailureOf = Map.of();
    DecisionListener instrument;
    Fallback fallback;
    Proxies proxies = Proxies.NONE;
    Headers headers = Headers.BOTH;

    /** The caller's name, from your server's knowledge, such as the session; null: unknown. */
    public GuardOptions<R> user(Function<R, ?> value) {
        user = value;
        return this;
    }

    /** The pattern of the route that handles the request; null: the one that the framework knows, if it does. */
    public GuardOptions<R> route(Function<R, String> value) {
        route = value;
        return this;
    }

    /** Further attributes. */
    public GuardOptions<R> attributes(Function<R, ? extends Map<String, ?>> value) {
        attributes = value;
        return this;
    }

    /**
     * One further attribute.
     *
     * @throws IllegalArgumentException if its name is not a name
     */
    public GuardOptions<R> attribute(String name, Function<R, ?> value) {
        if (!Request.isName(name)) {
            throw new IllegalArgumentException(name + " is not a name of an attribute");
        }
        named.put(name, value);
        return this;
    }

    /** Further descriptors, at most 7. */
    public GuardOptions<R> descriptors(Function<R, ? extends List<? extends Map<String, ?>>> value) {
        descriptors = value;
        return this;
    }

    /** The cost; one request by default. */
    public GuardOptions<R> cost(Function<R, Cost> value) {
        cost = value;
        return this;
    }

    /** The priority, a word of the rules. Never from an end user's header. */
    public GuardOptions<R> priority(Function<R, String> value) {
        priority = value;
        return this;
    }

    /** True: no check. */
    public GuardOptions<R> exempt(Predicate<R> value) {
        exempt = value;
        return this;
    }

    /** The outcome of a status (of gRPC: its code); null: <i>ok</i> below 400 (of gRPC: of OK), else <i>error</i>. */
    public GuardOptions<R> outcome(IntFunction<Outcome> value) {
        outcome = value;
        return this;
    }

    /** Another HTTP response to a refusal; null, or if it throws: application/problem+json. */
    public GuardOptions<R> onRefused(BiFunction<R, Decision, Refusal> value) {
        onRefused = value;
        return this;
    }

    /** The decision if the daemon does not answer. */
    public GuardOptions<R> onFailure(OnFailure value) {
        return onFailure(request -> value);
    }

    /** The decision if the daemon does not answer. */
    public GuardOptions<R> onFailure(Function<R, OnFailure> value) {
        onFailure = value;
        return this;
    }

    /** The decision if the daemon does not answer, by prefix of the path: the first that matches, before the function. */
    public GuardOptions<R> onFailure(Map<String, OnFailure> value) {
        onFailureOf = new LinkedHashMap<>(value);
        return this;
    }

    /** Called after each decision. */
    public GuardOptions<R> instrument(DecisionListener value) {
        instrument = value;
        return this;
    }

    /** Replaces the client's fallback. */
    public GuardOptions<R> fallback(Fallback value) {
        fallback = value;
        return this;
    }

    /**
     * Networks of proxies whose X-Forwarded-For and X-Request-Start count, such as {@code 10.0.0.0/8}.
     *
     * @throws IllegalArgumentException if one is no network
     */
    public GuardOptions<R> trustedProxies(String... networks) {
        proxies = new Proxies(List.of(networks), 0);
        return this;
    }

    /**
     * The number of proxies in front, instead of their networks.
     *
     * @throws IllegalArgumentException if it is negative
     */
    public GuardOptions<R> trustedProxies(int count) {
        proxies = new Proxies(List.of(), count);
        return this;
    }

    /** The limit headers; both by default. Never on redirects, and never over the application's own. */
    public GuardOptions<R> headers(Headers value) {
        headers = Objects.requireNonNull(value, "headers");
        return this;
    }
}
