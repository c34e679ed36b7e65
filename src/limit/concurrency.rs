//! Concurrency limits. On one host: a counter of the leases of one key, incremented by a grant and decremented when the
//! lease ends. The lease table ensures that each lease decrements once.
//!
//! Promise: never more than `max` leases are granted and not ended. Lowering `max` ends no lease; new requests are
//! refused until fewer are in progress.
//!
//! A limit that several hosts share has permits beside the leases. Each permit is a member of a set in Redis, for a lease of
//! this host; Redis adds a member while there are fewer than `max`.
//!
//! Promise: while Redis answers, all hosts together start at most `max` leases. Without an answer a host starts leases
//! only as the fallback allows, and reports them afterwards like the others: Redis adds no member until all leases fit.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use super::share::{Fallback, FleetMember, FleetStatus, FleetTerms, HOLD};
use super::{Outcome, QuotaLevel};
use crate::clock::{Micros, Timestamp};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConcurrencyQuota {
    max: u32,
    /// Set if all hosts together share the limit.
    fleet: Option<FleetTerms>,
}

impl ConcurrencyQuota {
    /// Makes a limit of at most `max` leases at once on this host.
    pub const fn new(max: NonZeroU32) -> ConcurrencyQuota {
        ConcurrencyQuota { max: max.get(), fleet: None }
    }

    pub const fn max(&self) -> u32 {
        self.max
    }
}

/// The number of leases of one key in progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseCount(u32);

impl LeaseCount {
    pub const fn count(self) -> u32 {
        self.0
    }

    pub fn add_lease(&mut self) {
        self.0 = self.0.saturating_add(1);
    }

    /// Counts one lease less. Returns how many are left.
    pub fn remove_lease(&mut self) -> u32 {
        debug_assert!(self.0 > 0, "only a lease that was counted ends");
        self.0 = self.0.saturating_sub(1);
        self.0
    }
}

impl ConcurrencyQuota {
    /// Returns the limit as one of all hosts together. Where no request waits for a remote check, each host has its part of it.
    #[must_use]
    pub fn shared(self, terms: FleetTerms) -> ConcurrencyQuota {
        ConcurrencyQuota { fleet: Some(terms), ..self }
    }

    /// Whether a request without a permit waits for one.
    pub fn may_wait(&self) -> bool {
        self.fleet.as_ref().is_some_and(FleetTerms::may_wait)
    }

    /// Whether all hosts together share the limit.
    pub const fn is_fleet(&self) -> bool {
        self.fleet.is_some()
    }

    /// The longest wait of a request for a remote check.
    pub fn patience(&self) -> Duration {
        self.fleet.as_ref().map_or(Duration::ZERO, |fleet| fleet.wait_max)
    }

    fn joined(&self) -> Option<&FleetMember> {
        self.fleet.as_ref()?.joined.get()
    }

    /// The fallback of a shared limit without an answer of Redis.
    pub fn fallback(&self) -> Option<Fallback> {
        self.fleet.as_ref().map(|fleet| fleet.when_down)
    }

    /// Joins the fleet under its own budget number. Before that a shared limit is judged as if there were no other host.
    /// Joining again has no effect.
    pub fn join(&self, fleet_status: &Arc<FleetStatus>, budget: u64) {
        if let Some(fleet) = &self.fleet {
            fleet.join(fleet_status, budget);
        }
    }

    /// The budget number under which it has joined the fleet.
    pub fn budget(&self) -> Option<u64> {
        self.joined().map(|joined| joined.budget)
    }

    /// The number of leases that may be in progress here. `permits`: those of this host for the key, if any.
    pub fn usable(&self, permits: Option<&Permits>, now: Timestamp) -> u32 {
        let held = permits.map_or(0, |permits| permits.unexpired(now)).min(self.max);
        held.max(self.usable_without_permits(permits, now))
    }

    /// The number of leases that may be in progress here without permits.
    fn usable_without_permits(&self, permits: Option<&Permits>, now: Timestamp) -> u32 {
        let Some((fleet, joined)) = self.fleet.as_ref().zip(self.joined()) else { return self.max };
        let status = &joined.fleet_status;
        // At least one, as for tokens: a fallback must not refuse everything. The remainder of the division is unused.
        let part = (self.max / status.hosts().max(1)).max(1);
        let is_unanswered = !status.answers_within(fleet.wait_max)
            || permits.is_some_and(|permits| permits.unanswered_at == now);
        if !is_unanswered {
            return if fleet.may_wait() { 0 } else { part };
        }
        let is_none_free = || known_free(permits, now).is_some_and(|free| free <= 0);
        match fleet.when_down {
            // A late answer would most likely be a refusal.
            Fallback::Share if status.is_redis_reachable() && is_none_free() => 0,
            Fallback::Share => part,
            Fallback::Local => self.max,
            Fallback::Allow => u32::MAX,
            Fallback::Refuse => 0,
        }
    }

