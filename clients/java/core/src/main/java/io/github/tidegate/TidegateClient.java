package io.github.tidegate;

import java.nio.file.Files;
import java.nio.file.InvalidPathException;
import java.nio.file.Path;
import java.security.SecureRandom;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.EnumMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.locks.LockSupport;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.Consumer;
import java.util.function.Supplier;

/**
 * Sends requests to the daemon of this host. Make one per process and keep it: it is safe for use by all threads, also virtual
 * ones, over one connection, which the first request opens. No call throws because of the daemon, and none outlasts its
 * deadline. An interrupt does not end a call; the thread is interrupted after it.
 */
public final class TidegateClient implements AutoCloseable {
    /** Version of this client. */
    public static final String VERSION = "0.1.0";

    private static final int TIMEOUT_MS_MAX = 10_000; // of the environment
    private static final int ABANDONED_MAX = 512, LOGGED_MAX = 100;
    private static final int REPORTED_MAX = Request.FRAME_MAX / 2; // bytes of a request that a report may join
    private static final Decision.Note NO_DOMAIN = new Decision.Note("unmatched", "domain"), NO_RULE = new Decision.Note("unmatched", "rule");
    private static final long RETRY_CONNECT = 1_000_000; // ns

    final long timeoutNanos;
    private final Builder options;
    private final boolean enabled;
    private final String off; // TIDEGATE_DISABLE; null: not set
    private final Breaker breaker = new Breaker();
    private final ReentrantLock lock = new ReentrantLock();
    // Under the lock.
    volatile Connection connection; // read without it, too
    private byte[] session;
    private long connections; // of this session, in total
    private final Map<Reason, Long> missed = new EnumMap<>(Reason.class), refused = new EnumMap<>(Reason.class);
    private final Set<String> logged = new HashSet<>();
    private Report report = new Report();
    private volatile boolean refuses; // whether a request had OnFailure.REFUSE

    /** What the next request reports. */
    private static final class Report {
        final Map<String, Long> missed = new LinkedHashMap<>();
        final Deque<Connection.Which> abandoned = new ArrayDeque<>();

        void putInto(Map<String, Object> options) {
            options.put("missed", missed);
            options.put("abandoned", abandoned.stream().map(which -> List.of(which.connection(), which.id())).toList());
        }
    }

    /** Options of a client, with their defaults. */
    public static final class Builder {
        private Path socket;
        private Duration timeout;
        private String pool = "default";
        private int slots;
        private boolean enabled = true;
        private Consumer<String> logger = line -> System.getLogger("tidegate").log(System.Logger.Level.WARNING, line);
        private Fallback fallback;
        private DecisionListener onDecision;

        private Builder() {}

        /** Path of the daemon's socket; else TIDEGATE_SOCKET, else the default paths. */
        public Builder socket(Path value) {
            socket = value;
            return this;
        }

        /** Deadline of a whole call; else TIDEGATE_TIMEOUT_MS, else 20 ms. */
        public Builder timeout(Duration value) {
            timeout = value;
            return this;
        }

        /** Name of the application. */
        public Builder pool(String value) {
            pool = value;
            return this;
        }

        /** Requests that this process works on concurrently; 0: unknown. */
        public Builder slots(int value) {
            slots = value;
            return this;
        }

        /** False: every request is allowed without any I/O, as with TIDEGATE_DISABLE=1. */
        public Builder enabled(boolean value) {
            enabled = value;
            return this;
        }

        /** Gets the lines of the log, such as {@code log::warn}; System.Logger {@code tidegate} by default. */
        public Builder logger(Consumer<String> value) {
            logger = value;
            return this;
        }

        /** The limit for each domain and set of attributes while the daemon is unreachable. */
        public Builder fallback(Fallback value) {
            fallback = value;
            return this;
        }

        /** Called after each decision, but not for a peek. */
        public Builder onDecision(DecisionListener value) {
            onDecision = value;
            return this;
        }

        /**
         * Makes the client; does no I/O.
         *
         * @throws IllegalArgumentException for a timeout or slots out of range, or a pool that is not a name
         */
        public TidegateClient build() {
            return new TidegateClient(this);
        }
    }

