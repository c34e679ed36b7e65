//! The promises of the token bucket: tables for what a reader wants to see, properties against an exact rational
//! reference for the rest. A failing property prints its seed and its smallest case.

use proptest::prelude::*;
use tidegate::clock::{Micros, Timestamp};
use tidegate::limit::token_bucket::{GcraState, TokenBucketQuota};
use tidegate::limit::{LimitError, Outcome, QuotaLevel, Rate, TickScale};

use Outcome::{Later, Never, Pass};

const SECOND: u64 = 1_000_000_000;

/// Runs steps of (milliseconds, cost, expected) on one key.
fn check(quota: TokenBucketQuota, steps: &[(u64, u32, Outcome)]) {
    let mut key = GcraState::full(quota.scale(), Timestamp::ORIGIN);
    for (millis, cost, expected) in steps {
        let now = Timestamp::from_nanos(millis * 1_000_000);
        let (outcome, next) = key.judge(&quota, now, *cost);
        assert_eq!(outcome, *expected, "{cost} at {millis} ms of {quota:?}");
        key = next;
    }
}

fn quota(count: u32, period: u64, burst: u32) -> TokenBucketQuota {
    TokenBucketQuota::new(Rate::new(count, period).unwrap(), burst).unwrap()
}

fn ms(millis: u64) -> Micros {
    Micros(millis * 1_000)
}

#[test]
fn a_bucket_empties_and_refills() {
    check(
        quota(10, SECOND, 2),
        &[
            (0, 2, Pass),
            (0, 1, Later(ms(100))),
            (99, 1, Later(ms(1))),
            (100, 1, Pass),
            (900, 2, Pass), // idle time buys one burst, not eight
            (900, 3, Never),
            (900, 0, Pass), // nothing asked, nothing charged
            (900, 2, Later(ms(200))),
            (1_000, 2, Later(ms(100))),
            (1_100, 2, Pass),
        ],
    );
}

#[test]
fn a_clock_that_steps_back_mints_nothing() {
    check(
        quota(1, SECOND, 1),
        &[(5_000, 1, Pass), (1_000, 1, Later(ms(5_000))), (5_999, 1, Later(ms(1))), (6_000, 1, Pass)],
    );
}

#[test]
fn three_a_second_are_259_200_a_day() {
    // A third of a second is no whole number of nanoseconds, and the caller's step divides no interval. With a burst
    // of two, being asked a little late costs nothing: what was earned meanwhile is still there.
    let quota = quota(3, SECOND, 2);
    let mut key = GcraState::full(quota.scale(), Timestamp::ORIGIN);
    let steps = (0..86_400 * SECOND).step_by(33_133_700).chain([86_400 * SECOND; 3]);
    let mut admitted = 0;
    for nanos in steps {
        let (outcome, next) = key.judge(&quota, Timestamp::from_nanos(nanos), 1);
        key = next;
        admitted += u32::from(outcome == Pass);
    }
    assert_eq!(admitted, 2 + 259_200);
}

#[test]
fn a_rate_of_few_is_exact_to_the_tick() {
    // 7 a minute, each asked for a nanosecond early and when it is due.
    let quota = quota(7, 60 * SECOND, 2);
    let (_, mut key) = GcraState::full(quota.scale(), Timestamp::ORIGIN).judge(&quota, Timestamp::ORIGIN, 2);
    for number in 1_u64..7 * 60 * 24 {
        let due = (number * 60 * SECOND).div_ceil(7);
        let (early, _) = key.judge(&quota, Timestamp::from_nanos(due - 1), 1);
        assert_ne!(early, Pass, "number {number} a nanosecond early");
        let (outcome, next) = key.judge(&quota, Timestamp::from_nanos(due), 1);
        assert_eq!(outcome, Pass, "number {number}");
        key = next;
    }
}

#[test]
fn ticks_wrap_without_a_word() {
    // 3 ticks a nanosecond wrap after 194 years, far below the end of time.
    let quota = quota(3, SECOND, 3);
    let wrap = u64::MAX / 3;
    let before = Timestamp::from_nanos(wrap - SECOND / 2);
    let (outcome, key) = GcraState::full(quota.scale(), before).judge(&quota, before, 3);
    assert_eq!(outcome, Pass);
    assert_eq!(key.judge(&quota, Timestamp::from_nanos(wrap + SECOND / 2 - 2), 3).0, Later(Micros(1)));
    assert_eq!(key.judge(&quota, Timestamp::from_nanos(wrap + SECOND / 2), 3).0, Pass);
    // A key that nobody looked at for a long time is full.
    assert_eq!(key.level(&quota, Timestamp::from_nanos(wrap + 500 * SECOND)).remaining, 3);
}

