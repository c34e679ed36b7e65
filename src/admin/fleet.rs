//! Fleet page: sync state of this host, as the sync task reports it, and the fleet budget of each rule.

use std::collections::HashMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::AdminState;
use super::status::{NamedCounts, by_name};
use super::switches::{ActiveSwitchesStatus, fleet_overrides};
use crate::clock::Timestamp;
use crate::engine::{Engine, PermitTotals, PoolView};
use crate::rules::{FleetBound, NamedItem, NamedKind};

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

/// Returns the rules in force that share a budget, in their order. `sums`: permits of this host in each concurrency
/// limit, by number.
pub(super) fn fleet_rules(
    engine: &Engine,
    fleet: &FleetRecord,
    now: Timestamp,
    sums: &HashMap<u64, PermitTotals>,
) -> Vec<FleetRuleStatus> {
    let (budgets, permits) = (engine.fleet_budgets(), engine.fleet_concurrency_limits());
    let mut by_rule: HashMap<&str, (BudgetCounts, Option<PlacesStatus>)> = HashMap::new();
    for (number, budget) in budgets.iter() {
        let (counts, _) = by_rule.entry(&*budget.rule).or_default();
        *counts = counts.plus(&fleet.budgets.get(number).copied().unwrap_or_default());
    }
    for (number, limit) in permits.iter() {
        let (counts, places) = by_rule.entry(&*limit.rule).or_default();
        *counts = counts.plus(&fleet.budgets.get(number).copied().unwrap_or_default());
        let (places, sum) = (places.get_or_insert_default(), sums.get(number).copied().unwrap_or_default());
        places.held += sum.held;
        places.in_use += sum.in_use;
    }
    let status = |rule: NamedItem<'_>| {
        let NamedKind::Rule(_, limit) = rule.kind else { return None };
        let terms = limit.fleet?;
        let quota = limit.limit.allowances.iter().flatten().map(|allowance| &allowance.quota).next()?;
        let joined = by_rule.get(&*format!("{}/{}", rule.domain, rule.name));
        let (counts, places) = joined.cloned().unwrap_or_default();
        Some(FleetRuleStatus {
            domain: rule.domain.to_owned(),
            rule: rule.name.to_owned(),
            mode: terms.mode.name().to_owned(),
            on_redis_down: terms.on_redis_down.name().to_owned(),
            limit: quota.limit().into(),
            rate: quota.format_rate(),
            shared: joined.is_some(),
            bound: FleetBound::of(&terms, quota, fleet.hosts.max(1)).map(|bound| BoundStatus {
                hosts: bound.hosts.into(),
                on_miss: bound.on_miss.name().to_owned(),
                extra: bound.extra.into(),
                quiet_permille: bound.quiet.into(),
            }),
            places,
            version: (counts.version > 0).then_some(counts.version),
            keys: counts.keys,
            cells: counts.cells,
            cells_per_s: counts.cells_per_second,
            stale_s: counts.heard.map(|at| now.since(at).as_secs_f64()),
            excess: counts.excess_micro as f64 / MICRO,
            false_refusals: counts.false_refusals,
            lost: counts.lost,
        })
    };
    engine.in_force().each().filter_map(status).collect()
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

/// The object of `GET /fleet`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct FleetPage {
    #[serde(flatten)]
    pub(crate) summary: FleetSummary,
    pub(crate) nodes: Vec<RedisNodeStatus>,
    pub(crate) batches: NamedCounts,
    pub(crate) repeats: u64,
    pub(crate) errors: NamedCounts,
    pub(crate) outages: u64,
    pub(crate) overrides: ActiveSwitchesStatus,
    pub(crate) overrides_rejected: NamedCounts,
    pub(crate) lost: u64,
    pub(crate) clamped: u64,
    pub(crate) rules: Vec<FleetRuleStatus>,
    pub(crate) reserves: Vec<ReserveStatus>,
}

/// The part that the status has as well.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct FleetSummary {
    pub(crate) redis: bool,
    pub(crate) host: String,
    pub(crate) secret: SecretStatus,
    pub(crate) needed: bool,
    pub(crate) linked: bool,
    pub(crate) hosts: u64,
    pub(crate) alive: u64,
    pub(crate) overrides_version: u64,
    pub(crate) overrides_forged: bool,
    pub(crate) stale_s: Option<f64>,
    pub(crate) round_trip_us: u64,
    pub(crate) keys: u64,
    pub(crate) cells: u64,
    pub(crate) cells_per_s: u64,
    pub(crate) excess: u64,
    pub(crate) false_refusals: u64,
}

/// The fleet secret and the number of hosts with another one.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct SecretStatus {
    pub(crate) uses: Option<String>,
    pub(crate) other_hosts: u64,
}

/// A Redis server.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct RedisNodeStatus {
    pub(crate) url: String,
    pub(crate) state: String,
    pub(crate) class: Option<String>,
    pub(crate) why: Option<String>,
    pub(crate) round_trip_us: Option<u64>,
    pub(crate) connections: u64,
}

