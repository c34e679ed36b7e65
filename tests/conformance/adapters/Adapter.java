import io.github.tidegate.CallOptions;
import io.github.tidegate.Decision;
import io.github.tidegate.Fallback;
import io.github.tidegate.OnFailure;
import io.github.tidegate.Outcome;
import io.github.tidegate.TidegateClient;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;

/** The adapter of the Java client: a command as a line of JSON on standard input, its result on standard output. */
public class Adapter {
    static final Map<String, TidegateClient> CLIENTS = new HashMap<>();
    static final List<String> LINES = Collections.synchronizedList(new ArrayList<>());
    static volatile Decision last;

    public static void main(String[] arguments) throws Exception {
        var in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            System.out.println(Json.write(answer(Json.read(line))));
        }
    }

    static Object answer(Map<String, Object> given) throws Exception {
        TidegateClient client = CLIENTS.get(given.get("client"));
        switch ((String) given.get("do")) {
            case "make" -> {
                var made = TidegateClient.builder().socket(Path.of((String) given.get("socket"))).logger(LINES::add)
                        .enabled(given.get("enabled") != Boolean.FALSE);
                if (given.get("timeout_ms") instanceof Number timeout) {
                    made.timeout(Duration.ofNanos((long) (timeout.doubleValue() * 1e6)));
                }
                if (given.get("fallback") instanceof String rate) {
                    made.fallback(Fallback.of(rate));
                }
                CLIENTS.put((String) given.get("client"), made.build());
                return Map.of();
            }
            case "crowd" -> {
                var all = new Object[((Long) given.get("callers")).intValue()];
                var threads = new ArrayList<Thread>();
                for (int i = 0; i < all.length; i++) {
                    int number = i;
                    var one = new HashMap<String, Object>(given);
                    one.put("attributes", Map.of("user", "u" + i));
                    threads.add(new Thread(null, () -> all[number] = ask(client, one), "caller", 64 << 10));
                }
                threads.forEach(Thread::start);
                for (Thread thread : threads) {
                    thread.join();
                }
                return Map.of("all", List.of(all));
            }
            case "work" -> {
                return work(client, given);
            }
            case "release" -> last.release(Outcome.valueOf(((String) given.get("outcome")).toUpperCase(Locale.ROOT)));
            case "log" -> {
                var lines = List.copyOf(LINES);
                LINES.clear();
                return Map.of("lines", lines);
            }
            case "stats" -> {
                var stats = client.stats();
                return Map.of("missed", stats.missed(), "refused", stats.refused(), "connections", stats.connections(),
                        "breaker_open", stats.breakerOpen());
            }
            default -> {
                return ask(client, given);
            }
        }
        return Map.of();
    }

    /** {@code {"invalid": true}} is text that is no Unicode: half of a surrogate pair. */
    static Map<String, Object> ask(TidegateClient client, Map<String, Object> given) {
        var said = new LinkedHashMap<String, Object>();
        var attributes = new LinkedHashMap<String, Object>(Json.map(given.get("attributes")));
        attributes.replaceAll((name, value) -> !(value instanceof Map<?, ?> odd) ? value : odd.containsKey("object") ? new Object() : "\ud800");
        long began = System.nanoTime();
        try {
            var options = CallOptions.NONE;
            options = given.get("cost") instanceof Long cost ? options.cost(cost) : options;
            options = given.get("priority") instanceof String priority ? options.priority(priority) : options;
            options = given.get("idem") instanceof String idem ? options.idem(idem) : options;
            options = "refuse".equals(given.get("on_failure")) ? options.onFailure(OnFailure.REFUSE) : options;
            String domain = (String) given.get("domain");
            Decision d = switch ((String) given.get("do")) {
                case "acquire" -> client.acquire(domain, attributes, options);
                case "peek" -> client.peek(domain, attributes, options);
                default -> client.hit(domain, attributes, options);
            };
            said.put("took_us", (System.nanoTime() - began) / 1_000);
            last = d;
            said.putAll(Map.of("allowed", d.allowed(), "verdict", d.verdict().name().toLowerCase(Locale.ROOT), "status", d.status(),
                    "degraded", d.degraded(), "wait_us", micros(d.waitTime())));
            said.put("reason", d.reason());
            said.put("rule", d.rule());
            said.put("limit", d.limit());
            said.put("remaining", d.remaining());
            said.put("lease", d.lease());
            said.put("retry_us", d.retryAfter() == null ? null : micros(d.retryAfter()));
        } catch (RuntimeException error) {
            said.put("took_us", (System.nanoTime() - began) / 1_000);
            said.put("raised", error.getClass().getSimpleName());
        }
        return said;
    }

    static double micros(Duration time) {
        return time.toSeconds() * 1e6 + time.toNanosPart() / 1_000;
    }

    /** Runs work under a lease, which throws if {@code fails}. */
    static Map<String, Object> work(TidegateClient client, Map<String, Object> given) {
        var said = new HashMap<String, Object>(Map.of("ran", false));
        try {
            client.limit((String) given.get("domain"), Json.map(given.get("attributes")), decision -> {
                said.put("ran", true);
                if (given.get("fails") == Boolean.TRUE) {
                    throw new java.util.NoSuchElementException("of the application");
                }
                return null;
            });
        } catch (Exception error) {
            said.put("raised", error.getClass().getSimpleName());
        }
        return said;
    }
}
