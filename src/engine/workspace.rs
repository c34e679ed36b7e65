//! Buffers that a decider reuses for every decision.

use std::cell::Cell;
use std::time::Duration;

use super::check::{CheckStage, StageCheck};
use super::counters::{CheckResult, ThreadCounters};
use super::digest::Digest;
use super::leases::LeaseResource;
use super::request::{Charge, Descriptors, Op, Request};
use super::rule_set::{CompiledDomain, CompiledRule};
use crate::clock::Now;
use crate::limit::{Quota, QuotaLevel};
use crate::rules::{Domain, KeyScratch, Mode, NodeHit, NodeHits, Rule, Selection};
use crate::terms::NoteKind;

#[derive(Debug, Default)]
pub(super) struct Workspace {
    pub(super) matching: Vec<u32>,
    pub(super) checks: Vec<StageCheck>,
    /// The rules that admitted a request on the fast path, each with its key.
    pub(super) passed: Vec<(u32, Digest)>,
    pub(super) notes: Vec<(NoteKind, u32)>,
    pub(super) all: Vec<ListedLimit>,
    /// Would-be refusals of shadow shedders, listed after the notes of rules.
    pub(super) shed_notes: Vec<(NoteKind, u32)>,
    /// The ties of the lease, and its time to live.
    pub(super) ties: Vec<LeaseResource>,
    pub(super) lease_ttl: Option<Duration>,
    /// Counter for per-request random draws.
    pub(super) draws: Cell<u64>,
    /// The same for peeks, so that they do not change the draws of others.
    pub(super) peek_draws: Cell<u64>,
    /// Scratch space for idempotency hashes.
    pub(super) hash_buffer: Vec<u8>,
    /// The costs of the request, by the units of its domain.
    costs: Vec<Option<u32>>,
    /// The amounts of the charge, by the units of its domain.
    unit_amounts: Vec<Option<i64>>,
    /// The amount for each check.
    amounts: Vec<i64>,
    key: KeyScratch,
    hits: NodeHits,
}

/// One matching limit of a request that asks for all.
#[derive(Clone, Copy, Debug)]
pub(super) struct ListedLimit {
    pub(super) rule: u32,
    pub(super) level: QuotaLevel,
    pub(super) refuses: bool,
    pub(super) descriptors: u8,
}

impl ListedLimit {
    /// A limit that refuses nothing, of a rule outside of the tree.
    pub(super) fn passed(rule: u32, level: QuotaLevel) -> ListedLimit {
        ListedLimit { rule, level, refuses: false, descriptors: 0 }
    }
}

impl Workspace {
    pub(super) fn new(number: u64) -> Workspace {
        // Separate ranges: no two deciders draw the same.
        let first = number << 48;
        let (draws, draws_of_looks) = (Cell::new(first), Cell::new(first | 1 << 47));
        Workspace { draws, peek_draws: draws_of_looks, ..Workspace::default() }
    }

    pub(super) fn clear(&mut self) {
        self.clear_notes();
        self.checks.clear();
        self.shed_notes.clear();
        self.ties.clear();
        self.lease_ttl = None;
    }

    /// Clears the parts of a reply beside the verdict.
    #[inline]
    pub(super) fn clear_notes(&mut self) {
        self.notes.clear();
        self.all.clear();
    }

    /// Makes a check for every matching rule whose unit is named, and for every tree node hit.
    pub(super) fn gather(
        &mut self,
        compiled: &CompiledDomain,
        selection: &Selection<'_>,
        request: &Request<'_>,
    ) {
        self.clear();
        request.cost.read_into(&compiled.units, &mut self.costs);
        for at in 0..self.matching.len() {
            let Some((number, rule, compiled_rule)) = self.rule_at(at, compiled) else { continue };
            let cost = match rule.expires {
                // A HIT has no end, so it is never in progress.
                Some(_) if request.op == Op::Hit => None,
                Some(expires) => {
                    self.lease_ttl = self.lease_ttl.max(Some(expires));
                    Some(1)
                }
                None => self.costs.get(compiled_rule.unit).copied().flatten(),
            };
            let Some(cost) = cost else { continue };
            self.add(&compiled.domain, number, compiled_rule, selection, cost);
        }
        if let Some(cost) = self.costs.first().copied().flatten() {
            self.add_nodes(compiled, &request.descriptors, cost);
        }
    }

