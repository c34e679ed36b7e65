//! Fleet budget metrics: Redis connectivity, sync traffic, and tokens admitted beyond a budget.

use std::fmt;

use super::{Scrape, Sheet};
use crate::engine::ReserveView;

pub(super) fn write(scrape: &Scrape, sheet: &mut Sheet<'_>) -> fmt::Result {
    let (fleet, counts) = (&*scrape.fleet.view, &scrape.fleet.view.counts);
    let help = "Hosts that budgets are shared with, this one included; 0: the settings name no Redis";
    sheet.gauge("fleet_hosts", help, &u64::from(fleet.hosts))?;
    let help =
        "Whether there is anything to share: a budget, places, or a reserve, and a Redis in the settings";
    sheet.gauge("fleet_needed", help, &u64::from(fleet.is_needed))?;
    let help = "Whether Redis is heard: 0 while each host has its part, and where nothing is shared";
    sheet.gauge("fleet_linked", help, &u64::from(fleet.is_linked))?;
    let help = "How often Redis was not heard any more";
    sheet.counter("fleet_outages", help, &fleet.outages)?;
    let help = "The age of what Redis last said; 0: it has said nothing yet";
    sheet.gauge(
        "fleet_staleness_seconds",
        help,
        &scrape.fleet.staleness.unwrap_or_default().as_secs_f64(),
    )?;
    let help = "To Redis and back, smoothed";
    sheet.gauge("fleet_round_trip_seconds", help, &fleet.round_trip.as_secs_f64())?;
    let help = "Keys that are kept in touch about";
    sheet.gauge("fleet_keys", help, &(fleet.keys as u64))?;
    let help = "Cells that were asked about and answered: one key of this host in one batch each";
    sheet.counter("fleet_cells", help, &counts.cells)?;
    let help = "Batches of cells, by outcome: answered; unanswered: they may have run or not; undecodable: the reply is \
                malformed";
    sheet.counters_by("fleet_batches", help, "outcome", fleet.batches())?;
    let help = "Calls, connections and attempts to connect that failed, by class";
    sheet.counters_by("fleet_errors", help, "class", fleet.errors.iter().copied())?;
    let help = "Requests that were to wait for a call, by what came of it: answered; late: no answer by its deadline; \
                declined: too many were on their way, or calls were stopped";
    sheet.counters_by("fleet_asked", help, "outcome", fleet.remote_checks())?;
    let help = "How often such calls were stopped for a while: five in a row were late";
    sheet.counter("fleet_asks_stopped", help, &fleet.remote_checks.stopped)?;
    let help = "Tokens charged below zero: what was really admitted beyond a budget";
    sheet.counter("fleet_excess_tokens", help, &counts.excess)?;
    let help = "Answers that showed a tenth of a budget or more, of a key that had just refused: an estimate";
    sheet.counter("fleet_false_refusals", help, &counts.false_refusals)?;
    let help = "Cells that Redis had lost before their time: they began empty";
    sheet.counter("fleet_cells_lost", help, &counts.lost)?;
    let help = "Numbers of Redis that were absurd, and cut to what can be";
    sheet.counter("fleet_clamped", help, &fleet.clamped)?;
    let help = "Fleet overrides that were ignored: forged, the fleet secret does not authenticate the value in Redis; stale, of an \
                older version; unreadable, no text or too long; unknown, an entry that this version does not know";
    let rejected = fleet.overrides.rejected.iter().map(|(reason, count)| ([("reason", *reason)], *count));
    sheet.counters("fleet_overrides_rejected", help, rejected)?;
    let help = "Version of the fleet overrides that hold; 0: there are none";
    sheet.gauge("fleet_overrides_version", help, &fleet.overrides.version)?;
    let bounds = scrape.fleet_rules.iter().take(RULES_MAX).filter_map(|rule| {
        let bound = rule.bound.as_ref()?;
        Some(([("domain", &*rule.domain), ("rule", &*rule.rule)], bound.extra))
    });
    let help = "Tokens that all hosts together may admit beyond the budget of one key, once in any span, while Redis is heard";
    sheet.gauges("fleet_bound_tokens", help, bounds)?;
    reserves(scrape, sheet)
}

/// Pools whose reserve hosts keep together, or may.
fn reserves(scrape: &Scrape, sheet: &mut Sheet<'_>) -> fmt::Result {
    let each = || scrape.pools.iter().filter_map(|pool| Some(([("pool", &*pool.pool)], pool.reserve?)));
    let shared = each().map(|(pool, reserve)| (pool, u64::from(reserve.shared)));
    let help = "Whether the reserve of a pool goes by all hosts together; 0: by this host alone";
    sheet.gauges("fleet_reserve_shared", help, shared)?;
    let stale = |reserve: ReserveView| reserve.elsewhere.map_or(0.0, |hosts| hosts.stale_s);
    let help = "The age of what a reserve knows of other hosts; 0: it goes by this host alone";
    sheet.gauges("fleet_reserve_staleness_seconds", help, each().map(|(pool, of)| (pool, stale(of))))?;
    let most = each().map(|(pool, reserve)| (pool, u64::from(reserve.noncritical_max.unwrap_or_default())));
    let help =
        "How much other work the reserve lets be in progress here; 0 also where the slots are not known";
    sheet.gauges("fleet_reserve_most", help, most)
}

/// As many as are counted by name.
const RULES_MAX: usize = 512;
