package io.github.tidegate;

import java.io.IOException;
import java.net.BindException;
import java.net.ConnectException;
import java.net.SocketException;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.ClosedSelectorException;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.SocketChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFileAttributes;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.locks.LockSupport;
import java.util.concurrent.locks.ReentrantLock;

/**
 * One connection to the daemon for all requests of a client, matched by id. Any error closes it for good.
 *
 * <p>No thread of its own: one of the waiting callers reads for all, and hands over when its reply is there. A caller that finds
 * no other one writing writes for all. The socket never blocks, so that an interrupt cannot close it, and the lock is never held
 * during I/O.
 */
final class Connection {
    private static final int IN_FLIGHT_MAX = 256; // requests written and not answered, which the daemon keeps for one connection
    private static final int WAITING_MAX = 8_192; // waiting requests; further ones fail immediately
    private static final int UNPROVED_MAX = 512, BATCH_BYTES = 32_768, PATH_BYTES_MAX = 107;
    private static final long GLANCE = 100_000; // ns, between checks whether the reading caller has looked
    private static final int WELCOME = 0, DECISION = 1, DONE = 2, ERROR = 3, GOODBYE = 4; // kinds of replies
    private static final int BUSY = 8, INTERNAL = 10;
    private static final int HTTP = 0x48545450; // the letters, as a length
    private static final List<Integer> KEPT_OPEN = List.of(5, 6, 7, 10, 11); // errors of one request: the rest of the connection is not doubtful
    private static final Map<Integer, Reason> REFUSALS =
            Map.of(6, Reason.INVALID, 7, Reason.QUOTA, 9, Reason.FORBIDDEN, 11, Reason.NOT_ALLOWED);

    /** Number of a connection, and id of a request on it. */
    record Which(long connection, long id) {}

    /** An operation with a reply; {@code deadline} by {@code System.nanoTime()}. */
    record Operation(int op, Request.Elements elements, String domain, Object idem, long deadline) {}

    private record Frame(byte[] bytes, Waiting of) {}

    private record Unproved(long after, Which which) {}

    /** A request that waits for its reply. */
    private static final class Waiting {
        final long id, since = System.nanoTime();
        final Operation operation;
        final Thread thread = Thread.currentThread();
        volatile long deadline;
        volatile Object answer; // a Decision, the Boolean of a DONE, or a Fault
        boolean sent; // the kernel may have it
        volatile boolean written; // the kernel has it
        boolean queued, extended;
        volatile boolean cancelled; // its caller no longer waits

        Waiting(long id, Operation operation) {
            this.id = id;
            this.operation = operation;
            deadline = operation.deadline;
        }
    }

    final TidegateClient client;
    final long number;
    private final Path path;
    private final ReentrantLock lock = new ReentrantLock();
    final AtomicBoolean reading = new AtomicBoolean();
    private volatile boolean open, closed, leaving;
    private volatile boolean goodbye; // the daemon reads no request after it; leaving also after other ends
    private volatile long looks; // times that the socket was read until nothing was left
    private volatile SocketChannel channel;
    private volatile Selector selector;
    // Under the lock.
    private final Map<Long, Waiting> waiting = new LinkedHashMap<>(); // oldest first
    private final Deque<Frame> unsent = new ArrayDeque<>();
    private final Deque<Frame> queued = new ArrayDeque<>(); // requests beyond IN_FLIGHT_MAX
    // Released grants with the id of the request before: a reply to a later one proves that the RELEASE arrived.
    private final Deque<Unproved> unproved = new ArrayDeque<>();
    private long lastId;
    private boolean writing, welcome;
    // Of the writing thread, and of the reading one.
    private ByteBuffer out, in;
    private final List<Waiting> batch = new ArrayList<>(); // in `out`

    /** Opens nothing: the first request does. {@code info} is that of HELLO. */
    Connection(TidegateClient client, Path path, long number, Map<String, Object> info) {
        this.client = client;
        this.path = path;
        this.number = number;
        unsent.add(new Frame(Request.frame(Request.HELLO, 0L, Request.Elements.of(1, info)), null));
    }

