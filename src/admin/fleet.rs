//! Fleet page: sync state of this host, as the sync task reports it, and the fleet budget of each rule.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::AdminState;
use super::status::{NamedCounts, by_name};
use super::switches::{ActiveSwitchesStatus, fleet_overrides};
use crate::clock::{Micros, Timestamp};
use crate::engine::{Engine, PermitTotals, ReserveView};
use crate::fleet::counters::{FleetCounters, FleetView, OverridesView};
use crate::fleet::link::{FailureClass, NodeState, NodeStatus};
use crate::fleet::overrides::BLOCK_BYTES_MAX;
use crate::fleet::tally::BudgetCounters;
use crate::rules::{FleetBound, NamedItem, NamedKind, REMOTE_CHECK_WAIT_MAX_MILLIS};
use crate::terms::{counted, hex};

/// The sync state of this host at one moment.
#[derive(Clone, Debug)]
pub(super) struct FleetReading {
    /// Whether the settings name a Redis that the daemon can use.
    pub(super) is_set: bool,
    /// Why it cannot.
    pub(super) failure: Option<Arc<str>>,
    /// Without a Redis all is zero, and every name is present.
    pub(super) view: Arc<FleetView>,
    /// Age of the last reply; `None` before the first.
    pub(super) staleness: Option<Duration>,
}

impl FleetReading {
    pub(super) fn take(admin: &AdminState, now: Timestamp) -> FleetReading {
        let fleet = admin.fleet.as_deref();
        let failure = admin.fleet_failure.clone();
        let alone = || {
            let is_needed = failure.is_some() && shares(&admin.engine);
            Arc::new(FleetView { is_needed, ..FleetView::new() })
        };
        FleetReading {
            is_set: fleet.is_some(),
            view: fleet.map_or_else(alone, FleetCounters::read),
            failure: failure.clone(),
            staleness: fleet.and_then(|fleet| fleet.staleness(now)),
        }
    }

    /// Returns the mark of the fleet secret; `None`: there is none.
    fn secret(&self) -> Option<String> {
        self.is_set.then(|| self.view.secret.to_string())
    }

    /// Hosts with another fleet secret, and the help.
    pub(super) fn secret_warning(&self) -> Option<String> {
        (self.view.unlike > 0).then(|| {
            format!(
                "another fleet secret than this one ({1}), or an older version, on {0}: this host shares no budget with the hosts of \
                 another secret; give all hosts the same file in `fleet_secret_files`, and restart tidegate there",
                counted(self.view.unlike, "host"),
                self.secret().as_deref().unwrap_or("none")
            )
        })
    }

    /// Returns a warning while remote checks are stopped.
    pub(super) fn slow_warning(&self) -> Option<String> {
        self.view.is_too_slow.then(|| {
            let round_trip = self.view.round_trip;
            let help = if round_trip < Duration::from_millis(REMOTE_CHECK_WAIT_MAX_MILLIS) {
                "write a longer `wait` into the rules"
            } else {
                "no `wait` is as long; use a Redis nearer to this host, or larger bursts"
            };
            format!(
                "remote checks are stopped: Redis answers later than `wait`, its round trip is {}; requests without tokens \
                 follow `on_redis_down`: {help}",
                Micros::from(round_trip)
            )
        })
    }

    pub(super) fn forged_warning(&self) -> Option<String> {
        self.view.overrides.is_forged.then(|| {
            "FORGED fleet overrides in Redis are ignored: the fleet secret of this host does not authenticate them; find the \
             program that writes to `tg:{tm}:overrides`, or give this host the fleet secret of the others"
                .to_owned()
        })
    }
}

/// Returns a warning if the blocks of all hosts have almost reached their limit.
pub(super) fn blocks_warning(overrides: &OverridesView) -> Option<String> {
    (overrides.blocks_ratio > BLOCKS_NEAR).then(|| {
        format!(
            "the blocks of all hosts fill {:.0} % of their room of {} KiB, and none is accepted beyond it: `tidegate switch` \
             lists them, `tidegate unblock RULE --digest HEX --fleet` removes one; or write a `deny` list",
            overrides.blocks_ratio * 100.0,
            BLOCK_BYTES_MAX / 1024,
        )
    })
}

