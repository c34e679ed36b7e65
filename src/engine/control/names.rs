//! Resolution of names given by operators: `domain/rule`, or the rule alone if only one domain has it.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{OperatorControl, Target};
use crate::engine::Engine;
use crate::rules::de::TYPO;
use crate::rules::{Domain, NAME_BYTES_MAX, NamedItem};

/// The full name of a rule, a list entry or a shedder part.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "(Box<str>, Box<str>)", into = "(Box<str>, Box<str>)")]
pub struct RuleName {
    /// Its domain.
    pub domain: Box<str>,
    /// Its name in the domain: `per-user`, `web/workers`.
    pub rule: Box<str>,
}

impl TryFrom<(Box<str>, Box<str>)> for RuleName {
    type Error = &'static str;

    /// Checks that the names are possible in rules, and so safe in logs and on screens.
    fn try_from((domain, rule): (Box<str>, Box<str>)) -> Result<RuleName, &'static str> {
        let is_fit = |name: &str, bytes_max| {
            (1..=bytes_max).contains(&name.len()) && !name.chars().any(char::is_control)
        };
        let are_fit = is_fit(&domain, NAME_BYTES_MAX) && is_fit(&rule, RULE_BYTES_MAX);
        if are_fit { Ok(RuleName { domain, rule }) } else { Err("not the name of a rule") }
    }
}

impl From<RuleName> for (Box<str>, Box<str>) {
    fn from(name: RuleName) -> (Box<str>, Box<str>) {
        (name.domain, name.rule)
    }
}

impl fmt::Display for RuleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.domain, self.rule)
    }
}

/// Why a name cannot be resolved.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum RuleNameError {
    #[error("nothing is called `{name}`: {}", suggestion(.like))]
    Unknown { name: Box<str>, like: Option<RuleName> },
    #[error("`{name}` may be {one} or {other}: write the full name")]
    Ambiguous { name: Box<str>, one: RuleName, other: RuleName },
}

fn suggestion(like: &Option<RuleName>) -> String {
    match like {
        Some(like) => format!("did you mean `{like}`?"),
        None => "`tidegate status` shows the rules in force".to_owned(),
    }
}

impl RuleName {
    fn from_item(domain: &Domain, named: &NamedItem<'_>) -> RuleName {
        RuleName { domain: domain.name().into(), rule: named.name.into() }
    }
}

impl Engine {
    /// Resolves a name; a full name takes precedence over a short one.
    ///
    /// # Errors
    /// The name is unknown or ambiguous.
    pub fn find_rule_name(&self, name: &str) -> Result<RuleName, RuleNameError> {
        self.control.lock().find_rule_name(name)
    }
}

impl OperatorControl {
    pub(super) fn find_rule_name(&self, name: &str) -> Result<RuleName, RuleNameError> {
        let mut short: Vec<RuleName> = Vec::new();
        for known in self.rule_names() {
            if is_full_name(&known, name) {
                return Ok(known);
            }
            if *known.rule == *name && !short.contains(&known) {
                short.push(known);
            }
        }
        let mut short = short.into_iter();
        match (short.next(), short.next()) {
            (Some(one), None) => Ok(one),
            (Some(one), Some(other)) => Err(RuleNameError::Ambiguous { name: name.into(), one, other }),
            (None, _) => {
                Err(RuleNameError::Unknown { name: name.into(), like: self.find_similar_name(name) })
            }
        }
    }

    /// All names in the rules, and those of switches whose rule does not exist.
    fn rule_names(&self) -> impl Iterator<Item = RuleName> {
        let rules = self.configured_domains.iter().flat_map(|domain| {
            domain.named().map(|named| RuleName::from_item(domain, &named)).collect::<Vec<_>>()
        });
        let switched =
            self.own.switches.iter().chain(&self.fleet.switches).filter_map(|switch| match &switch.target {
                Target::Rule(rule) => Some(rule.clone()),
                Target::Daemon => None,
            });
        rules.chain(switched)
    }

    fn find_similar_name(&self, name: &str) -> Option<RuleName> {
        let distance = |known: &RuleName| {
            let full = strsim::osa_distance(name, &known.to_string());
            full.min(strsim::osa_distance(name, &known.rule))
        };
        let nearest =
            self.rule_names().map(|known| (distance(&known), known)).min_by_key(|(distance, _)| *distance)?;
        (nearest.0 <= EDIT_DISTANCE_MAX.min(name.chars().count() / TYPO)).then_some(nearest.1)
    }
}

fn is_full_name(known: &RuleName, name: &str) -> bool {
    let rest = name.strip_prefix(&*known.domain).and_then(|rest| rest.strip_prefix('/'));
    rest == Some(&*known.rule)
}

/// The longest name in the rules: a node of a descriptor tree has its path in its name.
const RULE_BYTES_MAX: usize = 512;

/// Names at a larger edit distance are not suggested, nor short ones with more than a third of the letters wrong.
const EDIT_DISTANCE_MAX: usize = 3;
