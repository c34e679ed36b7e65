package io.github.tidegate;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.io.IOException;
import java.math.BigInteger;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;

/** The golden frames, the reference of the protocol, and the responses to HTTP callers. */
class VectorsTest {
    private static final List<String> OPS = List.of("hello", "acquire", "release", "hit", "peek", "charge", "renew", "signal", "ping");
    private static final List<String> KINDS = List.of("welcome", "decision", "done", "error", "goodbye");
    private static final List<String> CODES = List.of("", "malformed", "too_large", "version", "hello_required", "unknown_op", "invalid",
            "quota", "busy", "forbidden", "internal", "not_allowed");

    @Test
    void readsEveryGoodFrameAndWritesEveryCanonicalOne() throws IOException {
        int written = 0;
        for (JsonObject vector : Vectors.read("good.json")) {
            byte[] payload = Vectors.payload(Vectors.bytes(vector));
            String name = Vectors.text(vector, "name");
            List<?> read = MessagePack.decode(payload);
            if (vector.get("canonical").getAsBoolean()) {
                List<?> message = message(vector.getAsJsonObject("meaning"));
                assertEquals(plain(message), plain(read), name);
                assertEquals(hex(payload), hex(new MessagePack.Writer().value(message).take()), name);
                written++;
            }
        }
        assertTrue(written > 100, () -> "too few");
    }

    @Test
    void encodesRequestsFromWhatAnApplicationGives() throws IOException {
        int written = 0;
        for (JsonObject vector : Vectors.read("good.json")) {
            JsonObject meaning = vector.getAsJsonObject("meaning");
            int op = meaning.has("op") ? OPS.indexOf(Vectors.text(meaning, "op")) : -1;
            String name = Vectors.text(vector, "name");
            // The largest frame has a short id; the client keeps room for the longest.
            if (op < 1 || !vector.get("canonical").getAsBoolean() || name.equals("hit_frame_largest")) {
                continue;
            }
            List<?> message = message(meaning);
            Request.Elements elements;
            if (meaning.has("domain")) {
                Map<String, Object> options = options(meaning);
                Cost cost = cost(meaning.has("cost") ? meaning.get("cost") : meaning.get("amount"));
                List<Map<String, ?>> given = attributes(meaning);
                if (options == null || cost == null || given == null) {
                    continue;
                }
                List<List<String>> descriptors = Request.describe(given.get(0), given.subList(1, given.size()));
                elements = new Request(op, Vectors.text(meaning, "domain"), descriptors, cost, Vectors.text(meaning, "priority"), options).elements();
            } else {
                elements = Request.Elements.of(message.subList(2, message.size()).toArray());
            }
            assertEquals(hex(Vectors.bytes(vector)), hex(Request.frame(op, (Long) message.get(1), elements)), name);
            written++;
        }
        int count = written;
        assertTrue(written > 50, () -> "only " + count);
    }

    /** Null: no attributes, or an empty value, which is not sent. */
    private static List<Map<String, ?>> attributes(JsonObject meaning) {
        List<Map<String, ?>> all = new ArrayList<>();
        for (JsonElement one : meaning.getAsJsonArray("descriptors")) {
            Map<String, String> pairs = new LinkedHashMap<>();
            List<JsonElement> flat = one.getAsJsonArray().asList();
            for (int i = 0; i < flat.size(); i += 2) {
                pairs.put(flat.get(i).getAsString(), flat.get(i + 1).getAsString());
            }
            if (pairs.containsValue("") || 2 * pairs.size() != flat.size()) {
                return null;
            }
            all.add(pairs);
        }
        return all.isEmpty() ? null : all;
    }

    /** Null: beyond 2^63 - 1, which a long cannot say. */
    private static Cost cost(JsonElement cost) {
        Object value = Vectors.real(cost);
        Map<String, Long> units = new LinkedHashMap<>();
        (value instanceof Map<?, ?> map ? map : Map.of(Cost.REQUESTS, value)).forEach((unit, n) -> {
            if (n instanceof Long amount) {
                units.put((String) unit, amount);
            }
        });
        boolean isOne = value instanceof Map<?, ?> map && map.size() == 1 && map.containsKey(Cost.REQUESTS);
        return units.isEmpty() || isOne ? null : new Cost(units);
    }

