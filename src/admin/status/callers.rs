//! Lists the callers with the most requests and with the most refusals, over all rules.

use std::cmp::Reverse;

use crate::engine::{Engine, InForce, TopCallers};
use crate::rules::NamedKind;

/// Returns the first callers of each ranking.
pub(super) fn top_callers(engine: &Engine, in_force: &InForce) -> TopCallers {
    let mut all = TopCallers::default();
    let limits = in_force.each().filter(|rule| matches!(rule.kind, NamedKind::Rule(..)));
    for rule in limits.take(RULES_MAX) {
        let top = engine.top_callers(rule.domain, rule.name);
        all.busiest.extend(top.busiest);
        all.refused.extend(top.refused);
        all.would_refuse.extend(top.would_refuse);
    }
    for callers in [&mut all.busiest, &mut all.refused, &mut all.would_refuse] {
        callers.sort_by_key(|caller| Reverse(caller.count));
        callers.truncate(SHOWN);
    }
    all
}

/// As many as fit a screen.
const SHOWN: usize = 20;

/// Rules after these share one sketch.
const RULES_MAX: usize = 512;
