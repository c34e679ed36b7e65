//! The resources tied to leases, and the readings of pools.

use std::sync::Arc;

use super::Engine;
use super::algorithm::{AlgorithmTable, each_algorithm};
use super::leases::{LeaseCharge, LeaseResource, NewLease, Reservation, Session, WrongPool};
use super::memory::Memory;
use super::pool::{OtherHostsSums, Pool, PoolReserve};
use super::shards::Shard;
use crate::clock::Now;
use crate::rules::OverTreatment;
use crate::rules::shed::SignalSource;
use crate::terms::WorkOutcome;

/// A signal that the host must read for the rules in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostSignals {
    /// The pool.
    pub pool: Box<str>,
    /// The signal's name.
    pub signal: Box<str>,
    /// The source to read.
    pub source: SignalSource,
    /// A process of the pool, if known.
    pub pid: Option<u32>,
}

impl Engine {
    /// Returns whether a session still holds a lease.
    #[must_use]
    pub fn holds_lease(&self, session: &Session, lease: u64, now: Now) -> bool {
        self.leases.is_live(session, lease, now)
    }

    /// Records a signal, in thousandths, that an application pushes about its own pool.
    ///
    /// # Errors
    /// The session belongs to another pool.
    pub fn record_pushed_signal(
        &self,
        session: &Session,
        pool: &str,
        name: &str,
        permille: u16,
        now: Now,
    ) -> Result<(), WrongPool> {
        if session.pool().name() != pool {
            return Err(WrongPool);
        }
        session.pool().signals.lock().record(name, Some(session.number()), Some(permille.into()), now.at);
        Ok(())
    }

    /// Records the host's reading: connections for `accept_queue`, otherwise thousandths; `None`: failed.
    pub fn record_host_signal(&self, pool: &str, signal: &str, reading: Option<u32>, now: Now) {
        if let Some(pool) = self.pools.find(pool) {
            pool.signals.lock().record(signal, None, reading, now.at);
        }
    }

    /// Returns whether any pool has a fleet-wide reserve.
    #[must_use]
    pub fn has_fleet_reserve(&self) -> bool {
        let has_reserve = |pool: &Arc<Pool>| pool.shedding().is_some_and(|watch| watch.shed.fleet.is_some());
        self.pools.all().iter().any(has_reserve)
    }

    /// Returns this host's part of every fleet-wide reserve, by pool name, and takes the flags of refusals.
    #[must_use]
    pub fn take_pool_reserves(&self) -> Vec<PoolReserve> {
        let mut reserves: Vec<PoolReserve> =
            self.pools.all().iter().filter_map(|pool| pool.take_reserve()).collect();
        reserves.sort_unstable_by(|one, other| one.pool.cmp(&other.pool));
        reserves
    }

    /// Sets the sums of all other hosts for a pool; its reserve uses them for at most 10 s.
    pub fn set_other_hosts_sums(&self, pool: &str, agreed: OtherHostsSums) {
        if let Some(pool) = self.pools.find(pool) {
            pool.set_other_hosts_sums(agreed);
        }
    }

    /// Returns the signals that the host must read.
    #[must_use]
    pub fn required_host_signals(&self) -> Vec<HostSignals> {
        let mut wanted = Vec::new();
        for pool in self.pools.all() {
            let Some(watch) = pool.shedding() else { continue };
            let signals = watch.shed.signals.iter().filter(|signal| signal.source != SignalSource::Pushed);
            wanted.extend(signals.map(|signal| HostSignals {
                pool: pool.name().into(),
                signal: signal.name.clone(),
                source: signal.source.clone(),
                pid: pool.pid(),
            }));
        }
        wanted
    }

    /// Grants a lease that the pool counts already.
    pub(super) fn grant_lease(&self, reserved: Reservation<'_>, new: &NewLease<'_>, now: Now) -> Option<u64> {
        let pool = reserved.session.pool();
        let lease = reserved.grant(new, now);
        if lease.is_none() {
            pool.remove_lease(new.is_noncritical);
            // Does not forget the name: it is not recorded yet, and the caller holds the lock of names.
            self.release_ties(new.ties.iter().copied(), WorkOutcome::Dropped, false, now);
        }
        lease
    }

    pub(super) fn release_ties(
        &self,
        ties: impl Iterator<Item = LeaseResource>,
        outcome: WorkOutcome,
        forgets: bool,
        now: Now,
    ) {
        for tie in ties {
            match tie {
                LeaseResource::Permit(digest) => self.release_permit(&digest, now),
                LeaseResource::Refund(refund) if outcome == WorkOutcome::Ok => {
                    self.refund_charge(&refund, now);
                }
                LeaseResource::IdempotencyKey(name) if forgets => {
                    self.idempotency.grants.forget(&name, &self.shards);
                }
                LeaseResource::RefundableCost(name) if forgets => {
                    self.refundable_costs.costs.forget(&name, &self.shards);
                }
                LeaseResource::Refund(_)
                | LeaseResource::IdempotencyKey(_)
                | LeaseResource::RefundableCost(_)
                | LeaseResource::Cost { .. } => {}
            }
        }
    }

    /// Refunds a rule's charge, if the rule still counts comparable states.
    fn refund_charge(&self, refund: &LeaseCharge, now: Now) {
        let rule_set = self.rule_set.load();
        let Some((rule, compiled_rule)) = rule_set.find_rule(refund.rule) else { return };
        let Some(allowance) = rule.limit.allowance(refund.allowance) else { return };
        if compiled_rule.tag_and_salt(refund.allowance).1 != refund.salt {
            return;
        }
        let quota = match (&allowance.over, refund.is_elastic) {
            (OverTreatment::Elastic(second), true) => second,
            (_, true) => return,
            (_, false) => &allowance.quota,
        };
        let mut shard = self.shards.lock_for(&refund.digest);
        each_algorithm!(
            quota,
            quota => refund_state(quota, refund, &mut shard, self.shards.memory(), now),
            // A permit is released with its lease.
            _ => {}
        );
    }
}

/// Refunds a state, if present: an absent one has its full quota.
fn refund_state<A: AlgorithmTable>(
    quota: &A,
    refund: &LeaseCharge,
    shard: &mut Shard,
    memory: &Memory,
    now: Now,
) {
    if let Some(mut found) = A::table_mut(shard).entry(&refund.digest) {
        // A bucket of another generation is adopted at its next check, not here.
        if !A::CONVERTS_STATES || found.tag() == refund.digest.tag() {
            let change = |state: &mut A::State| {
                quota.refund(state, now, refund.cost, refund.at);
                quota.level(state, now)
            };
            // A refund never grows a state.
            let (level, _) = found.change(change, memory);
            found.set_tag(A::tag(found.tag(), &level));
        }
    }
}
