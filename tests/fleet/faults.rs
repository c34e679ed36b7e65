//! Tests the guarantees under faults.

use tidegate::limit::share::Fallback;

use crate::plan::{Faults, Outage, Plan, Rollout, Shape, is_short};
use crate::rules::Kind;
use crate::windows;
use crate::world::{World, run};

/// Hosts have their shares in an outage, and lend no token twice as they return, together or one by one.
#[test]
fn splits_budget_in_outage_and_settles_after_it() {
    let all = if is_short() { 10 } else { 100 };
    // `excess`: the most beyond the budget, in bursts.
    for (hosts, seconds, empty, later_ms, excess) in [
        (all, 5, true, 0, 1.5),
        (all, 12, false, 0, 1.5),
        (2, 10, false, 4_500, 1.0),
        (3, 10, false, 2_000, 1.0),
    ] {
        let from_ms = if is_short() { 8_000 } else { 20_000 };
        let to_ms = from_ms + seconds * 1_000;
        let mut faults = Faults::outage(from_ms, to_ms, empty);
        faults.outages[0].later_ms = later_ms;
        let plan = Plan { ms: from_ms + to_ms, faults, ..Plan::cell(hosts, Shape::Even, 2_000) };
        let world = run(&plan);
        let seen = world.measure.seen();
        let passed: u32 = world.measure.admitted[from_ms as usize..to_ms as usize].iter().sum();
        let meanwhile = f64::from(passed) / ((to_ms - from_ms) as f64 * plan.budget_per_ms());
        // The first answered probe arrives within a second of the end.
        let settled = world.measure.settled_after(to_ms + u64::from(hosts - 1) * later_ms);
        assert!(later_ms > 0 || (0.90..=1.10).contains(&meanwhile), "{meanwhile} of the rate: {plan:#?}");
        assert!(settled <= 4.0, "settled after {settled} s: {plan:#?}");
        assert!(seen.excess <= excess * f64::from(plan.burst), "{seen:?}: {plan:#?}");
    }
}

/// In an outage a host admits its half of each budget, and has no request of these keys afterwards.
#[test]
fn debts_of_an_outage_are_charged_at_a_pace_without_another_request() {
    let budget = Plan { rate: 10, burst: 10, period_s: 86_400, credit: 0, ..Plan::cell(2, Shape::Even, 0) };
    let tenants = 100;
    let mut world = World::started(&Plan { tenants, ..budget });
    world.advance(2_500, |_| {});
    world.is_out = true;
    world.advance(3_000, |_| {});
    let hits = |world: &mut World, host| {
        let us = world.us;
        (0..tenants * 10).filter(|hit| world.host(host).hit(hit % tenants, us)).count()
    };
    assert_eq!(hits(&mut world, 0), 5 * tenants as usize);
    world.is_out = false;
    let (mut before, mut most) = (0, 0);
    world.advance(3_000, |world| {
        let cells: u64 = world.measure.cells.iter().sum();
        (before, most) = (cells, most.max(cells - before));
    });
    // Its half of 32 cells, in each of its ticks.
    assert!((1..=17).contains(&most), "{most} cells in a millisecond");
    let mut passed = 0;
    world.advance(3_000, |world| {
        if world.us.is_multiple_of(100_000) {
            passed += hits(world, 1);
        }
    });
    assert_eq!(passed, 5 * tenants as usize, "the other half is left");
}

/// One of two hosts is back from an outage, three seconds before the other, which admits its half meanwhile.
#[test]
fn borrows_its_own_part_at_once_after_an_outage() {
    // `from_ms`: when callers begin to use the first host.
    for from_ms in [0, 3_000] {
        let outages = vec![Outage { from_ms: 0, to_ms: 3_000, later_ms: 3_000 }];
        let faults = Faults { outages, ..Faults::default() };
        let cell = Plan { rate: 10, burst: 10, period_s: 86_400, ..Plan::cell(2, Shape::Even, 0) };
        let plan = Plan { credit: 0, faults, ..cell };
        let mut world = World::started(&plan);
        world.advance(plan.begins_us() / 1_000, |_| {});
        let mut passed = [0; 2];
        for (ms, expected) in [(from_ms, 0), (4_000 - from_ms, 5), (8_000, 5)] {
            world.advance(ms, |world| {
                let us = world.us;
                let begun = if from_ms > 0 && ms == from_ms { 1..2 } else { 0..2 };
                for host in begun.filter(|_| us.is_multiple_of(100_000)) {
                    passed[host as usize] += u32::from(world.host(host).hit(0, us));
                }
            });
            assert_eq!(passed[0], expected, "used after {from_ms} ms");
        }
        assert_eq!(passed[1], 5, "used after {from_ms} ms");
    }
}

