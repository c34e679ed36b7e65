//! Health overview, first on the page: each check with a sign, a word and a colour.

use std::fmt::Write;

use serde_json::Value;

use crate::admin::history::Story;
use crate::admin::told::{list, number, word};
use crate::page::{EscapedText, IsolatedName, count, of, percent, rate, span};

/// How something stands, the worse the larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Sign {
    /// It is not used here.
    Absent,
    /// As it should be.
    Good,
    /// Worth a notice.
    Note,
    /// Needs action.
    Bad,
}

/// One thing that may be well or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HealthCheck {
    what: &'static str,
    pub(super) sign: Sign,
    /// In a few words, as HTML.
    says: String,
    /// In a few more, as HTML.
    more: String,
}

/// All that is looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Health {
    pub(super) checks: Vec<HealthCheck>,
    /// Warnings of the status, each with a fix.
    warnings: Vec<String>,
}

impl Sign {
    /// As good without its colour.
    pub(super) fn mark(self) -> &'static str {
        match self {
            Sign::Absent => "–",
            Sign::Good => "✔",
            Sign::Note => "▲",
            Sign::Bad => "✖",
        }
    }

    /// As the style sheet has it, and read aloud.
    pub(super) fn word(self) -> &'static str {
        match self {
            Sign::Absent => "unused",
            Sign::Good => "good",
            Sign::Note => "note",
            Sign::Bad => "bad",
        }
    }
}

impl HealthCheck {
    fn new(what: &'static str, sign: Sign, says: impl Into<String>, more: impl Into<String>) -> HealthCheck {
        HealthCheck { what, sign, says: says.into(), more: more.into() }
    }
}

impl Health {
    pub(super) fn of(status: &Value, story: &Story) -> Health {
        let warnings =
            list(status, "/warnings").iter().filter_map(Value::as_str).map(str::to_owned).collect();
        let checks = vec![
            mode(status),
            rules(status),
            shedding(status, story),
            alone(status, story),
            fleet(status),
            daemon(status),
        ];
        Health { checks, warnings }
    }

    /// The worst of it.
    pub(super) fn sign(&self) -> Sign {
        let worst = self.checks.iter().map(|check| check.sign).max().unwrap_or(Sign::Good);
        let warned = if self.warnings.is_empty() { Sign::Good } else { Sign::Note };
        worst.max(warned)
    }

    /// In a line.
    pub(super) fn headline(&self) -> String {
        let counted = |sign| self.checks.iter().filter(|check| check.sign == sign).count() as u64;
        let (bad, notes) = (counted(Sign::Bad), counted(Sign::Note));
        match (bad, self.sign()) {
            (0, Sign::Note) if notes == 0 => "Well, but for what stands below".to_owned(),
            (0, Sign::Note) => format!("{notes} {} to know of", of(notes, "thing", "things")),
            (0, _) => "All is well".to_owned(),
            (bad, _) if notes == 0 => format!("{bad} {} wrong", of(bad, "thing is", "things are")),
            (bad, _) => format!("{bad} {} wrong, {notes} to know of", of(bad, "thing is", "things are")),
        }
    }

    pub(super) fn write(&self, page: &mut String) {
        let sign = self.sign();
        let _ = write!(
            page,
            "<section class=\"health\" aria-labelledby=\"health\"><h2 id=\"health\" class=\"{}\"><span \
             class=\"mark\" aria-hidden=\"true\">{}</span> {}</h2><ul class=\"checks\">",
            sign.word(),
            sign.mark(),
            self.headline(),
        );
        for HealthCheck { what, sign, says, more } in &self.checks {
            let (word, mark) = (sign.word(), sign.mark());
            let _ = write!(
                page,
                "<li class=\"{word}\"><h3><span class=\"mark\" aria-hidden=\"true\">{mark}</span> {what}<span \
                 class=\"unseen\">: {word}</span></h3><p class=\"says\">{says}</p><p class=\"more\">{more}</p></li>"
            );
        }
        page.push_str("</ul>");
        if !self.warnings.is_empty() {
            page.push_str("<ul class=\"warnings\">");
            for warning in self.warnings.iter().take(WARNINGS_SHOWN) {
                let _ = write!(page, "<li>{}</li>", EscapedText(warning));
            }
            let left = self.warnings.len().saturating_sub(WARNINGS_SHOWN);
            if left > 0 {
                let _ = write!(page, "<li>and {left} more: <code>tidegate status</code></li>");
            }
            page.push_str("</ul>");
        }
        page.push_str("</section>");
    }
}

