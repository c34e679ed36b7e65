//! Status of the daemon as JSON, for `tidegate status`, `tidegate top`, the page at `/` and scripts. Callers are digests,
//! except attributes that a rule names in `show_keys`.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;
use tracing::info;

use super::fleet::{FleetReading, FleetRuleStatus, FleetSummary, fleet_rules};
use super::switches::{SwitchesStatus, everything_everywhere, switches};
use super::{AdminState, RulesRecord};
use crate::clock::{Micros, Now, Timestamp};
use crate::engine::{
    Engine, InForce, LeaseTotals, Mode, PoolView, RuleTotals, TopCallers, Totals, VerdictTotals,
};
use crate::fleet::link::NodeState;
use crate::rules::{NamedItem, NamedKind};
use crate::state::{SnapshotStatus, StateFile};
use crate::terms::{count, counted};

/// Counts by name.
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
    pub(crate) rules: RuleFilesStatus,
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

/// The rules in force and the results of reloads, in Unix time.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct RuleFilesStatus {
    pub(crate) path: String,
    pub(crate) good: bool,
    pub(crate) last_success: Option<f64>,
    pub(crate) last_failure: Option<f64>,
    pub(crate) domains: Vec<DomainStatus>,
}

/// A domain and the number of its rules.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct DomainStatus {
    pub(crate) name: String,
    pub(crate) sha: String,
    pub(crate) rules: u64,
}

/// Connections to the socket.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ConnectionsStatus {
    pub(crate) now: u64,
    pub(crate) refused: NamedCounts,
}

/// Decisions that clients of one language made without the daemon, for one reason.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct MissedStatus {
    pub(crate) client: String,
    pub(crate) reason: String,
    pub(crate) count: u64,
}

/// Requests that no domain or no rule matched.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct UnmatchedStatus {
    pub(crate) domain: u64,
    pub(crate) rule: u64,
}

/// A rule and its counts.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct RuleStatus {
    #[serde(flatten)]
    pub(crate) totals: RuleTotals,
    pub(crate) mode: Option<String>,
}

/// The tables.
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
    /// Reads the status from the daemon.
    pub(super) fn read(admin: &AdminState) -> DaemonStatus {
        let (engine, now, began) = (&admin.engine, admin.clock.now(), admin.clock.started_at());
        let (server, fleet) = (&admin.server, FleetReading::take(admin, now.at));
        let (totals, in_force, leases) = (engine.totals(), engine.in_force(), engine.leases());
        let missed = server.missed_decisions().filter(|(.., count)| *count > 0);
        let shared_domains = server.shared_domains().into_iter();
        let fleet_rules = fleet_rules(engine, &fleet.view, now.at, &HashMap::new());
        let mut status = DaemonStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started: unix_seconds(began.at, began),
            uptime_s: now.at.since(began.at).as_secs(),
            mode: engine.mode().name().to_owned(),
            rules: RuleFilesStatus::new(&admin.control.rules(), &in_force, now),
            connections: ConnectionsStatus {
                now: server.connections(),
                refused: by_name(server.refused_connections()),
            },
            errors: by_name(server.errors()),
            shared_domains: shared_domains.map(|(name, uids)| (name.into(), uids)).collect(),
            missed: missed
                .map(|(client, reason, count)| MissedStatus {
                    client: client.to_owned(),
                    reason: reason.to_owned(),
                    count,
                })
                .collect(),
            decisions: totals.verdicts,
            unmatched: UnmatchedStatus { domain: totals.unmatched_domain, rule: totals.unmatched_rule },
            unknown_domains: {
                let unknown = server.unknown_domains().into_iter();
                unknown.filter(|name| !engine.has_domain(name)).map(String::from).collect()
            },
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
        status.warnings = warnings(admin, &status, &fleet);
        status.warnings.extend(outdated(&fleet_rules));
        status
    }
}

impl DaemonStatus {
    /// Returns the age of a moment in Unix time, in whole seconds.
    pub(super) fn age(&self, at: f64) -> Duration {
        Duration::try_from_secs_f64((self.started + self.uptime_s as f64 - at).floor()).unwrap_or_default()
    }

    /// Whether clients made more decisions without the daemon than restarts and slow moments explain.
    pub(crate) fn misses_many(&self) -> bool {
        self.missed_in_all() > self.decisions.sum() / MISSED_PER_DECISIONS
    }

