//! Idempotency: retries of a granted request under the same name get the same grant and are not charged, until
//! the grant is refunded or its lease released.
//!
//! Refusals are not remembered. A name is looked up and recorded under one lock, so that only one of two
//! concurrent requests is charged.

use super::decision::{Conflict, Decision, LimitView};
use super::digest::{Digest, HashKey, KeyHash};
use super::request::{ByUnit, Charge, Descriptors, IdempotencyKey, Op, Request, UNIT_REQUESTS};
use super::shards::{NameTable, Shards};
use super::snapshot::{FIRST_RULE_SET, SnapshotEntry};
use super::sync::MutexGuard;
use super::table::{AnyTable, StateTable};
use super::tag::{TableState, Tag};
use super::workspace::{ListedLimit, Workspace};
use crate::clock::{Micros, Now, Timestamp};
use crate::limit::{QuotaLevel, malloc_block_bytes};
use crate::rules::{Domain, ListKind, ListedEntry, Rule};
use crate::terms::{NoteKind, RefundReference, Verdict};
use serde::{Deserialize, Serialize};
use std::time::Duration;

#[derive(Debug)]
pub(super) struct IdempotencyTable {
    names: KeyHash,
    requests: KeyHash,
    pub(super) grants: NameTable<NamedGrant>,
}

/// The name of a request, with the lock on its shard of grants.
pub(super) struct NamedRequest<'e> {
    digest: Digest,
    content_hash: u64,
    grants: MutexGuard<'e, StateTable<NamedGrant>>,
}

/// A remembered grant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Grant {
    /// When it was granted.
    pub at: Timestamp,
    /// Allow or wait.
    pub verdict: Verdict,
    /// The wait, if any.
    pub wait: Micros,
    /// Its lease.
    pub lease: Option<u64>,
    /// The binding limit: the rule's index and name.
    pub binding: Option<(u32, Box<str>, QuotaLevel)>,
    /// The entry of an exempt list that matched.
    pub listed: Option<Box<str>>,
    /// Notes, by rule index.
    pub notes: Box<[(NoteKind, u32)]>,
    /// All limits, by rule index.
    pub all: Box<[(u32, QuotaLevel)]>,
    /// The rule set that the indexes refer to; in a snapshot, 0: none in force, otherwise the one in force.
    pub rule_set: u64,
}

/// The grant of a named request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NamedGrant {
    /// A hash of the request's content.
    pub content_hash: u64,
    /// Its grant.
    pub grant: Box<Grant>,
}

impl IdempotencyTable {
    pub(super) fn new(hash_key: &HashKey) -> IdempotencyTable {
        IdempotencyTable {
            names: hash_key.for_purpose("repeats"),
            requests: hash_key.for_purpose("repeated requests"),
            grants: NameTable::new(),
        }
    }

