//! Fixed windows: no refusal lasts longer than a window, whatever the wall clock does; the quotas that share states;
//! and the ends and real lengths of calendar windows, in UTC and in zones with clock changes.

use Outcome::{Later, Pass};
use jiff::civil::date;
use jiff::tz::TimeZone;
use jiff::{ToSpan, Zoned};
use proptest::prelude::*;
use tidegate::clock::{Micros, Now, Timestamp};
use tidegate::limit::Outcome;
use tidegate::limit::fixed_window::{FixedWindowQuota, FixedWindowState, WindowAlign, WindowPeriod};

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
    #![proptest_config(crate::rng::cases(80))]

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

const HOUR: u64 = 3_600 * SECOND;

fn unix(text: &str) -> u64 {
    nanos_of(text.parse().unwrap())
}

fn nanos_of(at: jiff::Timestamp) -> u64 {
    u64::try_from(at.as_nanosecond()).unwrap()
}

fn zone(name: &str) -> TimeZone {
    TimeZone::get(name).unwrap()
}

/// The window around a time: the time until its end and its length, in nanoseconds.
fn window(quota: &FixedWindowQuota, nanos: u64) -> (u64, u64) {
    let now = Now::at_nanos(nanos);
    let mut key = FixedWindowState::default();
    let before = key.level(quota, now).window;
    key.charge(quota, now, 1);
    let level = key.level(quota, now);
    assert_eq!(level.window, before, "a key knows the length of its window before it enters");
    assert!(level.window.0 * 1_000 <= quota.window_nanos_max(), "{level:?} of {quota:?}");
    let left = key.nanos_until_end(quota, now);
    assert_eq!(level.reset, Micros(left.div_ceil(1_000)));
    assert!(left <= key.nanos_until_fresh(quota.window_nanos_max(), now));
    (left, level.window.0 * 1_000)
}

/// Checks the end of the window around a time, and its length in hours.
#[track_caller]
fn check(align: &WindowAlign, period: WindowPeriod, at: &str, end: &str, hours: f64) {
    let quota = FixedWindowQuota::new(5, period, align.clone()).unwrap();
    let (left, length) = window(&quota, unix(at));
    let is = jiff::Timestamp::from_nanosecond(i128::from(unix(at) + left)).unwrap();
    assert_eq!((is.to_string().as_str(), length as f64 / HOUR as f64), (end, hours), "{at} of {quota:?}");
}

#[test]
fn descriptor_weeks_start_on_thursday_and_months_last_30_days() {
    use WindowAlign::{Epoch, First};
    let days = |days| WindowPeriod::Nanos(days * DAY);
    let month = || WindowPeriod::Months(1);
    for (align, period, at, end, hours) in [
        (Epoch, days(7), "2026-11-22T00:00:00Z", "2026-11-26T00:00:00Z", 168.0),
        (Epoch, days(30), "1970-03-01T00:00:00Z", "1970-03-02T00:00:00Z", 720.0),
        (Epoch, month(), "1970-03-01T00:00:00Z", "1970-03-02T00:00:00Z", 720.0),
        (Epoch, days(365), "1972-12-30T00:00:00Z", "1972-12-31T00:00:00Z", 8760.0),
        (Epoch, WindowPeriod::Nanos(7 * HOUR), "1970-01-01T23:00:00Z", "1970-01-02T04:00:00Z", 7.0),
        (First, month(), "1970-02-01T00:00:00Z", "1970-03-03T00:00:00Z", 720.0),
    ] {
        check(&align, period, at, end, hours);
    }
}

