package io.github.tidegate;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.channels.SocketChannel;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executor;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.condition.EnabledForJreRange;
import org.junit.jupiter.api.condition.JRE;

/** Many callers of one connection: threads, interrupts, pauses, restarts. */
class ConcurrencyTest extends Support {
    private static final int CALLERS = 2_000;
    private static final String RULES = """
            domain: api
            concurrency:
              - {name: at-once, match: {job: export}, key: [], max: 40, expires: 1h}
            limits:
              - {name: all, match: {job: message}, key: [], rate: 1/h, burst: 3000}
            """;

    /** Runs a call in each of so many threads at once, and returns the answers. */
    private static <T> List<T> together(Executor threads, int count, java.util.function.IntFunction<T> call) throws Exception {
        CountDownLatch start = new CountDownLatch(count), end = new CountDownLatch(count);
        ConcurrentLinkedQueue<T> answers = new ConcurrentLinkedQueue<>();
        for (int i = 0; i < count; i++) {
            int number = i;
            threads.execute(() -> {
                start.countDown();
                try {
                    start.await();
                    answers.add(call.apply(number));
                } catch (InterruptedException error) {
                    throw new AssertionError(error);
                } finally {
                    end.countDown();
                }
            });
        }
        assertTrue(end.await(120, TimeUnit.SECONDS));
        return new ArrayList<>(answers);
    }

    private static Executor threads() {
        return task -> new Thread(null, task, "caller", 1 << 17).start();
    }

    private void serveManyCallers(Executor threads) throws Exception {
        RealDaemon daemon = opened(new RealDaemon(folder(), RULES));
        TidegateClient client = client(daemon.path);
        List<Decision> decisions = together(threads, CALLERS, i -> client.hit("api", Map.of("job", "message")));
        assertEquals(CALLERS, decisions.size());
        assertTrue(decisions.stream().allMatch(d -> d.reason() == null && d.allowed()), () -> client.stats().toString());
        assertEquals(CALLERS, decisions.stream().map(Decision::remaining).distinct().count()); // each has its own reply
        together(threads, CALLERS, i -> {
            Decision d = client.acquire("api", Map.of("job", "export"));
            d.release(i % 2 == 0 ? Outcome.OK : Outcome.ERROR);
            return d;
        });
        until(() -> client.peek("api", Map.of("job", "export")).remaining() == 40);
        assertEquals(new Stats(Map.of(), Map.of(), 1, false), client.stats());
    }

    @Test
    void servesManyCallersOverOneConnection() throws Exception {
        serveManyCallers(threads());
    }

    @Test
    @EnabledForJreRange(min = JRE.JAVA_21)
    void servesManyVirtualThreadsOverOneConnection() throws Exception {
        Executor virtual = (Executor) Executors.class.getMethod("newVirtualThreadPerTaskExecutor").invoke(null);
        serveManyCallers(virtual);
    }

    @Test
    void queuedRequestsWaitForTheirTurn() throws Exception {
        PlayedDaemon daemon = played();
        daemon.script = (of, message) -> { // all take longer than the timeout, and those in flight less
            java.util.concurrent.locks.LockSupport.parkNanos(2_000_000);
            return PlayedDaemon.decision(message, PlayedDaemon.ALLOW);
        };
        TidegateClient client = client(daemon.path, 1_000);
        List<Decision> decisions = together(threads(), 700, i -> client.hit("api", Map.of()));
        assertTrue(decisions.stream().allMatch(d -> d.reason() == null), () -> client.stats().toString());
    }

    @Test
    void matchesRepliesInAnyOrderAndKeepsAtMost256InFlight() throws Exception {
        PlayedDaemon daemon = played();
        List<List<?>> held = Collections.synchronizedList(new ArrayList<>());
        SocketChannel[] socket = {null};
        daemon.script = (of, message) -> {
            socket[0] = of;
            held.add(message);
            return null;
        };
        TidegateClient client = client(daemon.path);
        ExecutorService pool = Executors.newFixedThreadPool(300);
        List<Future<Decision>> calls = new ArrayList<>();
        for (int i = 0; i < 300; i++) {
            String user = "u" + i;
            calls.add(pool.submit(() -> client.hit("api", Map.of("user", user))));
        }
        until(() -> held.size() == 256);
        Thread.sleep(20);
        assertEquals(256, held.size());
        PlayedDaemon.Script echo = (of, message) -> {
            List<Object> verdict = new ArrayList<>(PlayedDaemon.ALLOW);
            verdict.set(1, ((List<?>) ((List<?>) message.get(3)).get(0)).get(1));
            return PlayedDaemon.decision(message, verdict);
        };
        daemon.script = echo;
        List<List<?>> reversed = new ArrayList<>(held);
        Collections.reverse(reversed);
        for (List<?> message : reversed) {
            PlayedDaemon.write(socket[0], PlayedDaemon.frame(echo.answer(socket[0], message)));
        }
        for (int i = 0; i < 300; i++) {
            assertEquals("u" + i, calls.get(i).get(30, TimeUnit.SECONDS).rule());
        }
        pool.shutdown();
        assertEquals(1, daemon.of(0).size());
    }

