package io.github.tidegate;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Function;
import org.junit.jupiter.api.Test;

/** Attributes and options of a filter, paths and addresses. */
class GuardTest extends Support {
    private static Guard.Seen seen(String... headers) {
        Map<String, String> all = new HashMap<>();
        for (int i = 0; i < headers.length; i += 2) {
            all.put(headers[i], headers[i + 1]);
        }
        return new Guard.Seen("GET", "/items", "10.0.0.1", all::get);
    }

    @Test
    void normalizesPaths() {
        assertEquals(List.of("/", "/a/b", "/a/b/", "/b", "/a b", "/é", "/login", "/a%2", "/x", "/"),
                List.of("", "/a//b?c#d", "/a/./b/", "/a/../b", "/a%20b", "/%C3%A9", "/login;jsessionid=1", "/a%2", "http://host/x", "/..")
                        .stream().map(Guard::path).toList());
    }

    @Test
    void findsTheCallerBehindTrustedProxies() {
        Proxies networks = new Proxies(List.of("10.0.0.0/8", "2001:db8::/32"), 0), two = new Proxies(List.of(), 2);
        assertEquals("1.2.3.4", networks.caller("10.0.0.1", "9.9.9.9, 1.2.3.4, 10.1.1.1"));
        assertEquals("1.2.3.4", networks.caller("10.0.0.1", "\"1.2.3.4:5678\""));
        assertEquals("2001:db9::1", networks.caller("2001:db8::7", "[2001:db9:0:0:0:0:0:1]:443"));
        assertEquals("8.8.8.8", networks.caller("8.8.8.8", "1.2.3.4")); // no proxy
        assertEquals("10.0.0.1", networks.caller("10.0.0.1", "evil, unknown"));
        assertEquals("1.2.3.4", networks.caller("", "1.2.3.4")); // a Unix socket
        assertEquals("1.2.3.4", networks.caller("::ffff:10.0.0.1", "::ffff:1.2.3.4"));
        assertEquals("1.2.3.4", two.caller("7.7.7.7", "9.9.9.9, 1.2.3.4, 5.5.5.5"));
        assertEquals("10.0.0.1", Proxies.NONE.caller("10.0.0.1", "1.2.3.4"));
        assertEquals(List.of("::1", "::", "1::", "1:0:0:2::3", "fe80::1", "1.2.3.4", "localhost"),
                List.of("0:0:0:0:0:0:0:1", "::", "1:0:0:0:0:0:0:0", "1:0:0:2:0:0:0:3", "fe80:0:0:0:0:0:0:1%2", "::ffff:102:304", "localhost")
                        .stream().map(Proxies::plain).toList());
        for (String wrong : List.of("10.0.0.0/33", "localhost", "1.2.3", "10.0.0.0/x", "")) {
            assertThrows(IllegalArgumentException.class, () -> new Proxies(List.of(wrong), 0), wrong);
        }
        assertThrows(IllegalArgumentException.class, () -> new Proxies(List.of(), -1));
    }

    @Test
    void readsTheTimeInTheProxysQueue() {
        Proxies one = new Proxies(List.of(), 1), network = new Proxies(List.of("10.0.0.0/8"), 0);
        double now = 1_700_000_000_500.0;
        for (String start : List.of("t=1700000000.25", "1700000000250", "1700000000250000")) {
            assertEquals(250, one.queued("10.0.0.1", start, now), 0.001);
        }
        assertNull(one.queued("10.0.0.1", "1700000001000", now));
        assertNull(one.queued("10.0.0.1", "t=1600000000", now));
        assertNull(one.queued("10.0.0.1", "soon", now));
        assertNull(network.queued("8.8.8.8", "1700000000250", now));
        assertNull(Proxies.NONE.queued("10.0.0.1", "1700000000250", now));
    }

    @Test
    void sendsAttributesOfTheRequestAndOfTheApplication() throws Exception {
        PlayedDaemon daemon = played();
        List<Decision> instrumented = new ArrayList<>();
        GuardOptions<String> options = new GuardOptions<String>().user(name -> name).attribute("org", name -> "o1")
                .attributes(name -> Map.of("plan", "free")).descriptors(name -> List.of(Map.of("region", "eu"))).cost(name -> Cost.of(2))
                .priority(name -> "low").trustedProxies("10.0.0.0/8").exempt(name -> name.equals("health"))
                .instrument((decision, took) -> instrumented.add(decision));
        Guard<String> guard = new Guard<>(client(daemon.path), "api", options);
        assertNull(guard.judge("health", seen()));
        Decision d = guard.judge("ann", seen("user-agent", "curl", "x-forwarded-for", "1.2.3.4", "x-request-start", "t=1600000000"));
        assertEquals(List.of(d), instrumented);
        assertEquals(List.of(3L - 2, 1L, "api", List.of(List.of("method", "GET", "path", "/items", "ip", "1.2.3.4", "user", "ann", "user_agent", "curl",
                "org", "o1", "plan", "free"), List.of("region", "eu")), 2L, "low"), daemon.last(1));
    }

