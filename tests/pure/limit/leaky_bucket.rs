//! The leaky bucket: places at least 1/rate apart, in order, told exactly, and never a queue longer than it may be.

use proptest::prelude::*;
use tidegate::clock::{Micros, Timestamp};
use tidegate::limit::leaky_bucket::{LeakyBucketQuota, QueueWait, charge_at, judge};
use tidegate::limit::token_bucket::GcraState;
use tidegate::limit::{LimitError, Outcome, QuotaLevel, Rate, TickScale};

use Outcome::{Later, Never, Pass, Queued};

const SECOND: u64 = 1_000_000_000;

/// Runs steps of (milliseconds, cost, longest wait in milliseconds, expected) on one key.
fn check(quota: LeakyBucketQuota, steps: &[(u64, u32, Option<u64>, Outcome)]) {
    let mut key = GcraState::full(quota.bucket().scale(), Timestamp::ORIGIN);
    for (millis, cost, max_wait, expected) in steps {
        let now = Timestamp::from_nanos(millis * 1_000_000);
        let (outcome, start) = judge(key, &quota, now, *cost, max_wait.map(ms));
        assert_eq!(outcome, *expected, "{cost} at {millis} ms of {quota:?}");
        if matches!(outcome, Pass | Queued(_)) {
            key = charge_at(key, &quota, now, start, *cost);
        }
    }
}

fn quota(count: u32, period: u64, queue: u32) -> LeakyBucketQuota {
    LeakyBucketQuota::new(Rate::new(count, period).unwrap(), queue).unwrap()
}

fn ms(millis: u64) -> Micros {
    Micros(millis * 1_000)
}

#[test]
fn work_starts_an_interval_apart_and_a_full_queue_refuses() {
    check(
        quota(5, SECOND, 2),
        &[
            (0, 1, None, Pass),
            (0, 1, None, Queued(ms(200))),
            (50, 1, None, Queued(ms(350))),
            (50, 1, None, Later(ms(150))), // two wait already
            (50, 0, None, Pass),           // nothing asked, nothing waits
            (199, 1, None, Later(ms(1))),
            (200, 1, None, Queued(ms(400))),
            (200, 4, None, Never), // one starts and two wait: four never fit
            (900, 1, None, Pass),  // idle time earns no burst
            (900, 1, None, Queued(ms(200))),
        ],
    );
}

#[test]
fn without_a_queue_nothing_waits() {
    check(
        quota(5, SECOND, 0),
        &[
            (0, 1, None, Pass),
            (0, 1, None, Later(ms(200))),
            (199, 1, None, Later(ms(1))),
            (200, 1, None, Pass),
        ],
    );
}

#[test]
fn a_cost_takes_as_many_places() {
    check(
        quota(10, SECOND, 4),
        &[
            (0, 3, None, Pass),            // 0, 100 and 200 ms are taken
            (0, 2, None, Queued(ms(300))), // behind it, though a place for one comes sooner
            (0, 1, None, Later(ms(100))),
            (150, 1, None, Queued(ms(350))),
            (150, 2, None, Later(ms(150))), // 1 place of 5 is free at 200 ms, 2 at 300
        ],
    );
}

#[test]
fn who_will_not_wait_so_long_is_told_when_it_is_soon_enough() {
    check(
        quota(5, SECOND, 2),
        &[
            (0, 1, Some(0), Pass),
            (0, 1, Some(0), Later(ms(200))), // zero never queues
            (0, 1, Some(199), Later(ms(1))),
            (0, 1, Some(200), Queued(ms(200))),
            (0, 1, Some(150), Later(ms(250))),
            (0, 1, None, Queued(ms(400))),
            (0, 1, Some(1_000), Later(ms(200))), // it is the queue that is full
            (0, 1, Some(350), Later(ms(250))),   // both: the longer of the two
            (600, 1, Some(0), Pass),
        ],
    );
}

#[test]
fn a_clock_that_steps_back_starts_nothing_early() {
    check(
        quota(1, SECOND, 2),
        &[(5_000, 1, None, Pass), (4_000, 1, None, Queued(ms(2_000))), (4_000, 1, None, Later(ms(1_000)))],
    );
}

#[test]
fn three_a_second_are_259_200_a_day() {
    // Asked at all times, the k-th work is told to start at k/3 s, rounded up to a microsecond, a whole day long.
    let quota = quota(3, SECOND, 2);
    let mut key = GcraState::full(quota.bucket().scale(), Timestamp::ORIGIN);
    let (mut started, mut nanos) = (0_u64, 0);
    while nanos < 86_400 * SECOND {
        let now = Timestamp::from_nanos(nanos);
        let (outcome, start) = judge(key, &quota, now, 1, None);
        if matches!(outcome, Pass | Queued(_)) {
            let told = (nanos + start.micros().0 * 1_000) * 3 - started * SECOND;
            assert!(told < 3_000, "number {started} is told to start {told} thirds of a nanosecond late");
            key = charge_at(key, &quota, now, start, 1);
            started += 1;
        }
        nanos += 33_133_700;
    }
    // Those of the day, and the two that then wait.
    assert_eq!(started, 259_200 + 2);
}

