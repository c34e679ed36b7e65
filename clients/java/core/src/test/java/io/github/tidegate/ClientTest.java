package io.github.tidegate;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.channels.SocketChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.AbstractMap;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.ConcurrentModificationException;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;

/** The client against a scripted daemon: requests, replies, leases, invalid input. */
class ClientTest extends Support {
    @Test
    void sendsRequestsAsTheProtocolHasThem() throws Exception {
        PlayedDaemon daemon = played();
        daemon.script = (socket, message) -> message.get(0).equals(5L) ? List.of(2, message.get(1), true)
                : PlayedDaemon.decision(message, PlayedDaemon.ALLOW);
        TidegateClient client = opened(options(daemon.path).pool("web").slots(8).build());
        Map<String, Object> attributes = new LinkedHashMap<>();
        attributes.put("user", "u1");
        attributes.put("none", null);
        attributes.put("empty", "");
        attributes.put("n", 7);
        attributes.put("on", true);
        Decision d = client.acquire("api", attributes);
        assertEquals(List.of("per-user", 39L, Duration.ofSeconds(2), Duration.ofMillis(50), false, true, "api"),
                List.of(d.rule(), d.remaining(), d.window(), d.resetAfter(), d.degraded(), d.allowed(), d.domain()));
        client.peek("api", USER, CallOptions.NONE.cost(3).priority("post").queued(Duration.ofMillis(500)).maxWait(Duration.ofNanos(69_001))
                .descriptors(List.of(Map.of("org", "o1"))));
        assertTrue(client.charge("api", USER, Cost.of("tokens", -5), ChargeOptions.refundOf(7L).idem("k")) && client.check());
        client.signal("lag", 0.5);
        client.hit("api", null);
        Map<?, ?> info = (Map<?, ?>) daemon.seen.get(0).get(3);
        assertEquals(List.of("client", "session", "pid", "pool", "slots", "connection"), new ArrayList<>(info.keySet()));
        assertEquals(16, ((byte[]) info.get("session")).length);
        assertEquals(List.of("web", 8L, ProcessHandle.current().pid(), 1L, "java/" + TidegateClient.VERSION),
                List.of(info.get("pool"), info.get("slots"), info.get("pid"), info.get("connection"), info.get("client")));
        assertEquals(Arrays.asList(
                List.of(1L, 1L, "api", List.of(List.of("user", "u1", "n", "7", "on", "true")), 1L),
                List.of(4L, 2L, "api", List.of(List.of("user", "u1"), List.of("org", "o1")), 3L, "post", Map.of("queued_us", 500_000L, "max_wait_us", 70L)),
                List.of(5L, 3L, "api", List.of(List.of("user", "u1")), Map.of("tokens", -5L), Map.of("idem", "k", "of", 7L)),
                List.of(8L, 4L),
                Arrays.asList(7L, null, "web", "lag", 500L),
                List.of(3L, 5L, "api", List.of(List.of()), 1L)), daemon.seen.subList(1, 7));
        assertEquals(1, daemon.accepted.get());
    }

    @Test
    void readsRepliesByteByByte() throws Exception {
        PlayedDaemon daemon = played();
        daemon.script = (socket, message) -> {
            List<Object> verdict = new ArrayList<>(PlayedDaemon.ALLOW);
            verdict.set(1, "Grüße-→");
            for (byte one : PlayedDaemon.frame(PlayedDaemon.decision(message, verdict))) {
                PlayedDaemon.write(socket, new byte[] {one});
            }
            return null;
        };
        assertEquals("Grüße-→", client(daemon.path).hit("api", USER).rule());
    }

