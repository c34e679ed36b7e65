//! Converts a severity to the shed probability of each priority, the least important first. Uses no random numbers.

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
#[must_use]
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
