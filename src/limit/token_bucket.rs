//! The token bucket, kept as one theoretical arrival time: the generic cell rate algorithm (ITU-T I.371, the
//! virtual scheduling form). 8 bytes of state, no timer, no rounding of what is counted.
//!
//! ```text
//!        now              arrival
//!   ──────┼───────────────────┼──────────────▶ ticks
//!         ╰── work ahead ─────╯
//!         ╰────────── capacity (burst × interval) ──────╯
//!                             ╰── room: what may come ──╯
//! ```
//!
//! Promise: in any span W at most `burst + ⌊W · rate⌋` units pass; a request is refused exactly until its
//! `Later` has passed; idle time earns one burst and no more.

use super::{Level, Outcome, Rate, RateError, Scale};
use crate::clock::{Micros, Timestamp};

/// The numbers of one token bucket, in ticks of its scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    rate: Rate,
    burst: u32,
    scale: Scale,
    interval: u64,
    capacity: u64,
    window: Micros,
}

impl Quota {
    /// A bucket of `burst` units that refills at `rate`, on the rate's own scale.
    ///
    /// # Errors
    /// A burst of zero, or one so large that the time to fill it does not fit.
    pub fn new(rate: Rate, burst: u32) -> Result<Quota, RateError> {
        Quota::on_scale(rate, burst, Scale::of(rate))
    }

    /// The same on a given scale: all quotas of a rule share one, so that their states can be compared. The interval
    /// is rounded up to its ticks ([`Rate::rounding_on`]).
    ///
    /// # Errors
    /// Those of [`Quota::new`]; a rate that the scale cannot keep to within one part in 100 000.
    pub fn on_scale(rate: Rate, burst: u32, scale: Scale) -> Result<Quota, RateError> {
        if burst == 0 {
            return Err(RateError::Zero);
        }
        if !rate.is_kept_on(scale) {
            return Err(RateError::TooFast);
        }
        let interval = rate.interval_ticks(scale);
        let capacity = interval.checked_mul(u64::from(burst)).filter(|ticks| *ticks <= CAPACITY_TICKS_MAX);
        let capacity = capacity.ok_or(RateError::BurstTooLarge)?;
        Ok(Quota { rate, burst, scale, interval, capacity, window: micros_up(capacity, scale) })
    }

    /// The same with as much of the burst as fits.
    pub(crate) fn with_most(rate: Rate, burst: u32, scale: Scale) -> Result<Quota, RateError> {
        let most = CAPACITY_TICKS_MAX.checked_div(rate.interval_ticks(scale)).unwrap_or(0);
        Quota::on_scale(rate, u32::try_from(most).map_or(burst, |most| burst.min(most)), scale)
    }

    /// The rate it was made from.
    #[must_use]
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    /// Units that a full bucket holds.
    #[must_use]
    pub const fn burst(&self) -> u32 {
        self.burst
    }

    /// The scale of its ticks: two states can be compared on the same scale only.
    #[must_use]
    pub const fn scale(&self) -> Scale {
        self.scale
    }

    /// The time an empty bucket takes to fill.
    #[must_use]
    pub const fn window(&self) -> Micros {
        self.window
    }

    /// A full burst in ticks.
    pub(super) const fn capacity(&self) -> u64 {
        self.capacity
    }

    /// So many units in ticks; the end of the numbers is a wall.
    pub(super) fn ticks_of(&self, units: u32) -> u64 {
        self.interval.saturating_mul(u64::from(units))
    }
}

/// The state of one key: when, on the quota's scale, everything admitted so far will have been earned.
///
/// Ticks wrap; what counts is the distance from now, which stays far below half the circle (see [`Gcra::ahead`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gcra {
    arrival: u64,
}

impl Gcra {
    /// A full bucket.
    #[must_use]
    pub fn full(scale: Scale, now: Timestamp) -> Gcra {
        Gcra { arrival: ticks(now, scale) }
    }

    /// Its one number, in ticks since the engine's origin: of use on the same scale while that origin stands.
    #[must_use]
    pub const fn arrival(self) -> u64 {
        self.arrival
    }

    /// The state that has this number.
    #[must_use]
    pub const fn of_arrival(arrival: u64) -> Gcra {
        Gcra { arrival }
    }

    /// Judges one request of `cost` units. `Later` is exact: a microsecond sooner is still refused.
    #[inline]
    pub fn judge(self, quota: &Quota, now: Timestamp, cost: u32) -> (Outcome, Gcra) {
        if cost == 0 {
            return (Outcome::Pass, self);
        }
        if cost > quota.burst {
            return (Outcome::Never, self);
        }
        let now = ticks(now, quota.scale);
        // Neither factor overflows: cost ≤ burst, so the product is at most the capacity.
        let ahead = self.ahead(now) + u64::from(cost) * quota.interval;
        if ahead <= quota.capacity {
            (Outcome::Pass, Gcra { arrival: now.wrapping_add(ahead) })
        } else {
            (Outcome::Later(micros_up(ahead - quota.capacity, quota.scale)), self)
        }
    }