    /// Locks and returns the entry of a request's name. Lock order: before any shard of states.
    pub(super) fn lock_request(
        &self,
        request: &Request<'_>,
        written: &mut Vec<u8>,
    ) -> Option<NamedRequest<'_>> {
        let (key, descriptors) = (request.idempotency_key?, &request.descriptors);
        let op = match request.op {
            Op::Acquire => 1,
            Op::Hit => 3,
            Op::Peek => 4,
        };
        let costs = self.hash_units(&request.cost, written);
        Some(self.lock(&key, op, request.domain, descriptors, costs, request.priority, written))
    }

    pub(super) fn lock_charge(&self, charge: &Charge<'_>, written: &mut Vec<u8>) -> Option<NamedRequest<'_>> {
        let (key, descriptors) = (charge.idempotency_key?, &charge.descriptors);
        let amounts = self.hash_units(&charge.amount, written);
        let of = match charge.refund_of.map(|by| by.reference) {
            None => 0,
            Some(RefundReference::IdempotencyKey(name)) => self.hash_pair(b"idem", name, written),
            Some(RefundReference::Lease(lease)) => self.hash_pair(b"lease", &lease.to_le_bytes(), written),
        };
        Some(self.lock(&key, CHARGE, charge.domain, descriptors, amounts ^ of, None, written))
    }

    /// Forgets a grant that was refunded or whose lease was released, so that a retry is judged anew. The condition tells it
    /// from a later grant of the same name.
    pub(super) fn forget_if(&self, name: &Digest, shards: &Shards, is_it: impl FnOnce(&Grant) -> bool) {
        let mut grants = self.grants.lock(name);
        if grants.find(name).is_some_and(|granted| is_it(&granted.grant)) {
            grants.remove(name, shards.memory());
        }
    }

    /// Copies all grants, marked as of this rule set or of none.
    pub(super) fn copy_out(&self, rule_set: u64, now: Now, visit: &mut dyn FnMut(SnapshotEntry)) {
        self.grants.copy_out(now, |name, mut granted| {
            granted.grant.rule_set = if granted.grant.rule_set == rule_set { FIRST_RULE_SET } else { 0 };
            visit(SnapshotEntry::Repeat(name, granted));
        });
    }

    pub(super) fn restore(&self, name: Digest, mut granted: NamedGrant, shards: &Shards, now: Now) {
        // The first rule set equals that of the snapshot, or gets another number.
        granted.grant.rule_set = granted.grant.rule_set.min(FIRST_RULE_SET);
        self.grants.put(name, granted, shards, now);
    }

    /// Hashes a cost or an amount, regardless of the order of its units.
    fn hash_units<N: Copy + Into<i64>>(&self, numbers: &ByUnit<'_, N>, written: &mut Vec<u8>) -> u64 {
        match numbers {
            ByUnit::Requests(number) => self.hash_unit_amount("", (*number).into(), written),
            ByUnit::Units(units) => {
                let mut hash = 0;
                units.each(&mut |unit, number| {
                    // As a plain number of requests.
                    let unit = if unit == UNIT_REQUESTS { "" } else { unit };
                    hash ^= self.hash_unit_amount(unit, number.into(), written);
                });
                hash
            }
        }
    }

    #[allow(clippy::too_many_arguments, reason = "all that two requests can differ in")]
    fn lock(
        &self,
        repeat: &IdempotencyKey<'_>,
        op: u8,
        domain: &str,
        descriptors: &Descriptors<'_>,
        costs: u64,
        priority: Option<&str>,
        written: &mut Vec<u8>,
    ) -> NamedRequest<'_> {
        written.clear();
        written.push(op);
        written.extend_from_slice(&repeat.user.to_le_bytes());
        [repeat.session, domain.as_bytes(), repeat.name]
            .iter()
            .for_each(|bytes| write_length_prefixed(bytes, written));
        let digest = self.names.digest_bytes(written);
        written.clear();
        written.extend_from_slice(&costs.to_le_bytes());
        written.push(u8::from(priority.is_some()));
        write_length_prefixed(priority.unwrap_or_default().as_bytes(), written);
        write_descriptors(descriptors, written);
        let content_hash = self.requests.digest_bytes(written).hash();
        NamedRequest { digest, content_hash, grants: self.grants.lock(&digest) }
    }

    /// Hashes one entry of a cost. Entries are combined by XOR, so that their order does not matter.
    fn hash_unit_amount(&self, unit: &str, amount: i64, written: &mut Vec<u8>) -> u64 {
        written.clear();
        written.extend_from_slice(&amount.to_le_bytes());
        written.extend_from_slice(unit.as_bytes());
        self.requests.digest_bytes(written).hash()
    }

    fn hash_pair(&self, by: &[u8], name: &[u8], written: &mut Vec<u8>) -> u64 {
        written.clear();
        [by, name].iter().for_each(|bytes| write_length_prefixed(bytes, written));
        self.requests.digest_bytes(written).hash()
    }
}

impl NamedRequest<'_> {
    pub(super) fn digest(&self) -> Digest {
        self.digest
    }

    /// Returns the grant of the name; `None` if the name is unknown or expired.
    ///
    /// # Errors
    /// The name belongs to a request with other content.
    pub(super) fn find_grant(&self, now: Now) -> Result<Option<Grant>, Conflict> {
        let known = self.grants.find(&self.digest);
        match known.filter(|granted| granted.nanos_until_fresh(Tag::NONE, now) > 0) {
            Some(granted) if granted.content_hash != self.content_hash => Err(Conflict),
            granted => Ok(granted.map(|granted| (*granted.grant).clone())),
        }
    }

    pub(super) fn remember_grant(&mut self, grant: Grant, shards: &Shards, now: Now) {
        let granted = NamedGrant { content_hash: self.content_hash, grant: Box::new(grant) };
        shards.count_evictions(self.grants.restore_entry(self.digest, granted, shards.memory(), now));
    }
}