/// A rule with a fleet budget.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct FleetRuleStatus {
    pub(crate) domain: String,
    pub(crate) rule: String,
    pub(crate) mode: String,
    pub(crate) on_redis_down: String,
    pub(crate) limit: u64,
    pub(crate) rate: String,
    pub(crate) shared: bool,
    pub(crate) bound: Option<BoundStatus>,
    /// Permits of a concurrency rule.
    pub(crate) places: Option<PlacesStatus>,
    pub(crate) version: Option<u64>,
    pub(crate) keys: u64,
    pub(crate) cells: u64,
    pub(crate) cells_per_s: u64,
    pub(crate) stale_s: Option<f64>,
    pub(crate) excess: f64,
    pub(crate) false_refusals: u64,
    pub(crate) lost: u64,
}

/// The tokens that hosts may admit beyond a budget.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct BoundStatus {
    pub(crate) hosts: u64,
    pub(crate) on_miss: String,
    pub(crate) extra: u64,
    pub(crate) quiet_permille: u64,
}

/// Permits of this host.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct PlacesStatus {
    pub(crate) held: u64,
    pub(crate) in_use: u64,
}

/// The reserve of a pool.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ReserveStatus {
    /// Only in the list of the fleet page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pool: Option<String>,
    /// Whether it counts all hosts or this one alone.
    pub(crate) shared: bool,
    pub(crate) most: Option<u64>,
    pub(crate) others: u64,
    pub(crate) critical: u64,
    pub(crate) elsewhere: Option<OtherHostsStatus>,
}

/// The sums of the other hosts.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct OtherHostsStatus {
    pub(crate) slots: u64,
    pub(crate) critical: u64,
    pub(crate) others: u64,
    pub(crate) stale_s: f64,
}

impl FleetPage {
    /// Reads the page from the daemon.
    pub(super) fn read(desk: &AdminState) -> FleetPage {
        let (fleet, now) = (desk.control.fleet(), desk.clock.now());
        let sums = desk.engine.sum_permits(now);
        let pools = desk.engine.pools(now);
        let reserves = pools.iter().filter_map(|pool| {
            Some(ReserveStatus { pool: Some(pool.pool.to_string()), ..ReserveStatus::new(pool)? })
        });
        FleetPage {
            summary: FleetSummary::from(&fleet),
            nodes: fleet.nodes.iter().map(RedisNodeStatus::from).collect(),
            batches: by_name(&fleet.batches),
            repeats: fleet.repeats,
            errors: by_name(&fleet.errors),
            outages: fleet.outages,
            overrides: fleet_overrides(desk),
            overrides_rejected: by_name(&fleet.overrides.rejected),
            lost: fleet.lost,
            clamped: fleet.clamped,
            rules: fleet_rules(&desk.engine, &fleet, now.at, &sums),
            reserves: reserves.collect(),
        }
    }
}

impl From<&FleetRecord> for FleetSummary {
    fn from(fleet: &FleetRecord) -> FleetSummary {
        FleetSummary {
            redis: fleet.is_set,
            host: fleet.host.clone(),
            secret: SecretStatus { uses: fleet.secret.clone(), other_hosts: fleet.unlike.into() },
            needed: fleet.is_needed,
            linked: fleet.is_linked,
            hosts: fleet.hosts.into(),
            alive: fleet.alive.into(),
            overrides_version: fleet.overrides.version,
            overrides_forged: fleet.overrides.is_forged,
            stale_s: fleet.staleness.map(|age| age.as_secs_f64()),
            round_trip_us: micros(fleet.round_trip),
            keys: fleet.keys,
            cells: fleet.cells,
            cells_per_s: fleet.cells_per_second,
            excess: fleet.excess,
            false_refusals: fleet.false_refusals,
        }
    }
}

impl From<&FleetNode> for RedisNodeStatus {
    fn from(node: &FleetNode) -> RedisNodeStatus {
        let (class, why) = node.why.as_ref().map(|(class, why)| ((*class).to_owned(), why.clone())).unzip();
        RedisNodeStatus {
            url: node.url.clone(),
            state: node.state.to_owned(),
            class,
            why,
            round_trip_us: node.round_trip.map(micros),
            connections: node.connections,
        }
    }
}

impl ReserveStatus {
    /// Returns the reserve of a pool, if it has one.
    pub(super) fn new(pool: &PoolView) -> Option<ReserveStatus> {
        let reserve = pool.reserve?;
        let elsewhere = reserve.other_hosts.map(|(sums, age)| OtherHostsStatus {
            slots: sums.slots,
            critical: sums.critical,
            others: sums.noncritical,
            stale_s: age.as_secs_f64(),
        });
        Some(ReserveStatus {
            pool: None,
            shared: elsewhere.is_some(),
            most: reserve.noncritical_max.map(u64::from),
            others: pool.noncritical.into(),
            critical: pool.critical.into(),
            elsewhere,
        })
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

/// Millionths of a token.
const MICRO: f64 = 1e6;
