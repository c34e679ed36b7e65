//! The health of the daemon by its status and its history: each check with a sign and a few words. Words in backticks
//! are code, as in the warnings.

use std::time::Duration;

use super::history::Story;
use super::status::DaemonStatus;
use crate::page::{count, counted, percent, rate, span};

/// The state of a check, the worse the larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Sign {
    /// It is not used here.
    Absent,
    Good,
    /// Worth a notice.
    Note,
    /// Needs action.
    Bad,
}

/// The results of all checks, and the warnings of the status, each with a fix.
#[derive(Debug)]
pub(super) struct Health<'s> {
    pub(super) checks: [(&'static str, HealthCheck); 6],
    pub(super) warnings: &'s [String],
}

/// The result of one check.
#[derive(Debug)]
pub(super) struct HealthCheck {
    pub(super) sign: Sign,
    /// In a few words, followed by the names of pools.
    pub(super) short: String,
    pub(super) pools: Vec<String>,
    /// In a few more words.
    pub(super) more: String,
}

impl Sign {
    /// Returns the sign without its colour, and its class in the style sheet, which is also read aloud.
    pub(super) fn mark_and_word(self) -> (&'static str, &'static str) {
        match self {
            Sign::Absent => ("–", "unused"),
            Sign::Good => ("✔", "good"),
            Sign::Note => ("▲", "note"),
            Sign::Bad => ("✖", "bad"),
        }
    }
}

impl Health<'_> {
    pub(super) fn new<'s>(status: &'s DaemonStatus, story: &Story) -> Health<'s> {
        let checks = [
            ("Mode", mode(status)),
            ("Rules", rules(status)),
            ("Shedding", shedding(status, story)),
            ("Fail-open calls", missed(status, story)),
            ("Fleet", fleet(status)),
            ("Daemon", daemon(status)),
        ];
        Health { checks, warnings: &status.warnings }
    }

    /// Returns the worst sign.
    pub(super) fn sign(&self) -> Sign {
        let warned = if self.warnings.is_empty() { Sign::Good } else { Sign::Note };
        self.checks.iter().map(|(_, check)| check.sign).fold(warned, Sign::max)
    }

    pub(super) fn headline(&self) -> String {
        let number = |sign| self.checks.iter().filter(|(_, check)| check.sign == sign).count() as u64;
        let bad = counted(number(Sign::Bad), "thing is wrong", "things are wrong");
        match (number(Sign::Bad), number(Sign::Note)) {
            (0, 0) if self.warnings.is_empty() => "All is well".to_owned(),
            (0, 0) => "Well, but for what stands below".to_owned(),
            (0, notes) => format!("{} to know of", counted(notes, "thing", "things")),
            (_, 0) => bad,
            (_, notes) => format!("{bad}, {notes} to know of"),
        }
    }
}

fn check(sign: Sign, short: impl Into<String>, more: impl Into<String>) -> HealthCheck {
    HealthCheck { sign, short: short.into(), pools: Vec::new(), more: more.into() }
}

fn mode(status: &DaemonStatus) -> HealthCheck {
    let held = &status.switches.held;
    let switches = counted(held.switches.len() as u64, "switch", "switches");
    let blocks = counted(held.blocks.len() as u64, "key blocked", "keys blocked");
    let (sign, more) = match held.switches.is_empty() && held.blocks.is_empty() {
        true => (Sign::Good, "nothing is switched or blocked by hand".to_owned()),
        false => (Sign::Note, format!("{switches}, {blocks} by hand")),
    };
    match &*status.mode {
        _ if status.switches.off => check(Sign::Bad, "everything is allowed", "a file `disable` is there"),
        "enforce" => check(sign, "enforce", more),
        "disabled" => check(Sign::Bad, "disabled: nothing is refused", more),
        other => check(Sign::Note, format!("{other}: nothing is refused"), more),
    }
}

fn rules(status: &DaemonStatus) -> HealthCheck {
    let (rules, domains) = (status.rules.count(), status.rules.domains.len() as u64);
    let ago = |at: Option<f64>| match at {
        Some(at) => format!("{} ago", span(status.age(at))),
        None => "never".to_owned(),
    };
    let (success, failure) = (ago(status.rules.last_success), ago(status.rules.last_failure));
    if !status.rules.good {
        let kept = "What was last good is in force, by domain";
        let more = format!("read {failure}, with errors; last read whole: {success}. {kept}");
        return check(Sign::Bad, "the last reload failed", more);
    }
    let short = format!("{} in {}", counted(rules, "rule", "rules"), counted(domains, "domain", "domains"));
    check(if rules == 0 { Sign::Note } else { Sign::Good }, short, format!("last reload {success}"))
}

