//! The selection of rules for requests of one shape, found once for each rule set.

use std::cell::RefCell;

use super::request::Request;
use super::rule_set::{CompiledDomain, CompiledRuleSet};
use crate::rules::{Mode, NamesSelection, Selection};

/// What requests of one domain with the same names of attributes match. Each connection keeps one for the shape that it
/// knows.
#[derive(Debug, Default)]
pub struct KnownSelection(RefCell<Option<RuleSetSelection>>);

#[derive(Debug)]
struct RuleSetSelection {
    /// The number of its rule set.
    rule_set: u64,
    /// The index of the domain.
    domain: usize,
    /// `None`: values decide.
    by_names: Option<NamesSelection>,
}

impl CompiledRuleSet {
    /// Finds the domain of a request, and the rules and list entries that match and are not disabled.
    #[inline(always)]
    pub(super) fn select<'a>(
        &self,
        request: &Request<'a>,
        selection: &mut Selection<'a>,
        matching: &mut Vec<u32>,
    ) -> &CompiledDomain {
        if let Some(known) = request.known_selection {
            if let Some(known) = &*known.0.borrow()
                && known.rule_set == self.number
            {
                if let Some(by_names) = &known.by_names
                    && let Some(compiled) = self.domains.get(known.domain)
                    && by_names.select(request.descriptors.attributes, selection, matching)
                {
                    return compiled;
                }
            } else {
                self.learn_selection(known, request);
            }
        }
        let compiled = self.find_or_unlimited(request.domain);
        compiled.select(request.descriptors.attributes, selection, matching);
        compiled
    }

    #[cold]
    fn learn_selection(&self, known: &KnownSelection, request: &Request<'_>) {
        let domain = self.names.find(request.domain).filter(|_| self.mode != Mode::Disabled);
        let compiled = domain.and_then(|domain| self.domains.get(domain));
        let by_names = compiled.and_then(|compiled| {
            let mut found = compiled.domain.select_by_names(request.descriptors.attributes)?;
            found.matching.retain(|number| compiled.disabled.binary_search(number).is_err());
            Some(found)
        });
        let domain = domain.unwrap_or_default();
        *known.0.borrow_mut() = Some(RuleSetSelection { rule_set: self.number, domain, by_names });
    }
}
