//! The concurrency limit of one host: a counter of the leases of one key, incremented by a grant and decremented when
//! the lease ends. The lease table ensures that each lease decrements once.
//!
//! Promise: never more than `max` leases are granted and not ended. Lowering `max` ends no lease; new requests are
//! refused until fewer are in progress.

use std::num::NonZeroU32;

use super::share::FleetTerms;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConcurrencyQuota {
    pub(super) max: u32,
    /// Set if all hosts together share the limit.
    pub(super) fleet: Option<FleetTerms>,
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
