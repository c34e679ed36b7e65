package io.github.tidegate;

import java.net.Inet4Address;
import java.net.InetAddress;
import java.net.UnknownHostException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** The proxies in front whose headers count: networks, or their number. */
final class Proxies {
    private static final int QUEUED_MAX = 60_000; // ms; a longer time means that the proxy's clock differs
    private static final Pattern IPV4 = Pattern.compile("(?:(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)(?:\\.(?!$)|$)){4}");
    private static final Pattern IPV6 = Pattern.compile("[0-9a-fA-F:]*:[0-9a-fA-F:.]*");
    private static final Pattern START = Pattern.compile("(?:t=)?(\\d{1,20}(?:\\.\\d{1,9})?)");
    static final Proxies NONE = new Proxies(List.of(), 0);

    private record Network(byte[] address, int bits) {}

    private final List<Network> networks = new ArrayList<>();
    private final int count; // 0: the networks decide

    /** Throws an IllegalArgumentException for an invalid network. */
    Proxies(List<String> given, int count) {
        this.count = count;
        if (count < 0) {
            throw new IllegalArgumentException("the number of proxies is 0 or more");
        }
        for (String text : given) {
            String[] parts = text.split("/", 2);
            InetAddress address = parse(parts[0]);
            int longest = address == null ? -1 : 8 * address.getAddress().length;
            int bits = parts.length < 2 ? longest : parts[1].matches("\\d{1,3}") ? Integer.parseInt(parts[1]) : -1;
            if (bits < 0 || bits > longest) {
                throw new IllegalArgumentException("the proxy " + text + " is not a network; help: write it like 10.0.0.0/8");
            }
            networks.add(new Network(address.getAddress(), bits));
        }
    }

    boolean none() {
        return count == 0 && networks.isEmpty();
    }

    /** Returns the caller: the nearest hop that is not a trusted proxy. Hops left of it may be forged. */
    String caller(String peer, String forwarded) {
        String nearest = plain(peer);
        if (none() || forwarded == null || forwarded.isEmpty()) {
            return nearest;
        }
        List<String> hops = new ArrayList<>(Arrays.stream(forwarded.split(",", -1)).map(Proxies::withoutPort).toList());
        hops.add(peer == null ? "" : peer);
        if (count > 0) {
            String hop = hops.get(Math.max(0, hops.size() - 1 - count));
            return parse(hop) == null ? nearest : plain(hop);
        }
        for (int i = hops.size() - 1; i >= 0; i--) {
            InetAddress address = parse(hops.get(i));
            if (address == null) {
                if (i == hops.size() - 1 && hops.get(i).isEmpty()) {
                    continue; // a Unix socket: the peer is a proxy on this host
                }
                return nearest;
            }
            nearest = text(address);
            if (!contains(address)) {
                break;
            }
        }
        return nearest;
    }

    /** Returns the milliseconds since an X-Request-Start of a trusted peer; null for times in the future or over 60 s ago. */
    Double queued(String peer, String start, double now) {
        InetAddress address = parse(peer);
        boolean trusted = !none() && (count > 0 || (address == null ? peer == null || peer.isEmpty() : contains(address)));
        Matcher found = START.matcher(start == null ? "" : start.strip());
        if (!trusted || !found.matches()) {
            return null;
        }
        double started = Double.parseDouble(found.group(1)); // in seconds, milliseconds or microseconds, by its size
        double waited = now - started / (started >= 1e14 ? 1e3 : started >= 1e11 ? 1 : 1e-3);
        return waited >= 0 && waited <= QUEUED_MAX ? waited : null;
    }

    private boolean contains(InetAddress address) {
        byte[] bytes = address.getAddress();
        return networks.stream().anyMatch(network -> {
            for (int bit = 0; bit < network.bits; bit++) {
                if (network.address.length != bytes.length || ((network.address[bit / 8] ^ bytes[bit / 8]) & 0x80 >> bit % 8) != 0) {
                    return false;
                }
            }
            return network.address.length == bytes.length;
        });
    }

    /** Returns the shortest form of an address; of an IPv4-mapped IPv6 address the IPv4 address. Other text stays. */
    static String plain(String address) {
        InetAddress parsed = parse(address);
        return parsed == null ? address : text(parsed);
    }

    private static String text(InetAddress address) {
        if (address instanceof Inet4Address) {
            return address.getHostAddress();
        }
        byte[] raw = address.getAddress();
        int[] groups = new int[8];
        int start = 8, length = 1;
        for (int i = 0, zeros = 0; i < 8; i++) {
            groups[i] = (raw[2 * i] & 0xff) << 8 | raw[2 * i + 1] & 0xff;
            zeros = groups[i] == 0 ? zeros + 1 : 0;
            if (zeros > length) {
                start = i - zeros + 1;
                length = zeros;
            }
        }
        StringBuilder text = new StringBuilder();
        for (int i = 0; i < 8; i++) {
            if (i == start) {
                text.append("::");
                i += length - 1;
            } else {
                text.append(i == 0 || i == start + length && start < 8 ? "" : ":").append(Integer.toHexString(groups[i]));
            }
        }
        return text.toString();
    }

    /** Returns an address; null if the text is none. Asks no resolver. */
    private static InetAddress parse(String text) {
        String plain = text == null ? "" : text.replaceFirst("%.*", "");
        try {
            return IPV4.matcher(plain).matches() || IPV6.matcher(plain).matches() ? InetAddress.getByName(plain) : null;
        } catch (UnknownHostException error) {
            return null;
        }
    }

    private static String withoutPort(String hop) {
        String text = hop.strip().replaceAll("^\"+|\"+$", "");
        if (text.startsWith("[")) {
            return text.substring(1).split("]", 2)[0];
        }
        int colon = text.indexOf(':');
        return colon >= 0 && colon == text.lastIndexOf(':') ? text.substring(0, colon) : text;
    }
}
