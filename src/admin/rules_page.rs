//! The rules in force, each with its place in the files, its mode, and what it says.

use hyper::StatusCode;
use serde_json::{Map, Value, json};

use super::Desk;
use super::answer::{self, Answer};
use crate::engine::{RuleInForce, RuleKind};
use crate::rules::facts;

/// The page.
pub(super) fn rules(desk: &Desk) -> Answer {
    let record = desk.control.rules();
    let in_force = desk.engine.in_force();
    let mut domains: Vec<(&str, Vec<Value>)> =
        in_force.rules().domains().iter().map(|domain| (domain.name(), Vec::new())).collect();
    for rule in in_force.each() {
        if let Some((_, rules)) = domains.iter_mut().find(|(name, _)| *name == rule.domain) {
            rules.push(one(&rule));
        }
    }
    let sha = |name: &str| record.domains.iter().find(|domain| *domain.name == *name).map(|known| &known.sha);
    let domains = domains.iter().map(|(name, rules)| json!({"name": name, "sha": sha(name), "rules": rules}));
    let page = json!({"path": record.path, "good": record.is_good, "domains": domains.collect::<Vec<_>>()});
    answer::value(StatusCode::OK, &page)
}

fn one(rule: &RuleInForce<'_>) -> Value {
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
