//! Tests the stated figures: R = B = 1 000, a minute. Each test run covers a few, the nightly run all.

use crate::measure::Seen;
use crate::plan::{Plan, SHAPES, Shape, is_short};
use crate::world::run;

/// Checks the bounds stated for every run.
pub(crate) fn check_bounds(plan: &Plan, seen: &Seen) {
    if plan.credit == 0 {
        assert!(seen.excess <= 0.001, "{seen:?}: {plan:#?}");
    }
    assert!(
        seen.excess_leaking <= plan.extra() + 0.001,
        "{} tokens, {seen:?}: {plan:#?}",
        seen.excess_leaking
    );
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
            1_000..=10_000 => {
                if is_small {
                    0.93
                } else {
                    0.85
                }
            }
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
    let cells = |hosts| SHAPES.map(|shape| Plan::cell(hosts, shape, 1_000));
    if is_short() {
        return check(&cells(10).map(|cell| Plan { ms: 20_000, ..cell }));
    }
    let mut plans = [cells(2), cells(10)].concat();
    plans.extend(SHAPES.map(|shape| Plan::cell(100, shape, 1_000)));
    plans.extend([Shape::Zipf, Shape::Flash].map(|shape| Plan::cell(1_000, shape, 1_000)));
    plans.push(Plan::cell(10, Shape::Even, 10_000));
    plans.push(Plan::cell(100, Shape::Zipf, 10_000));
    plans.push(Plan { credit: 0, ..Plan::cell(100, Shape::Flash, 2_000) });
    for round_trip_us in [50_000, 500_000] {
        plans.extend([2, 100].map(|hosts| Plan { round_trip_us, ..Plan::cell(hosts, Shape::Zipf, 2_000) }));
    }
    check(&plans);
}

/// Selected by `HOSTS=10 SHAPES=Even,Zipf LOADS=500,1000 RHO=500 CREDIT=100`; the default is all.
#[test]
#[ignore = "minutes: in the nightly run"]
fn keeps_bounds_in_every_cell() {
    let list = |name: &str, or: &str| -> Vec<String> {
        std::env::var(name).unwrap_or_else(|_| or.to_owned()).split(',').map(str::to_owned).collect()
    };
    let numbers = |name, or| list(name, or).iter().map(|text| text.parse().unwrap()).collect::<Vec<u32>>();
    let shapes = list("SHAPES", "Even,Zipf,OneHot,Moving,Flash,OnOff,Cold");
    let mut plans = Vec::new();
    for hosts in numbers("HOSTS", "2,10,100,1000") {
        for shape in SHAPES.iter().filter(|shape| shapes.contains(&format!("{shape:?}"))) {
            for load in numbers("LOADS", "500,1000,2000,10000,100000") {
                for round_trip_us in numbers("RHO", "500,50000,500000") {
                    for credit in numbers("CREDIT", "0,100") {
                        let round_trip_us = u64::from(round_trip_us);
                        let credit = credit as u16;
                        plans.push(Plan { round_trip_us, credit, ..Plan::cell(hosts, *shape, load) });
                    }
                }
            }
        }
    }
    check(&plans);
}