    /// Makes the checks of a charge, with an amount for each.
    pub(super) fn gather_charge(
        &mut self,
        compiled: &CompiledDomain,
        selection: &Selection<'_>,
        charge: &Charge<'_>,
    ) {
        self.clear();
        self.amounts.clear();
        charge.amount.read_into(&compiled.units, &mut self.unit_amounts);
        for at in 0..self.matching.len() {
            let Some((number, rule, compiled_rule)) = self.rule_at(at, compiled) else { continue };
            let amount = self.unit_amounts.get(compiled_rule.unit).copied().flatten();
            let is_charged =
                rule.expires.is_none() && !matches!(rule.limit.quota(), Some(Quota::LeakyBucket(_)));
            let Some(amount) = amount.filter(|_| is_charged) else { continue };
            self.add(&compiled.domain, number, compiled_rule, selection, 0);
            self.amounts.resize(self.checks.len(), amount);
        }
        if let Some(amount) = self.unit_amounts.first().copied().flatten() {
            self.add_nodes(compiled, &charge.descriptors, 0);
            let times = self.hits.iter().map(|hit| amount.saturating_mul(i64::from(hit.times)));
            self.amounts.extend(times);
        }
    }

    /// Adds a check for each tree node that the descriptors hit, each at the request's cost.
    fn add_nodes(&mut self, compiled: &CompiledDomain, descriptors: &Descriptors<'_>, cost: u32) {
        let tree = compiled.domain.tree();
        tree.select_hits(descriptors.iter(), &mut self.hits);
        #[allow(clippy::indexing_slicing, reason = "the nodes of a tree are rules, and each has its terms")]
        let compiled_rule_of = |rule: u32| &compiled.rules[rule as usize];
        self.hits.retain(|hit| compiled_rule_of(hit.hit.rule).mode != Mode::Disabled);
        for NodeHit { hit, times, descriptor } in &self.hits {
            let compiled_rule = compiled_rule_of(hit.rule);
            let descriptor = descriptors.iter().nth(usize::from(*descriptor)).unwrap_or_default();
            let key = compiled_rule.key_hash.digest(tree.key_values(*hit, descriptor));
            let blocked_until = compiled_rule.fleet_blocked_until(|| tree.key_values(*hit, descriptor));
            let cost = cost.saturating_mul(*times);
            self.checks.push(StageCheck::new(hit.rule, compiled_rule, key, blocked_until, 0, cost));
        }
    }

    /// Excludes rules with `refund_on` from a refund: their lease's end would refund a second time.
    pub(super) fn exclude_lease_refunds(&mut self, domain: &Domain) {
        for (check, amount) in self.checks.iter().zip(&mut self.amounts) {
            let rule = domain.rules().get(check.rule as usize);
            if rule.is_some_and(|rule| rule.refund_on.is_some()) {
                *amount = (*amount).max(0);
            }
        }
    }

    pub(super) fn checks_and_amounts(&mut self) -> (&mut [StageCheck], &[i64]) {
        (&mut self.checks, &self.amounts)
    }

