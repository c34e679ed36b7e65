//! A view of the rules, list entries and shedder parts in force, with their effective modes.

use std::sync::Arc;

use super::Engine;
use super::ruling::{CompiledDomain, CompiledRuleSet};
use crate::rules::shed::{Shed, ShedPart};
use crate::rules::{Domain, ListKind, Mode, Position, Rule, RuleSet};

/// The rules in force at one moment; they are not freed while this exists.
#[derive(Clone, Debug)]
pub struct InForce(Arc<CompiledRuleSet>);

/// One rule, list entry or shedder part.
#[derive(Clone, Debug)]
pub struct RuleInForce<'r> {
    /// Its domain.
    pub domain: &'r str,
    /// Its name in the domain; that of a shedder part has a slash: `web/workers`.
    pub name: &'r str,
    /// Its kind.
    pub kind: RuleKind<'r>,
    /// The effective mode, including overrides.
    pub mode: Mode,
    /// Its span in the rules file.
    pub position: &'r Position,
}

/// The kind of an item in force.
#[derive(Clone, Copy, Debug)]
pub enum RuleKind<'r> {
    /// A limit, or a node of the descriptor tree.
    Limit(&'r Rule),
    /// A list entry.
    Listed(ListKind),
    /// A shedder part of a pool.
    Shedder(&'r Shed, ShedPart),
}

impl Engine {
    /// Returns the rules in force.
    #[must_use]
    pub fn in_force(&self) -> InForce {
        InForce(self.rule_set.load_full())
    }
}

impl InForce {
    /// The rule set as read.
    #[must_use]
    pub fn rules(&self) -> &RuleSet {
        &self.0.rules
    }

    /// All items: by domain, the limits in file order, then lists, then shedder parts.
    pub fn each(&self) -> impl Iterator<Item = RuleInForce<'_>> {
        let ruling = &*self.0;
        ruling.each_domain().flat_map(move |(domain, terms)| {
            let limits = limits(ruling, domain, terms);
            limits.chain(lists(ruling, domain)).chain(shedders(domain, terms))
        })
    }
}

fn limits<'r>(
    ruling: &'r CompiledRuleSet,
    domain: &'r Domain,
    terms: &'r CompiledDomain,
) -> impl Iterator<Item = RuleInForce<'r>> {
    domain.rules().iter().zip(&terms.rules).map(move |(rule, terms)| RuleInForce {
        domain: domain.name(),
        name: &rule.name,
        kind: RuleKind::Limit(rule),
        mode: match (ruling.disabled || rule.mode == Mode::Disabled, terms.enforced) {
            (true, _) => Mode::Disabled,
            (false, true) => Mode::Enforce,
            (false, false) => Mode::Shadow,
        },
        position: &rule.position,
    })
}

fn lists<'r>(ruling: &'r CompiledRuleSet, domain: &'r Domain) -> impl Iterator<Item = RuleInForce<'r>> {
    domain.lists().iter().map(move |listed| RuleInForce {
        domain: domain.name(),
        name: &listed.name,
        kind: RuleKind::Listed(listed.kind),
        mode: match listed.kind {
            _ if ruling.disabled || listed.mode == Mode::Disabled => Mode::Disabled,
            ListKind::Deny => listed.mode.max(ruling.mode),
            ListKind::Exempt => Mode::Enforce,
        },
        position: &listed.position,
    })
}

/// The configured shedder parts.
fn shedders<'r>(domain: &'r Domain, terms: &'r CompiledDomain) -> impl Iterator<Item = RuleInForce<'r>> {
    domain.sheds().iter().zip(&terms.gates).flat_map(move |(shed, gate)| {
        ShedPart::ALL.into_iter().filter(|part| shed.mode(*part).is_some()).filter_map(move |part| {
            Some(RuleInForce {
                domain: domain.name(),
                name: domain.shedder_name(gate.first + part as u32)?,
                kind: RuleKind::Shedder(shed, part),
                mode: gate.shedding.mode(part).unwrap_or(Mode::Disabled),
                position: &shed.position,
            })
        })
    })
}
