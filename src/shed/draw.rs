//! The shed probability of each priority, and the callers to shed: compares a caller's draw, a number that is constant for a while, with the shed
//! probability. Callers are hashed elsewhere: a draw is a hash of the caller, the epoch and a secret.
//!
//! Source: callers rather than requests are refused, and change gradually, as in WeChat's DAGOR (Zhou and others,
//! “Overload Control for Scaling WeChat Microservices”, 2018). At a probability of 0.3 a page of ten requests is
//! complete for seven callers in ten; with a draw per request it is complete for three in a hundred. And a retry gets
//! the same result.

use std::time::Duration;

use crate::clock::Timestamp;

/// The shed probability of a priority, 0 to 1: `clamp(K · max(s, 0) − k, 0, 1)`.
///
/// `sheddable` is K, the number of priorities that may be shed; `rank` is k, 0 for the least important of them. Each
/// priority is shed over a K-th of the range of s from 0 to 1, and wholly before the next one begins. The result is 0
/// for a `rank` of at least `sheddable`, and for a severity of NaN.
///
/// Source: the order of the priorities is that of “Scaling your API with rate limiters” (Stripe, 2017), which gives no
/// formula; the equal parts are not from it.
///
/// ```
/// # use tidegate::shed::chance;
/// assert_eq!(chance(0.5, 3, 0), 1.0); // half way, all of the least important
/// assert_eq!(chance(0.5, 3, 1), 0.5); // and half of the next
/// assert_eq!(chance(0.5, 3, 2), 0.0);
/// ```
pub fn chance(severity: f64, sheddable: usize, rank: usize) -> f64 {
    if rank >= sheddable {
        return 0.0;
    }
    // `max` returns zero for NaN.
    (to_f64(sheddable) * severity.max(0.0) - to_f64(rank)).clamp(0.0, 1.0)
}

/// Converts a number of priorities, saturated at 2³² − 1.
fn to_f64(priorities: usize) -> f64 {
    u32::try_from(priorities).map_or(f64::from(u32::MAX), f64::from)
}

/// The number of the caller's current draw at `at`. It changes once in each `rotate`, at an offset given by `phase`, a
/// hash of the caller that is uniform over `u64`: so callers change one by one, never all at once.
pub fn draw_epoch(at: Timestamp, phase: u64, rotate: Duration) -> u64 {
    // A zero `rotate` would divide by zero; a draw per nanosecond is the nearest valid one.
    let rotate = u64::try_from(rotate.as_nanos()).unwrap_or(u64::MAX).max(1);
    let offset = (u128::from(phase) * u128::from(rotate)) >> u64::BITS;
    u64::try_from((u128::from(at.as_nanos()) + offset) / u128::from(rotate)).unwrap_or(u64::MAX)
}

/// Whether a draw that is uniform over `u64` is refused. A probability of 0 or NaN refuses none, 1 refuses all. A draw
/// refused at some probability is refused at any larger one.
#[allow(clippy::cast_precision_loss, reason = "53 bits are exact")]
pub fn is_refused(draw: u64, chance: f64) -> bool {
    const BITS: u32 = 53;
    // The upper bits, as a fraction below 1: rounding the whole number could give 1, which no probability exceeds.
    let (draw, draws) = (draw >> (u64::BITS - BITS), 1_u64 << BITS);
    draw as f64 / (draws as f64) < chance
}