    /** Work under a lease. */
    @FunctionalInterface
    public interface Work<T, E extends Exception> {
        /** Runs the work. */
        T run(Decision decision) throws E;
    }

    private TidegateClient(Builder options) {
        this.options = options;
        String given = System.getenv("TIDEGATE_TIMEOUT_MS"), disable = System.getenv("TIDEGATE_DISABLE");
        Duration most = Duration.ofMillis(Integer.MAX_VALUE), own = options.timeout;
        timeoutNanos = own != null ? (own.compareTo(most) > 0 ? -1 : own.toNanos()) : (long) (timeoutOf(given == null ? "" : given) * 1e6);
        if (timeoutNanos <= 0 || options.slots < 0) {
            throw new IllegalArgumentException("the timeout is above 0 and at most 2^31 ms; slots are 0 or more");
        } else if (!Request.isName(options.pool)) {
            throw new IllegalArgumentException("the pool " + options.pool + " is not a name");
        }
        off = disable == null || disable.isEmpty() || disable.equals("0") ? null : disable;
        enabled = options.enabled && off == null;
    }

    /** Returns the milliseconds of TIDEGATE_TIMEOUT_MS; the default, with a line of the log, for another value. */
    private double timeoutOf(String text) {
        double given = text.matches("[0-9]{1,5}([.][0-9]{1,6})?") ? Double.parseDouble(text) : 0;
        if (given > 0 && given <= TIMEOUT_MS_MAX) {
            return given;
        } else if (!text.isEmpty()) {
            log("TIDEGATE_TIMEOUT_MS is \"" + start(text) + "\", not above 0 and up to " + TIMEOUT_MS_MAX + ": the timeout is 20 ms", false);
        }
        return 20;
    }

    private static String start(String text) {
        return text.substring(0, Math.min(text.length(), 40));
    }

    /** Returns a client with the default options. */
    public static TidegateClient create() {
        return builder().build();
    }

    /** Returns options to change. */
    public static Builder builder() {
        return new Builder();
    }

    /** Asks whether work may start that ends with {@code decision.release()}. */
    public Decision acquire(String domain, Map<String, ?> attributes) {
        return acquire(domain, attributes, CallOptions.NONE);
    }

    /**
     * Asks whether work may start that ends with {@code decision.release()}.
     *
     * @param attributes in their order; values that are null or empty are not sent
     */
    public Decision acquire(String domain, Map<String, ?> attributes, CallOptions given) {
        return judge(Request.ACQUIRE, domain, attributes, given);
    }

    /** As {@code acquire}, without a lease: for a message, a login attempt. */
    public Decision hit(String domain, Map<String, ?> attributes) {
        return hit(domain, attributes, CallOptions.NONE);
    }

    /** As {@code acquire}, without a lease: for a message, a login attempt. */
    public Decision hit(String domain, Map<String, ?> attributes, CallOptions given) {
        return judge(Request.HIT, domain, attributes, given);
    }

    /** Returns the decision that {@code acquire} would get; charges nothing. */
    public Decision peek(String domain, Map<String, ?> attributes) {
        return peek(domain, attributes, CallOptions.NONE);
    }

    /** Returns the decision that {@code acquire} would get; charges nothing. */
    public Decision peek(String domain, Map<String, ?> attributes, CallOptions given) {
        return judge(Request.PEEK, domain, attributes, given);
    }

    /** Runs work under a lease, as the method with options. */
    public <T, E extends Exception> T limit(String domain, Map<String, ?> attributes, Work<T, E> work) throws E, InterruptedException {
        return limit(domain, attributes, CallOptions.NONE, work);
    }

