//! Who of the callers sends so much that refusing him or not is refusing too much or too little: above 5 % of the traffic.
//! His requests are drawn for one by one. It knows callers by a hash alone, and refuses nobody.
//!
//! Space-saving (Metwally, Agrawal, El Abbadi, “Efficient Computation of Frequent and Top-k Elements in Data Streams”,
//! 2005): a caller without a place takes over the smallest count and goes on from there. No count is below the truth, and
//! none is above it by more than a 64th of the total: who sends 5 % is found, who sends less than 3.4 % is not.

use std::time::Duration;

use crate::clock::Timestamp;

/// The callers of one priority that come most often, about, over the last seconds.
#[derive(Clone, Debug)]
pub struct Heavy {
    // Apart, so that looking for a caller or for the smallest count reads little. A place with no count is free.
    callers: [u64; PLACES],
    counts: [u32; PLACES],
    total: u32,
    aged: Option<Timestamp>,
}

impl Heavy {
    /// One that has noted nobody.
    #[must_use]
    pub fn new() -> Heavy {
        Heavy { callers: [0; PLACES], counts: [0; PLACES], total: 0, aged: None }
    }

    /// Notes a request of a caller, given by a hash. Returns whether he makes more than 5 % of what was noted, this one
    /// included; nobody does before [`NOTED_MIN`] were.
    pub fn note(&mut self, caller: u64) -> bool {
        self.total = self.total.saturating_add(1);
        let total = self.total;
        let Some(count) = self.place(caller) else { return false };
        *count = count.saturating_add(1);
        total >= NOTED_MIN && u64::from(*count) * 1_000 > u64::from(total) * HEAVY_PERMILLE
    }

    /// Halves all counts once for every [`HALVED_EVERY`] that has passed, so that who was heavy is forgotten. Called at
    /// any time; the first call starts the time.
    pub fn age(&mut self, at: Timestamp) {
        let aged = *self.aged.get_or_insert(at);
        let times = at.since(aged).as_nanos() / HALVED_EVERY.as_nanos();
        if times == 0 {
            return;
        }
        let times = u32::try_from(times).unwrap_or(u32::MAX);
        self.aged = Some(aged.after(HALVED_EVERY.saturating_mul(times)));
        // Halved so often, nothing is left.
        let halved = |count: u32| count.checked_shr(times).unwrap_or(0);
        self.counts = self.counts.map(halved);
        self.total = halved(self.total);
    }

    /// The count of a caller, in the place that is his or becomes his.
    fn place(&mut self, caller: u64) -> Option<&mut u32> {
        let known = self.callers.iter().zip(&self.counts);
        let known = known.enumerate().find(|(_, (other, count))| **other == caller && **count > 0);
        let place = match known {
            Some((place, _)) => place,
            None => {
                let (place, _) = self.counts.iter().enumerate().min_by_key(|(_, count)| **count)?;
                *self.callers.get_mut(place)? = caller;
                place
            }
        };
        self.counts.get_mut(place)
    }
}

impl Default for Heavy {
    fn default() -> Heavy {
        Heavy::new()
    }
}

/// How many callers are counted: a 64th of the total is well below the 5 % that are looked for.
pub const PLACES: usize = 64;

/// Above this share of the traffic, in thousandths, a caller is heavy.
const HEAVY_PERMILLE: u64 = 50;

/// How many requests are noted before anybody is heavy: of fewer, four would be enough by chance.
pub const NOTED_MIN: u32 = 64;

/// How often all counts are halved.
pub const HALVED_EVERY: Duration = Duration::from_secs(10);
