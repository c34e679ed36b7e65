//! What sessions and leases say about a pool: numbers of now, and their integrals over time.

use crate::clock::Timestamp;

/// What sessions and leases say. A sum of `n · t` over all that began at t, less the same of all that ended, turns the
/// numbers of now into an integral over time, in whatever order they come.
#[derive(Debug, Default)]
pub(super) struct Work {
    pub(super) sessions: u32,
    /// Slots of live sessions.
    pub(super) slots: u32,
    pub(super) slots_began: i128,
    pub(super) busy: u32,
    pub(super) busy_began: i128,
    /// A process of the pool.
    pub(super) pid: Option<u32>,
}

impl Work {
    pub(super) fn busy_nanos(&self, at: Timestamp) -> u128 {
        integral(self.busy, self.busy_began, at)
    }

    pub(super) fn live_nanos(&self, at: Timestamp) -> u128 {
        integral(self.slots, self.slots_began, at)
    }
}

/// `n · t` of what began, less the same of what ended, turned into an integral.
fn integral(count: u32, began: i128, at: Timestamp) -> u128 {
    // Below zero only for a moment, while another thread is ahead of this reading of the clock.
    u128::try_from(i128::from(count) * nanos(at) - began).unwrap_or_default()
}

pub(super) fn nanos(at: Timestamp) -> i128 {
    i128::from(at.as_nanos())
}
