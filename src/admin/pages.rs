//! Read-only pages, one for each path.

use std::collections::HashMap;

use hyper::StatusCode;
use serde_json::{Map, Value, json};

use super::answer::{self, HttpAnswer};
use super::fleet::{FleetPage, FleetReading};
use super::status::DaemonStatus;
use super::switches::everything_everywhere;
use super::{AdminState, front, metrics};
use crate::engine::{RuleInForce, RuleKind};
use crate::rules::facts;

/// One page.
#[derive(Clone, Copy)]
pub(super) struct AdminPage {
    path: &'static str,
    what: &'static str,
    /// Whether it shows no callers, so that the metrics port may serve it.
    pub(super) is_harmless: bool,
    /// Makes it, without waiting for anything.
    pub(super) make: fn(&AdminState) -> HttpAnswer,
}

/// The page of a path.
pub(super) fn find(path: &str) -> Option<AdminPage> {
    PAGES.iter().find(|page| page.path == path).copied()
}

/// Returns the paths other than the first page, with their descriptions.
pub(super) fn others() -> impl Iterator<Item = (&'static str, &'static str)> {
    PAGES.iter().filter(|page| page.path != "/").map(|page| (page.path, page.what))
}

/// Where the pages are: to look at them changes nothing.
pub fn paths() -> impl Iterator<Item = &'static str> {
    PAGES.iter().map(|page| page.path)
}

/// It answers, so it lives.
fn healthz(_: &AdminState) -> HttpAnswer {
    answer::text(StatusCode::OK, "ok\n")
}

/// Whether work should be sent here: the reasons against it, a line each.
fn readyz(desk: &AdminState) -> HttpAnswer {
    let mut reasons = Vec::new();
    if !desk.control.rules().is_good {
        reasons.push(
            "the rules have errors: `tidegate check` shows them; what could be read is in force".to_owned(),
        );
    }
    reasons.extend(desk.control.unready());
    if reasons.is_empty() {
        // Work may be sent here all the same.
        let fleet = FleetReading::take(desk, desk.clock.now().at);
        let notes = [fleet.forged_warning(), everything_everywhere(desk)];
        let notes: String = notes.into_iter().flatten().map(|note| format!("note: {note}\n")).collect();
        return answer::text(StatusCode::OK, format!("ready\n{notes}"));
    }
    answer::text(StatusCode::SERVICE_UNAVAILABLE, reasons.join("\n") + "\n")
}

fn status(desk: &AdminState) -> HttpAnswer {
    answer::value(StatusCode::OK, &DaemonStatus::read(desk))
}

fn fleet(desk: &AdminState) -> HttpAnswer {
    answer::value(StatusCode::OK, &FleetPage::read(desk))
}

fn switches(desk: &AdminState) -> HttpAnswer {
    answer::value(StatusCode::OK, &super::switches::switches(desk))
}

/// Lists the rules in force, each with its location in the files, its mode and its fields.
fn rules(desk: &AdminState) -> HttpAnswer {
    let record = desk.control.rules();
    let in_force = desk.engine.in_force();
    let mut by_domain: HashMap<&str, Vec<Value>> = HashMap::new();
    in_force.each().for_each(|rule| by_domain.entry(rule.domain).or_default().push(rule_entry(&rule)));
    let sha = |name: &str| record.domains.iter().find(|domain| *domain.name == *name).map(|known| &known.sha);
    let domains = in_force.rules().domains().iter().map(|domain| {
        let rules = by_domain.remove(domain.name()).unwrap_or_default();
        json!({"name": domain.name(), "sha": sha(domain.name()), "rules": rules})
    });
    let page = json!({"path": record.path, "good": record.is_good, "domains": domains.collect::<Vec<_>>()});
    answer::value(StatusCode::OK, &page)
}

fn rule_entry(rule: &RuleInForce<'_>) -> Value {
    let says: Map<String, Value> = match rule.kind {
        RuleKind::Limit(limit) => {
            facts(limit).into_iter().map(|(field, text)| (field.to_owned(), text.into())).collect()
        }
        RuleKind::Listed(_) | RuleKind::Shedder(..) => Map::new(),
    };
    json!({
        "name": rule.name,
        "kind": kind(&rule.kind),
        "mode": rule.mode.name(),
        "at": format!("{}:{}", rule.position.file, rule.position.line),
        "says": says,
    })
}

fn kind(kind: &RuleKind<'_>) -> &'static str {
    match kind {
        RuleKind::Limit(rule) if rule.expires.is_some() => "concurrency",
        RuleKind::Limit(_) => "limit",
        RuleKind::Listed(list) => list.name(),
        RuleKind::Shedder(..) => "shed",
    }
}

const PAGES: &[AdminPage] = &[
    AdminPage { path: "/", what: "how it is, for people", is_harmless: false, make: front::front },
    AdminPage { path: "/metrics", what: "for Prometheus", is_harmless: true, make: metrics::metrics },
    AdminPage { path: "/healthz", what: "whether the daemon lives", is_harmless: true, make: healthz },
    AdminPage { path: "/status", what: "how it is, as JSON", is_harmless: false, make: status },
    AdminPage {
        path: "/fleet",
        what: "how it stands with the other hosts, as JSON",
        is_harmless: false,
        make: fleet,
    },
    AdminPage { path: "/rules", what: "the rules in force, as JSON", is_harmless: false, make: rules },
    AdminPage {
        path: "/switches",
        what: "what holds over the rules, and who said so",
        is_harmless: false,
        make: switches,
    },
    AdminPage { path: "/readyz", what: "whether work should be sent here", is_harmless: true, make: readyz },
];
