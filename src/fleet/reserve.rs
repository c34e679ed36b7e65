//! The pools' reserve over many hosts: reports in heartbeats, and their replies. Pure: time is an argument.
//!
//! A heartbeat reports for each pool the local slots, and the non-critical requests that this host claims;
//! the reply is passed to the engine by [`Claim`] and is valid for ten seconds. Heartbeats are numbered: a
//! report replaces the one before, and only the reply to the last one counts, so the claim that other hosts
//! know is never below the requests that this host admits.
//!
//! A host that lent slots and refuses requests, and one that holds slots of others, sends a heartbeat every
//! [`URGENT_EVERY`] instead of every second: lent slots are back within 100 ms, or when the requests that use
//! them end.

use super::heartbeat::{FleetPoolLoad, Heartbeat, HeartbeatReply, POOLS_MAX, PoolReport};
use crate::clock::Timestamp;
use crate::engine::{Claim, Engine, HostReadings, OtherHostsSums, PoolLoad};
use std::collections::BTreeMap;
use std::time::Duration;

#[derive(Debug, Default)]
pub struct Reserves {
    pools: BTreeMap<Box<str>, ReserveUpdate>,
    seq: u64,
    reported_at: Timestamp,
    /// The last reports and their time, until they are answered: at most one heartbeat with reports is in flight.
    in_flight: Option<(Vec<PoolReport>, Timestamp)>,
}

#[derive(Clone, Copy, Debug, Default)]
struct ReserveUpdate {
    claim: Claim,
    here: HostReadings,
    /// Leases of the priority that the reserve is for.
    critical: u32,
    elsewhere: PoolLoad,
    /// When the last answered report was sent.
    reported_at: Option<Timestamp>,
    /// The pool no longer exists; reported as empty until that is answered.
    is_removed: bool,
}

impl Reserves {
    /// Reads the pools. Returns whether a report must not wait for the next regular heartbeat.
    pub fn is_urgent(&mut self, engine: &Engine, now: Timestamp) -> bool {
        self.read_pools(engine);
        let is_due = self.in_flight.is_none() && now.since(self.reported_at) >= URGENT_EVERY;
        is_due && self.pools.values().any(|pool| pool.is_known(now) && pool.claim.is_urgent(&pool.here))
    }

    fn read_pools(&mut self, engine: &Engine) {
        self.pools.values_mut().for_each(|pool| pool.is_removed = true);
        for reserve in engine.take_pool_reserves() {
            if !self.pools.contains_key(&reserve.pool) && self.pools.len() >= POOLS_MAX {
                continue;
            }
            let pool = self.pools.entry(reserve.pool).or_default();
            let refused_before = pool.here.refused_since_publish;
            (pool.here, pool.critical, pool.is_removed) = (reserve.here, reserve.critical, false);
            pool.here.refused_since_publish |= refused_before;
        }
    }

    /// Returns the next sequence number and its reports, or the last ones while they may still be answered.
    pub fn report(&mut self, engine: &Engine, now: Timestamp) -> (u64, Vec<PoolReport>) {
        if let Some((reports, _)) = self.in_flight.as_ref().filter(|(_, sent)| now.since(*sent) < ANSWER_MAX)
        {
            return (self.seq, reports.clone());
        }
        self.read_pools(engine);
        self.reported_at = now;
        let mut reports = Vec::new();
        for (name, pool) in self.pools.iter_mut().filter(|(_, pool)| !pool.is_removed) {
            if !pool.is_known(now) {
                pool.claim = Claim::new(&pool.here);
            }
            let load = PoolLoad {
                slots: u64::from(pool.here.slots),
                critical: u64::from(pool.critical),
                noncritical: u64::from(pool.claim.update_and_publish(&pool.here, now)),
            };
            pool.here.refused_since_publish = false;
            // From now on the engine admits no more than the reduced claim.
            pool.publish(name, engine);
            reports.push(PoolReport { pool: name.to_string(), load });
        }
        // Drop removed pools that other hosts no longer know.
        self.pools.retain(|_, pool| !pool.is_removed || pool.is_known(now));
        let removed = self.pools.iter().filter(|(_, pool)| pool.is_removed);
        let removed =
            removed.map(|(name, _)| PoolReport { pool: name.to_string(), load: PoolLoad::default() });
        reports.extend(removed);
        self.seq += 1;
        self.in_flight = (!reports.is_empty()).then(|| (reports.clone(), now));
        (self.seq, reports)
    }

    pub fn is_empty(&self) -> bool {
        self.pools.is_empty()
    }

    /// Applies a reply, unless another daemon uses this host's name.
    pub fn apply_reply(&mut self, heartbeat: &Heartbeat, reply: &HeartbeatReply, engine: &Engine) {
        let answered = self.take_answered(heartbeat).filter(|_| !reply.is_name_taken);
        let Some((reports, sent)) = answered else { return };
        for (report, reply) in reports.iter().zip(&reply.pools) {
            let Some(pool) = self.pools.get_mut(&*report.pool) else { continue };
            if pool.is_removed {
                self.pools.remove(&*report.pool);
                continue;
            }
            pool.apply_reply(&report.load, reply, sent);
            pool.publish(&report.pool, engine);
        }
    }

    /// Forgets a heartbeat without a reply in time. If it ran all the same, the next one replaces it.
    pub fn failed(&mut self, heartbeat: &Heartbeat) {
        self.take_answered(heartbeat);
    }

    /// Takes the reports of a heartbeat, if it is the last one and unanswered.
    fn take_answered(&mut self, heartbeat: &Heartbeat) -> Option<(Vec<PoolReport>, Timestamp)> {
        let seq = self.seq;
        self.in_flight.take_if(|_| heartbeat.seq == seq && !heartbeat.pools.is_empty())
    }
}

impl ReserveUpdate {
    /// Applies the reply to a report sent at `sent`.
    fn apply_reply(&mut self, load: &PoolLoad, reply: &FleetPoolLoad, sent: Timestamp) {
        self.reported_at = Some(sent);
        self.elsewhere = PoolLoad {
            slots: reply.load.slots.saturating_sub(load.slots),
            critical: reply.load.critical.saturating_sub(load.critical),
            noncritical: reply.load.noncritical.saturating_sub(load.noncritical),
        };
        // The sums may lack hosts that Redis forgot and that still use their claims: the limit does not rise.
        self.claim.apply_sums(self.elsewhere, &self.here, !reply.may_lack, sent);
    }

    fn publish(&self, pool: &str, engine: &Engine) {
        let Some(reported_at) = self.reported_at else { return };
        let (most, alone) = (self.claim.allowed(), self.here.own_part());
        engine.set_other_hosts_sums(
            pool,
            OtherHostsSums { sums: self.elsewhere, noncritical_max: most, local_max: alone, reported_at },
        );
    }

    /// Whether the last reply is still valid.
    fn is_known(&self, now: Timestamp) -> bool {
        self.reported_at.is_some_and(|reported_at| now.since(reported_at) < KNOWN)
    }
}

/// The longest time until a reply: no link waits longer.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// The time between urgent reports. A borrower learns of a request for its slots within one, returns them with the
/// next, and the lender gets them with its own next one.
const URGENT_EVERY: Duration = Duration::from_millis(20);

/// A reply is valid for this long; after it the host counts alone and starts anew.
const KNOWN: Duration = Duration::from_secs(10);
