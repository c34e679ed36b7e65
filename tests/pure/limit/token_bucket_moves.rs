//! What happens to a token bucket's key when its quota changes or something is charged after the fact: it keeps its
//! time until full, never gains by a change, and owes no more than it may.

use proptest::prelude::*;
use tidegate::clock::{Micros, Timestamp};
use tidegate::limit::token_bucket::{GcraState, TokenBucketQuota};
use tidegate::limit::{LimitError, Outcome, Rate, TickScale};

const SECOND: u64 = 1_000_000_000;

fn quota(count: u32, period: u64, burst: u32) -> TokenBucketQuota {
    TokenBucketQuota::new(Rate::new(count, period).unwrap(), burst).unwrap()
}

fn scale(ticks: u8) -> TickScale {
    TickScale::from_ticks_per_nano(ticks).unwrap()
}

fn ms(millis: u64) -> Micros {
    Micros(millis * 1_000)
}

#[test]
fn scales_meet_in_their_least_common_multiple() {
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
fn arrival_restores_the_bucket() {
    let (quota, now) = (quota(100, SECOND, 20), Timestamp::from_nanos(SECOND));
    let (_, charged) = GcraState::full(quota.scale(), now).judge(&quota, now, 7);
    let restored = GcraState::from_arrival(charged.arrival());
    assert_eq!((restored, restored.level(&quota, now).remaining), (charged, 13));
}

#[test]
fn a_rate_is_exact_on_every_multiple_of_its_scale() {
    let thirds = Rate::new(3, SECOND).unwrap();
    for ticks in 1..=128 {
        assert_eq!(thirds.rounding_parts_on(scale(ticks)).is_none(), ticks % 3 == 0, "{ticks}");
    }
    // A third of a second in whole nanoseconds is slow by two parts in a thousand million.
    assert_eq!(thirds.rounding_parts_on(TickScale::NANOS), Some(500_000_000));
    assert_eq!(thirds.rounding_parts_on(TickScale::for_rate(thirds)), None);
    let on = TokenBucketQuota::on_scale(thirds, 3, scale(21)).unwrap();
    assert_eq!((on.scale(), on.window(), on.rate()), (scale(21), Micros(1_000_000), thirds));
    // Seven in a nanosecond: as good as nothing is left of them on a scale of whole nanoseconds.
    assert_eq!(
        TokenBucketQuota::on_scale(Rate::new(7, 1).unwrap(), 1, TickScale::NANOS).err(),
        Some(LimitError::TooFast)
    );
}

#[test]
fn debt_is_waited_out_and_has_an_end() {
    let quota = quota(10, SECOND, 5);
    let at = |millis: u64| Timestamp::from_nanos(millis * 1_000_000);
    let key = GcraState::full(quota.scale(), at(0)).charge_debt(&quota, at(0), 8, 5);
    assert_eq!(key.judge(&quota, at(0), 1).0, Outcome::Later(ms(400)));
    assert_eq!(key.judge(&quota, at(399), 1).0, Outcome::Later(ms(1)));
    assert_eq!(key.judge(&quota, at(400), 1).0, Outcome::Pass);
    assert_eq!((key.level(&quota, at(0)).remaining, key.level(&quota, at(0)).reset), (0, ms(400)));
    // At most five below zero; what is more is dropped, and a key that is there already stays.
    let deep = key.charge_debt(&quota, at(0), u32::MAX, 5);
    assert_eq!(deep.judge(&quota, at(0), 1).0, Outcome::Later(ms(600)));
    assert_eq!(deep.charge_debt(&quota, at(0), 1, 0), deep);
    assert_eq!(deep.refund(&quota, at(0), 7).level(&quota, at(0)).remaining, 2);
    assert_eq!(deep.refund(&quota, at(0), u32::MAX).level(&quota, at(0)).remaining, 5);
    // A smaller burst: nobody waits longer than for that to fill.
    let small = self::quota(10, SECOND, 2);
    assert_eq!(deep.clamp_to(&small, at(0)).judge(&small, at(0), 2).0, Outcome::Later(ms(200)));
}

/// A key somewhere between full and deep in debt, seen at a moment.
fn keys() -> impl Strategy<Value = (TokenBucketQuota, GcraState, Timestamp)> {
    let count = prop_oneof![1_u32..=128, 129_u32..100_000];
    let at = prop_oneof![0_u64..1_000 * SECOND, 0..u64::MAX / 2].prop_map(Timestamp::from_nanos);
    (count, 1_u64..10_000, 1_u32..1_000, at, 0_u32..2_000).prop_map(|(count, seconds, burst, at, owed)| {
        let quota = quota(count, seconds * SECOND, burst);
        (quota, GcraState::full(quota.scale(), at).charge_debt(&quota, at, owed, 1_000), at)
    })
}

/// How long until a key is full, as a fraction over the ticks of both scales.
fn until_full(key: GcraState, on: TickScale, other: TickScale, at: Timestamp) -> u128 {
    u128::from(key.ticks_until_full(on, at)) * u128::from(other.ticks_per_nano())
}

proptest! {
    #![proptest_config(crate::cases(80))]

    #[test]
    fn rescaled_keys_fill_when_they_would_have((quota, key, at) in keys(), to in 1_u8..=128) {
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
    fn what_is_owed_is_what_is_waited_for(
        (quota, key, at) in keys(), amount in any::<u32>(), debt_max in 0_u32..3_000,
    ) {
        let was = key.ticks_until_full(quota.scale(), at);
        let is = key.charge_debt(&quota, at, amount, debt_max).ticks_until_full(quota.scale(), at);
        let unit = u128::from(TokenBucketQuota::on_scale(quota.rate(), 1, quota.scale()).unwrap().window().0) * 1_000
            * u128::from(quota.scale().ticks_per_nano());
        prop_assert!(is >= was);
        prop_assert!(u128::from(is - was) <= u128::from(amount) * unit);
        prop_assert!(is == was || u128::from(is) <= u128::from(quota.burst() + debt_max) * unit);
        // Nothing is lost where there is room for it: what was owed can be given back.
        if amount <= debt_max && key.level(&quota, at).remaining > 0 {
            let back = key.charge_debt(&quota, at, amount, debt_max).refund(&quota, at, amount);
            prop_assert_eq!(back.ticks_until_full(quota.scale(), at), was);
        }
    }

    #[test]
    fn a_wait_in_debt_is_exact((quota, key, at) in keys(), cost in any::<u32>()) {
        let cost = cost % quota.burst() + 1;
        if let Outcome::Later(Micros(wait)) = key.judge(&quota, at, cost).0 {
            let then = |micros: u64| Timestamp::from_nanos(at.as_nanos() + micros * 1_000);
            prop_assert_eq!(key.judge(&quota, then(wait), cost).0, Outcome::Pass);
            prop_assert_ne!(key.judge(&quota, then(wait - 1), cost).0, Outcome::Pass);
        }
        let level = key.level(&quota, at);
        if level.remaining < level.limit {
            let then = |micros: u64| Timestamp::from_nanos(at.as_nanos() + micros * 1_000);
            prop_assert!(key.level(&quota, then(level.reset.0)).remaining > level.remaining);
            prop_assert_eq!(key.level(&quota, then(level.reset.0 - 1)).remaining, level.remaining);
        }
    }

    #[test]
    fn a_cut_shortens_and_never_lengthens((quota, key, at) in keys(), burst in 1_u32..1_000) {
        let small = TokenBucketQuota::new(quota.rate(), burst).unwrap();
        let is = key.clamp_to(&small, at).ticks_until_full(quota.scale(), at);
        let empty = GcraState::full(small.scale(), at).charge_debt(&small, at, burst, 0).ticks_until_full(small.scale(), at);
        prop_assert_eq!(is, key.ticks_until_full(quota.scale(), at).min(empty));
    }

    #[test]
    fn the_circle_is_never_passed(
        steps in proptest::collection::vec((any::<u32>(), any::<u32>(), any::<bool>()), 1..50), at in any::<u64>(),
    ) {
        // The slowest rate on the finest scale: a unit is a quarter of all that fits. Whatever is owed, a clock that
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
}
