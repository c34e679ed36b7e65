//! The answers of the engine.

use super::check::{CheckStage, StageCheck};
use super::digest::{Digest, ShownDigest};
use super::judgement::stage;
use super::remote_check::Shortfalls;
use super::workspace::ListedLimit;
use crate::clock::Micros;
use crate::limit::{Outcome, Quota, QuotaLevel};
use crate::rules::{Domain, ListedEntry, Rule, candidate_of};
use crate::terms::{NoteKind, Verdict};
use std::sync::Arc;

#[derive(Debug)]
#[must_use]
pub enum EngineAnswer<'d> {
    Decided(Decision<'d>),
    /// The idempotency key belongs to another request: nothing is judged.
    Conflict,
    /// The session or its user holds too many leases: nothing is judged.
    TooManyLeases,
    /// A remote check may turn the refusal into a grant, and nothing is charged: see
    /// [`Decider::resume`](super::Decider::resume). Only for requests that [may
    /// wait](super::Request::may_wait).
    RemoteCheck(Arc<Shortfalls>),
}

/// A verdict with its details. Borrows from the [`Decider`](super::Decider) until its next request.
#[derive(Debug)]
#[must_use]
pub struct Decision<'d> {
    pub verdict: Verdict,
    /// The binding rule: of refusing rules the one with the longest wait, of passing rules the one with the
    /// smallest remaining part. Ties go to the first in the file.
    pub binding: Option<LimitView<'d>>,
    /// The list entry that decided before any rule.
    pub listed: Option<&'d ListedEntry>,
    /// The shedder that refused the request although no rule did, such as `web/workers`.
    pub shedder: Option<&'d str>,
    pub lease: Option<u64>,
    /// The retry-after. Zero when allowed; the wait of a delayed request; for rates the smallest wait after
    /// which the same request alone would pass, `None` if there is none; otherwise a hint, which is equal for
    /// equal callers.
    pub retry_after: Option<Micros>,
    /// The priority of the request; `None` in a domain without priorities.
    pub priority: Option<&'d str>,
    /// The rate of the rule that refuses, such as `5/min`; `None` for other verdicts and for concurrency.
    pub rate: Option<&'d str>,
    /// Whether the key is blocked: by an operator, or by the rule after an earlier refusal.
    pub blocked: bool,
    /// Why nothing limits the request; `None` if a rule, a list or a shedder was evaluated.
    pub unmatched: Option<Unmatched>,
    pub(super) domain: Option<&'d Domain>,
    pub(super) notes: &'d [(NoteKind, u32)],
    pub(super) limits_by_index: &'d [ListedLimit],
    pub(super) checked_keys: CheckedKeys<'d>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum CheckedKeys<'d> {
    /// The key of one rule, after a pass with the tag of its state, and its cost there.
    One { rule: u32, key: Digest, cost: u32, passes: bool },
    /// The keys of several rules, with the tag of each state, and the cost at each: all pass.
    Passed { keys: &'d [(u32, Digest)], cost: u32 },
    /// The keys of all rules that judged.
    Several(&'d [StageCheck]),
}

impl<'d> Decision<'d> {
    /// Allows a request that no rule limits.
    pub(super) fn unlimited() -> Decision<'d> {
        Decision {
            verdict: Verdict::Allow,
            binding: None,
            listed: None,
            shedder: None,
            lease: None,
            retry_after: Some(Micros::ZERO),
            priority: None,
            rate: None,
            blocked: false,
            unmatched: None,
            domain: None,
            notes: &[],
            limits_by_index: &[],
            checked_keys: CheckedKeys::Several(&[]),
        }
    }

    /// The check of each rule that was evaluated, in file order.
    pub fn checks(&self) -> impl Iterator<Item = RuleCheck> + 'd {
        let (one, passed, checks) = match self.checked_keys {
            CheckedKeys::One { rule, key, cost, passes } => {
                (Some(RuleCheck { rule, key: key.hash(), cost, passes }), (&[][..], 0), &[][..])
            }
            CheckedKeys::Passed { keys, cost } => (None, (keys, cost), &[][..]),
            CheckedKeys::Several(checks) => (None, (&[][..], 0), checks),
        };
        let stage = stage(checks);
        let (keys, cost) = passed;
        let pass =
            move |(rule, key): &(u32, Digest)| RuleCheck { rule: *rule, key: key.hash(), cost, passes: true };
        one.into_iter().chain(keys.iter().map(pass)).chain(checks.iter().map(move |check| check.check(stage)))
    }

    /// The check of each rule that matched, in file order, with the state of the key. Empty after a hot path that keeps
    /// none: for [`Engine::inspect`](super::Engine::inspect).
    pub fn inspected(&self) -> impl Iterator<Item = InspectedCheck<'d>> + '_ {
        let checks = match self.checked_keys {
            CheckedKeys::One { .. } | CheckedKeys::Passed { .. } => &[][..],
            CheckedKeys::Several(checks) => checks,
        };
        let stage = stage(checks);
        checks.iter().filter_map(move |check| {
            Some(InspectedCheck::new(self.domain?.name(), self.rule_at(check.rule)?, check, stage))
        })
    }

    /// The key of the rule that refuses; `None` for other verdicts.
    pub fn refused_key(&self) -> Option<ShownDigest> {
        let binding = self.binding.filter(|_| self.verdict == Verdict::Limit)?;
        let key = match self.checked_keys {
            CheckedKeys::One { key, .. } => key,
            CheckedKeys::Passed { .. } => return None,
            CheckedKeys::Several(checks) => {
                let is_binding = |rule: &Rule| std::ptr::eq(rule, binding.rule);
                checks.iter().find(|check| self.rule_at(check.rule).is_some_and(is_binding))?.key
            }
        };
        Some(ShownDigest::new(&key, self.domain?.name(), &binding.rule.name))
    }

    /// The notes with the name of their rule, in file order.
    pub fn notes(&self) -> impl ExactSizeIterator<Item = (NoteKind, &'d str)> + '_ {
        self.notes.iter().map(|(kind, rule)| {
            let name = self.rule_name_at(*rule);
            match (kind, candidate_of(name)) {
                (NoteKind::Shadow, Some(rule)) => (NoteKind::ShadowRule, rule),
                _ => (*kind, name),
            }
        })
    }

    /// The notes of a reply: those of rules, and whether nothing limits the request.
    pub fn reply_notes(&self) -> impl Iterator<Item = (NoteKind, &'d str)> + '_ {
        self.notes().chain(self.unmatched.map(|reason| (NoteKind::Unmatched, reason.into())))
    }

    /// What is left under the binding rule, and the time until one more unit is. Whatever a blocked key has left, nothing
    /// passes before the end of the block.
    pub fn remaining(&self) -> Option<(u64, Option<Micros>)> {
        let QuotaLevel { remaining, reset, .. } = self.binding?.level;
        Some(if self.blocked { (0, self.retry_after) } else { (remaining, Some(reset)) })
    }

    /// All matching limits, in file order; empty unless requested.
    pub fn limits(&self) -> impl Iterator<Item = MatchingLimit<'d>> + '_ {
        self.limits_by_index.iter().filter_map(|listed| {
            let view = LimitView { rule: self.rule_at(listed.rule)?, level: listed.level };
            Some(MatchingLimit { view, refuses: listed.refuses, descriptors: listed.descriptors })
        })
    }

    /// The name of the binding rule, list entry or shedder.
    pub fn rule_name(&self) -> Option<&'d str> {
        let listed = self.listed.map(|listed| &*listed.name);
        self.shedder.or(listed).or(self.binding.map(|view| &*view.rule.name))
    }

    fn rule_name_at(&self, number: u32) -> &'d str {
        let listed = || self.domain?.listed(number).map(|listed| &*listed.name);
        let shedder = || self.domain?.shedder_name(number);
        self.rule_at(number).map(|rule| &*rule.name).or_else(listed).or_else(shedder).unwrap_or_default()
    }

    fn rule_at(&self, number: u32) -> Option<&'d Rule> {
        self.domain?.rules().get(number as usize)
    }
}

