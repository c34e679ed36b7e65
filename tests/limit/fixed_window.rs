//! Fixed windows: at most N in each, refused exactly until the window ends, and a wall clock that steps never opens a
//! window again.

use proptest::prelude::*;
use tidegate::clock::{Micros, Now, Timestamp};
use tidegate::limit::fixed_window::{Align, FixedWindow, Period, Quota, Timeline};
use tidegate::limit::{Level, Outcome, RateError};

use Outcome::{Later, Never, Pass};

const MILLI: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;
const MINUTE: u64 = 60 * SECOND;
const DAY: u64 = 86_400 * SECOND;

fn quota(count: u32, nanos: u64, align: Align) -> Quota {
    Quota::new(count, Period::Nanos(nanos), align).unwrap()
}

fn ms(millis: u64) -> Micros {
    Micros(millis * 1_000)
}

/// A moment in milliseconds of boot-time clock, and by how many the wall clock is off.
fn at(millis: u64, off: i64) -> Now {
    Now { at: Timestamp::from_nanos(millis * MILLI), utc: off * 1_000_000 }
}

/// Judges, and charges what passes.
fn take(key: &mut FixedWindow, quota: &Quota, now: Now, cost: u32) -> Outcome {
    let outcome = key.judge(quota, now, cost);
    if outcome == Pass {
        key.charge(quota, now, cost);
    }
    outcome
}

/// Runs steps of (milliseconds, wall clock off by milliseconds, cost, expected) on one key.
fn check(quota: &Quota, steps: &[(u64, i64, u32, Outcome)]) {
    let mut key = FixedWindow::fresh(quota, Now::default());
    for (millis, off, cost, expected) in steps {
        let outcome = take(&mut key, quota, at(*millis, *off), *cost);
        assert_eq!(outcome, *expected, "{cost} at {millis} ms {off:+} of {quota:?}");
    }
}

#[test]
fn a_window_fills_and_the_next_begins_empty() {
    check(
        &quota(3, SECOND, Align::Utc),
        &[
            (100, 0, 2, Pass),
            (200, 0, 2, Later(ms(800))),
            (200, 0, 1, Pass),
            (200, 0, 0, Pass), // nothing asked, nothing charged
            (999, 0, 1, Later(ms(1))),
            (1_000, 0, 3, Pass),
            (1_001, 0, 4, Never),
            (9_999, 0, 3, Pass),
            (9_999, 0, 1, Later(ms(1))),
            (10_000, 0, 1, Pass),
        ],
    );
}

#[test]
fn ten_pass_in_a_minute_across_the_edge_of_five_a_minute() {
    // 2:00:30 to 2:01:30: five on either side of 2:01.
    let quota = quota(5, MINUTE, Align::Utc);
    let mut key = FixedWindow::fresh(&quota, Now::default());
    let two = 2 * 3_600;
    let passed =
        (two + 30..two + 90).filter(|second| take(&mut key, &quota, at(second * 1_000, 0), 1) == Pass);
    assert_eq!(
        passed.collect::<Vec<_>>(),
        [30, 31, 32, 33, 34, 60, 61, 62, 63, 64].map(|second| two + second)
    );
}

#[test]
fn none_at_all_is_refused_for_good() {
    let none = quota(0, MINUTE, Align::Epoch);
    check(&none, &[(0, 0, 1, Never), (0, 0, 0, Pass), (90_000, 0, 1, Never)]);
    let mut key = FixedWindow::fresh(&none, Now::default());
    key.charge(&none, at(0, 0), 7);
    assert_eq!(
        key.level(&none, at(0, 0)),
        Level { limit: 0, window: ms(60_000), remaining: 0, reset: Micros(0) }
    );
}

#[test]
fn a_window_that_opens_with_the_first_hit_keeps_to_the_boot_clock() {
    check(
        &quota(2, SECOND, Align::First),
        &[
            (700, 0, 1, Pass),
            (1_600, 90_000, 1, Pass), // the wall clock is nothing to it
            (1_650, -90_000, 1, Later(ms(50))),
            (1_699, 0, 1, Later(ms(1))),
            (1_700, 0, 2, Pass),
            (1_700, 0, 1, Later(ms(1_000))),
            (1_200, 0, 1, Later(ms(1_500))), // backwards time mints nothing
        ],
    );
}

