//! The sliding window: one counter for each of B buckets of W/B, and one for the bucket that the window is leaving.
//! An estimate, in 4 bytes a bucket whatever N is. It never remembers when in a bucket something came.
//!
//! ```text
//!         ╭──────────── window, B = 4 ────────────╮
//!   │─────┼───│─────────│─────────│─────────│─────┼───│──▶ Unix time
//!         ╰sh.╯ whole     whole     whole   current
//!    oldest                                       t
//! ```
//!
//! The estimate is what the current bucket and the B − 1 whole ones before it count, and of what the oldest counts the
//! share of it that the window (t − W, t] still covers, rounded down. A request passes if estimate + cost ≤ N.
//! `buckets: 1` is the estimate from two windows known from Cloudflare ("How we built rate limiting capable of scaling
//! to millions of domains", 2017). Buckets are aligned to UTC at i·W/B, in exact fractions where B does not divide W.
//!
//! Stated error: the units truly in the window differ from the estimate by at most what the oldest bucket counts. All
//! of them may have come in its last moment: then too little is counted, by the share that has gone, rounded up. Or in
//! its first: then too much, by the share that is left, rounded down. All else is exact. At most N pass in a bucket, so
//! at most 2N in any window of W; of an even load the oldest bucket holds about N/B, and the error is a part of that.
//!
//! Promise: while nothing comes, the estimate never rises: within a bucket the share falls, and at its end the oldest
//! has fallen to nothing while the next to leave still counts in full. So a request is refused exactly until its
//! `Later` has passed. Where the wall clock steps back, the newest bucket stands, at its start, until the clock has
//! reached it again: a window is stretched by at most the step, and nothing is given twice.

use std::ops::RangeInclusive;

use super::heap::block_bytes;
use super::rate::WINDOW_NANOS;
use super::{Level, Outcome, RateError};
use crate::clock::{Micros, Now};

/// The numbers of one sliding window: N units in a window of W, in B buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    count: u32,
    window_nanos: u64,
    buckets: u8,
}

impl Quota {
    /// `count` units in any `window_nanos` nanoseconds, as far as `buckets` buckets can tell.
    ///
    /// # Errors
    /// A count of zero, a window below a millisecond or above 366 days, no bucket or more than 60.
    pub fn new(count: u32, window_nanos: u64, buckets: u8) -> Result<Quota, RateError> {
        if count == 0 {
            return Err(RateError::Zero);
        }
        if !WINDOW_NANOS.contains(&window_nanos) {
            return Err(RateError::Window);
        }
        if !BUCKETS.contains(&buckets) {
            return Err(RateError::Buckets);
        }
        Ok(Quota { count, window_nanos, buckets })
    }

    /// The same window with another count. States of the two can be compared.
    ///
    /// # Errors
    /// A count of zero.
    pub fn with_count(&self, count: u32) -> Result<Quota, RateError> {
        Quota::new(count, self.window_nanos, self.buckets)
    }

    /// N.
    #[must_use]
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// W in nanoseconds.
    #[must_use]
    pub const fn window_nanos(&self) -> u64 {
        self.window_nanos
    }

    /// W.
    #[must_use]
    pub const fn window(&self) -> Micros {
        Micros(self.window_nanos.div_ceil(NANOS_PER_MICRO))
    }

    /// B.
    #[must_use]
    pub const fn buckets(&self) -> u8 {
        self.buckets
    }

    /// Where a moment of Unix time lies: in 1/B nanoseconds, a bucket is as long as W is in nanoseconds.
    fn place(&self, unix_nanos: u64) -> Place {
        let (windows, rest) = (unix_nanos / self.window_nanos, unix_nanos % self.window_nanos);
        // Neither product overflows: 366 days × 60 has 61 bits, and 2⁶⁴ ns have at most 2⁴⁵ windows of a millisecond.
        let rest = rest * u64::from(self.buckets);
        let bucket = windows * u64::from(self.buckets) + rest / self.window_nanos;
        Place { bucket, elapsed: rest % self.window_nanos }
    }
}

/// The state of one key. The counters of one bucket and the one before it are kept in place; more buckets have a
/// block of memory while something counts.
#[derive(Clone, Debug)]
pub struct SlidingWindow(Counters);

#[derive(Clone, Debug)]
enum Counters {
    Two {
        start_nanos: u64,
        counts: [u32; 2],
    },
    /// The start (low, high), then the counts; nothing when nothing counts.
    Many(Box<[u32]>),
}

impl SlidingWindow {
    /// A key never seen: nothing counts, nothing is allocated.
    #[must_use]
    pub fn fresh(quota: &Quota, _now: Now) -> SlidingWindow {
        SlidingWindow(match quota.buckets {
            1 => Counters::Two { start_nanos: 0, counts: [0; 2] },
            _ => Counters::Many(Box::default()),
        })
    }

