//! The rule set, swapped whole: domains by name, each with its rules and their index.

mod named;

use std::sync::Arc;

use super::index::Index;
use super::names::Names;
use super::shed::{self, Shed};
use super::{
    Condition, KeyPart, KeyScratch, Listed, Mode, Overrides, Pattern, Priorities, Prioritize, Rule,
    Selection, Tree,
};

pub use named::{Kind, Named, NotItsKey};

/// All domains that have rules.
#[derive(Debug, Default)]
pub struct RuleSet {
    names: Names,
    domains: Vec<Arc<Domain>>,
}

impl RuleSet {
    /// A set of domains, each shared with whoever else holds it. Of two with one name the first stays: the reader lets
    /// no two pass.
    #[must_use]
    pub fn new<D: Into<Arc<Domain>>>(domains: impl IntoIterator<Item = D>) -> RuleSet {
        let mut domains: Vec<Arc<Domain>> = domains.into_iter().map(Into::into).collect();
        let mut names = Names::default();
        let mut known = 0;
        domains.retain(|domain| {
            let is_new = names.intern(&domain.name) == known;
            known += usize::from(is_new);
            is_new
        });
        RuleSet { names, domains }
    }

    /// The domains, in the order they were given.
    #[must_use]
    pub fn domains(&self) -> &[Arc<Domain>] {
        &self.domains
    }

    /// Where in [`RuleSet::domains`] the domain of this name stands.
    #[inline]
    #[must_use]
    pub fn find(&self, name: &str) -> Option<usize> {
        self.names.find(name)
    }
}

/// The rules and lists of one domain, in file order.
#[derive(Debug)]
pub struct Domain {
    name: Box<str>,
    rules: Vec<Rule>,
    lists: Vec<Listed>,
    priorities: Priorities,
    sheds: Vec<Shed>,
    /// Of each part of each of them.
    shedder_names: Vec<Box<str>>,
    tree: Arc<Tree>,
    index: Index,
}

/// What a domain is made of.
#[derive(Debug, Default)]
pub struct Contents {
    /// The rules, which are numbered by their place.
    pub rules: Vec<Rule>,
    /// The entries of `exempt` and `deny`.
    pub lists: Vec<Listed>,
    /// The priorities and what requests have them.
    pub priorities: Priorities,
    /// What watches over pools.
    pub sheds: Vec<Shed>,
    /// The descriptor tree. The rules of its nodes are numbered behind the others.
    pub tree: Tree,
}

/// The first reason why a rule does not match a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhyNot<'d> {
    /// Its mode is disabled.
    Disabled,
    /// The request has no such attribute, or an empty one.
    Absent {
        /// The attribute.
        attribute: &'d str,
        /// The line of the condition that asks for it; 0: it is part of the key.
        line: u32,
    },
    /// The attribute has none of the values that this asks for.
    Condition(&'d Condition),
}

impl Domain {
    /// A domain and its rules, which are numbered by their place.
    #[must_use]
    pub fn new(name: &str, rules: Vec<Rule>) -> Domain {
        Domain::with(name, Contents { rules, ..Contents::default() })
    }

    /// A domain of all this.
    #[must_use]
    pub fn with(name: &str, contents: Contents) -> Domain {
        let Contents { mut rules, mut lists, priorities, sheds, mut tree } = contents;
        lists.sort_by_key(|listed| listed.kind);
        // The nodes of the tree are found by the tree: no attribute of a request leads to them.
        let index = Index::new(&rules, rules.len() + tree.rules_len(), &lists, &priorities);
        tree.hang_behind(&mut rules);
        let names = |shed: &Shed| shed::Part::ALL.map(|part| shed.rule_name(part).into_boxed_str());
        let shedder_names = sheds.iter().flat_map(names).collect();
        let tree = Arc::new(tree);
        Domain { name: name.into(), rules, lists, priorities, sheds, shedder_names, tree, index }
    }

