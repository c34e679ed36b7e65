//! The places that a host has of a limit on work that many hosts share.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use tidegate::clock::Timestamp;
use tidegate::limit::places::{PermitQuota, PermitReply, PermitWait, Permits};
use tidegate::limit::share::{FleetStatus, WhenDown};

const MAX: u32 = 10;

fn quota(when_down: WhenDown) -> (PermitQuota, Arc<FleetStatus>) {
    let quota = PermitQuota::new(NonZeroU32::new(MAX).unwrap(), when_down);
    let standing = Arc::new(FleetStatus::default());
    quota.join(&standing, 1);
    standing.set_linked(true);
    (quota, standing)
}

fn at(millis: u64) -> Timestamp {
    Timestamp::from_nanos(60_000_000_000 + millis * 1_000_000)
}

fn settled(hold: u32, granted: u32, free: i64, sent_millis: u64) -> PermitReply {
    let (refused_for, is_few) = (Duration::ZERO, false);
    PermitReply { hold, granted, free, sent: at(sent_millis), low: 1, refused_for, is_few }
}

/// Somebody who has so many places, of which so many are in use.
fn holding(granted: u32, in_use: u32) -> Permits {
    let mut places = Permits::of(1);
    places.report(u32::MAX, 0, at(0));
    places.settle(&settled(0, granted, 3, 0), in_use, at(1));
    places
}

#[test]
fn nothing_begins_without_a_place_and_none_outlives_its_hold() {
    let (quota, _) = quota(WhenDown::Refuse);
    assert_eq!(quota.usable(None, at(0)), 0);
    let places = holding(4, 0);
    for (millis, usable) in [(1, 4), (1_899, 4), (1_900, 0), (60_000, 0)] {
        assert_eq!(quota.usable(Some(&places), at(millis)), usable, "{millis} ms after it was sent");
    }
    assert!(quota.judge(Some(&places), 3, at(1)).passes());
    assert!(!quota.judge(Some(&places), 4, at(1)).passes());
    assert!(!quota.judge(Some(&places), 0, at(1_900)).passes());
}

#[test]
fn what_nobody_shares_is_a_limit_of_this_host() {
    let alone = PermitQuota::new(NonZeroU32::new(MAX).unwrap(), WhenDown::Refuse);
    assert_eq!(alone.usable(None, at(0)), MAX);
    let level = alone.level(None, 3, at(0));
    assert_eq!((level.limit, level.remaining), (10, 7));
}

#[test]
fn a_host_that_hears_nothing_goes_by_what_the_rule_says() {
    for (when_down, hosts, fresh, lapsed) in [
        (WhenDown::Refuse, 3, 4, 0),
        (WhenDown::Share, 3, 4, 3),
        (WhenDown::Share, 2, 5, 5),
        (WhenDown::Share, 10, 4, 1),
        (WhenDown::Share, 11, 4, 1),
        (WhenDown::Local, 3, 10, 10),
        (WhenDown::Allow, 3, u32::MAX, u32::MAX),
    ] {
        let (quota, standing) = quota(when_down);
        standing.set_hosts(hosts);
        standing.set_linked(false);
        let places = holding(4, 0);
        let usable = [at(1), at(1_900)].map(|now| quota.usable(Some(&places), now));
        assert_eq!(usable, [fresh, lapsed], "{when_down:?}, {hosts} hosts");
    }
}

#[test]
fn what_is_given_back_is_not_used_while_the_report_is_on_its_way() {
    let (quota, _) = quota(WhenDown::Refuse);
    let mut places = holding(6, 2);
    let reported = places.report(3, 2, at(10));
    assert_eq!((reported.held, reported.hold()), (3, 3));
    assert_eq!(quota.usable(Some(&places), at(10)), 3);
    // Work that has no place any more is reported all the same.
    let reported = places.report(1, 2, at(10));
    assert_eq!((reported.held, reported.hold()), (1, 2));
    assert_eq!(quota.usable(Some(&places), at(10)), 1);
}

