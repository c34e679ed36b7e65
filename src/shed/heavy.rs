//! Detects heavy callers: more than 5 % of the traffic, so that shedding such a caller or not would shed too much or
//! too little. Their requests are drawn one by one. Callers are known by a hash only.
//!
//! Source: space-saving (Metwally, Agrawal, El Abbadi, “Efficient Computation of Frequent and Top-k Elements in Data
//! Streams”, 2005): a new caller takes over the smallest count and continues from it. No count is below the true one,
//! and none exceeds it by more than a 64th of the total: a caller with 5 % is found, one with less than 3.4 % is not.

use std::time::Duration;

use crate::clock::Timestamp;

/// The approximate counts of the most frequent callers of one priority over the last seconds.
#[derive(Clone, Debug)]
pub struct HeavyCallers {
    // Separate arrays, so that a search for a caller or for the smallest count reads little. A zero count is a free
    // slot.
    callers: [u64; CALLERS_MAX],
    counts: [u32; CALLERS_MAX],
    total: u32,
    aged_at: Option<Timestamp>,
}

impl HeavyCallers {
    /// Counts a request of a caller, given by a hash. Returns whether the caller makes more than 5 % of the requests
    /// counted, this one included; always `false` for the first [`REQUESTS_MIN`] requests.
    pub fn count_request(&mut self, caller: u64) -> bool {
        self.total = self.total.saturating_add(1);
        let total = self.total;
        let Some(count) = self.count_slot(caller) else { return false };
        *count = count.saturating_add(1);
        total >= REQUESTS_MIN && u64::from(*count) * 1_000 > u64::from(total) * HEAVY_PERMILLE
    }

    /// Halves all counts once per [`HALVING_INTERVAL`] passed, so that callers stop being heavy. May be called at any time;
    /// the first call starts the clock.
    pub fn halve_counts(&mut self, at: Timestamp) {
        let aged_at = *self.aged_at.get_or_insert(at);
        let times = at.since(aged_at).as_nanos() / HALVING_INTERVAL.as_nanos();
        if times == 0 {
            return;
        }
        let times = u32::try_from(times).unwrap_or(u32::MAX);
        self.aged_at = Some(aged_at.after(HALVING_INTERVAL.saturating_mul(times)));
        // A shift of 32 or more leaves nothing.
        let halved = |count: u32| count.checked_shr(times).unwrap_or(0);
        self.counts = self.counts.map(halved);
        self.total = halved(self.total);
    }

    /// The count of a caller, which takes over the smallest count if it has none.
    fn count_slot(&mut self, caller: u64) -> Option<&mut u32> {
        let known = self.callers.iter().zip(&self.counts);
        let known = known.enumerate().find(|(_, (other, count))| **other == caller && **count > 0);
        let slot = match known {
            Some((slot, _)) => slot,
            None => {
                let (slot, _) = self.counts.iter().enumerate().min_by_key(|(_, count)| **count)?;
                *self.callers.get_mut(slot)? = caller;
                slot
            }
        };
        self.counts.get_mut(slot)
    }
}

impl Default for HeavyCallers {
    fn default() -> HeavyCallers {
        HeavyCallers { callers: [0; CALLERS_MAX], counts: [0; CALLERS_MAX], total: 0, aged_at: None }
    }
}

/// The number of callers counted: a 64th of the total is well below the threshold of 5 %.
pub const CALLERS_MAX: usize = 64;

/// The share of the traffic above which a caller is heavy, in thousandths.
const HEAVY_PERMILLE: u64 = 50;

/// The number of requests before any caller is heavy: of fewer, four would suffice by chance.
pub const REQUESTS_MIN: u32 = 64;

/// The interval after which all counts are halved.
pub const HALVING_INTERVAL: Duration = Duration::from_secs(10);
