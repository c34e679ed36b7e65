//! Fixed windows over random traces: idle years, clocks that differ, a wall clock that steps, the extremes of every number.

use proptest::prelude::*;
use tidegate::clock::{Micros, Now, Timestamp};
use tidegate::limit::Outcome;
use tidegate::limit::fixed_window::{FixedWindowQuota, FixedWindowState, WindowAlign, WindowPeriod};

use super::fixed_window::{DAY, MILLI, MINUTE, SECOND, quota, take};
use Outcome::{Later, Never, Pass};

/// Time, how far the wall clock is off, cost.
type Steps = Vec<(Now, u32)>;

/// Windows whose ends plain division finds, and a trace near their edges: idle years, the clocks of threads that differ,
/// a wall clock that steps both ways.
fn traces(steady: bool) -> impl Strategy<Value = (FixedWindowQuota, u64, Steps)> {
    let window = prop_oneof![
        Just(SECOND),
        Just(MINUTE),
        Just(3_600 * SECOND),
        Just(6 * 3_600 * SECOND),
        Just(DAY),
        Just(3 * DAY),
        Just(7 * SECOND / 3),
    ];
    let align = prop_oneof![Just(WindowAlign::Utc), Just(WindowAlign::First), Just(WindowAlign::Epoch)];
    (0_u32..20, window, align).prop_flat_map(move |(count, window, align)| {
        // A window that does not divide the day is not found by division alone.
        let align = if align == WindowAlign::Utc && !DAY.is_multiple_of(window) && window < DAY {
            WindowAlign::Epoch
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
                (Now { at: Timestamp::from_nanos(nanos), utc_offset_nanos: off }, cost)
            };
            (quota.clone(), window, steps.into_iter().map(place).collect())
        })
    })
}

/// Whether windows begin with the first request of a key, by the boot-time clock.
fn is_per_key(quota: &FixedWindowQuota) -> bool {
    quota.describe_windows().ends_with("from the first request")
}

/// When the window ends that would be entered now, by plain division.
fn end_by_division(quota: &FixedWindowQuota, window: u64, reading: i128) -> i128 {
    let window = i128::from(window);
    if is_per_key(quota) { reading + window } else { reading.div_euclid(window) * window + window }
}

fn reading(quota: &FixedWindowQuota, now: Now) -> i128 {
    let utc = if is_per_key(quota) { 0 } else { i128::from(now.utc_offset_nanos) };
    i128::from(now.at.as_nanos()) + utc
}

fn later(now: Now, micros: u64) -> Now {
    Now { at: Timestamp::from_nanos(now.at.as_nanos() + micros * 1_000), ..now }
}

proptest! {
    #![proptest_config(crate::cases(80))]

    #[test]
    fn windows_decide_as_counting_by_hand_does((quota, window, steps) in traces(false)) {
        let mut key = FixedWindowState::default();
        let (mut began, mut counted) = (None, 0);
        for (now, cost) in steps {
            let reading = reading(&quota, now);
            // The window that was entered then is the one around that moment, by the wall clock as it is now.
            let end = began.map_or(i128::MIN, |at| {
                end_by_division(&quota, window, super::fixed_window_traces::reading(&quota, Now { at, ..now }))
            });
            let used = if reading < end { counted } else { 0 };
            let expected = match cost {
                0 => Pass,
                _ if cost > quota.count() => Never,
                _ if used + cost <= quota.count() => Pass,
                _ => Later(Micros(u64::try_from((end - reading + 999) / 1_000).unwrap())),
            };
            prop_assert_eq!(take(&mut key, &quota, now, cost), expected, "{} at {:?}", cost, now);
            if expected == Pass && cost > 0 {
                if used == 0 {
                    began = Some(now.at);
                }
                counted = used + cost;
            }
        }
    }

    #[test]
    fn each_window_passes_n_and_any_span_as_long_2n((quota, window, steps) in traces(true)) {
        let mut key = FixedWindowState::default();
        let mut passed: Vec<(u64, u32)> = Vec::new();
        for (now, cost) in steps {
            if take(&mut key, &quota, now, cost) == Pass {
                passed.push((now.at.as_nanos(), cost));
            }
            let within = |from: u64| passed.iter().filter(move |(at, _)| *at >= from).map(|(_, cost)| *cost).sum::<u32>();
            // The span (t − W, t] that ends now, and the aligned window.
            prop_assert!(within((now.at.as_nanos() + 1).saturating_sub(window)) <= 2 * quota.count());
            if !is_per_key(&quota) {
                prop_assert!(within(now.at.as_nanos() / window * window) <= quota.count());
            }
        }
    }

    #[test]
    fn a_wait_is_enough_and_a_level_true((quota, _, steps) in traces(false)) {
        let mut key = FixedWindowState::default();
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
                prop_assert!(key.nanos_until_fresh(quota.window_nanos_max(), now).div_ceil(1_000) >= level.reset.0);
            }
        }
    }

    #[test]
    fn no_step_of_the_wall_clock_makes_a_wait_longer_than_the_window(
        (quota, window, steps) in traces(true), wrong in proptest::collection::vec(any::<i64>(), 150),
    ) {
        let mut key = FixedWindowState::default();
        let (mut passed, mut utc): (Vec<(u64, u32)>, i64) = (Vec::new(), 0);
        let mut steps_of_clock = 0;
        for ((now, cost), wrong) in steps.into_iter().zip(wrong) {
            // One time in four the clock is set to anything, and one in four it is right again.
            let set = match wrong & 3 { 0 => wrong / 4, 1 => 0, _ => utc };
            steps_of_clock += u32::from(set != utc);
            utc = set;
            let now = Now { utc_offset_nanos: utc, ..now };
            let at = now.at.as_nanos();
            match take(&mut key, &quota, now, cost) {
                Pass => passed.push((at, cost)),
                Later(Micros(wait)) => {
                    // Whatever fills the window passed within its length by the boot-time clock, and is over with that.
                    let last = passed.iter().filter(|(_, cost)| *cost > 0).map(|(then, _)| *then).max().unwrap();
                    prop_assert!(at - last < window, "refused for what is longer ago than a window");
                    prop_assert!(at + wait * 1_000 <= last + window + 1_000, "{wait} µs more");
                }
                _ => prop_assert!(cost > quota.count()),
            }
            // A step opens one window more, at most.
            let within = passed.iter().filter(|(then, _)| at - then < window).map(|(_, cost)| u64::from(*cost)).sum::<u64>();
            prop_assert!(within <= u64::from(quota.count()) * u64::from(2 + steps_of_clock));
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
        let align = [WindowAlign::Utc, WindowAlign::First, WindowAlign::Epoch, WindowAlign::Zone(zone)][place].clone();
        let period = if months == 0 { WindowPeriod::Nanos(nanos) } else { WindowPeriod::Months(months) };
        let quota = FixedWindowQuota::new(count, period, align).unwrap();
        let mut key = FixedWindowState::default();
        for (nanos, utc, cost, amount) in steps {
            let now = Now { at: Timestamp::from_nanos(nanos), utc_offset_nanos: utc };
            let _ = take(&mut key, &quota, now, cost);
            key.charge_debt(&quota, now, amount, cost);
            key.charge(&quota, now, amount);
            let level = key.level(&quota, now);
            prop_assert!(level.remaining <= level.limit && level.window > Micros::ZERO);
            prop_assert!(level.remaining == level.limit || level.reset > Micros::ZERO);
            key.refund(&quota, now, cost);
        }
    }
}