#[test]
fn work_that_goes_on_has_its_places_again_only_where_all_of_it_fits() {
    let (quota, _) = quota(WhenDown::Refuse);
    for (free, usable) in [(0, 5), (4, 5), (-1, 0)] {
        let mut places = holding(5, 5);
        let reported = places.report(u32::MAX, 5, at(5_000));
        assert_eq!((reported.held, reported.hold()), (0, 5), "it has lapsed, and the work goes on");
        places.settle(&settled(5, 0, free, 5_000), 5, at(5_001));
        assert_eq!(quota.usable(Some(&places), at(5_001)), usable, "{free} free");
    }
    // Who never let go keeps what it has, whoever else comes back with more than there is.
    let mut places = holding(5, 5);
    places.report(u32::MAX, 5, at(1_000));
    places.settle(&settled(5, 0, -3, 1_000), 5, at(1_001));
    assert_eq!(quota.usable(Some(&places), at(2_899)), 5);
}

#[test]
fn an_answer_that_comes_too_late_brings_nothing() {
    let (quota, _) = quota(WhenDown::Refuse);
    let mut places = holding(2, 0);
    places.report(u32::MAX, 0, at(100));
    places.settle(&settled(2, 3, 1, 100), 0, at(2_000));
    assert_eq!(quota.usable(Some(&places), at(2_000)), 0);
}

#[test]
fn it_calls_once_when_too_few_are_idle_and_when_it_refuses() {
    let mut places = holding(3, 0);
    places.begin(1, at(10));
    places.begin(2, at(10));
    assert!(!places.calls(), "one is idle");
    places.begin(3, at(10));
    assert_eq!([places.calls(), places.calls()], [true, false]);
    places.refuse(true, at(10));
    assert!(!places.calls(), "it has called");
    let reported = places.report(u32::MAX, 3, at(11));
    assert_eq!((reported.asked, reported.begun, reported.peak), (4, 3, 3));
    places.settle(&settled(3, 0, 0, 11), 3, at(12));
    assert!(!places.calls());
    places.refuse(true, at(12));
    assert!(places.calls());
    // Nobody has heard of it since: it calls again, and not each time.
    places.refuse(true, at(3_810));
    assert!(!places.calls());
    places.refuse(true, at(3_811));
    assert_eq!([places.calls(), places.calls()], [true, false]);
    places.refuse(true, at(5_710));
    assert!(!places.calls());
    assert_eq!(places.look(1, at(12)).peak, 3, "the most since the last report");
}

#[test]
fn it_is_let_go_of_only_without_places_and_work() {
    let mut places = holding(2, 1);
    assert!(!places.let_go(0, at(10)), "it has places");
    assert!(!places.let_go(1, at(5_000)), "work goes on");
    assert!(places.is_in_touch());
    let mut first = Permits::of(1);
    first.report(u32::MAX, 0, at(0));
    assert!(first.nanos_until_forgotten(at(0)) > 0, "not before it is answered");
    assert!(places.let_go(0, at(5_000)));
    assert!(!places.is_in_touch());
    let left = Permits::left_behind(1, at(0));
    assert!(left.is_in_touch() && left.nanos_until_forgotten(at(1_000)) > 3_500_000_000_000);
    assert_eq!(
        [left.nanos_until_forgotten(at(3_600_000)), Permits::of(1).nanos_until_forgotten(at(0))],
        [0, 0]
    );
}

#[test]
fn left_behind_key_requests_another_sync_after_hold() {
    let mut places = Permits::left_behind(9, at(0));
    places.begin(1, at(1_899));
    assert!(!places.calls(), "the restore has requested one");
    places.begin(2, at(1_900));
    assert!(places.calls());
    assert_eq!(places.nanos_until_forgotten(at(1_900)), 3_600_000_000_000);
}

#[test]
fn key_reports_to_its_budget() {
    let mut places = Permits::of(7);
    assert_eq!((places.budget(), Permits::left_behind(9, at(0)).budget()), (7, 9));
    places.move_to(8);
    assert_eq!(places.budget(), 8);
    let alone = PermitQuota::new(NonZeroU32::new(MAX).unwrap(), WhenDown::Share);
    assert_eq!((quota(WhenDown::Share).0.budget(), alone.budget()), (Some(1), None));
}

