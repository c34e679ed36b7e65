//! When to come back, told with a refusal: a guess, and spread, so that those refused together do not come back together.
//! It draws no lots: the same draw gives the same hint.

use std::time::Duration;

use crate::clock::Micros;

/// `base` ± 50 %: half of it for the lowest draw, nearly one and a half for the highest, evenly in between. Rounded up.
#[must_use]
pub fn jittered(base: Duration, draw: u64) -> Micros {
    let nanos = base.as_nanos().min(u128::from(u64::MAX));
    // Both factors are below 2⁶⁴.
    let spread = (nanos * u128::from(draw)) >> u64::BITS;
    Micros(u64::try_from((nanos / 2 + spread).div_ceil(1_000)).unwrap_or(u64::MAX))
}

/// What a refusal for worker utilization is based on: 10 s, and up to 50 s more as the chance to be refused goes to 1. The
/// law takes minutes to recover; who asks again at once asks in vain.
#[must_use]
pub fn after_workers(chance: f64) -> Duration {
    // `max` takes zero for what is not a number.
    let more = Duration::from_secs(50).mul_f64(chance.max(0.0).clamp(0.0, 1.0));
    Duration::from_secs(10) + more
}

/// What a refusal by queue age is based on: the queue may be gone by then.
pub const AFTER_QUEUE_AGE: Duration = Duration::from_secs(1);

/// What a refusal by the brake is based on: the brake goes off two seconds after its last cause.
pub const AFTER_BRAKE: Duration = Duration::from_secs(2);
