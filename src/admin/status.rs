//! Status of the daemon as JSON, for `tidegate status`, `tidegate top` and scripts. Callers are digests, but
//! for attributes that a rule names in `show_keys`.

mod callers;
mod warnings;

use std::collections::HashMap;

use hyper::StatusCode;
use serde_json::{Value, json};
use tracing::info;

use super::Desk;
use super::answer::{self, HttpAnswer};
use super::control::{RulesRecord, ServerCounts, StateRecord};
use super::fleet::{self, FleetRecord, FleetRule};
use crate::clock::{Now, Timestamp};
use crate::engine::{InForce, LeaseTotals, PoolView, RuleTotals, Totals, VerdictTotals};

/// Data of the page, read at one moment.
struct StatusMoment {
    now: Now,
    totals: Totals,
    in_force: InForce,
    leases: LeaseTotals,
    pools: Vec<PoolView>,
    rules: RulesRecord,
    server: ServerCounts,
    state: StateRecord,
    fleet: FleetRecord,
    fleet_rules: Vec<FleetRule>,
    unready: Vec<String>,
}

/// The page.
pub(super) fn status(desk: &Desk) -> HttpAnswer {
    answer::value(StatusCode::OK, &told(desk))
}

/// Logs the status in one line, without callers: readers of logs must not learn them.
pub fn log_status(desk: &Desk) {
    let mut status = told(desk);
    if let Some(fields) = status.as_object_mut() {
        fields.remove("callers");
    }
    info!(%status, "status");
}

pub(super) fn told(desk: &Desk) -> Value {
    let (engine, now, began) = (&desk.engine, desk.clock.now(), desk.clock.started_at());
    let record = desk.control.fleet();
    let moment = StatusMoment {
        now,
        totals: engine.totals(),
        in_force: engine.in_force(),
        leases: engine.leases(),
        pools: engine.pools(now),
        rules: desk.control.rules(),
        server: desk.control.server(),
        state: desk.control.state(),
        fleet_rules: FleetRule::all(engine, &record),
        fleet: record,
        unready: desk.control.unready(),
    };
    let StatusMoment { totals, leases, server, .. } = &moment;
    let by_name = |counts: &[(&'static str, u64)]| {
        counts.iter().map(|(name, count)| ((*name).to_owned(), json!(count))).collect::<Value>()
    };
    let missed = server.missed.iter().filter(|(.., count)| *count > 0);
    let missed =
        missed.map(|(client, reason, count)| json!({"client": client, "reason": reason, "count": count}));
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "started": unix_seconds(began.at, began),
        "uptime_s": now.at.since(began.at).as_secs(),
        "mode": engine.mode().name(),
        "rules": rules(&moment),
        "connections": {"now": server.connections, "refused": by_name(&server.refused)},
        "errors": by_name(&server.errors),
        "shared_domains": shared_domains(server),
        "missed": missed.collect::<Vec<_>>(),
        "decisions": {
            "allow": totals.allowed,
            "limit": totals.limited,
            "wait": totals.waited,
            "deny": totals.denied,
            "shed": totals.shed,
        },
        "unmatched": {"domain": totals.unmatched_domain, "rule": totals.unmatched_rule},
        "panics": totals.panics,
        "counts": counts(&moment),
        "pools": moment.pools.iter().map(pool).collect::<Vec<_>>(),
        "leases": {
            "held": leases.live,
            "released": leases.released,
            "expired": leases.expired,
            "session": leases.session,
            "abandoned": leases.abandoned,
            "not_held": {
                "ended": leases.not_held.ended,
                "foreign": leases.not_held.foreign,
                "unknown": leases.not_held.unknown,
            },
        },
        "sessions": leases.sessions,
        "memory": {
            "bytes": engine.memory_bytes(),
            "max_bytes": engine.memory_bytes_max(),
            "keys": engine.keys(),
            "evictions": totals.evictions,
        },
        "state": state(&moment.state),
        "fleet": fleet_of(&moment),
        "callers": callers::told(engine, &moment.in_force),
        "switches": super::switches(desk),
        "warnings": warnings::told(desk, &moment),
    })
}

