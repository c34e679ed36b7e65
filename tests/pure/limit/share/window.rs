//! A share of a window: spent until its next increase, with the edges of the host's windows.

use tidegate::clock::{Micros, Now};
use tidegate::limit::fixed_window::{self, WindowAlign, WindowPeriod};
use tidegate::limit::share::{
    BudgetWindow, Fallback, NextIncrease, RemoteCheckWait, ShareQuota, ShareReply, WindowSchedule,
};
use tidegate::limit::{self, Outcome, QuotaLevel, sliding_window};

use super::{MICRO, SECOND, ask, at, joined, settled, synced};

/// A thousand in each minute, on ten hosts.
fn of_windows(credit: u16) -> ShareQuota {
    windows_of(1_000, credit)
}

fn windows_of(count: u32, credit: u16) -> ShareQuota {
    let like =
        fixed_window::FixedWindowQuota::new(count, WindowPeriod::Nanos(60 * SECOND), WindowAlign::Epoch)
            .unwrap();
    joined(ShareQuota::for_window(limit::Quota::FixedWindow(like), credit, Fallback::Share).unwrap(), 10).0
}

fn sliding_of_seven() -> ShareQuota {
    let sliding = sliding_window::SlidingWindowQuota::new(7, 60 * SECOND, 6).unwrap();
    ShareQuota::for_window(limit::Quota::SlidingWindow(sliding), 0, Fallback::Share).unwrap()
}

#[test]
fn spent_window_refuses_without_remote_check() {
    for credit in [0, 100] {
        let quota = of_windows(credit);
        let more = Some(NextIncrease { at: at(5_000), is_exhausted: true });
        let mut share = synced(&quota, ShareReply { next_increase: more, ..settled(1, 0, 0, at(0)) });
        assert!(ask(&mut share, &quota, at(2), 1), "what is in hand is not spent yet");
        assert_eq!(share.judge(&quota, at(1_000), 1), Outcome::Later(Micros(4_000_000)));
        let level = share.level(&quota, at(1_000));
        assert_eq!((level.remaining, level.reset, level.window), (0, Micros(4_000_000), Micros(60_000_000)));
        share.take_sync_due();
        share.apply_reply(
            &quota,
            &ShareReply { next_increase: more, ..settled(0, 0, 0, at(1_000)) },
            at(1_001),
        );
        assert!(!ask(&mut share, &quota, at(2_900), 1));
        assert!(!share.take_sync_due(), "nobody would have any for it");
        let mut later = share;
        assert!(!ask(&mut later, &quota, at(4_999), 1));
        assert!(later.take_sync_due(), "another host may have returned some");
        // Then the whole quota should be there: the request passes on credit, or causes a sync.
        assert_eq!(ask(&mut share, &quota, at(5_000), 1), credit > 0);
        assert_eq!(share.take_sync_due(), credit == 0, "a little credit is told of later");
    }
}

#[test]
fn fleet_windows_end_with_host_windows() {
    const DAY: u64 = 86_400 * SECOND;
    let every =
        |slots, seconds: u64, origin| WindowSchedule::Every { slots, step: seconds * 1_000_000, origin };
    let monday = 4 * 86_400_000_000;
    let berlin = WindowAlign::Zone(jiff::tz::TimeZone::get("Europe/Berlin").unwrap());
    let fixed = |period, align| {
        limit::Quota::FixedWindow(fixed_window::FixedWindowQuota::new(5, period, align).unwrap())
    };
    let sliding = |buckets| {
        let quota = sliding_window::SlidingWindowQuota::new(5, 60 * SECOND, buckets);
        limit::Quota::SlidingWindow(quota.unwrap())
    };
    let table = [
        (fixed(WindowPeriod::Nanos(60 * SECOND), WindowAlign::Epoch), every(1, 60, 0)),
        (fixed(WindowPeriod::Nanos(7 * DAY), WindowAlign::Epoch), every(1, 604_800, 0)),
        (fixed(WindowPeriod::Nanos(2 * DAY), WindowAlign::Utc), every(1, 172_800, 0)),
        (fixed(WindowPeriod::Nanos(7 * DAY), WindowAlign::Utc), every(1, 604_800, monday)),
        (fixed(WindowPeriod::Nanos(14 * DAY), WindowAlign::Utc), every(1, 1_209_600, monday)),
        // A window that does not divide a day is cut at midnight.
        (fixed(WindowPeriod::Nanos(25_200 * SECOND), WindowAlign::Utc), WindowSchedule::Calendar),
        (fixed(WindowPeriod::Months(1), WindowAlign::Utc), WindowSchedule::Calendar),
        (fixed(WindowPeriod::Nanos(3_600 * SECOND), berlin), WindowSchedule::Calendar),
        (sliding(1), every(11, 6, 0)),
        (sliding(10), every(11, 6, 0)),
        (sliding(60), every(61, 1, 0)),
    ];
    for (like, turns) in table {
        let quota = ShareQuota::for_window(like.clone(), 0, Fallback::Share).unwrap();
        assert_eq!(quota.window().map(BudgetWindow::turns), Some(turns), "{like:?}");
        assert_eq!((quota.window_length(), quota.bucket().burst()), (like.window(), like.limit()));
    }
}

