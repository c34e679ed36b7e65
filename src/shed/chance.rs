//! From one severity to the chance of each priority to be refused, the least important first. It draws no lots.

/// The chance that a request is refused, from 0 to 1: `clamp(K · max(s, 0) − k, 0, 1)`.
///
/// `sheddable` is K, how many priorities may be shed; `place` is k, 0 for the least important of them. Each priority is
/// shed over a K-th of the way of s from 0 to 1, and wholly before the next one is touched. Nothing is ever refused at a
/// place that is not below `sheddable`, nor for a severity that is not a number.
///
/// Source: the order of the priorities is that of “Scaling your API with rate limiters” (Stripe, 2017), which gives no
/// formula; equal parts are ours.
///
/// ```
/// # use tidegate::shed::chance;
/// assert_eq!(chance(0.5, 3, 0), 1.0); // half way, all of the least important
/// assert_eq!(chance(0.5, 3, 1), 0.5); // and half of the next
/// assert_eq!(chance(0.5, 3, 2), 0.0);
/// ```
#[must_use]
pub fn chance(severity: f64, sheddable: usize, place: usize) -> f64 {
    if place >= sheddable {
        return 0.0;
    }
    // `max` takes zero for what is not a number.
    (count(sheddable) * severity.max(0.0) - count(place)).clamp(0.0, 1.0)
}

/// Priorities are few; a number past 2³² stands for itself well enough.
fn count(priorities: usize) -> f64 {
    u32::try_from(priorities).map_or(f64::from(u32::MAX), f64::from)
}