/// Whether a rule or a reserve is meant for all hosts.
fn shares(engine: &Engine) -> bool {
    let is_of_fleet =
        |rule: NamedItem<'_>| matches!(rule.kind, NamedKind::Rule(_, limit) if limit.fleet.is_some());
    engine.in_force().each().any(is_of_fleet) || engine.has_fleet_reserve()
}

/// Returns the rules in force that share a budget, in their order. `sums`: permits of this host in each concurrency
/// limit, by number.
pub(super) fn fleet_rules(
    engine: &Engine,
    fleet: &FleetView,
    now: Timestamp,
    sums: &HashMap<u64, PermitTotals>,
) -> Vec<FleetRuleStatus> {
    let (budgets, permits) = (engine.fleet_budgets(), engine.fleet_concurrency_limits());
    let mut by_rule: HashMap<&str, (BudgetCounters, Option<PermitTotals>)> = HashMap::new();
    let counts = |rule_number| fleet.rules.get(&rule_number).copied().unwrap_or_default();
    for budget in budgets.values() {
        by_rule.insert(&budget.rule, (counts(budget.rule_number), None));
    }
    for (number, limit) in permits.iter() {
        let (_, places) = by_rule.entry(&*limit.rule).or_insert_with(|| (counts(limit.rule_number), None));
        let (places, sum) = (places.get_or_insert_default(), sums.get(number).copied().unwrap_or_default());
        places.held += sum.held;
        places.in_use += sum.in_use;
    }
    let status = |rule: NamedItem<'_>| {
        let NamedKind::Rule(_, limit) = rule.kind else { return None };
        let settings = limit.fleet?;
        let quota = limit.limit.allowances.iter().flatten().map(|allowance| &allowance.quota).next()?;
        let joined = by_rule.get(&*format!("{}/{}", rule.domain, rule.name));
        let (counts, places) = joined.copied().unwrap_or_default();
        Some(FleetRuleStatus {
            domain: rule.domain.to_owned(),
            rule: rule.name.to_owned(),
            mode: settings.mode.to_string(),
            on_redis_down: settings.on_redis_down.to_string(),
            limit: quota.limit().into(),
            rate: quota.format_rate(),
            shared: joined.is_some(),
            bound: FleetBound::of(&settings, quota, fleet.hosts.max(1)),
            // The hosts of another secret share a budget of their own.
            admitted_max: Some(
                settings.admitted_max(fleet.hosts, fleet.cut_off()) + f64::from(fleet.unlike.min(1)),
            )
            .filter(|max| max.is_finite()),
            places,
            version: (counts.version > 0).then_some(counts.version),
            newer_elsewhere: counts.is_outdated,
            keys: counts.keys,
            cells: counts.cells,
            cells_per_s: counts.cells_per_second,
            stale_s: counts.replied_at.map(|at| now.since(at).as_secs_f64()),
            excess: counts.excess as f64 / MICRO,
            false_refusals: counts.false_refusals,
            lost: counts.lost,
        })
    };
    engine.in_force().each().filter_map(status).collect()
}

/// Returns the most that all hosts together admit of any budget, in budgets; 0 without a shared budget.
pub(crate) fn admitted_max(rules: &[FleetRuleStatus]) -> f64 {
    let shared = rules.iter().filter(|rule| rule.shared);
    shared.map(|rule| rule.admitted_max.unwrap_or(f64::INFINITY)).fold(0.0, f64::max)
}

