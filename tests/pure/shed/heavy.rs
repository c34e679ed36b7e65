//! Callers above 5 % of the traffic are found in constant memory.

use tidegate::shed::HeavyCallers;
use tidegate::shed::heavy::REQUESTS_MIN;

use super::at_millis;
use crate::rng::Rng;

/// Counts requests, `permille` of them by caller 0 and the rest by `others` callers. Returns how often caller
/// 0 was counted, how often it was heavy, and how often another was; the first thousand do not count.
fn traffic(heavy: &mut HeavyCallers, seed: u64, permille: u64, others: u64) -> (u32, u32, u32) {
    let mut random = Rng::new(seed);
    let (mut noted, mut found, mut wrongly) = (0, 0, 0);
    for request in 0..20_000 {
        let is_his = random.below(1_000) < permille;
        let caller = if is_his { 0 } else { 1 + random.below(others) };
        let is_heavy = heavy.count_request(caller);
        // 500 per second.
        heavy.halve_counts(at_millis(request * 2));
        if request >= 1_000 {
            noted += u32::from(is_his);
            found += u32::from(is_his && is_heavy);
            wrongly += u32::from(!is_his && is_heavy);
        }
    }
    (noted, found, wrongly)
}

#[test]
fn finds_caller_of_six_percent_and_not_of_one() {
    let seed = 1;
    for others in [200, 5_000, u64::MAX - 1] {
        let (noted, found, wrongly) = traffic(&mut HeavyCallers::default(), seed, 60, others);
        // By chance it sends less than five in a hundred for a while.
        assert!(found * 10 >= noted * 9, "seed {seed}: {found} of {noted}, {others} others");
        assert_eq!(wrongly, 0, "seed {seed}, {others} others");
        let (noted, found, wrongly) = traffic(&mut HeavyCallers::default(), seed, 10, others);
        assert!(noted > 100);
        assert_eq!((found, wrongly), (0, 0), "seed {seed}, {others} others");
    }
}

/// In turns, so that shares are steady: six in a hundred are always found, one in a hundred never.
#[test]
fn heavy_threshold_is_five_percent() {
    for (every, is_found) in [(16, true), (100, false), (33, false)] {
        let mut heavy = HeavyCallers::default();
        let mut others = 1;
        for request in 0_u64..10_000 {
            if request % every == 0 {
                let is_heavy = heavy.count_request(0);
                if request > 200 {
                    assert_eq!(is_heavy, is_found, "one in {every}, request {request}");
                }
            } else {
                others += 1;
                assert!(!heavy.count_request(others), "everybody else comes once");
            }
            heavy.halve_counts(at_millis(request * 2));
        }
    }
}

#[test]
fn no_caller_is_heavy_before_minimum_count() {
    let mut heavy = HeavyCallers::default();
    for _ in 1..REQUESTS_MIN {
        assert!(!heavy.count_request(9));
    }
    assert!(heavy.count_request(9));
}

#[test]
fn heavy_callers_fade() {
    let mut heavy = HeavyCallers::default();
    heavy.halve_counts(at_millis(500));
    for _ in 0..1_000 {
        heavy.count_request(9);
    }
    // 1000 of 1000, then 500 of 500 and 9000 others: the next is 501 of 9501, above 5 %.
    heavy.halve_counts(at_millis(10_499));
    heavy.halve_counts(at_millis(10_500));
    for caller in 0..9_000 {
        heavy.count_request(100 + caller % 50);
    }
    assert!(heavy.count_request(9));
    // 250 of 4750, and 900 others: 251 of 5651.
    heavy.halve_counts(at_millis(20_500));
    for caller in 0..900 {
        heavy.count_request(100 + caller % 50);
    }
    assert!(!heavy.count_request(9));
    // A long pause leaves nothing.
    heavy.halve_counts(at_millis(3_600_000));
    for _ in 1..REQUESTS_MIN {
        assert!(!heavy.count_request(9));
    }
    assert!(heavy.count_request(9));
}

#[test]
fn replacement_inherits_count() {
    let mut heavy = HeavyCallers::default();
    for caller in (1..=64).chain(1..=64) {
        heavy.count_request(caller);
    }
    for _ in 0..5 {
        heavy.count_request(0);
    }
    // It sent six of 134 requests; two inherited ones make it eight: 6 %.
    assert!(heavy.count_request(0));
}

#[test]
fn late_halving_does_not_delay_the_next() {
    let mut heavy = HeavyCallers::default();
    heavy.halve_counts(at_millis(0));
    for _ in 0..126 {
        heavy.count_request(9);
    }
    heavy.halve_counts(at_millis(19_999));
    heavy.halve_counts(at_millis(20_000));
    assert!(!heavy.count_request(9), "31 are left, and one");
}

#[test]
fn stays_small() {
    assert!(size_of::<HeavyCallers>() <= 800, "{}", size_of::<HeavyCallers>());
}