    /// Judges one more lease beside `in_use`. A refusal has a retry-after of zero: the end of the other leases is not
    /// known.
    #[inline]
    pub fn judge(&self, permits: Option<&Permits>, in_use: u32, now: Timestamp) -> Outcome {
        // With an unreserved permit the fleet status does not matter.
        let held = permits.map_or(0, |permits| permits.unclaimed(now)).min(self.max);
        let passes = in_use < held || in_use < self.usable_without_permits(permits, now);
        if passes { Outcome::Pass } else { Outcome::Later(Micros::ZERO) }
    }

    /// The numbers of a reply: the leases that this host could start now, and the free permits in the last reply of
    /// Redis. An estimate, because other hosts start leases meanwhile.
    pub fn level(&self, permits: Option<&Permits>, in_use: u32, now: Timestamp) -> QuotaLevel {
        let here = self.usable(permits, now).saturating_sub(in_use);
        let known = known_free(permits, now).map(|free| u32::try_from(free).unwrap_or(0));
        let elsewhere = match here {
            0 if !self.may_obtain(permits, now) => 0,
            // Without a recent reply, other hosts may have no permits.
            0 => known.unwrap_or(self.max),
            _ => known.unwrap_or(0),
        };
        QuotaLevel {
            limit: u64::from(self.max),
            window: Micros::ZERO,
            remaining: u64::from(here.saturating_add(elsewhere).min(self.max)),
            reset: Micros::ZERO,
        }
    }

    /// Whether a remote check might obtain a permit; not until `refused_until` after a refusal.
    pub fn may_obtain(&self, permits: Option<&Permits>, now: Timestamp) -> bool {
        let is_refused =
            permits.is_some_and(|permits| now < permits.refused_until || permits.unanswered_at == now);
        !is_refused
            && self.may_wait()
            && self.joined().is_some_and(|joined| joined.fleet_status.answers_within(self.patience()))
    }

    /// Whether a remote check might obtain a permit, by the last reply of Redis.
    pub fn may_pass_elsewhere(&self, permits: Option<&Permits>, in_use: u32, now: Timestamp) -> bool {
        // Leases that began since are not among the reported ones.
        let new = in_use.saturating_sub(permits.map_or(0, |permits| permits.held));
        known_free(permits, now).is_none_or(|free| i64::from(new) < free) && self.may_obtain(permits, now)
    }
}

/// This host's permits of one key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Permits {
    /// The budget number of the limit of this key, as other hosts know it.
    budget: u64,
    /// Permits of this host, used or idle, until `expires_at`.
    held: u32,
    expires_at: Timestamp,
    /// Free permits in the last reply of Redis; below zero if leases began without a permit.
    free: i64,
    /// Permits reserved for requests that have waited for them.
    claimed: u32,
    /// Permits whose requests are judged at this moment: any request may use them, and they are not returned meanwhile.
    offered: u32,
    /// Until then Redis has no permit for this host.
    refused_until: Timestamp,
    /// When a pending request got no answer: it is judged by the fallback at this moment.
    unanswered_at: Timestamp,
    /// The sync task has a state of the key.
    tracked: bool,
    sync_due: bool,
}

/// The free permits in the last reply of Redis, while it holds.
fn known_free(permits: Option<&Permits>, now: Timestamp) -> Option<i64> {
    permits.filter(|permits| now < permits.expires_at).map(|permits| permits.free)
}

/// The reply of Redis about the permits of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PermitReply {
    /// Permits of this host.
    pub held: u32,
    /// Free permits: of no host. Below zero if leases began without a permit.
    pub free: i64,
    /// The time at which all permits were last reported: they expire one hold after it.
    pub reported_at: Timestamp,
    /// The time for which this host must not ask again, because there was no permit for a waiting request; zero if
    /// there was.
    pub refused_for: Duration,
}

/// Longer than any outage after which permits still matter.
const DROPPED_AFTER: Duration = Duration::from_secs(3_600);

impl Permits {
    pub fn none_of(budget: u64) -> Permits {
        Permits { budget, ..Permits::default() }
    }

    /// The state, without permits, of a key whose leases come from an earlier process: a sync reports them to other
    /// hosts.
    pub fn from_previous_process(budget: u64, now: Timestamp) -> Permits {
        Permits { tracked: true, expires_at: now, ..Permits::none_of(budget) }
    }