#[test]
fn a_longer_wait_in_another_rule_moves_the_place_here_too() {
    let (fast, slow) = (quota(10, SECOND, 2), quota(1, SECOND, 5));
    let at = |millis: u64| Timestamp::from_nanos(millis * 1_000_000);
    let (mut quick, mut late) =
        (GcraState::full(fast.bucket().scale(), at(0)), GcraState::full(slow.bucket().scale(), at(0)));
    late = charge_at(late, &slow, at(0), QueueWait::NONE, 3);
    let start = judge(quick, &fast, at(0), 1, None).1.longer(judge(late, &slow, at(0), 1, None).1);
    assert_eq!(start.micros(), ms(3_000));
    quick = charge_at(quick, &fast, at(0), start, 1);
    late = charge_at(late, &slow, at(0), start, 1);
    // The next goes behind it: 3.1 s ahead where 0.3 s is the queue. Refused, exactly until the queue has room.
    let level = quick.level(fast.bucket(), at(0));
    assert_eq!(level, QuotaLevel { limit: 3, window: ms(300), remaining: 0, reset: ms(2_900) });
    assert_eq!(judge(quick, &fast, at(0), 1, None).0, Later(ms(2_900)));
    assert_eq!(judge(quick, &fast, at(2_900), 1, None).0, Queued(ms(200)));
    assert_eq!(judge(late, &slow, at(0), 1, None).0, Queued(ms(4_000)));
    // A rule whose wait delays nobody is charged at its own place, not sooner.
    assert_eq!(
        judge(charge_at(late, &slow, at(0), QueueWait::NONE, 1), &slow, at(0), 1, None).0,
        Queued(ms(5_000))
    );
}

#[test]
fn what_cannot_be_is_refused() {
    let rate = |count, period| Rate::new(count, period).unwrap();
    let coarse = TickScale::from_ticks_per_nano(1).unwrap();
    let table = [
        (LeakyBucketQuota::new(rate(1, SECOND), u32::MAX).err(), LimitError::QueueTooLong),
        (LeakyBucketQuota::new(rate(1, 86_400 * SECOND), u32::MAX - 1).err(), LimitError::QueueTooLong),
        (LeakyBucketQuota::on_scale(rate(3, 100), 1, coarse).err(), LimitError::TooFast),
    ];
    for (error, expected) in table {
        assert_eq!(error, Some(expected));
    }
    assert_eq!((quota(5, SECOND, 0).bucket().burst(), quota(5, SECOND, 20).bucket().burst()), (1, 21));
    assert_eq!(quota(5, SECOND, 20).bucket().window(), ms(4_200));
    assert_eq!(quota(5, SECOND, 20).queue(), 20);
}

#[derive(Debug, Clone)]
struct Trace {
    quota: LeakyBucketQuota,
    /// Time, cost, longest wait in microseconds.
    steps: Vec<(u64, u32, Option<u64>)>,
}

