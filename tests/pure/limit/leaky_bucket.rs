//! The leaky bucket: starts at least 1/rate apart, in order, reported exactly, with a bounded queue.

use proptest::prelude::*;
use tidegate::clock::{Micros, Timestamp};
use tidegate::limit::leaky_bucket::{LeakyBucketQuota, QueueWait, charge_at, judge};
use tidegate::limit::token_bucket::GcraState;
use tidegate::limit::{Outcome, Rate, TickScale};

use Outcome::{Later, Never, Pass, Queued};

use super::SECOND;

fn quota(count: u32, period: u64, queue: u32) -> LeakyBucketQuota {
    LeakyBucketQuota::new(Rate::new(count, period).unwrap(), queue).unwrap()
}

#[derive(Debug, Clone)]
struct Trace {
    quota: LeakyBucketQuota,
    /// Time, cost, longest wait in microseconds.
    steps: Vec<(u64, u32, Option<u64>)>,
}

fn traces() -> impl Strategy<Value = Trace> {
    let period = prop_oneof![Just(1_u64), Just(60), Just(3_600), Just(86_400)].prop_map(|s| s * SECOND);
    let count = prop_oneof![1_u32..=128, 129_u32..100_000, Just(3), Just(7)];
    (count, period, 0_u32..30).prop_flat_map(move |(count, period, queue)| {
        let unit = (period / u64::from(count)).max(1);
        let step = prop_oneof![8 => 0..unit * 3, 3 => Just(0), 1 => 0..400 * 86_400 * SECOND];
        let back = prop_oneof![9 => Just(0), 1 => 0..unit * 20];
        let cost = prop_oneof![6 => Just(1_u32), 2 => 0..queue + 3, 1 => Just(queue + 1)];
        let max_wait =
            prop_oneof![2 => Just(None), 1 => Just(Some(0)), 2 => (0..unit / 100 + 2).prop_map(Some)];
        let quota = LeakyBucketQuota::new(Rate::new(count, period).unwrap(), queue).unwrap();
        proptest::collection::vec((step, back, cost, max_wait), 1..150).prop_map(move |steps| {
            let mut now = 1_000 * 86_400 * SECOND;
            let place = |(step, back, cost, max_wait)| {
                now = now + step - back;
                (now, cost, max_wait)
            };
            Trace { quota, steps: steps.into_iter().map(place).collect() }
        })
    })
}

/// Every step of a trace: time, cost, state before, outcome, wait.
type Step = (u64, u32, GcraState, Outcome, QueueWait);

fn run(trace: &Trace) -> Vec<Step> {
    let quota = trace.quota;
    let first = trace.steps.first().map_or(0, |(nanos, ..)| *nanos);
    let mut key = GcraState::full(quota.bucket().scale(), Timestamp::from_nanos(first));
    let steps = trace.steps.iter().map(|(nanos, cost, max_wait)| {
        let now = Timestamp::from_nanos(*nanos);
        if key.ticks_until_full(quota.bucket().scale(), now) == 0 {
            // It equals a new key: no table keeps it for years.
            key = GcraState::full(quota.bucket().scale(), now);
        }
        let (outcome, start) = judge(key, &quota, now, *cost, max_wait.map(Micros));
        let granted = matches!(outcome, Pass | Queued(_));
        let next = if granted { charge_at(key, &quota, now, start, *cost) } else { key };
        (*nanos, *cost, std::mem::replace(&mut key, next), outcome, start)
    });
    steps.collect()
}

/// A time in ticks that do not wrap, and the distance of a key ahead of it.
fn ticks(nanos: u64, scale: TickScale) -> u128 {
    u128::from(nanos) * u128::from(scale.ticks_per_nano())
}

fn ahead(key: GcraState, scale: TickScale, nanos: u64) -> u128 {
    u128::from(key.ticks_until_full(scale, Timestamp::from_nanos(nanos)))
}

proptest! {
    #![proptest_config(crate::cases(80))]

    #[test]
    fn spaces_requests_by_interval_in_order_of_arrival(trace in traces()) {
        let (scale, rate) = (trace.quota.bucket().scale(), trace.quota.bucket().rate());
        let mut free = 0;
        for (nanos, cost, key, outcome, start) in run(&trace) {
            if cost == 0 || !matches!(outcome, Pass | Queued(_)) {
                continue;
            }
            let place = ticks(nanos, scale) + ahead(key, scale, nanos);
            prop_assert!(place * u128::from(rate.count()) >= free);
            // Reported up to a microsecond late, never early.
            let told = ticks(nanos + start.micros().0 * 1_000, scale);
            prop_assert!(told >= place && told < place + ticks(1_000, scale));
            free = place * u128::from(rate.count()) + ticks(u64::from(cost) * rate.period_nanos(), scale);
        }
    }

    #[test]
    fn two_rules_keep_both_intervals(
        a in (1_u32..130, 1_u64..100, 0_u32..9), b in (1_u32..130, 1_u64..100, 0_u32..9),
        steps in proptest::collection::vec((0..SECOND, 1_u32..4), 1..80),
    ) {
        let quotas = [a, b].map(|(count, seconds, queue)| quota(count, seconds * SECOND, queue));
        let mut keys = quotas.map(|quota| GcraState::full(quota.bucket().scale(), Timestamp::ORIGIN));
        let mut nanos = 0;
        for (step, cost) in steps {
            nanos += step;
            let now = Timestamp::from_nanos(nanos);
            let judged = [0, 1].map(|i| judge(keys[i], &quotas[i], now, cost, None));
            if judged.iter().any(|(outcome, _)| matches!(outcome, Later(_) | Never)) {
                continue;
            }
            let start = judged[0].1.longer(judged[1].1);
            // The true start as a fraction: ticks of both scales at once.
            let scales = quotas.map(|quota| u128::from(quota.bucket().scale().ticks_per_nano()));
            let waits = [0, 1].map(|i| ahead(keys[i], quotas[i].bucket().scale(), nanos) * scales[1 - i]);
            let wait = waits[0].max(waits[1]);
            prop_assert_eq!(u128::from(start.micros().0), wait.div_ceil(scales[0] * scales[1] * 1_000));
            for i in [0, 1] {
                keys[i] = charge_at(keys[i], &quotas[i], now, start, cost);
                let free = ahead(keys[i], quotas[i].bucket().scale(), nanos) * scales[1 - i];
                let rate = quotas[i].bucket().rate();
                let work = u128::from(cost) * u128::from(rate.period_nanos()) * scales[0] * scales[1];
                let late = (free - wait) * u128::from(rate.count());
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
        let other = self::quota(1, 366 * 86_400 * SECOND, 0);
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
