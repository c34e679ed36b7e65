//! Fleet metrics: the link to Redis, what it costs, and how far hosts may go past a budget.

use std::fmt;

use super::{Scrape, Sheet};
use crate::admin::fleet::admitted_max;
use crate::engine::ReserveView;
use crate::fleet::counters::FleetView;

pub(super) fn write(scrape: &Scrape, sheet: &mut Sheet<'_>) -> fmt::Result {
    let fleet = &*scrape.fleet.view;
    let help = "Hosts that share budgets, this one included: the most of the last half minute, at least \
                `fleet.hosts_at_least`; 0: this host cannot use a Redis. Act if it differs from your number of \
                hosts";
    sheet.gauge("fleet_hosts", help, &u64::from(fleet.hosts))?;
    let alive = if fleet.is_linked { fleet.alive } else { 0 };
    let help = "Hosts with a heartbeat in Redis, this one included, without `fleet.hosts_at_least`; 0 in an outage. Act \
                if below your number of hosts";
    sheet.gauge("fleet_hosts_alive", help, &u64::from(alive))?;
    let help = "Hosts with another fleet secret than this one, or an older version: they share budgets of their \
                own. Act if above 0: give all hosts the same file";
    sheet.gauge("fleet_other_secret_hosts", help, &u64::from(fleet.unlike))?;
    let help = "1 if rules share a budget, permits or a reserve, and the settings name a Redis, also one that cannot be used. Act if 1 while \
                `tidegate_fleet_linked` is 0";
    sheet.gauge("fleet_needed", help, &u64::from(fleet.is_needed))?;
    let help = "1 while Redis answers; 0: in an outage, and if nothing is shared. Act if 0 for longer than a \
                failover: `on_redis_down` holds";
    sheet.gauge("fleet_linked", help, &u64::from(fleet.is_linked))?;
    let help = "Outages of Redis. Act if it grows";
    sheet.counter("fleet_outages", help, &fleet.outages)?;
    let help = "Age of the last reply of Redis; 0: none yet. Act if above 1 s";
    sheet.gauge(
        "fleet_staleness_seconds",
        help,
        &scrape.fleet.staleness.unwrap_or_default().as_secs_f64(),
    )?;
    let help = "Smoothed round trip to Redis. Act if above 0.05 s: false refusals";
    sheet.gauge("fleet_round_trip_seconds", help, &fleet.round_trip.as_secs_f64())?;
    let help = "Keys in the sync with Redis. Act if near the maximum of 262 144";
    sheet.gauge("fleet_keys", help, &(fleet.keys as u64))?;
    commands(fleet, sheet)?;
    tokens(fleet, sheet)?;
    let help = "Ignored fleet overrides, by reason: forged: the fleet secret does not authenticate the value in \
                Redis; stale: of an older version; unreadable: no text or too long; unknown: an entry unknown to \
                this version. Act if forged or unreadable is above 0: another program writes to \
                `tg:{tm}:overrides`";
    sheet.counters_by("fleet_overrides_rejected", help, "reason", fleet.rejected_overrides())?;
    let help = "Version of the fleet overrides in force; 0: none. Act if it differs between hosts for longer than \
                seconds";
    sheet.gauge("fleet_overrides_version", help, &fleet.overrides.version)?;
    let help = "Part of the room for blocks of all hosts that is in use. Act if above 0.8: at 1 no block is accepted";
    sheet.gauge("fleet_blocks_ratio", help, &fleet.overrides.blocks_ratio)?;
    let bounds = scrape.fleet_rules.iter().take(RULES_MAX).filter_map(|rule| {
        let bound = rule.bound.as_ref()?;
        Some(([("domain", &*rule.domain), ("rule", &*rule.rule)], u64::from(bound.extra)))
    });
    let help = "Tokens that all hosts together may admit beyond the budget of one key, once in any span, while \
                Redis answers. Act if above your tolerance: set `max_over`, or `on_miss: refuse`";
    sheet.gauges("fleet_bound_tokens", help, bounds)?;
    let help = "Budgets that all hosts together may admit at most of one; above 1 while this host or others are \
                cut off from Redis, or have another fleet secret; inf with `on_redis_down: allow`; 0: no budget is shared. Act if above 1 for \
                longer than a deployment";
    sheet.gauge("fleet_admitted_max_ratio", help, &admitted_max(&scrape.fleet_rules))?;
    reserves(scrape, sheet)
}

