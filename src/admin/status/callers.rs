//! Lists the callers with the most requests and with the most refusals, over all rules.

use serde::{Deserialize, Serialize};

use crate::engine::{Caller, Engine, InForce, TopCallers};
use crate::rules::NamedKind;

/// The first callers of each ranking.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct CallersStatus {
    pub(crate) busiest: Vec<CallerStatus>,
    pub(crate) refused: Vec<CallerStatus>,
    pub(crate) would_refuse: Vec<CallerStatus>,
}

/// A caller of a rule; `count` is at least its units, and `error` the units that it may have more.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct CallerStatus {
    pub(crate) domain: String,
    pub(crate) rule: String,
    pub(crate) digest: String,
    pub(crate) text: Option<String>,
    pub(crate) count: u64,
    pub(crate) error: u64,
}

impl CallersStatus {
    pub(super) fn read(engine: &Engine, in_force: &InForce) -> CallersStatus {
        let limits = in_force.each().filter(|rule| matches!(rule.kind, NamedKind::Rule(..)));
        let known: Vec<(&str, &str, TopCallers)> = limits
            .take(RULES_MAX)
            .map(|rule| (rule.domain, rule.name, engine.top_callers(rule.domain, rule.name)))
            .collect();
        let first = |of: fn(&TopCallers) -> &[Caller]| {
            let each = known
                .iter()
                .flat_map(|(domain, rule, top)| of(top).iter().map(move |caller| (*domain, *rule, caller)));
            let mut each: Vec<_> = each.filter(|(.., caller)| caller.count > 0).collect();
            each.sort_by_key(|(.., caller)| std::cmp::Reverse(caller.count));
            each.truncate(SHOWN);
            each.into_iter().map(CallerStatus::from).collect()
        };
        CallersStatus {
            busiest: first(|top| &top.busiest),
            refused: first(|top| &top.refused),
            would_refuse: first(|top| &top.would_refuse),
        }
    }
}

impl CallerStatus {
    /// Returns the text if the rule shows it, else the first digits of the digest.
    pub(crate) fn name(&self) -> &str {
        self.text.as_deref().unwrap_or_else(|| self.digest.get(..DIGEST_SHOWN).unwrap_or(&self.digest))
    }
}

impl From<(&str, &str, &Caller)> for CallerStatus {
    fn from((domain, rule, caller): (&str, &str, &Caller)) -> CallerStatus {
        CallerStatus {
            domain: domain.to_owned(),
            rule: rule.to_owned(),
            digest: caller.digest.clone(),
            text: caller.text.as_deref().map(str::to_owned),
            count: caller.count,
            error: caller.error,
        }
    }
}

/// As many as fit a screen.
const SHOWN: usize = 20;

/// Digits of a digest that distinguish callers by eye.
const DIGEST_SHOWN: usize = 16;

/// Rules after these share one sketch.
const RULES_MAX: usize = 512;