    boolean usable() {
        return !closed && !leaving;
    }

    boolean closed() {
        return closed;
    }

    /** Sends an operation and returns its answer: a Decision, a Boolean or a Fault; null if this is closed already. */
    Object ask(Operation operation) {
        Waiting asked;
        lock.lock();
        try {
            if (closed) {
                return null;
            } else if (waiting.size() >= WAITING_MAX) {
                return new Fault(Reason.TIMEOUT, "too many requests wait");
            }
            asked = new Waiting(++lastId, operation);
            asked.queued = waiting.size() - queued.size() >= IN_FLIGHT_MAX;
            waiting.put(asked.id, asked);
            (asked.queued ? queued : unsent).add(new Frame(Request.frame(operation.op, asked.id, operation.elements), asked));
        } finally {
            lock.unlock();
        }
        flush();
        await(asked);
        return asked.answer;
    }

    /** Sends a frame without a reply. {@code released}: the request whose grant it ends. False if this is closed. */
    boolean send(int op, Request.Elements elements, Which released) {
        boolean stuck;
        lock.lock();
        try {
            if (closed) {
                return false;
            }
            if (released != null) {
                unproved.add(new Unproved(lastId, released));
                if (unproved.size() > UNPROVED_MAX) {
                    unproved.remove();
                }
            }
            unsent.add(new Frame(Request.frame(op, null, elements), null));
            stuck = unsent.size() > WAITING_MAX;
        } finally {
            lock.unlock();
        }
        flush();
        if (stuck) {
            end(new Fault(Reason.TIMEOUT, "the daemon reads nothing"), false);
        }
        handOver();
        return true;
    }