/// The object of `GET /fleet`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct FleetPage {
    #[serde(flatten)]
    pub(crate) summary: FleetSummary,
    pub(crate) nodes: Vec<RedisNodeStatus>,
    pub(crate) batches: NamedCounts,
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
    /// Why the Redis of the settings cannot be used.
    pub(crate) failure: Option<String>,
    pub(crate) host: String,
    pub(crate) secret: SecretStatus,
    /// Hosts whose fleet rules have other numbers than those of this host.
    pub(crate) other_rules_hosts: u64,
    pub(crate) needed: bool,
    pub(crate) linked: bool,
    pub(crate) hosts: u64,
    /// Without `fleet.hosts_at_least`.
    pub(crate) counted: u64,
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
    pub(crate) bound: Option<FleetBound>,
    /// The most that all hosts together admit while some are cut off, in budgets; `None`: without bound.
    pub(crate) admitted_max: Option<f64>,
    /// Permits of a concurrency rule.
    pub(crate) places: Option<PermitTotals>,
    pub(crate) version: Option<u64>,
    /// Whether another host has newer numbers, which hold for all hosts.
    pub(crate) newer_elsewhere: bool,
    pub(crate) keys: u64,
    pub(crate) cells: u64,
    pub(crate) cells_per_s: u64,
    pub(crate) stale_s: Option<f64>,
    pub(crate) excess: f64,
    pub(crate) false_refusals: u64,
    pub(crate) lost: u64,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ReserveStatus {
    pub(crate) pool: String,
    #[serde(flatten)]
    pub(crate) reserve: ReserveView,
}

impl FleetPage {
    pub(super) fn read(admin: &AdminState) -> FleetPage {
        let now = admin.clock.now();
        let fleet = FleetReading::take(admin, now.at);
        let view = &*fleet.view;
        let sums = admin.engine.sum_permits(now);
        let pools = admin.engine.pools(now);
        let reserves = pools
            .iter()
            .filter_map(|pool| Some(ReserveStatus { pool: pool.pool.to_string(), reserve: pool.reserve? }));
        FleetPage {
            summary: FleetSummary::from(&fleet),
            nodes: view.nodes.iter().map(RedisNodeStatus::from).collect(),
            batches: by_name(view.batches()),
            errors: by_name(view.errors.iter().copied()),
            outages: view.outages,
            overrides: fleet_overrides(admin),
            overrides_rejected: by_name(view.rejected_overrides()),
            lost: view.counts.lost,
            clamped: view.clamped,
            rules: fleet_rules(&admin.engine, view, now.at, &sums),
            reserves: reserves.collect(),
        }
    }
}

impl From<&FleetReading> for FleetSummary {
    fn from(fleet: &FleetReading) -> FleetSummary {
        let view = &*fleet.view;
        // Enough to distinguish hosts by eye.
        let [first, second, third, fourth, ..] = view.host;
        FleetSummary {
            redis: fleet.is_set,
            failure: fleet.failure.as_deref().map(str::to_owned),
            host: if fleet.is_set { hex(&[first, second, third, fourth]) } else { String::new() },
            secret: SecretStatus { uses: fleet.secret(), other_hosts: view.unlike.into() },
            other_rules_hosts: view.other_rules.into(),
            needed: view.is_needed,
            linked: view.is_linked,
            hosts: view.hosts.into(),
            counted: view.counted.into(),
            alive: view.alive.into(),
            overrides_version: view.overrides.version,
            overrides_forged: view.overrides.is_forged,
            stale_s: fleet.staleness.map(|age| age.as_secs_f64()),
            round_trip_us: Micros::from(view.round_trip).0,
            keys: view.keys as u64,
            cells: view.counts.cells,
            cells_per_s: view.cells_per_second,
            excess: view.counts.excess,
            false_refusals: view.counts.false_refusals,
        }
    }
}

impl From<&NodeStatus> for RedisNodeStatus {
    fn from(node: &NodeStatus) -> RedisNodeStatus {
        let (state, error) = match &node.state {
            NodeState::Starting => ("starting", None),
            NodeState::Up => ("up", None),
            NodeState::Down(error) => ("down", Some(error)),
            NodeState::Refusing(error) if error.class == FailureClass::Oom => ("full", Some(error)),
            NodeState::Refusing(error) => ("refuses", Some(error)),
        };
        RedisNodeStatus {
            url: node.url.to_string(),
            state: state.to_owned(),
            class: error.map(|error| error.class.name().to_owned()),
            why: error.map(ToString::to_string),
            round_trip_us: node.round_trip_us,
            connections: node.connections,
        }
    }
}

/// Above this part of their room the blocks of all hosts are a warning, as in the alert.
const BLOCKS_NEAR: f64 = 0.8;

/// Millionths of a token.
const MICRO: f64 = 1e6;
