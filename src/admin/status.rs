//! Status of the daemon as JSON, for `tidegate status`, `tidegate top`, the page at `/` and scripts. Callers are digests,
//! except attributes that a rule names in `show_keys`.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;
use tracing::info;

use super::AdminState;
use super::fleet::{FleetReading, FleetSummary, fleet_rules};
use super::switches::{SwitchesStatus, switches};
use super::warnings;
use crate::clock::Now;
use crate::engine::{Engine, InForce, LeaseTotals, PoolView, RuleTotals, TopCallers, Totals, VerdictTotals};
use crate::rules::{NamedItem, NamedKind, Rule};
use crate::server::RAISED;
use crate::state::SnapshotStatus;
use crate::terms::{count, counted};

pub(crate) type NamedCounts = BTreeMap<String, u64>;

/// The object of `GET /status`. The keys are the names of the fields. A reader gets the default of a key that its
/// daemon does not send, and ignores a key that it does not know: the daemon may have another version.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct DaemonStatus {
    pub(crate) version: String,
    /// Unix time.
    pub(crate) started: f64,
    pub(crate) uptime_s: u64,
    pub(crate) mode: String,
    pub(crate) rules: RulesRecord,
    pub(crate) connections: ConnectionsStatus,
    pub(crate) errors: NamedCounts,
    /// Users by the domain that they share.
    pub(crate) shared_domains: BTreeMap<String, Vec<u32>>,
    pub(crate) missed: Vec<MissedStatus>,
    pub(crate) decisions: VerdictTotals,
    pub(crate) unmatched: UnmatchedStatus,
    /// The first domains of requests that do not exist.
    pub(crate) unknown_domains: Vec<String>,
    pub(crate) panics: u64,
    /// Each rule in force, and all others together: a rule without a domain and a mode.
    pub(crate) counts: Vec<RuleStatus>,
    pub(crate) pools: Vec<PoolView>,
    pub(crate) leases: LeaseTotals,
    pub(crate) sessions: u64,
    pub(crate) memory: MemoryStatus,
    pub(crate) state: SnapshotStatus,
    /// Null without a Redis in the settings and without fleet budgets.
    pub(crate) fleet: Option<FleetStatusPart>,
    pub(crate) callers: TopCallers,
    pub(crate) switches: SwitchesStatus,
    pub(crate) warnings: Vec<String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ConnectionsStatus {
    pub(crate) now: u64,
    pub(crate) refused: NamedCounts,
}

