//! The costs of grants and charges, for refunds. Costs under an idempotency key are kept here, for as long as
//! the key is remembered; other costs are kept in the lease. Each is refunded at most once.

use arrayvec::ArrayVec;
use serde::{Deserialize, Serialize};

use super::check::StageCheck;
use super::decision::{CheckedKeys, Decision};
use super::digest::{Digest, HashKey, KeyHash};
use super::leases::{LeaseCost, LeaseResource};
use super::request::{Amount, Charge, Cost, Descriptors, Request, UNIT_REQUESTS};
use super::shards::{NameTable, Shards};
use super::table::AnyTable;
use super::tag::{TableState, Tag};
use super::workspace::Workspace;
use super::{Engine, idempotency};
use crate::clock::{Now, Timestamp};
use crate::limit::{halves, malloc_block_bytes};
use crate::terms::RefundReference;

#[derive(Debug)]
pub(super) struct RefundableCosts {
    names: KeyHash,
    prints: KeyHash,
    pub(super) costs: NameTable<RefundableCost>,
}

/// The cost of one grant or charge, until it is refunded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefundableCost {
    /// When it was charged.
    pub at: Timestamp,
    /// The fingerprint of domain and descriptors.
    pub print: u32,
    /// Costs by the fingerprint of their unit.
    pub costs: Box<[(u32, u32)]>,
    /// The name under which its grant is remembered, which the refund forgets. Absent in older snapshots.
    #[serde(default)]
    pub name: Option<Digest>,
}

/// A cost that was taken for its refund.
pub(super) struct Refunded {
    /// When it was charged; of a lease without a name the time of its grant, or of its last renewal.
    pub(super) at: Timestamp,
    /// The name of its remembered grant, if it has one.
    pub(super) name: Option<Digest>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RefundKind {
    Grant = 0,
    Charge = 1,
}

type Costs = ArrayVec<(u32, u32), UNITS_MAX>;

/// A refund: the fingerprint of domain and descriptors, and the units to return.
#[derive(Debug)]
struct RefundRequest {
    print: u32,
    amounts: Vec<(u32, u32)>,
}

impl RefundableCosts {
    pub(super) fn new(hash_key: &HashKey) -> RefundableCosts {
        RefundableCosts {
            names: hash_key.for_purpose("spent"),
            prints: hash_key.for_purpose("what was asked"),
            costs: NameTable::new(),
        }
    }

    /// The digest of a name. Its scope is the user, so that all sessions of the user can refund.
    pub(super) fn digest(&self, by: RefundKind, user: u32, domain: &str, name: &[u8]) -> Digest {
        let mut bytes = Vec::with_capacity(NAME_BYTES);
        bytes.push(by as u8);
        bytes.extend_from_slice(&user.to_le_bytes());
        [domain.as_bytes(), name]
            .iter()
            .for_each(|field| idempotency::write_length_prefixed(field, &mut bytes));
        self.names.digest_bytes(&bytes)
    }

    /// Fingerprints a domain and descriptors: a refund must repeat those of its target. Never zero.
    pub(super) fn fingerprint(
        &self,
        domain: &str,
        descriptors: &Descriptors<'_>,
        written: &mut Vec<u8>,
    ) -> u32 {
        written.clear();
        idempotency::write_length_prefixed(domain.as_bytes(), written);
        idempotency::write_descriptors(descriptors, written);
        self.short_hash(written).max(1)
    }

    fn unit_fingerprint(&self, unit: &str) -> u32 {
        self.short_hash(unit.as_bytes())
    }

    fn short_hash(&self, bytes: &[u8]) -> u32 {
        let [print, _] = halves(self.prints.digest_bytes(bytes).hash());
        print
    }

