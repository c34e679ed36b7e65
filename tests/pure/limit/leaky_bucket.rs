//! The leaky bucket: starts at least 1/rate apart, reported exactly, also by two rules together.

use proptest::prelude::*;
use tidegate::clock::{Micros, Timestamp};
use tidegate::limit::leaky_bucket::{LeakyBucketQuota, charge_at, judge};
use tidegate::limit::token_bucket::GcraState;
use tidegate::limit::{Outcome, Rate};

use super::SECOND;

const DAYS: u64 = 86_400 * SECOND;

fn quota(count: u32, period: u64, queue: u32) -> LeakyBucketQuota {
    LeakyBucketQuota::new(Rate::new(count, period).unwrap(), queue).unwrap()
}

/// Rates that a scale has exactly, and others.
fn quotas() -> impl Strategy<Value = LeakyBucketQuota> {
    let count = prop_oneof![1_u32..=128, 129_u32..100_000, Just(3), Just(7)];
    let seconds = prop_oneof![1_u64..100, Just(3_600), Just(86_400)];
    (count, seconds, 0_u32..30).prop_map(|(count, seconds, queue)| quota(count, seconds * SECOND, queue))
}

/// The time of a key until it is full, in ticks of its scale.
fn ahead(key: GcraState, quota: &LeakyBucketQuota, now: Timestamp) -> u128 {
    u128::from(key.ticks_until_full(quota.bucket().scale(), now))
}

proptest! {
    #![proptest_config(crate::rng::cases(80))]

    #[test]
    fn starts_are_an_interval_apart_for_each_of_two_rules(
        quotas in [quotas(), quotas()],
        steps in proptest::collection::vec(
            (prop_oneof![8 => 0..3_000_u64, 3 => Just(0), 1 => Just(u64::MAX)], 0..10_u64, 0_u32..4, prop::option::of(0..100_000_u64)), 1..150,
        ),
    ) {
        let full = |now| quotas.map(|quota| GcraState::full(quota.bucket().scale(), now));
        let scales = quotas.map(|quota| u128::from(quota.bucket().scale().ticks_per_nano()));
        let rate = quotas[0].bucket().rate();
        let interval = rate.period_nanos() / u64::from(rate.count());
        let (mut nanos, mut keys) = (1_000 * DAYS, full(Timestamp::from_nanos(1_000 * DAYS)));
        for (part, back, cost, wait_max) in steps {
            // Some intervals or a year; one step in ten goes back.
            nanos += if part == u64::MAX { 400 * DAYS } else { interval * part / 1_000 };
            nanos -= if back == 0 { 20 * interval } else { 0 };
            let now = Timestamp::from_nanos(nanos);
            if [0, 1].iter().all(|i| ahead(keys[*i], &quotas[*i], now) == 0) {
                // They equal new keys: no table keeps them for years.
                keys = full(now);
            }
            let judged = [0, 1].map(|i| judge(keys[i], &quotas[i], now, cost, wait_max.map(Micros)));
            if cost == 0 || judged.iter().any(|(outcome, _)| matches!(outcome, Outcome::Later(_) | Outcome::Never)) {
                continue;
            }
            let start = judged[0].1.longer(judged[1].1);
            // The true start as a fraction: ticks of both scales at once. It is reported up to a microsecond late.
            let waits = [0, 1].map(|i| ahead(keys[i], &quotas[i], now) * scales[1 - i]);
            let wait = waits[0].max(waits[1]);
            prop_assert_eq!(u128::from(start.micros().0), wait.div_ceil(scales[0] * scales[1] * 1_000));
            for i in [0, 1] {
                keys[i] = charge_at(keys[i], &quotas[i], now, start, cost);
                let rate = quotas[i].bucket().rate();
                let work = u128::from(cost) * u128::from(rate.period_nanos()) * scales[0] * scales[1];
                let late = (ahead(keys[i], &quotas[i], now) * scales[1 - i] - wait) * u128::from(rate.count());
                prop_assert!(late >= work, "the next starts too early");
                // A tick for the start and a tick for each unit, where the rate is not exact.
                let rounding = scales[1 - i] * u128::from(rate.count()) * u128::from(1 + cost);
                prop_assert!(late < work + rounding, "the next starts too late");
            }
        }
    }

    #[test]
    fn never_overflows(
        count in 1_u32..1_000_000, period in prop_oneof![Just(1_u64), Just(366 * 86_400)], queue in any::<u32>(),
        steps in proptest::collection::vec((any::<u64>(), any::<u32>(), any::<u32>(), any::<Option<u64>>()), 1..40),
    ) {
        let rate = Rate::new(count, period * SECOND).unwrap();
        let Ok(quota) = LeakyBucketQuota::new(rate, queue) else { return Ok(()) };
        let other = self::quota(1, 366 * DAYS, 0);
        let mut key = GcraState::full(quota.bucket().scale(), Timestamp::ORIGIN);
        let mut slow = GcraState::full(other.bucket().scale(), Timestamp::ORIGIN);
        for (nanos, cost, many, max_wait) in steps {
            let now = Timestamp::from_nanos(nanos);
            let (_, start) = judge(key, &quota, now, cost, max_wait.map(Micros));
            slow = charge_at(slow, &other, now, start, many);
            key = charge_at(key, &quota, now, start.longer(judge(slow, &other, now, 1, None).1), many);
            prop_assert!(key.level(quota.bucket(), now).remaining <= u64::from(quota.bucket().burst()));
        }
    }
}