    /// Warns of decisions that clients made alone, unless they are few.
    pub(crate) fn missed_warning(&self) -> Option<String> {
        let why = &self.missed.iter().max_by_key(|missed| missed.count)?.reason;
        self.misses_many().then(|| {
            format!(
                "clients made {} without the daemon, which made {}; the most common reason is `{why}`: see `missed` \
                 of `tidegate status --json`",
                counted(self.missed_in_all(), "decision"),
                count(self.decisions.sum()),
            )
        })
    }

    /// Returns the decisions that clients made without the daemon; saturates, as clients may report any number.
    pub(crate) fn missed_in_all(&self) -> u64 {
        self.missed.iter().fold(0, |sum, missed| sum.saturating_add(missed.count))
    }
}

/// Logs the status in one line, without callers: readers of logs must not learn them.
pub fn log_status(admin: &AdminState) {
    let mut status = json!(DaemonStatus::read(admin));
    if let Some(fields) = status.as_object_mut() {
        fields.remove("callers");
    }
    info!(%status, "status");
}

impl RuleFilesStatus {
    fn new(record: &RulesRecord, in_force: &InForce, now: Now) -> RuleFilesStatus {
        let when = |at: Option<Timestamp>| at.map(|at| unix_seconds(at, now));
        let mut by_domain: HashMap<&str, u64> = HashMap::new();
        // Parts of pools and entries of lists are no rules, as `check` and the start line count them.
        limits(in_force).for_each(|rule| *by_domain.entry(rule.domain).or_default() += 1);
        let domains = record.domains.iter().map(|domain| DomainStatus {
            name: domain.name.to_string(),
            sha: domain.sha.clone(),
            rules: by_domain.get(&*domain.name).copied().unwrap_or_default(),
        });
        RuleFilesStatus {
            path: record.path.clone(),
            good: record.is_good,
            last_success: when(record.last_success),
            last_failure: when(record.last_failure),
            domains: domains.collect(),
        }
    }

    /// Returns the number of rules in force.
    pub(crate) fn count(&self) -> u64 {
        self.domains.iter().map(|domain| domain.rules).sum()
    }
}

/// Returns the counts of each rule in force, and of all others together.
fn rules(totals: &Totals, in_force: &InForce) -> Vec<RuleStatus> {
    let known: HashMap<(&str, &str), &RuleTotals> =
        totals.rules.iter().map(|counts| ((&*counts.domain, &*counts.rule), counts)).collect();
    let in_force = in_force.each().filter_map(|rule| {
        let totals = known.get(&(rule.domain, rule.name))?;
        Some(RuleStatus { totals: (*totals).clone(), mode: Some(rule.mode.name().to_owned()) })
    });
    let others = totals.rules.last().filter(|others| others.domain.is_empty());
    in_force.chain(others.map(|others| RuleStatus { totals: others.clone(), mode: None })).collect()
}

/// Returns the rules in force, without lists and shedders.
fn limits(in_force: &InForce) -> impl Iterator<Item = NamedItem<'_>> {
    in_force.each().filter(|rule| matches!(rule.kind, NamedKind::Rule(..)))
}

