//! Lists the callers with the most requests and with the most refusals, over all rules.

use serde_json::{Value, json};

use crate::engine::{Caller, Engine, InForce, RuleKind, TopCallers};

/// The first few of each kind.
pub(super) fn told(engine: &Engine, in_force: &InForce) -> Value {
    let limits = in_force.each().filter(|rule| matches!(rule.kind, RuleKind::Limit(_)));
    let noted: Vec<(&str, &str, TopCallers)> = limits
        .take(RULES_MAX)
        .map(|rule| (rule.domain, rule.name, engine.top_callers(rule.domain, rule.name)))
        .collect();
    let first = |of: fn(&TopCallers) -> &[Caller]| {
        let each = noted
            .iter()
            .flat_map(|(domain, rule, top)| of(top).iter().map(move |caller| (*domain, *rule, caller)));
        let mut each: Vec<_> = each.filter(|(.., caller)| caller.count > 0).collect();
        each.sort_by_key(|(.., caller)| std::cmp::Reverse(caller.count));
        each.truncate(SHOWN);
        each.into_iter().map(|(domain, rule, caller)| one(domain, rule, caller)).collect::<Vec<_>>()
    };
    json!({
        "busiest": first(|top| &top.busiest),
        "refused": first(|top| &top.refused),
        "would_refuse": first(|top| &top.would_refuse),
    })
}

fn one(domain: &str, rule: &str, caller: &Caller) -> Value {
    let Caller { digest, text, count, error } = caller;
    json!({
        "domain": domain, "rule": rule, "digest": digest, "text": text, "count": count, "error": error,
    })
}

/// As many as fit a screen.
const SHOWN: usize = 20;

/// Those past it share one sketch.
const RULES_MAX: usize = 512;
