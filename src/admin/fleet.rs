//! Fleet page: sync state of this host, as the sync task reports it, and the fleet budget of each rule.

use std::collections::HashMap;
use std::time::Duration;

use hyper::StatusCode;
use serde_json::{Value, json};

use super::Desk;
use super::answer::{self, HttpAnswer};
use super::switches::everywhere;
use crate::clock::Timestamp;
use crate::engine::{Engine, PermitTotals, PoolView, RuleInForce, RuleKind};
use crate::rules::{FleetBound, FleetTerms};

/// How it stands. All zero where the settings name no Redis, but that this host is there.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FleetRecord {
    /// Whether the settings name a Redis.
    pub is_set: bool,
    /// First digits of this host's identity.
    pub host: String,
    /// The first digits of a digest of the fleet secret; `None`: there is none.
    pub secret: Option<String>,
    /// Hosts with another fleet secret, or an older version.
    pub unlike: u32,
    /// Whether any rule shares a budget; without one the host does not contact Redis.
    pub is_needed: bool,
    /// Whether Redis answers.
    pub is_linked: bool,
    /// Hosts that budgets are shared with, this one included: the most of the last half minute.
    pub hosts: u32,
    /// Live hosts at the last heartbeat.
    pub alive: u32,
    /// Smoothed round-trip time.
    pub round_trip: Duration,
    /// Age of the last reply; `None` before the first.
    pub staleness: Option<Duration>,
    /// The servers.
    pub nodes: Vec<FleetNode>,
    /// Keys that are kept in touch about.
    pub keys: u64,
    /// Cells that were asked about and answered, and of the last second.
    pub cells: u64,
    /// See above.
    pub cells_per_second: u64,
    /// Batches of cells, by result.
    pub batches: Vec<(&'static str, u64)>,
    /// Batches that were sent once more.
    pub repeats: u64,
    /// Failures of calls and connections, by class.
    pub errors: Vec<(&'static str, u64)>,
    /// How it stands with the fleet overrides.
    pub overrides: OverridesRecord,
    /// Number of outages.
    pub outages: u64,
    /// Remote checks that requests waited for, by result.
    pub asked: Vec<(&'static str, u64)>,
    /// How often remote checks were suspended for a while.
    pub asks_stopped: u64,
    /// Tokens charged below zero: admitted beyond a budget.
    pub excess: u64,
    /// Answers that showed a tenth of a budget or more, of a key that had just refused.
    pub false_refusals: u64,
    /// Cells that were gone before their time.
    pub lost: u64,
    /// Implausible numbers that were clamped to the valid range.
    pub clamped: u64,
    /// Counters of each budget, by its number in the engine.
    pub budgets: HashMap<u64, BudgetCounts>,
}

/// How it stands with the fleet overrides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OverridesRecord {
    /// The version of the document that holds; 0: there is none.
    pub version: u64,
    /// Values and entries that were ignored, by reason.
    pub rejected: Vec<(&'static str, u64)>,
    /// Whether Redis had a value of late that no host of this fleet wrote.
    pub is_forged: bool,
}

impl FleetRecord {
    /// Hosts with another fleet secret, and the help.
    pub(super) fn secret_warning(&self) -> Option<String> {
        (self.unlike > 0).then(|| {
            format!(
                "{} hosts have another fleet secret than this one ({}), or an older version: this host shares no budget with the hosts \
                 of another secret; give all hosts the same file in `fleet_secret_files`",
                self.unlike,
                self.secret.as_deref().unwrap_or("none")
            )
        })
    }
}

impl OverridesRecord {
    /// Returns a warning if Redis had a forged document.
    pub(super) fn warning(&self) -> Option<String> {
        self.is_forged.then(|| {
            "FORGED fleet overrides in Redis are ignored: the fleet secret of this host does not authenticate them; find out who writes to \
             `tg:{tm}:overrides`"
                .to_owned()
        })
    }
}

/// One server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FleetNode {
    /// Where it is, without a password.
    pub url: String,
    /// `up`, `starting` or `down`.
    pub state: &'static str,
    /// Why it is down: the class of the failure, and its words.
    pub why: Option<(&'static str, String)>,
    /// The smoothed round trip, once there was one.
    pub round_trip: Option<Duration>,
    /// How many connections have been made to it.
    pub connections: u64,
}

/// Counters of one budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BudgetCounts {
    /// The version of its numbers; zero: not known.
    pub version: u64,
    /// Keys that are kept in touch about.
    pub keys: u64,
    /// Cells that were asked about and answered.
    pub cells: u64,
    /// The same within a second.
    pub cells_per_second: u64,
    /// Cells that were gone before their time.
    pub lost: u64,
    /// Millionths of a token that were charged below zero.
    pub excess_micro: u64,
    /// See [`FleetRecord::false_refusals`].
    pub false_refusals: u64,
    /// When Redis last answered about one of its keys.
    pub heard: Option<Timestamp>,
}

/// A rule in force that shares its budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FleetRule {
    pub(super) domain: String,
    pub(super) name: String,
    pub(super) terms: FleetTerms,
    /// Upper bound on tokens that the hosts admit beyond the budget while Redis answers.
    pub(super) bound: Option<FleetBound>,
    /// The whole budget.
    limit: u32,
    rate: String,
    is_joined: bool,
    counts: BudgetCounts,
    /// The numbers of its limits on work, where it is one.
    limits: Vec<u64>,
}

