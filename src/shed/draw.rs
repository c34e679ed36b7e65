//! Who is refused: a caller's draw, a number that stays his for a while, against the chance. It knows no callers and makes
//! no numbers: what a draw is made of (the caller, the epoch, a secret) is hashed elsewhere.
//!
//! Source: callers rather than requests are refused, and change little by little, as in WeChat's DAGOR (Zhou and others,
//! “Overload Control for Scaling WeChat Microservices”, 2018). A page of ten calls, three in ten refused, is whole for
//! seven callers in ten; drawn for each call it is whole for three in a hundred. And a retry does not get through.

use std::time::Duration;

use crate::clock::Timestamp;

/// How many times a caller has drawn afresh by `at`: once in each `rotate`, at a moment of his own that `phase` gives, a
/// hash of the caller spread evenly over all numbers. So callers change one by one, and never all at once.
#[must_use]
pub fn epoch(at: Timestamp, phase: u64, rotate: Duration) -> u64 {
    // No time at all would be no divisor; a draw for each nanosecond is the nearest to it.
    let rotate = u64::try_from(rotate.as_nanos()).unwrap_or(u64::MAX).max(1);
    let offset = (u128::from(phase) * u128::from(rotate)) >> u64::BITS;
    u64::try_from((u128::from(at.as_nanos()) + offset) / u128::from(rotate)).unwrap_or(u64::MAX)
}

/// Whether this draw is refused, given draws spread evenly over all numbers. A chance of 0 refuses none, 1 refuses all,
/// and one that is not a number none. Who is refused at some chance is refused at any larger one.
#[must_use]
#[allow(clippy::cast_precision_loss, reason = "53 bits are exact")]
pub fn is_refused(draw: u64, chance: f64) -> bool {
    const BITS: u32 = 53;
    // The upper bits, as a fraction below 1: rounding the whole number could give 1, which is below no chance.
    let (draw, draws) = (draw >> (u64::BITS - BITS), 1_u64 << BITS);
    draw as f64 / (draws as f64) < chance
}