    @SuppressWarnings("unchecked")
    private static Map<String, Object> options(JsonObject meaning) {
        return new LinkedHashMap<>((Map<String, Object>) Vectors.real(meaning.get("options")));
    }

    @Test
    void readsTheFieldsOfEveryDecision() throws IOException {
        long largest = 0;
        for (JsonObject vector : Vectors.read("good.json")) {
            JsonObject m = vector.getAsJsonObject("meaning");
            if (!"decision".equals(Vectors.text(m, "kind"))) {
                continue;
            }
            String name = Vectors.text(vector, "name");
            Decision d = Decision.read(MessagePack.decode(Vectors.payload(Vectors.bytes(vector))), "api", null, null, null);
            assertEquals(Vectors.text(m, "verdict"), d.verdict().name().toLowerCase(), name);
            assertEquals(Vectors.text(m, "rule"), d.rule(), name);
            assertEquals(Arrays.asList(number(m, "limit"), number(m, "remaining")), Arrays.asList(d.limit(), d.remaining()), name);
            assertEquals(Arrays.asList(micros(m, "window_us"), micros(m, "reset_us"), micros(m, "retry_us")),
                    Arrays.asList(micros(d.window()), micros(d.resetAfter()), micros(d.retryAfter())), name);
            if (d.allowed()) {
                assertEquals(number(m, "lease"), d.lease(), name);
            }
            List<Object> notes = new ArrayList<>();
            d.notes().forEach(note -> notes.add(List.of(note.kind(), note.rule())));
            Object expected = Vectors.real(m.get("notes"));
            assertEquals(expected == null ? List.of() : expected, notes, name);
            JsonObject extra = m.get("extra").isJsonNull() ? new JsonObject() : m.getAsJsonObject("extra");
            assertEquals(Vectors.text(extra, "help"), d.help(), name);
            assertEquals(Vectors.text(extra, "rate"), d.rate(), name);
            assertEquals(Vectors.text(extra, "digest"), d.digest(), name);
            largest = Math.max(largest, d.lease() == null ? 0 : d.lease());
        }
        assertEquals(Long.MAX_VALUE, largest);
    }

    private static Long number(JsonObject of, String name) {
        Object value = Vectors.real(of.get(name));
        return value instanceof BigInteger ? (Long) Long.MAX_VALUE : (Long) value;
    }

    private static BigInteger micros(JsonObject of, String name) {
        return of.get(name).isJsonNull() ? null : of.get(name).getAsBigInteger();
    }

    private static BigInteger micros(java.time.Duration time) {
        return time == null ? null : BigInteger.valueOf(time.getSeconds()).multiply(BigInteger.valueOf(1_000_000))
                .add(BigInteger.valueOf(time.getNano() / 1_000));
    }

    @Test
    void refusesMalformedFrames() throws IOException {
        int refused = 0;
        for (JsonObject vector : Vectors.read("bad.json")) {
            byte[] bytes = Vectors.bytes(vector);
            if (!"malformed".equals(Vectors.text(vector, "code")) || bytes.length < 5) {
                continue;
            }
            int length = java.nio.ByteBuffer.wrap(bytes).getInt();
            List<?> message;
            try {
                message = MessagePack.decode(Arrays.copyOfRange(bytes, 4, Math.min(bytes.length, 4 + length)));
            } catch (Fault fault) {
                refused++;
                continue;
            }
            // Only a reader of requests detects the rest: op or id is no unsigned integer, or too large.
            boolean small = message.size() > 1 && message.subList(0, 2).stream().allMatch(n -> n instanceof Long value && value >= 0);
            assertTrue(!small, Vectors.text(vector, "name"));
        }
        int count = refused;
        assertTrue(refused > 25, () -> "only " + count);
    }