    @Test
    void anInterruptDoesNotBreakTheConnectionOfOthers() throws Exception {
        PlayedDaemon daemon = played();
        daemon.script = (socket, message) -> message.get(0).equals(1L) ? null : PlayedDaemon.decision(message, PlayedDaemon.ALLOW);
        TidegateClient client = client(daemon.path);
        List<Decision> answers = Collections.synchronizedList(new ArrayList<>());
        List<Boolean> flags = Collections.synchronizedList(new ArrayList<>());
        Runnable call = () -> {
            answers.add(client.acquire("api", USER));
            flags.add(Thread.currentThread().isInterrupted());
        };
        List<Thread> threads = List.of(new Thread(call), new Thread(call), new Thread(call));
        threads.forEach(Thread::start);
        until(() -> daemon.of(1).size() == 3); // one reads, two are parked
        for (int i = 0; i < 20; i++) {
            threads.forEach(Thread::interrupt);
            assertNull(hit(client));
            Thread.currentThread().interrupt(); // before a call, which writes
            assertNull(hit(client));
            assertTrue(Thread.interrupted());
        }
        assertEquals(List.of(), answers);
        SocketChannel socket = daemon.sockets.iterator().next();
        for (List<?> message : daemon.of(1)) {
            PlayedDaemon.write(socket, PlayedDaemon.frame(PlayedDaemon.decision(message, PlayedDaemon.leased(PlayedDaemon.ALLOW, 5))));
        }
        for (Thread thread : threads) {
            thread.join();
        }
        assertTrue(answers.stream().allMatch(d -> d.reason() == null && d.lease() == 5));
        assertEquals(List.of(true, true, true), flags);
        Thread.currentThread().interrupt();
        answers.get(0).release();
        assertTrue(Thread.interrupted());
        daemon.releases(1);
        assertEquals(1, daemon.accepted.get());
        assertEquals(Map.of(), client.stats().missed());
    }

    @Test
    void interruptedCallersKeepTheDeadline() throws Exception {
        PlayedDaemon daemon = played();
        daemon.silent = true;
        TidegateClient client = client(daemon.path, 50);
        Thread.currentThread().interrupt();
        long began = System.nanoTime();
        assertEquals(Reason.TIMEOUT, hit(client));
        assertTrue(Thread.interrupted() && System.nanoTime() - began >= 50_000_000);
    }

    @Test
    void goesOnWritingWhenTheSocketIsFull() throws Exception {
        PlayedDaemon daemon = played();
        CountDownLatch go = new CountDownLatch(1);
        daemon.script = (socket, message) -> {
            try {
                go.await();
            } catch (InterruptedException error) {
                throw new AssertionError(error);
            }
            return PlayedDaemon.decision(message, PlayedDaemon.ALLOW);
        };
        TidegateClient client = client(daemon.path);
        Map<String, String> large = new java.util.HashMap<>();
        for (int i = 0; i < 14; i++) {
            large.put("a" + i, "v".repeat(1_000));
        }
        Thread opener = new Thread(() -> {
            while (daemon.of(3).isEmpty()) {
                Thread.onSpinWait();
            }
            try {
                Thread.sleep(200); // the others fill the socket meanwhile: 256 requests of 14 kB
            } catch (InterruptedException error) {
                throw new AssertionError(error);
            }
            go.countDown();
        });
        opener.start();
        List<Decision> decisions = together(threads(), 250, i -> client.hit("api", large));
        assertEquals(250, decisions.stream().filter(d -> d.reason() == null).count());
        assertEquals(1, daemon.accepted.get());
    }

    @Test
    void aCallerWhoseReaderHasNoTimeGivesUpAloneAndItsLateGrantIsReleased() throws Exception {
        PlayedDaemon daemon = played();
        daemon.script = PlayedDaemon::grant;
        TidegateClient client = client(daemon.path, 40);
        until(() -> client.check());
        int connections = daemon.accepted.get();
        client.connection.reading.set(true); // a caller that reads, and is not scheduled
        long began = System.nanoTime();
        Decision d = client.acquire("api", USER);
        assertTrue(System.nanoTime() - began >= 40_000_000);
        client.connection.reading.set(false);
        assertEquals(Reason.TIMEOUT, d.reason());
        assertEquals(List.of(1, false), List.of(client.stats().connections(), client.stats().breakerOpen()));
        until(client::check); // reads the late grant
        assertEquals(List.of(List.of(76 + (Long) daemon.last(1).get(1), 2L)), daemon.releases(1));
        assertEquals(connections, daemon.accepted.get());
    }

