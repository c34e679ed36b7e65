//! Fixed windows: at most N in each, refused exactly until the window ends, and never longer than it lasts, whatever the wall
//! clock does.

use tidegate::clock::{Micros, Now, Timestamp};
use tidegate::limit::fixed_window::{FixedWindowQuota, FixedWindowState, WindowAlign, WindowPeriod};
use tidegate::limit::{LimitError, Outcome, QuotaLevel};

use Outcome::{Later, Never, Pass};

pub(crate) const MILLI: u64 = 1_000_000;
pub(crate) const SECOND: u64 = 1_000_000_000;
pub(crate) const MINUTE: u64 = 60 * SECOND;
pub(crate) const DAY: u64 = 86_400 * SECOND;

pub(crate) fn quota(count: u32, nanos: u64, align: WindowAlign) -> FixedWindowQuota {
    FixedWindowQuota::new(count, WindowPeriod::Nanos(nanos), align).unwrap()
}

fn ms(millis: u64) -> Micros {
    Micros(millis * 1_000)
}

/// A moment in milliseconds of boot-time clock, and by how many the wall clock is off.
fn at(millis: u64, off: i64) -> Now {
    Now { at: Timestamp::from_nanos(millis * MILLI), utc_offset_nanos: off * 1_000_000 }
}

/// Judges, and charges what passes.
pub(crate) fn take(key: &mut FixedWindowState, quota: &FixedWindowQuota, now: Now, cost: u32) -> Outcome {
    let outcome = key.judge(quota, now, cost);
    if outcome == Pass {
        key.charge(quota, now, cost);
    }
    outcome
}

/// Runs steps of (milliseconds, wall clock off by milliseconds, cost, expected) on one key.
fn check(quota: &FixedWindowQuota, steps: &[(u64, i64, u32, Outcome)]) {
    let mut key = FixedWindowState::default();
    for (millis, off, cost, expected) in steps {
        let outcome = take(&mut key, quota, at(*millis, *off), *cost);
        assert_eq!(outcome, *expected, "{cost} at {millis} ms {off:+} of {quota:?}");
    }
}

