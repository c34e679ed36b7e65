package io.github.tidegate;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Optional;

/**
 * A request as it is sent, and its bytes. Uses no socket and no clock.
 *
 * @param descriptors texts of the attributes per descriptor: name, value, name, …
 * @param priority null: the rules decide
 */
record Request(int op, String domain, List<List<String>> descriptors, Cost cost, String priority, Map<String, Object> options) {
    static final int HELLO = 0, ACQUIRE = 1, RELEASE = 2, HIT = 3, PEEK = 4, CHARGE = 5, RENEW = 6, SIGNAL = 7, PING = 8;
    static final int FRAME_MAX = 16_384;
    private static final int VALUE_MAX = 1_024, VALUE_KEPT = 960, NAME_MAX = 64, IDEM_MAX = 64, IDEM_KEPT = 30, DIGESTED = 33;
    private static final int PAIRS_MAX = 16, DESCRIPTORS_MAX = 8;
    private static final int PARTS_MAX = 65_536; // of a value, such as the elements of a List
    private static final int ID_ROOM = 11; // array, op and the longest id

    /** Elements of a request after its id, encoded. */
    record Elements(int count, byte[] bytes) {
        static Elements of(Object... values) {
            MessagePack.Writer writer = new MessagePack.Writer();
            for (Object value : values) {
                writer.value(value);
            }
            return new Elements(values.length, writer.take());
        }
    }

    /** Encodes a whole frame; {@code id} null: the daemon sends no reply. */
    static byte[] frame(int op, Long id, Elements elements) {
        byte[] head = new MessagePack.Writer().value(id).take();
        int length = 2 + head.length + elements.bytes().length;
        ByteBuffer frame = ByteBuffer.allocate(4 + length).putInt(length);
        return frame.put((byte) (0x92 + elements.count())).put((byte) op).put(head).put(elements.bytes()).array();
    }

    /** Encodes the request without trailing nils. Replaces its longest values by digests until it fits into a frame. */
    Elements elements() {
        List<List<String>> texts = new ArrayList<>();
        descriptors.forEach(one -> texts.add(new ArrayList<>(one)));
        for (;;) {
            List<Object> values = new ArrayList<>(List.of(domain, texts, cost.wire()));
            if (op != CHARGE && (priority != null || !options.isEmpty())) {
                values.add(priority);
            }
            if (!options.isEmpty()) {
                values.add(options);
            }
            Elements elements = Elements.of(values.toArray());
            if (elements.bytes().length <= FRAME_MAX - ID_ROOM) {
                return elements;
            }
            List<String> longest = null;
            int at = 0, size = DIGESTED;
            for (List<String> one : texts) {
                for (int i = 1; i < one.size(); i += 2) {
                    int length = utf8(one.get(i)).length;
                    if (length > size) {
                        longest = one;
                        at = i;
                        size = length;
                    }
                }
            }
            if (longest == null) {
                throw Fault.invalid("a request does not fit into a frame");
            }
            longest.set(at, digest(longest.get(at), 0));
        }
    }

    /** Converts attributes and further descriptors to texts. Throws a Fault for those that cannot be sent. */
    static List<List<String>> describe(Map<String, ?> attributes, List<? extends Map<String, ?>> further) {
        List<Map<String, ?>> given = new ArrayList<>();
        given.add(attributes == null ? Map.of() : attributes);
        given.addAll(further);
        if (given.size() > DESCRIPTORS_MAX) {
            throw Fault.invalid("more than " + DESCRIPTORS_MAX + " descriptors");
        }
        List<List<String>> descriptors = new ArrayList<>();
        for (Map<String, ?> one : given) {
            List<String> texts = new ArrayList<>();
            one.forEach((name, value) -> {
                String text = text(name, value);
                if (!text.isEmpty()) {
                    texts.add(checkName(name));
                    texts.add(utf8(text).length > VALUE_MAX ? digest(text, VALUE_KEPT) : text);
                }
                if (texts.size() > 2 * PAIRS_MAX) {
                    throw Fault.invalid("more than " + PAIRS_MAX + " attributes");
                }
            });
            descriptors.add(texts);
        }
        return descriptors;
    }

    /** Returns the text of a value; empty: it is not sent. */
    private static String text(String name, Object value) {
        if (value == null || value instanceof String) {
            return value == null ? "" : (String) value;
        } else if (value instanceof byte[] bytes) {
            return new String(bytes, StandardCharsets.UTF_8);
        } else if (value instanceof java.net.InetAddress address) {
            return address.getHostAddress();
        }
        String text = null;
        try {
            text = hasText(value, new int[] {PARTS_MAX}) ? value.toString() : null;
        } catch (Exception | StackOverflowError error) {
            // has no text
        }
        if (text != null) {
            return text;
        }
        // Each object without a text of its own would be another caller.
        throw Fault.invalid("the attribute " + name + " has no text; help: send its id");
    }

    /** Whether a value has a text of its own, and so have all its parts. Not if there are more than {@code left}, as in a cycle. */
    private static boolean hasText(Object value, int[] left) throws NoSuchMethodException {
        if (value == null || --left[0] < 0) {
            return left[0] >= 0;
        } else if (value instanceof Map<?, ?> map) {
            return hasText(map.keySet(), left) && hasText(map.values(), left);
        } else if (value instanceof Optional<?> optional) {
            return hasText(optional.orElse(null), left);
        } else if (value instanceof Collection<?> parts) {
            for (Object part : parts) {
                if (!hasText(part, left)) {
                    return false;
                }
            }
        }
        return value.getClass().getMethod("toString").getDeclaringClass() != Object.class;
    }

    /** Returns at most {@code kept} bytes, up to the end of a character, and the digest of the whole text. */
    private static String digest(String text, int kept) {
        byte[] raw = utf8(text);
        int end = kept;
        while (end > 0 && (raw[end] & 0xc0) == 0x80) {
            end--;
        }
        return new String(raw, 0, end, StandardCharsets.UTF_8) + "~" + hash(raw);
    }

    static String hash(byte[] raw) {
        try {
            return HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(raw), 0, 16);
        } catch (NoSuchAlgorithmException error) {
            throw new IllegalStateException(error); // every platform has SHA-256
        }
    }

    /** Returns an idempotency key (String or byte[]), shortened by a digest above 64 bytes; null if absent or empty. */
    static Object shortenIdem(Object idem) {
        if (idem instanceof byte[] bytes) {
            if (bytes.length <= IDEM_MAX) {
                return bytes.length > 0 ? bytes : null;
            }
            return ByteBuffer.allocate(IDEM_KEPT + DIGESTED).put(bytes, 0, IDEM_KEPT).put(utf8("~" + hash(bytes))).array();
        }
        String text = (String) idem;
        if (text == null || text.isEmpty()) {
            return null;
        }
        return utf8(text).length > IDEM_MAX ? digest(text, IDEM_KEPT) : text;
    }

    /** Whether a text is a name of the protocol: 1 to 64 bytes without control characters, ':' and '/'. */
    static boolean isName(String name) {
        return name != null && !name.isEmpty() && utf8(name).length <= NAME_MAX
            && name.codePoints().noneMatch(c -> Character.isISOControl(c) || c == ':' || c == '/' || c >= 0xd800 && c <= 0xdfff);
    }

    static String checkName(String name) {
        if (isName(name)) {
            return name;
        }
        throw Fault.invalid("a name is text of 1 to 64 bytes without control characters, ':' and '/'");
    }

    static byte[] utf8(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }
}
