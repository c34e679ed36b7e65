//! A share while Redis is unreachable: what it admits, and what it owes afterwards.

use std::sync::Arc;

use proptest::prelude::*;
use tidegate::clock::Micros;
use tidegate::limit::share::{CompactShare, Fallback, FleetStatus, RemoteCheckWait, ShareQuota, ShareState};
use tidegate::limit::{Outcome, Rate, token_bucket};

use super::{MICRO, SECOND, ask, at, drain, joined, reply, settled, shared, synced};

#[test]
fn uses_fallback_in_outage_and_while_checks_time_out() {
    let table =
        [(Fallback::Share, 25), (Fallback::Local, 100), (Fallback::Allow, 10_000), (Fallback::Refuse, 0)];
    for (when_down, admitted) in table {
        for is_reachable in [false, true] {
            let (quota, fleet_status) = shared(100, 100, 100, 4, when_down);
            let quota = quota.with_remote_checks(RemoteCheckWait::OnMiss);
            fleet_status.set_redis_reachable(is_reachable);
            fleet_status.set_late_wait(std::time::Duration::MAX);
            let mut share = ShareState::fresh(&quota, at(0));
            assert_eq!(drain(&mut share, &quota, at(0)), admitted, "{when_down:?}, {is_reachable}");
            if is_reachable {
                assert_eq!(share.peek_report(at(0)).debt, admitted, "{when_down:?} is owed");
            }
        }
    }
}

#[test]
fn tokens_of_a_late_check_stay_for_the_retry() {
    let (quota, _) = shared(100, 50, 0, 4, Fallback::Share);
    let quota = quota.with_remote_checks(RemoteCheckWait::OnMiss);
    for (late_ms, passes, refund) in [(99, true, 0), (100, false, 30)] {
        let mut share = ShareState::fresh(&quota, at(0));
        share.refund_remote_reply(&quota, at(late_ms), &reply(30, at(0)));
        assert_eq!(ask(&mut share, &quota, at(150), 30), passes, "a reply after {late_ms} ms");
        assert_eq!(share.report(&quota, at(150), 0).0.refund, refund);
    }
}

#[test]
fn only_checks_with_long_waits_go_on_while_redis_is_late_for_short_ones() {
    for (wait_ms, missing) in [(5, None), (6, Some(1))] {
        let (quota, fleet_status) = shared(100, 100, 0, 4, Fallback::Share);
        let quota = quota.with_remote_checks(RemoteCheckWait::OnMiss);
        let quota = quota.with_wait_max(std::time::Duration::from_millis(wait_ms));
        fleet_status.set_late_wait(std::time::Duration::from_millis(5));
        assert_eq!(ShareState::fresh(&quota, at(0)).missing_tokens(&quota, at(0), 1), missing);
    }
}

/// No time is known at which a cost above this host's part may pass.
#[test]
fn heavy_cost_has_no_retry_time_in_outage() {
    let (quota, fleet_status) = shared(100, 50, 0, 4, Fallback::Share);
    fleet_status.set_redis_reachable(false);
    let mut share = ShareState::fresh(&quota, at(0));
    assert_eq!(share.judge(&quota, at(0), 13), Outcome::Never);
    assert!(ask(&mut share, &quota, at(0), 12));
    assert_eq!(share.judge(&quota, at(0), 12), Outcome::Later(Micros(460_000)));
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

/// The share as a host has it that starts again, in an outage, with its snapshot.
fn restarted(share: ShareState, quota: &ShareQuota) -> (ShareQuota, Arc<FleetStatus>, ShareState) {
    let (scale, now) = (quota.bucket().scale(), at(1_000));
    let buckets = CompactShare::new(share, quota, now).outage_buckets(scale, now);
    let (quota, fleet_status, _) = daily(0);
    fleet_status.set_redis_reachable(false);
    let share = buckets.map_or_else(
        || CompactShare::fresh(&quota, now),
        |buckets| CompactShare::in_outage(buckets, scale, now),
    );
    let share = share.unfold(&quota, now);
    (quota, fleet_status, share)
}

#[test]
fn restart_keeps_what_is_left_of_share_and_owes_it_once() {
    for (left, before, after) in
        [(10, 5, 0), (10, 0, 5), (8, 3, 1), (4, 2, 0), (4, 0, 2), (1, 0, 0), (0, 0, 0)]
    {
        let (quota, fleet_status, mut share) = daily(left);
        if before > 0 {
            fleet_status.set_redis_reachable(false);
            assert_eq!((0..before).filter(|_| ask(&mut share, &quota, at(900), 1)).count(), before);
        }
        let (quota, _, mut share) = restarted(share, &quota);
        let case = format!("{left} left in Redis, {before} admitted before the restart");
        assert_eq!(drain(&mut share, &quota, at(1_000)), after, "{case}");
        let (quota, fleet_status, mut again) = restarted(share, &quota);
        assert_eq!(drain(&mut again, &quota, at(1_000)), 0, "{case}, and a second restart");
        fleet_status.set_redis_reachable(true);
        let owed = u32::try_from(before).unwrap() + after;
        assert_eq!(again.report(&quota, at(2_000), 0).0.debt, owed, "{case}");
    }
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

proptest! {
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