impl Grant {
    pub(super) fn from_decision(decision: &Decision<'_>, rule_set: u64, now: Now) -> Grant {
        let number = |rule: &Rule| {
            let rules = decision.domain.map(Domain::rules).unwrap_or_default();
            rules.iter().position(|known| std::ptr::eq(known, rule)).and_then(|at| u32::try_from(at).ok())
        };
        let binding = decision
            .binding
            .as_ref()
            .and_then(|view| Some((number(view.rule)?, view.rule.name.clone(), view.level)));
        Grant {
            at: now.at,
            verdict: decision.verdict,
            wait: decision.retry_after.unwrap_or_default(),
            lease: decision.lease,
            binding,
            listed: decision.listed.map(|listed| listed.name.clone()),
            notes: decision.notes.into(),
            all: decision.limits_by_index.iter().map(|listed| (listed.rule, listed.level)).collect(),
            rule_set,
        }
    }

    /// Replays the grant: times less those that have passed.
    pub(super) fn replay<'d, 'w: 'd>(
        &self,
        rule_set: u64,
        domain: &'d Domain,
        now: Now,
        workspace: &'w mut Workspace,
    ) -> Decision<'d> {
        let passed = now.at.since(self.at);
        // Rounded down, so that the remaining time is rounded up.
        let passed = Micros::from(passed);
        let less = |wait: Micros| Micros(wait.0.saturating_sub(passed.0));
        let aged = |level: QuotaLevel| QuotaLevel { reset: less(level.reset), ..level };
        let binding = self.binding.as_ref().and_then(|(number, name, level)| {
            let rules = domain.rules();
            let same = rules.get(*number as usize).filter(|rule| rule.name == *name);
            // After a reload the rule may have another index, or be removed.
            let rule = same.or_else(|| rules.iter().find(|rule| rule.name == *name))?;
            Some(LimitView { rule, level: aged(*level) })
        });
        let listed = self.listed.as_ref().and_then(|name| {
            let exempts = |listed: &&ListedEntry| listed.kind == ListKind::Exempt && listed.name == *name;
            domain.lists().iter().find(exempts)
        });
        workspace.clear();
        if rule_set == self.rule_set {
            workspace.notes.extend_from_slice(&self.notes);
            let passed = |(rule, level): &(u32, QuotaLevel)| ListedLimit::passed(*rule, aged(*level));
            workspace.all.extend(self.all.iter().map(passed));
        }
        Decision {
            verdict: self.verdict,
            binding,
            listed,
            lease: self.lease,
            retry_after: Some(less(self.wait)),
            domain: Some(domain),
            notes: &workspace.notes,
            limits_by_index: &workspace.all,
            ..Decision::unlimited()
        }
    }
}

impl TableState for NamedGrant {
    fn nanos_until_fresh(&self, _: Tag, now: Now) -> u64 {
        self.grant.at.after(REMEMBERED).nanos_since(now.at)
    }

    fn heap_bytes(&self) -> usize {
        let Grant { binding, listed, notes, all, .. } = &*self.grant;
        let name = binding.as_ref().map_or(0, |(_, name, _)| name.len());
        let listed = listed.as_ref().map_or(0, |name| name.len());
        let blocks = [size_of::<Grant>(), name, listed, size_of_val(&**notes), size_of_val(&**all)];
        blocks.into_iter().map(malloc_block_bytes).sum()
    }
}

/// Writes descriptors as an unambiguous encoding.
pub(super) fn write_descriptors(descriptors: &Descriptors<'_>, to: &mut Vec<u8>) {
    for descriptor in descriptors.iter() {
        to.extend_from_slice(&descriptor.len().to_le_bytes());
        for (name, value) in descriptor {
            write_length_prefixed(name.as_bytes(), to);
            write_length_prefixed(value.as_bytes(), to);
        }
    }
}

/// Writes bytes with a length prefix, so that a sequence of them is unambiguous.
pub(super) fn write_length_prefixed(bytes: &[u8], to: &mut Vec<u8>) {
    to.extend_from_slice(&bytes.len().to_le_bytes());
    to.extend_from_slice(bytes);
}

/// How long a grant is remembered. Retries do not extend it.
pub(super) const REMEMBERED: Duration = Duration::from_secs(60);

/// The op code of a charge, distinct from those of requests.
const CHARGE: u8 = 5;
