//! What is in force, for whoever looks: every rule, entry of a list and part of a pool, with the mode that it really has.

use std::sync::Arc;

use super::Engine;
use super::ruling::{DomainTerms, Ruling};
use crate::rules::shed::{Part, Shed};
use crate::rules::{Domain, ListKind, Mode, Position, Rule, RuleSet};

/// The rules in force at one moment. Whoever holds it keeps them from being freed.
#[derive(Clone, Debug)]
pub struct InForce(Arc<Ruling>);

/// One thing that may refuse, or exempt.
#[derive(Clone, Debug)]
pub struct RuleInForce<'r> {
    /// Its domain.
    pub domain: &'r str,
    /// Its name in the domain; that of a part of a pool has a slash: `web/workers`.
    pub name: &'r str,
    /// What it is.
    pub kind: RuleKind<'r>,
    /// Whether its refusals are carried out, whoever said so.
    pub mode: Mode,
    /// Where it is written.
    pub position: &'r Position,
}

/// What a thing in force is.
#[derive(Clone, Copy, Debug)]
pub enum RuleKind<'r> {
    /// A limit, or a node of the descriptor tree.
    Limit(&'r Rule),
    /// An entry of a list.
    Listed(ListKind),
    /// A part of what watches over a pool.
    Shedder(&'r Shed, Part),
}

impl Engine {
    /// The rules in force now.
    #[must_use]
    pub fn in_force(&self) -> InForce {
        InForce(self.ruling.load_full())
    }
}

impl InForce {
    /// The rules as they were read.
    #[must_use]
    pub fn rules(&self) -> &RuleSet {
        &self.0.rules
    }

    /// Everything in force: by domain, the limits in file order, then lists, then parts of pools.
    pub fn each(&self) -> impl Iterator<Item = RuleInForce<'_>> {
        let ruling = &*self.0;
        ruling.each_domain().flat_map(move |(domain, terms)| {
            let limits = limits(ruling, domain, terms);
            limits.chain(lists(ruling, domain)).chain(shedders(domain, terms))
        })
    }
}

fn limits<'r>(
    ruling: &'r Ruling,
    domain: &'r Domain,
    terms: &'r DomainTerms,
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

fn lists<'r>(ruling: &'r Ruling, domain: &'r Domain) -> impl Iterator<Item = RuleInForce<'r>> {
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

/// Those that are written.
fn shedders<'r>(domain: &'r Domain, terms: &'r DomainTerms) -> impl Iterator<Item = RuleInForce<'r>> {
    domain.sheds().iter().zip(&terms.gates).flat_map(move |(shed, gate)| {
        Part::ALL.into_iter().filter(|part| shed.mode(*part).is_some()).filter_map(move |part| {
            Some(RuleInForce {
                domain: domain.name(),
                name: domain.shedder_name(gate.first + part as u32)?,
                kind: RuleKind::Shedder(shed, part),
                mode: gate.watch.mode(part).unwrap_or(Mode::Disabled),
                position: &shed.position,
            })
        })
    })
}