    /**
     * Runs work under a lease, after the wait if any. The outcome is <i>ok</i>, or <i>dropped</i> if the work throws.
     *
     * @throws Denied if it may not start
     * @throws InterruptedException if the thread is interrupted during the wait
     */
    public <T, E extends Exception> T limit(String domain, Map<String, ?> attributes, CallOptions given, Work<T, E> work)
            throws E, InterruptedException {
        Decision decision = acquire(domain, attributes, given);
        if (!decision.allowed()) {
            throw new Denied(decision);
        }
        Outcome outcome = Outcome.DROPPED;
        try {
            decision.awaitStart();
            T result = work.run(decision);
            outcome = Outcome.OK;
            return result;
        } finally {
            decision.release(outcome);
        }
    }

    /** Charges all matching rates afterwards. */
    public boolean charge(String domain, Map<String, ?> attributes, Cost amount) {
        return charge(domain, attributes, amount, ChargeOptions.NONE);
    }

    /**
     * Charges all matching rates afterwards, into debt; a negative amount refunds part of {@code of}.
     *
     * @return false: nothing was charged, or the daemon does not answer
     */
    public boolean charge(String domain, Map<String, ?> attributes, Cost amount, ChargeOptions given) {
        return done(Request.CHARGE, () -> {
            ChargeOptions options = given == null ? ChargeOptions.NONE : given;
            Cost charged = amount == null ? Cost.ONE : amount;
            Object of = options.of();
            if (of instanceof Decision decision) {
                of = decision.grant() == null ? null : decision.grant().refundKey();
                if (of == null) {
                    throw Fault.invalid("a refund needs a decision with a lease or an idem; this one has none");
                }
            }
            Map<String, Object> sent = new LinkedHashMap<>();
            putKey(sent, "idem", options.idem());
            if (of instanceof Long lease) {
                sent.put("of", lease);
            } else {
                putKey(sent, "of", of);
            }
            List<List<String>> descriptors = Request.describe(attributes, List.of());
            charged.units().keySet().forEach(Request::checkName);
            return new Request(Request.CHARGE, Request.checkName(domain), descriptors, charged, null, sent).elements();
        });
    }

    /**
     * Reports a utilization of this process; the daemon drops it after 3 s. Does not wait.
     *
     * @param value from 0 to 1
     * @throws IllegalArgumentException if the name is not a name, or the value no number
     */
    public void signal(String name, double value) {
        if (Double.isNaN(value) || !Request.isName(name)) {
            throw new IllegalArgumentException("a signal is a name and a number from 0 to 1, not " + name + " and " + value);
        }
        long permille = Math.round(1_000 * Math.min(Math.max(value, 0), 1));
        send(Request.SIGNAL, Request.Elements.of(options.pool, name, permille), null);
    }

    /** Pings the daemon; false if it does not answer, the breaker is open or the client disabled. */
    public boolean check() {
        return done(Request.PING, Request.Elements::of);
    }

    /** Returns counts of decisions without the daemon and of refusals. */
    public Stats stats() {
        lock.lock();
        try {
            int open = connection == null || connection.closed() ? 0 : 1;
            return new Stats(Map.copyOf(missed), Map.copyOf(refused), open, breaker.isOpen());
        } finally {
            lock.unlock();
        }
    }

    /** Closes the connection; leases end 5 s later. The client may be used again. */
    @Override
    public void close() {
        Connection open = connection;
        if (open != null) {
            open.close();
        }
    }

    /** Logs a line; {@code once}: only the first time. */
    void log(String text, boolean once) {
        log(text, once ? text : null);
    }

    /** Logs a line, only the first of its key unless that is null. */
    private void log(String text, String key) {
        if (key != null) {
            lock.lock();
            try {
                if (logged.size() >= LOGGED_MAX || !logged.add(key)) {
                    return;
                }
            } finally {
                lock.unlock();
            }
        }
        try {
            options.logger.accept("tidegate: " + text);
        } catch (Exception error) {
            // an application's logger must not fail its requests
        }
    }

    /** Counts and returns a decision without the daemon. */
    Decision degrade(Reason reason, OnFailure onFailure, String domain) {
        lock.lock();
        try {
            missed.merge(reason, 1L, Long::sum);
            report.missed.merge(reason.toString(), 1L, Long::sum);
        } finally {
            lock.unlock();
        }
        return Decision.without(reason, onFailure == OnFailure.REFUSE ? Verdict.SHED : Verdict.ALLOW, domain);
    }

