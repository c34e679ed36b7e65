//! Work in progress: leases, sessions, and how full each pool is.

use std::collections::BTreeMap;
use std::fmt;

use super::{Scrape, Sheet};
use crate::engine::PoolView;

pub(super) fn write(scrape: &Scrape, sheet: &mut Sheet<'_>) -> fmt::Result {
    let leases = scrape.admin.engine.leases();
    sheet.gauge("leases", "Leases that are held", &leases.live)?;
    sheet.counters(
        "lease_ended",
        "Leases that have ended, by reason: released; expired; session: its process went; abandoned: its request \
         had been given up on",
        [
            ([("reason", "released")], leases.released),
            ([("reason", "expired")], leases.expired),
            ([("reason", "session")], leases.session),
            ([("reason", "abandoned")], leases.abandoned),
        ],
    )?;
    let not_held = &leases.not_held;
    sheet.counters(
        "lease_not_held",
        "RELEASE and RENEW of a lease that their session does not hold, by what it is: ended: it was one; foreign: \
         another session's; unknown: none of this daemon. Nothing happens but that they are answered so",
        [
            ([("reason", "ended")], not_held.ended),
            ([("reason", "foreign")], not_held.foreign),
            ([("reason", "unknown")], not_held.unknown),
        ],
    )?;
    sheet.gauge(
        "sessions",
        "Application processes that are connected, or were within 5 s",
        &leases.sessions,
    )?;
    slots(&scrape.pools, sheet)?;
    let watched: Vec<&PoolView> = scrape.pools.iter().filter(|pool| pool.configured).collect();
    shedding(&watched, sheet)
}

/// Pools that no rule names have names chosen by clients, so they share one series.
fn slots(pools: &[PoolView], sheet: &mut Sheet<'_>) -> fmt::Result {
    let mut by_name: BTreeMap<&str, (u64, u64)> = BTreeMap::from([(OTHER, (0, 0))]);
    for pool in pools {
        let name = if pool.configured { &*pool.pool } else { OTHER };
        let (slots, busy) = by_name.entry(name).or_default();
        *slots += u64::from(pool.slots.unwrap_or_default());
        *busy += u64::from(pool.busy);
    }
    let series = |of: fn(&(u64, u64)) -> u64| {
        by_name.iter().map(move |(name, sums)| ([("pool", *name)], of(sums))).collect::<Vec<_>>()
    };
    let help = "Slots of a pool; 0: neither its processes nor the rules say, and nothing is shed by them";
    sheet.gauges("slots", help, series(|(slots, _)| *slots))?;
    sheet.gauges("slots_busy", "Slots of a pool that are busy", series(|(_, busy)| *busy))
}

fn shedding(pools: &[&PoolView], sheet: &mut Sheet<'_>) -> fmt::Result {
    let chances = pools.iter().flat_map(|pool| {
        let each = pool.shed_probabilities.iter();
        each.map(|(priority, chance)| ([("pool", &*pool.pool), ("priority", &**priority)], *chance))
    });
    let help = "With what chance a request of a priority is refused by the slow law (workers)";
    sheet.gauges("shed_chance", help, chances)?;
    let help = "s of the slow law: up to 0 nothing is refused, at 1 all that may be";
    sheet.gauges("shed_severity", help, pools.iter().map(|pool| ([("pool", &*pool.pool)], pool.severity)))?;
    let braking = pools.iter().map(|pool| ([("pool", &*pool.pool)], u64::from(pool.braking)));
    sheet.gauges("braking", "Whether the brake of a pool is on", braking)?;
    let readings = || pools.iter().flat_map(|pool| readings(pool));
    let ratios = readings()
        .map(|(pool, signal, value)| ([("pool", pool), ("signal", signal)], value.unwrap_or_default()));
    let help = "How full a pool is by each signal, workers being the share of its slot-time that was busy in the last \
                8 s; 0 where it cannot be read";
    sheet.gauges("utilization_ratio", help, ratios)?;
    let available = readings()
        .map(|(pool, signal, value)| ([("pool", pool), ("signal", signal)], u64::from(value.is_some())));
    sheet.gauges("signal_available", "Whether a signal can be read", available)
}

/// The share of busy slots, and every signal of the rules.
fn readings(pool: &PoolView) -> impl Iterator<Item = (&str, &str, Option<f64>)> {
    let signals = pool.signals.iter().map(|signal| (&*signal.name, signal.utilization));
    let workers = pool.signals.iter().all(|signal| *signal.name != *WORKERS);
    let workers = workers.then_some((WORKERS, pool.utilization));
    workers.into_iter().chain(signals).map(|(name, value)| (&*pool.pool, name, value))
}

const OTHER: &str = "other";

const WORKERS: &str = "workers";