fn mode(status: &Value) -> HealthCheck {
    let switched = list(status, "/switches/switches").len() as u64;
    let blocked = list(status, "/switches/blocks").len() as u64;
    let more = match (switched, blocked) {
        (0, 0) => "nothing is switched or blocked by hand".to_owned(),
        _ => format!(
            "{switched} {}, {blocked} {} by hand",
            of(switched, "switch", "switches"),
            of(blocked, "key blocked", "keys blocked")
        ),
    };
    let is_touched = switched + blocked > 0;
    match (status.pointer("/switches/off").and_then(Value::as_bool), word(status, "/mode")) {
        (Some(true), _) => HealthCheck::new(
            "Mode",
            Sign::Bad,
            "everything is allowed",
            "a file <code>disable</code> is there",
        ),
        (_, "enforce") if is_touched => HealthCheck::new("Mode", Sign::Note, "enforce", more),
        (_, "enforce") => HealthCheck::new("Mode", Sign::Good, "enforce", more),
        (_, "disabled") => HealthCheck::new("Mode", Sign::Bad, "disabled: nothing is refused", more),
        (_, other) => {
            HealthCheck::new("Mode", Sign::Note, format!("{}: nothing is refused", EscapedText(other)), more)
        }
    }
}

fn rules(status: &Value) -> HealthCheck {
    let domains = list(status, "/rules/domains");
    let rules: u64 = domains.iter().map(|domain| number(domain, "/rules")).sum();
    let domains = domains.len() as u64;
    let says = format!(
        "{} {} in {} {}",
        count(rules),
        of(rules, "rule", "rules"),
        count(domains),
        of(domains, "domain", "domains")
    );
    let now = status.pointer("/started").and_then(Value::as_f64).unwrap_or_default()
        + number(status, "/uptime_s") as f64;
    let ago = |field: &str| {
        let at = status.pointer(field).and_then(Value::as_f64)?;
        let seconds = std::time::Duration::try_from_secs_f64(now - at).unwrap_or_default().as_secs();
        Some(format!("{} ago", span(seconds)))
    };
    let never = || "never".to_owned();
    let success = ago("/rules/last_success").unwrap_or_else(never);
    if status.pointer("/rules/good").and_then(Value::as_bool) != Some(true) {
        let failure = ago("/rules/last_failure").unwrap_or_else(never);
        let more = format!(
            "read {failure}, with errors; last read whole: {success}. What was last good is in force, by domain"
        );
        return HealthCheck::new("Rules", Sign::Bad, "the last reload failed", more);
    }
    let sign = if rules == 0 { Sign::Note } else { Sign::Good };
    HealthCheck::new("Rules", sign, says, format!("last reload {success}"))
}

/// Of the pools that the rules watch over.
fn shedding(status: &Value, story: &Story) -> HealthCheck {
    let pools: Vec<&Value> = list(status, "/pools").iter().filter(|pool| is(pool, "/watched")).collect();
    let [.., shed, _] = story.now;
    if pools.is_empty() {
        return HealthCheck::new("Shedding", Sign::Absent, "off", "the rules watch over no pool");
    }
    let named = |pools: &[&&Value]| {
        let names: Vec<String> =
            pools.iter().take(3).map(|pool| IsolatedName(word(pool, "/pool")).to_string()).collect();
        names.join(", ") + if pools.len() > 3 { ", …" } else { "" }
    };
    let severity = |pool: &Value| pool.pointer("/s").and_then(Value::as_f64).unwrap_or_default();
    let braking: Vec<_> = pools.iter().filter(|pool| is(pool, "/braking")).collect();
    let refusing: Vec<_> = pools.iter().filter(|pool| severity(pool) > 0.0).collect();
    let more = format!("{} refused a second", rate(shed));
    if !braking.is_empty() {
        return HealthCheck::new(
            "Shedding",
            Sign::Bad,
            format!("the brake is on: {}", named(&braking)),
            more,
        );
    }
    if !refusing.is_empty() {
        let most = refusing.iter().map(|pool| severity(pool)).fold(0.0, f64::max);
        return HealthCheck::new("Shedding", Sign::Note, format!("{}: s {most:.2}", named(&refusing)), more);
    }
    if shed > 0.0 {
        return HealthCheck::new("Shedding", Sign::Note, more, "old or reserved work; s is below 0");
    }
    let busiest = pools
        .iter()
        .filter_map(|pool| pool.pointer("/u")?.as_f64())
        .fold(None, |most: Option<f64>, u| Some(most.map_or(u, |most| most.max(u))));
    match busiest {
        Some(share) => HealthCheck::new(
            "Shedding",
            Sign::Good,
            "none",
            format!("the fullest pool is at {}", percent(share)),
        ),
        None => HealthCheck::new(
            "Shedding",
            Sign::Note,
            "no slots are known",
            "workers, brake and reserve do nothing",
        ),
    }
}