/// The result of one rule for one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleCheck {
    /// The rule's number in its domain.
    pub rule: u32,
    /// Identifies the key within the rule.
    pub key: u64,
    /// The cost in the rule's unit.
    pub cost: u32,
    /// Whether the cost fitted. A rule that was not evaluated, because of an earlier refusal, passes.
    pub passes: bool,
}

/// One rule's view of a request, for operators.
#[derive(Clone, Debug)]
pub struct InspectedCheck<'d> {
    pub rule: &'d Rule,
    /// The quota of this key, which an override may change; `None` if it is unlimited.
    pub quota: Option<&'d Quota>,
    /// Whether an override gives it.
    pub is_overridden: bool,
    /// Whether it may be that of an override: a digest alone does not always tell.
    pub is_uncertain: bool,
    /// The state of the key; `None` if it is unlimited.
    pub level: Option<QuotaLevel>,
    pub cost: u32,
    pub key: Digest,
    /// The keyed digest of the key: 32 hexadecimal digits, as in lists of callers and blocks.
    pub digest: String,
    /// Whether it would refuse the request, also in shadow.
    pub refuses: bool,
    /// The wait after which it would pass; `None`: never.
    pub retry_after: Option<Micros>,
    pub blocked: bool,
}

impl<'d> InspectedCheck<'d> {
    pub(super) fn new(
        domain: &str,
        rule: &'d Rule,
        check: &StageCheck,
        stage: CheckStage,
    ) -> InspectedCheck<'d> {
        InspectedCheck {
            rule,
            quota: rule.limit.allowance(check.allowance).map(|allowance| &allowance.quota),
            is_overridden: check.allowance > 0,
            is_uncertain: false,
            level: check.level,
            cost: check.cost,
            key: check.key,
            digest: ShownDigest::new(&check.key, domain, &rule.name).to_hex().to_string(),
            refuses: !check.passes() && stage.includes_check(check),
            retry_after: match check.outcome {
                Outcome::Later(wait) | Outcome::Queued(wait) => Some(wait),
                Outcome::Pass => Some(Micros::ZERO),
                Outcome::Never => None,
            },
            blocked: check.is_blocked,
        }
    }
}

