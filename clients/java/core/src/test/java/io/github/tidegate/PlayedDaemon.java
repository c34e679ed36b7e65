package io.github.tidegate;

import java.io.IOException;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.ClosedChannelException;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.atomic.AtomicInteger;

/** A scripted daemon, which keeps the messages that it got. */
public final class PlayedDaemon implements AutoCloseable {
    public static final List<Object> ALLOW = Arrays.asList(0, "per-user", 40, 2_000_000, 39, 50_000, 0, null);
    public static final List<Object> LIMIT = Arrays.asList(1, "per-user", 40, 2_000_000, 0, 50_000, 50_000, null);

    /** Returns the answer to a message: a List is framed, a byte[] is sent as it is, null is nothing. */
    public interface Script {
        Object answer(SocketChannel socket, List<?> message) throws IOException;
    }

    public final Path path;
    public final List<List<?>> seen = new CopyOnWriteArrayList<>(); // every message, HELLO too
    public final AtomicInteger accepted = new AtomicInteger();
    public final Set<SocketChannel> sockets = ConcurrentHashMap.newKeySet();
    public volatile boolean silent; // sends no reply, not even to HELLO and PING
    public volatile Script script = (socket, message) -> decision(message, ALLOW);
    private ServerSocketChannel server;

    public PlayedDaemon(Path path) throws IOException {
        this.path = path;
        listen();
    }

    public void listen() throws IOException {
        ServerSocketChannel made = ServerSocketChannel.open(StandardProtocolFamily.UNIX);
        made.bind(UnixDomainSocketAddress.of(path), 4096);
        server = made;
        start(() -> {
            for (;;) {
                SocketChannel socket = made.accept();
                accepted.incrementAndGet();
                sockets.add(socket);
                start(() -> serve(socket));
            }
        });
    }

    private interface Loop {
        void run() throws IOException;
    }

    private static void start(Loop loop) {
        Thread thread = new Thread(() -> {
            try {
                loop.run();
            } catch (IOException error) {
                // closed
            }
        }, "played");
        thread.setDaemon(true);
        thread.start();
    }

    private void serve(SocketChannel socket) throws IOException {
        try (socket) {
            ByteBuffer data = ByteBuffer.allocate(1 << 20);
            while (socket.read(data) >= 0) {
                data.flip();
                while (data.remaining() >= 4 && data.remaining() >= 4 + data.getInt(data.position())) {
                    byte[] payload = new byte[data.getInt()];
                    data.get(payload);
                    List<?> message = MessagePack.decode(payload);
                    seen.add(message);
                    Object answer = silent ? null : answer(socket, message);
                    if (answer != null && socket.isOpen()) {
                        write(socket, answer instanceof byte[] bytes ? bytes : frame(answer));
                    }
                }
                data.compact();
            }
        } finally {
            sockets.remove(socket);
        }
    }

    public static void write(SocketChannel socket, byte[] bytes) throws IOException {
        synchronized (socket) {
            ByteBuffer buffer = ByteBuffer.wrap(bytes);
            while (buffer.hasRemaining()) {
                socket.write(buffer);
            }
        }
    }

    private Object answer(SocketChannel socket, List<?> message) throws IOException {
        long op = (Long) message.get(0);
        if (op == 0) {
            return List.of(0, message.get(1), 1, Map.of("server", "played/1"));
        } else if (op == 8) {
            return List.of(2, message.get(1), true);
        }
        Object answer = script.answer(socket, message);
        return message.get(1) == null && !(answer instanceof byte[]) ? null : answer;
    }

    public static byte[] frame(Object message) {
        byte[] payload = message instanceof byte[] raw ? raw : new MessagePack.Writer().value(message).take();
        return ByteBuffer.allocate(4 + payload.length).putInt(payload.length).put(payload).array();
    }

    /** A decision in full, as the real daemon sends it; {@code verdict} from the verdict on. */
    public static List<Object> decision(List<?> message, List<?> verdict) {
        List<Object> reply = new ArrayList<>(List.of(1, message.get(1) == null ? 0 : message.get(1)));
        reply.addAll(verdict);
        while (reply.size() < 13) {
            reply.add(null);
        }
        return reply;
    }

    /** {@code verdict} with a lease. */
    public static List<Object> leased(List<Object> verdict, long lease) {
        List<Object> with = new ArrayList<>(verdict);
        with.set(7, lease);
        return with;
    }

    /** A script that grants ACQUIREs the lease 76 + id, and answers others with DONE. */
    public static Object grant(SocketChannel socket, List<?> message) {
        return message.get(0).equals(1L) ? decision(message, leased(ALLOW, 76 + (Long) message.get(1))) : List.of(2, or0(message), true);
    }

    private static Object or0(List<?> message) {
        return message.get(1) == null ? 0 : message.get(1);
    }

    public List<List<?>> of(long op) {
        List<List<?>> found = new ArrayList<>();
        seen.forEach(message -> {
            if (message.get(0).equals(op)) {
                found.add(message);
            }
        });
        return found;
    }

    public List<?> last(long op) {
        List<List<?>> all = of(op);
        return all.get(all.size() - 1);
    }

    /** Waits for RELEASEs, and returns their leases and outcomes. */
    public List<List<?>> releases(int count) throws Exception {
        Support.until(() -> of(2).size() >= count);
        return of(2).stream().<List<?>>map(message -> message.subList(2, 4)).toList();
    }

    public void hangUp() throws IOException {
        for (SocketChannel socket : sockets) {
            try {
                socket.shutdownInput(); // closing waits for a thread that reads
                socket.shutdownOutput();
                socket.close();
            } catch (ClosedChannelException error) {
                // its thread has closed it
            }
        }
    }

    /** Ends: nothing listens, and the path does not exist. */
    @Override
    public void close() throws IOException {
        server.close();
        Files.deleteIfExists(path);
        hangUp();
    }
}
