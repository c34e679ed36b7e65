//! Health overview, first on the page: each check with a sign, a word and a colour.

use std::time::Duration;

use maud::{Markup, Render, html};

use crate::admin::history::Story;
use crate::admin::status::{DaemonStatus, PoolStatus};
use crate::page::{count, counted, name, percent, rate, span};

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

/// The results of all checks.
#[derive(Debug)]
pub(super) struct Health {
    checks: [(&'static str, HealthCheck); 6],
    /// Warnings of the status, each with a fix.
    warnings: Vec<String>,
}

/// The result of one check, in a few words and in a few more.
#[derive(Debug)]
struct HealthCheck {
    sign: Sign,
    short: Markup,
    more: Markup,
}

impl Sign {
    /// Returns the sign without its colour.
    pub(super) fn mark(self) -> &'static str {
        match self {
            Sign::Absent => "–",
            Sign::Good => "✔",
            Sign::Note => "▲",
            Sign::Bad => "✖",
        }
    }

    /// Returns the class in the style sheet, which is also read aloud.
    fn word(self) -> &'static str {
        match self {
            Sign::Absent => "unused",
            Sign::Good => "good",
            Sign::Note => "note",
            Sign::Bad => "bad",
        }
    }
}

impl Health {
    pub(super) fn new(status: &DaemonStatus, story: &Story) -> Health {
        let checks = [
            ("Mode", mode(status)),
            ("Rules", rules(status)),
            ("Shedding", shedding(status, story)),
            ("Fail-open calls", missed(status, story)),
            ("Fleet", fleet(status)),
            ("Daemon", daemon(status)),
        ];
        Health { checks, warnings: status.warnings.clone() }
    }