    /** Waits for the answer until the deadline, whether interrupted or not, and reads for all if no other caller does. */
    private void await(Waiting asked) {
        boolean interrupted = Thread.interrupted();
        try {
            while (asked.answer == null) {
                long left = asked.deadline - System.nanoTime();
                if (left <= 0) {
                    expire(asked);
                } else if (open && reading.compareAndSet(false, true)) {
                    try {
                        select(left);
                        pull(asked.deadline);
                    } finally {
                        reading.set(false);
                    }
                } else {
                    LockSupport.parkNanos(this, left);
                }
                interrupted |= Thread.interrupted();
            }
        } finally {
            handOver();
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }

    /** Lets a waiting caller read, if none does. */
    private void handOver() {
        if (reading.get()) {
            return;
        }
        lock.lock();
        try {
            for (Waiting one : waiting.values()) {
                if (!one.cancelled) {
                    LockSupport.unpark(one.thread);
                    return;
                }
            }
        } finally {
            lock.unlock();
        }
    }

    /** Ends a request whose deadline has passed, and the connection if the daemon did not answer in time. */
    private void expire(Waiting asked) {
        boolean looked = look(asked);
        lock.lock();
        try {
            if (asked.answer != null || asked.deadline > System.nanoTime()) {
                return;
            } else if (asked.queued) { // those in flight have a deadline: the queue moves, or the connection ends
                asked.deadline = System.nanoTime() + client.timeoutNanos;
                return;
            } else if (!asked.written && !asked.extended) { // another thread is about to write it
                asked.extended = true;
                asked.deadline = System.nanoTime() + client.timeoutNanos / 4;
                return;
            } else if (!looked) { // this process is late, not the daemon; a late grant is released
                asked.cancelled = true;
                asked.answer = new Fault(Reason.TIMEOUT, "this process is busy");
            }
        } finally {
            lock.unlock();
        }
        if (looked) {
            end(new Fault(Reason.TIMEOUT, "the daemon did not answer in time"), false);
        } else if (asked.operation.op == Request.ACQUIRE) {
            client.reportAbandoned(List.of(new Which(number, asked.id)));
        }
    }

    /** Reads once more, so that a reply in the socket counts. False: the caller that reads has not had the time to. */
    private boolean look(Waiting asked) {
        if (!open) {
            return true;
        }
        long until = System.nanoTime() + client.timeoutNanos / 4;
        if (reading.compareAndSet(false, true)) {
            try {
                pull(until);
            } finally {
                reading.set(false);
            }
            return true;
        }
        long seen = looks;
        boolean interrupted = false;
        selector.wakeup();
        while (asked.answer == null && looks == seen && !closed && System.nanoTime() < until) {
            LockSupport.parkNanos(this, GLANCE);
            interrupted |= Thread.interrupted();
        }
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
        return looks != seen || closed;
    }

    /** Writes all unsent frames, unless another thread writes; opens the socket before the first. */
    private void flush() {
        lock.lock();
        try {
            if (writing || closed || unsent.isEmpty()) {
                return;
            }
            writing = true;
        } finally {
            lock.unlock();
        }
        if (open || connect()) {
            write();
        }
    }

    private boolean connect() {
        try {
            if (Request.utf8(path.toString()).length > PATH_BYTES_MAX) {
                throw new IOException("not a path of " + PATH_BYTES_MAX + " bytes at most");
            }
            SocketChannel made = SocketChannel.open(StandardProtocolFamily.UNIX);
            channel = made;
            made.configureBlocking(false);
            if (!connected(made)) {
                throw new Fault(Reason.UNREACHABLE, "the daemon at " + path + " takes no connections: it is stopped or overloaded").full();
            }
            selector = Selector.open();
            made.register(selector, SelectionKey.OP_READ);
            out = ByteBuffer.allocateDirect(BATCH_BYTES).limit(0);
            in = ByteBuffer.allocateDirect(BATCH_BYTES);
            open = true;
            return true;
        } catch (Fault full) {
            end(full, false);
        } catch (IOException | ClosedSelectorException error) {
            end(explain(error), false);
        }
        release(); // also what was opened after the deadline of a waiting request
        return false;
    }

    /** False: the backlog is full (EAGAIN), for which Java has no exception of its own. */
    private boolean connected(SocketChannel made) throws IOException {
        try {
            return made.connect(UnixDomainSocketAddress.of(path));
        } catch (ConnectException | BindException error) {
            throw error;
        } catch (SocketException error) {
            if (Files.exists(path)) {
                return false;
            }
            throw error;
        }
    }

    /** Writes what is in the buffer and all unsent frames, as the writing thread. */
    private void write() {
        boolean fresh = false;
        try {
            while (out.hasRemaining() || (fresh = fill())) {
                channel.write(out);
                if (out.hasRemaining()) { // the socket is full: the reading caller goes on
                    channel.keyFor(selector).interestOps(SelectionKey.OP_READ | SelectionKey.OP_WRITE);
                    selector.wakeup();
                    return;
                }
                // Time lost in this process is not the daemon's: it gets a quarter of the timeout at least.
                long least = System.nanoTime() + client.timeoutNanos / 4;
                for (Waiting one : batch) {
                    one.deadline = Math.max(one.deadline, least);
                    one.written = true;
                }
                batch.clear();
            }
        } catch (IOException | RuntimeException error) { // no more writes; replies before the end are read
            lock.lock();
            try {
                if (fresh && out.position() == 0) {
                    batch.forEach(one -> one.sent = false);
                }
            } finally {
                lock.unlock();
            }
            if (reading.compareAndSet(false, true)) {
                try {
                    pull(System.nanoTime() + client.timeoutNanos / 4);
                } finally {
                    reading.set(false);
                }
                hungUp();
            }
        }
    }

    /** Takes unsent frames into the buffer; false and no longer writing if there are none. */
    private boolean fill() {
        lock.lock();
        try {
            if (closed || unsent.isEmpty()) {
                writing = false;
                return false;
            }
            out.clear();
            while (!unsent.isEmpty() && unsent.peek().bytes.length <= out.remaining()) {
                Frame frame = unsent.remove();
                out.put(frame.bytes);
                if (frame.of != null) {
                    frame.of.sent = true;
                    batch.add(frame.of);
                }
            }
            out.flip();
            return true;
        } finally {
            lock.unlock();
        }
    }

    /** Waits for bytes, as the reading caller; continues a write that did not end. */
    private void select(long nanos) {
        try {
            selector.select(key -> {
                if (key.isValid() && key.isWritable()) {
                    key.interestOps(SelectionKey.OP_READ);
                    write();
                }
            }, Math.max(1, (nanos + 999_999) / 1_000_000));
        } catch (ClosedSelectorException | IOException error) {
            hungUp();
        }
    }

    /** Reads the bytes that are there, as the reading caller; those of a daemon that sends without end {@code until} then. */
    private void pull(long until) {
        boolean ended = false, more = true;
        try {
            while (more && !ended && !closed) {
                ended = channel.read(in) < 0;
                more = !in.hasRemaining();
                in.flip();
                while (!closed && in.remaining() >= 4) {
                    int length = in.getInt(in.position());
                    if (length == HTTP) {
                        throw Fault.malformed("the daemon answered in HTTP: that is the admin socket; set TIDEGATE_SOCKET to the one beside it");
                    } else if (length < 0 || length > Request.FRAME_MAX) {
                        throw Fault.malformed("malformed frame of " + Integer.toUnsignedString(length) + " bytes");
                    } else if (in.remaining() < 4 + length) {
                        break;
                    }
                    byte[] payload = new byte[length];
                    in.position(in.position() + 4).get(payload);
                    reply(MessagePack.decode(payload));
                }
                in.compact();
                if (more && System.nanoTime() - until >= 0) {
                    break;
                }
            }
        } catch (IOException error) {
            ended = true;
        } catch (Fault fault) {
            end(fault, false);
        } catch (RuntimeException | StackOverflowError error) {
            end(Fault.malformed("a reply cannot be read: " + error), false);
        }
        looks += more ? 0 : 1;
        if (ended) {
            hungUp();
        }
        promote();
    }

    /** Sends queued requests while there is room, and closes a connection after GOODBYE. */
    private void promote() {
        boolean done;
        lock.lock();
        try {
            while (!queued.isEmpty() && waiting.size() - queued.size() < IN_FLIGHT_MAX) {
                Frame frame = queued.remove();
                frame.of.queued = false;
                frame.of.deadline = System.nanoTime() + client.timeoutNanos;
                unsent.add(frame);
            }
            done = leaving && waiting.isEmpty() && unsent.isEmpty();
        } finally {
            lock.unlock();
        }
        if (done) {
            end(null, false);
        } else {
            flush();
        }
    }

    private void reply(List<?> reply) {
        int kind = reply.get(0) instanceof Long n ? n.intValue() : -1;
        Object about = reply.get(1), code = reply.size() > 2 ? reply.get(2) : null;
        Waiting asked;
        boolean hello;
        lock.lock();
        try {
            hello = !welcome && Long.valueOf(0).equals(about);
            asked = about instanceof Long ? waiting.get(about) : null;
            asked = asked != null && asked.sent ? asked : null;
        } finally {
            lock.unlock();
        }
        if (asked != null && kind == DECISION && asked.operation.domain != null) {
            Operation operation = asked.operation;
            finish(asked, Decision.read(reply, operation.domain, this, new Which(number, asked.id), operation.idem));
        } else if (asked != null && kind == DONE && asked.operation.domain == null) {
            finish(asked, Boolean.TRUE.equals(code));
        } else if (kind == GOODBYE) {
            goodbye = true;
            leaving = true;
        } else if (kind == WELCOME && hello && Long.valueOf(1).equals(code)) {
            lock.lock();
            welcome = true;
            lock.unlock();
        } else {
            int known = kind == ERROR && code instanceof Long n ? n.intValue() : -1;
            String said = reply.subList(Math.min(2, reply.size()), reply.size()).toString().replaceAll("\\p{Cntrl}", "?"); // one line of a log
            String text = "the daemon answered " + kind + ": " + said;
            Reason reason = REFUSALS.getOrDefault(known, Reason.PROTOCOL);
            // An ERROR with the id of no request is doubtful; without an id it is about the connection.
            boolean concerns = asked != null || hello || about == null && (reason == Reason.FORBIDDEN || !reason.isRefusal());
            Fault fault = new Fault(concerns ? reason : Reason.PROTOCOL, text.substring(0, Math.min(text.length(), 200)));
            fault.full = concerns && known == BUSY;
            fault.kept = KEPT_OPEN.contains(known) && asked != null;
            if (!fault.kept) {
                throw fault;
            }
            leaving |= known == INTERNAL; // the daemon closes
            finish(asked, fault);
        }
    }

    private void finish(Waiting asked, Object answer) {
        lock.lock();
        try {
            waiting.remove(asked.id);
            while (!unproved.isEmpty() && unproved.peek().after < asked.id) {
                unproved.remove();
            }
        } finally {
            lock.unlock();
        }
        if (!asked.cancelled) {
            answer(asked, answer);
        } else if (answer instanceof Decision late) {
            late.release(Outcome.DROPPED);
        }
    }

    private static void answer(Waiting asked, Object answer) {
        asked.answer = answer;
        if (asked.thread != Thread.currentThread()) {
            LockSupport.unpark(asked.thread);
        }
    }

    /** Closes after unsent frames. */
    void close() {
        flush();
        end(null, false);
    }

    private void hungUp() {
        Fault fault = new Fault(Reason.UNREACHABLE, "the daemon hung up");
        end(fault, true);
    }

    /** Closes once. {@code fault}: the cause, if requests wait. Requests that the daemon has not read are sent again. */
    private void end(Fault fault, boolean hungUp) {
        List<Waiting> all;
        List<Which> abandoned = new ArrayList<>();
        boolean failed = false;
        Fault cause = fault != null ? fault : new Fault(Reason.UNREACHABLE, "the client was closed");
        List<Fault> faults = new ArrayList<>();
        lock.lock();
        try {
            if (closed) {
                return;
            }
            closed = true;
            // A daemon that closed before the first request was written has no room.
            cause.full |= hungUp && !welcome && waiting.values().stream().anyMatch(one -> !one.sent && !one.queued);
            unproved.forEach(one -> abandoned.add(one.which));
            all = waiting.values().stream().filter(one -> !one.cancelled).toList();
            for (Waiting one : all) {
                boolean again = hungUp && welcome && (goodbye || !one.sent);
                boolean unread = again || cause.full;
                failed |= !unread;
                if (one.operation.op == Request.ACQUIRE && one.sent && !unread) {
                    abandoned.add(new Which(number, one.id));
                }
                faults.add(cause.again(again));
            }
            waiting.clear();
        } finally {
            lock.unlock();
        }
        release();
        client.reportAbandoned(abandoned);
        if (fault != null && failed) {
            client.fail(fault, all.get(0).since);
        }
        for (int i = 0; i < all.size(); i++) {
            answer(all.get(i), faults.get(i));
        }
    }

    private void release() {
        try {
            if (channel != null) {
                channel.close();
            }
            if (selector != null) {
                selector.close(); // the channel's descriptor stays open until then
            }
        } catch (IOException error) {
            // nothing more to close
        }
    }

    /** Returns the cause of a failed connection and the remedy. */
    private Fault explain(Exception error) {
        if (error instanceof BindException) { // EACCES, EPERM
            return new Fault(Reason.UNREACHABLE, "permission denied on " + path + reader(path));
        }
        boolean isNoSocket = error instanceof ConnectException && (Files.isRegularFile(path) || Files.isDirectory(path));
        Fault fault = new Fault(Reason.UNREACHABLE, isNoSocket ? path + " is no socket: set TIDEGATE_SOCKET to that of the daemon"
                : "no daemon at " + path + " (" + error.getMessage()
                + "): start it with `tidegate serve`, or set TIDEGATE_SOCKET");
        fault.absent = error instanceof ConnectException || Files.notExists(path);
        return fault;
    }

    private static String reader(Path path) {
        try {
            String group = Files.readAttributes(path, PosixFileAttributes.class).group().getName();
            return ": user " + System.getProperty("user.name") + " is not in group " + group;
        } catch (IOException | UnsupportedOperationException error) {
            return ": the user of this process may not open it";
        }
    }
}
