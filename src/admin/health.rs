//! The health of the daemon by its status and its history: each check with a sign and a few words. Words in backticks
//! are code, as in the warnings.

use std::time::Duration;

use super::history::RateHistory;
use super::status::DaemonStatus;
use crate::page::{count, counted, percent, rate, span};

/// The state of a check, the worse the larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum CheckState {
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

#[derive(Debug)]
pub(super) struct HealthCheck {
    pub(super) sign: CheckState,
    /// In a few words, followed by the names of pools.
    pub(super) short: String,
    pub(super) pools: Vec<String>,
    /// In a few more words.
    pub(super) more: String,
}

impl CheckState {
    /// Returns the sign without its colour, and its class in the style sheet, which is also read aloud.
    pub(super) fn mark_and_word(self) -> (&'static str, &'static str) {
        match self {
            CheckState::Absent => ("–", "unused"),
            CheckState::Good => ("✔", "good"),
            CheckState::Note => ("▲", "note"),
            CheckState::Bad => ("✖", "bad"),
        }
    }
}

impl Health<'_> {
    pub(super) fn new<'s>(status: &'s DaemonStatus, story: &RateHistory) -> Health<'s> {
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
    pub(super) fn sign(&self) -> CheckState {
        let warned = if self.warnings.is_empty() { CheckState::Good } else { CheckState::Note };
        self.checks.iter().map(|(_, check)| check.sign).fold(warned, CheckState::max)
    }

    pub(super) fn headline(&self) -> String {
        let number = |sign| self.checks.iter().filter(|(_, check)| check.sign == sign).count() as u64;
        let bad = counted(number(CheckState::Bad), "thing is wrong", "things are wrong");
        match (number(CheckState::Bad), number(CheckState::Note)) {
            (0, 0) if self.warnings.is_empty() => "All is well".to_owned(),
            (0, 0) => "Well, except as listed below".to_owned(),
            (0, notes) => format!("{} to know of", counted(notes, "thing", "things")),
            (_, 0) => bad,
            (_, notes) => format!("{bad}, {notes} to know of"),
        }
    }
}

fn check(sign: CheckState, short: impl Into<String>, more: impl Into<String>) -> HealthCheck {
    HealthCheck { sign, short: short.into(), pools: Vec::new(), more: more.into() }
}

fn mode(status: &DaemonStatus) -> HealthCheck {
    let held = &status.switches.held;
    let switches = counted(held.switches.len() as u64, "switch", "switches");
    let blocks = counted(held.blocks.len() as u64, "key blocked", "keys blocked");
    let (sign, more) = match held.switches.is_empty() && held.blocks.is_empty() {
        true => (CheckState::Good, "nothing is switched or blocked by hand".to_owned()),
        false => (CheckState::Note, format!("{switches}, {blocks} by hand")),
    };
    match &*status.mode {
        _ if status.switches.off => check(CheckState::Bad, "everything is allowed", "by a file `disable`"),
        "enforce" => check(sign, "enforce", more),
        "disabled" => check(CheckState::Bad, "disabled: nothing is refused", more),
        other => check(CheckState::Note, format!("{other}: nothing is refused"), more),
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
        return check(CheckState::Bad, "the last reload failed", more);
    }
    let short = format!("{} in {}", counted(rules, "rule", "rules"), counted(domains, "domain", "domains"));
    check(
        if rules == 0 { CheckState::Note } else { CheckState::Good },
        short,
        format!("last reload {success}"),
    )
}