    @Test
    void runsWorkUnderALeaseAndReleasesItWithItsOutcome() throws Exception {
        PlayedDaemon daemon = played();
        daemon.script = PlayedDaemon::grant;
        TidegateClient client = client(daemon.path);
        String rule = client.limit("api", Map.of("job", "a"), Decision::rule);
        assertEquals("per-user", rule);
        assertThrows(IllegalStateException.class, () -> client.limit("api", Map.of("job", "b"), CallOptions.NONE.cost(2), d -> {
            throw new IllegalStateException("work");
        }));
        Decision d = client.acquire("api", USER);
        assertEquals(79L, d.lease());
        assertTrue(d.renew());
        d.release(Outcome.ERROR);
        d.close();
        assertFalse(d.renew());
        assertEquals(List.of(List.of(77L, 0L), List.of(78L, 2L), List.of(79L, 1L)), daemon.releases(3));
        daemon.script = (socket, message) -> PlayedDaemon.decision(message, PlayedDaemon.LIMIT);
        Denied denied = assertThrows(Denied.class, () -> client.limit("api", USER, one -> "never"));
        assertTrue(denied.decision().status() == 429 && denied.getMessage().contains("per-user"));
        daemon.script = (socket, message) -> PlayedDaemon.decision(message, Arrays.asList(3, "queue", 4, 5, 0, 0, 30_000, 90));
        long began = System.nanoTime();
        long started = client.<Long, RuntimeException>limit("api", USER, one -> System.nanoTime());
        assertTrue(started - began >= 29_000_000);
        daemon.script = (socket, message) -> PlayedDaemon.decision(message, Arrays.asList(3, "queue", 4, 5, 0, 0, 30_000_000, 91));
        Thread.currentThread().interrupt(); // passes the call, and ends the wait
        assertThrows(InterruptedException.class, () -> client.limit("api", USER, one -> "never"));
        assertEquals(List.of(91L, 2L), daemon.releases(5).get(4));
    }

    @Test
    void endsALeaseOnceAndByTryWithResources() throws Exception {
        PlayedDaemon daemon = played();
        daemon.script = (socket, message) -> PlayedDaemon.decision(message, PlayedDaemon.leased(PlayedDaemon.ALLOW, Long.MAX_VALUE));
        try (Decision d = client(daemon.path).acquire("api", USER)) {
            assertEquals(Long.MAX_VALUE, d.lease());
        }
        assertEquals(List.of(List.of(Long.MAX_VALUE, 0L)), daemon.releases(1));
    }

    @Test
    void throwsForAProgrammersErrorAndRefusesOtherInvalidInputWithoutIo() {
        Path nowhere = folder().resolve("s");
        TidegateClient client = client(nowhere);
        for (Cost cost : List.of(Cost.of(-1), Cost.of("tokens", -1))) {
            assertThrows(IllegalArgumentException.class, () -> CallOptions.NONE.cost(cost));
        }
        assertThrows(IllegalArgumentException.class, () -> client.signal("lag", Double.NaN));
        assertThrows(IllegalArgumentException.class, () -> client.signal("a/b", 1));
        assertThrows(IllegalArgumentException.class, () -> ChargeOptions.refundOf(3.5));
        assertThrows(IllegalArgumentException.class, () -> options(nowhere).timeout(Duration.ZERO).build());
        assertThrows(IllegalArgumentException.class, () -> options(nowhere).timeout(Duration.ofSeconds(Long.MAX_VALUE)).build());
        assertThrows(IllegalArgumentException.class, () -> options(nowhere).slots(-1).build());
        assertThrows(IllegalArgumentException.class, () -> options(nowhere).pool("a/b").build());
        Map<String, Integer> many = new HashMap<>();
        IntStream.range(0, 17).forEach(i -> many.put("a" + i, i));
        Object none = new Object() {
            @Override
            public String toString() {
                return null;
            }
        };
        Object broken = new Object() {
            @Override
            public String toString() {
                throw new IllegalStateException();
            }
        };
        Map<String, Object> changing = new AbstractMap<>() {
            @Override
            public Set<Map.Entry<String, Object>> entrySet() {
                throw new ConcurrentModificationException();
            }
        };
        List<Object> cycle = new ArrayList<>();
        cycle.add(List.of(cycle));
        List<Decision> refused = List.of(client.hit("a/b", USER), client.hit(null, USER), client.hit("api", many),
                client.hit("api", Map.of("a:b", 1)), client.hit("api", Map.of("user", new Object())),
                client.hit("api", Map.of("user", new int[0])), client.hit("api", Map.of("user", none)), client.hit("api", Map.of("user", broken)),
                client.hit("api", USER, CallOptions.NONE.descriptors(Collections.nCopies(8, USER))),
                client.hit("api", USER, CallOptions.NONE.cost(Cost.of("a/b", 1))), client.hit("api", USER, CallOptions.NONE.cost(Cost.of(null, 1))),
                client.hit("api", changing), client.hit("api", Map.of("user", List.of(new Object()))),
                client.hit("api", Map.of("user", Map.of("id", Optional.of(new Object())))), client.hit("api", Map.of("user", cycle)));
        for (Decision d : refused) {
            assertEquals(List.of(false, Verdict.SHED, 503, Reason.INVALID, false, Duration.ofSeconds(1)),
                    List.of(d.allowed(), d.verdict(), d.status(), d.reason(), d.degraded(), d.retryAfter()));
        }
        assertEquals(new Stats(Map.of(), Map.of(Reason.INVALID, 15L), 0, false), client.stats());
        assertFalse(client.charge("api", USER, Cost.of(-1), ChargeOptions.refundOf(refused.get(0))));
        assertFalse(client.charge("api", changing, Cost.ONE));
        assertThrows(IllegalArgumentException.class, () -> new Cost(null));
        assertThrows(IllegalArgumentException.class, () -> new Cost(Collections.singletonMap("tokens", null)));
        assertEquals(1, lines.stream().filter(line -> line.contains("attribute user has no text; help")).count());
    }