    @Test
    void givesHttpCallersTheSameAnswersAsEveryClient() throws IOException {
        for (JsonObject row : Vectors.read("answers.json")) {
            String name = Vectors.text(row, "name");
            Decision decision = Vectors.decided(row);
            assertEquals(Vectors.text(row, "message"), decision.message(), name);
            GuardOptions<String> options = new GuardOptions<String>()
                    .headers(GuardOptions.Headers.valueOf(Vectors.text(row, "style").toUpperCase()));
            Guard<String> guard = new Guard<>(TidegateClient.create(), "api", options);
            List<List<String>> expected = new ArrayList<>(), headers = new ArrayList<>();
            row.getAsJsonArray("headers").forEach(field -> {
                if (!field.getAsJsonArray().get(0).getAsString().equals("Content-Length")) {
                    expected.add(List.of(field.getAsJsonArray().get(0).getAsString(), field.getAsJsonArray().get(1).getAsString()));
                }
            });
            if (decision.allowed()) {
                guard.fields(decision, row.get("status").getAsInt(), field -> false).forEach((key, value) -> headers.add(List.of(key, value)));
            } else {
                GuardOptions.Refusal refusal = guard.refusal("", decision);
                assertEquals(row.get("status").getAsInt(), refusal.status(), name);
                assertArrayEquals(Request.utf8(Vectors.text(row, "body")), refusal.body(), name);
                refusal.headers().forEach((key, value) -> headers.add(List.of(key, value)));
            }
            assertEquals(expected, headers, name);
        }
    }

    /** Returns the array of a meaning: a request without trailing nils, a reply in full. */
    private static List<Object> message(JsonObject meaning) {
        List<Object> message = new ArrayList<>();
        Object id = Vectors.real(meaning.get("id"));
        String[] fields;
        if (meaning.has("kind")) {
            int kind = KINDS.indexOf(Vectors.text(meaning, "kind"));
            message.addAll(Arrays.asList((long) kind, id));
            fields = new String[][] {{"version", "info"},
                {"verdict", "rule", "limit", "window_us", "remaining", "reset_us", "retry_us", "lease", "notes", "all", "extra"},
                {"ok"}, {"code", "message"}, {"reason"}}[kind];
        } else {
            int op = OPS.indexOf(Vectors.text(meaning, "op"));
            message.addAll(Arrays.asList((long) op, id));
            String[] judged = {"domain", "descriptors", "cost", "priority", "options"};
            fields = new String[][] {{"version", "info"}, judged, {"lease", "outcome"}, judged, judged,
                {"domain", "descriptors", "amount", "options"}, {"lease"}, {"pool", "name", "permille"}, {}}[op];
        }
        for (String field : fields) {
            Object value = Vectors.real(meaning.get(field));
            if (field.equals("verdict") || field.equals("outcome")) {
                value = (long) (field.equals("verdict") ? Verdict.valueOf(((String) value).toUpperCase()).ordinal()
                        : Outcome.valueOf(((String) value).toUpperCase()).ordinal());
            } else if (field.equals("code")) {
                value = (long) CODES.indexOf(value);
            } else if (field.equals("notes") && value instanceof List<?> pairs) {
                List<Object> flat = new ArrayList<>();
                pairs.forEach(pair -> flat.addAll((List<?>) pair));
                value = flat;
            } else if (!meaning.has("kind") && (field.equals("options") || field.equals("info")) && ((Map<?, ?>) value).isEmpty()) {
                value = null;
            }
            message.add(value);
        }
        while (!meaning.has("kind") && message.size() > 2 && message.get(message.size() - 1) == null) {
            message.remove(message.size() - 1);
        }
        return message;
    }

    /** Replaces byte arrays, which have no equality. */
    private static Object plain(Object value) {
        if (value instanceof byte[] bytes) {
            return "bin " + hex(bytes);
        } else if (value instanceof List<?> list) {
            return list.stream().map(VectorsTest::plain).map(one -> one == null ? "nil" : one).toList();
        } else if (value instanceof Map<?, ?> map) {
            Map<Object, Object> all = new LinkedHashMap<>();
            map.forEach((key, one) -> all.put(key, plain(one)));
            return all;
        }
        return value;
    }

    private static String hex(byte[] bytes) {
        return HexFormat.of().formatHex(bytes);
    }
}
