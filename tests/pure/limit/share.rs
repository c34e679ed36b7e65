//! A host's share: equal to its bucket while alone, never above its grants, within its credit, and charged
//! once for its admissions during an outage.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use tidegate::clock::{Micros, Now, Timestamp};
use tidegate::limit::fixed_window::{self, WindowAlign, WindowPeriod};
use tidegate::limit::share::{
    BudgetWindow, Fallback, FleetStatus, KeyCheckReply, NextIncrease, RemoteCheckWait, ShareQuota,
    ShareReply, ShareState, WindowSchedule,
};
use tidegate::limit::token_bucket::{self, GcraState};
use tidegate::limit::{self, Outcome, QuotaLevel, Rate, sliding_window};

use super::SECOND;

pub(super) const MICRO: i64 = 1_000_000;

pub(super) fn at(millis: u64) -> Timestamp {
    Timestamp::from_nanos(millis * 1_000_000)
}

pub(super) fn bucket(count: u32, burst: u32) -> token_bucket::TokenBucketQuota {
    token_bucket::TokenBucketQuota::new(Rate::new(count, SECOND).unwrap(), burst).unwrap()
}

/// A budget shared by `hosts` hosts, with Redis reachable.
pub(super) fn shared(
    count: u32,
    burst: u32,
    credit: u16,
    hosts: u32,
    when_down: Fallback,
) -> (ShareQuota, Arc<FleetStatus>) {
    joined(ShareQuota::new(bucket(count, burst), credit, when_down), hosts)
}

/// The budget on one of this number of hosts, with Redis reachable.
pub(super) fn joined(quota: ShareQuota, hosts: u32) -> (ShareQuota, Arc<FleetStatus>) {
    let fleet_status = Arc::new(FleetStatus::default());
    fleet_status.set_redis_reachable(true);
    fleet_status.set_hosts(hosts);
    quota.join(&fleet_status, 7);
    (quota, fleet_status)
}

pub(super) fn settled(granted: u32, paid: u32, level: i64, sent: Timestamp) -> ShareReply {
    ShareReply { paid, granted, level, demand: 0, sent_at: sent, low_mark: 0, next_increase: None }
}

/// A share whose first report got this reply at once.
fn synced(quota: &ShareQuota, reply: ShareReply) -> ShareState {
    let mut share = ShareState::fresh(quota, at(0));
    share.report(quota, at(0), 0);
    share.apply_reply(quota, &reply, at(0));
    share
}

/// The reply to a remote check.
fn reply(granted: u32, sent: Timestamp) -> KeyCheckReply {
    let level = 50 * MICRO;
    KeyCheckReply { granted, level, refused: None, sent_at: sent, next_increase: None, paid_us: 0 }
}

/// The refusal of a remote check.
fn refusal(cost: u32, wait: Micros) -> KeyCheckReply {
    KeyCheckReply { level: 0, refused: Some((cost, Some(wait))), ..reply(0, at(0)) }
}

/// Checks, and charges if allowed.
pub(super) fn ask(share: &mut ShareState, quota: &ShareQuota, now: Timestamp, cost: u32) -> bool {
    let passes = share.judge(quota, now, cost).is_allowed();
    if passes {
        share.charge(quota, now, cost);
    } else {
        share.record_refusal(quota, now, cost);
    }
    passes
}

/// The number of requests allowed at one time, one by one.
fn drain(share: &mut ShareState, quota: &ShareQuota, now: Timestamp) -> u32 {
    (0..10_000).take_while(|_| ask(share, quota, now, 1)).count().try_into().unwrap()
}

#[test]
fn granted_tokens_pass_and_expire() {
    let (quota, _) = shared(100, 100, 0, 10, Fallback::Share);
    let mut share = ShareState::fresh(&quota, at(0));
    assert!(!ask(&mut share, &quota, at(0), 1), "nothing is in hand and nothing may be owed");
    assert!(share.take_sync_due(), "somebody is to be told");
    assert!(!share.take_sync_due(), "once");
    assert_eq!(share.report(&quota, at(0), 0).0.requested, 1);
    share.apply_reply(&quota, &settled(5, 0, 90 * MICRO, at(0)), at(1));
    assert!(ask(&mut share, &quota, at(2), 3));
    assert!(!ask(&mut share, &quota, at(2), 3), "two are left");
    assert!(ask(&mut share, &quota, at(1_899), 1));
    assert!(!ask(&mut share, &quota, at(1_900), 1), "Redis may give the last one to another host soon");
    assert_eq!(share.report(&quota, at(1_900), 0).0.borrowed, 0);
}