/// Returns the callers with the most requests and with the most refusals, over all rules.
fn top_callers(engine: &Engine, in_force: &InForce) -> TopCallers {
    let mut all = TopCallers::default();
    for rule in limits(in_force).take(RULES_MAX) {
        let top = engine.top_callers(rule.domain, rule.name);
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

/// A moment in Unix time, by the wall clock as it was at `now`.
pub(super) fn unix_seconds(at: Timestamp, now: Now) -> f64 {
    (i128::from(at.as_nanos()) + i128::from(now.utc_offset_nanos)) as f64 / 1e9
}

/// As many as fit a screen.
const CALLERS_SHOWN: usize = 20;

/// Rules after these share one sketch.
const RULES_MAX: usize = 512;

/// Returns the warnings of a status that has none yet.
fn warnings(admin: &AdminState, status: &DaemonStatus, fleet: &FleetReading) -> Vec<String> {
    let mut warnings = admin.control.unready();
    warnings.extend(admin.ledger.warnings(admin.clock.now()));
    let mut warn = |holds: bool, text: &dyn Fn() -> String| {
        if holds {
            warnings.push(text());
        }
    };
    let DaemonStatus { rules, unmatched, memory, panics, .. } = status;
    warn(!rules.good, &|| errors_in_rules(&rules.path));
    warn(admin.engine.in_force().domains().len() == 0, &|| {
        format!("no rule is in force, everything is allowed: write rules in {}", rules.path)
    });
    match admin.engine.mode() {
        Mode::Enforce => {}
        _ if admin.engine.is_off() => {
            warn(true, &|| status.switches.off_line().unwrap_or_default());
        }
        mode => warn(true, &|| {
            format!(
                "nothing is refused: everything is in {mode}, by `mode` of the settings or `tidegate switch --all`"
            )
        }),
    }
    warn(unmatched.domain > 0, &|| {
        let count = unmatched.domain;
        let mut names = status.unknown_domains.iter();
        let missing = names.next().map(|name| admin.engine.in_force().describe_missing(name));
        let more = names.len();
        let more = if more > 0 { format!(", and {more} more such domains") } else { String::new() };
        let missing = missing.unwrap_or_else(|| "their domain has rules now".to_owned());
        format!("not limited: {}; {missing}{more}", counted(count, "request"))
    });
    for (file, _) in status.state.bad.iter().filter(|(_, count)| **count > 0) {
        warn(true, &|| {
            match *file == *StateFile::Overrides.name() {
            true => "the fleet overrides kept on this host are of another fleet secret: they hold again once Redis answers, \
                     unless the secret of this host is wrong"
                .to_owned(),
            false => format!(
                "`{file}` of the state directory was unusable at the start, so its content is lost: the log has the cause"
            ),
        }
        });
    }
    warn(status.state.switches_unkept.is_some(), &|| {
        let why = status.state.switches_unkept.as_deref().unwrap_or_default();
        format!("switches and blocks are not on disk: {why}")
    });
    warn(memory.evictions > 0, &|| {
        format!("dropped while they mattered: {}; raise memory.max", counted(memory.evictions, "key"))
    });
    warn(*panics > 0, &|| {
        format!("{} panicked: the log says where; please report it", counted(*panics, "decision"))
    });
    let refused: u64 = status.connections.refused.values().sum();
    warn(refused > 0, &|| {
        format!("not let in: {}; raise connections.max or .per_user", counted(refused, "connection"))
    });
    warnings.extend(status.missed_warning());
    let in_force = admin.engine.in_force();
    warnings.extend(unmet_rules(status, limits(&in_force).map(|rule| (rule.domain, rule.name))));
    warnings.extend(of_fleet(status, fleet));
    warnings.extend(fleet.secret_warning());
    warnings.extend(fleet.forged_warning());
    warnings.extend(everything_everywhere(admin));
    warnings.extend(of_pools(&status.pools));
    warnings
}

/// Warns of rules with errors in the files of this path.
pub(super) fn errors_in_rules(path: &str) -> String {
    format!(
        "the rules have errors, and some of the files are not in force: `tidegate check {path}` shows why; \
         when they are mended: `tidegate reload`"
    )
}

/// One missed decision in as many is no warning: clients restart, and hosts have slow moments.
const MISSED_PER_DECISIONS: u64 = 1_000;

/// Names the limits that met no request, while another one of their domain met many.
fn unmet_rules<'r>(
    status: &DaemonStatus,
    limits: impl Iterator<Item = (&'r str, &'r str)>,
) -> Option<String> {
    let is_new = |since: Duration| since < UNMET_FOR;
    if is_new(Duration::from_secs(status.uptime_s)) || is_new(status.age(status.rules.last_success?)) {
        return None;
    }
    let mut met: HashMap<(&str, &str), u64> = HashMap::new();
    let mut most: HashMap<&str, u64> = HashMap::new();
    for RuleStatus { totals, .. } in &status.counts {
        let requests = totals.outcomes().iter().sum();
        met.insert((&totals.domain, &totals.rule), requests);
        let most = most.entry(&totals.domain).or_default();
        *most = requests.max(*most);
    }
    let is_unmet = |(domain, rule): &(&str, &str)| {
        met.get(&(*domain, *rule)) == Some(&0) && most.get(domain).is_some_and(|most| *most >= UNMET_REQUESTS)
    };
    let unmet: Vec<String> =
        limits.filter(is_unmet).map(|(domain, rule)| format!("`{domain}/{rule}`")).collect();
    let (shown, more) = unmet.split_at(unmet.len().min(NAMES_SHOWN));
    let more = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
    (!shown.is_empty()).then(|| {
        format!(
            "no request has met {}{more}, while thousands met other rules of the domain: `tidegate why` shows which \
             rules a request meets",
            shown.join(", ")
        )
    })
}

/// A rule without a request for this time, while this many met another one, may be a mistake.
const UNMET_FOR: Duration = Duration::from_hours(1);
const UNMET_REQUESTS: u64 = 10_000;

const NAMES_SHOWN: usize = 3;

fn of_fleet(status: &DaemonStatus, fleet: &FleetReading) -> Option<String> {
    let rules = status.fleet.as_ref().map_or(0, |fleet| fleet.rules);
    let rules = counted(rules, "rule");
    if let Some(why) = fleet.failure.as_ref().filter(|_| fleet.view.is_needed) {
        return Some(format!(
            "this host shares with no other host, and limits {rules} with `scope: fleet` alone: {why}; correct that, \
             then systemctl restart tidegate"
        ));
    }
    match (status.fleet.as_ref().map_or(0, |fleet| fleet.rules), fleet.is_set, fleet.view.is_linked) {
        (0, ..) | (_, true, true) => None,
        (_, false, _) => Some(format!(
            "this host shares with no other host, and `scope: fleet` is in {rules}: it needs `redis` with a `url` and \
             `fleet_secret_files` in the settings, and a restart"
        )),
        (_, true, false) => {
            let nodes = &fleet.view.nodes;
            let why: Vec<String> =
                nodes.iter().filter_map(|node| node.state.fault()).map(ToString::to_string).collect();
            let is_refusing = nodes.iter().any(|node| matches!(node.state, NodeState::Refusing(_)));
            let what = if is_refusing { "Redis refuses commands" } else { "Redis does not answer" };
            let why = match (why.is_empty(), fleet.staleness) {
                (false, _) => why.join("; "),
                (true, Some(age)) => format!("the last reply came {} ago", Micros::from(age)),
                (true, None) => "no answer yet".to_owned(),
            };
            Some(format!(
                "{what} ({why}): `on_redis_down` holds for {rules}, with {}; see `tidegate fleet`",
                counted(fleet.view.hosts, "host"),
            ))
        }
    }
}

/// Warns of rules whose numbers on this host do not hold, since another host has newer ones.
fn outdated(rules: &[FleetRuleStatus]) -> impl Iterator<Item = String> + '_ {
    rules.iter().filter(|rule| rule.newer_elsewhere).map(|rule| {
        format!(
            "another host has newer numbers for {}/{} than {} here, and they hold on all hosts: compare \
             `tidegate_rules_info` or the files, and reload",
            rule.domain, rule.rule, rule.rate
        )
    })
}

