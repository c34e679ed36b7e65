//! Tests the guarantees under faults.

use tidegate::limit::share::Fallback;

use crate::plan::{Crash, Faults, Outage, Plan, Rollout, Shape, is_short};
use crate::rules::Kind;
use crate::windows;
use crate::world::run;

fn outage(hosts: u32, seconds: u64, empty: bool) -> Plan {
    let from_ms = if is_short() { 8_000 } else { 20_000 };
    let outages = vec![Outage { from_ms, to_ms: from_ms + seconds * 1_000, empty, later_ms: 0 }];
    let faults = Faults { outages, ..Faults::default() };
    Plan { ms: 2 * from_ms + seconds * 1_000, faults, ..Plan::cell(hosts, Shape::Even, 2_000) }
}

/// `excess`: the most beyond the budget, in bursts.
fn check_outage(plan: &Plan, excess: f64) {
    let Outage { from_ms, to_ms, later_ms, .. } = plan.faults.outages[0];
    let world = run(plan);
    let seen = world.measure.seen();
    let passed: u32 = world.measure.admitted[from_ms as usize..to_ms as usize].iter().sum();
    let meanwhile = f64::from(passed) / ((to_ms - from_ms) as f64 * plan.budget_per_ms());
    // The first answered probe arrives within a second of the end.
    let settled = world.measure.settled_after(to_ms + u64::from(plan.hosts - 1) * later_ms);
    assert!(later_ms > 0 || (0.90..=1.10).contains(&meanwhile), "{meanwhile} of the rate: {plan:#?}");
    assert!(settled <= 4.0, "settled after {settled} s: {plan:#?}");
    assert!(seen.excess <= excess * f64::from(plan.burst), "{seen:?}: {plan:#?}");
}

#[test]
fn splits_budget_in_outage_and_settles_after_it() {
    if is_short() {
        check_outage(&outage(10, 5, true), 1.5);
        return check_outage(&outage(10, 12, false), 1.5);
    }
    for (seconds, empty) in [(5, false), (5, true), (60, false), (60, true)] {
        check_outage(&outage(10, seconds, empty), 1.5);
        check_outage(&outage(100, seconds, empty), 1.5);
    }
}

#[test]
fn staggered_reconnects_lend_no_token_twice() {
    for (hosts, later_ms) in [(2, 4_500), (3, 2_000)] {
        let cases: &[(u64, bool)] =
            if is_short() { &[(10, false)] } else { &[(2, false), (10, false), (10, true)] };
        for &(seconds, empty) in cases {
            let mut plan = outage(hosts, seconds, empty);
            plan.faults.outages[0].later_ms = later_ms;
            check_outage(&plan, 1.0);
        }
    }
}

#[test]
fn lost_replies_admit_no_uncharged_token() {
    // At these loads each host always has many commands in flight; a host with few enters an outage soon at
    // this loss rate.
    let (hosts, loads): (u32, &[u64]) = if is_short() { (10, &[10_000]) } else { (20, &[5_000, 10_000]) };
    for (credit, load) in
        [0, 100].into_iter().flat_map(|credit| loads.iter().map(move |load| (credit, *load)))
    {
        let faults = Faults { lost: 300, ..Faults::default() };
        let ms = if is_short() { 3_000 } else { 20_000 };
        let cell = Plan::cell(hosts, Shape::Even, load);
        let plan = Plan { credit, tenants: 16, ms, faults, ..cell }.audited();
        let world = run(&plan);
        let seen = world.measure.seen();
        let audit = world.audit.as_ref().unwrap();
        audit.check(seen.admitted);
        let (held, owed) = audit.in_hand();
        let unanswered: u64 = world.counts().iter().map(|counts| counts.unanswered).sum();
        assert!(unanswered > 100, "{unanswered}: {plan:#?}");
        assert_eq!(seen.cut_offs, 0, "Redis is heard all the time: {plan:#?}");
        // A grant whose reply is lost or late expires.
        let lapsed = audit.lapsed + (audit.granted - audit.received);
        let charged = audit.granted - audit.back - lapsed - held + audit.paid + owed;
        let seconds = ms as f64 / 1_000.0;
        let leaks = plan.leak() * f64::from(plan.rate * plan.tenants) * seconds;
        let most = if credit == 0 { 0.0 } else { leaks };
        let untold = seen.admitted.saturating_sub(charged);
        assert!(untold as f64 <= most, "{untold} admitted and not charged: {audit:?} {plan:#?}");
        // A lost reply costs its grant and the time until its timeout.
        assert!(seen.used >= 0.5, "{seen:?}: {plan:#?}");
    }
}

