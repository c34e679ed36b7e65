//! A host's permits of one concurrency limit that several hosts share: borrowed ahead of demand, used and released
//! locally without a Redis command, and returned when idle.
//!
//! ```text
//!   Redis: `max` permits of a key      free + held by all hosts ≤ max
//!      ▲ returned        │ granted
//!   this host: permits ──┴──▶ each used by a lease, or idle
//! ```
//!
//! Promise: while Redis is reachable a host starts no lease without a permit, and all permits together never exceed
//! `max`. The permits of a host without a reply for longer than a hold expire: its leases continue, and new ones start
//! only as `on_redis_down` allows. Leases without a permit are reported like the others: Redis grants no permit until
//! all leases fit.
//!
//! [`LeaseCount`](super::concurrency::LeaseCount) counts the leases themselves, on every host.

mod remote_check;
mod sync;

pub use remote_check::{PERMITS_PER_HOST_MIN, PermitWait};
pub use sync::{PermitReply, PermitReport};

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::concurrency::ConcurrencyQuota;
use super::share::{Fallback, FleetMember, FleetStatus, HOLD, REMOTE_CHECK_WAIT_DEFAULT, SyncRequest};
use super::{Outcome, QuotaLevel};
use crate::clock::{Micros, Timestamp};

/// How hosts share a limit.
#[derive(Clone, Debug)]
pub(super) struct FleetPermits {
    when_down: Fallback,
    asks: PermitWait,
    /// The longest wait of a request for a remote check.
    wait_max: Duration,
    joined: Arc<OnceLock<FleetMember>>,
}

impl ConcurrencyQuota {
    /// Returns the limit as one of all hosts together.
    #[must_use]
    pub fn shared(self, when_down: Fallback) -> ConcurrencyQuota {
        let (asks, wait_max) = (PermitWait::Never, REMOTE_CHECK_WAIT_DEFAULT);
        let fleet = FleetPermits { when_down, asks, wait_max, joined: Arc::default() };
        ConcurrencyQuota { fleet: Some(fleet), ..self }
    }

    /// Whether all hosts together share the limit.
    #[must_use]
    pub const fn is_fleet(&self) -> bool {
        self.fleet.is_some()
    }

    fn joined(&self) -> Option<&FleetMember> {
        self.fleet.as_ref()?.joined.get()
    }

    /// The fallback of a shared limit while Redis is unreachable.
    #[must_use]
    pub fn fallback(&self) -> Option<Fallback> {
        self.fleet.as_ref().map(|fleet| fleet.when_down)
    }

    /// Joins the fleet under its own budget number; from then on `standing` is this host's fleet status. Before that
    /// a shared limit is judged as if there were no other host. Joining again has no effect.
    pub fn join(&self, standing: &Arc<FleetStatus>, budget: u64) {
        if let Some(fleet) = &self.fleet {
            fleet.joined.get_or_init(|| FleetMember { standing: Arc::clone(standing), budget });
        }
    }

    /// The budget number under which it has joined the fleet.
    #[must_use]
    pub fn budget(&self) -> Option<u64> {
        self.joined().map(|joined| joined.budget)
    }

    /// The number of leases that may be in progress here. `places`: this host's permits of the key, if any.
    #[must_use]
    pub fn usable(&self, places: Option<&Permits>, now: Timestamp) -> u32 {
        places.map_or(0, |places| places.unexpired(now)).min(self.max).max(self.usable_without_permits())
    }

    /// The number of leases that may be in progress here without permits.
    fn usable_without_permits(&self) -> u32 {
        let Some(joined) = self.joined() else { return self.max };
        if joined.standing.is_redis_reachable() { 0 } else { self.fallback_max(&joined.standing) }
    }

    /// The number of leases that may be in progress here while Redis is unreachable.
    fn fallback_max(&self, standing: &FleetStatus) -> u32 {
        match self.fallback().unwrap_or(Fallback::Local) {
            // At least one, as for tokens: an outage must not refuse everything. The remainder of the division is
            // unused.
            Fallback::Share => (self.max / standing.hosts().max(1)).max(1),
            Fallback::Local => self.max,
            Fallback::Allow => u32::MAX,
            Fallback::Refuse => 0,
        }
    }

    /// Judges one more lease beside `in_use`. A refusal has a retry-after of zero: the end of the other leases is not
    /// known.
    #[inline]
    pub fn judge(&self, places: Option<&Permits>, in_use: u32, now: Timestamp) -> Outcome {
        // With an unreserved permit the fleet status does not matter.
        let permits = places.map_or(0, |places| places.unclaimed(now)).min(self.max);
        let passes = in_use < permits || in_use < self.usable_without_permits();
        if passes { Outcome::Pass } else { Outcome::Later(Micros::ZERO) }
    }

