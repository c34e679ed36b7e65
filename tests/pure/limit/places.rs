//! The places that a host has of a limit on work that many hosts share.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use tidegate::clock::Timestamp;
use tidegate::limit::concurrency::ConcurrencyQuota;
use tidegate::limit::places::{PermitReply, PermitWait, Permits};
use tidegate::limit::share::{Fallback, FleetStatus};

const MAX: u32 = 10;

fn quota(when_down: Fallback) -> (ConcurrencyQuota, Arc<FleetStatus>) {
    let quota = ConcurrencyQuota::new(NonZeroU32::new(MAX).unwrap()).shared(when_down);
    let standing = Arc::new(FleetStatus::default());
    quota.join(&standing, 1);
    standing.set_redis_reachable(true);
    (quota, standing)
}

fn at(millis: u64) -> Timestamp {
    Timestamp::from_nanos(60_000_000_000 + millis * 1_000_000)
}

fn settled(hold: u32, granted: u32, free: i64, sent_millis: u64) -> PermitReply {
    let (refused_for, is_few) = (Duration::ZERO, false);
    PermitReply {
        hold,
        granted,
        free,
        sent_at: at(sent_millis),
        low_mark: 1,
        refused_for,
        return_idle: is_few,
    }
}

/// Somebody who has so many places, of which so many are in use.
fn holding(granted: u32, in_use: u32) -> Permits {
    let mut places = Permits::none_of(1);
    places.report(u32::MAX, 0, at(0));
    places.apply_reply(&settled(0, granted, 3, 0), in_use, at(1));
    places
}

#[test]
fn nothing_begins_without_a_place_and_none_outlives_its_hold() {
    let (quota, _) = quota(Fallback::Refuse);
    assert_eq!(quota.usable(None, at(0)), 0);
    let places = holding(4, 0);
    for (millis, usable) in [(1, 4), (1_899, 4), (1_900, 0), (60_000, 0)] {
        assert_eq!(quota.usable(Some(&places), at(millis)), usable, "{millis} ms after it was sent");
    }
    assert!(quota.judge(Some(&places), 3, at(1)).is_allowed());
    assert!(!quota.judge(Some(&places), 4, at(1)).is_allowed());
    assert!(!quota.judge(Some(&places), 0, at(1_900)).is_allowed());
}

#[test]
fn what_nobody_shares_is_a_limit_of_this_host() {
    let alone = ConcurrencyQuota::new(NonZeroU32::new(MAX).unwrap()).shared(Fallback::Refuse);
    assert_eq!(alone.usable(None, at(0)), MAX);
    let level = alone.level(None, 3, at(0));
    assert_eq!((level.limit, level.remaining), (10, 7));
}

#[test]
fn a_host_that_hears_nothing_goes_by_what_the_rule_says() {
    for (when_down, hosts, fresh, lapsed) in [
        (Fallback::Refuse, 3, 4, 0),
        (Fallback::Share, 3, 4, 3),
        (Fallback::Share, 2, 5, 5),
        (Fallback::Share, 10, 4, 1),
        (Fallback::Share, 11, 4, 1),
        (Fallback::Local, 3, 10, 10),
        (Fallback::Allow, 3, u32::MAX, u32::MAX),
    ] {
        let (quota, standing) = quota(when_down);
        standing.set_hosts(hosts);
        standing.set_redis_reachable(false);
        let places = holding(4, 0);
        let usable = [at(1), at(1_900)].map(|now| quota.usable(Some(&places), now));
        assert_eq!(usable, [fresh, lapsed], "{when_down:?}, {hosts} hosts");
    }
}

#[test]
fn what_is_given_back_is_not_used_while_the_report_is_on_its_way() {
    let (quota, _) = quota(Fallback::Refuse);
    let mut places = holding(6, 2);
    let reported = places.report(3, 2, at(10));
    assert_eq!((reported.permits, reported.permits_used()), (3, 3));
    assert_eq!(quota.usable(Some(&places), at(10)), 3);
    // Work that has no place any more is reported all the same.
    let reported = places.report(1, 2, at(10));
    assert_eq!((reported.permits, reported.permits_used()), (1, 2));
    assert_eq!(quota.usable(Some(&places), at(10)), 1);
}