#[test]
fn what_cannot_be_is_refused() {
    let table = [
        (Rate::new(0, SECOND).err(), LimitError::Zero),
        (Rate::new(1, 0).err(), LimitError::Period),
        (Rate::new(1, 400 * 86_400 * SECOND).err(), LimitError::Period),
        (Rate::new(1_999_999_973, SECOND).err(), LimitError::TooFast),
        (TokenBucketQuota::new(Rate::new(1, SECOND).unwrap(), 0).err(), LimitError::Zero),
        (
            TokenBucketQuota::new(Rate::new(1, 86_400 * SECOND).unwrap(), u32::MAX).err(),
            LimitError::BurstTooLarge,
        ),
    ];
    for (error, expected) in table {
        assert_eq!(error, Some(expected));
    }
}

#[test]
fn a_level_says_what_would_pass() {
    let quota = quota(10, SECOND, 5);
    let at = |millis: u64| Timestamp::from_nanos(millis * 1_000_000);
    let key = GcraState::full(quota.scale(), at(0));
    let full = QuotaLevel { limit: 5, window: ms(500), remaining: 5, reset: Micros(0) };
    assert_eq!(key.level(&quota, at(0)), full);
    let (_, key) = key.judge(&quota, at(0), 3);
    assert_eq!(key.level(&quota, at(0)), QuotaLevel { remaining: 2, reset: ms(100), ..full });
    assert_eq!(key.level(&quota, at(250)), QuotaLevel { remaining: 4, reset: ms(50), ..full });
    assert_eq!(key.level(&quota, at(300)), full);
}

/// The bucket in exact fractions: time counts in 1/count nanoseconds, in which a unit is `period` long.
struct Reference {
    count: u128,
    period: u128,
    burst: u128,
    arrival: u128,
}

impl Reference {
    /// Whether it passes, and if so charges it.
    fn judge(&mut self, nanos: u64, cost: u32) -> bool {
        let now = u128::from(nanos) * self.count;
        let arrival = self.arrival.max(now) + u128::from(cost) * self.period;
        let passes = cost == 0 || arrival - now <= self.burst * self.period;
        if passes && cost > 0 {
            self.arrival = arrival;
        }
        passes
    }
}

#[derive(Debug, Clone)]
struct Trace {
    rate: Rate,
    burst: u32,
    steps: Vec<(u64, u32)>,
}

fn traces() -> impl Strategy<Value = Trace> {
    let period =
        prop_oneof![Just(1_u64), Just(60), Just(3_600), Just(86_400), 1_u64..100].prop_map(|s| s * SECOND);
    let count = prop_oneof![1_u32..=128, 129_u32..100_000, Just(3), Just(7)];
    (count, period, 1_u32..200).prop_flat_map(|(count, period, burst)| {
        let rate = Rate::new(count, period).unwrap();
        // Steps about as long as a few units take, so that traces stay near the limit, and now and then an idle hour.
        let unit = (period / u64::from(count)).max(1);
        let step = prop_oneof![8 => 0..unit * 3, 1 => Just(0), 1 => 0..3_600 * SECOND];
        let cost = prop_oneof![6 => Just(1_u32), 2 => 0..burst * 2, 1 => Just(burst)];
        proptest::collection::vec((step, cost), 1..200).prop_map(move |steps| Trace { rate, burst, steps })
    })
}

/// Every step of a trace: time, cost, state before, outcome.
fn run(trace: &Trace) -> (TokenBucketQuota, Vec<(u64, u32, GcraState, Outcome)>) {
    let quota = TokenBucketQuota::new(trace.rate, trace.burst).unwrap();
    let mut key = GcraState::full(quota.scale(), Timestamp::ORIGIN);
    let mut now = 0;
    let steps = trace.steps.iter().map(|(step, cost)| {
        now += step;
        let (outcome, next) = key.judge(&quota, Timestamp::from_nanos(now), *cost);
        (now, *cost, std::mem::replace(&mut key, next), outcome)
    });
    let steps = steps.collect();
    (quota, steps)
}