    /// What a reply says about this key.
    #[inline]
    #[must_use]
    pub fn level(self, quota: &Quota, now: Timestamp) -> Level {
        let ahead = self.ahead(ticks(now, quota.scale));
        let remaining = quota.capacity.saturating_sub(ahead) / quota.interval;
        let reset = if ahead == 0 {
            Micros::ZERO
        } else {
            // Something is ahead, so fewer than `burst` remain and one more still fits under the capacity.
            let one_more_fits = quota.capacity - (remaining + 1) * quota.interval;
            micros_up(ahead - one_more_fits, quota.scale)
        };
        Level { limit: u64::from(quota.burst), window: quota.window, remaining, reset }
    }

    /// Ticks until the bucket is full again; zero for one that equals a fresh one.
    #[inline]
    #[must_use]
    pub fn ticks_until_full(self, scale: Scale, now: Timestamp) -> u64 {
        self.ahead(ticks(now, scale))
    }

    /// Charges after the fact: the key may fall below empty, by at most `debt_max` units; what is more is dropped.
    #[must_use]
    pub fn owe(self, quota: &Quota, now: Timestamp, amount: u32, debt_max: u32) -> Gcra {
        let ahead = self.ticks_until_full(quota.scale, now);
        let most = quota.capacity.saturating_add(quota.ticks_of(debt_max));
        self.moved(quota.scale, now, ahead.saturating_add(quota.ticks_of(amount)).min(most).max(ahead))
    }

    /// Gives back what had been charged; the key is never more than full.
    #[must_use]
    pub fn give_back(self, quota: &Quota, now: Timestamp, amount: u32) -> Gcra {
        let ahead = self.ticks_until_full(quota.scale, now);
        self.moved(quota.scale, now, ahead.saturating_sub(quota.ticks_of(amount)))
    }

    /// The key under a quota that may be smaller: it is at most as far ahead as that quota's bucket is deep, so
    /// nobody waits for what a larger one had admitted.
    #[must_use]
    pub fn cut(self, quota: &Quota, now: Timestamp) -> Gcra {
        let ahead = self.ticks_until_full(quota.scale, now);
        self.moved(quota.scale, now, ahead.min(quota.capacity))
    }

    /// The key on another scale: the same time until it is full, rounded up to a tick of that scale.
    #[must_use]
    pub fn rescale(self, from: Scale, to: Scale, now: Timestamp) -> Gcra {
        let ahead = to.ticks_up(self.ticks_until_full(from, now), from);
        Gcra::full(to, now).moved(to, now, ahead)
    }

    /// The key so far ahead, as far as the circle of ticks allows. Never shortened by that: a clock that runs
    /// backwards makes a key look further ahead than any charge could have put it.
    pub(super) fn moved(self, scale: Scale, now: Timestamp, ahead: u64) -> Gcra {
        let now = ticks(now, scale);
        let was = self.ahead(now);
        if ahead == was {
            return self;
        }
        let ahead = if ahead > was { ahead.min(OWED_TICKS_MAX).max(was) } else { ahead };
        Gcra { arrival: now.wrapping_add(ahead) }
    }

    /// The key so far ahead, which is no farther than a capacity.
    #[inline]
    pub(super) fn placed(scale: Scale, now: Timestamp, ahead: u64) -> Gcra {
        Gcra { arrival: ticks(now, scale).wrapping_add(ahead) }
    }

    /// Work admitted that has not been earned yet, in ticks. An arrival in the past is none: idle time earns one
    /// full burst and no more.
    #[inline]
    fn ahead(self, now: u64) -> u64 {
        let ahead = self.arrival.wrapping_sub(now);
        // A true distance is at most the capacity and the skew between two readings of the clock. What is larger
        // is an arrival in the past, seen across the wrap.
        if ahead <= AHEAD_TICKS_MAX { ahead } else { 0 }
    }
}

/// A moment in ticks. It wraps after 2⁶⁴ ticks (4.5 years on the finest scale), which [`Gcra::ahead`] allows for
/// as long as full buckets are swept away within half of that.
#[inline]
fn ticks(at: Timestamp, scale: Scale) -> u64 {
    at.as_nanos().wrapping_mul(u64::from(scale.ticks_per_nano()))
}

#[inline]
pub(super) fn micros_up(ticks: u64, scale: Scale) -> Micros {
    Micros(ticks.div_ceil(u64::from(scale.ticks_per_nano()) * NANOS_PER_MICRO))
}

const NANOS_PER_MICRO: u64 = 1_000;

/// An eighth of the circle of ticks: 73 years at one tick a nanosecond, 208 days at 128.
const CAPACITY_TICKS_MAX: u64 = 1 << 61;

/// How far ahead debt, or work placed far in the future, can put a key: half as much again as the largest capacity.
/// What is left below the next bound is for a clock that runs backwards: 36 years, 104 days at 128 ticks.
const OWED_TICKS_MAX: u64 = 3 << 60;

/// Twice the largest capacity: room for clock skew between decision threads and for debt.
const AHEAD_TICKS_MAX: u64 = 1 << 62;