#[test]
fn work_waits_for_a_call_unless_redis_has_just_said_that_there_is_none() {
    let few = |hosts, asks| {
        let (quota, standing) = quota(WhenDown::Refuse);
        let patience = Duration::from_millis(20);
        let quota = quota.asking(asks).waiting(patience);
        assert_eq!(quota.patience(), patience);
        standing.set_hosts(hosts);
        (quota, standing)
    };
    // Ten are four for each of two hosts, and not of three.
    for (hosts, asks, may) in
        [(2, PermitWait::OnMiss, true), (3, PermitWait::OnMiss, true), (3, PermitWait::Never, false)]
    {
        let (quota, standing) = few(hosts, asks);
        assert_eq!(quota.may_bring(None, at(0)), may, "{hosts} hosts, {asks:?}");
        assert_eq!(quota.lends_for_work_alone(), may && hosts == 3, "{hosts} hosts, {asks:?}");
        standing.set_answering(false);
        assert!(!quota.may_bring(None, at(0)) && !quota.lends_for_work_alone(), "nobody answers in time");
    }
    let (quota, _) = few(3, PermitWait::OnMiss);
    let mut places = Permits::of(1);
    places.report(u32::MAX, 0, at(0));
    places.settle(&PermitReply { refused_for: Duration::from_millis(25), ..settled(0, 0, 0, 0) }, 0, at(1));
    let asked = [25, 26].map(|millis| quota.may_bring(Some(&places), at(millis)));
    assert_eq!(asked, [false, true]);
    // Who only looks goes by what was said; once that is old nobody knows.
    let known = [25, 26, 1_899, 1_900].map(|millis| quota.may_pass_elsewhere(Some(&places), at(millis)));
    assert_eq!(known, [false, false, false, true]);
    assert_eq!([26, 1_900].map(|millis| quota.level(Some(&places), 0, at(millis)).remaining), [0, 10]);
    places.settle(&settled(0, 0, 3, 100), 0, at(101));
    assert_eq!(quota.level(Some(&places), 0, at(102)).remaining, 3);
}

#[test]
fn while_redis_is_heard_nothing_begins_without_a_place_however_late_it_answers() {
    for (when_down, part) in
        [(WhenDown::Refuse, 0), (WhenDown::Share, 3), (WhenDown::Local, 10), (WhenDown::Allow, u32::MAX)]
    {
        let (quota, standing) = quota(when_down);
        let quota = quota.asking(PermitWait::OnMiss);
        standing.set_hosts(3);
        assert_eq!(quota.usable(None, at(2)), 0);
        standing.set_answering(false);
        assert_eq!(quota.usable(None, at(2)), 0, "it is heard, if late: {when_down:?}");
        standing.set_linked(false);
        assert_eq!(quota.usable(None, at(2)), part, "{when_down:?}");
    }
}

#[test]
fn a_place_that_was_waited_for_is_kept_for_who_waited() {
    let (quota, _) = quota(WhenDown::Refuse);
    let mut places = holding(2, 1);
    assert!(places.claim(1, at(2)) && !places.claim(1, at(2)), "one is idle");
    assert!(!quota.judge(Some(&places), 1, at(2)).passes(), "it is kept");
    assert_eq!(places.look(1, at(2)).taken(), 2);
    places.unclaim(1, at(2));
    assert!(quota.judge(Some(&places), 1, at(2)).passes());
}

#[test]
fn where_there_are_few_what_is_idle_calls_and_calls_again() {
    let few = PermitReply { is_few: true, low: 0, ..settled(0, 2, 3, 0) };
    let mut places = Permits::of(1);
    places.report(u32::MAX, 0, at(0));
    places.settle(&few, 2, at(1));
    places.begin(2, at(1));
    assert!(!places.calls(), "there is nothing to give back");
    places.end(1, at(2));
    assert_eq!([places.calls(), places.calls()], [true, false]);
    places.end(0, at(3));
    assert!(!places.calls(), "it has called");
    // Whoever came to look found it in use again.
    assert_eq!(places.visit(2, at(4)).taken(), 2);
    places.end(1, at(5));
    assert!(places.calls());
    // While the answer is on its way.
    places.report(1, 1, at(6));
    places.end(0, at(6));
    assert!(!places.calls());
    places.settle(&PermitReply { hold: 1, granted: 0, ..few }, 0, at(7));
    assert!(places.calls());
    let mut enough = holding(2, 2);
    enough.end(1, at(2));
    assert!(!enough.calls(), "where there are enough nobody is in a hurry");
}
