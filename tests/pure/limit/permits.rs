//! The permits of a host under a concurrency limit that several hosts share.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use tidegate::clock::Timestamp;
use tidegate::limit::concurrency::{ConcurrencyQuota, PermitReply, Permits};
use tidegate::limit::share::{Fallback, FleetStatus, FleetTerms, RemoteCheckWait};

const MAX: u32 = 10;

fn alone(when_down: Fallback, asks: RemoteCheckWait) -> ConcurrencyQuota {
    let terms = FleetTerms::new(when_down, asks, Duration::from_millis(20));
    ConcurrencyQuota::new(NonZeroU32::new(MAX).unwrap()).shared(terms)
}

fn quota(when_down: Fallback) -> (ConcurrencyQuota, Arc<FleetStatus>) {
    joined(alone(when_down, RemoteCheckWait::OnMiss))
}

fn joined(quota: ConcurrencyQuota) -> (ConcurrencyQuota, Arc<FleetStatus>) {
    let fleet_status = Arc::new(FleetStatus::default());
    quota.join(&fleet_status, 1);
    fleet_status.set_redis_reachable(true);
    (quota, fleet_status)
}

fn at(millis: u64) -> Timestamp {
    Timestamp::from_nanos(60_000_000_000 + millis * 1_000_000)
}

fn reply(held: u32, free: i64, reported_millis: u64) -> PermitReply {
    PermitReply { held, free, reported_at: at(reported_millis), refused_for: Duration::ZERO }
}

/// A host with this number of permits, of which some are in use.
fn holding(held: u32, in_use: u32) -> Permits {
    let mut permits = Permits::none_of(1);
    permits.report(0, at(0));
    permits.apply_reply(&reply(held, 3, 0), in_use, at(1));
    permits.take_sync_due();
    permits
}

#[test]
fn leases_need_permits_and_permits_expire() {
    let (quota, _) = quota(Fallback::Refuse);
    assert_eq!(quota.usable(None, at(0)), 0);
    let permits = holding(4, 0);
    for (millis, usable) in [(1, 4), (1_899, 4), (1_900, 0), (60_000, 0)] {
        assert_eq!(quota.usable(Some(&permits), at(millis)), usable, "{millis} ms after the report");
    }
    assert!(quota.judge(Some(&permits), 3, at(1)).is_allowed());
    assert!(!quota.judge(Some(&permits), 4, at(1)).is_allowed());
    assert!(!quota.judge(Some(&permits), 0, at(1_900)).is_allowed());
}

#[test]
fn limits_one_host_before_it_joins() {
    let alone = alone(Fallback::Refuse, RemoteCheckWait::OnMiss);
    assert_eq!(alone.usable(None, at(0)), MAX);
    let level = alone.level(None, 3, at(0));
    assert_eq!((level.limit, level.remaining, alone.budget()), (10, 7, None));
    assert_eq!(quota(Fallback::Share).0.budget(), Some(1));
    assert_eq!(quota(Fallback::Share).0, quota(Fallback::Share).0, "membership is not part of the numbers");
    assert_ne!(quota(Fallback::Share).0, quota(Fallback::Local).0);
}

#[test]
fn falls_back_in_outage_and_while_replies_are_late() {
    for (when_down, hosts, fresh, expired) in [
        (Fallback::Refuse, 3, 4, 0),
        (Fallback::Share, 3, 4, 3),
        (Fallback::Share, 2, 5, 5),
        (Fallback::Share, 11, 4, 1),
        (Fallback::Local, 3, 10, 10),
        (Fallback::Allow, 3, u32::MAX, u32::MAX),
    ] {
        for is_reachable in [false, true] {
            let (quota, fleet_status) = quota(when_down);
            fleet_status.set_hosts(hosts);
            match is_reachable {
                true => fleet_status.set_late_wait(Duration::MAX),
                false => drop(fleet_status.set_redis_reachable(false)),
            }
            let permits = holding(4, 0);
            let usable = [at(1), at(1_900)].map(|now| quota.usable(Some(&permits), now));
            assert_eq!(usable, [fresh, expired], "{when_down:?}, {hosts} hosts, reachable: {is_reachable}");
            assert!(!quota.may_obtain(None, at(1)), "it would wait in vain");
        }
    }
}