#[test]
fn a_wall_clock_that_steps_back_keeps_a_key_where_it_is() {
    check(
        &quota(2, MINUTE, Align::Utc),
        &[
            (90_000, 0, 2, Pass),                    // in the window 60…120 s
            (91_000, -61_000, 1, Later(ms(90_000))), // it reads 30 s: not back to 0…60 s; 61 s longer
            (150_000, -61_000, 1, Later(ms(31_000))),
            (181_000, -61_000, 2, Pass),             // it reads 120 s at last
            (181_000, 0, 2, Pass),                   // 181 s: forward again, into another window
            (182_000, -2_000, 1, Later(ms(60_000))), // two seconds back: the edge lies two seconds further off
            (182_000, -100_000, 1, Later(ms(158_000))),
        ],
    );
}

#[test]
fn what_is_refused_may_count_all_the_same() {
    let quota = quota(3, SECOND, Align::Utc);
    let mut key = FixedWindow::fresh(&quota, at(0, 0));
    for _ in 0..3 {
        key.charge(&quota, at(10, 0), u32::MAX);
    }
    assert_eq!(key.judge(&quota, at(10, 0), 1), Later(ms(990)));
    assert_eq!(
        key.level(&quota, at(10, 0)),
        Level { limit: 3, window: ms(1_000), remaining: 0, reset: ms(990) }
    );
    // A larger allowance for the same windows sees the same count.
    let soft = quota.with_count(u32::MAX).unwrap();
    assert_eq!(key.judge(&soft, at(10, 0), 1), Later(ms(990)));
    assert_eq!(key.judge(&quota, at(1_000, 0), 3), Pass);
}

#[test]
fn debt_ends_with_the_window_and_has_a_bound() {
    let quota = quota(5, SECOND, Align::Utc);
    let mut key = FixedWindow::fresh(&quota, at(0, 0));
    key.owe(&quota, at(0, 0), 9, 2); // at most 7 count
    key.give_back(&quota, at(0, 0), 3);
    assert_eq!(key.level(&quota, at(0, 0)).remaining, 1);
    key.owe(&quota, at(0, 0), u32::MAX, u32::MAX);
    assert_eq!(key.level(&quota, at(0, 0)).remaining, 0);
    key.owe(&quota, at(0, 0), 1, 0); // less than is owed already takes nothing back
    key.give_back(&quota, at(0, 0), u32::MAX - 1);
    assert_eq!(key.level(&quota, at(0, 0)).remaining, 4);
    key.give_back(&quota, at(0, 0), u32::MAX);
    assert_eq!(
        key.level(&quota, at(0, 0)),
        Level { limit: 5, window: ms(1_000), remaining: 5, reset: Micros(0) }
    );
    assert_eq!(key.nanos_until_fresh(Timeline::Unix, at(0, 0)), 0);
    // Nothing of an earlier window is given back to this one.
    key.charge(&quota, at(0, 0), 5);
    key.give_back(&quota, at(1_000, 0), 5);
    assert_eq!(key.level(&quota, at(1_000, 0)).remaining, 5);
}

#[test]
fn what_cannot_be_is_refused() {
    use Align::{Epoch, First, Utc};
    let (nanos, months) = (Period::Nanos, Period::Months);
    let table = [
        (nanos(999_999), Utc, Err(RateError::Window)),
        (nanos(1_000_000), Utc, Ok(ms(1))),
        (nanos(0), First, Err(RateError::Window)),
        (nanos(366 * DAY), Utc, Ok(ms(366 * 86_400_000))),
        (nanos(366 * DAY + 1), First, Err(RateError::Window)),
        (months(0), Utc, Err(RateError::Window)),
        (months(13), Utc, Err(RateError::Window)),
        (months(u32::MAX), Epoch, Err(RateError::Window)),
        (months(12), Utc, Ok(ms(360 * 86_400_000))),
        (nanos(DAY + SECOND), Utc, Err(RateError::PartDays)),
        (nanos(36 * 3_600 * SECOND), Utc, Err(RateError::PartDays)),
        (nanos(36 * 3_600 * SECOND), First, Ok(ms(129_600_000))),
        (nanos(36 * 3_600 * SECOND), Epoch, Ok(ms(129_600_000))),
        (nanos(7 * 3_600 * SECOND), Utc, Ok(ms(25_200_000))),
    ];
    for (period, align, expected) in table {
        let quota = Quota::new(1, period, align.clone());
        assert_eq!(quota.map(|quota| quota.window()), expected, "{period:?} {align:?}");
    }
    assert!(RateError::PartDays.to_string().contains("align: first"));
}