/// Checks the pools that rules configure.
fn shedding(status: &DaemonStatus, story: &Story) -> HealthCheck {
    let watched = || status.pools.iter().filter(|pool| pool.watched);
    let braking: Vec<_> = watched().filter(|pool| pool.braking).map(|pool| pool.pool.clone()).collect();
    let shedding: Vec<_> = watched().filter(|pool| pool.severity() > 0.0).collect();
    let [.., shed, _] = story.now;
    let more = format!("{} refused a second", rate(shed));
    if watched().next().is_none() {
        return check(Sign::Absent, "off", "the rules watch over no pool");
    }
    if !braking.is_empty() {
        return HealthCheck { pools: braking, ..check(Sign::Bad, "the brake is on", more) };
    }
    if !shedding.is_empty() {
        let most = shedding.iter().map(|pool| pool.severity()).fold(0.0, f64::max);
        let pools = shedding.iter().map(|pool| pool.pool.clone()).collect();
        return HealthCheck { pools, ..check(Sign::Note, format!("s {most:.2}"), more) };
    }
    match watched().filter_map(|pool| pool.u).reduce(f64::max) {
        _ if shed > 0.0 => check(Sign::Note, more, "old or reserved work; s is below 0"),
        Some(share) => check(Sign::Good, "none", format!("the fullest pool is at {}", percent(share))),
        None => check(Sign::Note, "no slots are known", "workers, brake and reserve do nothing"),
    }
}

/// Checks the decisions that clients made without the daemon.
fn missed(status: &DaemonStatus, story: &Story) -> HealthCheck {
    let [.., recent] = story.sums;
    let most = status.missed.iter().max_by_key(|missed| missed.count);
    let why = most.map(|missed| &*missed.reason).unwrap_or_default();
    match (recent, status.missed_in_all()) {
        (0, 0) => check(Sign::Good, "none", "every client had its answers"),
        (0, ever) => check(Sign::Good, "none in 10 minutes", format!("{} since the start", count(ever))),
        (recent, _) => {
            let more = format!("decided by clients alone in 10 minutes; most often: {why}");
            check(Sign::Bad, count(recent), more)
        }
    }
}

fn fleet(status: &DaemonStatus) -> HealthCheck {
    let Some(part) = &status.fleet else {
        return check(Sign::Absent, "not used", "no budget is shared with other hosts");
    };
    let (fleet, shared) = (&part.summary, counted(part.rules, "rule is shared", "rules are shared"));
    let hosts = counted(fleet.hosts, "host", "hosts");
    match (fleet.redis, fleet.linked, fleet.needed) {
        (false, ..) => check(Sign::Bad, "no Redis is set", format!("{shared} with nobody")),
        (_, true, _) => {
            let trip = format!("{:.2}\u{a0}ms", fleet.round_trip_us as f64 / 1e3);
            check(
                Sign::Good,
                format!("{} of {hosts}", fleet.alive),
                format!("{shared}; Redis answers in {trip}"),
            )
        }
        (_, _, true) => {
            let more = format!("{shared} by `on_redis_down`, with {hosts}");
            check(Sign::Bad, "Redis is not heard", more)
        }
        _ => check(Sign::Absent, "nothing to share", "Redis is set; no rule has `scope: fleet`"),
    }
}

fn daemon(status: &DaemonStatus) -> HealthCheck {
    let (panics, evictions) = (status.panics, status.memory.evictions);
    let refused: u64 = status.connections.refused.values().sum();
    let up = format!("up {}, version {}", span(Duration::from_secs(status.uptime_s)), status.version);
    let (sign, more) = match (panics, refused + evictions) {
        (0, 0) => (Sign::Good, up),
        (0, _) => {
            let (refused, evictions) = (count(refused), count(evictions));
            (Sign::Note, format!("{refused} not let in, {evictions} keys dropped for want of room; {up}"))
        }
        _ => {
            let panics = counted(panics, "panic", "panics");
            (Sign::Bad, format!("{panics} while judging: the log says where"))
        }
    };
    check(sign, counted(status.connections.now, "connection", "connections"), more)
}

#[cfg(test)]
pub(in crate::admin) mod tests {
    use serde_json::{Value, json};

    use super::{Health, Sign};
    use crate::admin::history::Story;
    use crate::admin::status::DaemonStatus;