#[test]
fn falls_back_only_for_the_unanswered_request() {
    for (when_down, part) in
        [(Fallback::Refuse, 0), (Fallback::Share, 3), (Fallback::Local, 10), (Fallback::Allow, u32::MAX)]
    {
        let (quota, fleet_status) = quota(when_down);
        fleet_status.set_hosts(3);
        let mut permits = Permits::none_of(1);
        permits.record_unanswered(at(5));
        assert_eq!([5, 6].map(|millis| quota.usable(Some(&permits), at(millis))), [part, 0], "{when_down:?}");
        assert!(!quota.may_obtain(Some(&permits), at(5)) && quota.may_obtain(Some(&permits), at(6)));
    }
}

#[test]
fn uses_share_of_host_without_remote_checks() {
    for (hosts, part) in [(2, 5), (3, 3), (20, 1)] {
        let (quota, fleet_status) = joined(alone(Fallback::Refuse, RemoteCheckWait::Never));
        fleet_status.set_hosts(hosts);
        assert_eq!((quota.usable(None, at(1)), quota.patience()), (part, Duration::from_millis(20)));
        assert!(!quota.may_obtain(None, at(1)));
    }
}

#[test]
fn uses_no_returned_permit_before_the_reply() {
    let (quota, _) = quota(Fallback::Refuse);
    let mut permits = holding(6, 2);
    assert!(permits.reserve(2, at(9)));
    assert_eq!(permits.report(2, at(10)), 3, "two leases and a request that has waited");
    assert_eq!(quota.usable(Some(&permits), at(10)), 3);
    permits.release_reservation(2, at(10));
    assert_eq!(permits.report(2, at(10)), 2);
    assert_eq!(quota.usable(Some(&permits), at(10)), 2);
}

#[test]
fn returns_no_permit_reserved_for_a_request() {
    let (quota, _) = quota(Fallback::Refuse);
    for is_taken in [false, true] {
        let mut permits = holding(2, 0);
        assert!(permits.reserve(0, at(9)));
        permits.offer();
        assert_eq!(permits.report(0, at(10)), 1, "the other one is returned");
        assert!(quota.judge(Some(&permits), 0, at(10)).is_allowed(), "it is there for its request");
        let in_use = u32::from(is_taken);
        assert_eq!(permits.report(in_use, at(10)), 1, "once, taken or not: {is_taken}");
        permits.end_offer(in_use, at(10));
        assert_eq!((permits.take_sync_due(), permits.report(in_use, at(10))), (!is_taken, in_use));
    }
}

#[test]
fn late_reply_grants_no_permit() {
    let (quota, _) = quota(Fallback::Refuse);
    let mut permits = holding(2, 0);
    permits.apply_reply(&reply(5, 1, 100), 0, at(2_000));
    assert_eq!(quota.usable(Some(&permits), at(2_000)), 0);
}

#[test]
fn requests_a_sync_for_a_lease_without_permit_and_for_an_idle_permit() {
    let mut permits = holding(2, 0);
    permits.record_start(1, at(10));
    permits.record_start(2, at(10));
    assert!(!permits.take_sync_due(), "each has a permit");
    permits.record_start(3, at(10));
    assert_eq!([permits.take_sync_due(), permits.take_sync_due()], [true, false]);
    permits.record_end(2, at(11));
    assert!(!permits.take_sync_due(), "none is idle");
    permits.record_end(1, at(11));
    assert!(permits.take_sync_due());
    // A lease ended while the reply was in transit.
    permits.apply_reply(&reply(2, 0, 11), 1, at(12));
    assert!(permits.take_sync_due());
    let mut new = Permits::none_of(1);
    new.record_start(1, at(0));
    assert!(new.take_sync_due(), "the key is unknown to the sync task");
}