fn traces(backwards: bool) -> impl Strategy<Value = Trace> {
    let period = prop_oneof![Just(1_u64), Just(60), Just(3_600), Just(86_400)].prop_map(|s| s * SECOND);
    let count = prop_oneof![1_u32..=128, 129_u32..100_000, Just(3), Just(7)];
    (count, period, 0_u32..30).prop_flat_map(move |(count, period, queue)| {
        let unit = (period / u64::from(count)).max(1);
        let step = prop_oneof![8 => 0..unit * 3, 3 => Just(0), 1 => 0..400 * 86_400 * SECOND];
        let back = prop_oneof![9 => Just(0), 1 => 0..if backwards { unit * 20 } else { 1 }];
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

/// Every step of a trace: time, cost, longest wait, state before, outcome, wait.
type Step = (u64, u32, Option<Micros>, GcraState, Outcome, QueueWait);

fn run(trace: &Trace) -> Vec<Step> {
    let quota = trace.quota;
    let first = trace.steps.first().map_or(0, |(nanos, ..)| *nanos);
    let mut key = GcraState::full(quota.bucket().scale(), Timestamp::from_nanos(first));
    let steps = trace.steps.iter().map(|(nanos, cost, max_wait)| {
        let now = Timestamp::from_nanos(*nanos);
        let max_wait = max_wait.map(Micros);
        if key.ticks_until_full(quota.bucket().scale(), now) == 0 {
            // As good as new: nobody keeps it for years.
            key = GcraState::full(quota.bucket().scale(), now);
        }
        let (outcome, start) = judge(key, &quota, now, *cost, max_wait);
        let granted = matches!(outcome, Pass | Queued(_));
        let next = if granted { charge_at(key, &quota, now, start, *cost) } else { key };
        (*nanos, *cost, max_wait, std::mem::replace(&mut key, next), outcome, start)
    });
    steps.collect()
}

/// A moment in ticks that do not wrap, and how far ahead of it a key is.
fn ticks(nanos: u64, scale: TickScale) -> u128 {
    u128::from(nanos) * u128::from(scale.ticks_per_nano())
}

fn ahead(key: GcraState, scale: TickScale, nanos: u64) -> u128 {
    u128::from(key.ticks_until_full(scale, Timestamp::from_nanos(nanos)))
}

proptest! {
    #![proptest_config(crate::cases(80))]

    #[test]
    fn exact_rates_decide_as_fractions_do(trace in traces(true)) {
        let rate = trace.quota.bucket().rate();
        prop_assume!(rate.rounding_parts_on(TickScale::for_rate(rate)).is_none());
        // Time counts in 1/count nanoseconds, in which a unit is `period` long.
        let (count, period) = (u128::from(rate.count()), u128::from(rate.period_nanos()));
        let micros_up = |span: u128| u64::try_from(span.div_ceil(count * 1_000)).unwrap();
        let capacity = u128::from(trace.quota.bucket().burst()) * period;
        let mut next = 0;
        for (nanos, cost, max_wait, _, outcome, _) in run(&trace) {
            let now = u128::from(nanos) * count;
            let start = now.max(next);
            next = start;
            let work = u128::from(cost) * period;
            let wait = micros_up(start - now);
            let full = micros_up((start - now + work).saturating_sub(capacity));
            let impatient = max_wait.map_or(0, |most| wait.saturating_sub(most.0));
            let expected = match (cost, full.max(impatient), wait) {
                (0, ..) => Pass,
                _ if work > capacity => Never,
                (_, 0, 0) => Pass,
                (_, 0, wait) => Queued(Micros(wait)),
                (_, later, _) => Later(Micros(later)),
            };
            prop_assert_eq!(outcome, expected, "{} at {}", cost, nanos);
            if cost > 0 && matches!(outcome, Pass | Queued(_)) {
                next = start + work;
            }
        }
    }

    #[test]
    fn places_are_an_interval_apart_in_the_order_of_arrival(trace in traces(true)) {
        let (scale, rate) = (trace.quota.bucket().scale(), trace.quota.bucket().rate());
        let mut free = 0;
        for (nanos, cost, _, key, outcome, start) in run(&trace) {
            if cost == 0 || !matches!(outcome, Pass | Queued(_)) {
                continue;
            }
            let place = ticks(nanos, scale) + ahead(key, scale, nanos);
            prop_assert!(place * u128::from(rate.count()) >= free);
            // Told up to a microsecond late, never early.
            let told = ticks(nanos + start.micros().0 * 1_000, scale);
            prop_assert!(told >= place && told < place + ticks(1_000, scale));
            free = place * u128::from(rate.count()) + ticks(u64::from(cost) * rate.period_nanos(), scale);
        }
    }

    #[test]
    fn no_more_than_the_queue_waits_and_it_drains(trace in traces(false)) {
        let (quota, steps) = (trace.quota, run(&trace));
        for (nanos, _, _, key, _, _) in &steps {
            let window = nanos + quota.bucket().window().0 * 1_000;
            prop_assert!(ahead(*key, quota.bucket().scale(), *nanos) <= ticks(quota.bucket().window().0 * 1_000, quota.bucket().scale()));
            let at = Timestamp::from_nanos(window);
            prop_assert_eq!(judge(*key, &quota, at, quota.bucket().burst(), Some(Micros::ZERO)).0, Pass);
        }
    }

    #[test]
    fn a_wait_is_enough_and_not_a_microsecond_too_long(trace in traces(true)) {
        let quota = trace.quota;
        for (nanos, cost, max_wait, key, outcome, _) in run(&trace) {
            let again = |micros: u64| {
                judge(key, &quota, Timestamp::from_nanos(nanos + micros * 1_000), cost, max_wait).0
            };
            match outcome {
                Later(Micros(wait)) => {
                    prop_assert!(matches!(again(wait), Pass | Queued(_)));
                    prop_assert!(matches!(again(wait - 1), Later(_)));
                }
                Queued(Micros(wait)) => {
                    prop_assert!(max_wait.is_none_or(|most| wait <= most.0));
                    prop_assert_eq!(again(wait), Pass);
                    prop_assert_ne!(again(wait - 1), Pass);
                }
                Never => prop_assert!(cost > quota.bucket().burst()),
                Pass => prop_assert!(cost <= quota.bucket().burst()),
            }
        }
    }

    #[test]
    fn of_two_rules_neither_starts_two_works_too_close(
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
                // A tick for the place and a tick for each unit, where the rate is not exact.
                let rounding = scales[1 - i] * u128::from(rate.count()) * u128::from(1 + cost);
                prop_assert!(late < work + rounding, "the next starts too late");
            }
        }
    }

    #[test]
    fn nothing_overflows(
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