/// Null where nothing is shared, nor could be.
fn fleet_of(moment: &StatusMoment) -> Value {
    if !moment.fleet.is_set && moment.fleet_rules.is_empty() {
        return Value::Null;
    }
    let mut told = fleet::summary(&moment.fleet);
    if let Some(fields) = told.as_object_mut() {
        fields.insert("rules".to_owned(), moment.fleet_rules.len().into());
    }
    told
}

fn rules(moment: &StatusMoment) -> Value {
    let RulesRecord { path, last_success, last_failure, is_good, domains } = &moment.rules;
    let when = |at: &Option<Timestamp>| at.map(|at| unix_seconds(at, moment.now));
    let mut by_domain: HashMap<&str, usize> = HashMap::new();
    moment.in_force.each().for_each(|rule| *by_domain.entry(rule.domain).or_default() += 1);
    let domains = domains.iter().map(|domain| {
        let rules = by_domain.get(&*domain.name).copied().unwrap_or_default();
        json!({"name": domain.name, "sha": domain.sha, "rules": rules})
    });
    json!({
        "path": path,
        "good": is_good,
        "last_success": when(last_success),
        "last_failure": when(last_failure),
        "domains": domains.collect::<Vec<_>>(),
    })
}

fn state(state: &StateRecord) -> Value {
    let bad = state.bad.iter().map(|(file, count)| ((*file).to_owned(), json!(count)));
    json!({
        "writes": state.writes,
        "failures": state.failures,
        "last_write": state.written_unix_seconds,
        "bytes": state.bytes,
        "bad": bad.collect::<Value>(),
    })
}

/// Returns the counts of each rule in force, and of all others together.
fn counts(moment: &StatusMoment) -> Vec<Value> {
    let known: HashMap<(&str, &str), &RuleTotals> =
        moment.totals.rules.iter().map(|counts| ((&*counts.domain, &*counts.rule), counts)).collect();
    let in_force = moment.in_force.each().filter_map(|rule| {
        let counts = known.get(&(rule.domain, rule.name))?;
        Some(count(counts, Some(rule.mode.name())))
    });
    let others = moment.totals.rules.last().filter(|others| others.domain.is_empty());
    in_force.chain(others.map(|others| count(others, None))).collect()
}

fn count(counts: &RuleTotals, mode: Option<&str>) -> Value {
    let VerdictTotals { allow, limit, wait, deny, shed } = counts.verdicts;
    json!({
        "domain": counts.domain,
        "rule": counts.rule,
        "mode": mode,
        "decisions": {"allow": allow, "limit": limit, "wait": wait, "deny": deny, "shed": shed},
        "pass": counts.pass,
        "near": counts.near,
        "over": counts.over,
        "refuse": counts.refuse,
        "would_refuse": counts.would_refuse,
    })
}

fn pool(pool: &PoolView) -> Value {
    let chances = pool.shed_probabilities.iter().map(|(priority, chance)| json!([priority, chance]));
    let signals = pool.signals.iter().map(|(name, value, counts)| {
        json!({"name": name, "utilization": value, "readable": value.is_some(), "counts": counts})
    });
    json!({
        "pool": pool.pool,
        "watched": pool.configured,
        "slots": pool.slots,
        "busy": pool.busy,
        "u": pool.utilization,
        "s": pool.severity,
        "braking": pool.braking,
        "reserve": fleet::reserve(pool),
        "chances": chances.collect::<Vec<_>>(),
        "signals": signals.collect::<Vec<_>>(),
    })
}

/// Users by the domain that they share.
fn shared_domains(server: &ServerCounts) -> Value {
    server.shared_domains.iter().map(|(domain, users)| (domain.to_string(), json!(users))).collect()
}

/// A moment in Unix time, by the wall clock as it was at `now`.
pub(super) fn unix_seconds(at: Timestamp, now: Now) -> f64 {
    (i128::from(at.as_nanos()) + i128::from(now.utc_offset_nanos)) as f64 / 1e9
}
