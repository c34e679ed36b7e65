//! Fixed windows: no refusal lasts longer than a window, whatever the wall clock does; and the quotas that
//! share states.

use proptest::prelude::*;
use tidegate::clock::{Micros, Now, Timestamp};
use tidegate::limit::Outcome;
use tidegate::limit::fixed_window::{FixedWindowQuota, FixedWindowState, WindowAlign, WindowPeriod};

use Outcome::{Later, Pass};

use super::{DAY, MILLI, SECOND};

fn quota(count: u32, nanos: u64, align: WindowAlign) -> FixedWindowQuota {
    FixedWindowQuota::new(count, WindowPeriod::Nanos(nanos), align).unwrap()
}

/// A time in milliseconds of the boot-time clock, and the offset of the wall clock.
fn at(millis: u64, off: i64) -> Now {
    Now { at: Timestamp::from_nanos(millis * MILLI), utc_offset_nanos: off * 1_000_000 }
}

/// Checks, and charges if allowed.
fn take(key: &mut FixedWindowState, quota: &FixedWindowQuota, now: Now, cost: u32) -> Outcome {
    let outcome = key.judge(quota, now, cost);
    if outcome == Pass {
        key.charge(quota, now, cost);
    }
    outcome
}

#[test]
fn decides_at_both_ends_of_time() {
    // Before 1970 a window lasts from its first request; the last of all never ends.
    let second = quota(1, SECOND, WindowAlign::Utc);
    let mut key = FixedWindowState::default();
    for (millis, expected) in [(500, Pass), (700, Later(Micros(800_000))), (1_500, Pass)] {
        assert_eq!(take(&mut key, &second, at(millis, -10_000), 1), expected, "{millis} ms");
    }
    let end = Now { at: Timestamp::from_nanos(u64::MAX), utc_offset_nanos: 1 };
    for align in [WindowAlign::Utc, WindowAlign::First, WindowAlign::Epoch] {
        let quota = quota(1, SECOND, align);
        let mut key = FixedWindowState::default();
        assert_eq!(take(&mut key, &quota, end, 1), Pass);
        assert_eq!(key.judge(&quota, end, 1), Later(Micros(1)), "{quota:?}");
    }
}

#[test]
fn counts_in_the_window_of_the_request_beside_its_edges() {
    for align in [WindowAlign::Utc, WindowAlign::Epoch] {
        let quota = quota(1, SECOND, align);
        // No edge is a multiple of 256 ns by the boot-time clock.
        let at = |nanos: u64| Now { at: Timestamp::from_nanos(nanos), utc_offset_nanos: -77 };
        let edge = 1_000 * SECOND + 77;
        for beside in [1, 76, 77, 100, 255, 256] {
            let mut key = FixedWindowState::default();
            for nanos in [edge - beside, edge, edge + beside, edge + SECOND - beside, edge + SECOND] {
                let is_first = nanos == edge - beside || nanos == edge || nanos == edge + SECOND;
                let passes = take(&mut key, &quota, at(nanos), 1) == Pass;
                assert_eq!(passes, is_first, "{} ns from the edge", nanos.cast_signed() - edge.cast_signed());
            }
        }
    }
}

#[test]
fn quotas_of_equal_windows_share_states() {
    let zone = |name| WindowAlign::Zone(jiff::tz::TimeZone::get(name).unwrap());
    let quotas = [
        quota(5, DAY, WindowAlign::Utc),
        quota(5, DAY / 2, WindowAlign::Utc),
        quota(5, DAY, WindowAlign::First),
        quota(5, DAY, WindowAlign::Epoch),
        quota(5, DAY, zone("Europe/Berlin")),
        quota(5, DAY, zone("Asia/Beirut")),
    ];
    for (i, one) in quotas.iter().enumerate() {
        for (k, other) in quotas.iter().enumerate() {
            let [one, other] = [one, &other.with_count(9).unwrap()].map(FixedWindowQuota::describe_windows);
            assert_eq!(one == other, i == k, "{one} {other}");
        }
    }
}

proptest! {
    #![proptest_config(crate::cases(80))]

    #[test]
    fn clock_step_bounds_wait_by_window(
        count in 0_u32..20, nanos in prop::sample::select(vec![SECOND, 6 * 3_600 * SECOND, DAY, 3 * DAY]),
        align in prop::sample::select(vec![WindowAlign::Utc, WindowAlign::First]),
        steps in prop::collection::vec((0..1_000_u64, 0_u32..22, any::<i64>()), 150),
    ) {
        let (quota, mut key) = (quota(count, nanos, align), FixedWindowState::default());
        let (mut passed, mut utc): (Vec<(u64, u32)>, i64) = (Vec::new(), 0);
        let (mut steps_of_clock, mut at) = (0, 20_000 * DAY);
        for (part, cost, wrong) in steps {
            at += nanos / 4_000 * part;
            // One step in four sets the clock to any time, and one in four resets it.
            let set = match wrong & 3 { 0 => wrong / 4, 1 => 0, _ => utc };
            steps_of_clock += u32::from(set != utc);
            utc = set;
            let now = Now { at: Timestamp::from_nanos(at), utc_offset_nanos: utc };
            match take(&mut key, &quota, now, cost) {
                Pass => passed.push((at, cost)),
                Later(Micros(wait)) => {
                    // The requests that fill the window fell within its length by the boot-time clock, and
                    // expire with it.
                    let last = passed.iter().filter(|(_, cost)| *cost > 0).map(|(then, _)| *then).max().unwrap();
                    prop_assert!(at - last < nanos, "refused for what is longer ago than a window");
                    prop_assert!(at + wait * 1_000 <= last + nanos + 1_000, "{wait} µs more");
                }
                _ => prop_assert!(cost > quota.count()),
            }
            // A clock step opens at most one more window.
            let within = passed.iter().filter(|(then, _)| at - then < nanos).map(|(_, cost)| u64::from(*cost)).sum::<u64>();
            prop_assert!(within <= u64::from(quota.count()) * u64::from(2 + steps_of_clock));
        }
    }
}
