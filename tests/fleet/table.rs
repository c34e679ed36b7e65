//! Tests the stated figures: R = B = 1 000, a minute. Each test run covers a few, for 20 s; the nightly run all.

use tidegate::limit::share::RemoteCheckWait;
use tidegate::rules::{FleetBound, OnMiss};

use crate::engines::domains;
use crate::host::FleetRequest;
use crate::measure::Seen;
use crate::plan::{Plan, SHAPES, Shape, is_short};
use crate::world::{World, run};

/// Checks the bounds stated for every run.
pub(crate) fn check_bounds(plan: &Plan, seen: &Seen) {
    if plan.credit == 0 {
        assert!(seen.excess <= 0.001, "{seen:?}: {plan:#?}");
    }
    assert!(seen.excess_leaking <= plan.extra() + 0.001, "{seen:?}: {plan:#?}");
}

/// Runs a cell and prints its results; collects failed checks in `faults`.
fn cell(plan: &Plan, faults: &mut Vec<String>) {
    let seen = run(plan).measure.seen();
    let Plan { hosts, shape, load, round_trip_us, credit, .. } = *plan;
    let shape = format!("{shape:?}");
    check_bounds(plan, &seen);
    let mut must = |holds: bool, what: &str| {
        if !holds {
            faults.push(format!("{hosts} {shape} {load} {round_trip_us}: {what}: {seen:?}"));
        }
    };
    let is_small = hosts <= 100;
    let is_near = round_trip_us <= 1_000;
    if is_near && credit > 0 && load <= 1_000 {
        must(seen.used >= if is_small { 0.96 } else { 0.95 }, "used");
    }
    // Without credit a thousand hosts cannot use fractions of tokens.
    if plan.shape == Shape::Zipf && load == 2_000 && !is_near && (credit > 0 || is_small) {
        // At 500 ms one request in flight for a key leaves a part of the burst unused: use one Redis per
        // region.
        must(seen.used >= if round_trip_us <= 50_000 { 0.97 } else { 0.70 }, "used");
    }
    if is_near && credit > 0 {
        let fair: f64 = match load {
            1_000..=10_000 if is_small => 0.93,
            1_000..=10_000 => 0.85,
            10_001.. => 0.65,
            _ => 0.0,
        };
        // If half a burst arrives at one host at a time, a perfect bucket is not fair either.
        must(seen.jain >= fair.min(seen.jain_ideal - 0.05), "fair");
    }
}

