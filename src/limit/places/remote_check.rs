//! Remote checks of requests that find no idle permit on their host.

use super::{FleetPermits, Permits};
use crate::clock::Timestamp;
use crate::limit::concurrency::ConcurrencyQuota;
use std::time::Duration;

/// Whether requests may wait for a remote check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PermitWait {
    /// Requests without a permit are refused.
    #[default]
    Never,
    /// Requests without a permit wait.
    OnMiss,
}

impl ConcurrencyQuota {
    /// Returns the shared limit with this mode of remote checks.
    #[must_use]
    pub fn with_remote_checks(self, asks: PermitWait) -> ConcurrencyQuota {
        ConcurrencyQuota { fleet: self.fleet.map(|fleet| FleetPermits { asks, ..fleet }), ..self }
    }

    /// Returns the shared limit with this longest wait for a remote check.
    #[must_use]
    pub fn with_wait_max(self, wait_max: Duration) -> ConcurrencyQuota {
        ConcurrencyQuota { fleet: self.fleet.map(|fleet| FleetPermits { wait_max, ..fleet }), ..self }
    }

    /// The longest wait of a request for a remote check.
    #[must_use]
    pub fn patience(&self) -> Duration {
        self.fleet.as_ref().map_or(Duration::ZERO, |fleet| fleet.wait_max)
    }

    /// Whether permits are so few per host that a host often has none while others have idle ones.
    #[must_use]
    pub fn is_few(&self, hosts: u32) -> bool {
        self.is_fleet() && u64::from(self.max) < u64::from(PERMITS_PER_HOST_MIN) * u64::from(hosts)
    }

    /// Whether requests may wait for a remote check.
    #[must_use]
    pub fn may_check_remotely(&self) -> bool {
        self.fleet.as_ref().is_some_and(|fleet| fleet.asks == PermitWait::OnMiss)
    }

    /// Whether hosts borrow permits only for waiting requests and return them as soon as they are idle: permits are
    /// few, and Redis answers in time.
    #[must_use]
    pub fn borrows_for_waiting_only(&self) -> bool {
        self.joined().is_some_and(|joined| {
            self.is_few(joined.standing.hosts())
                && self.may_check_remotely()
                && joined.standing.answers_in_time()
        })
    }

    /// Whether a remote check might obtain a permit; not until `refused_until` after a refusal.
    #[must_use]
    pub fn may_obtain(&self, places: Option<&Permits>, now: Timestamp) -> bool {
        let is_refused = places.is_some_and(|places| now < places.refused_until);
        let is_answering = || self.joined().is_some_and(|joined| joined.standing.answers_in_time());
        !is_refused && self.may_check_remotely() && is_answering()
    }

    /// Whether a remote check might obtain a permit, by the last reply of Redis.
    #[must_use]
    pub fn may_pass_elsewhere(&self, places: Option<&Permits>, now: Timestamp) -> bool {
        let known = places.filter(|places| now < places.expires_at);
        known.is_none_or(|places| places.free > 0) && self.may_obtain(places, now)
    }
}

impl Permits {
    /// Reserves an idle permit for a request that has waited for one. Returns whether there is one.
    pub fn reserve(&mut self, in_use: u32, now: Timestamp) -> bool {
        let is_idle = in_use < self.unclaimed(now);
        self.claimed = self.claimed.saturating_add(u32::from(is_idle));
        is_idle
    }

    /// Ends the reservation of a permit: its request takes the permit now, or does not need it.
    pub fn release_reservation(&mut self, in_use: u32, now: Timestamp) {
        self.claimed = self.claimed.saturating_sub(1);
        self.record_end(in_use, now);
    }
}

/// Permits per host below which borrowing ahead of demand wastes them: they are idle on hosts that do not need them.
pub const PERMITS_PER_HOST_MIN: u32 = 4;