    /// Judges one request of `cost` units. `Later` is exact: a microsecond sooner is still refused.
    pub fn judge(&self, quota: &Quota, now: Now, cost: u32) -> Outcome {
        if cost == 0 {
            return Outcome::Pass;
        }
        let Some(most) = quota.count.checked_sub(cost) else {
            return Outcome::Never;
        };
        let view = self.view(quota, now);
        if view.estimate(quota) <= u64::from(most) {
            Outcome::Pass
        } else {
            Outcome::Later(view.wait(quota, now, u64::from(most)))
        }
    }

    /// Counts `cost` units at this time: they passed, or are counted although refused.
    pub fn charge(&mut self, quota: &Quota, now: Now, cost: u32) {
        if cost == 0 {
            return;
        }
        let unix_nanos = unix_nanos(now).max(self.start_nanos());
        let here = quota.place(unix_nanos);
        let passed = here.bucket.saturating_sub(quota.place(self.start_nanos()).bucket);
        let buckets = usize::from(quota.buckets) + 1;
        if self.counts().len() != buckets {
            self.0 = Counters::Many(vec![0; START_WORDS + buckets].into_boxed_slice());
        }
        let counts = self.counts_mut();
        let passed = usize::try_from(passed).unwrap_or(buckets).min(buckets);
        if passed > 0 {
            counts.copy_within(..buckets - passed, passed);
            counts.iter_mut().take(passed).for_each(|count| *count = 0);
        }
        if let Some(newest) = counts.first_mut() {
            *newest = newest.saturating_add(cost);
        }
        // The first whole nanosecond of the bucket.
        self.set_start_nanos(unix_nanos.saturating_sub(here.elapsed / u64::from(quota.buckets)));
    }

    /// Counts what is known after the fact: past N, at most to N + `debt_max`; what is more is dropped.
    pub fn owe(&mut self, quota: &Quota, now: Now, amount: u32, debt_max: u32) {
        let most = u64::from(quota.count) + u64::from(debt_max);
        let room = most.saturating_sub(self.view(quota, now).estimate(quota));
        self.charge(quota, now, u32::try_from(room).map_or(amount, |room| amount.min(room)));
    }

    /// Takes units back, from the newest bucket first; more than there are leaves a fresh key.
    pub fn give_back(&mut self, _quota: &Quota, _now: Now, amount: u32) {
        let mut amount = amount;
        for count in self.counts_mut() {
            let taken = amount.min(*count);
            *count -= taken;
            amount -= taken;
        }
        if let Counters::Many(words) = &mut self.0
            && words.iter().skip(START_WORDS).all(|count| *count == 0)
        {
            *words = Box::default();
        }
    }

    /// What a reply says about this key.
    #[must_use]
    pub fn level(&self, quota: &Quota, now: Now) -> Level {
        let view = self.view(quota, now);
        let limit = u64::from(quota.count);
        let used = view.estimate(quota).min(limit);
        let reset = match used.checked_sub(1) {
            Some(less) => view.wait(quota, now, less),
            None => Micros::ZERO,
        };
        Level { limit, window: quota.window(), remaining: limit - used, reset }
    }

    /// Nanoseconds until nothing counts any more, if the window is no longer than this; zero for a key that equals
    /// a fresh one. It may be a nanosecond too long where B does not divide W.
    #[must_use]
    pub fn nanos_until_fresh(&self, window_nanos: u64, now: Now) -> u64 {
        let counts = self.counts();
        let Some(newest) = counts.iter().position(|count| *count > 0) else {
            return 0;
        };
        // A bucket counts until B more have passed after it; there are B + 1 counters.
        let (left, buckets) = (counts.len() - newest, (counts.len() - 1).max(1));
        let span = u128::from(window_nanos) * wide(left);
        let end = u128::from(self.start_nanos()) + span.div_ceil(wide(buckets));
        u64::try_from(since(end, now)).unwrap_or(u64::MAX)
    }