#[test]
fn known_level_of_window_falls_with_demand() {
    let quota = windows_of(100, 0).with_remote_checks(RemoteCheckWait::OnMiss);
    let share = synced(&quota, ShareReply { demand: 8_000, ..settled(0, 0, 60 * MICRO, at(0)) });
    assert_eq!([0, 1_500].map(|millis| share.level(&quota, at(millis)).remaining), [60, 48]);
}

#[test]
fn reports_edges_of_window() {
    let minute = windows_of(7, 0);
    let sliding = sliding_of_seven();
    let now = Now { at: at(60_000), utc_offset_nanos: 1_500_000_000 };
    // Units leave a sliding window every six seconds.
    for (quota, micros) in [(&minute, 58_500_000), (&sliding, 4_500_000)] {
        assert_eq!(quota.window().unwrap().until_edge(now), Micros(micros));
    }
    let seconds = |(start, end, next): (u64, u64, u64)| [start, end, next].map(|edge| edge / 1_000_000);
    let edges = |micros| seconds(minute.window().unwrap().edges(micros));
    // An instant up to five seconds after an edge may be imprecise.
    assert_eq!([edges(64_999_999), edges(65_000_000)], [[0, 60, 120], [60, 120, 180]]);
}

#[test]
fn level_of_window_refills_at_next_increase() {
    // A rate that no scale holds exactly: the bucket of this budget fills a little after its window ends.
    let fixed = windows_of(7, 0).with_remote_checks(RemoteCheckWait::OnMiss);
    let sliding = joined(sliding_of_seven(), 10).0.with_remote_checks(RemoteCheckWait::OnMiss);
    let more = |millis| Some(NextIncrease { at: at(millis), is_exhausted: false });
    // Level in Redis beside one borrowed token, which expires; the next increase; now; remaining and reset.
    let table = [
        (&fixed, 3, more(5_000), 1_000, 4, 4_000_000),
        (&fixed, 3, None, 1_000, 4, 60_000_000),
        (&fixed, 6, more(5_000), 1_000, 7, 0),
        (&fixed, 3, more(5_000), 4_999, 3, 1_000),
        (&fixed, 3, more(5_000), 5_000, 7, 0),
        (&sliding, 3, more(5_000), 4_999, 3, 1_000),
        (&sliding, 3, more(5_000), 5_000, 3, 60_000_000),
        (&sliding, 0, more(5_000), 5_000, 1, 60_000_000),
    ];
    for (quota, level, more, millis, remaining, reset) in table {
        let share = synced(quota, ShareReply { next_increase: more, ..settled(1, 0, level * MICRO, at(0)) });
        let expected = QuotaLevel { limit: 7, window: Micros(60_000_000), remaining, reset: Micros(reset) };
        assert_eq!(share.level(quota, at(millis)), expected, "{level} at {millis} ms");
    }
}

#[test]
fn requests_sync_while_others_hold_window_tokens() {
    let quota = of_windows(0);
    let more = Some(NextIncrease { at: at(5_000), is_exhausted: false });
    let mut share = synced(&quota, ShareReply { next_increase: more, ..settled(0, 0, 0, at(0)) });
    // The tokens are there by then at the latest.
    assert_eq!(share.judge(&quota, at(1_000), 1), Outcome::Later(Micros(4_000_000)));
    assert!(!ask(&mut share, &quota, at(1_000), 1));
    assert!(share.take_sync_due(), "others may give some back before");
}
