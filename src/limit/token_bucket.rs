//! The token bucket, stored as one theoretical arrival time: the generic cell rate algorithm (ITU-T I.371, the virtual
//! scheduling form). 8 bytes of state, no timer, no rounding of counts.
//!
//! ```text
//!        now              arrival
//!   ──────┼───────────────────┼──────────────▶ ticks
//!         ╰────── ahead ──────╯
//!         ╰────────── capacity (burst × interval) ──────╯
//!                             ╰── room: units available ──╯
//! ```
//!
//! Promise: in any span W at most `burst + ⌊W · rate⌋` units pass; `Later` is exact; idle time earns one burst and no
//! more.

use super::{LimitError, Outcome, QuotaLevel, Rate, TickScale};
use crate::clock::{Micros, NANOS_PER_MICRO, Timestamp};

/// The configured limit, in ticks of its scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenBucketQuota {
    rate: Rate,
    burst: u32,
    scale: TickScale,
    interval: u64,
    capacity: u64,
    window: Micros,
}

impl TokenBucketQuota {
    /// Makes a bucket of `burst` units that refills at `rate`, on the rate's own scale.
    ///
    /// # Errors A burst of zero, or one so large that the time to fill it does not fit.
    pub fn new(rate: Rate, burst: u32) -> Result<TokenBucketQuota, LimitError> {
        TokenBucketQuota::on_scale(rate, burst, TickScale::for_rate(rate))
    }

    /// Makes a bucket on a given scale: all quotas of a rule share one, so that their states are comparable. The
    /// interval is rounded up to its ticks ([`Rate::rounding_parts_on`]).
    ///
    /// # Errors Those of [`TokenBucketQuota::new`]; a rate that the scale cannot keep to within one part in 100 000.
    pub fn on_scale(rate: Rate, burst: u32, scale: TickScale) -> Result<TokenBucketQuota, LimitError> {
        if burst == 0 {
            return Err(LimitError::Zero);
        }
        if !rate.fits_scale(scale) {
            return Err(LimitError::TooFast);
        }
        let interval = rate.interval_ticks(scale);
        let capacity = interval.checked_mul(u64::from(burst)).filter(|ticks| *ticks <= CAPACITY_TICKS_MAX);
        let capacity = capacity.ok_or(LimitError::BurstTooLarge)?;
        // Of the rate as written: with its rounding to ticks, 999/s would state a window of more than a second.
        let period_nanos = u128::from(rate.period_nanos()) * u128::from(burst);
        let window_us = period_nanos.div_ceil(u128::from(rate.count()) * u128::from(NANOS_PER_MICRO));
        let window = Micros(u64::try_from(window_us).unwrap_or(u64::MAX));
        Ok(TokenBucketQuota { rate, burst, scale, interval, capacity, window })
    }

    /// Makes a bucket with as much of the burst as fits.
    pub(crate) fn with_largest_burst(
        rate: Rate,
        burst: u32,
        scale: TickScale,
    ) -> Result<TokenBucketQuota, LimitError> {
        let most = CAPACITY_TICKS_MAX.checked_div(rate.interval_ticks(scale)).unwrap_or(0);
        TokenBucketQuota::on_scale(rate, u32::try_from(most).map_or(burst, |most| burst.min(most)), scale)
    }

    pub const fn rate(&self) -> Rate {
        self.rate
    }

    pub const fn burst(&self) -> u32 {
        self.burst
    }

    /// The scale of the ticks: states are comparable on the same scale only.
    pub const fn scale(&self) -> TickScale {
        self.scale
    }

    /// The time that an empty bucket takes to fill: burst ÷ rate.
    pub const fn window(&self) -> Micros {
        self.window
    }

    /// A full burst in ticks.
    pub(super) const fn capacity(&self) -> u64 {
        self.capacity
    }

    /// The largest debt that a key can have, in units.
    pub(super) fn debt_max(&self) -> u64 {
        (OWED_TICKS_MAX - self.capacity) / self.interval
    }

    /// Converts units to ticks, saturated at `u64::MAX`.
    pub(super) fn ticks_of(&self, units: u32) -> u64 {
        self.interval.saturating_mul(u64::from(units))
    }
}

/// The state of one key: the time, on the quota's scale, at which all units admitted so far will have been earned.
///
/// Ticks wrap; only the distance from now counts, which stays far below half the range (see [`GcraState::ahead`]).
///
/// Packed, so that it fills a table entry beside its key without padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(Rust, packed(2))]
pub struct GcraState {
    arrival: u64,
}

impl GcraState {
    pub fn full(scale: TickScale, now: Timestamp) -> GcraState {
        GcraState { arrival: ticks(now, scale) }
    }

    /// The arrival time, in ticks since the engine's origin: valid on the same scale and for the same origin.
    pub const fn arrival(self) -> u64 {
        self.arrival
    }

    pub const fn from_arrival(arrival: u64) -> GcraState {
        GcraState { arrival }
    }

    /// Judges one request of `cost` units. `Later` is exact: a microsecond sooner is still refused.
    #[inline]
    pub fn judge(self, quota: &TokenBucketQuota, now: Timestamp, cost: u32) -> (Outcome, GcraState) {
        if cost == 0 {
            return (Outcome::Pass, self);
        }
        if cost > quota.burst {
            return (Outcome::Never, self);
        }
        let now = ticks(now, quota.scale);
        // Nothing overflows: cost ≤ burst, so the product is at most the capacity.
        let ahead = self.ahead(now) + u64::from(cost) * quota.interval;
        if ahead <= quota.capacity {
            (Outcome::Pass, GcraState { arrival: now.wrapping_add(ahead) })
        } else {
            (Outcome::Later(micros_up(ahead - quota.capacity, quota.scale)), self)
        }
    }