    /// Bytes of the heap that it holds.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        match &self.0 {
            Counters::Two { .. } => 0,
            Counters::Many(words) => block_bytes(words.len() * size_of::<u32>()),
        }
    }

    fn view(&self, quota: &Quota, now: Now) -> View<'_> {
        let start = self.start_nanos();
        let (newest, here) = (quota.place(start).bucket, quota.place(unix_nanos(now).max(start)));
        let buckets = usize::from(quota.buckets);
        let passed = usize::try_from(here.bucket.saturating_sub(newest)).unwrap_or(usize::MAX);
        let oldest = buckets.checked_sub(passed);
        let counts = self.counts();
        View {
            here,
            whole: counts.get(..oldest.unwrap_or(0)).unwrap_or_default(),
            oldest: oldest.and_then(|oldest| counts.get(oldest)).copied().unwrap_or(0),
        }
    }

    /// When the newest bucket started, in Unix time.
    fn start_nanos(&self) -> u64 {
        match &self.0 {
            Counters::Two { start_nanos, .. } => *start_nanos,
            Counters::Many(words) => match **words {
                [low, high, ..] => u64::from(high) << 32 | u64::from(low),
                _ => 0,
            },
        }
    }

    fn set_start_nanos(&mut self, nanos: u64) {
        match &mut self.0 {
            Counters::Two { start_nanos, .. } => *start_nanos = nanos,
            Counters::Many(words) => {
                if let [low, high, ..] = &mut **words {
                    let [a, b, c, d, e, f, g, h] = nanos.to_le_bytes();
                    *low = u32::from_le_bytes([a, b, c, d]);
                    *high = u32::from_le_bytes([e, f, g, h]);
                }
            }
        }
    }

    /// What each bucket counts, the newest first.
    fn counts(&self) -> &[u32] {
        match &self.0 {
            Counters::Two { counts, .. } => counts,
            Counters::Many(words) => words.get(START_WORDS..).unwrap_or_default(),
        }
    }

    fn counts_mut(&mut self) -> &mut [u32] {
        match &mut self.0 {
            Counters::Two { counts, .. } => counts,
            Counters::Many(words) => words.get_mut(START_WORDS..).unwrap_or_default(),
        }
    }
}

/// A bucket, counted from 1970, and how much of it has gone: out of W.
#[derive(Clone, Copy, Debug)]
struct Place {
    bucket: u64,
    elapsed: u64,
}

/// What counts at one moment.
#[derive(Clone, Copy, Debug)]
struct View<'a> {
    here: Place,
    /// The buckets that lie in the window as a whole, the newest first. Those after the last one charged, of which
    /// there is no counter yet, are left out.
    whole: &'a [u32],
    oldest: u32,
}

impl View<'_> {
    fn estimate(&self, quota: &Quota) -> u64 {
        let left = quota.window_nanos - self.here.elapsed;
        let share = match u64::from(self.oldest).checked_mul(left) {
            Some(product) => product / quota.window_nanos,
            // At most `oldest`, for what is left of a bucket is at most all of it.
            None => {
                u64::try_from(u128::from(self.oldest) * u128::from(left) / u128::from(quota.window_nanos))
                    .unwrap_or(u64::MAX)
            }
        };
        self.whole.iter().map(|count| u64::from(*count)).sum::<u64>() + share
    }

    /// The wait until the estimate is at most `most`; it is more now.
    ///
    /// At the start of the next bucket the estimate is what is whole now, at the start of the one after that it has
    /// lost the last of these, and so on: so the bucket in which it falls far enough is found in at most B steps, and
    /// the place in it by solving the share for the time.
    fn wait(&self, quota: &Quota, now: Now, most: u64) -> Micros {
        let mut bucket = self.here.bucket;
        let mut oldest = self.oldest;
        let mut whole: u64 = self.whole.iter().map(|count| u64::from(*count)).sum();
        for next in self.whole.iter().rev() {
            if whole <= most {
                break;
            }
            (bucket, oldest) = (bucket.saturating_add(1), *next);
            whole -= u64::from(*next);
        }
        // ⌊oldest · left ÷ W⌋ ≤ room  ⇔  oldest · left < (room + 1) · W  ⇔  elapsed > W · (oldest − room − 1) ÷ oldest
        let room = most.saturating_sub(whole);
        let elapsed = match u64::from(oldest).checked_sub(room + 1) {
            Some(over) => u128::from(quota.window_nanos) * u128::from(over) / u128::from(oldest.max(1)) + 1,
            None => 0,
        };
        let passes = u128::from(bucket) * u128::from(quota.window_nanos) + elapsed;
        let wait =
            since(passes.div_ceil(u128::from(quota.buckets)), now).div_ceil(u128::from(NANOS_PER_MICRO));
        // Never zero: the far end of time is a wall, where the clock of buckets stands still.
        Micros(u64::try_from(wait).unwrap_or(u64::MAX).max(1))
    }
}

/// Unix time, as far as buckets go: 1970 to 2554.
fn unix_nanos(now: Now) -> u64 {
    now.at.as_nanos().saturating_add_signed(now.utc)
}

/// Nanoseconds from now until a Unix time, zero when that has gone; from before 1970 as well.
fn since(unix_nanos: u128, now: Now) -> u128 {
    let now = i128::from(now.at.as_nanos()) + i128::from(now.utc);
    u128::try_from(i128::try_from(unix_nanos).unwrap_or(i128::MAX).saturating_sub(now)).unwrap_or(0)
}

/// A count of buckets as a factor. It is at most 61.
fn wide(buckets: usize) -> u128 {
    u128::try_from(buckets).unwrap_or(u128::MAX)
}

/// More than 60 tell no more than a log does, in more than it takes to look at.
const BUCKETS: RangeInclusive<u8> = 1..=60;

/// The start of the newest bucket, ahead of the counts.
const START_WORDS: usize = 2;

const NANOS_PER_MICRO: u64 = 1_000;