fn of_pools(pools: &[PoolView]) -> Vec<String> {
    let mut warnings = Vec::new();
    for pool in pools.iter().filter(|pool| pool.configured) {
        let name = &pool.pool;
        if pool.slots.is_none() {
            let what = match pool.severity > 0.0 {
                true => {
                    "workers refuse by the last known load, less and less, and brake and reserve do nothing"
                }
                false => "workers, brake and reserve do nothing",
            };
            warnings.push(format!(
                "pool {name}: its slots are unknown, so {what}: let its processes say them, or write `slots` in the rules"
            ));
        }
        if pool.braking {
            warnings.push(format!("pool {name} is full: the brake is on; see `tidegate top`"));
        } else if pool.severity > 0.0 && pool.slots.is_some() {
            warnings.push(format!(
                "pool {name} is full: workers shed requests (s {:.2}); see `tidegate top`",
                pool.severity
            ));
        }
        for signal in pool.signals.iter().filter(|signal| !signal.readable) {
            warnings
                .push(format!("pool {name}: the signal {} cannot be read: the log says why", signal.name));
        }
    }
    warnings
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::unmet_rules;
    use crate::admin::health::tests::status_with;

    #[test]
    fn warns_of_rule_without_request_only_beside_busy_rule_after_an_hour() {
        let counts = |busiest: u64| {
            json!([
                {"domain": "api", "rule": "a", "mode": "enforce", "pass": busiest},
                {"domain": "api", "rule": "b", "mode": "enforce"},
                {"domain": "api", "rule": "deny", "mode": "enforce"},
                {"domain": "other", "rule": "c", "mode": "enforce"},
            ])
        };
        let limits = [("api", "a"), ("api", "b"), ("other", "c")];
        let warning = |busiest: u64, uptime_s: u64, reload: u64| {
            let changes = [
                ("/counts", counts(busiest)),
                ("/uptime_s", json!(uptime_s)),
                ("/rules/last_success", json!(reload)),
            ];
            unmet_rules(&status_with(&changes), limits.into_iter())
        };
        let found = warning(10_000, 3_600, 1_000).unwrap();
        assert!(found.starts_with("no request has met `api/b`, while"), "{found}");
        for quiet in
            [warning(9_999, 3_600, 1_000), warning(10_000, 3_599, 1_000), warning(10_000, 3_600, 1_001)]
        {
            assert_eq!(quiet, None);
        }
    }
}