/// Decisions that clients of one language made without the daemon, for one reason; or functions of applications that
/// raised.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct MissedStatus {
    pub(crate) client: String,
    pub(crate) reason: String,
    pub(crate) count: u64,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct UnmatchedStatus {
    pub(crate) domain: u64,
    pub(crate) rule: u64,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct RuleStatus {
    #[serde(flatten)]
    pub(crate) totals: RuleTotals,
    pub(crate) mode: Option<String>,
    /// Whether it is a limit: neither an entry of a list nor a part of a shedder.
    pub(crate) is_limit: bool,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct MemoryStatus {
    pub(crate) bytes: u64,
    pub(crate) max_bytes: u64,
    pub(crate) keys: u64,
    pub(crate) evictions: u64,
}

/// The sync state of this host and its number of fleet rules.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct FleetStatusPart {
    #[serde(flatten)]
    pub(crate) summary: FleetSummary,
    pub(crate) rules: u64,
}

impl DaemonStatus {
    pub(super) fn read(admin: &AdminState) -> DaemonStatus {
        let (engine, now, began) = (&admin.engine, admin.clock.now(), admin.clock.started_at());
        let (server, fleet) = (&admin.server, FleetReading::take(admin, now.at));
        let (totals, in_force, leases) = (engine.totals(), engine.in_force(), engine.leases());
        let missed = server.missed_decisions().filter(|(.., count)| *count > 0);
        let missed = missed.map(|(client, reason, count)| {
            let (client, reason) = (client.to_owned(), reason.name().to_owned());
            MissedStatus { client, reason, count }
        });
        let shared_domains = server.shared_domains().into_iter();
        let unknown = server.unknown_domains().into_iter();
        let fleet_rules = fleet_rules(engine, &fleet.view, now.at, &HashMap::new());
        let mut status = DaemonStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started: unix_seconds(began),
            uptime_s: now.at.since(began.at).as_secs(),
            mode: engine.mode().name().to_owned(),
            rules: admin.control.rules().in_unix_time(now),
            connections: ConnectionsStatus {
                now: server.connections.load(Ordering::Relaxed),
                refused: by_name(server.refused_connections()),
            },
            errors: by_name(server.errors()),
            shared_domains: shared_domains.map(|(name, uids)| (name.into(), uids)).collect(),
            missed: missed.collect(),
            decisions: totals.verdicts,
            unmatched: UnmatchedStatus { domain: totals.unmatched_domain, rule: totals.unmatched_rule },
            unknown_domains: unknown.filter(|name| !engine.has_domain(name)).map(String::from).collect(),
            panics: totals.panics,
            counts: rules(&totals, &in_force),
            pools: engine.pools(now),
            leases,
            sessions: leases.sessions,
            memory: MemoryStatus {
                bytes: engine.memory_bytes() as u64,
                max_bytes: engine.memory_bytes_max() as u64,
                keys: engine.keys() as u64,
                evictions: totals.evictions,
            },
            state: admin.snapshots.read(),
            fleet: (fleet.is_set || !fleet_rules.is_empty()).then(|| FleetStatusPart {
                summary: FleetSummary::from(&fleet),
                rules: fleet_rules.len() as u64,
            }),
            callers: top_callers(engine, &in_force),
            switches: switches(admin),
            warnings: Vec::new(),
        };
        status.warnings = warnings::warnings(admin, &status, &fleet);
        status.warnings.extend(warnings::outdated(&fleet_rules));
        status
    }

    /// Returns the age of a moment in Unix time, in whole seconds.
    pub(super) fn age(&self, at: f64) -> Duration {
        Duration::try_from_secs_f64((self.started + self.uptime_s as f64 - at).floor()).unwrap_or_default()
    }

    pub(crate) fn errors_in_rules(&self) -> Option<String> {
        (!self.rules.good).then(|| warnings::errors_in_rules(&self.rules.path))
    }

    /// Whether clients made more decisions without the daemon than restarts and slow moments explain.
    pub(crate) fn misses_many(&self) -> bool {
        self.missed_in_all() > self.decisions.sum() / MISSED_PER_DECISIONS
    }

    /// Warns of decisions that clients made alone, unless they are few.
    pub(crate) fn missed_warning(&self) -> Option<String> {
        // A client's breaker opens after other failures.
        let why =
            &self.decided_alone().max_by_key(|missed| (missed.reason != "breaker", missed.count))?.reason;
        self.misses_many().then(|| {
            format!(
                "clients made {} without the daemon, which made {}; the most common reason is `{why}`: see `missed` \
                 of `tidegate status --json`",
                counted(self.missed_in_all(), "decision"),
                count(self.decisions.sum()),
            )
        })
    }

    /// Warns of functions of applications that raised.
    pub(crate) fn raised_warning(&self) -> Option<String> {
        let raised = sum(self.missed.iter().filter(|missed| missed.reason == RAISED));
        (raised > 0).then(|| {
            format!(
                "functions of an application raised {}, and requests were judged without their attributes: see the \
                 application's log",
                counted(raised, "time")
            )
        })
    }

    /// Returns the decisions that clients made without the daemon.
    pub(crate) fn decided_alone(&self) -> impl Iterator<Item = &MissedStatus> {
        self.missed.iter().filter(|missed| missed.reason != RAISED)
    }

    pub(crate) fn missed_in_all(&self) -> u64 {
        sum(self.decided_alone())
    }
}

/// The rules in force, and how the last reading went. Times are in seconds: since the boot of the host, in the status Unix times.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RulesRecord {
    /// Where they are read from.
    pub path: String,
    /// Whether the last reading was a success.
    pub good: bool,
    /// When everything that was written was last put in force.
    pub last_success: Option<f64>,
    /// When something last had to be left out.
    pub last_failure: Option<f64>,
    pub domains: Vec<DomainInForce>,
    /// Domains whose files have errors, in force by their last good rules.
    pub kept: Vec<Box<str>>,
    /// Domains whose files have errors, without limits.
    pub without: Vec<Box<str>>,
    /// The file and line of the first error of the last reading.
    pub first_error: Option<String>,
    /// Whether a domain has no limits because its files have errors and it never had good rules.
    #[serde(skip)]
    pub lacks_limits: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DomainInForce {
    pub name: Box<str>,
    /// The fingerprint of its files, in hexadecimal digits.
    pub sha: String,
    /// The number of its rules, without parts of pools and entries of lists.
    pub rules: u64,
}