#[test]
fn two_replies_grant_both_and_expire_with_older_report() {
    // The later request is answered first, or last.
    for order in [[0, 500], [500, 0]] {
        let (quota, _) = shared(100, 100, 0, 10, Fallback::Share);
        let mut share = ShareState::fresh(&quota, at(0));
        share.report(&quota, at(0), 0);
        share.report(&quota, at(500), 0);
        share.apply_reply(&quota, &settled(5, 0, 50 * MICRO, at(order[0])), at(900));
        share.apply_reply(&quota, &settled(3, 0, 50 * MICRO, at(0)), at(901));
        assert_eq!(share.peek_report(at(1_899)).borrowed, 8, "{order:?}");
        assert_eq!(
            share.peek_report(at(1_900)).borrowed,
            0,
            "{order:?}: Redis may have forgotten what was said first"
        );
    }
}

#[test]
fn budget_keeps_its_number() {
    let (quota, fleet_status) = shared(100, 100, 0, 10, Fallback::Share);
    quota.join(&fleet_status, 8);
    assert_eq!(quota.budget(), Some(7));
    assert_eq!(ShareQuota::new(bucket(100, 100), 0, Fallback::Share).budget(), None);
}

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
        assert_eq!(
            (quota.window_length(), quota.bucket().burst()),
            (like.window(), like.limit()),
            "{like:?}"
        );
    }
}