#[test]
fn uses_no_idle_permit_while_leases_exceed_permits() {
    let (quota, _) = quota(Fallback::Refuse);
    for (free, passes) in [(0, true), (-1, false)] {
        let mut permits = holding(3, 3);
        permits.apply_reply(&reply(3, free, 10), 3, at(11));
        permits.record_end(2, at(12));
        assert_eq!(quota.judge(Some(&permits), 2, at(12)).is_allowed(), passes, "{free} free");
        assert!(permits.take_sync_due(), "it is returned");
    }
}

#[test]
fn timeout_counts_as_refusal_when_no_permit_was_free() {
    for (when_down, passes) in [(Fallback::Share, false), (Fallback::Local, true)] {
        let (quota, _) = quota(when_down);
        let mut permits = holding(2, 2);
        permits.apply_reply(&reply(2, 0, 10), 2, at(11));
        permits.record_unanswered(at(20));
        assert_eq!(quota.judge(Some(&permits), 2, at(20)).is_allowed(), passes, "{when_down:?}");
    }
}

#[test]
fn untracks_only_without_permits_and_leases() {
    let mut permits = holding(2, 1);
    assert!(!permits.stop_tracking(0, at(10)), "it has permits");
    assert!(!permits.stop_tracking(1, at(5_000)), "a lease is in progress");
    assert!(permits.is_tracked());
    assert!(permits.stop_tracking(0, at(5_000)) && !permits.is_tracked());
    let left = Permits::from_previous_process(9, at(0));
    assert!(left.is_tracked() && left.nanos_until_droppable(at(1_000)) > 3_500_000_000_000);
    assert_eq!(left.nanos_until_droppable(at(3_600_000)), 0);
    assert_eq!(Permits::none_of(1).nanos_until_droppable(at(0)), 0);
}

#[test]
fn refuses_locally_for_a_time_after_refusal() {
    let (quota, _) = quota(Fallback::Refuse);
    let mut permits = Permits::none_of(1);
    permits.report(0, at(0));
    permits.apply_reply(&PermitReply { refused_for: Duration::from_millis(25), ..reply(0, 0, 0) }, 0, at(1));
    assert_eq!([25, 26].map(|millis| quota.may_obtain(Some(&permits), at(millis))), [false, true]);
    // Also once the sync task has dropped the key.
    assert!(permits.stop_tracking(0, at(2)) && !quota.may_obtain(Some(&permits), at(25)));
    // A peek uses the last reply, unless it is old.
    let known = [25, 26, 1_899, 1_900].map(|millis| quota.may_pass_elsewhere(Some(&permits), 0, at(millis)));
    assert_eq!(known, [false, false, false, true]);
    assert_eq!([26, 1_900].map(|millis| quota.level(Some(&permits), 0, at(millis)).remaining), [0, 10]);
    permits.apply_reply(&reply(0, 3, 100), 0, at(101));
    assert_eq!(quota.level(Some(&permits), 0, at(102)).remaining, 3);
    let passes = [2, 3].map(|in_use| quota.may_pass_elsewhere(Some(&permits), in_use, at(102)));
    assert_eq!(passes, [true, false], "leases since that reply count");
    assert!(quota.may_obtain(Some(&permits), at(100)), "a request that read the clock before the reply came");
}

#[test]
fn keeps_reserved_permit_for_its_request() {
    let (quota, _) = quota(Fallback::Refuse);
    let mut permits = holding(2, 1);
    assert!(permits.reserve(1, at(2)) && !permits.reserve(1, at(2)), "one is idle");
    assert!(!quota.judge(Some(&permits), 1, at(2)).is_allowed(), "it is reserved");
    permits.release_reservation(1, at(2));
    assert!(quota.judge(Some(&permits), 1, at(2)).is_allowed());
}