#[test]
fn day_without_midnight_starts_at_its_first_instant() {
    // Clocks put forward from 23:30 to 0:30: the day begins half an hour late, and not at 1:00.
    let late = TimeZone::posix("EST5EDT,M3.2.6/23:30,M11.1.0/2").unwrap();
    let (sao_paulo, beirut) = (zone("America/Sao_Paulo"), zone("Asia/Beirut"));
    let (havana, st_johns) = (zone("America/Havana"), zone("America/St_Johns"));
    let apia = zone("Pacific/Apia");
    for (zone, at, end, hours) in [
        // São Paulo put its clocks forward at midnight: 2018-11-04 began at 1:00, and 2018-02-17 had 25 hours.
        (&sao_paulo, "2018-11-04T02:59:59Z", "2018-11-04T03:00:00Z", 24.0),
        (&sao_paulo, "2018-11-04T03:00:00Z", "2018-11-05T02:00:00Z", 23.0),
        (&sao_paulo, "2018-02-18T01:30:00Z", "2018-02-18T03:00:00Z", 25.0),
        (&beirut, "2022-03-26T21:59:59Z", "2022-03-26T22:00:00Z", 24.0),
        (&beirut, "2022-03-26T22:00:00Z", "2022-03-27T21:00:00Z", 23.0),
        (&late, "2026-03-15T04:29:59Z", "2026-03-15T04:30:00Z", 23.5),
        (&late, "2026-03-15T04:30:00Z", "2026-03-16T04:00:00Z", 23.5),
        // Havana reads 0:00 to 1:00 twice in the same day, Saint John's 23:01 to 0:01 of two days.
        (&havana, "2026-11-01T05:30:00Z", "2026-11-02T05:00:00Z", 25.0),
        (&havana, "2026-11-01T03:59:59Z", "2026-11-01T04:00:00Z", 24.0),
        // Midnight for the first time: the day is over. Then Saturday on the wall once more, but it was Sunday.
        (&st_johns, "2010-11-07T02:29:59Z", "2010-11-07T02:30:00Z", 24.0),
        (&st_johns, "2010-11-07T02:45:00Z", "2010-11-08T03:30:00Z", 25.0),
        // Samoa had no 30 December 2011: the 31st follows the 29th.
        (&apia, "2011-12-30T09:59:59Z", "2011-12-30T10:00:00Z", 24.0),
        (&apia, "2011-12-30T10:00:00Z", "2011-12-31T10:00:00Z", 24.0),
    ] {
        check(&WindowAlign::Zone(zone.clone()), WindowPeriod::Nanos(DAY), at, end, hours);
    }
    let month = WindowPeriod::Months(1);
    check(&WindowAlign::Zone(apia), month, "2011-12-15T00:00:00Z", "2011-12-31T10:00:00Z", 720.0);
}

#[test]
fn ended_window_reports_length_of_the_next() {
    let quota = FixedWindowQuota::new(5, WindowPeriod::Months(1), WindowAlign::Utc).unwrap();
    let mut key = FixedWindowState::default();
    key.charge(&quota, Now::at_nanos(unix("2026-02-10T00:00:00Z")), 5);
    let hours = |at: &str| key.level(&quota, Now::at_nanos(unix(at))).window.0 / 3_600_000_000;
    assert_eq!((hours("2026-02-28T23:59:59Z"), hours("2026-03-01T00:00:00Z")), (672, 744));
}

#[test]
fn level_has_length_of_charged_window_for_earlier_clock_reading() {
    let quota = FixedWindowQuota::new(5, WindowPeriod::Months(1), WindowAlign::Utc).unwrap();
    let mut key = FixedWindowState::default();
    key.charge(&quota, Now::at_nanos(unix("2026-03-01T00:00:00Z")), 1);
    let level = key.level(&quota, Now::at_nanos(unix("2026-02-28T23:59:59.999Z")));
    assert_eq!((level.remaining, level.window.0 / 3_600_000_000), (4, 744));
}