    const WELL: &str = r#"{
        "version": "1", "started": 1000, "uptime_s": 500, "mode": "enforce", "panics": 0, "missed": [], "warnings": [],
        "rules": {"good": true, "last_success": 1100, "path": "/r", "domains": [{"name": "api", "rules": 1}]},
        "counts": [{"domain": "api", "rule": "a", "mode": "enforce", "pass": 3}], "decisions": {"allow": 1},
        "pools": [{"pool": "web", "watched": true, "slots": 4, "busy": 1, "u": 0.25, "s": -0.2, "braking": false}],
        "switches": {"off": false, "switches": [], "blocks": [], "changes": []}, "fleet": null,
        "connections": {"now": 1, "refused": {"max": 0}}, "memory": {"evictions": 0}
    }"#;

    /// Returns the status of a healthy daemon with some other values, by pointer.
    pub(in crate::admin) fn status_with(changes: &[(&str, Value)]) -> DaemonStatus {
        let mut status: Value = serde_json::from_str(WELL).unwrap();
        for (pointer, value) in changes {
            *status.pointer_mut(pointer).unwrap() = value.clone();
        }
        serde_json::from_value(status).unwrap()
    }

    #[test]
    fn finds_each_fault() {
        let story = Story::default();
        let health = Health::new(&status_with(&[]), &story).headline();
        assert_eq!(health, "All is well");
        let cases = [
            ("/mode", r#""shadow""#, Sign::Note, "shadow: nothing is refused"),
            ("/mode", r#""disabled""#, Sign::Bad, "disabled: nothing is refused"),
            ("/switches/off", "true", Sign::Bad, "everything is allowed"),
            ("/switches/switches", r#"[{"rule": "api/a"}]"#, Sign::Note, "1 switch, 0 keys blocked by hand"),
            ("/switches/blocks", "[{}, {}]", Sign::Note, "0 switches, 2 keys blocked by hand"),
            ("/rules/good", "false", Sign::Bad, "the last reload failed"),
            ("/rules/domains", "[]", Sign::Note, "0 rules in 0 domains"),
            ("/pools/0/s", "0.4", Sign::Note, "s 0.40: web"),
            ("/pools/0/braking", "true", Sign::Bad, "the brake is on: web"),
            ("/pools/0/u", "null", Sign::Note, "no slots are known"),
            ("/pools", "[]", Sign::Good, "the rules watch over no pool"),
            ("/missed", r#"[{"reason": "timeout", "count": 3}]"#, Sign::Good, "3 since the start"),
            ("/fleet", r#"{"redis": false, "rules": 2}"#, Sign::Bad, "no Redis is set"),
            ("/fleet", r#"{"redis": true, "needed": true, "hosts": 3}"#, Sign::Bad, "Redis is not heard"),
            (
                "/fleet",
                r#"{"redis": true, "linked": true, "hosts": 3, "alive": 2}"#,
                Sign::Good,
                "2 of 3 hosts",
            ),
            ("/fleet", r#"{"redis": true, "needed": false}"#, Sign::Good, "nothing to share"),
            ("/panics", "1", Sign::Bad, "1 panic while judging"),
            ("/connections/refused", r#"{"max": 2}"#, Sign::Note, "2 not let in"),
            ("/memory/evictions", "5", Sign::Note, "5 keys dropped"),
            ("/warnings", r#"["look here"]"#, Sign::Note, "Well, but for what stands below"),
        ];
        for (pointer, value, sign, words) in cases {
            let status = status_with(&[(pointer, serde_json::from_str(value).unwrap())]);
            let health = Health::new(&status, &story);
            let text = health
                .checks
                .iter()
                .map(|(_, check)| format!("{}: {}\n{}\n", check.short, check.pools.join(", "), check.more));
            let text = text.collect::<String>() + &health.headline();
            assert!(health.sign() == sign && text.contains(words), "{pointer} {value}: {health:?}");
        }
        let faults =
            [("/mode", json!("disabled")), ("/rules/good", json!(false)), ("/memory/evictions", json!(5))];
        let health = Health::new(&status_with(&faults), &story).headline();
        assert_eq!(health, "2 things are wrong, 1 to know of");
        let shedding = Story { now: [9.0, 0.0, 0.0, 0.0, 2.5, 0.0], ..Story::default() };
        assert_eq!(Health::new(&status_with(&[]), &shedding).sign(), Sign::Note);
        let missed = Story { sums: [9, 0, 0, 0, 0, 2], ..Story::default() };
        assert_eq!(Health::new(&status_with(&[]), &missed).headline(), "1 thing is wrong");
    }
}