/// Decisions that clients made without the daemon.
fn alone(status: &Value, story: &Story) -> HealthCheck {
    // Clients say it, and may say any number.
    let ever =
        list(status, "/missed").iter().map(|missed| number(missed, "/count")).fold(0, u64::saturating_add);
    let [.., recent] = story.sums;
    let what = "Fail-open calls";
    match (recent, ever) {
        (0, 0) => HealthCheck::new(what, Sign::Good, "none", "every client had its answers"),
        (0, ever) => HealthCheck::new(
            what,
            Sign::Good,
            "none in 10 minutes",
            format!("{} since the start", count(ever)),
        ),
        (recent, _) => {
            let missed = list(status, "/missed").iter();
            let most = missed.max_by_key(|missed| number(missed, "/count"));
            let why = most.map(|most| EscapedText(word(most, "/reason")).to_string()).unwrap_or_default();
            let more = format!("decided by clients alone in 10 minutes; most often: {why}");
            HealthCheck::new(what, Sign::Bad, count(recent), more)
        }
    }
}

fn fleet(status: &Value) -> HealthCheck {
    let what = "Fleet";
    let Some(fleet) = status.get("fleet").filter(|fleet| fleet.is_object()) else {
        return HealthCheck::new(what, Sign::Absent, "not used", "no budget is shared with other hosts");
    };
    let rules = number(fleet, "/rules");
    let shared = format!("{rules} {} shared", of(rules, "rule is", "rules are"));
    if !is(fleet, "/redis") {
        return HealthCheck::new(what, Sign::Bad, "no Redis is set", format!("{shared} with nobody"));
    }
    if !is(fleet, "/needed") && !is(fleet, "/linked") {
        return HealthCheck::new(
            what,
            Sign::Absent,
            "nothing to share",
            "Redis is set; no rule has <code>scope: fleet</code>",
        );
    }
    let hosts = number(fleet, "/hosts");
    if !is(fleet, "/linked") {
        let more =
            format!("{shared} by <code>on_redis_down</code>, with {hosts} {}", of(hosts, "host", "hosts"));
        return HealthCheck::new(what, Sign::Bad, "Redis is not heard", more);
    }
    let trip = number(fleet, "/round_trip_us") as f64 / 1e3;
    let says = format!("{} of {hosts} {}", number(fleet, "/alive"), of(hosts, "host", "hosts"));
    HealthCheck::new(what, Sign::Good, says, format!("{shared}; Redis answers in {trip:.2}\u{a0}ms"))
}

fn daemon(status: &Value) -> HealthCheck {
    let panics = number(status, "/panics");
    let refused: u64 = status
        .pointer("/connections/refused")
        .and_then(Value::as_object)
        .map_or(0, |counts| counts.values().filter_map(Value::as_u64).sum());
    let connections = number(status, "/connections/now");
    let says = format!("{} {}", count(connections), of(connections, "connection", "connections"));
    let up = format!(
        "up {}, version {}",
        span(number(status, "/uptime_s")),
        EscapedText(word(status, "/version"))
    );
    let evictions = number(status, "/memory/evictions");
    if panics > 0 {
        let more =
            format!("{} {} while judging: the log says where", count(panics), of(panics, "panic", "panics"));
        return HealthCheck::new("Daemon", Sign::Bad, says, more);
    }
    if refused + evictions > 0 {
        let more = format!(
            "{} not let in, {} keys dropped for want of room; {up}",
            count(refused),
            count(evictions)
        );
        return HealthCheck::new("Daemon", Sign::Note, says, more);
    }
    HealthCheck::new("Daemon", Sign::Good, says, up)
}

pub(super) fn is(value: &Value, pointer: &str) -> bool {
    value.pointer(pointer).and_then(Value::as_bool) == Some(true)
}

/// Each unreadable signal of each pool is one.
const WARNINGS_SHOWN: usize = 12;
