//! The token bucket: rounding, ticks that wrap, and changes of a key's quota: the key keeps its time until
//! full, never gains by a change, and owes no more than the bound.

use proptest::prelude::*;
use tidegate::clock::{Micros, Timestamp};
use tidegate::limit::token_bucket::{GcraState, TokenBucketQuota};
use tidegate::limit::{LimitError, Outcome, Rate, TickScale};

use super::SECOND;
use super::key::Key;
use super::properties::{requests, run, token_buckets};

fn quota(count: u32, period: u64, burst: u32) -> TokenBucketQuota {
    TokenBucketQuota::new(Rate::new(count, period).unwrap(), burst).unwrap()
}

fn scale(ticks: u8) -> TickScale {
    TickScale::from_ticks_per_nano(ticks).unwrap()
}

#[test]
fn decides_across_tick_wrap() {
    // 3 ticks a nanosecond wrap after 194 years, far below the end of time.
    let quota = quota(3, SECOND, 3);
    let wrap = u64::MAX / 3;
    let before = Timestamp::from_nanos(wrap - SECOND / 2);
    let (outcome, key) = GcraState::full(quota.scale(), before).judge(&quota, before, 3);
    assert_eq!(outcome, Outcome::Pass);
    let judge = |nanos| key.judge(&quota, Timestamp::from_nanos(nanos), 3).0;
    assert_eq!(judge(wrap + SECOND / 2 - 2), Outcome::Later(Micros(1)));
    assert_eq!(judge(wrap + SECOND / 2), Outcome::Pass);
    // A key is full after a long time without requests.
    assert_eq!(key.level(&quota, Timestamp::from_nanos(wrap + 500 * SECOND)).remaining, 3);
}

#[test]
fn common_scale_is_least_common_multiple() {
    let table = [
        (1, 1, Some(1)),
        (3, 7, Some(21)),
        (6, 4, Some(12)),
        (128, 2, Some(128)),
        (127, 2, None),
        (128, 3, None),
    ];
    for (a, b, expected) in table {
        assert_eq!(scale(a).lcm(scale(b)), expected.map(scale), "{a} and {b}");
    }
}

#[test]
fn rate_is_exact_on_multiples_of_its_scale() {
    let thirds = Rate::new(3, SECOND).unwrap();
    for ticks in 1..=128 {
        assert_eq!(thirds.rounding_parts_on(scale(ticks)).is_none(), ticks % 3 == 0, "{ticks}");
    }
    // A third of a second in whole nanoseconds is too slow by two parts in a thousand million.
    assert_eq!(thirds.rounding_parts_on(TickScale::NANOS), Some(500_000_000));
    assert_eq!(thirds.rounding_parts_on(TickScale::for_rate(thirds)), None);
    let on = TokenBucketQuota::on_scale(thirds, 3, scale(21)).unwrap();
    assert_eq!((on.scale(), on.window(), on.rate()), (scale(21), Micros(1_000_000), thirds));
    // Seven in a nanosecond: a scale of whole nanoseconds rounds them to almost nothing.
    let coarse = TokenBucketQuota::on_scale(Rate::new(7, 1).unwrap(), 1, TickScale::NANOS);
    assert_eq!(coarse.err(), Some(LimitError::TooFast));
}

/// A key between full and deep in debt, at some time.
fn keys() -> impl Strategy<Value = (TokenBucketQuota, GcraState, Timestamp)> {
    let count = prop_oneof![1_u32..=128, 129_u32..100_000];
    let at = prop_oneof![0_u64..1_000 * SECOND, 0..u64::MAX / 2].prop_map(Timestamp::from_nanos);
    (count, 1_u64..10_000, 1_u32..1_000, at, 0_u32..2_000).prop_map(|(count, seconds, burst, at, owed)| {
        let quota = quota(count, seconds * SECOND, burst);
        (quota, GcraState::full(quota.scale(), at).charge_debt(&quota, at, owed, 1_000), at)
    })
}

/// The time until a key is full, as a fraction over the ticks of both scales.
fn until_full(key: GcraState, on: TickScale, other: TickScale, at: Timestamp) -> u128 {
    u128::from(key.ticks_until_full(on, at)) * u128::from(other.ticks_per_nano())
}

