//! The leaky bucket as a queue: delays requests instead of refusing them. The arithmetic and the 8 bytes of state are
//! those of the token bucket ([`GcraState`]), with room for the unit that starts and those that wait; there is no queue in
//! memory.
//!
//! ```text
//!        now             next               next + cost ÷ rate
//!   ──────┼────────────────┼───────────────────────┼───────▶ ticks
//!         ╰── the wait ────╯── this request's slot ╯
//!         ╰────────── capacity ((queue + 1) ÷ rate) ─────────────╯
//! ```
//!
//! Promise: requests start at least cost ÷ rate apart, in order of arrival. The wait in a reply is rounded up to a
//! microsecond, so no request starts early. Never more than `queue` units wait. Slots are exact: rounding the wait in
//! the reply does not slow the pace.

use super::token_bucket::{self, GcraState, micros_up};
use super::{LimitError, Outcome, Rate, TickScale};
use crate::clock::{Micros, Timestamp};

/// The configured limit: a rate and a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeakyBucketQuota {
    /// A bucket of `queue + 1` units: one starts, the others wait.
    bucket: token_bucket::TokenBucketQuota,
}

impl LeakyBucketQuota {
    /// Makes a limit of `rate` with at most `queue` waiting units, on the rate's own scale.
    ///
    /// # Errors A queue whose time to drain does not fit.
    pub fn new(rate: Rate, queue: u32) -> Result<LeakyBucketQuota, LimitError> {
        LeakyBucketQuota::on_scale(rate, queue, TickScale::for_rate(rate))
    }

    /// Makes a limit on a given scale: all quotas of a rule share one.
    ///
    /// # Errors Those of [`LeakyBucketQuota::new`]; a rate that the scale cannot keep to within one part in 100 000.
    pub fn on_scale(rate: Rate, queue: u32, scale: TickScale) -> Result<LeakyBucketQuota, LimitError> {
        let slots = queue.checked_add(1).ok_or(LimitError::QueueTooLong)?;
        match token_bucket::TokenBucketQuota::on_scale(rate, slots, scale) {
            Ok(bucket) => Ok(LeakyBucketQuota { bucket }),
            Err(LimitError::BurstTooLarge) => Err(LimitError::QueueTooLong),
            Err(error) => Err(error),
        }
    }

    pub const fn queue(&self) -> u32 {
        // A bucket holds at least one unit.
        self.bucket.burst().saturating_sub(1)
    }

    /// The token bucket of `queue + 1` units that does the arithmetic, for [`GcraState::level`], [`GcraState::charge_debt`], [`GcraState::refund`] and
    /// [`GcraState::clamp_to`]. The `remaining` of its level counts free slots.
    pub const fn bucket(&self) -> &token_bucket::TokenBucketQuota {
        &self.bucket
    }
}

/// The exact time from now until a request starts. Of several rules the longest counts, whatever their scales.
#[derive(Clone, Copy, Debug)]
pub struct QueueWait {
    ticks: u64,
    scale: TickScale,
}

impl QueueWait {
    pub const NONE: QueueWait = QueueWait { ticks: 0, scale: TickScale::NANOS };

    /// The longer of two waits.
    #[must_use]
    pub fn longer(self, other: QueueWait) -> QueueWait {
        let at =
            |wait: QueueWait, scale: TickScale| u128::from(wait.ticks) * u128::from(scale.ticks_per_nano());
        // Cross multiplication compares the two fractions without rounding.
        if at(other, self.scale) > at(self, other.scale) { other } else { self }
    }

    /// The wait in whole microseconds, rounded up, for a reply.
    pub fn micros(self) -> Micros {
        micros_up(self.ticks, self.scale)
    }

    /// The wait in ticks of a scale, rounded up: a slot never begins before its request starts.
    fn ticks_on(self, scale: TickScale) -> u64 {
        scale.ticks_up(self.ticks, self.scale)
    }
}

/// Judges one request of `cost` units and returns the time until its slot.
///
/// `Queued` grants it; its wait is at most `max_wait`, if there is one. `Later` is the wait until the same request
/// would be granted under the same `max_wait`; a microsecond sooner it is still refused. With a `max_wait` of zero
/// nothing is queued. Nothing changes: [`charge_at`] records a grant.
#[inline]
pub fn judge(
    state: GcraState,
    quota: &LeakyBucketQuota,
    now: Timestamp,
    cost: u32,
    max_wait: Option<Micros>,
) -> (Outcome, QueueWait) {
    if cost == 0 {
        return (Outcome::Pass, QueueWait::NONE);
    }
    if cost > quota.bucket.burst() {
        return (Outcome::Never, QueueWait::NONE);
    }
    let start =
        QueueWait { ticks: state.ticks_until_full(quota.bucket.scale(), now), scale: quota.bucket.scale() };
    let wait = start.micros();
    let ahead = start.ticks.saturating_add(quota.bucket.ticks_of(cost));
    let until_room = micros_up(ahead.saturating_sub(quota.bucket.capacity()), quota.bucket.scale());
    let until_acceptable = max_wait.map_or(0, |most| wait.0.saturating_sub(most.0));
    let later = until_room.0.max(until_acceptable);
    if later > 0 {
        (Outcome::Later(Micros(later)), start)
    } else if start.ticks > 0 {
        (Outcome::Queued(wait), start)
    } else {
        (Outcome::Pass, start)
    }
}

/// Charges a granted request at `start`, the longest wait of all leaky rules of the request, or at the key's own next
/// slot where that is later (a shadow rule, whose wait delays no request).
///
/// The longer wait of another rule may place this key further ahead than its queue is long: then there is no free slot
/// until the excess has drained. Slots saturate at the range of the ticks (109 years, 312 days at 128 ticks per
/// nanosecond).
#[inline]
#[must_use]
pub fn charge_at(
    state: GcraState,
    quota: &LeakyBucketQuota,
    now: Timestamp,
    start: QueueWait,
    cost: u32,
) -> GcraState {
    if cost == 0 {
        return state;
    }
    let scale = quota.bucket.scale();
    let slot = state.ticks_until_full(scale, now).max(start.ticks_on(scale));
    state.with_ahead(scale, now, slot.saturating_add(quota.bucket.ticks_of(cost)))
}