    private static <T> T fail() {
        throw new IllegalStateException("secret");
    }

    @Test
    void sendsTheRouteOfTheFrameworkOrOfTheApplication() throws Exception {
        PlayedDaemon daemon = played();
        TidegateClient client = client(daemon.path);
        Guard.Seen seen = new Guard.Seen("GET", "/login/", "10.0.0.1", name -> null, "/login/*");
        new Guard<>(client, "api", new GuardOptions<String>()).judge("ann", seen);
        assertEquals(List.of(List.of("method", "GET", "path", "/login/", "route", "/login/*", "ip", "10.0.0.1")), daemon.last(1).get(3));
        new Guard<>(client, "api", new GuardOptions<String>().route(name -> "/login")).judge("ann", seen);
        assertEquals(List.of(List.of("method", "GET", "path", "/login/", "route", "/login", "ip", "10.0.0.1")), daemon.last(1).get(3));
    }

    @Test
    void checksRequestsWithoutTheFunctionsThatThrew() throws Exception {
        PlayedDaemon daemon = played();
        daemon.script = (socket, message) -> PlayedDaemon.decision(message, PlayedDaemon.LIMIT);
        TidegateClient client = client(daemon.path);
        Map<String, GuardOptions<String>> all = new LinkedHashMap<>();
        all.put("user", new GuardOptions<String>().user(name -> fail()));
        all.put("route", new GuardOptions<String>().route(name -> fail()));
        all.put("attributes", new GuardOptions<String>().attributes(name -> fail()));
        all.put("attribute org", new GuardOptions<String>().attribute("org", name -> fail()));
        all.put("descriptors", new GuardOptions<String>().descriptors(name -> fail()));
        all.put("cost", new GuardOptions<String>().cost(name -> fail()));
        all.put("priority", new GuardOptions<String>().priority(name -> fail()));
        all.put("exempt", new GuardOptions<String>().exempt(name -> fail()));
        all.put("onFailure", new GuardOptions<String>().onFailure((String name) -> fail()));
        List<List<String>> descriptor = List.of(List.of("method", "GET", "path", "/items", "ip", "10.0.0.1"));
        all.forEach((name, options) -> {
            Guard<String> guard = new Guard<>(client, "api", options);
            for (int i = 0; i < 2; i++) {
                Decision d = guard.judge("ann", seen());
                assertEquals(Verdict.LIMIT, d.verdict(), name);
                assertNull(d.reason(), name);
                List<?> sent = daemon.last(1);
                assertEquals(descriptor, sent.get(3), name);
                assertEquals(1L, sent.get(4), name);
                assertEquals(Map.of("callback", 1L), ((Map<?, ?>) sent.get(6)).get("missed"), name); // reported with the request
            }
            String line = lines.get(lines.size() - 1), form = " threw IllegalStateException at .*GuardTest.java:\\d+\\): such requests are checked without it";
            assertTrue(line.matches("tidegate: " + name + form), line);
        });
        assertEquals(9, lines.size());
        assertEquals(Map.of(Reason.CALLBACK, 18L), client.stats().missed());
    }

    @Test
    @SuppressWarnings({"unchecked", "rawtypes"})
    void sendsNoAttributesOfAFunctionThatReturnsNoMap() throws Exception {
        PlayedDaemon daemon = played();
        TidegateClient client = client(daemon.path);
        GuardOptions<String> options = new GuardOptions<>();
        options.attributes((Function) name -> name.equals("none") ? null : "abc");
        for (String name : List.of("ann", "ann", "none")) {
            assertTrue(new Guard<>(client, "api", options).judge(name, seen()).allowed());
            assertEquals(List.of(List.of("method", "GET", "path", "/items", "ip", "10.0.0.1")), daemon.last(1).get(3));
        }
        assertEquals(List.of("tidegate: attributes threw ClassCastException: such requests are checked without it"), lines);
        assertEquals(Map.of(Reason.CALLBACK, 2L), client.stats().missed());
    }

    @Test
    void givesTheUsualResponseToARefusalWhoseFunctionThrows() throws Exception {
        PlayedDaemon daemon = played();
        daemon.script = (socket, message) -> PlayedDaemon.decision(message, PlayedDaemon.LIMIT);
        TidegateClient client = client(daemon.path);
        Guard<String> guard = new Guard<>(client, "api", new GuardOptions<String>().onRefused((name, decision) -> fail()));
        GuardOptions.Refusal refusal = guard.refusal("ann", guard.judge("ann", seen()));
        assertEquals(429, refusal.status());
        assertEquals("application/problem+json", refusal.headers().get("Content-Type"));
        assertTrue(lines.get(0).matches("tidegate: onRefused threw IllegalStateException at .*: such refusals get the usual response"), lines.get(0));
        assertEquals(Map.of(Reason.CALLBACK, 1L), client.stats().missed());
    }