    /// Returns the cost to keep in a lease. A cost in several units is tied to the lease unit by unit.
    pub(super) fn lease_cost(&self, cost: &Cost<'_>, print: u32, ties: &mut Vec<LeaseResource>) -> LeaseCost {
        match cost {
            Cost::Requests(cost) => LeaseCost { fingerprint: print, cost: *cost },
            Cost::Units(units) => {
                let most = ties.len() + UNITS_MAX;
                units.each(&mut |unit, cost| {
                    if ties.len() < most {
                        ties.push(LeaseResource::Cost { unit: self.unit_fingerprint(unit), cost });
                    }
                });
                LeaseCost { fingerprint: print, cost: 0 }
            }
        }
    }

    /// Adds a unit, up to [`UNITS_MAX`]; hashes only units that are kept.
    fn add_cost(&self, costs: &mut Costs, unit: &str, cost: u32) {
        if !costs.is_full() {
            costs.push((self.unit_fingerprint(unit), cost));
        }
    }

    /// Removes and returns the target of a refund; `None` if it does not cover the refund.
    fn take_refund(
        &self,
        name: &Digest,
        refund: &RefundRequest,
        shards: &Shards,
        now: Now,
    ) -> Option<Refunded> {
        let mut table = self.costs.lock(name);
        let is_covered = |spent: &&RefundableCost| {
            spent.nanos_until_fresh(Tag::NONE, now) > 0 && refund.is_covered(spent.print, &spent.costs)
        };
        let spent = table.find(name).filter(is_covered)?;
        let refunded = Refunded { at: spent.at, name: spent.name };
        table.remove(name, shards.memory());
        Some(refunded)
    }

    fn refund_request(&self, charge: &Charge<'_>, written: &mut Vec<u8>) -> RefundRequest {
        let mut amounts = Vec::new();
        charge.amount.each(&mut |unit, amount| {
            if amount < 0 {
                let units = u32::try_from(amount.unsigned_abs()).unwrap_or(u32::MAX);
                // One unit above the maximum is enough to reject it.
                if amounts.len() <= UNITS_MAX {
                    amounts.push((self.unit_fingerprint(unit), units));
                }
            }
        });
        RefundRequest { print: self.fingerprint(charge.domain, &charge.descriptors, written), amounts }
    }

    pub(super) fn restore(&self, name: Digest, spent: RefundableCost, shards: &Shards, now: Now) {
        if spent.nanos_until_fresh(Tag::NONE, now) > 0 {
            self.costs.put(name, spent, shards, now);
        }
    }
}

impl Engine {
    /// Ties the cost to a lease, or the name under which it is recorded, for a refund.
    pub(super) fn tie_cost(&self, request: &Request<'_>, workspace: &mut Workspace) -> LeaseCost {
        if !workspace.checks.iter().any(is_counted) {
            return LeaseCost::default();
        }
        if let Some(repeat) = &request.idempotency_key {
            let name =
                self.refundable_costs.digest(RefundKind::Grant, repeat.user, request.domain, repeat.name);
            workspace.ties.push(LeaseResource::RefundableCost(name));
            return LeaseCost::default();
        }
        let print = self.refundable_costs.fingerprint(
            request.domain,
            &request.descriptors,
            &mut workspace.hash_buffer,
        );
        self.refundable_costs.lease_cost(&request.cost, print, &mut workspace.ties)
    }

    pub(super) fn record_refundable_cost(
        &self,
        request: &Request<'_>,
        decision: &Decision<'_>,
        remembered_as: Digest,
        now: Now,
    ) {
        let CheckedKeys::Several(checks) = decision.checked_keys else { return };
        let repeat = request.idempotency_key.filter(|_| checks.iter().any(is_counted));
        let Some(repeat) = repeat else { return };
        let (costs, mut counted) = (&self.refundable_costs, Costs::new());
        request.cost.each(&mut |unit, cost| costs.add_cost(&mut counted, unit, cost));
        let print = costs.fingerprint(request.domain, &request.descriptors, &mut Vec::new());
        let name = costs.digest(RefundKind::Grant, repeat.user, request.domain, repeat.name);
        self.remember_cost(name, remembered_as, print, &counted, now);
    }