/// Checks the pools that rules configure.
fn shedding(status: &DaemonStatus, story: &RateHistory) -> HealthCheck {
    let watched = || status.pools.iter().filter(|pool| pool.configured);
    let braking: Vec<_> = watched().filter(|pool| pool.braking).map(|pool| pool.pool.to_string()).collect();
    let shedding: Vec<_> = watched().filter(|pool| pool.severity > 0.0).collect();
    let [.., shed, _] = story.now;
    let more = format!("{} refused a second", rate(shed));
    if watched().next().is_none() {
        return check(CheckState::Absent, "off", "the rules watch over no pool");
    }
    if !braking.is_empty() {
        return HealthCheck { pools: braking, ..check(CheckState::Bad, "the brake is on", more) };
    }
    if !shedding.is_empty() {
        let most = shedding.iter().map(|pool| pool.severity).fold(0.0, f64::max);
        let pools = shedding.iter().map(|pool| pool.pool.to_string()).collect();
        return HealthCheck { pools, ..check(CheckState::Note, format!("s {most:.2}"), more) };
    }
    match watched().filter_map(|pool| pool.utilization).reduce(f64::max) {
        _ if shed > 0.0 => check(CheckState::Note, more, "old or reserved work; s is below 0"),
        Some(share) => check(CheckState::Good, "none", format!("the fullest pool is at {}", percent(share))),
        None => check(CheckState::Note, "no slots are known", "workers, brake and reserve do nothing"),
    }
}

/// Checks the decisions that clients made without the daemon.
fn missed(status: &DaemonStatus, story: &RateHistory) -> HealthCheck {
    let [.., recent] = story.sums;
    let most = status.decided_alone().max_by_key(|missed| missed.count);
    let why = most.map(|missed| &*missed.reason).unwrap_or_default();
    match (recent, status.missed_in_all()) {
        (0, 0) => check(CheckState::Good, "none", "every client had its answers"),
        (0, ever) => {
            check(CheckState::Good, "none in 10 minutes", format!("{} since the start", count(ever)))
        }
        (recent, _) => {
            let share = recent as f64 / story.sums.iter().map(|calls| *calls as f64).sum::<f64>();
            let is_bad = recent >= MISSED_BAD && share >= MISSED_SHARE_BAD;
            let more = format!("of the calls of 10 minutes were decided by clients alone; most often: {why}");
            let sign = if is_bad { CheckState::Bad } else { CheckState::Note };
            check(sign, format!("{} ({})", count(recent), percent_small(share)), more)
        }
    }
}

/// From this number on, and from this share of all calls, calls that clients decided alone need action: a client that
/// restarts or a slow moment misses some.
const MISSED_BAD: u64 = 10;
const MISSED_SHARE_BAD: f64 = 0.01;

/// Formats a share that may be far below a percent.
fn percent_small(share: f64) -> String {
    match share * 100.0 {
        below if below < 0.01 => "less than 0.01\u{a0}%".to_owned(),
        small if small < 1.0 => format!("{small:.2}\u{a0}%"),
        _ => percent(share),
    }
}

fn fleet(status: &DaemonStatus) -> HealthCheck {
    let Some(part) = &status.fleet else {
        return check(CheckState::Absent, "not used", "no budget is shared with other hosts");
    };
    let (fleet, shared) = (&part.summary, counted(part.rules, "rule is shared", "rules are shared"));
    let hosts = counted(fleet.hosts, "host", "hosts");
    let live = counted(fleet.counted, "host", "hosts");
    match (fleet.redis, fleet.linked, fleet.needed) {
        (false, ..) => check(CheckState::Bad, "no Redis is set", format!("{shared} with no other host")),
        (_, true, _) => {
            let trip = format!("{:.2}\u{a0}ms", fleet.round_trip_us as f64 / 1e3);
            check(
                CheckState::Good,
                format!("{} of {live}", fleet.alive),
                format!("{shared}; Redis answers in {trip}"),
            )
        }
        (_, _, true) => {
            let more = format!("{shared} by `on_redis_down`, with {hosts}");
            check(CheckState::Bad, "Redis does not answer", more)
        }
        _ => check(CheckState::Absent, "nothing to share", "Redis is set; no rule has `scope: fleet`"),
    }
}

