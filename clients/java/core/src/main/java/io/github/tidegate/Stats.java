package io.github.tidegate;

import java.util.Map;

/**
 * Counts of a client.
 *
 * @param missed decisions without the daemon, by reason
 * @param refused refusals of invalid and forbidden requests, by reason
 * @param connections open connections: 0 or 1
 * @param breakerOpen whether calls cost no I/O, since the daemon did not answer before
 */
public record Stats(Map<Reason, Long> missed, Map<Reason, Long> refused, int connections, boolean breakerOpen) {}