    @Test
    void takesNullForTheDefault() throws Exception {
        PlayedDaemon daemon = played();
        daemon.script = (socket, message) -> message.get(0).equals(5L) ? List.of(2, message.get(1), true) : PlayedDaemon.grant(socket, message);
        TidegateClient client = client(daemon.path);
        CallOptions nothing = new CallOptions(null, null, null, null, null, null, null, null);
        assertEquals(CallOptions.NONE, nothing);
        List<Map<String, ?>> descriptors = Arrays.asList(null, Map.of("org", "o1"));
        try (Decision first = client.acquire("api", USER, null); Decision second = client.acquire("api", null, nothing.descriptors(descriptors))) {
            assertTrue(first.allowed() && second.allowed());
            first.release(null);
        }
        assertTrue(client.charge("api", USER, null, null));
        assertEquals("ran", client.limit("api", USER, null, decision -> "ran"));
        assertEquals(List.of(List.of(), List.of("org", "o1")), daemon.seen.get(2).get(3));
        assertEquals(1L, daemon.seen.stream().filter(message -> message.get(0).equals(2L)).findFirst().orElseThrow().get(3));
        assertEquals(1L, daemon.seen.stream().filter(message -> message.get(0).equals(5L)).findFirst().orElseThrow().get(4));
    }

    @Test
    void digestsLongValuesAndKeysAndSendsNoInvalidPriority() throws Exception {
        PlayedDaemon daemon = played();
        TidegateClient client = client(daemon.path);
        client.hit("api", Map.of("a", "é".repeat(600)), CallOptions.NONE.idem("k".repeat(65)).priority("a/b").cost(1L << 62));
        List<?> sent = daemon.last(3);
        String value = (String) ((List<?>) ((List<?>) sent.get(3)).get(0)).get(1);
        assertTrue(value.matches("é{480}~[0-9a-f]{32}"), value);
        assertEquals(1L << 62, sent.get(4));
        assertNull(sent.get(5));
        assertTrue(((Map<?, ?>) sent.get(6)).get("idem").toString().matches("k{30}~[0-9a-f]{32}"));
        Map<String, String> wide = new HashMap<>();
        IntStream.range(0, 4).forEach(i -> wide.put("a" + i, "v".repeat(1_000)));
        assertNull(client.hit("api", wide, CallOptions.NONE.descriptors(Collections.nCopies(7, wide))).reason());
        assertTrue(daemon.last(3).get(3).toString().matches("(?s).*[ ,]~[0-9a-f]{32}[],].*"));
    }

