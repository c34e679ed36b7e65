//! The numbers of quotas and levels, for all algorithms.

use std::num::NonZeroU32;
use std::time::Duration;

use tidegate::clock::Micros;
use tidegate::limit::fixed_window::{WindowAlign, WindowPeriod};
use tidegate::limit::share::Fallback;
use tidegate::limit::{
    LimitError, Quota, Rate, TickScale, concurrency, fixed_window, leaky_bucket, share, sliding_log,
    sliding_window, token_bucket,
};

use super::{DAY, MILLI, SECOND};

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
    let leaky = leaky_bucket::LeakyBucketQuota::new(rate, 4).unwrap();
    let log = sliding_log::SlidingLogQuota::new(7, 7_200 * SECOND).unwrap();
    let sliding = sliding_window::SlidingWindowQuota::new(9, 86_400 * SECOND, 6).unwrap();
    let at_once = concurrency::ConcurrencyQuota::new(most);
    let budget = |share| Quota::FleetBudget(Box::new(share));
    let terms = share::FleetTerms::new(Fallback::Share, share::RemoteCheckWait::Never, Duration::ZERO);
    // Limit, milliseconds of the window, rate and algorithm.
    let table = [
        (Quota::TokenBucket(bucket), (20, 200, "100/s", "token_bucket")),
        (Quota::LeakyBucket(leaky), (5, 50, "100/s", "leaky_bucket")),
        (fixed(minute), (5, 60_000, "5/min", "fixed_window")),
        (fixed(WindowPeriod::Months(1)), (5, 30 * 86_400_000, "5/month", "fixed_window")),
        (fixed(WindowPeriod::Months(3)), (5, 90 * 86_400_000, "5/3month", "fixed_window")),
        (Quota::SlidingLog(log), (7, 7_200_000, "7/2h", "sliding_log")),
        (Quota::SlidingWindow(sliding), (9, 86_400_000, "9/day", "sliding_window")),
        (Quota::Concurrency(at_once.clone()), (3, 0, "3 at once", "concurrency")),
        (Quota::Concurrency(at_once.shared(terms)), (3, 0, "3 at once", "concurrency")),
        (budget(share::ShareQuota::new(bucket, 0, Fallback::Share)), (20, 200, "100/s", "token_bucket")),
        (budget(shared_window), (5, 60_000, "5/min", "fixed_window")),
    ];
    for (quota, (limit, millis, rate, algorithm)) in table {
        assert_eq!((quota.limit(), quota.window()), (limit, Micros(millis * 1_000)), "{quota:?}");
        assert_eq!((quota.format_rate().as_str(), quota.algorithm()), (rate, algorithm), "{quota:?}");
    }
}

#[test]
fn rejects_unrepresentable_numbers() {
    use WindowAlign::{Epoch, First, Utc};
    let (nanos, months) = (WindowPeriod::Nanos, WindowPeriod::Months);
    let rate = |count, period| Rate::new(count, period).unwrap();
    let bucket = |count, period, burst| token_bucket::TokenBucketQuota::new(rate(count, period), burst).err();
    let leaky = |count, period, queue| leaky_bucket::LeakyBucketQuota::new(rate(count, period), queue).err();
    let fixed = |period, align| fixed_window::FixedWindowQuota::new(1, period, align).err();
    let log = |count, window| sliding_log::SlidingLogQuota::new(count, window).err();
    let sliding =
        |count, window, buckets| sliding_window::SlidingWindowQuota::new(count, window, buckets).err();
    let coarse = TickScale::from_ticks_per_nano(1).unwrap();
    let on_coarse_scale = leaky_bucket::LeakyBucketQuota::on_scale(rate(3, 100), 1, coarse);
    let hours = |hours: u64| nanos(hours * 3_600 * SECOND);
    let table = [
        ("a rate of none", Rate::new(0, SECOND).err(), Some(LimitError::Zero)),
        ("no period", Rate::new(1, 0).err(), Some(LimitError::Period)),
        ("400 days", Rate::new(1, 400 * DAY).err(), Some(LimitError::Period)),
        ("a rate that rounds too far", Rate::new(1_999_999_973, SECOND).err(), Some(LimitError::TooFast)),
        ("no burst", bucket(1, SECOND, 0), Some(LimitError::Zero)),
        ("a burst of ages", bucket(1, DAY, u32::MAX), Some(LimitError::BurstTooLarge)),
        ("the longest queue", leaky(1, SECOND, u32::MAX), Some(LimitError::QueueTooLong)),
        ("a queue of ages", leaky(1, DAY, u32::MAX - 1), Some(LimitError::QueueTooLong)),
        ("a coarse scale", on_coarse_scale.err(), Some(LimitError::TooFast)),
        ("fixed, below 1 ms", fixed(nanos(MILLI - 1), Utc), Some(LimitError::Window)),
        ("fixed, 1 ms", fixed(nanos(MILLI), Utc), None),
        ("fixed, 366 days", fixed(nanos(366 * DAY), Utc), None),
        ("fixed, more", fixed(nanos(366 * DAY + 1), First), Some(LimitError::Window)),
        ("0 months", fixed(months(0), Utc), Some(LimitError::Window)),
        ("12 months", fixed(months(12), Utc), None),
        ("13 months", fixed(months(13), Utc), Some(LimitError::Window)),
        ("most months", fixed(months(u32::MAX), Epoch), Some(LimitError::Window)),
        ("36 h of Unix time", fixed(hours(36), Utc), Some(LimitError::PartDays)),
        ("36 h from the first", fixed(hours(36), First), None),
        ("36 h of an epoch", fixed(hours(36), Epoch), None),
        ("7 h, cut at midnight", fixed(hours(7), Utc), None),
        ("a log of none", log(0, SECOND), Some(LimitError::Zero)),
        ("the longest log", log(sliding_log::COUNT_MAX, SECOND), None),
        ("a longer log", log(sliding_log::COUNT_MAX + 1, SECOND), Some(LimitError::LogTooLarge)),
        ("a log below 1 ms", log(1, MILLI - 1), Some(LimitError::Window)),
        ("a log of 1 ms", log(1, MILLI), None),
        ("a log of 366 days", log(1, 366 * DAY), None),
        ("a log of more", log(1, 366 * DAY + 1), Some(LimitError::Window)),
        ("sliding, none", sliding(0, SECOND, 1), Some(LimitError::Zero)),
        ("sliding, most", sliding(u32::MAX, MILLI, 60), None),
        ("sliding, below 1 ms", sliding(1, MILLI - 1, 1), Some(LimitError::Window)),
        ("sliding, 366 days", sliding(1, 366 * DAY, 60), None),
        ("sliding, more", sliding(1, 366 * DAY + 1, 1), Some(LimitError::Window)),
        ("no bucket", sliding(1, SECOND, 0), Some(LimitError::Buckets)),
        ("61 buckets", sliding(1, SECOND, 61), Some(LimitError::Buckets)),
    ];
    for (name, error, expected) in table {
        assert_eq!(error, expected, "{name}");
    }
    let sliding = sliding_window::SlidingWindowQuota::new(1, SECOND, 1).unwrap();
    assert_eq!(sliding.with_count(0).err(), Some(LimitError::Zero));
    let log = sliding_log::SlidingLogQuota::new(1, SECOND).unwrap();
    assert_eq!(log.with_count(0).err(), Some(LimitError::Zero));
    assert!(LimitError::PartDays.to_string().contains("align: first"));
}
