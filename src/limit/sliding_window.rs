//! The sliding window: one counter for each of B buckets of W/B, and one for the bucket that the window is leaving. An
//! estimate in 4 bytes per bucket, for any N; times within a bucket are not stored.
//!
//! ```text
//!         ╭──────────── window, B = 4 ────────────╮
//!   │─────┼───│─────────│─────────│─────────│─────┼───│──▶ Unix time
//!         ╰sh.╯ whole     whole     whole   current
//!    oldest                                       t
//! ```
//!
//! The estimate is the count of the current bucket and of the B − 1 whole ones before it, and the share of the oldest
//! bucket's count that the window (t − W, t] still covers, rounded down. A request passes if estimate + cost ≤ N.
//! `buckets: 1` is the estimate from two windows known from Cloudflare ("How we built rate limiting capable of scaling
//! to millions of domains", 2017). Buckets are aligned to UTC at i·W/B, in exact fractions where B does not divide W.
//!
//! Stated error: the estimate differs from the true count by at most the count of the oldest bucket. If all its units
//! came in its last instant, the estimate is too low by the share that has left, rounded up; if all came in its first,
//! it is too high by the share that is left, rounded down. All else is exact. At most N pass in a bucket, so at most 2N
//! in any window of W; under an even load the oldest bucket holds about N/B, and the error is a part of that.
//!
//! Promise: without further requests the estimate never rises: within a bucket the share falls, and at its end the
//! oldest bucket has fallen to zero while the next to leave still counts in full. So `Later` is exact. The state holds
//! the boot-time instant at which the newest bucket was first counted in; the current wall clock decides which bucket
//! contains it. So nothing counts longer than the window and a bucket by the boot-time clock, whatever the wall clock
//! does.

use std::num::NonZeroU64;
use std::ops::RangeInclusive;

use super::rate::WINDOW_NANOS;
use super::ring::{Ring, heap_bytes_of};
use super::{LimitError, Outcome, QuotaLevel};
use crate::clock::{Micros, Now, Timestamp};

/// The configured limit: N units in a window of W, in B buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingWindowQuota {
    count: u32,
    window_nanos: u64,
    buckets: u8,
    /// The length of a bucket, if it is whole nanoseconds.
    bucket_nanos: Option<NonZeroU64>,
}

impl SlidingWindowQuota {
    /// Makes a limit of `count` units in any `window_nanos` nanoseconds, estimated from `buckets` buckets.
    ///
    /// # Errors A count of zero, a window below a millisecond or above 366 days, no bucket or more than 60.
    pub fn new(count: u32, window_nanos: u64, buckets: u8) -> Result<SlidingWindowQuota, LimitError> {
        if count == 0 {
            return Err(LimitError::Zero);
        }
        if !WINDOW_NANOS.contains(&window_nanos) {
            return Err(LimitError::Window);
        }
        if !BUCKETS.contains(&buckets) {
            return Err(LimitError::Buckets);
        }
        let is_even = window_nanos.is_multiple_of(u64::from(buckets));
        let bucket_nanos = NonZeroU64::new(window_nanos / u64::from(buckets)).filter(|_| is_even);
        Ok(SlidingWindowQuota { count, window_nanos, buckets, bucket_nanos })
    }

    /// Returns the same window with another count; states of the two are comparable.
    ///
    /// # Errors A count of zero.
    pub fn with_count(&self, count: u32) -> Result<SlidingWindowQuota, LimitError> {
        SlidingWindowQuota::new(count, self.window_nanos, self.buckets)
    }

    /// The units of one window, N.
    pub const fn count(&self) -> u32 {
        self.count
    }

    pub const fn window_nanos(&self) -> u64 {
        self.window_nanos
    }

    pub const fn window(&self) -> Micros {
        Micros::from_nanos(self.window_nanos)
    }

    pub const fn buckets(&self) -> u8 {
        self.buckets
    }

    /// Heap bytes of a key while something is counted.
    pub fn heap_bytes(&self) -> usize {
        heap_bytes_of(self.counters())
    }

    /// The number of the bucket that contains an instant of Unix time, counted from 1970, and the time since its start
    /// in 1/B nanoseconds: a bucket has as many of these as W has nanoseconds.
    #[inline]
    fn bucket_at(&self, unix_nanos: u64) -> (u64, u64) {
        let buckets = u64::from(self.buckets);
        if let Some(bucket_nanos) = self.bucket_nanos {
            return (unix_nanos / bucket_nanos, unix_nanos % bucket_nanos * buckets);
        }
        let (windows, rest) = (unix_nanos / self.window_nanos, unix_nanos % self.window_nanos);
        // Neither product overflows: 366 days × 60 has 61 bits, and 2⁶⁴ ns have at most 2⁴⁵ windows of a millisecond.
        let rest = rest * buckets;
        (windows * buckets + rest / self.window_nanos, rest % self.window_nanos)
    }