#[test]
fn quotas_with_the_same_windows_share_their_states() {
    let zone = |name| Align::Zone(jiff::tz::TimeZone::get(name).unwrap());
    let day = quota(5, DAY, Align::Utc);
    assert!(day.has_windows_of(&quota(9, DAY, Align::Utc)));
    for other in [Align::First, Align::Epoch, zone("Europe/Berlin")] {
        assert!(!day.has_windows_of(&quota(5, DAY, other)));
    }
    assert!(!day.has_windows_of(&quota(5, DAY / 2, Align::Utc)));
    assert!(quota(5, DAY, zone("Europe/Berlin")).has_windows_of(&quota(1, DAY, zone("Europe/Berlin"))));
    assert!(!quota(5, DAY, zone("Europe/Berlin")).has_windows_of(&quota(5, DAY, zone("Asia/Beirut"))));
}

#[test]
fn a_state_fits_beside_a_digest_in_28_bytes() {
    assert_eq!((size_of::<FixedWindow>(), align_of::<FixedWindow>()), (12, 4));
}

/// Time, how far the wall clock is off, cost.
type Steps = Vec<(Now, u32)>;

/// Windows whose ends plain division finds, and a trace near their edges: idle years, the clocks of threads that differ,
/// a wall clock that steps both ways.
fn traces(steady: bool) -> impl Strategy<Value = (Quota, u64, Steps)> {
    let window = prop_oneof![
        Just(SECOND),
        Just(MINUTE),
        Just(3_600 * SECOND),
        Just(6 * 3_600 * SECOND),
        Just(DAY),
        Just(3 * DAY),
        Just(7 * SECOND / 3),
    ];
    let align = prop_oneof![Just(Align::Utc), Just(Align::First), Just(Align::Epoch)];
    (0_u32..20, window, align).prop_flat_map(move |(count, window, align)| {
        // A window that does not divide the day is not found by division alone.
        let align = if align == Align::Utc && !DAY.is_multiple_of(window) && window < DAY {
            Align::Epoch
        } else {
            align
        };
        let quota = quota(count, window, align);
        let wild = if steady { 0 } else { 1 };
        let step = prop_oneof![8 => 0..window / 4, 2 => Just(0), 1 => 0..window * 3, wild => 0..9_000 * DAY];
        let back = prop_oneof![8 => Just(0), wild => 0..window];
        let utc = prop_oneof![30 => Just(None), wild => (0..window * 4).prop_map(Some)];
        let cost = prop_oneof![6 => Just(1_u32), 2 => 0..count + 2, 1 => Just(count)];
        proptest::collection::vec((step, back, utc, cost), 1..150).prop_map(move |steps| {
            let (mut nanos, mut off) = (20_000 * DAY, 0);
            let place = |(step, back, utc, cost): (u64, u64, Option<u64>, u32)| {
                nanos = (nanos + step - back).min(u64::MAX / 4);
                off = utc.map_or(off, |utc| i64::try_from(utc).unwrap() - i64::try_from(window * 2).unwrap());
                (Now { at: Timestamp::from_nanos(nanos), utc: off }, cost)
            };
            (quota.clone(), window, steps.into_iter().map(place).collect())
        })
    })
}

/// When the window ends that would be entered now, by plain division.
fn end_by_division(quota: &Quota, window: u64, reading: i128) -> i128 {
    let window = i128::from(window);
    if quota.timeline() == Timeline::Boot {
        reading + window
    } else {
        reading.div_euclid(window) * window + window
    }
}

fn reading(quota: &Quota, now: Now) -> i128 {
    let utc = if quota.timeline() == Timeline::Boot { 0 } else { i128::from(now.utc) };
    i128::from(now.at.as_nanos()) + utc
}