#[test]
fn work_that_goes_on_has_its_places_again_only_where_all_of_it_fits() {
    let (quota, _) = quota(Fallback::Refuse);
    for (free, usable) in [(0, 5), (4, 5), (-1, 0)] {
        let mut places = holding(5, 5);
        let reported = places.report(u32::MAX, 5, at(5_000));
        assert_eq!(
            (reported.permits, reported.permits_used()),
            (0, 5),
            "it has lapsed, and the work goes on"
        );
        places.apply_reply(&settled(5, 0, free, 5_000), 5, at(5_001));
        assert_eq!(quota.usable(Some(&places), at(5_001)), usable, "{free} free");
    }
    // Who never let go keeps what it has, whoever else comes back with more than there is.
    let mut places = holding(5, 5);
    places.report(u32::MAX, 5, at(1_000));
    places.apply_reply(&settled(5, 0, -3, 1_000), 5, at(1_001));
    assert_eq!(quota.usable(Some(&places), at(2_899)), 5);
}

#[test]
fn an_answer_that_comes_too_late_brings_nothing() {
    let (quota, _) = quota(Fallback::Refuse);
    let mut places = holding(2, 0);
    places.report(u32::MAX, 0, at(100));
    places.apply_reply(&settled(2, 3, 1, 100), 0, at(2_000));
    assert_eq!(quota.usable(Some(&places), at(2_000)), 0);
}

#[test]
fn it_calls_once_when_too_few_are_idle_and_when_it_refuses() {
    let mut places = holding(3, 0);
    places.record_start(1, at(10));
    places.record_start(2, at(10));
    assert!(!places.take_sync_due(), "one is idle");
    places.record_start(3, at(10));
    assert_eq!([places.take_sync_due(), places.take_sync_due()], [true, false]);
    places.record_refusal(true, at(10));
    assert!(!places.take_sync_due(), "it has called");
    let reported = places.report(u32::MAX, 3, at(11));
    assert_eq!((reported.requested, reported.allowed, reported.peak), (4, 3, 3));
    places.apply_reply(&settled(3, 0, 0, 11), 3, at(12));
    assert!(!places.take_sync_due());
    places.record_refusal(true, at(12));
    assert!(places.take_sync_due());
    // Nobody has heard of it since: it calls again, and not each time.
    places.record_refusal(true, at(3_810));
    assert!(!places.take_sync_due());
    places.record_refusal(true, at(3_811));
    assert_eq!([places.take_sync_due(), places.take_sync_due()], [true, false]);
    places.record_refusal(true, at(5_710));
    assert!(!places.take_sync_due());
    assert_eq!(places.peek_report(1, at(12)).peak, 3, "the most since the last report");
}

#[test]
fn it_is_let_go_of_only_without_places_and_work() {
    let mut places = holding(2, 1);
    assert!(!places.stop_tracking(0, at(10)), "it has places");
    assert!(!places.stop_tracking(1, at(5_000)), "work goes on");
    assert!(places.is_tracked());
    let mut first = Permits::none_of(1);
    first.report(u32::MAX, 0, at(0));
    assert!(first.nanos_until_droppable(at(0)) > 0, "not before it is answered");
    assert!(places.stop_tracking(0, at(5_000)));
    assert!(!places.is_tracked());
    let left = Permits::from_previous_process(1, at(0));
    assert!(left.is_tracked() && left.nanos_until_droppable(at(1_000)) > 3_500_000_000_000);
    assert_eq!(
        [left.nanos_until_droppable(at(3_600_000)), Permits::none_of(1).nanos_until_droppable(at(0))],
        [0, 0]
    );
}

#[test]
fn left_behind_key_requests_another_sync_after_hold() {
    let mut places = Permits::from_previous_process(9, at(0));
    places.record_start(1, at(1_899));
    assert!(!places.take_sync_due(), "the restore has requested one");
    places.record_start(2, at(1_900));
    assert!(places.take_sync_due());
    assert_eq!(places.nanos_until_droppable(at(1_900)), 3_600_000_000_000);
}

#[test]
fn key_reports_to_its_budget() {
    let mut places = Permits::none_of(7);
    assert_eq!((places.budget(), Permits::from_previous_process(9, at(0)).budget()), (7, 9));
    places.set_budget(8);
    assert_eq!(places.budget(), 8);
    let alone = ConcurrencyQuota::new(NonZeroU32::new(MAX).unwrap()).shared(Fallback::Share);
    assert_eq!((quota(Fallback::Share).0.budget(), alone.budget()), (Some(1), None));
}

