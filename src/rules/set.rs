//! The rule set, swapped whole: domains by name, each with its rules and their index.

use std::sync::Arc;

use super::index::{Index, Selection};
use super::names::Names;
use super::rule::Rule;

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

/// The rules of one domain, in file order.
#[derive(Debug)]
pub struct Domain {
    name: Box<str>,
    rules: Vec<Rule>,
    index: Index,
}

impl Domain {
    /// A domain and its rules, which are numbered by their place.
    #[must_use]
    pub fn new(name: &str, rules: Vec<Rule>) -> Domain {
        let index = Index::new(&rules);
        Domain { name: name.into(), rules, index }
    }

    /// The domain's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The rules, in file order.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Finds the enabled rules that match these attributes (the first value of a name wins, an empty one is
    /// absent) and replaces what `matching` held by their numbers, in file order.
    pub fn select<'a>(
        &self,
        attributes: &[(&'a str, &'a str)],
        selection: &mut Selection<'a>,
        matching: &mut Vec<u32>,
    ) {
        self.index.select(attributes, selection, matching);
    }

    /// The values that a matching rule counts by, in the order of its key.
    pub fn key_values<'s, 'a>(
        &'s self,
        rule: u32,
        selection: &'s Selection<'a>,
    ) -> impl ExactSizeIterator<Item = &'a str> + 's {
        self.index.key_values(rule, selection)
    }
}
