//! The concurrency limit of one host: a counter of the leases of one key, incremented by a grant and decremented when
//! the lease ends. The lease table ensures that each lease decrements once.
//!
//! Promise: never more than `max` leases are granted and not ended. Lowering `max` ends no lease; new requests are
//! refused until fewer are in progress.

use std::num::NonZeroU32;

use super::{Outcome, QuotaLevel};
use crate::clock::Micros;

/// The configured limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConcurrencyQuota {
    max: u32,
}

impl ConcurrencyQuota {
    /// Makes a limit of at most `max` leases at once.
    #[must_use]
    pub const fn new(max: NonZeroU32) -> ConcurrencyQuota {
        ConcurrencyQuota { max: max.get() }
    }

    /// The most leases at once.
    #[must_use]
    pub const fn max(&self) -> u32 {
        self.max
    }
}

/// The number of leases of one key in progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseCount(u32);

impl LeaseCount {
    /// The number of leases.
    #[must_use]
    pub const fn count(self) -> u32 {
        self.0
    }

    /// Judges one more lease. A refusal has a retry-after of zero: the end of the other leases is not known.
    pub fn judge(self, quota: &ConcurrencyQuota) -> Outcome {
        if self.0 < quota.max { Outcome::Pass } else { Outcome::Later(Micros::ZERO) }
    }

    /// Counts one more lease.
    pub fn add_lease(&mut self) {
        self.0 = self.0.saturating_add(1);
    }

    /// Counts one lease less. Returns how many are left.
    pub fn remove_lease(&mut self) -> u32 {
        debug_assert!(self.0 > 0, "only a lease that was counted ends");
        self.0 = self.0.saturating_sub(1);
        self.0
    }

    /// The numbers of a reply about this key.
    #[must_use]
    pub fn level(self, quota: &ConcurrencyQuota) -> QuotaLevel {
        QuotaLevel {
            limit: u64::from(quota.max),
            window: Micros::ZERO,
            remaining: u64::from(quota.max.saturating_sub(self.0)),
            reset: Micros::ZERO,
        }
    }
}