    /// The number of counters: one for each bucket, and one for the bucket that the window is leaving.
    const fn counters(&self) -> u8 {
        // B is at most 60.
        self.buckets + 1
    }
}

#[derive(Clone, Debug, Default)]
pub struct SlidingWindowState(Ring);

impl SlidingWindowState {
    /// The boot-time instant at which the newest bucket was first counted in, and the counts of the buckets, the newest
    /// first.
    pub fn counts(&self) -> (Timestamp, Vec<u32>) {
        (self.0.began(), (0..self.0.len()).map(|back| self.0.count(back)).collect())
    }

    /// Makes a state from its counts; `None` if no window has that many buckets.
    pub fn from_counts(began: Timestamp, counts: &[u32]) -> Option<SlidingWindowState> {
        Ring::from_counts(began, counts).map(SlidingWindowState)
    }

    /// Judges one request of `cost` units. `Later` is exact: a microsecond sooner is still refused.
    pub fn judge(&self, quota: &SlidingWindowQuota, now: Now, cost: u32) -> Outcome {
        if cost == 0 {
            return Outcome::Pass;
        }
        let Some(most) = quota.count.checked_sub(cost) else {
            return Outcome::Never;
        };
        let (view, most) = (self.view(quota, now), u64::from(most));
        // If the request fits even with all of the oldest bucket, its share need not be computed.
        if view.whole + u64::from(view.oldest) <= most || view.estimate(quota) <= most {
            Outcome::Pass
        } else {
            Outcome::Later(view.wait(quota, most))
        }
    }

    /// Counts `cost` units now: they passed, or are counted although refused.
    pub fn charge(&mut self, quota: &SlidingWindowQuota, now: Now, cost: u32) {
        if cost == 0 {
            return;
        }
        self.0.advance(self.position(quota, now).passed, now.at, quota.counters());
        self.0.add(cost);
    }

    /// Charges after the fact: may exceed N by at most `debt_max` units; the excess is dropped.
    pub fn charge_debt(&mut self, quota: &SlidingWindowQuota, now: Now, amount: u32, debt_max: u32) {
        let most = u64::from(quota.count) + u64::from(debt_max);
        let room = most.saturating_sub(self.view(quota, now).estimate(quota));
        self.charge(quota, now, u32::try_from(room).map_or(amount, |room| amount.min(room)));
    }

    /// Refunds units that were charged at an instant: those of its bucket, none once that has left the window. Without an
    /// instant from the newest bucket first; refunding more than there are yields the state of a new key.
    pub fn refund(
        &mut self,
        quota: &SlidingWindowQuota,
        now: Now,
        amount: u32,
        charged_at: Option<Timestamp>,
    ) {
        let Some(at) = charged_at else { return self.0.remove(amount) };
        let bucket = |at: Timestamp| quota.bucket_at(unix_nanos(at, now)).0;
        // One that another thread charged before the newest bucket began was counted in that.
        let back = bucket(self.0.began()).saturating_sub(bucket(at));
        self.0.remove_of(usize::try_from(back).unwrap_or(usize::MAX), amount);
    }

    pub fn level(&self, quota: &SlidingWindowQuota, now: Now) -> QuotaLevel {
        let view = self.view(quota, now);
        let limit = u64::from(quota.count);
        let used = view.estimate(quota).min(limit);
        let reset = match used.checked_sub(1) {
            Some(less) => view.wait(quota, less),
            None => Micros::ZERO,
        };
        QuotaLevel { limit, window: quota.window(), remaining: limit - used, reset }
    }

    /// Nanoseconds until surely nothing is counted any more, if the window is no longer than `window_nanos`; zero for
    /// the state of a new key. Too long by less than a bucket and a nanosecond.
    pub fn nanos_until_fresh(&self, window_nanos: u64, now: Now) -> u64 {
        let counters = self.0.len();
        let Some(newest) = (0..counters).find(|back| self.0.count(*back) > 0) else {
            return 0;
        };
        // A bucket counts until B more have passed after it; there are B + 1 counters.
        let (left, buckets) = (counters - newest, (counters - 1).max(1));
        let span = u128::from(window_nanos) * widen(left);
        let end = u128::from(self.0.began().as_nanos()) + span.div_ceil(widen(buckets));
        u64::try_from(end.saturating_sub(u128::from(now.at.as_nanos()))).unwrap_or(u64::MAX)
    }

    pub fn heap_bytes(&self) -> usize {
        self.0.heap_bytes()
    }