    @Test
    void refusesWhenTheDaemonRefusesTheClient() throws Exception {
        PlayedDaemon daemon = played();
        TidegateClient client = opened(options(daemon.path).fallback(Fallback.of("1/s")).build());
        Map<Integer, Reason> reasons = Map.of(6, Reason.INVALID, 7, Reason.QUOTA, 11, Reason.NOT_ALLOWED, 9, Reason.FORBIDDEN);
        for (Map.Entry<Integer, Reason> one : reasons.entrySet()) {
            daemon.script = (socket, message) -> Arrays.asList(3, message.get(1), one.getKey(), "no");
            for (int i = 0; i < 2; i++) {
                Decision d = client.acquire("api", USER);
                assertEquals(List.of(one.getValue(), false, 503, false), List.of(d.reason(), d.allowed(), d.status(), d.degraded()));
            }
            assertEquals(2, client.stats().refused().get(one.getValue()));
        }
        assertEquals(4, lines.size());
        assertFalse(client.stats().breakerOpen());
    }

    @Test
    void sendsReportsOfMissedAndAbandonedRequestsOnce() throws Exception {
        PlayedDaemon daemon = played();
        daemon.script = PlayedDaemon::grant;
        TidegateClient client = client(daemon.path);
        Decision d = client.acquire("api", USER);
        daemon.close();
        assertEquals(Reason.UNREACHABLE, hit(client));
        d.release(); // while the breaker is open
        daemon.listen();
        until(() -> client.acquire("api", USER).reason() == null);
        Map<?, ?> options = (Map<?, ?>) daemon.last(1).get(6);
        assertEquals(List.of(List.of(1L, 1L)), options.get("abandoned"));
        assertTrue((Long) ((Map<?, ?>) options.get("missed")).get("unreachable") >= 1);
        client.acquire("api", USER);
        assertEquals(5, daemon.last(1).size());
        assertEquals(1, daemon.of(0).stream().map(hello -> new String((byte[]) ((Map<?, ?>) hello.get(3)).get("session"))).distinct().count());
    }

    @Test
    void reportsAReleaseThatTheDaemonMayNotHaveRead() throws Exception {
        PlayedDaemon daemon = played();
        daemon.script = PlayedDaemon::grant;
        TidegateClient client = client(daemon.path);
        Decision a = client.acquire("api", USER), b = client.acquire("api", USER);
        a.release();
        client.check(); // proves that the first release arrived
        b.release();
        daemon.releases(2);
        daemon.hangUp();
        client.acquire("api", USER); // finds the connection closed
        client.acquire("api", USER);
        assertTrue(daemon.of(1).stream().anyMatch(message -> message.size() > 6
                && List.of(List.of(1L, 2L)).equals(((Map<?, ?>) message.get(6)).get("abandoned"))), daemon.of(1).toString());
    }

    @Test
    void callsOnDecisionWhoseErrorsAndThoseOfTheLoggerChangeNothing() throws Exception {
        PlayedDaemon daemon = played();
        List<String> seen = new ArrayList<>();
        TidegateClient client = opened(options(daemon.path).onDecision((decision, took) -> {
            seen.add(decision.rule() + !took.isNegative());
            throw new IllegalStateException("secret");
        }).build());
        assertEquals(Arrays.asList(null, null), Arrays.asList(hit(client), hit(client)));
        client.peek("api", USER);
        assertEquals(List.of("per-usertrue", "per-usertrue"), seen);
        assertEquals(List.of("tidegate: onDecision threw IllegalStateException"), lines);
        TidegateClient broken = opened(options(Path.of("/nowhere/s")).logger(line -> {
            throw new IllegalStateException("logger");
        }).build());
        assertEquals(Reason.UNREACHABLE, hit(broken));
    }

    @Test
    void logsOnceThatADomainDoesNotExist() throws Exception {
        PlayedDaemon daemon = played();
        daemon.script = (socket, message) ->
                Arrays.asList(1, message.get(1), 0, null, null, null, null, null, 0, null, List.of("unmatched", "domain"), null, null);
        TidegateClient client = client(daemon.path);
        for (String domain : List.of("ap", "ap", "log-in")) {
            assertTrue(client.hit(domain, USER).allowed());
        }
        assertEquals(List.of("tidegate: the rules have no domain \"ap\"; its requests are not limited",
                "tidegate: the rules have no domain \"log-in\"; its requests are not limited"), lines);
    }

