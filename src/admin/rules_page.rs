//! Lists the rules in force, each with its location in the files, its mode and its fields.

use std::collections::HashMap;

use hyper::StatusCode;
use serde_json::{Map, Value, json};

use super::AdminState;
use super::answer::{self, HttpAnswer};
use crate::engine::{RuleName, SwitchView, Target};
use crate::rules::{NamedItem, NamedKind, facts};

/// The page.
pub(super) fn rules(desk: &AdminState) -> HttpAnswer {
    let record = desk.control.rules();
    let in_force = desk.engine.in_force();
    let mut by_domain: HashMap<&str, Vec<Value>> = HashMap::new();
    let switches = [desk.engine.switches(), desk.engine.fleet_switches()].concat();
    in_force.each().for_each(|rule| by_domain.entry(rule.domain).or_default().push(one(&rule, &switches)));
    let sha = |name: &str| record.domains.iter().find(|domain| *domain.name == *name).map(|known| &known.sha);
    let domains = in_force.domains().map(|domain| {
        let rules = by_domain.remove(domain.name()).unwrap_or_default();
        json!({"name": domain.name(), "sha": sha(domain.name()), "rules": rules})
    });
    let page = json!({"path": record.path, "good": record.is_good, "domains": domains.collect::<Vec<_>>()});
    answer::value(StatusCode::OK, &page)
}

fn one(rule: &NamedItem<'_>, switches: &[SwitchView]) -> Value {
    let mut says = Map::new();
    if let NamedKind::Rule(_, limit) = rule.kind {
        says.extend(facts(limit).into_iter().map(|(field, text)| (field.to_owned(), text.into())));
        // A switch replaces the written mode.
        let target = Target::Rule(RuleName { domain: rule.domain.into(), rule: rule.name.into() });
        let switch = switches.iter().find(|view| view.is_last && view.switch.target == target);
        says.extend(switch.map(|view| ("mode".to_owned(), view.switch.mode.name().into())));
    }
    json!({
        "name": rule.name,
        "kind": kind(&rule.kind),
        "mode": rule.mode.name(),
        "at": format!("{}:{}", rule.position.file, rule.position.line),
        "says": says,
    })
}

fn kind(kind: &NamedKind<'_>) -> &'static str {
    match kind {
        NamedKind::Rule(_, rule) if rule.expires.is_some() => "concurrency",
        NamedKind::Rule(..) => "limit",
        NamedKind::Listed(list) => list.name(),
        NamedKind::Shedder => "shed",
    }
}
