package io.github.tidegate;

import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.locks.ReentrantLock;

/** Stops calls after failures of the daemon. */
final class Breaker {
    /** Failures until it opens; its pauses, of which jitter takes up to a half, in ns. */
    static final int FAILURES_MAX = 3;
    static final long PAUSE_MIN = 100_000_000, PAUSE_MAX = 2_000_000_000;

    enum Entry { GO, PROBE, STOP }

    private final ReentrantLock lock = new ReentrantLock();
    private volatile boolean open; // for reads without the lock
    private volatile int failures;
    private long failedAt, until, pause;
    private volatile boolean answered;
    private boolean failing, failed;

    boolean isOpen() {
        return open;
    }

    Entry enter() {
        if (!open) {
            return Entry.GO;
        }
        lock.lock();
        try {
            long now = System.nanoTime();
            if (!open) {
                return Entry.GO;
            } else if (now < until) {
                return Entry.STOP;
            }
            until = now + PAUSE_MAX; // one probe at a time
            return Entry.PROBE;
        } finally {
            lock.unlock();
        }
    }

    /** Closes it after a good probe: then one failure opens it again before the next decision. */
    void probed(boolean good) {
        lock.lock();
        try {
            if (good) {
                open = false;
                failures = FAILURES_MAX - 1;
            }
        } finally {
            lock.unlock();
        }
    }

    /**
     * Counts a failure of the daemon, or resets the count if {@code fault} is null. Failures whose waits overlap count once.
     *
     * @return whether it fails, if that has changed and is to be logged; else null
     */
    Boolean settle(Fault fault, long began) {
        if (fault == null && answered && failures == 0 && !open) {
            return null;
        }
        lock.lock();
        try {
            boolean probed = open;
            if (fault == null) {
                failures = 0;
                pause = 0;
                open = false;
            } else if (!failed || began >= failedAt) {
                failed = true;
                failures++;
                failedAt = System.nanoTime();
                if (fault.absent || probed || failures >= FAILURES_MAX) {
                    failures = Math.max(failures, FAILURES_MAX);
                    pause = pause == 0 ? PAUSE_MIN : Math.min(2 * pause, PAUSE_MAX);
                    until = failedAt + pause / 2 + ThreadLocalRandom.current().nextLong(pause / 2 + 1);
                    open = true;
                }
            }
            // A failure before any success is logged immediately, later ones when the breaker opens.
            boolean fails = fault != null && (!answered || failures >= FAILURES_MAX);
            boolean changes = fails != failing;
            failing = fails;
            answered = !fails;
            return changes ? fails : null;
        } finally {
            lock.unlock();
        }
    }
}