    /// The domain's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The rules, in file order, and behind them those of the descriptor tree's nodes.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Whether the rules compare or transform the values of an attribute, beyond counting equal ones together.
    #[must_use]
    pub fn looks_at(&self, attribute: &str) -> bool {
        let in_conditions = |conditions: &[Condition]| {
            let looks = |condition: &Condition| !condition.any_of.iter().all(Pattern::is_any);
            conditions.iter().any(|condition| *condition.attribute == *attribute && looks(condition))
        };
        let in_overrides =
            |overrides: &Overrides| overrides.list.iter().any(|(conditions, _)| in_conditions(conditions));
        let in_key = |rule: &Rule| {
            let looks = |part: &KeyPart| !part.is_plain() || rule.overrides.is_some();
            rule.key.iter().any(|part| *part.attribute == *attribute && looks(part))
        };
        let in_tree = |text: &str| text.strip_prefix(attribute).is_some_and(|value| value.starts_with('_'));
        { self.rules.iter() }.any(|rule| {
            in_conditions(&rule.conditions)
                || rule.overrides.as_deref().is_some_and(in_overrides)
                || in_key(rule)
        }) || self.lists.iter().any(|listed| in_conditions(&listed.conditions))
            || self.prioritize().iter().any(|entry| in_conditions(&entry.conditions))
            || self.tree.texts().any(in_tree)
    }

    /// The descriptor tree.
    #[must_use]
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// The entries of `exempt` in file order, then those of `deny`.
    #[must_use]
    pub fn lists(&self) -> &[Listed] {
        &self.lists
    }

    /// The entry of a list that has this number: they are numbered behind the rules.
    #[must_use]
    pub fn listed(&self, number: u32) -> Option<&Listed> {
        self.lists.get((number as usize).checked_sub(self.rules.len())?)
    }

    /// What watches over pools, in file order.
    #[must_use]
    pub fn sheds(&self) -> &[Shed] {
        &self.sheds
    }

    /// The number of a part of an entry of [`Domain::sheds`]: they are numbered behind the lists, each entry with a
    /// number for every part.
    #[must_use]
    pub fn shedder(&self, entry: usize, part: shed::Part) -> u32 {
        let number = self.rules.len() + self.lists.len() + entry * shed::Part::ALL.len() + part as usize;
        u32::try_from(number).unwrap_or(u32::MAX)
    }

    /// The name of the shedder that has this number, such as `web/workers`.
    #[must_use]
    pub fn shedder_name(&self, number: u32) -> Option<&str> {
        let behind = (number as usize).checked_sub(self.rules.len() + self.lists.len())?;
        self.shedder_names.get(behind).map(|name| &**name)
    }

    /// The names of the priorities, from the most important to the least.
    #[must_use]
    pub fn priorities(&self) -> &[Box<str>] {
        &self.priorities.names
    }

    /// What gives a request its priority that does not say, in file order.
    #[must_use]
    pub fn prioritize(&self) -> &[Prioritize] {
        &self.priorities.prioritize
    }

    /// The priority of a request: the one it asks for if the domain knows it, else that of the first entry of
    /// `prioritize` that matches, else the last. `None`: the domain has no priorities.
    #[must_use]
    pub fn priority<'d>(&'d self, asked: Option<&str>, selection: &Selection<'_>) -> Option<&'d str> {
        let place = self.priority_place(asked, selection)?;
        self.priorities.names.get(place).map(|name| &**name)
    }

    /// The same as its place in [`Domain::priorities`].
    #[must_use]
    pub fn priority_place(&self, asked: Option<&str>, selection: &Selection<'_>) -> Option<usize> {
        let names = &self.priorities.names;
        let known = asked.and_then(|asked| names.iter().position(|name| **name == *asked));
        known.or_else(|| self.index.priority_of(selection)).or(names.len().checked_sub(1))
    }

