//! Evaluates one request in one domain, in the order of evaluation. It prints nothing and reads no counters.

use crate::engine::UNIT_REQUESTS;
use crate::protocol::DescriptorList;
use crate::rules::{
    Condition, Domain, KeyScratch, ListKind, ListedEntry, Mismatch, Mode, NodeHits, Prioritize, Rule,
    Selection,
};

#[derive(Debug)]
pub(super) struct ExplainedRequest<'a> {
    pub(super) descriptors: &'a DescriptorList<'a>,
    /// Costs by unit.
    pub(super) cost: Vec<(&'a str, u32)>,
    pub(super) priority: Option<&'a str>,
}

#[derive(Debug)]
pub(super) struct Explained<'d> {
    pub(super) domain: &'d Domain,
    /// `None` if the domain has no priorities.
    pub(super) priority: Option<(&'d str, PriorityBy<'d>)>,
    /// List entries, each with the reason why it does not match; `None` if it matches.
    pub(super) lists: Vec<(&'d ListedEntry, Option<Mismatch<'d>>)>,
    /// The entry that decides before any rule, if one matches.
    pub(super) decided: Option<&'d ListedEntry>,
    /// Rules that match by attributes, in file order, then the tree nodes that are hit.
    pub(super) rules: Vec<ExplainFinding<'d>>,
    /// Outcome of each descriptor in the tree; empty if there is no tree.
    pub(super) descriptors: Vec<TreeOutcome>,
}

/// Source of a request's priority.
#[derive(Clone, Copy, Debug)]
pub(super) enum PriorityBy<'d> {
    /// The request names it.
    Request,
    /// An entry of `prioritize`.
    Entry(&'d Prioritize),
    /// The last priority: no entry matches.
    Last,
}

#[derive(Debug)]
pub(super) struct ExplainFinding<'d> {
    pub(super) rule: &'d Rule,
    pub(super) stands: Result<Counted, MismatchReason<'d>>,
}

/// Why a rule does not count the request.
#[derive(Debug)]
pub(super) enum MismatchReason<'d> {
    Matching(Mismatch<'d>),
    /// The cost does not contain its unit.
    Unit(&'d str),
}

/// Key under which a rule counts a request.
#[derive(Debug)]
pub(super) struct Counted {
    /// Attributes with their values after transformation.
    pub(super) key: Vec<(String, String)>,
    /// Index of the allowance.
    pub(super) allowance: u32,
    pub(super) by: AllowanceBy,
    pub(super) cost: u64,
}

/// Source of a key's allowance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AllowanceBy {
    /// The rule's own numbers.
    Rule,
    /// A row of its table.
    Row,
    /// Index of the entry in the rule's overrides, from 0.
    Listed(usize),
}

/// Outcome of one descriptor in the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TreeOutcome {
    /// No node of its depth has a limit.
    Free,
    /// This rule counts it.
    Counts(Box<str>),
    /// The limit of another descriptor replaces this rule.
    Replaced(Box<str>),
}

/// Evaluates lists, rules and tree for a request.
pub(super) fn explain<'d>(domain: &'d Domain, asked: &ExplainedRequest<'_>) -> Explained<'d> {
    let attributes = asked.descriptors.attributes();
    let (mut selection, mut matching) = (Selection::default(), Vec::new());
    domain.select(attributes, &mut selection, &mut matching);
    let behind = domain.rules().len();
    let lists: Vec<_> = (behind..)
        .filter_map(|number| u32::try_from(number).ok())
        .zip(domain.lists())
        .map(|(number, listed)| (listed, domain.why_not(number, attributes)))
        .collect();
    let speaks = |listed: &ListedEntry| listed.mode == Mode::Enforce;
    let first =
        |kind| lists.iter().find(|(listed, why)| listed.kind == kind && speaks(listed) && why.is_none());
    let decided = first(ListKind::Exempt).or_else(|| first(ListKind::Deny)).map(|(listed, _)| *listed);
    let mut rules = Vec::new();
    let mut descriptors = Vec::new();
    if decided.is_none() {
        for (number, rule) in (0..).zip(domain.rules()) {
            if domain.tree().path(number).is_none() {
                rules.push(of_rule(domain, number, rule, &selection, asked));
            }
        }
        descriptors = in_tree(domain, asked, &mut rules);
    }
    let priority = domain.priority(asked.priority, &selection);
    let priority = priority.map(|name| (name, priority_by(domain, asked)));
    Explained { domain, priority, lists, decided, rules, descriptors }
}