    #[inline]
    fn view(&self, quota: &SlidingWindowQuota, now: Now) -> WindowView<'_> {
        let position = self.position(quota, now);
        let oldest = usize::from(quota.buckets).checked_sub(position.passed);
        // Counters of buckets that have left the window, or are leaving it, are behind the others.
        let leaving = (oldest.unwrap_or(0)..self.0.len()).map(|back| u64::from(self.0.count(back)));
        WindowView {
            position,
            ring: &self.0,
            whole: self.0.total() - leaving.sum::<u64>(),
            whole_buckets: oldest.unwrap_or(0),
            oldest: oldest.map_or(0, |oldest| self.0.count(oldest)),
        }
    }

    /// The position of now relative to the newest bucket. An instant before that bucket, as another thread may have
    /// read it, counts as its beginning.
    #[inline]
    fn position(&self, quota: &SlidingWindowQuota, now: Now) -> BucketPosition {
        let (began, moment) = (unix_nanos(self.0.began(), now), unix_nanos(now.at, now));
        let ((newest, since), (here, elapsed)) = (quota.bucket_at(began), quota.bucket_at(moment));
        match here.checked_sub(newest) {
            Some(passed) => {
                BucketPosition { elapsed, passed: usize::try_from(passed).unwrap_or(usize::MAX), before: 0 }
            }
            None => {
                let before = (began - moment).saturating_mul(u64::from(quota.buckets)).saturating_sub(since);
                BucketPosition { elapsed: 0, passed: 0, before }
            }
        }
    }
}

/// The position of an instant relative to the newest bucket.
#[derive(Clone, Copy, Debug)]
struct BucketPosition {
    /// The time since the start of its bucket, in 1/B nanoseconds.
    elapsed: u64,
    /// The number of buckets from the newest to its own.
    passed: usize,
    /// The time from the instant to the newest bucket if it is earlier, in 1/B nanoseconds.
    before: u64,
}

#[derive(Clone, Copy, Debug)]
struct WindowView<'a> {
    position: BucketPosition,
    ring: &'a Ring,
    /// The total of the buckets that are wholly in the window.
    whole: u64,
    /// The number of those with a counter: the newest. Buckets after the last one charged have none yet.
    whole_buckets: usize,
    oldest: u32,
}

impl WindowView<'_> {
    #[inline]
    fn estimate(&self, quota: &SlidingWindowQuota) -> u64 {
        // At most `oldest`, because the rest of a bucket is at most the whole.
        self.whole
            + mul_div(u64::from(self.oldest), quota.window_nanos - self.position.elapsed, quota.window_nanos)
    }

    /// The wait until the estimate is at most `most`; it is more now.
    ///
    /// At the start of the next bucket the estimate equals the current total of whole buckets, at the start of the one
    /// after that it has lost the last of these, and so on. So the bucket in which it falls far enough is found in at
    /// most B steps, and the position in it by solving the share for the time.
    fn wait(&self, quota: &SlidingWindowQuota, most: u64) -> Micros {
        let (mut later_by, mut whole, mut oldest) = (0, self.whole, u64::from(self.oldest));
        // Many steps for a key that has not counted for a window yet: over the buckets before its first request.
        let _end = self.ring.oldest_first(self.whole_buckets).try_for_each(|next| {
            (whole > most).then(|| {
                (later_by, oldest) = (later_by + quota.window_nanos, u64::from(next));
                whole -= oldest;
            })
        });
        // ⌊oldest · left ÷ W⌋ ≤ room  ⇔  oldest · left < (room + 1) · W  ⇔  elapsed > W · (oldest − room − 1) ÷ oldest
        let room = most.saturating_sub(whole);
        let elapsed = match oldest.checked_sub(room.saturating_add(1)) {
            Some(over) => mul_div(quota.window_nanos, over, oldest) + 1,
            None => 0,
        };
        // In 1/B nanoseconds; at most 61 windows of 366 days, so it fits.
        let BucketPosition { elapsed: now, before, .. } = self.position;
        let ahead = (later_by + elapsed).saturating_sub(now).saturating_add(before);
        // Never zero: at `u64::MAX` the clock of the buckets stands still.
        Micros::from_nanos(ahead.div_ceil(u64::from(quota.buckets)).max(1))
    }
}

/// ⌊`amount` · `share` ÷ `of`⌋ for a share that is at most `of`.
#[inline]
fn mul_div(amount: u64, share: u64, of: u64) -> u64 {
    if amount == 0 || share == 0 {
        return 0;
    }
    match amount.checked_mul(share) {
        Some(product) => product / of.max(1),
        None => {
            u64::try_from(u128::from(amount) * u128::from(share) / u128::from(of.max(1))).unwrap_or(u64::MAX)
        }
    }
}

/// The Unix time of an instant, for 1970 to 2554. Where the wall clock shows an earlier time, buckets follow the
/// boot-time clock, so that they still pass.
#[inline]
fn unix_nanos(at: Timestamp, now: Now) -> u64 {
    let began_after_1970 = i128::from(now.at.as_nanos()) + i128::from(now.utc_offset_nanos) >= 0;
    at.as_nanos().saturating_add_signed(if began_after_1970 { now.utc_offset_nanos } else { 0 })
}

/// Widens a number of buckets, which is at most 61.
fn widen(buckets: usize) -> u128 {
    u128::try_from(buckets).unwrap_or(u128::MAX)
}

/// More than 60 buckets are as exact as a log and cost more to read.
const BUCKETS: RangeInclusive<u8> = 1..=60;