    /** Refuses an invalid or forbidden request: independent of the daemon's state, never <i>allow</i>. */
    Decision refuse(Fault fault, String domain) {
        lock.lock();
        try {
            refused.merge(fault.reason, 1L, Long::sum);
        } finally {
            lock.unlock();
        }
        log(fault.getMessage() + "; such requests are refused (" + fault.reason + ")", true);
        return Decision.without(fault.reason, Verdict.SHED, domain);
    }

    /** Ends a lease on its connection, else on another; else reports it with the next request. */
    void release(Connection on, Connection.Which which, long lease, Outcome outcome) {
        Request.Elements elements = Request.Elements.of(lease, outcome.ordinal());
        if (!on.send(Request.RELEASE, elements, which) && !send(Request.RELEASE, elements, which)) {
            reportAbandoned(List.of(which));
        }
    }

    boolean renew(long lease) {
        return done(Request.RENEW, () -> Request.Elements.of(lease));
    }

    void reportAbandoned(List<Connection.Which> which) {
        lock.lock();
        try {
            report.abandoned.addAll(which);
            while (report.abandoned.size() > ABANDONED_MAX) {
                report.abandoned.remove();
            }
        } finally {
            lock.unlock();
        }
    }

    /** Counts a failed connection once for all its waiting requests, of which the oldest began at {@code since}. */
    void fail(Fault fault, long since) {
        if (!fault.reason.isRefusal()) {
            settle(fault, since);
        }
    }

    private Decision judge(int op, String domain, Map<String, ?> attributes, CallOptions given) {
        long began = System.nanoTime();
        Decision decision = decide(op, domain, attributes, given == null ? CallOptions.NONE : given, began);
        if (options.onDecision != null && op != Request.PEEK) {
            try {
                options.onDecision.decided(decision, Duration.ofNanos(System.nanoTime() - began));
            } catch (Exception error) { // of other languages also a checked one
                log("onDecision threw " + error.getClass().getSimpleName(), true);
            }
        }
        return decision;
    }

    private Decision decide(int op, String domain, Map<String, ?> attributes, CallOptions given, long began) {
        if (off != null) {
            log("TIDEGATE_DISABLE is \"" + start(off) + "\": nothing is limited", true);
        }
        if (!enabled) {
            return Decision.without(Reason.DISABLED, Verdict.ALLOW, domain);
        }
        refuses |= given.onFailure() == OnFailure.REFUSE;
        Request request;
        Request.Elements elements;
        try {
            request = request(op, domain, attributes, given);
            elements = request.elements();
        } catch (RuntimeException | StackOverflowError error) {
            return refuse(invalid(error), domain);
        }
        Report sent = elements.bytes().length < REPORTED_MAX ? takeReport() : null;
        if (sent != null) {
            sent.putInto(request.options());
            elements = request.elements();
        }
        Object answer = null;
        try {
            Object idem = request.options().get("idem");
            answer = ask(new Connection.Operation(op, elements, domain, idem, began + timeoutNanos));
        } finally {
            if (sent != null && !(answer instanceof Decision)) {
                reportAgain(sent); // it may not have reached the daemon
            }
        }
        Fallback fallback = given.fallback() != null ? given.fallback() : options.fallback;
        if (answer instanceof Decision decision) {
            logUnmatched(request, decision);
            if (fallback != null) {
                fallback.remember(request, decision);
            }
            return decision;
        }
        Fault fault = (Fault) answer;
        if (fault.reason.isRefusal()) {
            return refuse(fault, domain);
        }
        Decision missing = degrade(fault.reason, given.onFailure(), domain);
        Decision local = fallback == null ? null : fallback.decide(request, System.nanoTime());
        return local != null ? local : missing;
    }

