//! The warnings of the status: each says what is wrong and how to correct it.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::AdminState;
use super::fleet::{FleetReading, FleetRuleStatus, blocks_warning};
use super::status::{DaemonStatus, RuleStatus, limits};
use super::switches::everything_everywhere;
use crate::adapters::AdapterCounters;
use crate::clock::Micros;
use crate::engine::{Mode, PoolView};
use crate::fleet::link::NodeState;
use crate::state::{SnapshotStatus, StateFile};
use crate::terms::{count, counted};

/// Returns the warnings of a status that has none yet.
pub(super) fn warnings(admin: &AdminState, status: &DaemonStatus, fleet: &FleetReading) -> Vec<String> {
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
        let missing = names.next().map(|name| admin.engine.describe_missing(name));
        let of = if names.len() > 0 { " for several unknown domains" } else { "" };
        let missing = missing.unwrap_or_else(|| "their domain has rules now".to_owned());
        format!("not limited: {}{of}; {missing}", counted(count, "request"))
    });
    let decided = status.decisions.sum();
    warn(unmatched.rule > decided / 2, &|| {
        let first = admin.server.first_unmatched();
        let first = first.as_deref().unwrap_or("`tidegate why DOMAIN KEY=VALUE` says why not");
        format!("no rule matched most requests, {} of {}: {first}", count(unmatched.rule), count(decided))
    });
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
    warnings.extend(of_errors(admin, status));
    warnings
        .extend(admin.adapters.iter().zip(ADAPTERS).flat_map(|(counters, name)| of_adapter(counters, name)));
    let no_metrics = admin.metrics_failure.lock().as_ref().map(|why| format!("no metrics over TCP: {why}"));
    warnings.extend(no_metrics);
    warnings.extend(of_state(&status.state));
    warnings.extend(status.missed_warning());
    warnings.extend(status.raised_warning());
    let in_force = admin.engine.in_force();
    warnings.extend(unmet_rules(status, limits(&in_force).map(|rule| (rule.domain, rule.name))));
    warnings.extend(of_fleet(status, fleet));
    warnings.extend(fleet.secret_warning());
    warnings.extend(fleet.slow_warning());
    warnings.extend(fleet.forged_warning());
    warnings.extend(blocks_warning(&fleet.view.overrides));
    warnings.extend(everything_everywhere(admin));
    warnings.extend(of_pools(&status.pools));
    warnings
}

/// Warns of frames that were answered by an ERROR: those whose requests clients refuse, and those that they allow.
fn of_errors(admin: &AdminState, status: &DaemonStatus) -> impl Iterator<Item = String> {
    let sum = |codes: &[&str]| {
        let found = codes.iter().filter_map(|code| Some((*code, *status.errors.get(*code)?)));
        let found: Vec<(&str, u64)> = found.filter(|(_, frames)| *frames > 0).collect();
        let names: Vec<String> =
            found.iter().map(|(code, frames)| format!("{code} {}", count(*frames))).collect();
        (found.iter().fold(0, |sum: u64, (_, frames)| sum.saturating_add(*frames)), names.join(", "))
    };
    let ((refused, codes), (broken, broken_codes)) = (sum(&REFUSING), sum(&BROKEN));
    let closed: Vec<String> = admin
        .server
        .turned_away()
        .iter()
        .map(|(domain, user)| format!("; `{domain}` is closed to user {user}: see `domains.{domain}.uids`"))
        .collect();
    let refused = (refused > 0).then(|| {
        format!("refused without a check: {} ({codes}){}", counted(refused, "request"), closed.concat())
    });
    let broken = (broken >= BROKEN_MIN).then(|| {
        format!(
            "not understood: {} ({broken_codes}), and clients allow such requests: are client and daemon of one release?",
            counted(broken, "frame"),
        )
    });
    refused.into_iter().chain(broken)
}

/// The codes after which clients refuse the request.
const REFUSING: [&str; 3] = ["forbidden", "not_allowed", "quota"];

/// The codes of frames that a correct client does not send.
const BROKEN: [&str; 4] = ["hello_required", "malformed", "too_large", "version"];

/// Fewer may be of a probe.
const BROKEN_MIN: u64 = 10;

fn of_adapter(counters: &AdapterCounters, name: &str) -> impl Iterator<Item = String> {
    let unserved = counters.unserved.load(Ordering::Relaxed) > 0;
    let unserved = unserved.then(|| {
        format!(
            "{name} is not served: its clients get no answer, and their requests may pass; the log says why"
        )
    });
    let refused = counters.connections_refused.load(Ordering::Relaxed);
    let unjudged = counters.unjudged.load(Ordering::Relaxed);
    let refused = (refused > 0).then(|| {
        let connections = counted(refused, "connection");
        format!("not let in by {name}: {connections}; keep them open, or raise connections.max or .per_user")
    });
    let unjudged = (unjudged > 0).then(|| {
        let requests = counted(unjudged, "request");
        format!("not judged by {name}: {requests}; they pass unless their clients refuse; the log says why")
    });
    unserved.into_iter().chain(refused).chain(unjudged)
}

/// In the order of their counters.
const ADAPTERS: [&str; 3] = ["HTTP", "RESP", "Envoy"];

/// Warns of files of the state directory that the start could not use.
fn of_state(state: &SnapshotStatus) -> impl Iterator<Item = String> + '_ {
    let bad = state.bad.iter().filter(|(_, count)| **count > 0);
    bad.map(|(file, _)| match *file == *StateFile::Overrides.name() {
        true => "the fleet overrides kept on this host are damaged or of another fleet secret: they hold again once Redis \
                 answers, unless the secret of this host is wrong"
            .to_owned(),
        false => format!(
            "`{file}` of the state directory was unusable at the start, so its content does not hold: the log has the cause"
        ),
    })
}

/// Warns of rules with errors in the files of this path.
pub(super) fn errors_in_rules(path: &str) -> String {
    format!(
        "the rules have errors, and some of the files are not in force: `tidegate check {path}` shows why; \
         when they are mended: `tidegate reload`"
    )
}

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
    let number = status.fleet.as_ref().map_or(0, |fleet| fleet.rules);
    let rules = counted(number, "rule");
    if let Some(why) = fleet.failure.as_ref().filter(|_| fleet.view.is_needed) {
        return Some(format!(
            "this host shares with no other host, and limits {rules} with `scope: fleet` alone: {why}; correct that, \
             then systemctl restart tidegate"
        ));
    }
    match (number, fleet.is_set, fleet.view.is_linked) {
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
pub(super) fn outdated(rules: &[FleetRuleStatus]) -> impl Iterator<Item = String> + '_ {
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