fn daemon(status: &DaemonStatus) -> HealthCheck {
    let (panics, evictions) = (status.panics, status.memory.evictions);
    let refused: u64 = status.connections.refused.values().sum();
    let up = format!("up {}, version {}", span(Duration::from_secs(status.uptime_s)), status.version);
    let (sign, more) = match (panics, refused + evictions) {
        (0, 0) => (CheckState::Good, up),
        (0, _) => {
            let (refused, keys) = (count(refused), counted(evictions, "key", "keys"));
            (CheckState::Note, format!("{refused} not let in, {keys} dropped for want of room; {up}"))
        }
        _ => {
            let panics = counted(panics, "panic", "panics");
            (CheckState::Bad, format!("{panics} during decisions: the log says where"))
        }
    };
    check(sign, counted(status.connections.now, "connection", "connections"), more)
}

#[cfg(test)]
pub(in crate::admin) mod tests {
    use serde_json::{Value, json};

    use super::{CheckState, Health};
    use crate::admin::history::RateHistory;
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
        let story = RateHistory::default();
        let health = Health::new(&status_with(&[]), &story).headline();
        assert_eq!(health, "All is well");
        let cases = [
            ("/mode", r#""shadow""#, CheckState::Note, "shadow: nothing is refused"),
            ("/mode", r#""disabled""#, CheckState::Bad, "disabled: nothing is refused"),
            ("/switches/off", "true", CheckState::Bad, "everything is allowed"),
            (
                "/switches/switches",
                r#"[{"rule": "api/a"}]"#,
                CheckState::Note,
                "1 switch, 0 keys blocked by hand",
            ),
            ("/switches/blocks", "[{}, {}]", CheckState::Note, "0 switches, 2 keys blocked by hand"),
            ("/rules/good", "false", CheckState::Bad, "the last reload failed"),
            ("/rules/domains", "[]", CheckState::Note, "0 rules in 0 domains"),
            ("/pools/0/s", "0.4", CheckState::Note, "s 0.40: web"),
            ("/pools/0/braking", "true", CheckState::Bad, "the brake is on: web"),
            ("/pools/0/u", "null", CheckState::Note, "no slots are known"),
            ("/pools", "[]", CheckState::Good, "the rules watch over no pool"),
            ("/missed", r#"[{"reason": "timeout", "count": 3}]"#, CheckState::Good, "3 since the start"),
            ("/missed", r#"[{"reason": "callback"}]"#, CheckState::Good, "every client had its answers"),
            ("/fleet", r#"{"redis": false, "rules": 2}"#, CheckState::Bad, "no Redis is set"),
            (
                "/fleet",
                r#"{"redis": true, "needed": true, "hosts": 3}"#,
                CheckState::Bad,
                "Redis does not answer",
            ),
            (
                "/fleet",
                r#"{"redis": true, "linked": true, "counted": 3, "alive": 2}"#,
                CheckState::Good,
                "2 of 3 hosts",
            ),
            ("/fleet", r#"{"redis": true, "needed": false}"#, CheckState::Good, "nothing to share"),
            ("/panics", "1", CheckState::Bad, "1 panic during decisions"),
            ("/connections/refused", r#"{"max": 2}"#, CheckState::Note, "2 not let in"),
            ("/memory/evictions", "5", CheckState::Note, "5 keys dropped"),
            ("/warnings", r#"["look here"]"#, CheckState::Note, "Well, except as listed below"),
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
        let shedding = RateHistory { now: [9.0, 0.0, 0.0, 0.0, 2.5, 0.0], ..RateHistory::default() };
        assert_eq!(Health::new(&status_with(&[]), &shedding).sign(), CheckState::Note);
        let missed = [
            ([9, 0, 0, 0, 0, 2], "1 thing to know of", "2 (18\u{a0}%)"),
            ([100, 0, 0, 0, 0, 10], "1 thing is wrong", "10 (9\u{a0}%)"),
            ([9_990, 0, 0, 0, 0, 10], "1 thing to know of", "10 (0.10\u{a0}%)"),
            ([1_000_000, 0, 0, 0, 0, 1], "1 thing to know of", "1 (less than 0.01\u{a0}%)"),
        ];
        for (sums, headline, short) in missed {
            let (status, story) = (status_with(&[]), RateHistory { sums, ..RateHistory::default() });
            let health = Health::new(&status, &story);
            assert_eq!((&*health.headline(), &*health.checks[3].1.short), (headline, short));
        }
    }
}