    fn rule_at<'r>(
        &self,
        at: usize,
        compiled: &'r CompiledDomain,
    ) -> Option<(u32, &'r Rule, &'r CompiledRule)> {
        let number = *self.matching.get(at)?;
        // The indexes after those of rules are list entries.
        let rule = compiled.domain.rules().get(number as usize)?;
        #[allow(clippy::indexing_slicing, reason = "each rule has its terms; without them it would admit")]
        Some((number, rule, &compiled.rules[number as usize]))
    }

    fn add(
        &mut self,
        domain: &Domain,
        number: u32,
        compiled_rule: &CompiledRule,
        selection: &Selection<'_>,
        cost: u32,
    ) {
        let (key, allowance, blocked_until) = if domain.key_is_plain(number) {
            let values = || domain.key_values(number, selection);
            let allowance = domain.allowance_of(number, selection, values());
            (compiled_rule.key_hash.digest(values()), allowance, compiled_rule.fleet_blocked_until(values))
        } else {
            let key = domain.transformed_key(number, selection, &mut self.key);
            let allowance = domain.allowance_of(number, selection, key.values());
            (
                compiled_rule.key_hash.digest(key.values()),
                allowance,
                compiled_rule.fleet_blocked_until(|| key.values()),
            )
        };
        self.checks.push(StageCheck::new(number, compiled_rule, key, blocked_until, allowance, cost));
    }

    /// Counts the outcome of each check and adds its note.
    pub(super) fn record_notes(
        &mut self,
        domain: &Domain,
        granted: bool,
        stage: CheckStage,
        counters: Option<&ThreadCounters>,
    ) {
        for check in self.checks.iter().filter(|check| stage.includes_check(check)) {
            let result = match (check.enforced, check.passes()) {
                (true, false) => CheckResult::Refuse,
                (false, false) => {
                    let is_quota = domain.rules().get(check.rule as usize).is_some_and(|rule| rule.is_quota);
                    let kind = if is_quota { NoteKind::Quota } else { NoteKind::Shadow };
                    self.notes.push((kind, check.rule));
                    CheckResult::WouldRefuse
                }
                (_, true) if granted && check.beyond.is_some() => {
                    self.notes.push((NoteKind::Over, check.rule));
                    CheckResult::Over
                }
                (_, true) if granted && is_past_warning_threshold(check, domain) => {
                    self.notes.push((NoteKind::Near, check.rule));
                    CheckResult::Near
                }
                (_, true) => CheckResult::Pass,
            };
            if let Some(counters) = counters {
                counters.count_check(check.slot, result);
            }
        }
        self.notes.append(&mut self.shed_notes);
    }

    /// Ties the permits, the refundable charges and the request's name to the lease.
    pub(super) fn add_ties(&mut self, compiled: &CompiledDomain, name: Option<Digest>, now: Now) {
        self.ties.extend(name.map(LeaseResource::IdempotencyKey));
        for check in self.checks.iter().filter(|check| check.charged) {
            if check.is_concurrency {
                self.ties.push(LeaseResource::Permit(check.digest));
                continue;
            }
            let number = check.rule as usize;
            let refunds = compiled.domain.rules().get(number).is_some_and(|rule| rule.refund_on.is_some());
            if let Some(compiled_rule) = compiled.rules.get(number).filter(|_| refunds && check.passes()) {
                self.ties.push(LeaseResource::Refund(check.refund(compiled_rule, now)));
            }
        }
    }

    /// Lists every matching limit that may be shown, if the request asks for them.
    pub(super) fn list_all_limits(&mut self, domain: &Domain, request: &Request<'_>) {
        if !request.lists_all_limits {
            return;
        }
        // The checks of nodes are the last, in the order of the hits. Without them, hits of an earlier request remain.
        let first_node = self.checks.len().saturating_sub(self.hits.len());
        for (at, check) in self.checks.iter().enumerate() {
            let is_named = domain.rules().get(check.rule as usize).is_some_and(|rule| rule.advertise);
            let Some(level) = check.level.filter(|_| is_named) else { continue };
            let hit = at.checked_sub(first_node).and_then(|index| self.hits.get(index));
            let hit = hit.filter(|hit| hit.hit.rule == check.rule);
            let descriptors =
                hit.map_or(0, |hit| domain.tree().descriptors_of(hit, request.descriptors.iter()));
            self.all.push(ListedLimit { rule: check.rule, level, refuses: check.refuses(), descriptors });
        }
    }
}

/// Returns whether a key is past the share of its limit at which its rule warns.
fn is_past_warning_threshold(check: &StageCheck, domain: &Domain) -> bool {
    let warn_at = domain.rules().get(check.rule as usize).and_then(|rule| rule.warn_at);
    warn_at.zip(check.level).is_some_and(|(thousandths, level)| {
        let used = u128::from(level.limit.saturating_sub(level.remaining));
        used * 1_000 > u128::from(level.limit) * u128::from(thousandths)
    })
}
