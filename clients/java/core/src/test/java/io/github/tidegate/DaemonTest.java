package io.github.tidegate;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;
import org.junit.jupiter.api.Assumptions;
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
        assertTrue(refused.problem().contains("\"domain\":\"api\",\"digest\":\"" + refused.digest() + "\""), refused.problem());
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
    void takesItsOptionsFromTheEnvironment() throws Exception {
        RealDaemon daemon = opened(new RealDaemon(folder(), RULES));
        Path home = Files.createDirectories(folder().resolve("tidegate")).getParent();
        Files.createSymbolicLink(home.resolve("tidegate/tidegate.sock"), daemon.path);
        assertEquals("2500 null 1", environment("TIDEGATE_TIMEOUT_MS", "2500", "TIDEGATE_SOCKET", daemon.path.toString()));
        assertEquals("2500 null 1", environment("TIDEGATE_TIMEOUT_MS", "2500", "XDG_RUNTIME_DIR", home.toString()));
        assertEquals("20 disabled 0", environment("TIDEGATE_DISABLE", "1", "TIDEGATE_SOCKET", daemon.path.toString()));
        assertEquals("20 unreachable 0", environment("TIDEGATE_SOCKET", "/nowhere/s", "XDG_RUNTIME_DIR", home.toString()));
        assertEquals("20 unreachable 0", environment("TIDEGATE_SOCKET", "/tide/grün", "LC_ALL", "C")); // no path to this JVM
    }

    /** Runs one call in a process with these variables. */
    private static String environment(String... variables) throws Exception {
        String java = Path.of(System.getProperty("java.home"), "bin", "java").toString();
        ProcessBuilder process = new ProcessBuilder(java, "-cp", System.getProperty("java.class.path"), Once.class.getName());
        for (int i = 0; i < variables.length; i += 2) {
            process.environment().put(variables[i], variables[i + 1]);
        }
        return new String(process.start().getInputStream().readAllBytes()).strip();
    }

    /** Prints the timeout in milliseconds, the reason of a call and the number of connections. */
    static final class Once {
        public static void main(String[] arguments) {
            try (TidegateClient client = TidegateClient.create()) {
                Reason reason = client.peek("api", SINGLE).reason();
                System.out.println(client.timeoutNanos / 1_000_000 + " " + reason + " " + client.stats().connections());
            }
        }
    }

    @Test
    void saysWhoMayNotOpenTheSocket() throws Exception {
        Assumptions.assumeTrue("root".equals(System.getProperty("user.name")), "only root can become another user");
        RealDaemon daemon = opened(new RealDaemon(folder(), RULES));
        Files.setPosixFilePermissions(daemon.path, PosixFilePermissions.fromString("rw-------"));
        Files.setPosixFilePermissions(daemon.path.getParent(), PosixFilePermissions.fromString("rwxr-xr-x"));
        Path classes = daemon.path.resolveSibling("classes");
        for (Class<?> one : List.of(TidegateClient.class, Once.class)) {
            Path from = Path.of(one.getProtectionDomain().getCodeSource().getLocation().toURI());
            try (Stream<Path> files = Files.walk(from)) {
                for (Path file : files.filter(Files::isRegularFile).toList()) {
                    Path to = classes.resolve(from.relativize(file));
                    Files.createDirectories(to.getParent());
                    Files.copy(file, to, StandardCopyOption.REPLACE_EXISTING);
                }
            }
        }
        ProcessBuilder process = new ProcessBuilder("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups",
                Path.of(System.getProperty("java.home"), "bin", "java").toString(), "-cp", classes.toString(), Once.class.getName());
        process.environment().put("TIDEGATE_SOCKET", daemon.path.toString());
        String text = new String(process.redirectErrorStream(true).start().getInputStream().readAllBytes());
        assertTrue(text.contains("20 unreachable 0"), text);
        assertTrue(text.matches("(?s).*tidegate: permission denied on .*: user \\S+ is not in group \\S+; requests are not limited.*"), text);
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