impl FleetRule {
    /// Those in force, in their order.
    pub(super) fn all(engine: &Engine, fleet: &FleetRecord) -> Vec<FleetRule> {
        let budgets = engine.fleet_budgets();
        let mut by_rule: HashMap<&str, Vec<BudgetCounts>> = HashMap::new();
        for (number, budget) in budgets.iter() {
            by_rule
                .entry(&*budget.rule)
                .or_default()
                .push(fleet.budgets.get(number).copied().unwrap_or_default());
        }
        let places = engine.fleet_concurrency_limits();
        let mut limits: HashMap<&str, Vec<u64>> = HashMap::new();
        for (number, limit) in places.iter() {
            let counts = fleet.budgets.get(number).copied().unwrap_or_default();
            by_rule.entry(&*limit.rule).or_default().push(counts);
            limits.entry(&*limit.rule).or_default().push(*number);
        }
        let of = |rule: RuleInForce<'_>| {
            let RuleKind::Limit(limit) = rule.kind else { return None };
            let terms = limit.fleet?;
            let quota = limit.limit.allowances.iter().flatten().map(|allowance| &allowance.quota).next()?;
            let full_name = format!("{}/{}", rule.domain, rule.name);
            let joined = by_rule.get(&*full_name);
            Some(FleetRule {
                domain: rule.domain.to_owned(),
                name: rule.name.to_owned(),
                terms,
                bound: FleetBound::of(&terms, quota, fleet.hosts.max(1)),
                limit: quota.limit(),
                rate: quota.format_rate(),
                is_joined: joined.is_some(),
                counts: joined.into_iter().flatten().fold(BudgetCounts::default(), BudgetCounts::plus),
                limits: limits.get(&*full_name).cloned().unwrap_or_default(),
            })
        };
        engine.in_force().each().filter_map(of).collect()
    }

    /// `sums`: permits of this host in each concurrency limit, by number.
    fn json(&self, now: Timestamp, sums: &HashMap<u64, PermitTotals>) -> Value {
        let counts = &self.counts;
        let places = (!self.limits.is_empty()).then(|| {
            let of = self.limits.iter().filter_map(|number| sums.get(number));
            let (held, in_use) = of.fold((0, 0), |sum, one| (sum.0 + one.held, sum.1 + one.in_use));
            json!({"held": held, "in_use": in_use})
        });
        let bound = self.bound.map(|bound| {
            json!({"hosts": bound.hosts, "on_miss": bound.on_miss.name(), "extra": bound.extra, "quiet_permille": bound.quiet})
        });
        json!({
            "domain": self.domain,
            "rule": self.name,
            "mode": self.terms.mode.name(),
            "on_redis_down": self.terms.on_redis_down.name(),
            "limit": self.limit,
            "rate": self.rate,
            "shared": self.is_joined,
            "bound": bound,
            "places": places,
            "version": (counts.version > 0).then_some(counts.version),
            "keys": counts.keys,
            "cells": counts.cells,
            "cells_per_s": counts.cells_per_second,
            "stale_s": counts.heard.map(|at| now.since(at).as_secs_f64()),
            "excess": counts.excess_micro as f64 / MICRO,
            "false_refusals": counts.false_refusals,
            "lost": counts.lost,
        })
    }
}

