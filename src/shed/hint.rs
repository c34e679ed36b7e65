//! The retry-after of a shed request: an estimate with jitter, so that clients refused together do not retry together.
//! Uses no random numbers: the same draw gives the same result.

use std::time::Duration;

use crate::clock::Micros;

/// `base` ± 50 %: half of it for the lowest draw, nearly one and a half for the highest, linear in between. Rounded up.
pub fn with_jitter(base: Duration, draw: u64) -> Micros {
    let nanos = base.as_nanos().min(u128::from(u64::MAX));
    // Both factors are below 2⁶⁴.
    let spread = (nanos * u128::from(draw)) >> u64::BITS;
    Micros(u64::try_from((nanos / 2 + spread).div_ceil(1_000)).unwrap_or(u64::MAX))
}

/// The base of the retry-after for worker utilization: 10 s, plus up to 50 s in proportion to the shed probability. The
/// controller takes minutes to recover, so an immediate retry would be refused.
pub fn workers_base(chance: f64) -> Duration {
    // `max` returns zero for NaN.
    let more = Duration::from_secs(50).mul_f64(chance.max(0.0).clamp(0.0, 1.0));
    Duration::from_secs(10) + more
}

/// The base of the retry-after for queue age: the queue may have drained by then.
pub const QUEUE_AGE_BASE: Duration = Duration::from_secs(1);

/// The base of the retry-after for the brake, which goes off two seconds after its last cause.
pub const BRAKE_BASE: Duration = Duration::from_secs(2);
