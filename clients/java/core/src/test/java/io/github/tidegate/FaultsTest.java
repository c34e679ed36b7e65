package io.github.tidegate;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.net.SocketException;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;

/** An absent, full or silent daemon. */
class FaultsTest extends Support {
    @Test
    void endsACallOfASilentDaemonInTime() throws Exception {
        PlayedDaemon daemon = played();
        daemon.silent = true;
        List<Long> times = new ArrayList<>();
        for (int i = 0; i < 3; i++) {
            TidegateClient client = client(daemon.path, 20);
            long began = System.nanoTime();
            assertEquals(Reason.TIMEOUT, hit(client));
            times.add((System.nanoTime() - began) / 1_000_000);
        }
        // The shortest, since this machine may delay a thread.
        assertTrue(Collections.min(times) >= 20 && Collections.min(times) < 200, times.toString());
    }

    @Test
    void endsACallInTimeWhileTheDaemonFloods() throws Exception {
        PlayedDaemon daemon = played();
        ByteBuffer flood = ByteBuffer.allocate(1 << 20);
        for (byte[] one = PlayedDaemon.frame(Arrays.asList(4, null, "draining")); flood.remaining() >= one.length;) {
            flood.put(one);
        }
        byte[] bytes = Arrays.copyOf(flood.array(), flood.position());
        daemon.script = (socket, message) -> {
            for (;;) {
                PlayedDaemon.write(socket, bytes);
            }
        };
        long began = System.nanoTime();
        assertEquals(Reason.TIMEOUT, hit(client(daemon.path, 50)));
        long took = (System.nanoTime() - began) / 1_000_000;
        assertTrue(took >= 50 && took < 1_000, took + " ms"); // this machine may delay a thread
    }

    @Test
    void opensTheBreakerAfterThreeFailuresThatDoNotOverlapAndProbesOncePerPause() throws Exception {
        PlayedDaemon daemon = played();
        daemon.silent = true;
        TidegateClient client = client(daemon.path, 10);
        List<Thread> callers = Stream.generate(() -> new Thread(() -> hit(client))).limit(50).toList();
        callers.forEach(Thread::start);
        for (Thread caller : callers) {
            caller.join();
        }
        until(() -> hit(client) == Reason.BREAKER);
        List<Double> pauses = new ArrayList<>();
        for (long began = System.nanoTime(); pauses.size() < 3;) {
            int probes = daemon.of(8).size();
            List<Reason> answers = hits(client, 3);
            if (!answers.contains(Reason.TIMEOUT)) {
                assertEquals(Collections.nCopies(3, Reason.BREAKER), answers);
                Thread.sleep(1);
                continue;
            }
            assertEquals(1, Collections.frequency(answers, Reason.TIMEOUT));
            until(() -> daemon.of(8).size() == probes + 1);
            pauses.add((System.nanoTime() - began) / 1e6);
            began = System.nanoTime();
        }
        assertTrue(pauses.get(1) >= 95 && pauses.get(2) >= 195, pauses.toString());
        daemon.silent = false;
        until(() -> hit(client) == null);
        assertFalse(client.stats().breakerOpen());
        assertTrue(lines.get(0).contains("did not answer in time; requests are not limited"), lines.toString());
        assertTrue(lines.get(lines.size() - 1).matches(".*answers again; \\d+ requests so far.*"));
        assertEquals(2, lines.size());
    }

    @Test
    void doesNoIoWhileTheBreakerIsOpen() throws Exception {
        PlayedDaemon daemon = played();
        daemon.close();
        TidegateClient client = client(daemon.path);
        assertEquals(Reason.UNREACHABLE, hit(client));
        daemon.listen();
        long began = System.nanoTime();
        List<Reason> answers = hits(client, 50);
        boolean check = client.check();
        client.signal("lag", 0.5);
        if (System.nanoTime() - began < 50_000_000) { // the shortest pause
            assertEquals(Collections.nCopies(50, Reason.BREAKER), answers);
            assertFalse(check);
            assertEquals(0, daemon.accepted.get());
        }
        until(() -> hit(client) == null);
    }

