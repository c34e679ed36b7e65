//! What a pool counts of the work in it, beside what its sessions say.

use super::Pool;
use super::work::nanos;
use crate::clock::Timestamp;
use crate::engine::sync::Ordering;

/// Work in progress in a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::engine) struct InPool {
    /// Slots that it keeps busy.
    pub(in crate::engine) busy: u32,
    /// Pieces of the most important work.
    pub(in crate::engine) critical: u32,
    /// Pieces of all other.
    pub(in crate::engine) others: u32,
}

impl Pool {
    /// What it counts.
    pub(in crate::engine) fn counted(&self) -> InPool {
        InPool {
            busy: self.work.lock().busy,
            // Who has counted himself in or out had said before that he is on his way: whoever sees the one sees the other.
            critical: self.critical.load(Ordering::Acquire),
            others: self.others.load(Ordering::Acquire),
        }
    }

    /// Sets what it counts to what its sessions have in progress, while none of that begins or ends. Work is counted in before
    /// it is a session's: that is left for another time unless nobody is on his way. Whether anything was changed.
    pub(in crate::engine) fn put_right(
        &self,
        held: InPool,
        are_moving: impl Fn() -> bool,
        at: Timestamp,
    ) -> bool {
        let mut changed = self.set_busy(held.busy, at);
        let counted = self.counted();
        if are_moving() {
            return changed;
        }
        for (count, held, counted) in
            [(&self.critical, held.critical, counted.critical), (&self.others, held.others, counted.others)]
        {
            if held != counted {
                // By the difference: whoever comes from now on counts himself. A count that fell below zero stands near the
                // largest number.
                count.fetch_add(held.wrapping_sub(counted), Ordering::Relaxed);
                changed = true;
            }
        }
        changed
    }

    /// From now on; what was measured until now stays.
    fn set_busy(&self, busy: u32, at: Timestamp) -> bool {
        let mut work = self.work.lock();
        let before = std::mem::replace(&mut work.busy, busy);
        work.busy_began += (i128::from(busy) - i128::from(before)) * nanos(at);
        self.busy.store(busy, Ordering::Relaxed);
        before != busy
    }

    /// Counts wrongly, as no fault should.
    #[cfg(test)]
    #[cfg(not(feature = "interleavings"))]
    pub(in crate::engine) fn miscount(&self, busy: i32, critical: i32, others: i32, at: Timestamp) {
        let wrong = self.work.lock().busy.saturating_add_signed(busy);
        self.set_busy(wrong, at);
        self.critical.fetch_add(critical.cast_unsigned(), Ordering::Relaxed);
        self.others.fetch_add(others.cast_unsigned(), Ordering::Relaxed);
    }
}