proptest! {
    #![proptest_config(crate::rng::cases(80))]

    #[test]
    fn rescaling_keeps_fill_time((quota, key, at) in keys(), to in 1_u8..=128) {
        let (from, to) = (quota.scale(), scale(to));
        let was = until_full(key, from, to, at);
        let is = until_full(key.rescale(from, to, at), to, from, at);
        prop_assert!(is >= was, "a change of scale fills no bucket");
        prop_assert!(is < was + u128::from(from.ticks_per_nano()), "by less than a tick of the new scale");
        if u128::from(to.ticks_per_nano()).is_multiple_of(u128::from(from.ticks_per_nano())) {
            prop_assert_eq!(is, was);
            prop_assert_eq!(key.rescale(from, to, at).rescale(to, from, at).ticks_until_full(from, at),
                key.ticks_until_full(from, at));
        }
    }

    #[test]
    fn clamping_never_lengthens_wait((quota, key, at) in keys(), burst in 1_u32..1_000) {
        let small = TokenBucketQuota::new(quota.rate(), burst).unwrap();
        let is = key.clamp_to(&small, at).ticks_until_full(quota.scale(), at);
        let empty = GcraState::full(small.scale(), at).charge_debt(&small, at, burst, 0).ticks_until_full(small.scale(), at);
        prop_assert_eq!(is, key.ticks_until_full(quota.scale(), at).min(empty));
    }

    #[test]
    fn debt_never_wraps_around(
        steps in proptest::collection::vec((any::<u32>(), any::<u32>(), any::<bool>()), 1..50), at in any::<u64>(),
    ) {
        // The slowest rate on the finest scale: a unit is a quarter of the range. At any debt, a clock that
        // runs back by a month sees no full bucket.
        let quota = TokenBucketQuota::on_scale(Rate::new(1, 200 * 86_400 * SECOND).unwrap(), 1, TickScale::FINEST).unwrap();
        let at = Timestamp::from_nanos(at);
        let mut key = GcraState::full(quota.scale(), at).charge_debt(&quota, at, 1, 0);
        for (amount, debt_max, back) in steps {
            let was = key.ticks_until_full(quota.scale(), at);
            key = key.charge_debt(&quota, at, amount, debt_max);
            prop_assert!(key.ticks_until_full(quota.scale(), at) >= was);
            let earlier = Timestamp::from_nanos(at.as_nanos().wrapping_sub(30 * 86_400 * SECOND));
            let seen = key.ticks_until_full(quota.scale(), earlier);
            prop_assert!(seen > was);
            let owing = key.charge_debt(&quota, earlier, 1, u32::MAX);
            prop_assert!(owing.ticks_until_full(quota.scale(), earlier) >= seen);
            if back {
                key = key.refund(&quota, at, 0);
            }
        }
    }

    #[test]
    fn any_span_admits_at_most_burst_plus_rate(trace in requests(token_buckets())) {
        // Also at a rounded rate.
        let mut passed: Vec<(u64, u32)> = Vec::new();
        let (mut burst, mut rate) = (0, Rate::new(1, SECOND).unwrap());
        run(&trace, |now, cost, key, _| {
            let Key::TokenBucket(quota, _) = key else { unreachable!() };
            (burst, rate) = (quota.burst(), quota.rate());
            if key.passes(now, cost) {
                passed.push((now.at.as_nanos(), cost));
            }
        });
        for (first, (from, _)) in passed.iter().enumerate() {
            let mut sum = 0;
            for (to, cost) in &passed[first..] {
                sum += u128::from(*cost);
                let earned = u128::from(to - from) * u128::from(rate.count()) / u128::from(rate.period_nanos());
                prop_assert!(sum <= u128::from(burst) + earned, "{} in {} ns", sum, to - from);
            }
        }
    }

    #[test]
    fn rounded_rate_is_at_most_1_in_100_000_slow(count in 1_u32..1_200_000, seconds in 1_u64..100) {
        let rate = Rate::new(count, seconds * SECOND).unwrap();
        let quota = TokenBucketQuota::new(rate, 1_000).unwrap();
        prop_assert_eq!(quota.window(), Micros(rate.period_nanos().div_ceil(u64::from(count))));
        prop_assert!(rate.rounding_parts_on(quota.scale()).is_none_or(|parts| parts >= 100_000));
        prop_assert!(TickScale::for_rate(rate).ticks_per_nano() <= 128);
    }
}