#[test]
fn work_waits_for_a_call_unless_redis_has_just_said_that_there_is_none() {
    let few = |hosts, asks| {
        let (quota, standing) = quota(Fallback::Refuse);
        let patience = Duration::from_millis(20);
        let quota = quota.with_remote_checks(asks).with_wait_max(patience);
        assert_eq!(quota.patience(), patience);
        standing.set_hosts(hosts);
        (quota, standing)
    };
    // Ten are four for each of two hosts, and not of three.
    for (hosts, asks, may) in
        [(2, PermitWait::OnMiss, true), (3, PermitWait::OnMiss, true), (3, PermitWait::Never, false)]
    {
        let (quota, standing) = few(hosts, asks);
        assert_eq!(quota.may_obtain(None, at(0)), may, "{hosts} hosts, {asks:?}");
        assert_eq!(quota.borrows_for_waiting_only(), may && hosts == 3, "{hosts} hosts, {asks:?}");
        standing.set_answers_in_time(false);
        assert!(
            !quota.may_obtain(None, at(0)) && !quota.borrows_for_waiting_only(),
            "nobody answers in time"
        );
    }
    let (quota, _) = few(3, PermitWait::OnMiss);
    let mut places = Permits::none_of(1);
    places.report(u32::MAX, 0, at(0));
    places.apply_reply(
        &PermitReply { refused_for: Duration::from_millis(25), ..settled(0, 0, 0, 0) },
        0,
        at(1),
    );
    let asked = [25, 26].map(|millis| quota.may_obtain(Some(&places), at(millis)));
    assert_eq!(asked, [false, true]);
    // Who only looks goes by what was said; once that is old nobody knows.
    let known = [25, 26, 1_899, 1_900].map(|millis| quota.may_pass_elsewhere(Some(&places), at(millis)));
    assert_eq!(known, [false, false, false, true]);
    assert_eq!([26, 1_900].map(|millis| quota.level(Some(&places), 0, at(millis)).remaining), [0, 10]);
    places.apply_reply(&settled(0, 0, 3, 100), 0, at(101));
    assert_eq!(quota.level(Some(&places), 0, at(102)).remaining, 3);
}

#[test]
fn while_redis_is_heard_nothing_begins_without_a_place_however_late_it_answers() {
    for (when_down, part) in
        [(Fallback::Refuse, 0), (Fallback::Share, 3), (Fallback::Local, 10), (Fallback::Allow, u32::MAX)]
    {
        let (quota, standing) = quota(when_down);
        let quota = quota.with_remote_checks(PermitWait::OnMiss);
        standing.set_hosts(3);
        assert_eq!(quota.usable(None, at(2)), 0);
        standing.set_answers_in_time(false);
        assert_eq!(quota.usable(None, at(2)), 0, "it is heard, if late: {when_down:?}");
        standing.set_redis_reachable(false);
        assert_eq!(quota.usable(None, at(2)), part, "{when_down:?}");
    }
}

#[test]
fn a_place_that_was_waited_for_is_kept_for_who_waited() {
    let (quota, _) = quota(Fallback::Refuse);
    let mut places = holding(2, 1);
    assert!(places.reserve(1, at(2)) && !places.reserve(1, at(2)), "one is idle");
    assert!(!quota.judge(Some(&places), 1, at(2)).is_allowed(), "it is kept");
    assert_eq!(places.peek_report(1, at(2)).leases_and_reserved(), 2);
    places.release_reservation(1, at(2));
    assert!(quota.judge(Some(&places), 1, at(2)).is_allowed());
}

#[test]
fn where_there_are_few_what_is_idle_calls_and_calls_again() {
    let few = PermitReply { return_idle: true, low_mark: 0, ..settled(0, 2, 3, 0) };
    let mut places = Permits::none_of(1);
    places.report(u32::MAX, 0, at(0));
    places.apply_reply(&few, 2, at(1));
    places.record_start(2, at(1));
    assert!(!places.take_sync_due(), "there is nothing to give back");
    places.record_end(1, at(2));
    assert_eq!([places.take_sync_due(), places.take_sync_due()], [true, false]);
    places.record_end(0, at(3));
    assert!(!places.take_sync_due(), "it has called");
    // Whoever came to look found it in use again.
    assert_eq!(places.report_for_sync(2, at(4)).leases_and_reserved(), 2);
    places.record_end(1, at(5));
    assert!(places.take_sync_due());
    // While the answer is on its way.
    places.report(1, 1, at(6));
    places.record_end(0, at(6));
    assert!(!places.take_sync_due());
    places.apply_reply(&PermitReply { hold: 1, granted: 0, ..few }, 0, at(7));
    assert!(places.take_sync_due());
    let mut enough = holding(2, 2);
    enough.record_end(1, at(2));
    assert!(!enough.take_sync_due(), "where there are enough nobody is in a hurry");
}