    /** Logs, once for each domain, that it does not exist or that none of its rules matched; no value of an attribute. */
    private void logUnmatched(Request request, Decision decision) {
        String domain = request.domain();
        for (Decision.Note note : decision.notes()) {
            if (note.equals(NO_DOMAIN)) {
                log("the rules have no domain \"" + domain + "\"; its requests are not limited", true);
            } else if (note.equals(NO_RULE)) {
                Set<String> names = new LinkedHashSet<>();
                for (List<String> texts : request.descriptors()) {
                    for (int i = 0; i < texts.size(); i += 2) {
                        names.add(texts.get(i));
                    }
                }
                String about = names.isEmpty() ? "a request without attributes" : "a request with the attributes " + String.join(", ", names);
                log("no rule of the domain \"" + domain + "\" matches " + about + ": it is not limited; `tidegate why " + domain
                        + " …` says why", "no rule of " + domain);
            }
        }
    }

    private static Request request(int op, String domain, Map<String, ?> attributes, CallOptions given) {
        Map<String, Object> sent = new LinkedHashMap<>();
        putKey(sent, "idem", given.idem());
        if (given.queued() != null) {
            sent.put("queued_us", micros(given.queued()));
        }
        if (given.maxWait() != null) {
            sent.put("max_wait_us", micros(given.maxWait()));
        }
        given.cost().units().keySet().forEach(Request::checkName);
        String priority = Request.isName(given.priority()) ? given.priority() : null; // an invalid priority counts as none
        List<List<String>> descriptors = Request.describe(attributes, given.descriptors());
        return new Request(op, Request.checkName(domain), descriptors, given.cost(), priority, sent);
    }

    /** Returns the refusal of a request that cannot be read, such as a Map that another thread changes. */
    private static Fault invalid(Throwable error) {
        return error instanceof Fault known ? known : Fault.invalid("reading a request threw " + error.getClass().getSimpleName());
    }

    private static void putKey(Map<String, Object> options, String name, Object key) {
        Object sent = Request.shortenIdem(key);
        if (sent != null) {
            options.put(name, sent);
        }
    }

    /** Rounds up to microseconds. */
    private static long micros(Duration time) {
        if (time.isNegative()) {
            return 0;
        }
        boolean fits = time.getSeconds() < Long.MAX_VALUE / 1_000_000;
        return fits ? time.getSeconds() * 1_000_000 + (time.getNano() + 999) / 1_000 : Long.MAX_VALUE;
    }

    private Report takeReport() {
        lock.lock();
        try {
            if (report.missed.isEmpty() && report.abandoned.isEmpty()) {
                return null;
            }
            Report taken = report;
            report = new Report();
            return taken;
        } finally {
            lock.unlock();
        }
    }

    private void reportAgain(Report sent) {
        lock.lock();
        try {
            sent.missed.forEach((reason, count) -> report.missed.merge(reason, count, Long::sum));
        } finally {
            lock.unlock();
        }
        reportAbandoned(new ArrayList<>(sent.abandoned));
    }

    /** Sends an operation; true if the daemon replies DONE with true. */
    private boolean done(int op, Supplier<Request.Elements> make) {
        long deadline = System.nanoTime() + timeoutNanos;
        if (!enabled) {
            return false;
        }
        Object answer;
        try {
            answer = ask(new Connection.Operation(op, make.get(), null, null, deadline));
        } catch (RuntimeException | StackOverflowError error) {
            answer = invalid(error);
        }
        if (answer instanceof Fault fault && fault.reason.isRefusal()) {
            refuse(fault, null);
        }
        return Boolean.TRUE.equals(answer);
    }

    /** Writes a frame without a reply; false if the daemon cannot be reached. */
    private boolean send(int op, Request.Elements elements, Connection.Which released) {
        Connection current = connection;
        if (!enabled || breaker.isOpen() && (current == null || current.closed())) {
            return false;
        }
        try {
            return connection().send(op, elements, released);
        } catch (Fault unreachable) {
            return false;
        }
    }

    /** Returns the reply or a Fault; sends nothing while the breaker is open, except one probe after its pause. */
    private Object ask(Connection.Operation operation) {
        switch (breaker.enter()) {
            case STOP:
                return new Fault(Reason.BREAKER, "the daemon did not answer before");
            case PROBE:
                Object answer = exchange(new Connection.Operation(Request.PING, Request.Elements.of(), null, null, operation.deadline()));
                if (answer instanceof Fault) {
                    breaker.probed(false);
                    return answer;
                }
                breaker.probed(true);
                break;
            default:
        }
        return exchange(operation);
    }