    @Test
    void logsOnceForEachDomainThatNoRuleMatched() throws Exception {
        PlayedDaemon daemon = played();
        daemon.script = (socket, message) ->
                Arrays.asList(1, message.get(1), 0, null, null, null, null, null, 0, null, List.of("unmatched", "rule"), null, null);
        TidegateClient client = client(daemon.path);
        Map<String, String> attributes = new LinkedHashMap<>(USER);
        attributes.put("plan", "secret");
        client.hit("shop", attributes, CallOptions.NONE.descriptors(List.of(Map.of("user", "u2"))));
        client.hit("shop", Map.of("path", "/"));
        client.hit("jobs", Map.of());
        assertEquals(List.of("tidegate: no rule of the domain \"shop\" matches a request with the attributes user, plan: it is not limited; "
                + "`tidegate why shop …` says why",
                "tidegate: no rule of the domain \"jobs\" matches a request without attributes: it is not limited; `tidegate why jobs …` says why"), lines);
    }

    @Test
    void namesAPathThatIsNoSocketAndTheAdminSocket() throws Exception {
        Path path = folder(), file = Files.createFile(path.resolve("s"));
        for (Path one : List.of(path, file)) {
            assertEquals(Reason.UNREACHABLE, hit(client(one)));
            assertEquals("tidegate: " + one + " is no socket: set TIDEGATE_SOCKET to that of the daemon; requests are not limited", lines.get(lines.size() - 1));
        }
        PlayedDaemon daemon = played();
        daemon.script = (socket, message) -> {
            PlayedDaemon.write(socket, "HTTP/1.1 400 Bad Request\r\n\r\n".getBytes());
            return null;
        };
        assertEquals(Reason.PROTOCOL, hit(client(daemon.path)));
        assertTrue(lines.get(2).contains("that is the admin socket; set TIDEGATE_SOCKET to the one beside it"), lines.get(2));
    }

    @Test
    void doesNoIoWhenMadeOrDisabledAndCanBeUsedAfterClose() throws Exception {
        PlayedDaemon daemon = played();
        TidegateClient disabled = opened(options(daemon.path).enabled(false).build());
        assertEquals(Reason.DISABLED, hit(disabled));
        disabled.signal("lag", 1);
        assertFalse(disabled.check() || disabled.charge("api", USER, Cost.ONE));
        assertEquals(Map.of(), disabled.stats().missed());
        TidegateClient client = client(daemon.path);
        assertEquals(0, daemon.accepted.get());
        daemon.script = PlayedDaemon::grant;
        client.acquire("api", USER).release();
        client.close();
        assertEquals(List.of(List.of(77L, 0L)), daemon.releases(1)); // written before the end
        assertEquals(0, client.stats().connections());
        assertNull(client.acquire("api", USER).reason());
        assertEquals(2, daemon.accepted.get());
    }

    @Test
    void sendsRequestsThatTheDaemonDidNotReadOnceMore() throws Exception {
        PlayedDaemon daemon = played();
        TidegateClient client = client(daemon.path);
        assertNull(hit(client));
        daemon.hangUp(); // while it is idle
        assertNull(hit(client));
        SocketChannel[] left = {null};
        daemon.script = (socket, message) -> {
            if (left[0] != null) {
                return PlayedDaemon.decision(message, PlayedDaemon.ALLOW);
            }
            left[0] = socket;
            PlayedDaemon.write(socket, PlayedDaemon.frame(Arrays.asList(4, null, "draining")));
            socket.close();
            return null;
        };
        assertEquals(Arrays.asList(null, null), Arrays.asList(hit(client), hit(client)));
        assertEquals(Map.of(), client.stats().missed());
        assertEquals((long) daemon.of(0).size(), ((Map<?, ?>) daemon.last(0).get(3)).get("connection"));
    }
}