    #[inline(always)]
    pub fn level(self, quota: &TokenBucketQuota, now: Timestamp) -> QuotaLevel {
        let ahead = self.ahead(ticks(now, quota.scale));
        let room = quota.capacity.saturating_sub(ahead);
        let (remaining, earned) = (room / quota.interval, room % quota.interval);
        let reset = if ahead == 0 {
            Micros::ZERO
        } else {
            let debt = ahead.saturating_sub(quota.capacity);
            micros_up(debt + quota.interval - earned, quota.scale)
        };
        QuotaLevel { limit: u64::from(quota.burst), window: quota.window, remaining, reset }
    }

    /// Ticks until the bucket is full again; zero for the state of a new key.
    #[inline]
    pub fn ticks_until_full(self, scale: TickScale, now: Timestamp) -> u64 {
        self.ahead(ticks(now, scale))
    }

    /// Charges after the fact: the key may fall below empty by at most `debt_max` units; the excess is dropped.
    #[must_use]
    pub fn charge_debt(
        self,
        quota: &TokenBucketQuota,
        now: Timestamp,
        amount: u32,
        debt_max: u32,
    ) -> GcraState {
        let ahead = self.ticks_until_full(quota.scale, now);
        let most = quota.capacity.saturating_add(quota.ticks_of(debt_max));
        self.with_ahead(quota.scale, now, ahead.saturating_add(quota.ticks_of(amount)).min(most).max(ahead))
    }

    /// Refunds charged units; the key is never more than full.
    #[must_use]
    pub fn refund(self, quota: &TokenBucketQuota, now: Timestamp, amount: u32) -> GcraState {
        let ahead = self.ticks_until_full(quota.scale, now);
        self.with_ahead(quota.scale, now, ahead.saturating_sub(quota.ticks_of(amount)))
    }

    /// Converts the state to a quota that may be smaller: the key is at most one capacity ahead, so that no request
    /// waits for units that a larger quota had admitted.
    pub fn clamp_to(self, quota: &TokenBucketQuota, now: Timestamp) -> GcraState {
        let ahead = self.ticks_until_full(quota.scale, now);
        self.with_ahead(quota.scale, now, ahead.min(quota.capacity))
    }

    /// Converts the state to another scale: the same time until it is full, rounded up to a tick of that scale.
    #[must_use]
    pub fn rescale(self, from: TickScale, to: TickScale, now: Timestamp) -> GcraState {
        let ahead = to.ticks_up(self.ticks_until_full(from, now), from);
        GcraState::full(to, now).with_ahead(to, now, ahead)
    }

    /// Sets the distance ahead of now, within the range of ticks. That bound never shortens it: a clock that runs
    /// backwards makes a key look further ahead than any charge could have put it.
    pub(super) fn with_ahead(self, scale: TickScale, now: Timestamp, ahead: u64) -> GcraState {
        let now = ticks(now, scale);
        let was = self.ahead(now);
        if ahead == was {
            return self;
        }
        let ahead = if ahead > was { ahead.min(OWED_TICKS_MAX).max(was) } else { ahead };
        GcraState { arrival: now.wrapping_add(ahead) }
    }

    /// Makes the state that is `ahead` ticks ahead, at most a capacity.
    #[inline]
    pub(super) fn from_ahead(scale: TickScale, now: Timestamp, ahead: u64) -> GcraState {
        GcraState { arrival: ticks(now, scale).wrapping_add(ahead) }
    }

    /// Units admitted and not earned yet, in ticks. Zero for an arrival in the past: idle time earns one full burst and
    /// no more.
    #[inline]
    fn ahead(self, now: u64) -> u64 {
        let ahead = self.arrival.wrapping_sub(now);
        // A true distance is at most the capacity and the skew between two readings of the clock. A larger one is an
        // arrival in the past, wrapped.
        if ahead <= AHEAD_TICKS_MAX { ahead } else { 0 }
    }
}

/// Converts an instant to ticks. They wrap after 2⁶⁴ ticks (4.5 years on the finest scale); [`GcraState::ahead`] is correct
/// if full buckets are evicted within half of that.
#[inline]
fn ticks(at: Timestamp, scale: TickScale) -> u64 {
    at.as_nanos().wrapping_mul(u64::from(scale.ticks_per_nano()))
}

#[inline]
pub(super) fn micros_up(ticks: u64, scale: TickScale) -> Micros {
    Micros(ticks.div_ceil(u64::from(scale.ticks_per_nano()) * NANOS_PER_MICRO))
}

/// An eighth of the range of ticks: 73 years at one tick per nanosecond, 208 days at 128.
const CAPACITY_TICKS_MAX: u64 = 1 << 61;

/// The furthest that debt, or a slot far in the future, can put a key ahead: one and a half times the largest capacity.
/// The rest below [`AHEAD_TICKS_MAX`] is for a clock that runs backwards: 36 years, 104 days at 128 ticks.
const OWED_TICKS_MAX: u64 = 3 << 60;

/// Twice the largest capacity: room for clock skew between decision threads and for debt.
const AHEAD_TICKS_MAX: u64 = 1 << 62;