impl RulesRecord {
    /// Returns it with Unix times, by the wall clock as it is now.
    pub(crate) fn in_unix_time(self, now: Now) -> RulesRecord {
        let unix = |seconds: f64| seconds + now.utc_offset_nanos as f64 / 1e9;
        RulesRecord {
            last_success: self.last_success.map(unix),
            last_failure: self.last_failure.map(unix),
            ..self
        }
    }

    /// Says, after the rules in force, which of the files are not; empty if all are.
    pub(crate) fn left_out(&self) -> String {
        if self.good {
            return String::new();
        }
        let of = |names: &[Box<str>], what: &str| {
            (!names.is_empty()).then(|| format!("{} {what}", names.join(", ")))
        };
        let parts = [of(&self.kept, "by the last good rules"), of(&self.without, "WITHOUT LIMITS")];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        let parts = if parts.is_empty() { "the files are not in force".to_owned() } else { parts.join(", ") };
        let at = self.first_error.as_ref().map(|at| format!(": {at}")).unwrap_or_default();
        format!(", {parts}{at}")
    }

    pub(crate) fn count(&self) -> u64 {
        self.domains.iter().map(|domain| domain.rules).sum()
    }
}

/// Saturates, as clients may report any number.
fn sum<'m>(missed: impl Iterator<Item = &'m MissedStatus>) -> u64 {
    missed.fold(0, |sum, missed| sum.saturating_add(missed.count))
}

/// Logs the status in one line, without callers: readers of logs must not learn them.
pub fn log_status(admin: &AdminState) {
    let mut status = json!(DaemonStatus::read(admin));
    if let Some(fields) = status.as_object_mut() {
        fields.remove("callers");
    }
    info!(%status, "status");
}

/// Returns the counts of each rule in force, and of all others together.
fn rules(totals: &Totals, in_force: &InForce) -> Vec<RuleStatus> {
    let known: HashMap<(&str, &str), &RuleTotals> =
        totals.rules.iter().map(|counts| ((&*counts.domain, &*counts.rule), counts)).collect();
    let in_force = in_force.each().filter_map(|rule| {
        let totals = known.get(&(rule.domain, rule.name))?;
        let is_limit = matches!(rule.kind, NamedKind::Rule(..));
        Some(RuleStatus { totals: (*totals).clone(), mode: Some(rule.mode.name().to_owned()), is_limit })
    });
    let others = totals.rules.last().filter(|others| others.domain.is_empty());
    in_force
        .chain(others.map(|others| RuleStatus { totals: others.clone(), mode: None, is_limit: false }))
        .collect()
}

/// Returns the rules in force, without lists and shedders.
pub(super) fn limits(in_force: &InForce) -> impl Iterator<Item = NamedItem<'_>> {
    in_force.each().filter(|rule| matches!(rule.kind, NamedKind::Rule(..)))
}

/// Returns the callers with the most requests and with the most refusals, over all rules.
fn top_callers(engine: &Engine, in_force: &InForce) -> TopCallers {
    let mut all = TopCallers::default();
    for rule in limits(in_force).take(RULES_MAX) {
        let mut top = engine.top_callers(rule.domain, rule.name);
        if let NamedKind::Rule(_, Rule { unit: Some(unit), .. }) = rule.kind {
            let all = top.busiest.iter_mut().chain(&mut top.refused).chain(&mut top.would_refuse);
            all.for_each(|caller| caller.unit = Some(unit.clone()));
        }
        all.busiest.extend(top.busiest);
        all.refused.extend(top.refused);
        all.would_refuse.extend(top.would_refuse);
    }
    for callers in [&mut all.busiest, &mut all.refused, &mut all.would_refuse] {
        callers.sort_by_key(|caller| Reverse(caller.count));
        callers.truncate(CALLERS_SHOWN);
    }
    all
}

pub(super) fn by_name(counts: impl IntoIterator<Item = (&'static str, u64)>) -> NamedCounts {
    counts.into_iter().map(|(name, count)| (name.to_owned(), count)).collect()
}

/// Returns a moment in Unix time.
pub(super) fn unix_seconds(now: Now) -> f64 {
    now.to_unix_nanos(now.at) as f64 / 1e9
}

/// As many as fit a screen.
const CALLERS_SHOWN: usize = 20;

/// Rules after these share one sketch.
const RULES_MAX: usize = 512;

/// One missed decision in as many is no warning: clients restart, and hosts have slow moments.
const MISSED_PER_DECISIONS: u64 = 1_000;