fn check(plans: &[Plan]) {
    let mut faults = Vec::new();
    plans.iter().for_each(|plan| cell(plan, &mut faults));
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn keeps_bounds_in_sampled_cells() {
    check(&SHAPES.map(|shape| Plan { ms: 20_000, ..Plan::cell(10, shape, 1_000) }));
}

#[test]
#[ignore = "minutes: in the nightly run"]
fn keeps_bounds_in_every_cell() {
    let mut plans = Vec::new();
    for (hosts, shape) in [2, 10, 100, 1_000].into_iter().flat_map(|hosts| SHAPES.map(|shape| (hosts, shape)))
    {
        for load in [500, 1_000, 2_000, 10_000, 100_000] {
            for round_trip_us in [500, 50_000, 500_000] {
                let cell = |credit| Plan { round_trip_us, credit, ..Plan::cell(hosts, shape, load) };
                plans.extend([0, 100].map(cell));
            }
        }
    }
    check(&plans);
}

/// `tidegate check` prints the round trip below which 95 % of a rate is used.
#[test]
fn uses_rate_up_to_the_round_trip_of_check() {
    let all = [
        ("on_miss: ask", 2, 200, 20, Some(5)),
        ("on_miss: ask", 40, 20, 20, Some(5)),
        ("on_miss: ask", 10, 100, 100, Some(200)),
        ("on_miss: ask", 20, 200, 200, Some(200)),
        ("mode: exact", 2, 100, 200, Some(5)),
        ("on_miss: admit", 2, 200, 100, Some(100)),
        ("on_miss: admit", 10, 100, 100, Some(50)),
        ("on_miss: admit", 40, 100, 100, Some(20)),
        ("on_miss: admit", 2, 200, 20, None),
        ("on_miss: refuse", 2, 200, 100, Some(50)),
        ("on_miss: refuse", 40, 100, 1_000, Some(10)),
        ("on_miss: refuse", 10, 20, 40, None),
    ];
    for row @ (fields, hosts, rate, burst, stated_ms) in all {
        let rules = format!(
            "domain: api\nlimits: [{{name: a, key: [u], rate: {rate}/s, burst: {burst}, scope: fleet, fleet: {{{fields}}}}}]\n"
        );
        let rule = domains(&rules)[0].rules()[0].clone();
        let bound = FleetBound::of(&rule.fleet.unwrap(), rule.limit.quota().unwrap(), hosts).unwrap();
        let (credit, asks) = match bound.on_miss {
            OnMiss::Ask if fields == "mode: exact" => (0, RemoteCheckWait::Always),
            OnMiss::Ask => (0, RemoteCheckWait::OnMiss),
            OnMiss::Admit => (100, RemoteCheckWait::Never),
            OnMiss::Refuse => (0, RemoteCheckWait::Never),
        };
        let is_used = [900, 2_000].map(|load| {
            let round_trip_us = stated_ms.unwrap_or(10) * 900;
            let cell = Plan::cell(hosts, Shape::Zipf, load);
            let plan = Plan { rate, burst, credit, asks, round_trip_us, ms: 20_000, ..cell };
            run(&plan).measure.seen().used >= 0.95
        });
        let found = (bound.round_trip_max_us, is_used == [true; 2]);
        assert_eq!(found, (stated_ms.map(|ms| ms * 1_000), stated_ms.is_some()), "{row:?}");
    }
}

/// 300 callers (100 without `RUNS`), each three requests a second, on 8 hosts.
#[test]
fn allows_callers_below_their_limit() {
    let (tenants, ms) = (if is_short() { 100 } else { 300 }, 20_000);
    // A host's share of the credit is an eighth of a token, and more than one.
    for (rate, cells_most) in [(10, 1.02), (100, 0.75)] {
        let load = u64::from(tenants * 3 * 1_000 / rate);
        let plan = Plan { rate, burst: rate, tenants, ms, ..Plan::cell(8, Shape::Even, load) };
        let seen = run(&plan).measure.seen();
        let cells = seen.cells * ms as f64 / 1_000.0 / seen.offered as f64;
        assert!(seen.used >= 0.99, "{seen:?} by {rate}/s");
        assert!(cells <= cells_most, "{cells} cells for each request by {rate}/s");
    }
}

/// With `on_miss: refuse`, by callers that do not retry after 100 ms, as a refusal says.
#[test]
fn refused_tokens_stay_until_the_retry() {
    let cell = Plan { rate: 10, burst: 10, credit: 0, ..Plan::cell(2, Shape::Even, 0) };
    let ask = |world: &mut World, host, cost| {
        let us = world.us;
        world.host(host).ask(FleetRequest { cost, ..FleetRequest::new(0) }, us).unwrap().passed
    };
    for (cost, every_ms) in [(1, 250), (2, 250), (5, 250), (2, 500), (5, 1_000)] {
        let mut world = World::started(&cell);
        world.advance(3_000, |_| {});
        let mut passed = 0;
        world.advance(10_000, |world| {
            passed += u64::from(world.us.is_multiple_of(every_ms * 1_000) && ask(world, 0, cost));
        });
        // In the worst case each other one is a retry.
        assert!(passed * every_ms * 2 >= 10_000, "{passed} of cost {cost} every {every_ms} ms");
    }
    // Without a retry another host gets all of a day's tokens.
    let mut world = World::started(&Plan { period_s: 86_400, ..cell });
    world.advance(3_000, |_| {});
    assert!(!ask(&mut world, 0, 5));
    let mut passed = false;
    world.advance(2_500, |world| passed |= world.us.is_multiple_of(100_000) && ask(world, 1, 10));
    assert!(passed, "the tokens return");
}
