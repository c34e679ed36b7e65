//! Tests random small runs with faults: the stated bounds hold.

use crate::plan::{Crash, Faults, Outage, Plan, SHAPES, draws, each_seed, is_short, runs, seed};
use crate::table::check_bounds;
use crate::world::run;

fn plan(seed: u64) -> Plan {
    let mut draw = draws(seed, 4);
    let rate = draw(20, 1_000);
    let load = [500, 1_000, 2_000, 10_000, 100_000][draw(0, 4) as usize];
    let hosts = [2, 3, 5, 10, 20, 50, 100][draw(0, 6) as usize];
    // At most 100 000 decisions and half a million host ticks.
    let ms = (100_000_000_000 / (u64::from(rate) * load)).min(5_000_000 / u64::from(hosts));
    let ms = ms.min(u64::from(draw(1_000, 20_000))).max(500);
    let mut faults = Faults::drawn(&mut draw, 300);
    faults.steps = draw(0, 1) == 1;
    if draw(0, 3) == 0 {
        faults.crashes.push(Crash::drawn(&mut draw, hosts, 0..ms, 4_000));
    }
    if draw(0, 4) == 0 {
        faults.outages.push(Outage::drawn(&mut draw, ms, 900));
    }
    Plan {
        seed,
        rate,
        burst: (rate * [1, 10, 50][draw(0, 2) as usize] / 10).max(1),
        ms,
        shape: SHAPES[draw(0, 6) as usize],
        credit: [0, 100][draw(0, 1) as usize],
        round_trip_us: [500, 50_000, 500_000][draw(0, 2) as usize],
        tenants: [1, 1, 5][draw(0, 2) as usize],
        tick_us: [1_000, 2_000, 10_000][draw(0, 2) as usize],
        faults,
        ..Plan::cell(hosts, SHAPES[0], load)
    }
}

/// Selected by `SEED` and `RUNS`.
#[test]
fn keeps_bounds_under_any_fault() {
    let runs = if is_short() { 5 } else { runs() };
    each_seed(seed()..seed() + runs, plan, |plan| {
        let world = run(plan);
        let seen = world.measure.seen();
        if seen.cut_offs == 0 {
            return check_bounds(plan, &seen);
        }
        // A host in an outage has its share, by the host count it knows, beside tokens that the others
        // borrow.
        let bursts = (1.5 + world.measure.parts_too_large()) * f64::from(plan.burst);
        let most = plan.extra() + bursts + world.measure.earned_alone() + f64::from(plan.hosts);
        assert!(seen.excess_leaking <= most, "{seen:?}");
    });
}