fn later(now: Now, micros: u64) -> Now {
    Now { at: Timestamp::from_nanos(now.at.as_nanos() + micros * 1_000), ..now }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn windows_decide_as_counting_by_hand_does((quota, window, steps) in traces(false)) {
        let mut key = FixedWindow::fresh(&quota, Now::default());
        let (mut end, mut used) = (i128::MIN, 0);
        for (now, cost) in steps {
            let reading = reading(&quota, now);
            if reading >= end {
                used = 0;
            }
            let expected = match cost {
                0 => Pass,
                _ if cost > quota.count() => Never,
                _ if used + cost <= quota.count() => Pass,
                _ => Later(Micros(u64::try_from((end - reading + 999) / 1_000).unwrap())),
            };
            prop_assert_eq!(take(&mut key, &quota, now, cost), expected, "{} at {:?}", cost, now);
            if expected == Pass && cost > 0 {
                if used == 0 {
                    end = end.max(end_by_division(&quota, window, reading));
                }
                used += cost;
            }
        }
    }

    #[test]
    fn each_window_passes_n_and_any_span_as_long_2n((quota, window, steps) in traces(true)) {
        let mut key = FixedWindow::fresh(&quota, Now::default());
        let mut passed: Vec<(u64, u32)> = Vec::new();
        for (now, cost) in steps {
            if take(&mut key, &quota, now, cost) == Pass {
                passed.push((now.at.as_nanos(), cost));
            }
            let within = |from: u64| passed.iter().filter(move |(at, _)| *at >= from).map(|(_, cost)| *cost).sum::<u32>();
            // The span (t − W, t] that ends now, and the aligned window.
            prop_assert!(within((now.at.as_nanos() + 1).saturating_sub(window)) <= 2 * quota.count());
            if quota.timeline() == Timeline::Unix {
                prop_assert!(within(now.at.as_nanos() / window * window) <= quota.count());
            }
        }
    }

    #[test]
    fn a_wait_is_enough_and_a_level_true((quota, _, steps) in traces(false)) {
        let mut key = FixedWindow::fresh(&quota, Now::default());
        for (now, cost) in steps {
            match take(&mut key, &quota, now, cost) {
                Later(Micros(wait)) => {
                    prop_assert_eq!(key.judge(&quota, later(now, wait), cost), Pass);
                    prop_assert_ne!(key.judge(&quota, later(now, wait - 1), cost), Pass);
                }
                Never => prop_assert!(cost > quota.count()),
                outcome => prop_assert_eq!(outcome, Pass),
            }
            let level = key.level(&quota, now);
            let remaining = u32::try_from(level.remaining).unwrap();
            prop_assert_eq!(key.judge(&quota, now, remaining), Pass);
            prop_assert_ne!(key.judge(&quota, now, remaining + 1), Pass);
            if level.remaining == level.limit {
                prop_assert_eq!(level.reset, Micros::ZERO);
            } else {
                prop_assert_eq!(key.level(&quota, later(now, level.reset.0)).remaining, level.limit);
                prop_assert_eq!(key.level(&quota, later(now, level.reset.0 - 1)).remaining, level.remaining);
                prop_assert_eq!(key.nanos_until_fresh(quota.timeline(), now).div_ceil(1_000), level.reset.0);
            }
        }
    }

    #[test]
    fn a_step_back_stretches_a_window_by_as_much((quota, _, steps) in traces(true), back in 0..2_000 * DAY) {
        let mut key = FixedWindow::fresh(&quota, Now::default());
        for (now, cost) in steps {
            if let Later(Micros(wait)) = take(&mut key, &quota, now, cost) {
                let stepped = Now { utc: now.utc - i64::try_from(back / 1_000 * 1_000).unwrap(), ..now };
                let stretch = if quota.timeline() == Timeline::Boot { 0 } else { back / 1_000 };
                prop_assert_eq!(key.judge(&quota, stepped, cost), Later(Micros(wait + stretch)));
            }
        }
    }

    #[test]
    fn nothing_overflows(
        count in prop_oneof![Just(0), Just(u32::MAX), any::<u32>()],
        nanos in prop_oneof![Just(MILLI), Just(7 * SECOND / 3), Just(DAY), Just(7 * DAY), Just(366 * DAY)],
        months in 0_u32..13, place in 0_usize..4,
        steps in proptest::collection::vec((
            prop_oneof![any::<u64>(), Just(0), Just(u64::MAX)],
            prop_oneof![any::<i64>(), Just(0), Just(i64::MIN), Just(i64::MAX)],
            any::<u32>(), any::<u32>(),
        ), 1..40),
    ) {
        let zone = jiff::tz::TimeZone::get("America/Sao_Paulo").unwrap();
        let align = [Align::Utc, Align::First, Align::Epoch, Align::Zone(zone)][place].clone();
        let period = if months == 0 { Period::Nanos(nanos) } else { Period::Months(months) };
        let quota = Quota::new(count, period, align).unwrap();
        let mut key = FixedWindow::fresh(&quota, Now::default());
        for (nanos, utc, cost, amount) in steps {
            let now = Now { at: Timestamp::from_nanos(nanos), utc };
            let _ = take(&mut key, &quota, now, cost);
            key.owe(&quota, now, amount, cost);
            key.charge(&quota, now, amount);
            let level = key.level(&quota, now);
            prop_assert!(level.remaining <= level.limit && level.window > Micros::ZERO);
            prop_assert!(level.remaining == level.limit || level.reset > Micros::ZERO);
            key.give_back(&quota, now, cost);
        }
    }
}