    @Test
    void stopsAtOnceWhenNothingListensAndLogsTheFirstFailureWithItsRemedy() {
        TidegateClient client = opened(options(folder().resolve("s")).fallback(Fallback.of("2/h")).build());
        assertEquals(Reason.FALLBACK, hit(client));
        assertTrue(client.stats().breakerOpen());
        Decision second = client.hit("api", USER), third = client.hit("api", USER);
        assertEquals(List.of(true, false, 429, true, 2L), List.of(second.allowed(), third.allowed(), third.status(), third.degraded(), third.limit()));
        assertTrue(third.retryAfter().toSeconds() > 1_700 && third.retryAfter().toSeconds() <= 1_800);
        assertTrue(client.hit("api", Map.of("user", "u2")).allowed());
        assertNull(client.hit("api", Map.of("user", "u2"), CallOptions.NONE.cost(3)).retryAfter());
        assertEquals(1, client.stats().missed().get(Reason.UNREACHABLE));
        assertEquals(1, lines.size());
        assertTrue(lines.get(0).matches("tidegate: no daemon at .*: start it with `tidegate serve`, or set TIDEGATE_SOCKET; "
                + "requests are limited by the fallback"), lines.get(0));
        assertEquals(Reason.UNREACHABLE, hit(client(Path.of("/" + "x".repeat(120)))));
    }

    @Test
    void appliesAFallbackByTheRuleThatBoundBefore() throws Exception {
        PlayedDaemon daemon = played();
        TidegateClient client = opened(options(daemon.path).fallback(Fallback.of(Map.of("per-user", "1/h", "*", "100/s"))).build());
        assertNull(hit(client));
        daemon.close();
        assertEquals(Reason.FALLBACK, hit(client)); // finds the connection closed
        assertEquals(List.of(1L, 100L), List.of(client.hit("api", Map.of("user", "u2")).limit(), client.hit("api", Map.of("org", "o")).limit()));
    }

    @Test
    void waitsForRoomInAFullDaemonUntilTheDeadline() throws Exception {
        PlayedDaemon daemon = played();
        PlayedDaemon.Script busy = (socket, message) -> {
            PlayedDaemon.write(socket, PlayedDaemon.frame(Arrays.asList(3, null, 8, "busy")));
            socket.close();
            return null;
        };
        daemon.script = (socket, message) -> daemon.accepted.get() < 4 ? busy.answer(socket, message) : PlayedDaemon.decision(message, PlayedDaemon.ALLOW);
        TidegateClient client = client(daemon.path);
        assertEquals(Arrays.asList(null, null), Arrays.asList(hit(client), hit(client)));
        daemon.script = busy;
        assertEquals(Reason.PROTOCOL, hit(client(daemon.path, 30)));
    }

    @Test
    void triesAFullBacklogUntilTheDeadline() throws Exception {
        Path path = folder().resolve("s");
        ServerSocketChannel server = opened(ServerSocketChannel.open(StandardProtocolFamily.UNIX));
        server.bind(UnixDomainSocketAddress.of(path), 1); // accepts nothing
        for (boolean connected = true; connected;) {
            SocketChannel filler = opened(SocketChannel.open(StandardProtocolFamily.UNIX));
            filler.configureBlocking(false);
            try {
                connected = filler.connect(UnixDomainSocketAddress.of(path));
            } catch (SocketException full) {
                connected = false;
            }
        }
        TidegateClient client = client(path, 40);
        long began = System.nanoTime();
        assertEquals(Reason.UNREACHABLE, hit(client));
        assertTrue(System.nanoTime() - began >= 39_000_000);
        assertTrue(lines.get(0).contains("takes no connections: it is stopped or overloaded"), lines.toString());
        server.close();
    }
}