/// Work of Redis for this host.
fn commands(fleet: &FleetView, sheet: &mut Sheet<'_>) -> fmt::Result {
    let help = "Cells in answered batches: one for each key of a batch. Act if above 90 000 a second over all \
                hosts of one Redis";
    sheet.counter("fleet_cells", help, &fleet.counts.cells)?;
    let help = "Batches of cells, by outcome: answered; unanswered: they may have run or not, and are reported \
                anew; undecodable: the reply is malformed. Act if unanswered grows: lost replies; or undecodable \
                is above 0: no Redis with the scripts of tidegate";
    sheet.counters_by("fleet_batches", help, "outcome", fleet.batches())?;
    let help = "Failed commands, connections and attempts to connect, by class. Act if noperm, auth, tls or oom \
                grows: `tidegate doctor` names the repair";
    sheet.counters_by("fleet_errors", help, "class", fleet.errors.iter().copied())?;
    let help = "Requests that needed a remote check, by outcome: answered; late: no reply within `wait`, or the \
                client disconnected; declined: too many were in flight. While checks are stopped no request is \
                counted. Act if late grows: Redis is slower than `wait`, and each such request waits that long";
    sheet.counters_by("fleet_asked", help, "outcome", fleet.remote_checks())?;
    let help = "Times that remote checks stopped for a while: five were late one after the other. Act if it grows: Redis is \
                too slow for rules that ask";
    sheet.counter("fleet_asks_stopped", help, &fleet.remote_checks.stopped)
}

/// Tokens that hosts admitted or lost against the intent of a budget.
fn tokens(fleet: &FleetView, sheet: &mut Sheet<'_>) -> fmt::Result {
    let counts = &fleet.counts;
    let help = "Tokens charged below zero: admitted beyond a budget. Act if it grows faster than `on_miss: admit` \
                allows";
    sheet.counter("fleet_excess_tokens", help, &counts.excess)?;
    let help = "Estimated false refusals: replies with at least a tenth of the budget, for a key that had just \
                refused. Act if many: demand moves between hosts faster than every 100 ms";
    sheet.counter("fleet_false_refusals", help, &counts.false_refusals)?;
    let help = "Borrowed tokens that no host can use any more: they expired unused, or their grant was late. Act \
                if more than a tenth of the admitted: demand moves between hosts, or replies are late";
    sheet.counter("fleet_expired_tokens", help, &counts.expired)?;
    let help = "Cells that Redis lost before their expiry; they started empty. Act if above 0: Redis evicts, was \
                flushed, or a replica was promoted";
    sheet.counter("fleet_cells_lost", help, &counts.lost)?;
    let help = "Impossible numbers from Redis, cut to the possible range. Act if above 0: another program writes \
                to keys `tg:*`";
    sheet.counter("fleet_clamped", help, &fleet.clamped)
}

/// Pools whose reserve hosts keep together, or may.
fn reserves(scrape: &Scrape, sheet: &mut Sheet<'_>) -> fmt::Result {
    let each = || scrape.pools.iter().filter_map(|pool| Some(([("pool", &*pool.pool)], pool.reserve?)));
    let shared = each().map(|(pool, reserve)| (pool, u64::from(reserve.shared)));
    let help = "1 while all hosts share the reserve of a pool, 0 while it covers this host alone. Act if 0 for \
                longer than a failover, and the settings name a Redis";
    sheet.gauges("fleet_reserve_shared", help, shared)?;
    let stale = |reserve: ReserveView| reserve.elsewhere.map_or(0.0, |hosts| hosts.stale_s);
    let help = "Age of the sums of other hosts for a reserve; 0: this host alone. Act if above 2 s: the host uses \
                only its own part";
    sheet.gauges("fleet_reserve_staleness_seconds", help, each().map(|(pool, of)| (pool, stale(of))))?;
    let most = each().map(|(pool, reserve)| (pool, u64::from(reserve.noncritical_max.unwrap_or_default())));
    let help = "Most noncritical work in progress that the reserve permits on this host; 0 also if the slots are unknown";
    sheet.gauges("fleet_reserve_most", help, most)
}

/// As many as are counted by name.
const RULES_MAX: usize = 512;
