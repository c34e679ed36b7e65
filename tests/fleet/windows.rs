//! Tests windows over many hosts: total admissions per window under faults, and utilization.

use tidegate::limit::share::Fallback;

use crate::plan::{Crash, Faults, Outage, Plan, SHAPES, Shape, draws, each_seed, is_short, runs, seed};
use crate::rules::Kind;
use crate::world::{World, run};

/// Returns the plan with windows of its rate.
fn windowed(plan: Plan, kind: Kind) -> Plan {
    // Without Redis only borrowed tokens are spent: admissions never exceed the bound.
    let when_down = if plan.credit == 0 { Fallback::Refuse } else { Fallback::Share };
    Plan { burst: plan.rate, kind, when_down, ..plan }
}

/// Returns the most admitted in any window, and how many were admitted as a portion of those that one counter would admit.
pub(crate) fn seen(world: &World, plan: &Plan) -> (u64, f64) {
    let span = plan.period_s * 1_000;
    let begin = (world.store_us + plan.begins_us()) / 1_000;
    // Where the window of a millisecond of the run begins.
    let start = |at: u64| match plan.kind {
        Kind::Sliding => (at + 1).saturating_sub(span),
        _ => at.saturating_sub((begin + at) % span),
    };
    // Sums until each millisecond.
    let (mut admitted, mut ideal, mut most) = (vec![0], vec![0], 0);
    for at in 0..plan.ms as usize {
        let from = start(at as u64) as usize;
        admitted.push(admitted[at] + u64::from(world.measure.admitted[at]));
        most = most.max(admitted[at + 1] - admitted[from]);
        let room = u64::from(plan.rate) - (ideal[at] - ideal[from]);
        ideal.push(ideal[at] + room.min(world.measure.offered[at].into()));
    }
    (most, admitted[admitted.len() - 1] as f64 / f64::max(ideal[ideal.len() - 1] as f64, 1.0))
}

pub(crate) fn plan(seed: u64) -> Plan {
    let mut draw = draws(seed, 9);
    let kind = [Kind::Fixed, Kind::Sliding, Kind::Calendar][draw(0, 2) as usize];
    let (rate, period_s) = (draw(1, 1_000), [1, 2, 5, 10][draw(0, 3) as usize]);
    let load = [500, 1_000, 2_000, 10_000][draw(0, 3) as usize];
    let hosts = [2, 3, 5, 10, 20, 50][draw(0, 5) as usize];
    let ms = u64::from(draw(5_000, 15_000)).min(3_000_000 / u64::from(hosts));
    let mut faults = Faults::drawn(&mut draw, 300);
    faults.steps = draw(0, 1) == 1;
    if draw(0, 2) == 0 {
        faults.crashes.push(Crash::drawn(&mut draw, hosts, 0..ms, 6_000));
    }
    if draw(0, 2) == 0 {
        let outage = Outage::drawn(&mut draw, ms, 5_000);
        faults.outages.push(Outage { later_ms: u64::from(draw(0, 300)), ..outage });
    }
    let plan = Plan {
        seed,
        rate,
        period_s,
        ms,
        shape: SHAPES[draw(0, 6) as usize],
        credit: [0, 0, 100][draw(0, 2) as usize],
        round_trip_us: [500, 50_000, 500_000][draw(0, 2) as usize],
        tick_us: [1_000, 2_000, 10_000][draw(0, 2) as usize],
        faults,
        ..Plan::cell(hosts, Shape::Even, load)
    };
    windowed(plan, kind)
}

/// Selected by `SEED` and `RUNS`.
#[test]
fn windows_stay_within_limit_under_any_fault() {
    each_seed(seed()..seed() + runs().div_ceil(5), plan, |plan| {
        let world = run(plan);
        let (most, _) = seen(&world, plan);
        let limit = f64::from(plan.rate);
        // A host that has just started does not know the other hosts either.
        let has_outages = world.measure.seen().cut_offs > 0 || !plan.faults.crashes.is_empty();
        let extra = match plan.credit {
            0 => 0.0,
            // A host in an outage has its share, by the host count it knows, beside tokens that the others
            // borrow, and twice in a window within the outage.
            _ if has_outages => (1.5 + 2.0 * world.measure.parts_too_large()) * limit + f64::from(plan.hosts),
            _ => plan.extra().max(f64::from(plan.hosts)),
        };
        assert!(most as f64 <= limit + extra, "{most} of {limit}");
    });
}

#[test]
fn uses_most_of_every_window() {
    let (hosts, rate) = if is_short() { (10, 500) } else { (100, 1_000) };
    for (kind, period_s, least) in
        [(Kind::Fixed, 10, 0.97), (Kind::Sliding, 10, 0.85), (Kind::Fixed, 1, 0.85)]
    {
        let loads = [(Shape::Zipf, 2_000, 0), (Shape::Moving, 2_000, 100), (Shape::Even, 900, 0)];
        for (shape, load, credit) in loads.into_iter().take(if is_short() { 2 } else { 3 }) {
            let (rate, ms) = (rate * period_s as u32, 4 * period_s.max(5) * 1_000);
            let plan = Plan { rate, period_s, ms, credit, ..Plan::cell(hosts, shape, load) };
            let plan = windowed(plan, kind);
            let (most, used) = seen(&run(&plan), &plan);
            let extra = if credit == 0 { 0 } else { u64::from(rate) / 10 };
            assert!(most <= u64::from(rate) + extra && used >= least, "{most}, {used:.3} used: {plan:#?}");
        }
    }
}
