//! Why a rule does not match a request, and whether that looks like a mistake.

use std::collections::BTreeSet;

use super::de::{TYPO, nearest};
use super::problem::shown;
use super::{Condition, Domain, Mismatch, conditions};

impl Mismatch<'_> {
    pub(crate) fn describe(&self, attributes: &[(&str, &str)]) -> String {
        match self {
            Mismatch::Disabled => "its mode is disabled".to_owned(),
            Mismatch::Absent { attribute, line: 0 } => {
                format!("there is no {}, by which it counts", shown(attribute))
            }
            Mismatch::Absent { attribute, line } => {
                format!("there is no {}, for which line {line} asks", shown(attribute))
            }
            Mismatch::Condition(condition) => {
                let is = value(attributes, &condition.attribute).unwrap_or_default();
                let asks = conditions(std::slice::from_ref(*condition));
                let line = match condition.line {
                    0 => String::new(),
                    line => format!("line {line} "),
                };
                format!("{} is {}, and {line}asks for {asks}", shown(&condition.attribute), shown(is))
            }
        }
    }
}

impl Domain {
    /// Returns the single difference by which a rule or list entry misses these attributes, if a misspelling, the case
    /// of a value or one missing attribute explains it. `unused`: those of [`Domain::unused`]. `None` for nodes of the
    /// descriptor tree.
    pub(crate) fn near_match(
        &self,
        number: u32,
        attributes: &[(&str, &str)],
        unused: &[&str],
    ) -> Option<String> {
        let (conditions, key) = self.asks(number).filter(|_| self.tree().path(number).is_none())?;
        let failing = |condition: &&Condition| !condition.holds(value(attributes, &condition.attribute));
        let mut failing = conditions.iter().filter(failing);
        let is_absent = |name: &&str| value(attributes, name).is_none();
        let counted = key.iter().map(|part| &*part.attribute).filter(is_absent);
        let condition = failing.next();
        let mut absent: BTreeSet<&str> = counted.collect();
        if let Some(condition) = condition {
            if value(attributes, &condition.attribute).is_some() {
                return near_value(condition, attributes)
                    .filter(|_| failing.next().is_none() && absent.is_empty());
            }
            absent.insert(&condition.attribute);
        }
        let absent: Vec<&str> = absent.into_iter().collect();
        let is_rule = self.listed(number).is_none();
        match absent.as_slice() {
            [name] if failing.next().is_none() => near_name(name, unused, is_rule),
            _ => None,
        }
    }

    /// Returns the names of those attributes that no rule, list entry, priority or descriptor of the domain uses.
    pub(crate) fn unused<'a>(&self, attributes: &[(&'a str, &str)]) -> Vec<&'a str> {
        let used = self.attribute_names();
        let names = attributes.iter().map(|(name, _)| *name);
        names.filter(|name| !used.contains(name) && !self.in_tree(name)).collect()
    }

    /// Returns the names of all attributes that rules, list entries and priorities use, in alphabetical order.
    pub(crate) fn attribute_names(&self) -> BTreeSet<&str> {
        let key = self.rules().iter().flat_map(|rule| &rule.key).map(|part| &*part.attribute);
        let by = self.sheds().iter().flat_map(|shed| shed.callers.by.iter().map(|name| &**name));
        self.conditions().map(|condition| &*condition.attribute).chain(key).chain(by).collect()
    }

    fn in_tree(&self, name: &str) -> bool {
        self.tree()
            .texts()
            .any(|text| text.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('_')))
    }
}

/// Describes a missing attribute, or one that is sent under a similar name. Most requests lack that of a list entry.
fn near_name(name: &str, unused: &[&str], is_rule: bool) -> Option<String> {
    match unused.iter().find(|sent| nearest(sent, [name], TYPO).is_some()) {
        Some(sent) => Some(format!("it asks for {}, and the request has {}", shown(name), shown(sent))),
        None => is_rule.then(|| format!("only {} is missing", shown(name))),
    }
}

fn near_value(condition: &Condition, attributes: &[(&str, &str)]) -> Option<String> {
    let is = value(attributes, &condition.attribute)?;
    let expected = condition.any_of.iter().filter_map(|pattern| pattern.as_exact());
    let near = nearest(is, expected, TYPO)?;
    let case = if near.eq_ignore_ascii_case(is) { ": values are compared by case" } else { "" };
    Some(format!("{} is {}, and it asks for {}{case}", shown(&condition.attribute), shown(is), shown(near)))
}

/// Returns the value of an attribute as rules see it: the first with this name; an empty value is absent.
pub(crate) fn value<'a>(attributes: &[(&str, &'a str)], name: &str) -> Option<&'a str> {
    let first = attributes.iter().find(|(known, _)| *known == name);
    first.map(|(_, value)| *value).filter(|value| !value.is_empty())
}