    /// The numbers of a reply: the leases that this host could start now, and the free permits in the last reply of
    /// Redis. An estimate, because other hosts start leases meanwhile.
    #[must_use]
    pub fn level(&self, places: Option<&Permits>, in_use: u32, now: Timestamp) -> QuotaLevel {
        let here = self.usable(places, now).saturating_sub(in_use);
        let known = places.filter(|places| now < places.expires_at).map(|places| places.free);
        let elsewhere = match here {
            0 if !self.may_obtain(places, now) => 0,
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
}

/// Fleet membership is not part of the numbers of a limit.
impl PartialEq for FleetPermits {
    fn eq(&self, other: &FleetPermits) -> bool {
        (self.when_down, self.asks, self.wait_max) == (other.when_down, other.asks, other.wait_max)
    }
}

impl Eq for FleetPermits {}

/// This host's permits of one key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Permits {
    /// The budget number of the limit of this key, as other hosts know it.
    budget: u64,
    /// Permits of this host, used or idle, until `expires_at`.
    granted: u32,
    expires_at: Timestamp,
    /// Free permits in the last reply of Redis.
    free: u32,
    /// Requests since the last report, allowed or refused; and the allowed ones among them.
    asked: u32,
    begun: u32,
    /// Requests refused since the last report that could not wait for a remote check.
    unasked: u32,
    /// The largest number of leases in progress since the last report.
    peak: u32,
    /// A sync is due when fewer permits than this are idle.
    low: u32,
    /// Permits reserved for requests that have waited for them.
    claimed: u32,
    /// Until then Redis has no permit for this host.
    refused_until: Timestamp,
    /// Idle permits are returned at once.
    below_permits_per_host: bool,
    tracked: bool,
    sync_request: SyncRequest,
}

/// Longer than any outage after which permits still matter.
const DROPPED_AFTER: Duration = Duration::from_secs(3_600);

impl Permits {
    /// No permits of a key of this limit.
    #[must_use]
    pub fn none_of(budget: u64) -> Permits {
        Permits { budget, ..Permits::default() }
    }

    /// The tracked state, without permits, of a key whose leases come from an earlier process: a sync reports them to
    /// other hosts.
    #[must_use]
    pub fn from_previous_process(budget: u64, now: Timestamp) -> Permits {
        Permits {
            tracked: true,
            sync_request: SyncRequest::Signalled,
            expires_at: now,
            ..Permits::none_of(budget)
        }
    }

    /// Moves the key to another budget.
    pub fn set_budget(&mut self, budget: u64) {
        self.budget = budget;
    }

    /// Nanoseconds until the state may be dropped. A tracked key without a reply for an hour belongs to a rule that was
    /// removed.
    #[must_use]
    pub fn nanos_until_droppable(&self, now: Timestamp) -> u64 {
        let ends = if self.tracked { self.expires_at.after(DROPPED_AFTER) } else { now };
        ends.as_nanos().saturating_sub(now.as_nanos())
    }

    /// The budget number of the limit of this key.
    #[must_use]
    pub const fn budget(&self) -> u64 {
        self.budget
    }

    /// Permits of this host, used or idle.
    #[must_use]
    pub fn unexpired(&self, now: Timestamp) -> u32 {
        if now < self.expires_at { self.granted } else { 0 }
    }

    /// Permits that are not reserved for a request that has waited.
    fn unclaimed(&self, now: Timestamp) -> u32 {
        self.unexpired(now).saturating_sub(self.claimed)
    }

    /// Whether the key is tracked in Redis.
    #[must_use]
    pub const fn is_tracked(&self) -> bool {
        self.tracked
    }

    /// Records a new lease; `in_use` leases are in progress now.
    pub fn record_start(&mut self, in_use: u32, now: Timestamp) {
        self.asked = self.asked.saturating_add(1);
        self.begun = self.begun.saturating_add(1);
        self.peak = self.peak.max(in_use);
        // A lease without a permit is reported in any case.
        if !self.tracked || self.unexpired(now) < in_use.saturating_add(self.low) {
            self.request_sync_at(now);
        }
    }

    /// Records an ended lease; `in_use` leases are still in progress.
    pub fn record_end(&mut self, in_use: u32, now: Timestamp) {
        if self.below_permits_per_host && in_use < self.unclaimed(now) {
            self.request_sync();
        }
    }

    /// Records a refused request. `could_ask`: it could have waited for a remote check.
    pub fn record_refusal(&mut self, could_ask: bool, now: Timestamp) {
        self.asked = self.asked.saturating_add(1);
        self.unasked = self.unasked.saturating_add(u32::from(!could_ask));
        self.request_sync_at(now);
    }

    /// Whether a sync of this key is due.
    #[must_use]
    pub fn is_sync_due(&self) -> bool {
        self.sync_request == SyncRequest::Due
    }

    /// Whether a sync of this key is due; returns `true` once per request for a sync.
    pub fn take_sync_due(&mut self) -> bool {
        self.sync_request.take_due()
    }

    /// Requests a sync. If an earlier request had no reply for a hold, it is repeated: the sync task may have dropped
    /// it.
    fn request_sync_at(&mut self, now: Timestamp) {
        if self.sync_request == SyncRequest::Signalled && now >= self.expires_at.after(HOLD) {
            (self.sync_request, self.granted, self.expires_at) = (SyncRequest::Due, 0, now);
        }
        self.request_sync();
    }

    fn request_sync(&mut self) {
        if self.sync_request == SyncRequest::Idle {
            self.sync_request = SyncRequest::Due;
        }
    }
}