fn of_rule<'d>(
    domain: &'d Domain,
    number: u32,
    rule: &'d Rule,
    selection: &Selection<'_>,
    asked: &ExplainedRequest<'_>,
) -> ExplainFinding<'d> {
    let attributes = asked.descriptors.attributes();
    if let Some(why) = domain.why_not(number, attributes) {
        return ExplainFinding { rule, stands: Err(MismatchReason::Matching(why)) };
    }
    let unit = rule.unit.as_deref().unwrap_or(UNIT_REQUESTS);
    let Some((_, cost)) = asked.cost.iter().find(|(named, _)| *named == unit) else {
        return ExplainFinding { rule, stands: Err(MismatchReason::Unit(unit)) };
    };
    let mut scratch = KeyScratch::default();
    let key = domain.transformed_key(number, selection, &mut scratch);
    let allowance = domain.allowance_of(number, selection, key.values());
    let has_row = || rule.overrides.as_deref().is_some_and(|own| own.rows.number_of(key.values()).is_some());
    let by = match rule.overrides.as_deref() {
        Some(_) if has_row() => AllowanceBy::Row,
        Some(own) if domain.override_of(number, selection).is_some() => {
            let holds = |(of, _): &(Vec<Condition>, u32)| {
                of.iter().all(|one| one.holds(value(attributes, &one.attribute)))
            };
            own.list.iter().position(holds).map_or(AllowanceBy::Rule, AllowanceBy::Listed)
        }
        _ => AllowanceBy::Rule,
    };
    let attributes = rule.key.iter().map(|part| part.attribute.to_string());
    let key = attributes.zip(key.values().map(str::to_owned)).collect();
    ExplainFinding { rule, stands: Ok(Counted { key, allowance, by, cost: u64::from(*cost) }) }
}

/// Appends the tree nodes that are hit and returns the outcome of each descriptor.
fn in_tree<'d>(
    domain: &'d Domain,
    asked: &ExplainedRequest<'_>,
    rules: &mut Vec<ExplainFinding<'d>>,
) -> Vec<TreeOutcome> {
    let tree = domain.tree();
    if tree.is_empty() {
        return Vec::new();
    }
    let mut hits = NodeHits::new();
    tree.select_hits(asked.descriptors.iter(), &mut hits);
    let cost = asked.cost.iter().find(|(unit, _)| *unit == UNIT_REQUESTS).map(|(_, cost)| u64::from(*cost));
    for hit in &hits {
        let Some(rule) = domain.rules().get(hit.hit.rule as usize) else { continue };
        let stands = match cost {
            None => Err(MismatchReason::Unit(UNIT_REQUESTS)),
            Some(cost) => {
                let descriptor =
                    asked.descriptors.iter().nth(usize::from(hit.descriptor)).unwrap_or_default();
                let values: Vec<_> = tree.key_values(hit.hit, descriptor).map(str::to_owned).collect();
                let (pairs, _) = values.as_chunks::<2>();
                let key = pairs.iter().map(|[key, value]| (key.clone(), value.clone())).collect();
                let cost = cost * u64::from(hit.times);
                Ok(Counted { key, allowance: 0, by: AllowanceBy::Rule, cost })
            }
        };
        rules.push(ExplainFinding { rule, stands });
    }
    let of_descriptor = |descriptor: &[(&str, &str)]| {
        let Some(found) = tree.find(descriptor) else { return TreeOutcome::Free };
        let name = domain.rules().get(found.rule as usize).map(|rule| rule.name.clone()).unwrap_or_default();
        // A replaced node is replaced for all descriptors that lead to it.
        if hits.iter().any(|hit| hit.hit.rule == found.rule) {
            TreeOutcome::Counts(name)
        } else {
            TreeOutcome::Replaced(name)
        }
    };
    asked.descriptors.iter().map(of_descriptor).collect()
}

fn priority_by<'d>(domain: &'d Domain, asked: &ExplainedRequest<'_>) -> PriorityBy<'d> {
    if asked.priority.is_some_and(|asked| domain.priorities().iter().any(|name| **name == *asked)) {
        return PriorityBy::Request;
    }
    let attributes = asked.descriptors.attributes();
    let holds = |entry: &&Prioritize| {
        entry.conditions.iter().all(|condition| condition.holds(value(attributes, &condition.attribute)))
    };
    domain.prioritize().iter().find(holds).map_or(PriorityBy::Last, PriorityBy::Entry)
}

/// Returns the value of an attribute as rules see it: the first with this name; an empty value is absent.
pub(super) fn value<'a>(attributes: &[(&str, &'a str)], name: &str) -> Option<&'a str> {
    let first = attributes.iter().find(|(known, _)| *known == name);
    first.map(|(_, value)| *value).filter(|value| !value.is_empty())
}
