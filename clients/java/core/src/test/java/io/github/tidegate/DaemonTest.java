package io.github.tidegate;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;

/** The client against the real daemon. */
class DaemonTest extends Support {
    private static final String RULES = """
            domain: api
            concurrency:
              - {name: one, match: {job: single}, key: [], max: 1, expires: 1h}
            limits:
              - {name: per-user, match: {job: message}, key: [user], rate: 1/h, burst: 2}
              - {name: tokens, match: {job: model}, key: [], unit: tokens, rate: 1000/h, max_debt: 1000}
            """;
    private static final Map<String, String> MESSAGE = Map.of("job", "message", "user", "7"), SINGLE = Map.of("job", "single");

    @Test
    void limitsChargesRefundsAndRepeatsAsTheRulesSay() throws Exception {
        TidegateClient client = opened(options(opened(new RealDaemon(folder(), RULES)).path).pool("java").slots(2).build());
        Decision first = client.hit("api", MESSAGE, CallOptions.NONE.idem("order-17"));
        assertEquals(List.of(true, false, "per-user", 2L, 1L),
                List.of(first.allowed(), first.degraded(), first.rule(), first.limit(), first.remaining()));
        assertEquals(1L, client.hit("api", MESSAGE, CallOptions.NONE.idem("order-17")).remaining());
        assertEquals(0L, client.hit("api", MESSAGE).remaining());
        Decision refused = client.hit("api", MESSAGE);
        assertTrue(refused.status() == 429 && refused.retryAfter().toSeconds() <= 3_600 && !refused.retryAfter().isZero());
        assertTrue(refused.problem().contains("\"digest\":\"" + refused.digest() + "\",\"domain\":\"api\""), refused.problem());
        assertNull(client.hit("api", MESSAGE, CallOptions.NONE.cost(3)).retryAfter());
        assertEquals(Verdict.LIMIT, client.hit("api", MESSAGE, CallOptions.NONE.cost(1L << 40)).verdict());
        Map<String, String> wide = new HashMap<>(MESSAGE);
        wide.put("a", "x".repeat(5_000));
        assertEquals(Verdict.LIMIT, client.hit("api", wide).verdict());
        assertFalse(client.charge("api", MESSAGE, Cost.of(-1), ChargeOptions.refundOf("another")));
        assertTrue(client.charge("api", MESSAGE, Cost.of(-1), ChargeOptions.refundOf(first)));
        assertFalse(client.charge("api", MESSAGE, Cost.of(-1), ChargeOptions.refundOf(first)));
        assertEquals(1L, client.peek("api", MESSAGE).remaining());
        assertFalse(client.charge("api", MESSAGE, Cost.of(-1)));
        assertEquals(1L, client.stats().refused().get(Reason.NOT_ALLOWED));
        assertTrue(client.charge("api", Map.of("job", "model"), Cost.of("tokens", 812)));
        Decision left = client.peek("api", Map.of("job", "model"), CallOptions.NONE.cost(Cost.of("tokens", 1)));
        assertEquals(List.of(188L, "tokens"), List.of(left.remaining(), left.unit()));
        client.signal("loop_lag", 0.4);
        assertTrue(client.check());
        assertEquals(new Stats(Map.of(), Map.of(Reason.NOT_ALLOWED, 1L), 1, false), client.stats());
    }

    @Test
    void endsEveryLease() throws Exception {
        TidegateClient client = client(opened(new RealDaemon(folder(), RULES)).path);
        Decision held = client.acquire("api", SINGLE);
        assertTrue(held.lease() > 0 && held.renew());
        assertEquals(Verdict.LIMIT, client.acquire("api", SINGLE).verdict());
        client.close(); // another connection of the session releases the lease
        held.release();
        until(() -> client.peek("api", SINGLE).remaining() == 1);
    }

    @Test
    void decidesWithoutAStoppedKilledOrRestartedDaemonAndFindsItAgain() throws Exception {
        RealDaemon daemon = opened(new RealDaemon(folder(), RULES));
        TidegateClient client = client(daemon.path, 200);
        until(() -> client.acquire("api", SINGLE).reason() == null);
        daemon.signal("STOP");
        until(() -> Files.readString(Path.of("/proc/" + daemon.pid() + "/stat")).contains(" T "));
        assertEquals(Reason.TIMEOUT, client.acquire("api", SINGLE).reason());
        daemon.signal("CONT");
        until(() -> client.acquire("api", SINGLE).reason() == null);
        daemon.stop("TERM"); // GOODBYE
        assertEquals(Reason.UNREACHABLE, client.acquire("api", SINGLE).reason());
        assertTrue(client.stats().breakerOpen());
        daemon.start();
        until(() -> client.acquire("api", SINGLE).reason() == null);
        daemon.stop("KILL");
        assertEquals(Reason.UNREACHABLE, client.acquire("api", SINGLE).reason());
        assertTrue(lines.stream().allMatch(line -> line.matches(".*(not limited|decided without it)")), lines.toString());
    }
}