impl BudgetCounts {
    /// Of a rule whose callers have several budgets.
    fn plus(self, other: &BudgetCounts) -> BudgetCounts {
        BudgetCounts {
            version: self.version.max(other.version),
            keys: self.keys + other.keys,
            cells: self.cells + other.cells,
            cells_per_second: self.cells_per_second + other.cells_per_second,
            lost: self.lost + other.lost,
            excess_micro: self.excess_micro + other.excess_micro,
            false_refusals: self.false_refusals + other.false_refusals,
            heard: self.heard.max(other.heard),
        }
    }
}

/// The page.
pub(super) fn fleet(desk: &Desk) -> HttpAnswer {
    let fleet = desk.control.fleet();
    let now = desk.clock.now();
    let sums = desk.engine.sum_permits(now);
    let rules = FleetRule::all(&desk.engine, &fleet);
    let rules: Vec<Value> = rules.iter().map(|rule| rule.json(now.at, &sums)).collect();
    let pools = desk.engine.pools(now);
    let reserves = pools.iter().filter_map(|pool| {
        let mut told = reserve(pool)?;
        told.as_object_mut()?.insert("pool".to_owned(), (*pool.pool).into());
        Some(told)
    });
    let mut page = summary(&fleet);
    if let Some(fields) = page.as_object_mut() {
        let by_name = |counts: &[(&'static str, u64)]| {
            counts.iter().map(|(name, count)| ((*name).to_owned(), json!(count))).collect::<Value>()
        };
        fields.insert("nodes".to_owned(), fleet.nodes.iter().map(node).collect());
        fields.insert("batches".to_owned(), by_name(&fleet.batches));
        fields.insert("repeats".to_owned(), fleet.repeats.into());
        fields.insert("errors".to_owned(), by_name(&fleet.errors));
        fields.insert("outages".to_owned(), fleet.outages.into());
        fields.insert("overrides".to_owned(), everywhere(desk));
        fields.insert("overrides_rejected".to_owned(), by_name(&fleet.overrides.rejected));
        fields.insert("lost".to_owned(), fleet.lost.into());
        fields.insert("clamped".to_owned(), fleet.clamped.into());
        fields.insert("rules".to_owned(), rules.into());
        fields.insert("reserves".to_owned(), reserves.collect());
    }
    answer::value(StatusCode::OK, &page)
}

/// Returns the fleet part of the status.
pub(super) fn summary(fleet: &FleetRecord) -> Value {
    json!({
        "redis": fleet.is_set,
        "host": fleet.host,
        "secret": {"uses": fleet.secret, "other_hosts": fleet.unlike},
        "needed": fleet.is_needed,
        "linked": fleet.is_linked,
        "hosts": fleet.hosts,
        "alive": fleet.alive,
        "overrides_version": fleet.overrides.version,
        "overrides_forged": fleet.overrides.is_forged,
        "stale_s": fleet.staleness.map(|age| age.as_secs_f64()),
        "round_trip_us": u64::try_from(fleet.round_trip.as_micros()).unwrap_or(u64::MAX),
        "keys": fleet.keys,
        "cells": fleet.cells,
        "cells_per_s": fleet.cells_per_second,
        "excess": fleet.excess,
        "false_refusals": fleet.false_refusals,
    })
}

/// How the reserve of a pool stands, if it has one: whether it goes by the hosts together, or by this one alone.
pub(super) fn reserve(pool: &PoolView) -> Option<Value> {
    let reserve = pool.reserve?;
    let elsewhere = reserve.other_hosts.map(|(sums, age)| {
        json!({
            "slots": sums.slots,
            "critical": sums.critical,
            "others": sums.noncritical,
            "stale_s": age.as_secs_f64(),
        })
    });
    Some(json!({
        "shared": elsewhere.is_some(),
        "most": reserve.noncritical_max,
        "others": pool.noncritical,
        "critical": pool.critical,
        "elsewhere": elsewhere,
    }))
}

fn node(node: &FleetNode) -> Value {
    json!({
        "url": node.url,
        "state": node.state,
        "class": node.why.as_ref().map(|(class, _)| class),
        "why": node.why.as_ref().map(|(_, words)| words),
        "round_trip_us": node.round_trip.map(|span| u64::try_from(span.as_micros()).unwrap_or(u64::MAX)),
        "connections": node.connections,
    })
}

/// Millionths of a token.
const MICRO: f64 = 1e6;