    private Object exchange(Connection.Operation operation) {
        long began = System.nanoTime();
        try {
            return exchange(operation, began);
        } catch (Fault unreachable) {
            settle(unreachable, began);
            return unreachable;
        }
    }

    private Object exchange(Connection.Operation operation, long began) {
        boolean repeated = false;
        Fault full = null; // the cause, also if the last attempt had too little time
        for (;;) {
            Object answer = connection().ask(operation);
            if (answer instanceof Fault fault && !fault.kept) {
                boolean inTime = System.nanoTime() < operation.deadline();
                if (fault.full && inTime) { // until the daemon has room
                    full = fault;
                    boolean interrupted = Thread.interrupted();
                    LockSupport.parkNanos(this, RETRY_CONNECT);
                    if (interrupted) {
                        Thread.currentThread().interrupt();
                    }
                } else if (fault.again && !repeated && inTime) {
                    repeated = true;
                } else {
                    if (fault.full) {
                        settle(fault, began);
                    }
                    return full != null && fault.reason == Reason.TIMEOUT ? full : fault;
                }
            } else if (answer != null) {
                if (answer instanceof Fault fault && !fault.reason.isRefusal()) {
                    log(fault.getMessage() + "; such requests are not limited", true);
                }
                if (operation.op() != Request.PING) {
                    settle(null, began);
                }
                return answer;
            } else if (System.nanoTime() >= operation.deadline()) {
                return new Fault(Reason.TIMEOUT, "the daemon closes connections");
            }
        }
    }

    /** Returns the open connection, or a new one, which its first request opens. */
    private Connection connection() {
        Connection current = connection;
        if (current != null && current.usable()) {
            return current;
        }
        Path path = path();
        byte[] random = new byte[16];
        new SecureRandom().nextBytes(random);
        lock.lock();
        try {
            if (connection != null && connection.usable()) {
                return connection;
            }
            session = session == null ? random : session;
            Map<String, Object> info = new LinkedHashMap<>();
            info.put("client", "java/" + VERSION);
            info.put("session", session);
            info.put("pid", ProcessHandle.current().pid());
            info.put("pool", options.pool);
            info.put("slots", options.slots);
            info.put("connection", ++connections);
            connection = new Connection(this, path, connections, info);
            return connection;
        } finally {
            lock.unlock();
        }
    }

    /** Throws a Fault for a path of the environment that is none, as with letters that the JVM's encoding of names lacks. */
    private Path path() {
        try {
            return environmentPath();
        } catch (InvalidPathException error) {
            throw new Fault(Reason.UNREACHABLE, "no daemon: the path of the socket in the environment is not one (" + error.getReason() + ")");
        }
    }

    private Path environmentPath() {
        String given = System.getenv("TIDEGATE_SOCKET"), own = System.getenv("XDG_RUNTIME_DIR");
        if (options.socket != null || given != null && !given.isEmpty()) {
            return options.socket != null ? options.socket : Path.of(given);
        }
        Path users = Path.of(own == null ? "" : own, "tidegate/tidegate.sock");
        return users.isAbsolute() && Files.exists(users) ? users : Path.of("/run/tidegate/tidegate.sock");
    }

    /** Counts a failure or a success, and logs a change of state. */
    private void settle(Fault fault, long began) {
        Boolean failing = breaker.settle(fault, began);
        if (failing == null) {
            return;
        } else if (failing) {
            String alone = refuses ? "with OnFailure.REFUSE get status 503, others are not limited" : "are not limited";
            log(fault.getMessage() + "; requests " + (options.fallback != null ? "are limited by the fallback" : alone), false);
        } else {
            long all = stats().missed().values().stream().mapToLong(Long::longValue).sum();
            log("the daemon answers again; " + all + " requests so far were decided without it", false);
        }
    }
}