proptest! {
    #![proptest_config(crate::cases(200))]

    #[test]
    fn exact_rates_decide_as_fractions_do(trace in traces()) {
        prop_assume!(trace.rate.rounding_parts_on(TickScale::for_rate(trace.rate)).is_none());
        let (count, period) = (u128::from(trace.rate.count()), u128::from(trace.rate.period_nanos()));
        let mut reference = Reference { count, period, burst: u128::from(trace.burst), arrival: 0 };
        for (now, cost, _, outcome) in run(&trace).1 {
            prop_assert_eq!(outcome == Pass, reference.judge(now, cost), "{} at {}", cost, now);
        }
    }

    #[test]
    fn in_any_span_at_most_burst_plus_rate_passes(trace in traces()) {
        let (_, steps) = run(&trace);
        let admitted: Vec<_> = steps.iter().filter(|(.., outcome)| *outcome == Pass).collect();
        for (first, (from, ..)) in admitted.iter().enumerate() {
            let mut sum = 0;
            for (to, cost, ..) in &admitted[first..] {
                sum += u128::from(*cost);
                let earned = u128::from(to - from) * u128::from(trace.rate.count())
                    / u128::from(trace.rate.period_nanos());
                prop_assert!(sum <= u128::from(trace.burst) + earned, "{} in {} ns", sum, to - from);
            }
        }
    }

    #[test]
    fn a_wait_is_enough_and_not_a_microsecond_too_long(trace in traces()) {
        let (quota, steps) = run(&trace);
        for (now, cost, key, outcome) in steps {
            match outcome {
                Later(Micros(wait)) => {
                    let at = |micros: u64| Timestamp::from_nanos(now + micros * 1_000);
                    prop_assert_eq!(key.judge(&quota, at(wait), cost).0, Pass);
                    prop_assert_ne!(key.judge(&quota, at(wait - 1), cost).0, Pass);
                }
                Never => prop_assert!(cost > trace.burst),
                Pass => prop_assert!(cost <= trace.burst),
                Outcome::Queued(_) => prop_assert!(false, "a token bucket queues nothing"),
            }
        }
    }

    #[test]
    fn remaining_is_what_passes_and_reset_when_it_grows(trace in traces()) {
        let (quota, steps) = run(&trace);
        for (now, _, key, _) in steps {
            let at = |micros: u64| Timestamp::from_nanos(now + micros * 1_000);
            let level = key.level(&quota, at(0));
            let passes = |cost: u64| key.judge(&quota, at(0), u32::try_from(cost).unwrap()).0 == Pass;
            prop_assert!(passes(level.remaining));
            prop_assert!(!passes(level.remaining + 1));
            if level.remaining == level.limit {
                prop_assert_eq!(level.reset, Micros::ZERO);
            } else {
                prop_assert!(key.level(&quota, at(level.reset.0)).remaining > level.remaining);
                prop_assert_eq!(key.level(&quota, at(level.reset.0 - 1)).remaining, level.remaining);
            }
        }
    }

    #[test]
    fn idle_time_buys_one_burst(trace in traces(), idle in 0_u64..u64::MAX / 256) {
        let (quota, steps) = run(&trace);
        let (now, _, key, _) = steps.last().copied().unwrap();
        let later = Timestamp::from_nanos(now + idle);
        prop_assert!(key.level(&quota, later).remaining <= u64::from(trace.burst));
        prop_assert_eq!(key.judge(&quota, later, trace.burst + 1).0, Never);
    }

    #[test]
    fn a_rounded_rate_is_slow_by_at_most_one_part_in_100_000(count in 1_u32..1_200_000, seconds in 1_u64..100) {
        let rate = Rate::new(count, seconds * SECOND).unwrap();
        let quota = TokenBucketQuota::new(rate, 1_000).unwrap();
        let exact_nanos = 1_000 * u128::from(rate.period_nanos()) / u128::from(count);
        let kept_nanos = u128::from(quota.window().0) * 1_000;
        prop_assert!(kept_nanos + 1_000 > exact_nanos);
        prop_assert!(kept_nanos <= exact_nanos + exact_nanos / 100_000 + 2_000);
        prop_assert!(TickScale::for_rate(rate).ticks_per_nano() <= 128);
    }
}