#[test]
fn known_level_rises_with_rate_and_falls_with_demand() {
    // 10/s and a burst of 100. Demand of all hosts in milliunits per second; milliseconds since a reply with
    // a level of 60, beside one borrowed token, which expires after 1.9 s; remaining units.
    let table = [
        (0, 0, 61),
        (0, 1_500, 76),
        (8_000, 1_500, 64),
        (20_000, 1_500, 46),
        (0, 3_900, 99),
        (0, 60_000, 100),
        (12_000, 4_000, 52),
        (12_000, 6_000, 72), // demand counts for four seconds
    ];
    for (demand, millis, remaining) in table {
        let (quota, _) = shared(10, 100, 0, 10, Fallback::Share);
        let quota = quota.with_remote_checks(RemoteCheckWait::OnMiss);
        let share = synced(&quota, ShareReply { demand, ..settled(1, 0, 60 * MICRO, at(0)) });
        assert_eq!(share.level(&quota, at(millis)).remaining, remaining, "{demand}, {millis} ms");
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

#[test]
fn keeps_granted_tokens_until_pending_request_is_decided() {
    let (quota, _) = shared(100, 100, 0, 10, Fallback::Local);
    let quota = quota.with_remote_checks(RemoteCheckWait::Always);
    let mut share = ShareState::fresh(&quota, at(0));
    share.apply_remote_reply(&quota, at(1), &reply(3, at(0)));
    assert_eq!(share.apply_timeout(&quota, at(1), 2), 2);
    let give_back = |share: &mut ShareState, tokens: u32| share.report(&quota, at(2), tokens).1;
    assert_eq!(give_back(&mut share, 5), 0, "three are of one who waits, two of another");
    assert!(ask(&mut share, &quota, at(2), 1));
    share.refund_unspent(at(2), 3);
    assert_eq!(give_back(&mut share, 0), 2, "two of three were of no use");
    assert_eq!(give_back(&mut share, 5), 0);
    share.release_reservation(2);
    assert_eq!(give_back(&mut share, 5), 2);
}

#[test]
fn requests_wait_for_remote_checks_as_configured() {
    use RemoteCheckWait::{Always, BelowUnitCredit, Never, OnMiss};
    // RemoteCheckWait, hosts; whether a request waits, whether tokens are borrowed ahead. The credit is 1
    // unit.
    let table = [
        (Never, 1, false, true),
        (Never, 6, false, true),
        (BelowUnitCredit, 1, false, true),
        (BelowUnitCredit, 2, true, true),
        (BelowUnitCredit, 5, true, true),
        (BelowUnitCredit, 6, true, false),
        (OnMiss, 1, true, true),
        (OnMiss, 5, true, true),
        (OnMiss, 6, true, false),
        (Always, 1, true, false),
    ];
    for (asks, hosts, waits, borrows) in table {
        let (quota, _) = shared(10, 10, 100, hosts, Fallback::Share);
        let patience = Duration::from_millis(20);
        let quota = quota.with_remote_checks(asks).with_wait_max(patience);
        let share = ShareState::fresh(&quota, at(0));
        assert_eq!(share.missing_tokens(&quota, at(0), 3), waits.then_some(3), "{asks:?}, {hosts} hosts");
        assert_eq!(
            (quota.checks_remotely_now(), quota.borrows(hosts)),
            (waits, borrows),
            "{asks:?}, {hosts} hosts"
        );
        assert_eq!((quota.has_remote_checks(), quota.patience()), (asks != Never, patience));
    }
}

#[test]
fn uses_fallback_in_outage_and_while_checks_time_out() {
    let table =
        [(Fallback::Share, 25), (Fallback::Local, 100), (Fallback::Allow, 10_000), (Fallback::Refuse, 0)];
    for (when_down, admitted) in table {
        for is_reachable in [false, true] {
            let (quota, fleet_status) = shared(100, 100, 100, 4, when_down);
            let quota = quota.with_remote_checks(RemoteCheckWait::OnMiss);
            fleet_status.set_redis_reachable(is_reachable);
            fleet_status.set_answers_in_time(false);
            let mut share = ShareState::fresh(&quota, at(0));
            assert_eq!(
                drain(&mut share, &quota, at(0)),
                admitted,
                "{when_down:?}, reachable: {is_reachable}"
            );
            if is_reachable {
                assert_eq!(share.peek_report(at(0)).debt, admitted, "{when_down:?} is owed");
            }
        }
    }
}

#[test]
fn refunds_grant_of_abandoned_request() {
    let (quota, _) = shared(100, 100, 0, 10, Fallback::Share);
    let quota = quota.with_remote_checks(RemoteCheckWait::Always);
    let mut share = ShareState::fresh(&quota, at(0));
    share.refund_remote_reply(&quota, at(1), &reply(3, at(0)));
    assert!(!ask(&mut share, &quota, at(1), 1), "the tokens belong to Redis");
    assert!(share.take_sync_due());
    let (reported, returned) = share.report(&quota, at(2), 0);
    assert_eq!((reported.borrowed, reported.refund, returned), (0, 3, 3));
}

#[test]
fn grant_joins_borrowed_tokens_unless_they_are_about_to_expire() {
    let (quota, _) = shared(100, 100, 0, 10, Fallback::Share);
    let quota = quota.with_remote_checks(RemoteCheckWait::Always);
    // Tokens spent of two that expire at 1.9 s; the time of a grant of two more; all tokens then, and their expiry.
    let table = [(2, 1_000, 2, 2_900), (1, 1_000, 3, 1_900), (1, 1_800, 3, 1_900), (1, 1_801, 2, 3_701)];
    for (spent, millis, held, expires) in table {
        let mut share = ShareState::fresh(&quota, at(0));
        share.apply_remote_reply(&quota, at(0), &reply(2, at(0)));
        assert!(ask(&mut share, &quota, at(1), spent));
        share.apply_remote_reply(&quota, at(millis), &reply(2, at(millis)));
        let left = [millis, expires - 1, expires].map(|millis| share.peek_report(at(millis)).borrowed);
        assert_eq!(left, [held, held, 0], "{spent} spent, a grant at {millis} ms");
    }
}

#[test]
fn refund_of_uncharged_request_returns_nothing_to_redis() {
    for (credit, is_reachable, refunded) in [(500, true, 0), (0, true, 1), (0, false, 0)] {
        let (quota, fleet_status) = shared(100, 100, credit, 10, Fallback::Share);
        let mut share = ShareState::fresh(&quota, at(0));
        fleet_status.set_redis_reachable(is_reachable);
        if credit > 0 || !is_reachable {
            assert!(ask(&mut share, &quota, at(1), 1), "on credit, or by the fallback");
        }
        share.refund(&quota, at(2), 1);
        assert_eq!(share.peek_report(at(2)).refund, refunded, "credit {credit}, reachable: {is_reachable}");
    }
}

/// Other hosts may return tokens before the time that Redis named.
#[test]
fn refused_key_is_checked_again_after_a_hold() {
    let ten_an_hour =
        token_bucket::TokenBucketQuota::new(Rate::new(10, 3_600 * SECOND).unwrap(), 10).unwrap();
    let (quota, _) = joined(ShareQuota::new(ten_an_hour, 0, Fallback::Share), 2);
    let quota = quota.with_remote_checks(RemoteCheckWait::OnMiss);
    let hour = Micros(3_600_000_000);
    let mut share = ShareState::fresh(&quota, at(0));
    share.apply_remote_reply(&quota, at(1), &refusal(5, hour));
    share.report(&quota, at(1), 0);
    for (millis, cost, passes_elsewhere, missing) in
        [(2, 5, false, None), (2, 4, false, Some(4)), (1_900, 5, false, None), (1_902, 5, true, Some(5))]
    {
        let says = (
            share.may_pass_elsewhere(&quota, at(millis), cost),
            share.missing_tokens(&quota, at(millis), cost),
        );
        assert_eq!(says, (passes_elsewhere, missing), "cost {cost} after {millis} ms");
    }
    let mut told = share;
    for (level, missing) in [(4 * MICRO, None), (5 * MICRO, Some(5))] {
        told.apply_reply(&quota, &settled(0, 0, level, at(1)), at(500));
        assert_eq!(told.missing_tokens(&quota, at(501), 5), missing, "level {level}");
    }
    // Without a reply it stays refused, by its time.
    assert_eq!(share.apply_timeout(&quota, at(2_001), 5), 0);
    assert_eq!(share.judge(&quota, at(2_001), 5), Outcome::Later(Micros(hour.0 - 2_000_000)));
}

#[test]
fn absurd_waits_refuse_a_key_for_one_window_at_most() {
    let (quota, _) = shared(100, 200, 0, 10, Fallback::Local);
    let quota = quota.with_remote_checks(RemoteCheckWait::Always);
    for wait in [Micros(1 << 53), Micros(u64::MAX)] {
        let mut share = ShareState::fresh(&quota, at(0));
        share.apply_remote_reply(&quota, at(1), &refusal(1, wait));
        assert_eq!(share.judge(&quota, at(1), 1), Outcome::Later(Micros(2_000_000)), "{wait:?}");
    }
}

#[test]
fn reports_expired_tokens_once() {
    let (quota, _) = shared(100, 100, 0, 10, Fallback::Share);
    let lent = || {
        let mut share = ShareState::fresh(&quota, at(0));
        share.report(&quota, at(0), 0);
        assert_eq!(share.apply_reply(&quota, &settled(5, 0, 0, at(0)), at(1)), 0);
        assert!(ask(&mut share, &quota, at(2), 2));
        share
    };
    let mut share = lent();
    assert!(!ask(&mut share, &quota, at(1_900), 1));
    assert_eq!(share.peek_report(at(1_900)).expired, 3);
    share.charge_debt(&quota, at(1_901), 1, 1);
    let (reported, _) = share.report(&quota, at(2_000), 0);
    assert_eq!((reported.borrowed, reported.debt, reported.expired), (0, 1, 3));
    assert_eq!(share.apply_reply(&quota, &settled(0, 1, 0, at(2_000)), at(2_001)), 0);

    // Tokens borrowed at the report that expired before the reply.
    let mut share = lent();
    assert_eq!(share.report(&quota, at(1_800), 0).0.expired, 0);
    assert_eq!(share.apply_reply(&quota, &settled(4, 0, 0, at(1_800)), at(1_900)), 3);
    assert_eq!(drain(&mut share, &quota, at(1_900)), 4);

    // Tokens that arrived after their expiry.
    let mut share = lent();
    share.report(&quota, at(1_800), 0);
    assert_eq!(share.apply_reply(&quota, &settled(4, 0, 0, at(1_800)), at(3_700)), 7);
    assert_eq!(share.report(&quota, at(3_800), 0).0.expired, 0);
}

#[test]
fn never_charges_refusal_after_clock_reading() {
    let (quota, _) = shared(100, 100, 0, 10, Fallback::Share);
    let mut share = ShareState::fresh(&quota, at(3));
    assert!(!ask(&mut share, &quota, at(3), 1));
    let (reported, _) = share.report(&quota, at(2), 0);
    assert_eq!((reported.debt, reported.requested), (0, 1));
}

#[test]
fn credit_is_part_of_burst_and_charged_when_reported() {
    // A tenth of 1 000 over 10 hosts: ten for each.
    let (quota, _) = shared(1_000, 1_000, 100, 10, Fallback::Share);
    let mut share = ShareState::fresh(&quota, at(0));
    assert_eq!(drain(&mut share, &quota, at(0)), 10);
    let (reported, _) = share.report(&quota, at(0), 0);
    assert_eq!((reported.debt, reported.requested, reported.missing_max), (10, 11, 1));
    assert_eq!(drain(&mut share, &quota, at(5_000)), 0, "nothing is forgiven that will be charged");
    share.apply_reply(&quota, &settled(0, 10, 0, at(5_000)), at(5_001));
    assert_eq!(drain(&mut share, &quota, at(5_001)), 10);
}

#[test]
fn debt_above_half_the_credit_requests_sync() {
    // A tenth of 1 000 over 10 hosts: ten for each.
    let (quota, _) = shared(1_000, 1_000, 100, 10, Fallback::Share);
    let mut share = synced(&quota, settled(0, 0, 0, at(0)));
    let requests_sync = (0..7).map(|_| ask(&mut share, &quota, at(1), 1) && share.take_sync_due());
    assert_eq!(requests_sync.collect::<Vec<_>>(), [false, false, false, false, false, true, false]);
}

#[test]
fn unreported_debt_refills_at_share_of_rate() {
    // A tenth of 1 000/s over 10 hosts: ten a second.
    let (quota, _) = shared(1_000, 1_000, 100, 10, Fallback::Share);
    let mut share = ShareState::fresh(&quota, at(0));
    assert!((0..4).all(|_| ask(&mut share, &quota, at(0), 1)));
    assert!(!share.take_sync_due(), "less than half: nobody need know");
    assert!((0..300).all(|step| ask(&mut share, &quota, at(step * 101), 1)));
    assert!(!share.take_sync_due());
    assert!(!share.is_tracked());
}

#[test]
fn host_share_below_one_token_may_owe_one() {
    let (quota, _) = shared(10, 10, 100, 100, Fallback::Share);
    let mut share = ShareState::fresh(&quota, at(0));
    assert_eq!(drain(&mut share, &quota, at(0)), 1);
    assert_eq!(share.report(&quota, at(0), 0).0.debt, 1);
    share.apply_reply(&quota, &settled(0, 1, 0, at(0)), at(1));
    assert_eq!(drain(&mut share, &quota, at(1)), 0, "Redis has nothing to spare");
    share.report(&quota, at(50), 0);
    share.apply_reply(&quota, &settled(0, 0, 9 * MICRO, at(50)), at(51));
    assert_eq!(drain(&mut share, &quota, at(51)), 1);
}

#[test]
fn whole_unit_credit_is_zero_below_one_unit() {
    for (hosts, by_default, in_whole_units) in [(1, 1, 1), (2, 1, 0)] {
        let (quota, _) = shared(10, 10, 100, hosts, Fallback::Share);
        let passes = |quota: &ShareQuota| drain(&mut ShareState::fresh(quota, at(0)), quota, at(0));
        assert_eq!(
            (passes(&quota), passes(&quota.clone().with_whole_unit_credit())),
            (by_default, in_whole_units)
        );
    }
}

#[test]
fn charged_credit_passes_again_while_redis_has_tokens() {
    // A tenth of 100 over 8 hosts is one token, which is forgiven after three quarters of an hour.
    let hour = Rate::new(100, 3_600 * SECOND).unwrap();
    let hourly = token_bucket::TokenBucketQuota::new(hour, 100).unwrap();
    let (quota, _) = joined(ShareQuota::new(hourly, 100, Fallback::Share), 8);
    let mut share = ShareState::fresh(&quota, at(0));
    for visit in 0..5 {
        let now = at(visit * 60_000);
        assert!(ask(&mut share, &quota, now, 1), "Redis had 90 a minute ago");
        assert!(!share.judge(&quota, now, 1).is_allowed(), "one at a time");
        assert_eq!(share.report(&quota, now, 0).0.debt, 1, "visit {visit}");
        share.apply_reply(&quota, &settled(0, 1, 90 * MICRO, now), now);
        assert!(share.stop_tracking(at(visit * 60_000 + 10_000)));
    }
    share.report(&quota, at(300_000), 0);
    share.apply_reply(&quota, &settled(0, 0, 5 * MICRO, at(300_000)), at(300_000));
    assert!(
        !ask(&mut share, &quota, at(300_001), 1),
        "Redis has little left: it is kept for those who were granted it"
    );
}

#[test]
fn reports_single_owed_token_at_once() {
    let (quota, _) = shared(10, 10, 100, 8, Fallback::Share);
    let mut share = ShareState::fresh(&quota, at(0));
    assert!(ask(&mut share, &quota, at(0), 1));
    assert!(share.take_sync_due(), "the next one is to pass");
    assert_eq!(share.report(&quota, at(5), 0).0.debt, 1);
    share.apply_reply(&quota, &settled(0, 1, 9 * MICRO, at(5)), at(6));
    assert!(ask(&mut share, &quota, at(7), 1));
}

#[test]
fn outage_share_becomes_debt_after_outage() {
    let (quota, fleet_status) = shared(100, 100, 100, 4, Fallback::Share);
    let mut share = ShareState::fresh(&quota, at(0));
    fleet_status.set_redis_reachable(false);
    assert_eq!(drain(&mut share, &quota, at(0)), 25);
    assert_eq!(drain(&mut share, &quota, at(1_000)), 25, "a quarter of 100/s");
    fleet_status.set_redis_reachable(true);
    assert_eq!(drain(&mut share, &quota, at(1_400)), 0, "15 are owed: more than credit allows");
    assert_eq!(share.report(&quota, at(1_400), 0).0.debt, 15);
}

#[test]
fn outage_share_starts_from_last_known_level() {
    let (quota, fleet_status) = shared(100, 100, 100, 4, Fallback::Share);
    let mut share = synced(&quota, settled(3, 0, 40 * MICRO, at(0)));
    fleet_status.set_redis_reachable(false);
    assert_eq!(drain(&mut share, &quota, at(0)), 3 + 10, "what is in hand first, then a quarter of 40");
}

/// Ten a day, with `left` remaining in Redis, on one of two hosts.
fn daily(left: i64) -> (ShareQuota, Arc<FleetStatus>, ShareState) {
    let day = token_bucket::TokenBucketQuota::new(Rate::new(10, 86_400 * SECOND).unwrap(), 10).unwrap();
    let (quota, fleet_status) = joined(ShareQuota::new(day, 0, Fallback::Share), 2);
    let share = synced(&quota, settled(0, 0, left * MICRO, at(0)));
    (quota, fleet_status, share)
}

#[test]
fn debt_after_outage_excludes_earlier_charges() {
    let (quota, fleet_status, mut share) = daily(4);
    fleet_status.set_redis_reachable(false);
    assert_eq!(drain(&mut share, &quota, at(1_000)), 2, "half of what was left");
    fleet_status.set_redis_reachable(true);
    assert_eq!(share.report(&quota, at(2_000), 0).0.debt, 2);
    share.apply_reply(&quota, &settled(0, 2, 2 * MICRO, at(2_000)), at(2_000));

    fleet_status.set_redis_reachable(false);
    assert!(!share.take_sync_due());
    fleet_status.set_redis_reachable(true);
    assert_eq!(share.report(&quota, at(4_000), 0).0.debt, 0, "nothing was admitted");
}

#[test]
fn late_reply_settles_debt_once() {
    let (quota, fleet_status, mut share) = daily(8);
    share.charge_debt(&quota, at(0), 3, 10);
    assert_eq!(share.report(&quota, at(0), 0).0.debt, 3);
    fleet_status.set_redis_reachable(false);
    assert_eq!(drain(&mut share, &quota, at(1_000)), 1, "half of eight, less the three that it owes");
    // Redis had applied the report, and its reply ends the outage.
    share.apply_reply(&quota, &settled(0, 3, 5 * MICRO, at(0)), at(2_000));
    fleet_status.set_redis_reachable(true);
    assert_eq!(share.report(&quota, at(2_000), 0).0.debt, 1);
}

#[test]
fn outage_refill_is_no_debt() {
    let (quota, fleet_status) = shared(100, 100, 0, 4, Fallback::Share);
    let mut share = synced(&quota, settled(0, 0, 0, at(0)));
    fleet_status.set_redis_reachable(false);
    let admitted: u32 = (1..=40).map(|turn| drain(&mut share, &quota, at(turn * 100))).sum();
    assert_eq!(admitted, 100, "a quarter of 100/s for four seconds");
    fleet_status.set_redis_reachable(true);
    // Redis has refilled meanwhile, to at most a burst; without this quarter's admissions it would be empty.
    assert_eq!(share.report(&quota, at(4_000), 0).0.debt, 25);
}

#[test]
fn second_outage_continues_from_the_first() {
    let (quota, fleet_status, mut share) = daily(8);
    let admitted: Vec<u32> = (1..=3)
        .map(|turn| {
            fleet_status.set_redis_reachable(false);
            let admitted = drain(&mut share, &quota, at(turn * 1_000));
            fleet_status.set_redis_reachable(true);
            assert_eq!(drain(&mut share, &quota, at(turn * 1_000 + 500)), 0, "nothing was answered");
            admitted
        })
        .collect();
    assert_eq!(admitted, [4, 0, 0]);
    assert_eq!(share.report(&quota, at(5_000), 0).0.debt, 4);
}

#[test]
fn retry_after_is_next_reply_unless_budget_is_spent() {
    let (quota, fleet_status, share) = daily(4);
    let fresh = ShareState::fresh(&quota, at(0));
    let wait = |share: &ShareState| share.judge(&quota, at(0), 1);
    assert_eq!(wait(&fresh), Outcome::Later(Micros(100_000)), "nothing is known of it");
    assert_eq!(wait(&share), Outcome::Later(Micros(100_000)), "there are four");
    let (_, _, empty) = daily(0);
    assert_eq!(wait(&empty), Outcome::Later(Micros(8_640_000_000)), "a tenth of a day");
    drop(fleet_status);
}

#[test]
fn bounds_wait_by_window_for_any_reply() {
    let (quota, _) = shared(10, 100, 0, 4, Fallback::Share);
    let share = synced(&quota, settled(0, 0, i64::MIN / 4, at(0)));
    let Outcome::Later(wait) = share.judge(&quota, at(1), 1) else { panic!("it is refused") };
    assert_eq!(wait, quota.bucket().window());
    assert_eq!(share.judge(&quota, at(1), 101), Outcome::Never);
}

proptest! {
    /// Before it joins a fleet it equals its bucket, request by request.
    #[test]
    fn unshared_budget_equals_its_bucket(
        rate in 1u32..2_000, burst in 1u32..50, credit in 0u16..1_000,
        asked in prop::collection::vec((0u64..400, 0u32..60), 1..80),
    ) {
        let quota = ShareQuota::new(bucket(rate, burst), credit, Fallback::Share);
        let mut share = ShareState::fresh(&quota, at(0));
        let mut plain = GcraState::full(quota.bucket().scale(), at(0));
        let mut now = 0;
        for (gap, cost) in asked {
            now += gap;
            let (outcome, charged) = plain.judge(quota.bucket(), at(now), cost);
            prop_assert_eq!(share.judge(&quota, at(now), cost), outcome);
            prop_assert_eq!(share.level(&quota, at(now)), plain.level(quota.bucket(), at(now)));
            if outcome.is_allowed() {
                plain = charged;
                share.charge(&quota, at(now), cost);
            }
        }
    }

    /// Under any grants, reports, refunds and losses, admissions are covered by grants, or by debt within the
    /// credit of this host.
    #[test]
    fn admissions_are_granted_or_owed(
        burst in 1u32..400, credit in 0u16..300, hosts in 1u32..20,
        steps in prop::collection::vec((0u64..700, 1u32..6, 0u32..12, any::<bool>(), -50i64..400), 1..120),
    ) {
        let (quota, _) = shared(100, burst, credit, hosts, Fallback::Share);
        let most = (u64::from(burst) * u64::from(credit) / (1_000 * u64::from(hosts))).max(u64::from(credit > 0));
        let mut share = ShareState::fresh(&quota, at(0));
        let (mut now, mut granted, mut paid, mut admitted) = (0, 0u64, 0u64, 0u64);
        // Only unreported credit is forgiven, so a report comes first.
        share.report(&quota, at(0), 0);
        for (gap, cost, grant, syncs, level) in steps {
            now += gap;
            if ask(&mut share, &quota, at(now), cost) {
                admitted += u64::from(cost);
            }
            if syncs {
                let (reported, back) = share.report(&quota, at(now), 1);
                prop_assert!(u64::from(reported.debt) <= most, "{} owed, {most} may be", reported.debt);
                granted -= u64::from(back);
                share.apply_reply(&quota, &settled(grant, reported.debt, level * MICRO, at(now)), at(now));
                granted += u64::from(grant);
                paid += u64::from(reported.debt);
            }
            let owed = u64::from(share.peek_report(at(now)).debt);
            let held = u64::from(share.peek_report(at(now)).borrowed);
            prop_assert!(admitted + held <= granted + paid + owed, "{admitted} + {held} of {granted} + {paid} + {owed}");
        }
    }

    /// One step judges and charges as two do, after any events but remote checks; and a level has something left if the
    /// next request would pass.
    #[test]
    fn admit_equals_judge_and_charge(
        count in 1u32..200, burst in 1u32..400, credit in prop::sample::select(vec![0u16, 7, 100, 333, 1_000]),
        steps in prop::collection::vec((0u8..12, 0u64..400, 0u32..6, 0u32..12, -50i64..400), 1..150),
    ) {
        let (quota, fleet_status) = shared(count, burst, credit, 3, Fallback::Share);
        let mut one = ShareState::fresh(&quota, at(0));
        let mut two = one;
        let mut now = 0;
        for (what, gap, cost, number, level) in steps {
            now += gap;
            let now = at(now);
            let both = |one: &mut ShareState, two: &mut ShareState, change: &dyn Fn(&mut ShareState)| {
                change(one);
                change(two);
            };
            match what {
                0 => {
                    let answer = |share: &mut ShareState| {
                        let owed = share.report(&quota, now, number).0.debt;
                        let told = ShareReply { demand: 1_000 * u64::from(number), low_mark: cost, ..settled(number, owed, level * MICRO, now) };
                        share.apply_reply(&quota, &told, now);
                    };
                    both(&mut one, &mut two, &answer);
                }
                1 => both(&mut one, &mut two, &|share| _ = share.stop_tracking(now)),
                2 => fleet_status.set_hosts(number),
                3 => _ = fleet_status.set_redis_reachable(number > 2),
                4 => both(&mut one, &mut two, &|share| _ = share.take_sync_due()),
                _ => {
                    let outcome = two.judge(&quota, now, cost);
                    prop_assert_eq!(one.admit(&quota, now, cost), outcome);
                    if outcome.is_allowed() {
                        two.charge(&quota, now, cost);
                    } else {
                        both(&mut one, &mut two, &|share| share.record_refusal(&quota, now, cost));
                    }
                }
            }
            prop_assert_eq!(one, two);
            prop_assert_eq!(one.level(&quota, now).remaining > 0, one.judge(&quota, now, 1).is_allowed());
        }
    }

    /// In an outage all hosts together admit at most the budget, and one token each.
    #[test]
    fn hosts_in_outage_keep_budget_together(
        hosts in 1u32..30, burst in 1u32..100, rate in 1u32..200,
        asked in prop::collection::vec((0u64..300, 0usize..30), 1..400),
    ) {
        let (quota, fleet_status) = shared(rate, burst, 100, hosts, Fallback::Share);
        fleet_status.set_redis_reachable(false);
        let mut shares: Vec<_> = (0..hosts).map(|_| ShareState::fresh(&quota, at(0))).collect();
        let (mut now, mut admitted) = (0, 0u64);
        for (gap, host) in asked {
            now += gap;
            let share = &mut shares[host % hosts as usize];
            admitted += u64::from(ask(share, &quota, at(now), 1));
            let earned = u64::from(rate) * now / 1_000;
            prop_assert!(admitted <= u64::from(burst) + earned + u64::from(hosts));
        }
    }
}
