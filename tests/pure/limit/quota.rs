//! The numbers of quotas and levels, for all algorithms.

use std::num::NonZeroU32;

use tidegate::clock::Micros;
use tidegate::limit::fixed_window::{WindowAlign, WindowPeriod};
use tidegate::limit::share::Fallback;
use tidegate::limit::{
    Quota, QuotaLevel, Rate, concurrency, fixed_window, leaky_bucket, share, sliding_log, sliding_window,
    token_bucket,
};

const SECOND: u64 = 1_000_000_000;

#[test]
fn quota_shows_its_configured_numbers() {
    let rate = Rate::new(100, SECOND).unwrap();
    let bucket = token_bucket::TokenBucketQuota::new(rate, 20).unwrap();
    let fixed = |period| {
        Quota::FixedWindow(fixed_window::FixedWindowQuota::new(5, period, WindowAlign::Utc).unwrap())
    };
    let minute = WindowPeriod::Nanos(60 * SECOND);
    let most = NonZeroU32::new(3).unwrap();
    let shared_window = share::ShareQuota::for_window(fixed(minute), 0, Fallback::Share).unwrap();
    // Limit, milliseconds of the window, rate and algorithm.
    let table = [
        (Quota::TokenBucket(bucket), (20, 200, "100/s", "token_bucket")),
        (
            Quota::LeakyBucket(leaky_bucket::LeakyBucketQuota::new(rate, 4).unwrap()),
            (5, 50, "100/s", "leaky_bucket"),
        ),
        (fixed(minute), (5, 60_000, "5/min", "fixed_window")),
        (fixed(WindowPeriod::Months(1)), (5, 30 * 86_400_000, "5/month", "fixed_window")),
        (fixed(WindowPeriod::Months(3)), (5, 90 * 86_400_000, "5/3month", "fixed_window")),
        (
            Quota::SlidingLog(sliding_log::SlidingLogQuota::new(7, 7_200 * SECOND).unwrap()),
            (7, 7_200_000, "7/2h", "sliding_log"),
        ),
        (
            Quota::SlidingWindow(sliding_window::SlidingWindowQuota::new(9, 86_400 * SECOND, 6).unwrap()),
            (9, 86_400_000, "9/day", "sliding_window"),
        ),
        (Quota::Concurrency(concurrency::ConcurrencyQuota::new(most)), (3, 0, "3 at once", "concurrency")),
        (
            Quota::Concurrency(concurrency::ConcurrencyQuota::new(most).shared(Fallback::Share)),
            (3, 0, "3 at once", "concurrency"),
        ),
        (
            Quota::FleetBudget(Box::new(share::ShareQuota::new(bucket, 0, Fallback::Share))),
            (20, 200, "100/s", "token_bucket"),
        ),
        (Quota::FleetBudget(Box::new(shared_window)), (5, 60_000, "5/min", "fixed_window")),
    ];
    for (quota, (limit, millis, rate, algorithm)) in table {
        assert_eq!((quota.limit(), quota.window()), (limit, Micros(millis * 1_000)), "{quota:?}");
        assert_eq!((quota.format_rate().as_str(), quota.algorithm()), (rate, algorithm), "{quota:?}");
    }
}

#[test]
fn level_of_refusal_shows_less_than_the_cost() {
    // Remaining, refused cost; remaining in the reply.
    for (remaining, cost, shown) in [(9, 4, 3), (3, 4, 3), (0, 4, 0), (9, 1, 0), (9, 0, 0), (9, u32::MAX, 9)]
    {
        let level = QuotaLevel { limit: 10, window: Micros(7), remaining, reset: Micros(5) };
        assert_eq!(
            level.for_refusal(cost),
            QuotaLevel { remaining: shown, ..level },
            "{remaining} left, {cost} refused"
        );
    }
}
