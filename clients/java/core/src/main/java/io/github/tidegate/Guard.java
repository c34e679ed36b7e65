package io.github.tidegate;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Function;
import java.util.function.Predicate;
import java.util.function.Supplier;

/**
 * Common part of filters and interceptors: attributes of a request, options of the check, response to a refusal.
 *
 * @param <R> the framework's request, which the application's functions get
 */
public final class Guard<R> {
    /**
     * A request as a filter sees it; absent parts are null.
     *
     * @param path decoded, as {@link #path} returns it
     * @param peer address of the peer; null or empty for a Unix socket
     * @param header value of a header, by its name in small letters
     * @param route the pattern that the framework matched
     */
    public record Seen(String method, String path, String peer, Function<String, String> header, String route) {
        /** Makes one without a route. */
        public Seen(String method, String path, String peer, Function<String, String> header) {
            this(method, path, peer, header, null);
        }
    }

    private final TidegateClient client;
    private final String domain;
    private final GuardOptions<R> options;

    /**
     * Makes a guard.
     *
     * @throws IllegalArgumentException if the domain is not a name
     */
    public Guard(TidegateClient client, String domain, GuardOptions<R> options) {
        if (!Request.isName(domain)) {
            throw new IllegalArgumentException("the domain " + domain + " is not a name");
        }
        this.client = java.util.Objects.requireNonNull(client, "client");
        this.domain = domain;
        this.options = java.util.Objects.requireNonNull(options, "options");
    }

    /** Returns the decision; null if the request is exempt. */
    public Decision judge(R request, Seen seen) {
        long began = System.nanoTime();
        Decision decision = decide(request, seen);
        if (decision != null && options.instrument != null) {
            call("instrument", () -> {
                options.instrument.decided(decision, Duration.ofNanos(System.nanoTime() - began));
                return null;
            });
        }
        return decision;
    }

    /** Returns the response to a refusal, with limit headers; the usual one if {@code onRefused} throws. */
    public GuardOptions.Refusal refusal(R request, Decision decision) {
        GuardOptions.Refusal own = value("onRefused", () -> options.onRefused.apply(request, decision), null, "refusals get the usual response");
        if (own == null) {
            Map<String, String> headers = new LinkedHashMap<>();
            headers.put("Content-Type", "application/problem+json");
            headers.put("Cache-Control", "no-store");
            own = new GuardOptions.Refusal(decision.status(), headers, decision.problem().getBytes(StandardCharsets.UTF_8));
        }
        Map<String, String> all = new LinkedHashMap<>(own.headers());
        all.putAll(fields(decision, own.status(), name -> own(all, name)));
        return new GuardOptions.Refusal(own.status(), all, own.body());
    }

    private static boolean own(Map<String, String> headers, String name) {
        return headers.keySet().stream().anyMatch(name::equalsIgnoreCase);
    }

    /** Returns the limit headers to add to a response that has some of its own. */
    public Map<String, String> fields(Decision decision, int status, Predicate<String> own) {
        Map<String, String> fields = new LinkedHashMap<>();
        if (status < 300 || status >= 400) { // clients would delay following a redirect
            decision.headers().forEach((name, value) -> {
                boolean legacy = name.startsWith("X-"), draft = name.startsWith("RateLimit");
                boolean omitted = switch (options.headers) {
                    case BOTH -> false;
                    case DRAFT -> legacy;
                    case LEGACY -> draft;
                    case NONE -> legacy || draft;
                };
                if (!omitted && !own.test(name)) {
                    fields.put(name, value);
                }
            });
        }
        return fields;
    }

    /** Returns the outcome of a status; {@code usual} unless the application says otherwise. */
    public Outcome outcome(int status, Outcome usual) {
        Outcome own = call("outcome", () -> options.outcome.apply(status));
        return own == null ? usual : own;
    }

    /** Returns a result that may be absent, and logs an exception. */
    private <T> T call(String name, Supplier<T> function) {
        try {
            return function.get();
        } catch (Exception error) { // of other languages also a checked one
            log(name, error, "");
            return null;
        }
    }

    /** Returns the result of a function of the application; {@code otherwise} if it throws, which is counted and logged. */
    private <T> T value(String name, Supplier<T> function, T otherwise, String effect) {
        try {
            return function.get();
        } catch (Exception error) { // of other languages also a checked one
            log(name, error, ": such " + effect);
            client.degrade(Reason.CALLBACK, OnFailure.ALLOW, domain); // counts it; the next request reports it
            return otherwise;
        }
    }

    private <T> T value(String name, Supplier<T> function, T otherwise) {
        return value(name, function, otherwise, "requests are checked without it");
    }