    /// Returns the worst sign.
    pub(super) fn sign(&self) -> Sign {
        let worst = self.checks.iter().map(|(_, check)| check.sign).max().unwrap_or(Sign::Good);
        worst.max(if self.warnings.is_empty() { Sign::Good } else { Sign::Note })
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

impl Render for Health {
    fn render(&self) -> Markup {
        let left = self.warnings.len().saturating_sub(WARNINGS_SHOWN);
        let mark = |sign: Sign| html! { span.mark aria-hidden="true" { (sign.mark()) } " " };
        html! {
            section.health aria-labelledby="health" {
                h2 id="health" class=(self.sign().word()) { (mark(self.sign())) (self.headline()) }
                ul.checks {
                    @for (name, HealthCheck { sign, short, more }) in &self.checks {
                        li class=(sign.word()) {
                            h3 { (mark(*sign)) (name) span.unseen { ": " (sign.word()) } }
                            p.says { (short) }
                            p.more { (more) }
                        }
                    }
                }
                @if !self.warnings.is_empty() {
                    ul.warnings {
                        @for warning in self.warnings.iter().take(WARNINGS_SHOWN) { li { (warning) } }
                        @if left > 0 { li { "and " (left) " more: " code { "tidegate status" } } }
                    }
                }
            }
        }
    }
}

fn check(sign: Sign, short: impl Render, more: impl Render) -> HealthCheck {
    HealthCheck { sign, short: short.render(), more: more.render() }
}

fn mode(status: &DaemonStatus) -> HealthCheck {
    let (switches, blocks) = (status.switches.held.switches.len(), status.switches.held.blocks.len());
    let more = match switches + blocks {
        0 => "nothing is switched or blocked by hand".to_owned(),
        _ => format!(
            "{}, {} by hand",
            counted(switches as u64, "switch", "switches"),
            counted(blocks as u64, "key blocked", "keys blocked")
        ),
    };
    match &*status.mode {
        _ if status.switches.off => {
            check(Sign::Bad, "everything is allowed", html! { "a file " code { "disable" } " is there" })
        }
        "enforce" => check(if switches + blocks > 0 { Sign::Note } else { Sign::Good }, "enforce", more),
        "disabled" => check(Sign::Bad, "disabled: nothing is refused", more),
        other => check(Sign::Note, format!("{other}: nothing is refused"), more),
    }
}

fn rules(status: &DaemonStatus) -> HealthCheck {
    let (rules, domains) = (status.rules.count(), status.rules.domains.len() as u64);
    let ago = |at: Option<f64>| {
        let seconds = at.map(|at| status.started + status.uptime_s as f64 - at);
        let age = seconds.map(|seconds| Duration::try_from_secs_f64(seconds).unwrap_or_default().as_secs());
        age.map_or_else(|| "never".to_owned(), |age| format!("{} ago", span(Duration::from_secs(age))))
    };
    let (success, failure) = (ago(status.rules.last_success), ago(status.rules.last_failure));
    if !status.rules.good {
        let more = format!(
            "read {failure}, with errors; last read whole: {success}. What was last good is in force, by domain"
        );
        return check(Sign::Bad, "the last reload failed", more);
    }
    let short = format!("{} in {}", counted(rules, "rule", "rules"), counted(domains, "domain", "domains"));
    check(if rules == 0 { Sign::Note } else { Sign::Good }, short, format!("last reload {success}"))
}

/// Checks the pools that rules configure.
fn shedding(status: &DaemonStatus, story: &Story) -> HealthCheck {
    let pools: Vec<&PoolStatus> = status.pools.iter().filter(|pool| pool.watched).collect();
    let [.., shed, _] = story.now;
    let more = format!("{} refused a second", rate(shed));
    let braking: Vec<_> = pools.iter().filter(|pool| pool.braking).collect();
    let shedding: Vec<_> = pools.iter().filter(|pool| pool.severity() > 0.0).collect();
    let names = |pools: &[&&PoolStatus]| {
        html! {
            @for (place, pool) in pools.iter().take(3).enumerate() { @if place > 0 { ", " } (name(&pool.pool)) }
            @if pools.len() > 3 { ", …" }
        }
    };
    if pools.is_empty() {
        return check(Sign::Absent, "off", "the rules watch over no pool");
    }
    if !braking.is_empty() {
        return check(Sign::Bad, html! { "the brake is on: " (names(&braking)) }, more);
    }
    if !shedding.is_empty() {
        let most = shedding.iter().map(|pool| pool.severity()).fold(0.0, f64::max);
        return check(Sign::Note, html! { (names(&shedding)) ": s " (format!("{most:.2}")) }, more);
    }
    if shed > 0.0 {
        return check(Sign::Note, more, "old or reserved work; s is below 0");
    }
    match pools.iter().filter_map(|pool| pool.u).reduce(f64::max) {
        Some(share) => check(Sign::Good, "none", format!("the fullest pool is at {}", percent(share))),
        None => check(Sign::Note, "no slots are known", "workers, brake and reserve do nothing"),
    }
}

/// Checks the decisions that clients made without the daemon.
fn missed(status: &DaemonStatus, story: &Story) -> HealthCheck {
    let [.., recent] = story.sums;
    match (recent, status.missed_in_all()) {
        (0, 0) => check(Sign::Good, "none", "every client had its answers"),
        (0, ever) => check(Sign::Good, "none in 10 minutes", format!("{} since the start", count(ever))),
        (recent, _) => {
            let most = status.missed.iter().max_by_key(|missed| missed.count);
            let why = most.map(|missed| &*missed.reason).unwrap_or_default();
            let more = format!("decided by clients alone in 10 minutes; most often: {why}");
            check(Sign::Bad, count(recent), more)
        }
    }
}

fn fleet(status: &DaemonStatus) -> HealthCheck {
    let Some(fleet) = &status.fleet else {
        return check(Sign::Absent, "not used", "no budget is shared with other hosts");
    };
    let shared = counted(fleet.rules, "rule is shared", "rules are shared");
    let fleet = &fleet.summary;
    let hosts = counted(fleet.hosts, "host", "hosts");
    if !fleet.redis {
        return check(Sign::Bad, "no Redis is set", format!("{shared} with nobody"));
    }
    if fleet.linked {
        let trip = fleet.round_trip_us as f64 / 1e3;
        let more = format!("{shared}; Redis answers in {trip:.2}\u{a0}ms");
        return check(Sign::Good, format!("{} of {hosts}", fleet.alive), more);
    }
    if !fleet.needed {
        let more = html! { "Redis is set; no rule has " code { "scope: fleet" } };
        return check(Sign::Absent, "nothing to share", more);
    }
    check(
        Sign::Bad,
        "Redis is not heard",
        html! { (shared) " by " code { "on_redis_down" } ", with " (hosts) },
    )
}

fn daemon(status: &DaemonStatus) -> HealthCheck {
    let (panics, evictions) = (status.panics, status.memory.evictions);
    let refused: u64 = status.connections.refused.values().sum();
    let short = counted(status.connections.now, "connection", "connections");
    let up = format!("up {}, version {}", span(Duration::from_secs(status.uptime_s)), status.version);
    if panics > 0 {
        let panics = counted(panics, "panic", "panics");
        return check(Sign::Bad, short, format!("{panics} while judging: the log says where"));
    }
    if refused + evictions > 0 {
        let (refused, evictions) = (count(refused), count(evictions));
        let more = format!("{refused} not let in, {evictions} keys dropped for want of room; {up}");
        return check(Sign::Note, short, more);
    }
    check(Sign::Good, short, up)
}

/// Each unreadable signal of each pool is one warning.
const WARNINGS_SHOWN: usize = 12;
