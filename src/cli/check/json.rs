//! The result of `check` as one JSON object. Keys are only ever added, and each is always present.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::super::limit_json::{self, asked, object, position};
use super::super::read_rules::RulesRead;
use super::super::shed_words;
use super::block::{BlockSettings, slowest_override};
use crate::rules::{Domain, ListedEntry, Prioritize, Problem, Rule};

pub(super) fn all(read: &RulesRead, terms: &BlockSettings) -> Value {
    let path = |path: Option<&Path>| path.map(|path| path.to_string_lossy().into_owned());
    json!({
        "settings": path(read.settings.as_deref()),
        "rules": path(read.rules.as_deref()),
        "hosts": terms.hosts(),
        "memory_bytes_max": read.memory_bytes_max,
        "errors": read.count(true),
        "warnings": read.count(false),
        "problems": read.problems.iter().map(Problem::to_json).collect::<Vec<_>>(),
        "domains": read.domains.iter().map(|domain| of_domain(domain, terms)).collect::<Vec<_>>(),
        "failed": read.failed.iter().map(|name| &**name).collect::<Vec<_>>(),
    })
}

fn of_domain(domain: &Domain, terms: &BlockSettings) -> Value {
    let rules = (0..).zip(domain.rules()).map(|(number, rule)| of_rule(domain, number, rule, terms));
    json!({
        "name": domain.name(),
        "lists": domain.lists().iter().map(of_listed).collect::<Vec<_>>(),
        "priorities": domain.priorities().iter().map(|name| &**name).collect::<Vec<_>>(),
        "prioritize": domain.prioritize().iter().map(|entry| of_entry(domain, entry)).collect::<Vec<_>>(),
        "descriptors": domain.tree().nodes(),
        "rules": rules.collect::<Vec<_>>(),
        "sheds": domain.sheds().iter().map(|shed| shed_words::json(domain, shed)).collect::<Vec<_>>(),
    })
}

fn of_rule(domain: &Domain, number: u32, rule: &Rule, terms: &BlockSettings) -> Map<String, Value> {
    let fleets: Vec<u32> = terms.fleets().collect();
    let mut all = limit_json::rule(rule, terms.hosts(), &fleets);
    all.extend(object(json!({
        "path": domain.tree().path(number),
        "overrides_slow_by_one_part_in": slowest_override(&rule.limit),
        "keys_held_at_least": terms.keys_held(rule),
    })));
    all
}

fn of_listed(listed: &ListedEntry) -> Map<String, Value> {
    let mut all = position(&listed.position);
    all.extend(object(json!({
        "name": &*listed.name,
        "list": <&str>::from(listed.kind),
        "mode": listed.mode.to_string(),
        "match": asked(&listed.conditions),
        "help": listed.help.as_deref(),
    })));
    all
}

fn of_entry(domain: &Domain, entry: &Prioritize) -> Map<String, Value> {
    let mut all = position(&entry.position);
    all.extend(object(json!({
        "match": asked(&entry.conditions),
        "priority": domain.priorities().get(entry.priority).map(|name| &**name),
    })));
    all
}
