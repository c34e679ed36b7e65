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

/// The result of each check, by name, and the warnings of the status, each with a fix.
pub(super) struct Health<'s>([(&'static str, HealthCheck); 6], &'s [String]);

/// The result of a check: its sign, a few words, and a few more.
type HealthCheck = (Sign, Markup, Markup);

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
        Health(checks, &status.warnings)
    }

    /// Returns the worst sign.
    pub(super) fn sign(&self) -> Sign {
        let warned = if self.1.is_empty() { Sign::Good } else { Sign::Note };
        self.0.iter().map(|(_, (sign, ..))| *sign).fold(warned, Sign::max)
    }

    pub(super) fn headline(&self) -> String {
        let number = |of| self.0.iter().filter(|(_, (sign, ..))| *sign == of).count() as u64;
        let bad = counted(number(Sign::Bad), "thing is wrong", "things are wrong");
        match (number(Sign::Bad), number(Sign::Note)) {
            (0, 0) if self.1.is_empty() => "All is well".to_owned(),
            (0, 0) => "Well, but for what stands below".to_owned(),
            (0, notes) => format!("{} to know of", counted(notes, "thing", "things")),
            (_, 0) => bad,
            (_, notes) => format!("{bad}, {notes} to know of"),
        }
    }
}

impl Render for Health<'_> {
    fn render(&self) -> Markup {
        let Health(checks, warnings) = self;
        let left = warnings.len().saturating_sub(WARNINGS_SHOWN);
        let mark = |mark| html! { span.mark aria-hidden="true" { (mark) } " " };
        let (worst, class) = self.sign().mark_and_word();
        html! {
            section.health aria-labelledby="health" {
                h2 id="health" class=(class) { (mark(worst)) (self.headline()) }
                ul.checks {
                    @for (name, (sign, short, more)) in checks {
                        @let (sign, word) = sign.mark_and_word();
                        li class=(word) {
                            h3 { (mark(sign)) (name) span.unseen { ": " (word) } }
                            p.says { (short) }
                            p.more { (more) }
                        }
                    }
                }
                @if !warnings.is_empty() {
                    ul.warnings {
                        @for warning in warnings.iter().take(WARNINGS_SHOWN) { li { (warning) } }
                        @if left > 0 { li { "and " (left) " more: " code { "tidegate status" } } }
                    }
                }
            }
        }
    }
}

fn check(sign: Sign, short: impl Render, more: impl Render) -> HealthCheck {
    (sign, short.render(), more.render())
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
        _ if status.switches.off => {
            check(Sign::Bad, "everything is allowed", html! { "a file " code { "disable" } " is there" })
        }
        "enforce" => check(sign, "enforce", more),
        "disabled" => check(Sign::Bad, "disabled: nothing is refused", more),
        other => check(Sign::Note, format!("{other}: nothing is refused"), more),
    }
}

fn rules(status: &DaemonStatus) -> HealthCheck {
    let (rules, domains) = (status.rules.count(), status.rules.domains.len() as u64);
    let ago = |at: Option<f64>| match at.map(|at| status.started + status.uptime_s as f64 - at) {
        // Whole seconds.
        Some(age) => format!("{} ago", span(Duration::try_from_secs_f64(age.floor()).unwrap_or_default())),
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
    let pools = || status.pools.iter().filter(|pool| pool.watched);
    let braking: Vec<_> = pools().filter(|pool| pool.braking).collect();
    let shedding: Vec<_> = pools().filter(|pool| pool.severity() > 0.0).collect();
    let names = |pools: &[&PoolStatus]| {
        html! {
            @for (place, pool) in pools.iter().take(3).enumerate() { @if place > 0 { ", " } (name(&pool.pool)) }
            @if pools.len() > 3 { ", …" }
        }
    };
    let [.., shed, _] = story.now;
    let more = format!("{} refused a second", rate(shed));
    if pools().next().is_none() {
        return check(Sign::Absent, "off", "the rules watch over no pool");
    }
    if !braking.is_empty() {
        return check(Sign::Bad, html! { "the brake is on: " (names(&braking)) }, more);
    }
    if !shedding.is_empty() {
        let most = shedding.iter().map(|pool| pool.severity()).fold(0.0, f64::max);
        return check(Sign::Note, html! { (names(&shedding)) ": s " (format!("{most:.2}")) }, more);
    }
    match pools().filter_map(|pool| pool.u).reduce(f64::max) {
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
            let more = html! { (shared) " by " code { "on_redis_down" } ", with " (hosts) };
            check(Sign::Bad, "Redis is not heard", more)
        }
        _ => {
            let more = html! { "Redis is set; no rule has " code { "scope: fleet" } };
            check(Sign::Absent, "nothing to share", more)
        }
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

/// Each unreadable signal of each pool is one warning.
const WARNINGS_SHOWN: usize = 12;
