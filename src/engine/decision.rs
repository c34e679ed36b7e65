//! What the engine answers.

use super::asking::Ticket;
use super::judgement::stage;
use super::part::Part;
use crate::clock::Micros;
use crate::limit::Level;
use crate::rules::{Domain, Listed, Rule, candidate_of};
use std::sync::Arc;

/// What comes of asking.
#[derive(Debug)]
#[must_use]
pub enum Answer<'d> {
    /// The verdict and what is said with it.
    Decided(Decision<'d>),
    /// The name that should make it a repeat belongs to another request: nothing is judged.
    Conflict,
    /// The session or its user holds too many leases: nothing is judged.
    Quota,
    /// It depends on what a call brings, and nothing is charged: see [`Decider::resume`](super::Decider::resume). Only who
    /// [may wait](super::Request::may_wait) is told so.
    Ask(Arc<Ticket>),
}

/// A verdict and what is said with it. Borrows from the [`Decider`](super::Decider) until it asks again.
#[derive(Debug)]
#[must_use]
pub struct Decision<'d> {
    /// Whether the work may start.
    pub verdict: Verdict,
    /// The binding rule: of those that refuse the one with the longest wait, of those that pass the one with the
    /// least left. Ties go to the first in the file.
    pub binding: Option<LimitView<'d>>,
    /// The entry of a list that decided before any rule.
    pub listed: Option<&'d Listed>,
    /// The shedder that refused what no limit did, such as `web/workers`.
    pub shedder: Option<&'d str>,
    /// What to release when the work ends.
    pub lease: Option<u64>,
    /// Zero when allowed; before work that waits, its wait; of a rate the smallest wait after which the same request
    /// alone would pass, `None` if none is; of anything else a hint, the same for the same caller.
    pub retry: Option<Micros>,
    /// How important the request is; `None` where the domain has no priorities.
    pub priority: Option<&'d str>,
    pub(super) domain: Option<&'d Domain>,
    pub(super) notes: &'d [(NoteKind, u32)],
    pub(super) all: &'d [(u32, Level)],
    pub(super) looked_at: LookedAt<'d>,
}

/// The keys that a decision looked at.
#[derive(Clone, Copy, Debug)]
pub(super) enum LookedAt<'d> {
    /// The key of one rule.
    One(RuleCheck),
    /// Those of all rules that judged.
    Parts(&'d [Part]),
}

impl<'d> Decision<'d> {
    /// Allowed, and nothing to say about it.
    pub(super) fn unlimited() -> Decision<'d> {
        Decision {
            verdict: Verdict::Allow,
            binding: None,
            listed: None,
            shedder: None,
            lease: None,
            retry: Some(Micros::ZERO),
            priority: None,
            domain: None,
            notes: &[],
            all: &[],
            looked_at: LookedAt::Parts(&[]),
        }
    }

    /// What each rule that was asked said, in file order.
    pub fn checks(&self) -> impl Iterator<Item = RuleCheck> + 'd {
        let (one, parts) = match self.looked_at {
            LookedAt::One(check) => (Some(check), &[][..]),
            LookedAt::Parts(parts) => (None, parts),
        };
        let stage = stage(parts);
        one.into_iter().chain(parts.iter().map(move |part| part.check(stage)))
    }

    /// What else is worth knowing, with the rule it is about, in file order.
    pub fn notes(&self) -> impl ExactSizeIterator<Item = (NoteKind, &'d str)> + '_ {
        self.notes.iter().map(|(kind, rule)| {
            let name = self.name(*rule);
            match (kind, candidate_of(name)) {
                (NoteKind::Shadow, Some(rule)) => (NoteKind::Candidate, rule),
                _ => (*kind, name),
            }
        })
    }

    /// Every limit that matched, in file order; empty unless it was asked for.
    pub fn all(&self) -> impl Iterator<Item = LimitView<'d>> + '_ {
        self.all.iter().filter_map(|(rule, level)| Some(LimitView { rule: self.rule(*rule)?, level: *level }))
    }

    /// The name of what binds: a rule, the entry of a list, or a shedder.
    #[must_use]
    pub fn rule_name(&self) -> Option<&'d str> {
        let listed = self.listed.map(|listed| &*listed.name);
        self.shedder.or(listed).or(self.binding.map(|view| &*view.rule.name))
    }

    /// The name of a rule, of the entry of a list, or of a shedder that has this number.
    fn name(&self, number: u32) -> &'d str {
        let listed = || self.domain?.listed(number).map(|listed| &*listed.name);
        let shedder = || self.domain?.shedder_name(number);
        self.rule(number).map(|rule| &*rule.name).or_else(listed).or_else(shedder).unwrap_or_default()
    }

    fn rule(&self, number: u32) -> Option<&'d Rule> {
        self.domain?.rules().get(number as usize)
    }
}

/// What one rule said of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleCheck {
    /// The rule's number in its domain.
    pub rule: u32,
    /// What tells the rule's keys apart.
    pub key: u64,
    /// What it cost, in the unit of the rule.
    pub cost: u32,
    /// Whether it fitted. What was not asked, for another refused before, refuses nothing.
    pub passes: bool,
}

/// One limit and where the caller stands with it.
#[derive(Clone, Copy, Debug)]
pub struct LimitView<'d> {
    /// The rule.
    pub rule: &'d Rule,
    /// After the work for a grant; as it is for a refusal and a PEEK.
    pub level: Level,
}

impl LimitView<'_> {
    /// Whether it goes before another one in a grant.
    pub(super) fn is_less(&self, least: &LimitView<'_>) -> bool {
        if self.rule.advertise != least.rule.advertise {
            return self.rule.advertise;
        }
        // remaining ÷ limit, multiplied out; neither is above 2³², so the products fit.
        self.level.remaining * least.level.limit < least.level.remaining * self.level.limit
    }
}

/// Whether the work may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It may.
    Allow,
    /// This caller is over a limit of his own.
    Limit,
    /// It may, after a wait.
    Wait,
    /// It is on a deny list.
    Deny,
    /// The host or the fleet is full.
    Shed,
}

/// What a note says about its rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoteKind {
    /// A shadow rule that would have refused.
    Shadow,
    /// A rule whose candidate would have refused.
    Candidate,
    /// A rule that let it pass above its quota.
    Over,
    /// A rule whose key is past the share of its limit at which to warn.
    Near,
    /// A descriptor in quota mode whose limit it is over.
    Quota,
}

impl NoteKind {
    /// All of them.
    pub const ALL: [NoteKind; 5] =
        [NoteKind::Shadow, NoteKind::Candidate, NoteKind::Over, NoteKind::Near, NoteKind::Quota];

    /// The name on the wire.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            NoteKind::Shadow => "shadow",
            NoteKind::Candidate => "candidate",
            NoteKind::Over => "over",
            NoteKind::Near => "near",
            NoteKind::Quota => "quota",
        }
    }
}

/// Why no rule was judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmatched {
    /// There is no such domain.
    Domain,
    /// The domain has no rule for it.
    Rule,
}

/// Why a charge is not carried out. Nothing changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotCharged {
    /// Its name belongs to another request.
    #[error(transparent)]
    Conflict(#[from] Conflict),
    /// It gives back and does not name what it refunds.
    #[error("a negative amount must name what it refunds")]
    RefundsNothing,
}

/// The name that should make a charge a repeat belongs to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the same `idem` was used for another request")]
pub struct Conflict;
