//! Lists the rules in force, each with its location in the files, its mode and its fields.

use std::collections::HashMap;

use hyper::StatusCode;
use serde_json::{Map, Value, json};

use super::AdminState;
use super::answer::{self, HttpAnswer};
use crate::engine::{RuleInForce, RuleKind};
use crate::rules::facts;

/// The page.
pub(super) fn rules(desk: &AdminState) -> HttpAnswer {
    let record = desk.control.rules();
    let in_force = desk.engine.in_force();
    let mut by_domain: HashMap<&str, Vec<Value>> = HashMap::new();
    in_force.each().for_each(|rule| by_domain.entry(rule.domain).or_default().push(one(&rule)));
    let sha = |name: &str| record.domains.iter().find(|domain| *domain.name == *name).map(|known| &known.sha);
    let domains = in_force.rules().domains().iter().map(|domain| {
        let rules = by_domain.remove(domain.name()).unwrap_or_default();
        json!({"name": domain.name(), "sha": sha(domain.name()), "rules": rules})
    });
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
