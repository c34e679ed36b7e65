//! A view of the rules, list entries and shedder parts in force, with their effective modes.

use std::sync::Arc;

use super::Engine;
use super::rule_set::CompiledRuleSet;
use crate::rules::{Domain, NamedItem};

/// The rules in force at one moment; they are not freed while this exists.
#[derive(Clone, Debug)]
pub struct InForce(Arc<CompiledRuleSet>);

impl Engine {
    /// Returns the rules in force.
    #[must_use]
    pub fn in_force(&self) -> InForce {
        InForce(self.rule_set.load_full())
    }
}

impl InForce {
    /// The domains as read.
    pub fn domains(&self) -> impl ExactSizeIterator<Item = &Arc<Domain>> {
        self.0.domains.iter().map(|compiled| &compiled.domain)
    }

    /// All items with their effective modes: by domain, the limits in file order, then lists, then shedder
    /// parts.
    pub fn each(&self) -> impl Iterator<Item = NamedItem<'_>> {
        self.0.domains.iter().flat_map(|compiled| {
            compiled.domain.named().zip(compiled.modes()).map(|(named, mode)| NamedItem { mode, ..named })
        })
    }
}
