//! The leaky bucket as a queue: paces work instead of refusing it. The arithmetic and the 8 bytes of state are the
//! token bucket's ([`Gcra`]), with room for the unit that starts and those that wait; nothing here is a queue in memory.
//!
//! ```text
//!        now             next               next + cost ÷ rate
//!   ──────┼────────────────┼───────────────────────┼───────▶ ticks
//!         ╰── the wait ────╯─ this work's place ───╯
//!         ╰────────── capacity ((queue + 1) ÷ rate) ─────────────╯
//! ```
//!
//! Promise: works are placed at least cost ÷ rate apart, in the order in which they came; a work is told to wait until
//! its place, rounded up to a microsecond, so it never starts early; more than `queue` units never wait. Places are
//! exact: rounding what is said never slows the pace.

use super::token_bucket::{self, Gcra, micros_up};
use super::{Outcome, Rate, RateError, Scale};
use crate::clock::{Micros, Timestamp};

/// The numbers of one leaky bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// A bucket of `queue + 1` units: one starts, the others wait.
    bucket: token_bucket::Quota,
}

impl Quota {
    /// Work that starts at `rate` while at most `queue` units wait, on the rate's own scale.
    ///
    /// # Errors
    /// A queue so long that the time to drain it does not fit.
    pub fn new(rate: Rate, queue: u32) -> Result<Quota, RateError> {
        Quota::on_scale(rate, queue, Scale::of(rate))
    }

    /// The same on a given scale: all quotas of a rule share one.
    ///
    /// # Errors
    /// Those of [`Quota::new`]; a rate that the scale cannot keep to within one part in 100 000.
    pub fn on_scale(rate: Rate, queue: u32, scale: Scale) -> Result<Quota, RateError> {
        let places = queue.checked_add(1).ok_or(RateError::QueueTooLong)?;
        match token_bucket::Quota::on_scale(rate, places, scale) {
            Ok(bucket) => Ok(Quota { bucket }),
            Err(RateError::BurstTooLarge) => Err(RateError::QueueTooLong),
            Err(error) => Err(error),
        }
    }

    /// The rate it was made from.
    #[must_use]
    pub const fn rate(&self) -> Rate {
        self.bucket.rate()
    }

    /// Units that may wait.
    #[must_use]
    pub const fn queue(&self) -> u32 {
        // A bucket holds at least one unit.
        self.bucket.burst().saturating_sub(1)
    }

    /// What a reply calls the limit: `queue + 1`.
    #[must_use]
    pub const fn limit(&self) -> u32 {
        self.bucket.burst()
    }

    /// The scale of its ticks: two states can be compared on the same scale only.
    #[must_use]
    pub const fn scale(&self) -> Scale {
        self.bucket.scale()
    }

    /// The time that a full queue takes to drain: (queue + 1) ÷ rate.
    #[must_use]
    pub const fn window(&self) -> Micros {
        self.bucket.window()
    }

    /// The token bucket whose arithmetic this is: what [`Gcra::level`], [`Gcra::owe`], [`Gcra::give_back`] and
    /// [`Gcra::cut`] ask for. A level's `remaining` is then the free places.
    #[must_use]
    pub const fn bucket(&self) -> &token_bucket::Quota {
        &self.bucket
    }
}

/// How long from now until a work's place, exactly. Of several rules the longest counts, whatever their scales.
#[derive(Clone, Copy, Debug)]
pub struct Wait {
    ticks: u64,
    scale: Scale,
}

impl Wait {
    /// At once.
    pub const NONE: Wait = Wait { ticks: 0, scale: Scale::NANOS };

    /// The longer of two.
    #[must_use]
    pub fn longer(self, other: Wait) -> Wait {
        let at = |wait: Wait, scale: Scale| u128::from(wait.ticks) * u128::from(scale.ticks_per_nano());
        // Each over the other's ticks: fractions are compared without rounding either.
        if at(other, self.scale) > at(self, other.scale) { other } else { self }
    }

    /// What is told: whole microseconds, rounded up.
    #[must_use]
    pub fn micros(self) -> Micros {
        micros_up(self.ticks, self.scale)
    }

    /// In ticks of a scale, rounded up: a work is never placed before it starts.
    fn ticks_on(self, scale: Scale) -> u64 {
        scale.ticks_up(self.ticks, self.scale)
    }
}

/// Judges one request of `cost` units, and says how long until its place.
///
/// `Queued` grants it; its wait is at most `max_wait`, where there is one. `Later` is the wait until the same request
/// would be granted under the same `max_wait`; a microsecond sooner it is still refused. With a `max_wait` of zero
/// nothing is ever queued. Nothing changes: a grant is placed by [`charge_at`].
#[inline]
pub fn judge(
    state: Gcra,
    quota: &Quota,
    now: Timestamp,
    cost: u32,
    max_wait: Option<Micros>,
) -> (Outcome, Wait) {
    if cost == 0 {
        return (Outcome::Pass, Wait::NONE);
    }
    if cost > quota.limit() {
        return (Outcome::Never, Wait::NONE);
    }
    let start = Wait { ticks: state.ticks_until_full(quota.scale(), now), scale: quota.scale() };
    let wait = start.micros();
    let ahead = start.ticks.saturating_add(quota.bucket.ticks_of(cost));
    let until_room = micros_up(ahead.saturating_sub(quota.bucket.capacity()), quota.scale());
    let until_patient = max_wait.map_or(0, |most| wait.0.saturating_sub(most.0));
    let later = until_room.0.max(until_patient);
    if later > 0 {
        (Outcome::Later(Micros(later)), start)
    } else if start.ticks > 0 {
        (Outcome::Queued(wait), start)
    } else {
        (Outcome::Pass, start)
    }
}

/// Places a granted work: at `start`, the longest wait that any leaky rule of the request asks for, or at the key's own
/// next place where that is later (a rule whose wait delays nobody).
///
/// Another rule's longer wait may leave this key further ahead than its queue is long: then there is no free place
/// until that has drained. What is further ahead than the ticks can tell (109 years, 312 days at 128 to a
/// nanosecond) is placed there.
#[inline]
#[must_use]
pub fn charge_at(state: Gcra, quota: &Quota, now: Timestamp, start: Wait, cost: u32) -> Gcra {
    if cost == 0 {
        return state;
    }
    let scale = quota.scale();
    let place = state.ticks_until_full(scale, now).max(start.ticks_on(scale));
    state.moved(scale, now, place.saturating_add(quota.bucket.ticks_of(cost)))
}
