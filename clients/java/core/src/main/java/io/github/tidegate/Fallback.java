package io.github.tidegate;

import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.locks.ReentrantLock;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** Limits while the daemon is unreachable: token buckets in this process, one for each domain and set of attributes. */
public final class Fallback {
    private static final int BUCKETS_MAX = 10_000; // the least recently used one is evicted
    private static final int BOUND_MAX = 256; // pairs of domain and attribute names with a remembered rule
    private static final int KEY_MAX = 64; // longer keys are replaced by their digests
    private static final double ERROR_MAX = 1e-6; // tokens lost to rounding
    private static final double NUMBER_MAX = 4_294_967_295.0, PERIOD_MAX = 366 * 86_400.0; // seconds
    private static final Map<String, Double> UNITS = Map.of("ms", 0.001, "s", 1.0, "min", 60.0, "h", 3_600.0, "day", 86_400.0,
            "week", 604_800.0, "month", 2_592_000.0);
    private static final Pattern RATE = Pattern.compile("(\\d{1,10})/(\\d{0,10})(ms|s|min|h|day|week|month)(?: burst (\\d{1,10}))?");

    /** Rate in tokens per second. */
    private record Quota(double rate, double burst) {}

    private record Bucket(double tokens, long at) {}

    private final Map<String, Quota> quotas = new LinkedHashMap<>();
    private final boolean byRule;
    private final ReentrantLock lock = new ReentrantLock();
    private final Map<List<String>, String> bound = recent(BOUND_MAX);
    private final Map<String, Bucket> buckets = recent(BUCKETS_MAX);

    private Fallback(Map<String, String> rates) {
        rates.forEach((name, text) -> quotas.put(name, parse(text)));
        if (quotas.isEmpty()) {
            throw new IllegalArgumentException("a fallback names no rule; help: write Map.of(\"*\", \"20/s\")");
        }
        byRule = quotas.size() > 1 || !quotas.containsKey("*");
    }

    /**
     * Returns a fallback with one rate for all requests: {@code 20/s}, {@code 5/15min} or {@code 100/h burst 200}.
     *
     * @throws IllegalArgumentException if it is no rate
     */
    public static Fallback of(String rate) {
        return new Fallback(Map.of("*", rate));
    }

    /**
     * Returns a fallback with rates by rule; {@code *} is for all other requests.
     *
     * @throws IllegalArgumentException if one is no rate
     */
    public static Fallback of(Map<String, String> rates) {
        return new Fallback(rates);
    }

    private static Quota parse(String text) {
        Matcher found = RATE.matcher(text == null ? "" : text);
        if (found.matches()) {
            double number = Double.parseDouble(found.group(1));
            double burst = found.group(4) == null ? number : Double.parseDouble(found.group(4));
            double period = UNITS.get(found.group(3)) * (found.group(2).isEmpty() ? 1 : Double.parseDouble(found.group(2)));
            if (number > 0 && number <= NUMBER_MAX && burst > 0 && burst <= NUMBER_MAX && period > 0 && period <= PERIOD_MAX) {
                return new Quota(number / period, burst);
            }
        }
        throw new IllegalArgumentException(
                "the fallback " + text + " is not a rate; help: write it like 20/s, 5/15min or 100/h burst 200");
    }

    /** Remembers the binding rule, if rates are by rule. */
    void remember(Request request, Decision decision) {
        if (byRule && decision.limit() != null && decision.rule() != null) {
            lock.lock();
            try {
                bound.put(names(request), decision.rule());
            } finally {
                lock.unlock();
            }
        }
    }

    /** Charges the request's bucket at a time of the monotonic clock, in nanoseconds; null if no rate applies. */
    Decision decide(Request request, long now) {
        lock.lock();
        try {
            String entry = entry(request);
            Quota quota = quotas.get(entry);
            if (quota == null) {
                return null;
            }
            double cost = request.cost().units().getOrDefault(Cost.REQUESTS, 1L);
            String key = key(entry, request);
            Bucket before = buckets.getOrDefault(key, new Bucket(quota.burst, now));
            double tokens = Math.min(quota.burst, before.tokens + (now - before.at) / 1e9 * quota.rate);
            boolean allowed = cost <= tokens + ERROR_MAX;
            if (request.op() != Request.PEEK) {
                tokens = allowed ? Math.max(tokens - cost, 0) : tokens;
                buckets.put(key, new Bucket(tokens, now));
            }
            Duration retry = cost > quota.burst ? null : allowed ? Duration.ZERO : micros((cost - tokens) / quota.rate);
            Duration reset = tokens >= quota.burst ? Duration.ZERO : micros((Math.floor(tokens) + 1 - tokens) / quota.rate);
            return new Decision(allowed ? Verdict.ALLOW : Verdict.LIMIT, null, (long) quota.burst, micros(quota.burst / quota.rate),
                    (long) tokens, reset, retry, List.of(), null, Cost.REQUESTS, null, false, null, false, request.domain(),
                    Reason.FALLBACK, null);
        } finally {
            lock.unlock();
        }
    }

    private String entry(Request request) {
        String rule = byRule ? bound.get(names(request)) : null;
        for (String name : rule == null ? List.<String>of() : List.of(request.domain() + "/" + rule, rule)) {
            if (quotas.containsKey(name)) {
                return name;
            }
        }
        return "*";
    }

    /** Returns the domain, and the names of all attributes that are sent. */
    private static List<String> names(Request request) {
        TreeSet<String> names = new TreeSet<>();
        for (List<String> one : request.descriptors()) {
            for (int i = 0; i < one.size(); i += 2) {
                names.add(one.get(i));
            }
        }
        List<String> all = new ArrayList<>(names);
        all.add(0, request.domain());
        return all;
    }

    /** Returns the key of a bucket: entry, domain, and each descriptor as a set of attributes. */
    private static String key(String entry, Request request) {
        List<String> sets = new ArrayList<>();
        for (List<String> one : request.descriptors()) {
            TreeSet<String> pairs = new TreeSet<>();
            for (int i = 0; i < one.size(); i += 2) {
                pairs.add(one.get(i) + ":" + one.get(i + 1).length() + ":" + one.get(i + 1)); // names have no colon
            }
            sets.add(String.join("", pairs));
        }
        sets.sort(null);
        String key = entry + ":" + entry.length() + ":" + request.domain() + ":" + String.join(":", sets);
        return key.length() <= KEY_MAX ? key : Request.hash(Request.utf8(key));
    }

    /** Rounds up to microseconds, but ignores rounding errors below 1 ns. */
    private static Duration micros(double seconds) {
        return Duration.ofNanos((long) Math.ceil(seconds * 1e6 - 1e-3) * 1_000);
    }

    private static <K, V> Map<K, V> recent(int most) {
        return new LinkedHashMap<>(16, 0.75f, true) {
            @Override
            protected boolean removeEldestEntry(Map.Entry<K, V> eldest) {
                return size() > most;
            }
        };
    }
}