/// A host dies holding tokens of a day's budget: they stay spent.
#[test]
fn tokens_of_a_crashed_host_stay_spent() {
    for kind in [Kind::Bucket, Kind::Fixed, Kind::Sliding, Kind::Calendar] {
        // 150 requests a second use all of it while the other host runs alone, long after the hold expired.
        let cell = Plan::cell(2, Shape::Even, 150 * 86_400);
        let when_down = Fallback::Refuse;
        let plan = Plan { kind, ms: 20_000, period_s: 86_400, credit: 0, when_down, ..cell };
        let mut world = World::started(&plan);
        world.advance(plan.begins_us() / 1_000 + 3_000, World::serve);
        let us = world.us;
        let held = world.host(0).held(us);
        world.crash(0);
        world.advance(17_000, World::serve);
        let (admitted, left) = (world.measure.seen().admitted, u64::from(plan.burst) - held);
        let is_spent = (left * 19 / 20..=left).contains(&admitted);
        assert!(held > 0 && is_spent, "{held} held, {admitted}: {plan:#?}");
    }
}

/// Runs a plan and returns the most admitted at once beyond the rate of a bucket, or in any window.
fn most_admitted(plan: &Plan) -> (World, u64) {
    let world = run(plan);
    let most = match plan.kind {
        Kind::Bucket => u64::from(plan.burst) + world.measure.seen().excess.ceil() as u64,
        _ => windows::seen(&world, plan).0,
    };
    (world, most)
}

/// Hosts know what they had of a window; the key of a bucket starts empty.
#[test]
fn flushed_redis_grants_no_token_twice() {
    for (kind, most) in [(Kind::Bucket, 1_200), (Kind::Fixed, 1_000), (Kind::Sliding, 1_000)] {
        let faults = Faults { flushes_ms: vec![4_000, 13_000], ..Faults::default() };
        let (period_s, credit) = if kind == Kind::Bucket { (1, 100) } else { (5, 0) };
        let when_down = Fallback::Refuse;
        let cell = Plan::cell(10, Shape::Even, 5_000);
        let plan = Plan { kind, period_s, credit, ms: 25_000, faults, when_down, ..cell };
        let (world, admitted) = most_admitted(&plan);
        assert!(admitted <= most, "{admitted}, {kind:?}");
        // It never refuses for longer than a window and its oldest sub-bucket.
        assert!(world.measure.admitted[20_000..].iter().sum::<u32>() > 0, "{kind:?}: something passes again");
    }
}

/// Hosts restart one by one with another fleet secret, a second apart, at twice the rate: the keys begin anew.
#[test]
fn admits_twice_the_budget_while_two_secrets_are_in_use() {
    for kind in [Kind::Bucket, Kind::Fixed, Kind::Sliding] {
        let restart = |host: u32| Rollout { host, at_ms: 3_000 + u64::from(host) * 1_000, secret: 77 };
        let faults = Faults { rollouts: (0..4).map(restart).collect(), ..Faults::default() };
        let (period_s, when_down) = (2, Fallback::Refuse);
        let cell = Plan::cell(4, Shape::Even, 2_000);
        let plan = Plan { kind, ms: 14_000, period_s, credit: 0, when_down, faults, ..cell };
        let (world, admitted) = most_admitted(&plan);
        // One more burst, and of a bucket the rate for three seconds.
        let most = if kind == Kind::Bucket { 2_000 + 3 * 1_000 / 2 } else { 2_000 };
        assert!((1_001..=most).contains(&admitted), "{admitted}: {plan:#?}");
        assert!(kind.is_window() || admitted >= 1_500 && world.measure.seen().used > 0.9, "{admitted}");
    }
}