    @Test
    void appliesOnFailureOnlyIfTheDaemonDoesNotAnswer() {
        TidegateClient client = client(folder().resolve("s"));
        GuardOptions<String> options = new GuardOptions<String>().user(name -> fail()).onFailure(OnFailure.REFUSE);
        Decision d = new Guard<>(client, "api", options).judge("ann", seen());
        assertEquals(List.of(503, Reason.UNREACHABLE), List.of(d.status(), d.reason()));
        assertTrue(lines.get(1).endsWith("; requests with OnFailure.REFUSE get status 503, others are not limited"), lines.get(1));
        assertEquals(Map.of(Reason.CALLBACK, 1L, Reason.UNREACHABLE, 1L), client.stats().missed());
    }

    @Test
    void refusesAnAttributeWhoseTextThrowsAndInvalidNames() throws Exception {
        TidegateClient client = client(played().path);
        Object broken = new Object() {
            @Override
            public String toString() {
                return fail();
            }
        };
        assertEquals(Reason.INVALID, new Guard<>(client, "api", new GuardOptions<String>().user(name -> broken)).judge("ann", seen()).reason());
        assertEquals(List.of("tidegate: the attribute user has no text; help: send its id; such requests are refused (invalid)"), lines);
        assertThrows(IllegalArgumentException.class, () -> new Guard<>(client, "a/b", new GuardOptions<>()));
        assertThrows(IllegalArgumentException.class, () -> new GuardOptions<String>().attribute("a:b", name -> ""));
    }

    @Test
    void refusesInvalidInputOfAFunctionAndFailsAsAsked() {
        TidegateClient client = client(folder().resolve("s"));
        Guard<String> negative = new Guard<>(client, "api", new GuardOptions<String>().cost(name -> Cost.of(-1)));
        assertEquals(Reason.INVALID, negative.judge("ann", seen()).reason());
        Map<String, OnFailure> paths = Map.of("/items", OnFailure.REFUSE);
        assertEquals(503, new Guard<>(client, "api", new GuardOptions<String>().onFailure(paths)).judge("ann", seen()).status());
        assertEquals(200, new Guard<>(client, "api", new GuardOptions<String>()).judge("ann", seen("x-forwarded-for", "1.1.1.1")).status());
        assertTrue(lines.stream().anyMatch(line -> line.contains("trustedProxies is not set")));
    }

    @Test
    void logsOnceThatRequestsOverAUnixSocketHaveNoAddress() throws Exception {
        PlayedDaemon daemon = played();
        String said = "tidegate: requests over a Unix socket have no `ip`: rules by ip do not judge them; "
                + "help: set trustedProxies, and let the proxy send X-Forwarded-For";
        for (String forwarded : java.util.Arrays.asList(null, "1.2.3.4")) {
            for (int proxies = 0; proxies < 2; proxies++) {
                List<String> lines = new java.util.ArrayList<>();
                TidegateClient client = opened(TidegateClient.builder().socket(daemon.path).timeout(java.time.Duration.ofSeconds(9)).logger(lines::add).build());
                Guard<String> guard = new Guard<>(client, "api", new GuardOptions<String>().trustedProxies(proxies));
                for (String peer : java.util.Arrays.asList(null, "")) {
                    guard.judge("ann", new Guard.Seen("GET", "/", peer, name -> name.equals("x-forwarded-for") ? forwarded : null));
                }
                boolean known = proxies == 1 && forwarded != null;
                assertEquals(known ? List.of() : List.of(said), lines);
                assertEquals(known, daemon.last(1).toString().contains("1.2.3.4"));
            }
        }
    }

    @Test
    void readsRatesOfAFallback() {
        for (String wrong : List.of("20", "0/s", "20/fortnight", "20/s burst 0", "99999999999/s", "1/367day")) {
            assertThrows(IllegalArgumentException.class, () -> Fallback.of(wrong), wrong);
        }
        assertThrows(IllegalArgumentException.class, () -> Fallback.of(Map.of()));
        Fallback fallback = Fallback.of("10/s burst 2");
        Request request = new Request(Request.HIT, "api", List.of(List.of("user", "u1")), Cost.ONE, null, Map.of());
        Request peek = new Request(Request.PEEK, "api", List.of(List.of("user", "u1")), Cost.ONE, null, Map.of());
        assertEquals(List.of(1L, 0L, 0L), List.of(fallback.decide(request, 0).remaining(), fallback.decide(request, 0).remaining(),
                fallback.decide(request, 0).remaining()));
        assertEquals(100, fallback.decide(request, 0).retryAfter().toMillis());
        assertTrue(!fallback.decide(peek, 99_000_000).allowed() && fallback.decide(peek, 100_000_000).allowed());
        assertEquals(2, fallback.decide(peek, 10_000_000_000L).remaining());
    }
}