#[test]
fn a_window_fills_and_the_next_begins_empty() {
    check(
        &quota(3, SECOND, WindowAlign::Utc),
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
    let quota = quota(5, MINUTE, WindowAlign::Utc);
    let mut key = FixedWindowState::default();
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
    let none = quota(0, MINUTE, WindowAlign::Epoch);
    check(&none, &[(0, 0, 1, Never), (0, 0, 0, Pass), (90_000, 0, 1, Never)]);
    let mut key = FixedWindowState::default();
    key.charge(&none, at(0, 0), 7);
    assert_eq!(
        key.level(&none, at(0, 0)),
        QuotaLevel { limit: 0, window: ms(60_000), remaining: 0, reset: Micros(0) }
    );
}

#[test]
fn a_window_that_opens_with_the_first_hit_keeps_to_the_boot_clock() {
    check(
        &quota(2, SECOND, WindowAlign::First),
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
fn a_wall_clock_that_is_wrong_for_a_second_opens_nothing_and_refuses_nobody_longer() {
    const DAY_MS: u64 = 86_400_000;
    // At ten in the morning the clock is a day ahead, or eight days behind, and then right.
    for wrong in [86_400_000, -8 * 86_400_000] {
        check(
            &quota(2, DAY, WindowAlign::Utc),
            &[
                (10 * DAY_MS + 36_000_000, 0, 1, Pass),
                (10 * DAY_MS + 36_001_000, wrong, 1, Pass),
                (10 * DAY_MS + 36_001_500, wrong, 1, Later(ms(50_398_500))), // no window more
                (10 * DAY_MS + 36_002_000, 0, 1, Later(ms(50_398_000))),     // until midnight
                (11 * DAY_MS - 1, 0, 1, Later(ms(1))),
                (11 * DAY_MS, 0, 2, Pass),
            ],
        );
    }
    // Ahead by thirty hours it is another window by the clock as it is, and the true one once that is right.
    check(
        &quota(2, DAY, WindowAlign::Utc),
        &[
            (10 * DAY_MS + 36_000_000, 108_000_000, 2, Pass),
            (10 * DAY_MS + 36_000_500, 108_000_000, 1, Later(ms(28_799_500))),
            (10 * DAY_MS + 36_001_000, 0, 1, Later(ms(50_399_000))),
            (11 * DAY_MS, 0, 2, Pass),
        ],
    );
}

#[test]
fn a_step_of_the_wall_clock_ends_a_window_where_it_truly_ends() {
    check(
        &quota(2, MINUTE, WindowAlign::Utc),
        &[
            (90_000, 0, 2, Pass),                    // in the window 60…120 s
            (91_000, -60_000, 1, Later(ms(29_000))), // it reads 31 s, and began at 30 s: until 60 s
            (91_000, -40_000, 1, Later(ms(9_000))),  // it reads 51 s, and began at 50 s
            (91_000, 20_000, 1, Later(ms(9_000))),   // it reads 111 s, and began at 110 s
            (91_000, 29_500, 2, Pass),               // it reads 120.5 s, and began at 119.5 s: another window
        ],
    );
}

#[test]
fn time_has_two_ends() {
    // Before 1970 a window lasts from its first request; the last of all never ends.
    let second = quota(1, SECOND, WindowAlign::Utc);
    check(&second, &[(500, -10_000, 1, Pass), (700, -10_000, 1, Later(ms(800))), (1_500, -10_000, 1, Pass)]);
    let end = Now { at: Timestamp::from_nanos(u64::MAX), utc_offset_nanos: 1 };
    for align in [WindowAlign::Utc, WindowAlign::First, WindowAlign::Epoch] {
        let quota = quota(1, SECOND, align);
        let mut key = FixedWindowState::default();
        assert_eq!(take(&mut key, &quota, end, 1), Pass);
        assert_eq!(key.judge(&quota, end, 1), Later(Micros(1)), "{quota:?}");
    }
}

#[test]
fn what_is_refused_may_count_all_the_same() {
    let quota = quota(3, SECOND, WindowAlign::Utc);
    let mut key = FixedWindowState::default();
    for _ in 0..3 {
        key.charge(&quota, at(10, 0), u32::MAX);
    }
    assert_eq!(key.judge(&quota, at(10, 0), 1), Later(ms(990)));
    assert_eq!(
        key.level(&quota, at(10, 0)),
        QuotaLevel { limit: 3, window: ms(1_000), remaining: 0, reset: ms(990) }
    );
    // A larger allowance for the same windows sees the same count.
    let soft = quota.with_count(u32::MAX).unwrap();
    assert_eq!(key.judge(&soft, at(10, 0), 1), Later(ms(990)));
    assert_eq!(key.level(&soft, at(10, 0)).limit, u64::from(u32::MAX));
    assert_eq!(key.judge(&quota, at(1_000, 0), 3), Pass);
}

#[test]
fn began_and_count_restore_the_window() {
    let quota = quota(5, SECOND, WindowAlign::First);
    let now = at(5_000_000_000, 0);
    let mut key = FixedWindowState::default();
    key.charge(&quota, now, 3);
    let (began, count) = key.to_parts();
    assert_eq!((began, count), (now.at, 3));
    assert_eq!(FixedWindowState::from_parts(began, count), key);
}

#[test]
fn debt_ends_with_the_window_and_has_a_bound() {
    let quota = quota(5, SECOND, WindowAlign::Utc);
    let mut key = FixedWindowState::default();
    key.charge_debt(&quota, at(0, 0), 9, 2); // at most 7 count
    key.refund(&quota, at(0, 0), 3);
    assert_eq!(key.level(&quota, at(0, 0)).remaining, 1);
    key.charge_debt(&quota, at(0, 0), u32::MAX, u32::MAX);
    assert_eq!(key.level(&quota, at(0, 0)).remaining, 0);
    key.charge_debt(&quota, at(0, 0), 1, 0); // less than is owed already takes nothing back
    key.refund(&quota, at(0, 0), u32::MAX - 1);
    assert_eq!(key.level(&quota, at(0, 0)).remaining, 4);
    key.refund(&quota, at(0, 0), u32::MAX);
    assert_eq!(
        key.level(&quota, at(0, 0)),
        QuotaLevel { limit: 5, window: ms(1_000), remaining: 5, reset: Micros(0) }
    );
    assert_eq!(key.nanos_until_fresh(quota.window_nanos_max(), at(0, 0)), 0);
    // Nothing of an earlier window is given back to this one.
    key.charge(&quota, at(0, 0), 5);
    key.refund(&quota, at(1_000, 0), 5);
    assert_eq!(key.level(&quota, at(1_000, 0)).remaining, 5);
}

#[test]
fn what_cannot_be_is_refused() {
    use WindowAlign::{Epoch, First, Utc};
    let (nanos, months) = (WindowPeriod::Nanos, WindowPeriod::Months);
    let table = [
        (nanos(999_999), Utc, Err(LimitError::Window)),
        (nanos(1_000_000), Utc, Ok(ms(1))),
        (nanos(0), First, Err(LimitError::Window)),
        (nanos(366 * DAY), Utc, Ok(ms(366 * 86_400_000))),
        (nanos(366 * DAY + 1), First, Err(LimitError::Window)),
        (months(0), Utc, Err(LimitError::Window)),
        (months(13), Utc, Err(LimitError::Window)),
        (months(u32::MAX), Epoch, Err(LimitError::Window)),
        (months(12), Utc, Ok(ms(360 * 86_400_000))),
        (nanos(DAY + SECOND), Utc, Err(LimitError::PartDays)),
        (nanos(36 * 3_600 * SECOND), Utc, Err(LimitError::PartDays)),
        (nanos(36 * 3_600 * SECOND), First, Ok(ms(129_600_000))),
        (nanos(36 * 3_600 * SECOND), Epoch, Ok(ms(129_600_000))),
        (nanos(7 * 3_600 * SECOND), Utc, Ok(ms(25_200_000))),
    ];
    for (period, align, expected) in table {
        let quota = FixedWindowQuota::new(1, period, align.clone());
        assert_eq!(quota.map(|quota| quota.window()), expected, "{period:?} {align:?}");
    }
    assert!(LimitError::PartDays.to_string().contains("align: first"));
}

#[test]
fn quotas_with_the_same_windows_share_their_states() {
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
            let other = other.with_count(9).unwrap();
            assert_eq!(
                one.describe_windows() == other.describe_windows(),
                i == k,
                "{} {}",
                one.describe_windows(),
                other.describe_windows()
            );
        }
    }
}

#[test]
fn a_state_fits_beside_a_digest_in_28_bytes() {
    assert_eq!((size_of::<FixedWindowState>(), align_of::<FixedWindowState>()), (12, 4));
}