    /// Finds the enabled rules and the entries of lists that match these attributes (the first value of a name wins,
    /// an empty one is absent) and replaces what `matching` held by their numbers, in order: rules in file order,
    /// then entries as in [`Domain::lists`].
    #[inline(always)]
    pub fn select<'a>(
        &self,
        attributes: &[(&'a str, &'a str)],
        selection: &mut Selection<'a>,
        matching: &mut Vec<u32>,
    ) {
        self.index.select(attributes, selection, matching);
    }

    /// The values that a matching rule counts by as they were sent, in the order of its key.
    pub fn key_values<'s, 'a>(
        &'s self,
        rule: u32,
        selection: &'s Selection<'a>,
    ) -> impl ExactSizeIterator<Item = &'a str> + Clone + 's {
        self.index.key_values(rule, selection)
    }

    /// Whether a rule counts by the values as they were sent.
    #[must_use]
    pub fn key_is_plain(&self, rule: u32) -> bool {
        self.rules.get(rule as usize).is_none_or(|rule| rule.key.iter().all(KeyPart::is_plain))
    }

    /// The values that a matching rule counts by, in the order of its key, each as its key transforms it. A scratch
    /// that was used before allocates nothing.
    pub fn transformed_key<'s>(
        &self,
        rule: u32,
        selection: &Selection<'_>,
        scratch: &'s mut KeyScratch,
    ) -> &'s KeyScratch {
        let key = self.rules.get(rule as usize).map_or(&[][..], |rule| &rule.key);
        scratch.fill(key.iter().map(|part| part.transform).zip(self.index.key_values(rule, selection)));
        scratch
    }

    /// The number of the allowance that the first of a rule's `overrides` gives whose conditions hold.
    #[must_use]
    pub fn override_of(&self, rule: u32, selection: &Selection<'_>) -> Option<u32> {
        self.index.override_of(rule, selection)
    }

    /// The number of the allowance that a matching rule gives a request: that of the row of its key,
    /// which is asked for as it is counted by, else that of the first override whose conditions hold, else 0.
    #[must_use]
    pub fn allowance_of<'v>(
        &self,
        rule: u32,
        selection: &Selection<'_>,
        key: impl Iterator<Item = &'v str> + Clone,
    ) -> u32 {
        let overrides = self.rules.get(rule as usize).and_then(|rule| rule.overrides.as_deref());
        let Some(overrides) = overrides else { return 0 };
        overrides.rows.number_of(key).or_else(|| self.override_of(rule, selection)).unwrap_or(0)
    }

    /// The first reason why a rule, or an entry of a list, does not match these attributes; `None` if it does, or if
    /// there is none of this number. It looks at each condition: for people, not for every request.
    #[must_use]
    pub fn why_not(&self, number: u32, attributes: &[(&str, &str)]) -> Option<WhyNot<'_>> {
        let rule = self.rules.get(number as usize);
        let mode = rule.map(|rule| rule.mode).or_else(|| self.listed(number).map(|listed| listed.mode));
        if mode == Some(Mode::Disabled) {
            return Some(WhyNot::Disabled);
        }
        let value = |name: &str| {
            let first = attributes.iter().find(|(known, _)| *known == name);
            first.map(|(_, value)| *value).filter(|value| !value.is_empty())
        };
        let (conditions, key) = match (rule, self.listed(number)) {
            (Some(rule), _) => (&rule.conditions, &*rule.key),
            (None, Some(listed)) => (&listed.conditions, &[][..]),
            (None, None) => return None,
        };
        let failing = conditions.iter().find(|condition| !condition.holds(value(&condition.attribute)));
        if let Some(condition) = failing {
            return Some(match value(&condition.attribute) {
                None => WhyNot::Absent { attribute: &condition.attribute, line: condition.line },
                Some(_) => WhyNot::Condition(condition),
            });
        }
        let missing = key.iter().find(|part| value(&part.attribute).is_none());
        missing.map(|part| WhyNot::Absent { attribute: &part.attribute, line: 0 })
    }
}