    pub fn set_budget(&mut self, budget: u64) {
        self.budget = budget;
    }

    /// Nanoseconds until the state may be dropped. A tracked key without a reply for an hour belongs to a rule that was
    /// removed.
    pub fn nanos_until_droppable(&self, now: Timestamp) -> u64 {
        let ends = if self.tracked { self.expires_at.after(DROPPED_AFTER) } else { now };
        ends.nanos_since(now)
    }

    pub const fn budget(&self) -> u64 {
        self.budget
    }

    pub fn unexpired(&self, now: Timestamp) -> u32 {
        if now < self.expires_at { self.held } else { 0 }
    }

    /// Permits that are not reserved for a request that has waited.
    fn unclaimed(&self, now: Timestamp) -> u32 {
        self.unexpired(now).saturating_sub(self.claimed)
    }

    pub const fn is_tracked(&self) -> bool {
        self.tracked
    }

    /// Records a new lease; `in_use` leases are in progress now. One without a permit is reported.
    pub fn record_start(&mut self, in_use: u32, now: Timestamp) {
        self.sync_due |= !self.tracked || self.unexpired(now) < in_use;
    }

    /// Records an ended lease; `in_use` leases are still in progress. An idle permit is returned, and is not used before
    /// if there are more leases than permits.
    pub fn record_end(&mut self, in_use: u32, now: Timestamp) {
        self.sync_due |= in_use < self.unclaimed(now);
        if self.free < 0 {
            self.held = self.held.min(in_use.saturating_add(self.claimed).saturating_add(self.offered));
        }
    }

    /// Has the request that is judged at this moment judged by the fallback.
    pub fn record_unanswered(&mut self, now: Timestamp) {
        self.unanswered_at = now;
    }

    /// Takes whether a sync of this key is due.
    pub fn take_sync_due(&mut self) -> bool {
        std::mem::take(&mut self.sync_due)
    }

    /// Reserves an idle permit for a request that has waited for one. Returns whether there is one.
    pub fn reserve(&mut self, in_use: u32, now: Timestamp) -> bool {
        let is_idle = in_use < self.unclaimed(now);
        self.claimed = self.claimed.saturating_add(u32::from(is_idle));
        is_idle
    }

    /// Ends the reservation of a permit for the judgement of its request, until [`end_offer`](Permits::end_offer).
    pub fn offer(&mut self) {
        (self.claimed, self.offered) = (self.claimed.saturating_sub(1), self.offered.saturating_add(1));
    }

    /// Ends the judgement: its request has taken the permit, or does not need it.
    pub fn end_offer(&mut self, in_use: u32, now: Timestamp) {
        self.offered = self.offered.saturating_sub(1);
        self.record_end(in_use, now);
    }

    /// Ends the reservation of a permit: its request does not need it.
    pub fn release_reservation(&mut self, in_use: u32, now: Timestamp) {
        self.claimed = self.claimed.saturating_sub(1);
        self.record_end(in_use, now);
    }

    /// Returns the permits that this host needs for `in_use` leases and the requests that have waited; no lease starts on
    /// others from now on. The sync task has a state of the key.
    pub fn report(&mut self, in_use: u32, now: Timestamp) -> u32 {
        if !std::mem::replace(&mut self.tracked, true) {
            self.expires_at = self.expires_at.max(now);
        }
        let needed = in_use.saturating_add(self.claimed);
        self.held = self.held.min(needed.saturating_add(self.offered));
        needed.max(self.held)
    }

    /// Applies a reply of Redis while `in_use` leases are in progress.
    pub fn apply_reply(&mut self, reply: &PermitReply, in_use: u32, now: Timestamp) {
        self.held = reply.held;
        self.expires_at = self.expires_at.max(reply.reported_at.after(HOLD));
        self.free = reply.free;
        // A request may have read the clock before this reply came: without a refusal no moment counts.
        self.refused_until = match reply.refused_for {
            Duration::ZERO => Timestamp::ORIGIN,
            refused_for => now.after(refused_for),
        };
        // Leases may have ended while the reply was on its way.
        self.record_end(in_use, now);
    }

    /// Drops the state of the sync task. Returns whether that is possible: there is no permit and no lease.
    pub fn stop_tracking(&mut self, in_use: u32, now: Timestamp) -> bool {
        let may = in_use == 0 && self.claimed == 0 && self.unexpired(now) == 0;
        if may {
            // The last reply goes on to hold.
            (self.tracked, self.held, self.sync_due) = (false, 0, false);
        }
        may
    }
}
