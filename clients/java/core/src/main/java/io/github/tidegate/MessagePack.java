package io.github.tidegate;

import java.math.BigInteger;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * MessagePack within the limits of the protocol. Values are null, Boolean, Long, BigInteger (from 2^63 on), String, byte[],
 * List and Map. Uses no socket and no clock.
 */
final class MessagePack {
    private static final int DEPTH_MAX = 4;
    private static final BigInteger UINT64_MAX = BigInteger.ONE.shiftLeft(64).subtract(BigInteger.ONE);

    private MessagePack() {}

    /** Appends values in their shortest form to bytes that grow. */
    static final class Writer {
        private byte[] data = new byte[256];
        private int size;

        byte[] take() {
            return Arrays.copyOf(data, size);
        }

        Writer value(Object value) {
            if (value == null) {
                put(0xc0);
            } else if (value instanceof Boolean is) {
                put(is ? 0xc3 : 0xc2);
            } else if (value instanceof String text) {
                byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
                head(bytes.length, 0xa0, 32, 0xd9, 1);
                raw(bytes);
            } else if (value instanceof byte[] bytes) {
                head(bytes.length, 0, 0, 0xc4, 1);
                raw(bytes);
            } else if (value instanceof BigInteger large && large.bitLength() > 63) {
                if (large.signum() < 0 || large.compareTo(UINT64_MAX) > 0) {
                    throw Fault.invalid("a number is too large for a frame");
                }
                put(0xcf);
                number(large.longValue(), 8);
            } else if (value instanceof Number number) {
                integer(number.longValue());
            } else if (value instanceof List<?> list) {
                head(list.size(), 0x90, 16, 0xdc, 2);
                list.forEach(this::value);
            } else {
                Map<?, ?> map = (Map<?, ?>) value;
                head(map.size(), 0x80, 16, 0xde, 2);
                map.forEach((name, one) -> value(name).value(one));
            }
            return this;
        }

        private void integer(long n) {
            if (n >= -32 && n < 128) {
                put((int) n);
                return;
            }
            int width = 1;
            while (width < 8 && (n < 0 ? n < -1L << (8 * width - 1) : n >= 1L << (8 * width))) {
                width *= 2;
            }
            put((n < 0 ? 0xd0 : 0xcc) + Integer.numberOfTrailingZeros(width));
            number(n, width);
        }

        /** Writes a length: below {@code below} into the first byte, else after {@code code} and as wide as it needs. */
        private void head(int length, int small, int below, int code, int least) {
            if (length < below) {
                put(small + length);
                return;
            }
            int width = least;
            while (width < 4 && length >= 1 << (8 * width)) {
                width *= 2;
            }
            put(code + Integer.numberOfTrailingZeros(width / least));
            number(length, width);
        }

        private void number(long n, int width) {
            for (int shift = 8 * (width - 1); shift >= 0; shift -= 8) {
                put((int) (n >> shift));
            }
        }

        private void put(int octet) {
            if (size == data.length) {
                data = Arrays.copyOf(data, 2 * size);
            }
            data[size++] = (byte) octet;
        }

        private void raw(byte[] bytes) {
            if (size + bytes.length > data.length) {
                data = Arrays.copyOf(data, 2 * (size + bytes.length));
            }
            System.arraycopy(bytes, 0, data, size, bytes.length);
            size += bytes.length;
        }
    }

    /** Decodes bytes that are exactly one array. Throws a Fault for anything that the protocol forbids. */
    static List<?> decode(byte[] data) {
        Reader reader = new Reader(data);
        Object message = reader.value(DEPTH_MAX);
        if (message instanceof List<?> list && !reader.data.hasRemaining()) {
            return list;
        }
        throw malformed();
    }

    private static Fault malformed() {
        return Fault.malformed("malformed frame: not exactly one array of valid values");
    }

    private record Reader(ByteBuffer data) {
        Reader(byte[] data) {
            this(ByteBuffer.wrap(data));
        }

        /** Reads one value; {@code depth}: levels left for nesting. */
        Object value(int depth) {
            int first = octet();
            if (first < 0x80 || first >= 0xe0) {
                return (long) (byte) first;
            } else if (first < 0x90) {
                return map(first & 15, depth);
            } else if (first < 0xa0) {
                return array(first & 15, depth);
            } else if (first < 0xc0) {
                return text(first & 31);
            }
            return switch (first) {
                case 0xc0 -> null;
                case 0xc2 -> false;
                case 0xc3 -> true;
                case 0xc4, 0xc5, 0xc6 -> bytes(size(1 << (first - 0xc4)));
                case 0xcc, 0xcd, 0xce -> unsigned(1 << (first - 0xcc));
                case 0xcf -> {
                    long n = unsigned(8);
                    yield n < 0 ? new BigInteger(Long.toUnsignedString(n)) : (Object) n;
                }
                case 0xd0 -> (long) (byte) unsigned(1);
                case 0xd1 -> (long) (short) unsigned(2);
                case 0xd2 -> (long) (int) unsigned(4);
                case 0xd3 -> unsigned(8);
                case 0xd9, 0xda, 0xdb -> text(size(1 << (first - 0xd9)));
                case 0xdc, 0xdd -> array(size(2 << (first - 0xdc)), depth);
                case 0xde, 0xdf -> map(size(2 << (first - 0xde)), depth);
                default -> throw malformed();
            };
        }

        private int octet() {
            if (!data.hasRemaining()) {
                throw malformed();
            }
            return data.get() & 0xff;
        }

        private long unsigned(int width) {
            long n = 0;
            for (int i = 0; i < width; i++) {
                n = n << 8 | octet();
            }
            return n;
        }

        /** Reads a length. An element takes a byte at least, so that a longer one is malformed. */
        private int size(int width) {
            long size = unsigned(width);
            if (size > data.remaining()) {
                throw malformed();
            }
            return (int) size;
        }

        private byte[] bytes(int size) {
            if (size > data.remaining()) {
                throw malformed();
            }
            byte[] bytes = new byte[size];
            data.get(bytes);
            return bytes;
        }

        private String text(int size) {
            byte[] bytes = bytes(size);
            try { // the constructor of String would replace invalid bytes
                return StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(bytes)).toString();
            } catch (CharacterCodingException error) {
                throw malformed();
            }
        }

        private List<Object> array(int count, int depth) {
            if (depth == 0) {
                throw malformed();
            }
            List<Object> values = new ArrayList<>(Math.min(count, data.remaining()));
            for (int i = 0; i < count; i++) {
                values.add(value(depth - 1));
            }
            return values;
        }

        private Map<String, Object> map(int count, int depth) {
            if (depth == 0) {
                throw malformed();
            }
            Map<String, Object> values = new LinkedHashMap<>();
            for (int i = 0; i < count; i++) {
                if (!(value(depth - 1) instanceof String name) || values.containsKey(name)) {
                    throw malformed();
                }
                values.put(name, value(depth - 1));
            }
            return values;
        }
    }
}