/// One limit and the level of the request's key.
#[derive(Clone, Copy, Debug)]
pub struct LimitView<'d> {
    pub rule: &'d Rule,
    /// After the charge for a grant; unchanged for a refusal and a PEEK.
    pub level: QuotaLevel,
}

/// One limit that matches a request, and its part in the decision.
#[derive(Clone, Copy, Debug)]
pub struct MatchingLimit<'d> {
    pub view: LimitView<'d>,
    pub refuses: bool,
    /// Of a node of a tree, the descriptors that it counts, as bits from the first on; of other rules 0.
    pub descriptors: u8,
}

impl LimitView<'_> {
    /// Whether this limit takes precedence over `least` as the binding one of a grant.
    pub(super) fn has_less_remaining(&self, least: &LimitView<'_>) -> bool {
        if self.rule.advertise != least.rule.advertise {
            return self.rule.advertise;
        }
        // remaining ÷ limit, multiplied out; both are at most 2³², so the products fit.
        self.level.remaining * least.level.limit < least.level.remaining * self.level.limit
    }
}

/// Why no rule was evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum Unmatched {
    Domain,
    Rule,
}

/// Why a charge is rejected. Nothing changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChargeError {
    /// Its idempotency key belongs to another request.
    #[error(transparent)]
    Conflict(#[from] Conflict),
    /// A refund that names no charge.
    #[error("a negative amount must name the charge that it refunds")]
    NoRefundReference,
}

/// The idempotency key of a charge belongs to another request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the same `idem` was used for another request")]
pub struct Conflict;