/// The window around a time, by walking the calendar of the time zone library from midnight to midnight.
fn by_calendar(at: &Zoned, period: WindowPeriod) -> (u64, u64) {
    let first = at.date();
    let months = i64::from(first.year() - 1970) * 12 + i64::from(first.month()) - 1;
    let (first, next) = match period {
        WindowPeriod::Months(count) => {
            let start = date(1970, 1, 1)
                .checked_add((months - months.rem_euclid(i64::from(count))).months())
                .unwrap();
            (start, start.checked_add(i64::from(count).months()).unwrap())
        }
        WindowPeriod::Nanos(nanos) => {
            let count = i64::try_from((nanos / DAY).max(1)).unwrap();
            let anchor = if count % 7 == 0 { date(1970, 1, 5) } else { date(1970, 1, 1) };
            let start =
                first.checked_sub(i64::from((first - anchor).get_days()).rem_euclid(count).days()).unwrap();
            (start, start.checked_add(count.days()).unwrap())
        }
    };
    let midnight = |day: jiff::civil::Date| {
        day.to_zoned(at.time_zone().clone()).unwrap().start_of_day().unwrap().timestamp().as_nanosecond()
    };
    let (mut start, mut end, now) = (midnight(first), midnight(next), at.timestamp().as_nanosecond());
    if let WindowPeriod::Nanos(nanos) = period
        && nanos < DAY
    {
        start += (now - start) / i128::from(nanos) * i128::from(nanos);
        end = end.min(start + i128::from(nanos));
    }
    (u64::try_from(end - now).unwrap(), u64::try_from(end - start).unwrap())
}

/// Zones of every kind: none, whole and odd offsets, either hemisphere, changes at midnight.
const ZONES: &str = "UTC Europe/Berlin America/New_York America/Sao_Paulo Asia/Beirut Asia/Kolkata \
                     Asia/Kathmandu Australia/Lord_Howe Pacific/Kiritimati Pacific/Pago_Pago America/Havana Africa/Casablanca";

fn zone_name() -> impl Strategy<Value = &'static str> {
    proptest::sample::select(ZONES.split(' ').collect::<Vec<_>>())
}

proptest! {
    #![proptest_config(crate::rng::cases(1_000))]

    #[test]
    fn windows_match_calendar(
        name in zone_name(),
        period in prop_oneof![
            Just(WindowPeriod::Nanos(SECOND)), Just(WindowPeriod::Nanos(HOUR)), Just(WindowPeriod::Nanos(7 * HOUR)), Just(WindowPeriod::Nanos(DAY)),
            Just(WindowPeriod::Nanos(7 * DAY)), Just(WindowPeriod::Nanos(10 * DAY)), (1_u32..=12).prop_map(WindowPeriod::Months),
        ],
        day in 0_i64..47_000, from_midnight in -7_200_000_000_000..7_200_000_000_000_i64,
    ) {
        // Near a midnight, where errors are likely.
        let day = date(1970, 1, 2).checked_add(day.days()).unwrap().to_zoned(zone(name)).unwrap();
        let at = day.timestamp().checked_add(jiff::SignedDuration::from_nanos(from_midnight)).unwrap();
        let align = if name == "UTC" { WindowAlign::Utc } else { WindowAlign::Zone(zone(name)) };
        let quota = FixedWindowQuota::new(5, period, align).unwrap();
        let at = at.to_zoned(zone(name));
        let (left, length) = window(&quota, nanos_of(at.timestamp()));
        let (expected_left, expected_length) = by_calendar(&at, period);
        prop_assert_eq!((left, length.div_ceil(1_000)), (expected_left, expected_length.div_ceil(1_000)), "{} {:?}", at, period);
    }

    #[test]
    fn windows_are_contiguous(
        name in zone_name(), start in 0_u64..4_000_000_000,
        period in prop_oneof![Just(WindowPeriod::Nanos(7 * HOUR)), Just(WindowPeriod::Nanos(DAY)), Just(WindowPeriod::Months(1))],
    ) {
        // A time at the end of a window is at the start of the next; windows never go back.
        let quota = FixedWindowQuota::new(5, period, WindowAlign::Zone(zone(name))).unwrap();
        let mut now = start * SECOND;
        now += window(&quota, now).0;
        for _ in 0..40 {
            let (left, length) = window(&quota, now);
            prop_assert_eq!(left, length, "the whole of it lies ahead");
            prop_assert_eq!(window(&quota, now + left - 1), (1, length));
            now += left;
        }
    }
}
