//! A host's share: equal to its bucket while alone, never above its grants, within its credit, and charged
//! once for its admissions during an outage.

mod outage;
mod window;

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use tidegate::clock::{Micros, Timestamp};
use tidegate::limit::share::{
    Fallback, FleetStatus, KeyCheckReply, RemoteCheckWait, ShareQuota, ShareReply, ShareState,
};
use tidegate::limit::token_bucket::{self, GcraState};
use tidegate::limit::{Outcome, Rate};

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
        // Redis may have forgotten the first report.
        assert_eq!(share.peek_report(at(1_900)).borrowed, 0, "{order:?}");
    }
}

#[test]
fn budget_keeps_its_number() {
    let (quota, fleet_status) = shared(100, 100, 0, 10, Fallback::Share);
    quota.join(&fleet_status, 8);
    assert_eq!(quota.budget(), Some(7));
    assert_eq!(ShareQuota::new(bucket(100, 100), 0, Fallback::Share).budget(), None);
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
        let seen =
            (share.missing_tokens(&quota, at(0), 3), quota.checks_remotely_now(), quota.borrows(hosts));
        assert_eq!(seen, (waits.then_some(3), waits, borrows), "{asks:?}, {hosts} hosts");
        assert_eq!((quota.has_remote_checks(), quota.patience()), (asks != Never, patience));
    }
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
        [(2, 5, false, None), (2, 4, false, Some(4)), (1_900, 5, false, None), (1_902, 5, false, Some(5))]
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

/// A CHARGE after a refusal of Redis is not in its level yet.
#[test]
fn wait_includes_debt_that_redis_does_not_know() {
    let (quota, _) = joined(ShareQuota::new(bucket(10, 10), 0, Fallback::Share), 2);
    let quota = quota.with_remote_checks(RemoteCheckWait::OnMiss);
    let mut share = ShareState::fresh(&quota, at(0));
    let reply = KeyCheckReply { level: 0, ..refusal(1, Micros(100_000)) };
    share.apply_remote_reply(&quota, at(1), &reply);
    assert_eq!(share.judge(&quota, at(1), 1), Outcome::Later(Micros(100_000)));
    share.charge(&quota, at(1), 5);
    assert_eq!(share.judge(&quota, at(1), 1), Outcome::Later(Micros(600_000)));
}

#[test]
fn absurd_waits_and_levels_refuse_a_key_until_the_largest_debt_is_earned_at_most() {
    let (quota, _) = shared(100, 200, 0, 10, Fallback::Local);
    let quota = quota.with_remote_checks(RemoteCheckWait::Always).with_debt_max(50);
    let longest = Micros(2_500_000);
    for wait in [Micros(1 << 53), Micros(u64::MAX)] {
        let mut share = ShareState::fresh(&quota, at(0));
        share.apply_remote_reply(&quota, at(1), &refusal(1, wait));
        assert_eq!(share.judge(&quota, at(1), 1), Outcome::Later(longest), "{wait:?}");
    }
    let share = synced(&quota, settled(0, 0, i64::MIN / 4, at(0)));
    assert_eq!(share.judge(&quota, at(1), 1), Outcome::Later(longest));
    assert_eq!(share.judge(&quota, at(1), 201), Outcome::Never);
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
    for hosts in [8, 100] {
        let (quota, _) = shared(10, 10, 100, hosts, Fallback::Share);
        let mut share = ShareState::fresh(&quota, at(0));
        assert!(ask(&mut share, &quota, at(0), 1));
        assert!(share.take_sync_due(), "it is reported before the next request");
        assert_eq!(drain(&mut share, &quota, at(0)), 0);
        assert_eq!(share.report(&quota, at(0), 0).0.debt, 1);
        share.apply_reply(&quota, &settled(0, 1, 0, at(0)), at(1));
        assert_eq!(drain(&mut share, &quota, at(1)), 0, "Redis has nothing to spare");
        share.report(&quota, at(50), 0);
        share.apply_reply(&quota, &settled(0, 0, 9 * MICRO, at(50)), at(51));
        assert_eq!(drain(&mut share, &quota, at(51)), 1);
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
    assert!(!ask(&mut share, &quota, at(300_001), 1), "little is left, for those who were granted it");
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
        steps in prop::collection::vec((0u64..700, 1u32..6, 0u32..12, 0u8..3, -50i64..400), 1..120),
    ) {
        let (quota, _) = shared(100, burst, credit, hosts, Fallback::Share);
        let most = (u64::from(burst) * u64::from(credit) / (1_000 * u64::from(hosts))).max(u64::from(credit > 0));
        let mut share = ShareState::fresh(&quota, at(0));
        let (mut now, mut granted, mut paid, mut admitted) = (0, 0u64, 0u64, 0u64);
        // Only unreported credit is forgiven, so a report comes first.
        share.report(&quota, at(0), 0);
        let mut late: Option<ShareReply> = None;
        for (gap, cost, grant, syncs, level) in steps {
            now += gap;
            if let Some(reply) = late.take() {
                paid += u64::from(reply.paid);
                share.apply_reply(&quota, &reply, at(now));
            }
            if ask(&mut share, &quota, at(now), cost) {
                admitted += u64::from(cost);
            }
            // The reply comes at once, or at the next step.
            if syncs > 0 {
                let (reported, back) = share.report(&quota, at(now), 1);
                prop_assert!(u64::from(reported.debt) <= most, "{} owed, {most} may be", reported.debt);
                granted = granted + u64::from(grant) - u64::from(back);
                let reply = settled(grant, reported.debt, level * MICRO, at(now));
                if syncs == 1 {
                    paid += u64::from(reported.debt);
                    share.apply_reply(&quota, &reply, at(now));
                } else {
                    late = Some(reply);
                }
            }
            let owed = u64::from(share.peek_report(at(now)).debt);
            let held = u64::from(share.peek_report(at(now)).borrowed);
            prop_assert!(admitted + held <= granted + paid + owed, "{admitted} + {held} of {granted} + {paid} + {owed}");
        }
    }
}