/// A host dies holding tokens of a day's budget: they stay spent.
#[test]
fn tokens_of_a_crashed_host_stay_spent() {
    for kind in [Kind::Bucket, Kind::Fixed, Kind::Sliding, Kind::Calendar] {
        let crashes = vec![Crash { host: 0, from_ms: 3_000, to_ms: u64::MAX }];
        let faults = Faults { crashes, ..Faults::default() };
        // 150 requests a second use all of it while the other host runs alone, long after the hold expired.
        let cell = Plan::cell(2, Shape::Even, 150 * 86_400);
        let when_down = Fallback::Refuse;
        let base = Plan { ms: 20_000, period_s: 86_400, credit: 0, when_down, ..cell };
        let plan = Plan { kind, faults, ..base }.audited();
        let world = run(&plan);
        let (seen, audit) = (world.measure.seen(), world.audit.as_ref().unwrap());
        audit.check(seen.admitted);
        let (held, _) = audit.crashed;
        assert!(held > 0, "it held nothing: {audit:?}");
        let gone = seen.admitted + held + audit.lapsed + audit.in_hand().0;
        assert_eq!(gone, u64::from(plan.burst), "each token is spent, or lapsed: {audit:?} {plan:#?}");
    }
}

#[test]
fn flushed_redis_grants_no_token_twice() {
    let (fleets, load): (&[u32], u64) = if is_short() { (&[10], 4_000) } else { (&[10, 100], 10_000) };
    for &hosts in fleets {
        let faults = Faults { flushes_ms: vec![10_000, 13_000], ..Faults::default() };
        let plan = Plan { ms: 20_000, faults, ..Plan::cell(hosts, Shape::Even, load) };
        let seen = run(&plan).measure.seen();
        assert!(seen.excess <= 0.2 * f64::from(plan.burst), "{seen:?}: {plan:#?}");
    }
}

const HOSTS: u32 = 4;
const FROM_MS: u64 = 3_000;
const APART_MS: u64 = 1_000;
const NEW: u8 = 77;

/// Hosts restart one by one with another fleet secret, at twice the rate.
fn rotation(kind: Kind) -> Plan {
    let restart = |host: u32| Rollout { host, at_ms: FROM_MS + u64::from(host) * APART_MS, secret: NEW };
    let rollouts = (0..HOSTS).map(restart).collect();
    let faults = Faults { rollouts, ..Faults::default() };
    let cell = Plan::cell(HOSTS, Shape::Even, 2_000);
    Plan { ms: 14_000, period_s: 2, credit: 0, when_down: Fallback::Refuse, kind, faults, ..cell }
}

#[test]
fn admits_one_more_burst_and_twice_the_rate_while_two_secrets_are_in_use() {
    let plan = rotation(Kind::Bucket);
    let seen = run(&plan).measure.seen();
    let overlap_ms = u64::from(HOSTS - 1) * APART_MS;
    let most = f64::from(plan.burst) + plan.budget_per_ms() * overlap_ms as f64;
    assert!(seen.excess <= most, "{seen:?}: {plan:#?}");
    assert!(seen.excess >= f64::from(plan.burst) / 2.0, "the keys begin anew: {seen:?}");
    assert!(seen.used > 0.9, "{seen:?}");
}

#[test]
fn admits_two_windows_in_one_while_two_secrets_are_in_use() {
    for kind in [Kind::Fixed, Kind::Sliding] {
        let plan = rotation(kind);
        let (most, _) = windows::seen(&run(&plan), &plan);
        assert!(most <= 2 * u64::from(plan.rate), "{most}: {plan:#?}");
        assert!(most > u64::from(plan.rate), "the keys begin anew: {most}");
    }
}
