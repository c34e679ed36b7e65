package io.github.tidegate;

/**
 * Options of a charge.
 *
 * @param idem idempotency key, a String or byte[], or null
 * @param of of a negative amount: the grant or charge that it refunds, as a Decision, a lease (Long), or an idempotency key
 *     (String or byte[]); else null
 */
public record ChargeOptions(Object idem, Object of) {
    /** The defaults. */
    public static final ChargeOptions NONE = new ChargeOptions(null, null);

    /** Checks the types: an IllegalArgumentException for another. */
    public ChargeOptions {
        boolean isKey = idem == null || idem instanceof String || idem instanceof byte[];
        if (!isKey || !(of == null || of instanceof String || of instanceof byte[] || of instanceof Long || of instanceof Decision)) {
            throw new IllegalArgumentException("idem is a String or byte[]; of is a Decision, a Long, a String or byte[]");
        }
    }

    /** Returns options of a refund. */
    public static ChargeOptions refundOf(Object grant) {
        return new ChargeOptions(null, grant);
    }

    /** Returns these options with an idempotency key. */
    public ChargeOptions idem(String value) {
        return new ChargeOptions(value, of);
    }
}
