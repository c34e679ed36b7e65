package io.github.tidegate;

import java.util.concurrent.atomic.AtomicBoolean;

/** What the daemon granted: a lease, a name for refunds, or both. Safe for use by several threads. */
public final class Grant {
    private final Connection connection;
    private final Connection.Which which;
    private final Long lease;
    private final Object idem;
    private final AtomicBoolean released = new AtomicBoolean();

    Grant(Connection connection, Connection.Which which, Long lease, Object idem) {
        this.connection = connection;
        this.which = which;
        this.lease = lease;
        this.idem = idem;
    }

    /** Returns the number of the lease, from 1 to 2^63 - 1; null for a grant without a lease. */
    public Long lease() {
        return lease;
    }

    /** Whether {@code release} was called. */
    public boolean released() {
        return released.get();
    }

    /** The value of a refund's {@code of}: a key, else the lease, else null. */
    Object refundKey() {
        return idem != null ? idem : lease;
    }

    void release(Outcome outcome) {
        if (lease != null && released.compareAndSet(false, true)) {
            connection.client.release(connection, which, lease, outcome);
        }
    }

    boolean renew() {
        return lease != null && !released.get() && connection.client.renew(lease);
    }

    @Override
    public String toString() {
        return "Grant[lease=" + lease + "]";
    }
}