    pub(super) fn record_refundable_charge(
        &self,
        charge: &Charge<'_>,
        remembered_as: Digest,
        written: &mut Vec<u8>,
        now: Now,
    ) {
        let Some(repeat) = charge.idempotency_key else { return };
        let (costs, mut counted) = (&self.refundable_costs, Costs::new());
        charge.amount.each(&mut |unit, amount| {
            if let Ok(cost @ 1..) = u32::try_from(amount) {
                costs.add_cost(&mut counted, unit, cost);
            }
        });
        if !counted.is_empty() {
            let print = costs.fingerprint(charge.domain, &charge.descriptors, written);
            let name = costs.digest(RefundKind::Charge, repeat.user, charge.domain, repeat.name);
            self.remember_cost(name, remembered_as, print, &counted, now);
        }
    }

    fn remember_cost(&self, name: Digest, remembered_as: Digest, print: u32, costs: &Costs, now: Now) {
        let (costs, remembered_as) = (costs.as_slice().into(), Some(remembered_as));
        let cost = RefundableCost { at: now.at, print, costs, name: remembered_as };
        self.refundable_costs.costs.put(name, cost, &self.shards, now);
    }

    /// Removes the cost that a refund names, so that it is refunded once. `None`, without any change: the
    /// user has none that has these descriptors, covers the refund and is not yet refunded.
    pub(super) fn take_refundable_cost(
        &self,
        charge: &Charge<'_>,
        written: &mut Vec<u8>,
        now: Now,
    ) -> Option<Refunded> {
        let by = charge.refund_of.as_ref()?;
        let refund = self.refundable_costs.refund_request(charge, written);
        match by.reference {
            RefundReference::IdempotencyKey(name) => {
                [RefundKind::Grant, RefundKind::Charge].into_iter().find_map(|spent_by| {
                    let name = self.refundable_costs.digest(spent_by, by.user, charge.domain, name);
                    self.refundable_costs.take_refund(&name, &refund, &self.shards, now)
                })
            }
            RefundReference::Lease(number) => {
                let unit = self.refundable_costs.unit_fingerprint(UNIT_REQUESTS);
                let covers = |cost: LeaseCost, units: &[(u32, u32)]| match units {
                    [] => refund.is_covered(cost.fingerprint, &[(unit, cost.cost)]),
                    units => refund.is_covered(cost.fingerprint, units),
                };
                match self.leases.take_cost(by.user, number, now, &covers) {
                    Ok(taken) => taken.map(|at| Refunded { at, name: None }),
                    Err(name) => self.refundable_costs.take_refund(&name, &refund, &self.shards, now),
                }
            }
        }
    }
}

impl RefundRequest {
    fn is_covered(&self, print: u32, costs: &[(u32, u32)]) -> bool {
        if self.amounts.len() > UNITS_MAX {
            return false;
        }
        let is_within = |(unit, amount): &(u32, u32)| {
            costs.iter().any(|(spent_unit, cost)| spent_unit == unit && amount <= cost)
        };
        self.print == print && self.amounts.iter().all(is_within)
    }
}

impl TableState for RefundableCost {
    fn nanos_until_fresh(&self, _: Tag, now: Now) -> u64 {
        // As long as its name is remembered.
        self.at.after(idempotency::REMEMBERED).nanos_since(now.at)
    }

    fn heap_bytes(&self) -> usize {
        malloc_block_bytes(size_of_val(&*self.costs))
    }
}

fn is_counted(check: &StageCheck) -> bool {
    check.charged && !check.is_concurrency
}

pub(super) fn is_negative(amount: &Amount<'_>) -> bool {
    let mut is_negative = false;
    amount.each(&mut |_, amount| is_negative |= amount < 0);
    is_negative
}

/// Maximum units recorded of a request: one frame could name thousands.
const UNITS_MAX: usize = 16;

/// Capacity for a user, a domain and a name of usual length.
const NAME_BYTES: usize = 96;
