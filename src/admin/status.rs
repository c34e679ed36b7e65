//! Status of the daemon as JSON, for `tidegate status`, `tidegate top`, the page at `/` and scripts. Callers are digests,
//! except attributes that a rule names in `show_keys`.

mod rule_files;

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;
use tracing::info;

use super::AdminState;
use super::fleet::{FleetReading, FleetSummary, fleet_rules};
use super::switches::{SwitchesStatus, everything_everywhere, switches};
use crate::clock::{Now, Timestamp};
use crate::engine::{
    Engine, InForce, LeaseTotals, Mode, PoolView, RuleTotals, TopCallers, Totals, VerdictTotals,
};
use crate::fleet::link::NodeState;
use crate::rules::{NamedItem, NamedKind, Rule};
use crate::state::SnapshotStatus;
use crate::terms::{count, counted};
pub(crate) use rule_files::RuleFilesStatus;

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
        let fleet_rules = fleet_rules(engine, &fleet.view, now.at, &HashMap::new()).len() as u64;
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
            fleet: (fleet.is_set || fleet_rules > 0)
                .then(|| FleetStatusPart { summary: FleetSummary::from(&fleet), rules: fleet_rules }),
            callers: top_callers(engine, &in_force),
            switches: switches(admin),
            warnings: Vec::new(),
        };
        status.warnings = warnings(admin, &status, &fleet);
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
        // A client's breaker opens after other failures.
        let why = &self.missed.iter().max_by_key(|missed| (missed.reason != "breaker", missed.count))?.reason;
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
    warnings.extend(admin.ledger.warnings(&admin.engine, admin.clock.now()));
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
            warn(true, &|| {
                "everything is allowed: a file `disable` is there; `tidegate switch` says which".to_owned()
            });
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
        let other = counted(more, "other unknown domain");
        let more = if more > 0 { format!(", and {other}") } else { String::new() };
        let missing = missing.unwrap_or_else(|| "their domain has rules now".to_owned());
        format!("not limited: {}; {missing}{more}", counted(count, "request"))
    });
    let decided = status.decisions.sum();
    warn(unmatched.rule > decided / 2, &|| {
        format!(
            "no rule matched most requests, {} of {}: `tidegate why DOMAIN KEY=VALUE` says why not",
            count(unmatched.rule),
            count(decided)
        )
    });
    for (file, _) in status.state.bad.iter().filter(|(_, count)| **count > 0) {
        warn(true, &|| {
            format!(
                "`{file}` of the state directory was unusable at the start, so its content is lost: the log has the cause"
            )
        });
    }
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
    match (rules, fleet.is_set, fleet.view.is_linked) {
        (0, ..) | (_, true, true) => None,
        (_, false, _) => Some(format!(
            "this host shares with no other host, and `scope: fleet` is in {}: it needs `redis` with a `url` and \
             `fleet_secret_files` in the settings; the log of the start says what is wrong with them",
            counted(rules, "rule"),
        )),
        (_, true, false) => {
            let why = fleet.view.nodes.iter().filter_map(|node| match &node.state {
                NodeState::Down(error) => Some(error.to_string()),
                NodeState::Starting | NodeState::Up => None,
            });
            let why: Vec<String> = why.collect();
            let why = if why.is_empty() { "no answer yet".to_owned() } else { why.join("; ") };
            Some(format!(
                "Redis does not answer ({why}): `on_redis_down` holds for {}, with {}; see `tidegate fleet`",
                counted(rules, "rule"),
                counted(fleet.view.hosts, "host"),
            ))
        }
    }
}

fn of_pools(pools: &[PoolView]) -> Vec<String> {
    let mut warnings = Vec::new();
    for pool in pools.iter().filter(|pool| pool.configured) {
        let name = &pool.pool;
        if pool.slots.is_none() {
            warnings.push(format!(
                "pool {name}: its slots are unknown, so workers, brake and reserve do nothing: \
                 let its processes say them, or write `slots` in the rules"
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