    /** Logs the line of the application, but no message, which may contain personal data. */
    private void log(String name, Exception error, String effect) {
        StackTraceElement[] places = error.getStackTrace();
        boolean known = places.length > 0 && !places[0].getClassName().equals(Guard.class.getName()); // here: a wrong result
        client.log(name + " threw " + error.getClass().getSimpleName() + (known ? " at " + places[0] : "") + effect, true);
    }

    private Decision decide(R request, Seen seen) {
        if (value("exempt", () -> options.exempt.test(request), false)) {
            return null;
        }
        Map<String, Object> attributes = new LinkedHashMap<>();
        attributes.put("method", seen.method());
        attributes.put("path", seen.path());
        String route = value("route", () -> options.route.apply(request), null);
        attributes.put("route", route != null ? route : seen.route());
        attributes.put("ip", address(seen));
        attributes.put("user", value("user", () -> options.user.apply(request), null));
        attributes.put("user_agent", seen.header().apply("user-agent"));
        options.named.forEach((name, function) -> attributes.put(name, value("attribute " + name, () -> function.apply(request), null)));
        attributes.putAll(value("attributes", () -> {
            Map<String, ?> further = options.attributes.apply(request);
            return further == null ? Map.of() : new LinkedHashMap<>(further);
        }, Map.of()));
        List<? extends Map<String, ?>> descriptors = value("descriptors", () -> options.descriptors.apply(request), null);
        Cost cost = value("cost", () -> options.cost.apply(request), Cost.ONE);
        String priority = value("priority", () -> options.priority.apply(request), null);
        OnFailure onFailure = value("onFailure", () -> onFailure(request, seen.path()), OnFailure.ALLOW);
        Double queued = options.proxies.queued(seen.peer(), seen.header().apply("x-request-start"), System.currentTimeMillis());
        CallOptions given;
        try {
            given = new CallOptions(cost, descriptors, priority, null, queued == null ? null : Duration.ofNanos((long) (queued * 1e6)),
                    null, onFailure, options.fallback);
        } catch (IllegalArgumentException invalid) { // a function returned a negative cost
            return client.refuse(Fault.invalid(invalid.getMessage()), domain);
        }
        return client.acquire(domain, attributes, given);
    }

    private OnFailure onFailure(R request, String path) {
        for (Map.Entry<String, OnFailure> one : options.onFailureOf.entrySet()) {
            if (path.startsWith(one.getKey())) {
                return one.getValue();
            }
        }
        return options.onFailure.apply(request);
    }

    private String address(Seen seen) {
        String forwarded = seen.header().apply("x-forwarded-for");
        String address = options.proxies.caller(seen.peer(), forwarded);
        if (address == null || address.isEmpty()) {
            client.log("requests over a Unix socket have no `ip`: rules by ip do not judge them; "
                    + "help: set trustedProxies, and let the proxy send X-Forwarded-For", true);
        } else if (forwarded != null && options.proxies.none()) {
            client.log("X-Forwarded-For is present but trustedProxies is not set: callers are counted by their proxy", true);
        }
        return address;
    }

    /** Returns the path of a URL: decoded once, without query, parameters of segments, dot segments and repeated slashes. */
    public static String path(String url) {
        String raw = url.replaceFirst("^(?i)[a-z][a-z0-9+.-]*://[^/?#]*", "").replaceFirst("(?s)[?#].*$", "").replaceAll(";[^/]*", "");
        byte[] from = raw.getBytes(StandardCharsets.UTF_8), to = new byte[from.length];
        int size = 0;
        for (int i = 0; i < from.length; i++, size++) {
            boolean escaped = from[i] == '%' && i + 2 < from.length && Character.digit(from[i + 1], 16) >= 0
                    && Character.digit(from[i + 2], 16) >= 0;
            to[size] = escaped ? (byte) (Character.digit(from[i + 1], 16) << 4 | Character.digit(from[i + 2], 16)) : from[i];
            i += escaped ? 2 : 0;
        }
        String text = new String(to, 0, size, StandardCharsets.UTF_8);
        Deque<String> kept = new ArrayDeque<>();
        for (String segment : text.split("/")) {
            if (segment.equals("..")) {
                kept.pollLast();
            } else if (!segment.isEmpty() && !segment.equals(".")) {
                kept.add(segment);
            }
        }
        boolean slash = !kept.isEmpty() && (text.endsWith("/") || text.endsWith("/.") || text.endsWith("/.."));
        return "/" + String.join("/", kept) + (slash ? "/" : "");
    }
}
