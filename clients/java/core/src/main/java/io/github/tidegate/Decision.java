package io.github.tidegate;

import java.math.BigDecimal;
import java.math.BigInteger;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * The answer to a request. Absent fields are null. Closing it releases its lease with the outcome <i>ok</i>.
 *
 * @param rule the rule that decides
 * @param limit of the rule, at most 2^63 - 1
 * @param window of the rule; zero for concurrency
 * @param remaining amount of the limit that is left
 * @param resetAfter time until {@code remaining} would be larger
 * @param retryAfter time until a retry may succeed; null: never. With {@link Verdict#WAIT} the time to sleep before the start
 * @param notes of the daemon, such as {@code shadow}
 * @param help text of the rule for callers
 * @param unit of the limit: {@code requests}
 * @param rate of a rule that refuses, as it is written: {@code 5/min}
 * @param blocked whether an operator or the rule itself blocks the caller for a time
 * @param digest of the caller's key of the rule that refuses, for {@code tidegate why --digest}
 * @param hidden whether callers may not see the rule's name and numbers
 * @param domain of the request
 * @param reason cause of a decision without the daemon
 * @param grant lease, and name for refunds
 */
public record Decision(
        Verdict verdict, String rule, Long limit, Duration window, Long remaining, Duration resetAfter, Duration retryAfter,
        List<Note> notes, String help, String unit, String rate, boolean blocked, String digest, boolean hidden,
        String domain, Reason reason, Grant grant) implements AutoCloseable {

    private static final long DIGITS_MAX = 999_999_999_999_999L; // of an integer in a header
    private static final BigInteger LONG_MAX = BigInteger.valueOf(Long.MAX_VALUE);
    private static final Pattern WRITTEN = Pattern.compile("([0-9]{1,10})/([0-9]{0,10})(ms|s|min|h|day|week|month)");
    private static final Map<String, String> PERIODS = Map.of("ms", "a millisecond", "s", "a second", "min", "a minute",
            "h", "an hour", "day", "a day", "week", "a week", "month", "a month");
    private static final String PROBLEMS = "https://iana.org/assignments/http-problem-types#";

    /** A note of the daemon: {@code kind} is {@code shadow}, {@code over}, {@code near} or the like. */
    public record Note(String kind, String rule) {}

    /** Makes an immutable copy. */
    public Decision {
        notes = List.copyOf(notes);
    }

    /** Returns a decision without the daemon. */
    static Decision without(Reason reason, Verdict verdict, String domain) {
        Duration retry = verdict == Verdict.SHED ? Duration.ofSeconds(1) : null;
        return new Decision(verdict, null, null, null, null, null, retry, List.of(), null, Cost.REQUESTS, null, false, null, false,
                domain, reason, null);
    }

    /** Reads a reply. Throws a Fault if a known field has another type. */
    static Decision read(List<?> reply, String domain, Connection connection, Connection.Which which, Object idem) {
        try {
            int verdict = ((Long) reply.get(2)).intValue();
            Verdict known = Verdict.values()[verdict];
            Map<?, ?> extra = at(reply, 12) == null ? Map.of() : (Map<?, ?>) at(reply, 12);
            List<?> flat = at(reply, 10) == null ? List.of() : (List<?>) at(reply, 10);
            if (at(reply, 11) != null && !(at(reply, 11) instanceof List) || flat.size() % 2 != 0) {
                throw new ClassCastException();
            }
            List<Note> notes = new ArrayList<>();
            for (int i = 0; i + 1 < flat.size(); i += 2) {
                notes.add(new Note((String) Objects.requireNonNull(flat.get(i)), (String) Objects.requireNonNull(flat.get(i + 1))));
            }
            Long lease = count(at(reply, 9));
            Grant grant = lease == null && idem == null || known.status() != 200 ? null : new Grant(connection, which, lease, idem);
            Boolean hide = (Boolean) extra.get("hide"), blocked = (Boolean) extra.get("blocked");
            String help = (String) extra.get("help"), unit = (String) extra.get("unit");
            return new Decision(known, (String) at(reply, 3), count(at(reply, 4)), time(at(reply, 5)), count(at(reply, 6)),
                    time(at(reply, 7)), time(at(reply, 8)), notes, "".equals(help) ? null : help,
                    unit == null || unit.isEmpty() ? Cost.REQUESTS : unit, (String) extra.get("rate"),
                    known == Verdict.LIMIT && Boolean.TRUE.equals(blocked), (String) extra.get("digest"),
                    Boolean.TRUE.equals(hide), domain, null, grant);
        } catch (ClassCastException | IndexOutOfBoundsException | NullPointerException error) {
            throw Fault.malformed("malformed decision");
        }
    }

    private static Object at(List<?> reply, int index) {
        return index < reply.size() ? reply.get(index) : null;
    }

    private static Long count(Object value) {
        if (value == null || value instanceof Long n && n >= 0) {
            return (Long) value;
        }
        return ((BigInteger) value).min(LONG_MAX).longValueExact();
    }

    private static Duration time(Object value) {
        if (value == null || value instanceof Long n && n >= 0) {
            return value == null ? null : Duration.ofSeconds((Long) value / 1_000_000, (Long) value % 1_000_000 * 1_000);
        }
        BigInteger[] parts = ((BigInteger) value).divideAndRemainder(BigInteger.valueOf(1_000_000));
        return Duration.ofSeconds(parts[0].longValueExact(), parts[1].longValueExact() * 1_000);
    }

    /** Whether the request may start, after {@link #waitTime()}. */
    public boolean allowed() {
        return status() == 200;
    }

    /** Returns the HTTP status: 200, 403, 429 or 503. */
    public int status() {
        return verdict.status();
    }

    /** Whether the daemon could not be asked. */
    public boolean degraded() {
        return reason != null && !reason.isRefusal();
    }

    /** Returns the time to sleep before the start; zero unless the verdict is {@link Verdict#WAIT}. */
    public Duration waitTime() {
        return verdict == Verdict.WAIT && retryAfter != null ? retryAfter : Duration.ZERO;
    }

    /**
     * Sleeps until the request may start.
     *
     * @throws InterruptedException if the thread is interrupted meanwhile
     */
    public void awaitStart() throws InterruptedException {
        Duration wait = waitTime();
        if (!wait.isZero()) {
            Thread.sleep(wait.toMillis(), wait.getNano() % 1_000_000);
        }
    }

    /** Returns the number of the lease; null without one. */
    public Long lease() {
        return grant == null ? null : grant.lease();
    }

    /** Ends the lease with the outcome <i>ok</i>. */
    public void release() {
        release(Outcome.OK);
    }

    /** Ends the lease (null: <i>error</i>); does nothing without a lease or the second time. Does not wait for the daemon. */
    public void release(Outcome outcome) {
        if (grant != null) {
            grant.release(outcome == null ? Outcome.ERROR : outcome);
        }
    }

    /** Restarts the lease's time. False: the lease has expired, or the daemon does not answer. */
    public boolean renew() {
        return grant != null && grant.renew();
    }

    /** Ends the lease with the outcome <i>ok</i>, unless {@code release} has ended it. */
    @Override
    public void close() {
        release();
    }

    /**
     * Returns RateLimit and RateLimit-Policy (draft-ietf-httpapi-ratelimit-headers-11), X-Ratelimit and, of a refusal,
     * Retry-After headers, with times in whole seconds. Do not send them with redirects.
     */
    public Map<String, String> headers() {
        Map<String, String> fields = new LinkedHashMap<>();
        if (named()) {
            String name = quoted(rule), left = digits(remaining == null ? 0 : remaining), most = digits(limit);
            boolean windowed = window != null && !window.isZero();
            String counted = windowed ? unit : "concurrent-requests";
            String in = counted.equals(Cost.REQUESTS) ? "" : ";qu=" + quoted(counted);
            fields.put("RateLimit", name + ";r=" + left + (windowed ? ";t=" + digits(seconds(resetAfter)) : ""));
            fields.put("RateLimit-Policy", name + ";q=" + most + in + (windowed ? ";w=" + digits(seconds(window)) : ""));
            fields.put("X-Ratelimit-Limit", most);
            fields.put("X-Ratelimit-Remaining", left);
        }
        if (!allowed() && retryAfter != null) {
            fields.put("Retry-After", digits(retrySeconds()));
            if (!hidden) {
                fields.put("X-Ratelimit-Retry-After", fields.get("Retry-After"));
            }
        }
        return fields;
    }

    /** Returns one sentence for people: the rule, its limit, and the time of a retry. */
    public String message() {
        if (allowed()) {
            return "Allowed.";
        } else if (verdict == Verdict.DENY) {
            return "This request is not allowed.";
        }
        String cause = reason == null ? "The service is at its capacity." : "The request could not be judged.";
        if (verdict == Verdict.LIMIT) {
            cause = named() ? "Over the limit " + rule + " of " + quota() + "." : "Too many requests.";
            cause = blocked ? "This caller is blocked." : cause;
        }
        if (retryAfter == null) {
            return cause + " It asks for more than the limit holds: it can never pass.";
        }
        return cause + " Try again in " + digits(retrySeconds()) + " s.";
    }

    /** Returns the body of a refusal, application/problem+json (RFC 9457); its times are in seconds, exact to the millisecond. */
    public String problem() {
        String type = "about:blank", title = status() == 403 ? "Forbidden" : "OK";
        if (status() == 429) {
            type = blocked ? "urn:tidegate:problem:blocked" : PROBLEMS + "quota-exceeded";
            title = "Too Many Requests";
        } else if (status() == 503) {
            type = PROBLEMS + "temporary-reduced-capacity";
            title = "Service Unavailable";
        }
        StringBuilder body = new StringBuilder("{");
        body.append("\"type\":").append(json(type)).append(",\"title\":").append(json(title));
        body.append(",\"status\":").append(status()).append(",\"detail\":").append(json(message()));
        if (verdict == Verdict.LIMIT && named()) {
            body.append(",\"violated-policies\":[").append(json(rule)).append("],\"limit\":").append(limit);
            body.append(",\"window\":").append(thousandths(window == null ? Duration.ZERO : window));
            if (digest != null) {
                body.append(domain == null ? "" : ",\"domain\":" + json(domain));
                body.append(",\"digest\":").append(json(digest));
            }
        }
        if (!allowed() && retryAfter != null) {
            body.append(",\"retry_after\":").append(thousandths(retryAfter));
        }
        if (help != null) {
            body.append(",\"help\":").append(json(help));
        }
        return body.append('}').toString();
    }

    private boolean named() {
        return rule != null && limit != null && !hidden;
    }

    /** Returns the quota as the rule writes it, if the daemon sent that, else the limit and its window. */
    private String quota() {
        Matcher found = WRITTEN.matcher(rate == null ? "" : rate);
        if (!found.matches()) {
            return limit + (window == null || window.isZero() ? " at once" : " " + unit + " in " + thousandths(window) + " s");
        }
        String number = found.group(1), periods = found.group(2), period = PERIODS.get(found.group(3));
        String amount = number + " " + (number.equals("1") && unit.equals(Cost.REQUESTS) ? "request" : unit);
        boolean one = periods.isEmpty() || periods.equals("1");
        return amount + " " + (one ? period : "in " + periods + " " + period.substring(period.indexOf(' ') + 1) + "s");
    }

    private long retrySeconds() {
        return Math.max(1, seconds(retryAfter));
    }

    /** Rounds up to seconds. */
    private static long seconds(Duration time) {
        return time == null ? 0 : time.getSeconds() + (time.getNano() > 0 ? 1 : 0);
    }

    private static String digits(long n) {
        return Long.toString(Math.min(n, DIGITS_MAX));
    }

    /** Rounds up to milliseconds; without trailing zeros. */
    private static String thousandths(Duration seconds) {
        long milliseconds = seconds.getSeconds() * 1_000 + (seconds.getNano() + 999_999) / 1_000_000;
        return milliseconds == 0 ? "0" : BigDecimal.valueOf(milliseconds, 3).stripTrailingZeros().toPlainString();
    }

    /** Returns a String of RFC 8941. */
    private static String quoted(String text) {
        StringBuilder result = new StringBuilder("\"");
        text.codePoints().forEach(c -> {
            if (c == '"' || c == '\\') {
                result.append('\\');
            }
            result.append(c >= ' ' && c <= '~' ? (char) c : '?');
        });
        return result.append('"').toString();
    }

    /** Returns a JSON string with the fewest escapes. */
    private static String json(String text) {
        StringBuilder result = new StringBuilder("\"");
        for (char c : text.toCharArray()) {
            int escape = "\"\\\b\f\n\r\t".indexOf(c);
            if (escape >= 0) {
                result.append('\\').append("\"\\bfnrt".charAt(escape));
            } else if (c < ' ') {
                result.append(String.format("\\u%04x", (int) c));
            } else {
                result.append(c);
            }
        }
        return result.append('"').toString();
    }
}