    /** A paused process, as by a garbage collection: its threads are late, not the daemon. */
    @Test
    void countsRepliesThatArrivedWhileTheProcessWasPaused() throws Exception {
        RealDaemon daemon = opened(new RealDaemon(folder(), RULES));
        String java = Path.of(System.getProperty("java.home"), "bin", "java").toString();
        Process child = new ProcessBuilder(java, "-Xmx64m", "-cp", System.getProperty("java.class.path"), Paused.class.getName(),
                daemon.path.toString()).redirectError(ProcessBuilder.Redirect.INHERIT).start();
        opened(() -> child.destroyForcibly().waitFor());
        child.getInputStream().read(); // it calls
        for (int i = 0; i < 6; i++) {
            Thread.sleep(50);
            RealDaemon.send("STOP", child.pid());
            Thread.sleep(400); // longer than the deadline
            RealDaemon.send("CONT", child.pid());
        }
        child.getOutputStream().close();
        String result = new String(child.getInputStream().readAllBytes()).strip();
        assertTrue(result.matches("\\d+ calls, longest \\d+ ms, missed \\{}"), result);
        assertTrue(Integer.parseInt(result.replaceFirst(".*longest (\\d+) ms.*", "$1")) >= 350, result);
    }

    /** Calls from four threads until its input ends. */
    static final class Paused {
        public static void main(String[] arguments) throws Exception {
            TidegateClient client = TidegateClient.builder().socket(Path.of(arguments[0])).timeout(Duration.ofMillis(200)).build();
            for (int i = 0; i < 2_000; i++) { // compiled, as a server that has run for a while
                client.peek("api", USER);
            }
            long[] longest = {0, 0, 0, 0}, calls = {0, 0, 0, 0};
            boolean[] stop = {false};
            Map<Reason, Long> before = client.stats().missed();
            List<Thread> threads = new ArrayList<>();
            for (int i = 0; i < 4; i++) {
                int number = i;
                threads.add(new Thread(() -> {
                    while (!stop[0]) {
                        long began = System.nanoTime();
                        client.peek("api", USER);
                        longest[number] = Math.max(longest[number], System.nanoTime() - began);
                        calls[number]++;
                        Thread.yield();
                    }
                }));
            }
            threads.forEach(Thread::start);
            System.out.print(">");
            System.out.flush();
            while (System.in.read() >= 0) {
                // until the end
            }
            stop[0] = true;
            for (Thread thread : threads) {
                thread.join(1_000);
            }
            Map<Reason, Long> missed = client.stats().missed();
            System.out.println(Arrays.stream(calls).sum() + " calls, longest " + Arrays.stream(longest).max().getAsLong() / 1_000_000
                    + " ms, missed " + (missed.equals(before) ? "{}" : missed));
            System.exit(0);
        }
    }

    @Test
    void aRestartOfTheDaemonIsSeenByAllCallersAsOneFailure() throws Exception {
        RealDaemon daemon = opened(new RealDaemon(folder(), RULES));
        TidegateClient client = client(daemon.path, 1_000);
        boolean[] stop = {false};
        ConcurrentLinkedQueue<Reason> reasons = new ConcurrentLinkedQueue<>();
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < 50; i++) {
            threads.add(new Thread(() -> {
                while (!stop[0]) {
                    Reason reason = client.peek("api", USER).reason();
                    if (reason != null) {
                        reasons.add(reason);
                    }
                    java.util.concurrent.locks.LockSupport.parkNanos(1_000_000);
                }
            }));
        }
        threads.forEach(Thread::start);
        until(() -> client.stats().connections() == 1);
        for (String signal : List.of("TERM", "KILL")) {
            daemon.stop(signal);
            until(() -> client.stats().breakerOpen());
            daemon.start();
            until(() -> client.peek("api", USER).reason() == null);
        }
        stop[0] = true;
        for (Thread thread : threads) {
            thread.join();
        }
        Map<Reason, Long> counts = reasons.stream().collect(Collectors.groupingBy(reason -> reason, Collectors.counting()));
        assertEquals(Set.of(Reason.UNREACHABLE, Reason.BREAKER), counts.keySet());
        // Of each thread and stop at most a call on the ended connection, one on the next, and some probes.
        assertTrue(counts.get(Reason.UNREACHABLE) <= 2 * (2 * 50 + 20), counts.toString());
        assertTrue(lines.stream().allMatch(line -> line.matches(".*(not limited|decided without it|says why)")), lines.toString());
    }
}
