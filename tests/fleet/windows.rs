//! Tests windows over many hosts: total admissions per window under faults, and utilization.

use jiff::tz::TimeZone;
use tidegate::limit::fixed_window::{self, WindowAlign, WindowPeriod};
use tidegate::limit::share::{self, Fallback};
use tidegate::limit::{Quota, sliding_window};

use crate::plan::{Crash, Faults, Outage, Plan, SHAPES, Shape, draws, each_seed, is_short, runs, seed};
use crate::world::{WARM_MS, World, run};

/// Kind of window that a plan has instead of a bucket.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    Fixed,
    /// In a time zone: hosts send its edges to Redis.
    Calendar,
    Sliding,
}

/// Returns the quota of `count` per window of `seconds` on one host.
fn like(count: u32, seconds: u64, kind: Kind) -> Quota {
    let nanos = seconds * 1_000_000_000;
    let fixed = |align| {
        Quota::FixedWindow(
            fixed_window::FixedWindowQuota::new(count, WindowPeriod::Nanos(nanos), align).unwrap(),
        )
    };
    match kind {
        Kind::Fixed => fixed(WindowAlign::Epoch),
        Kind::Calendar => fixed(WindowAlign::Zone(TimeZone::get("Europe/Berlin").unwrap())),
        Kind::Sliding => {
            Quota::SlidingWindow(sliding_window::SlidingWindowQuota::new(count, nanos, 10).unwrap())
        }
    }
}

pub(crate) fn quota(plan: &Plan, kind: Kind) -> share::ShareQuota {
    share::ShareQuota::for_window(like(plan.burst, plan.period_s, kind), plan.credit, plan.when_down).unwrap()
}

/// Returns the plan with windows of its rate.
fn windowed(plan: Plan, kind: Kind) -> Plan {
    // Without Redis only borrowed tokens are spent: admissions never exceed the bound.
    let when_down = if plan.credit == 0 { Fallback::Refuse } else { Fallback::Share };
    Plan { burst: plan.rate, window: Some(kind), when_down, ..plan }
}

/// Admissions by millisecond, on the Redis clock.
fn admitted<'w>(world: &'w World<'_>) -> impl Iterator<Item = (u64, u32)> + 'w {
    let start_us = world.store_us + WARM_MS * 1_000;
    (0..).map(move |ms| start_us + ms * 1_000).zip(world.measure.admitted.iter().copied())
}

/// Returns the most admitted in any window, and utilization of the windows within the run.
pub(crate) fn seen(world: &World<'_>, plan: &Plan, kind: Kind) -> (u64, f64) {
    let span = plan.period_s * 1_000_000;
    let all: Vec<(u64, u32)> = admitted(world).collect();
    if kind == Kind::Sliding {
        let (mut first, mut sum, mut most) = (0, 0, 0);
        for (us, count) in &all {
            sum += u64::from(*count);
            while all[first].0 + span <= *us {
                sum -= u64::from(all[first].1);
                first += 1;
            }
            most = most.max(sum);
        }
        let (mut had, mut ideal) = (0.0, 0.0);
        // Compared with one counter of the last span.
        let mut passed: std::collections::VecDeque<u64> = std::collections::VecDeque::new();
        for ((us, count), offered) in all.iter().zip(&world.measure.offered) {
            while passed.front().is_some_and(|at| at + span <= *us) {
                passed.pop_front();
            }
            let fits = u64::from(*offered).min(u64::from(plan.rate) - passed.len() as u64);
            passed.extend(std::iter::repeat_n(*us, fits as usize));
            had += f64::from(*count);
            ideal += fits as f64;
        }
        return (most, had / f64::max(ideal, 1.0));
    }
    let (mut most, mut had, mut ideal) = (0, 0.0, 0.0);
    let windows =
        all.iter().zip(&world.measure.offered).map(|((us, count), offered)| (us / span, *count, *offered));
    let windows: Vec<_> = windows.collect();
    let (first, last) = (windows[0].0, windows[windows.len() - 1].0);
    for window in windows.chunk_by(|one, next| one.0 == next.0) {
        let sum: u64 = window.iter().map(|(_, count, _)| u64::from(*count)).sum();
        most = most.max(sum);
        if window[0].0 > first && window[0].0 < last {
            let offered: u64 = window.iter().map(|(_, _, offered)| u64::from(*offered)).sum();
            had += sum as f64;
            ideal += offered.min(u64::from(plan.rate)) as f64;
        }
    }
    (most, had / f64::max(ideal, 1.0))
}

pub(crate) fn plan(seed: u64) -> (Plan, Kind) {
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
        tick_ms: [1, 2, 10][draw(0, 2) as usize],
        faults,
        ..Plan::cell(hosts, Shape::Even, load)
    };
    (windowed(plan, kind), kind)
}

/// Selected by `SEED` and `RUNS`.
#[test]
fn windows_stay_within_limit_under_any_fault() {
    each_seed(seed()..seed() + runs().div_ceil(5), plan, |(plan, kind)| {
        let world = run(plan);
        let (most, _) = seen(&world, plan, *kind);
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
    let hosts: &[u32] = if is_short() { &[10] } else { &[2, 10, 100] };
    let mut faults = Vec::new();
    for (kind, period_s, least) in
        [(Kind::Fixed, 10, 0.97), (Kind::Sliding, 10, 0.85), (Kind::Fixed, 1, 0.85)]
    {
        for hosts in hosts {
            let loads = [
                (Shape::Zipf, 2_000, 0),
                (Shape::Moving, 2_000, 100),
                (Shape::Even, 900, 0),
                (Shape::Zipf, 2_000, 100),
            ];
            for (shape, load, credit) in loads.into_iter().take(if is_short() { 2 } else { 4 }) {
                let rate = if is_short() { 500 } else { 1_000 } * period_s as u32;
                let ms = 4 * period_s.max(5) * 1_000;
                let plan = Plan { rate, period_s, ms, credit, ..Plan::cell(*hosts, shape, load) };
                let plan = windowed(plan, kind);
                let world = run(&plan);
                let (most, used) = seen(&world, &plan, kind);
                let extra = if credit == 0 { 0 } else { u64::from(rate) / 10 };
                assert!(most <= u64::from(rate) + extra, "{most}: {plan:#?}");
                if used < least {
                    faults.push(format!(
                        "{kind:?} {period_s} s, {hosts} hosts, {shape:?} {load} {credit}: {used:.3}"
                    ));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn flushed_redis_grants_no_window_twice() {
    for kind in [Kind::Fixed, Kind::Sliding] {
        let faults = Faults { flushes_ms: vec![4_000, 13_000], ..Faults::default() };
        let cell = Plan::cell(10, Shape::Even, 5_000);
        let plan = windowed(Plan { period_s: 5, ms: 25_000, credit: 0, faults, ..cell }, kind);
        let world = run(&plan);
        let (most, _) = seen(&world, &plan, kind);
        assert!(most <= 1_000, "{most}, {kind:?}");
        // It never refuses for longer than a window and its oldest sub-bucket.
        let last: u32 = world.measure.admitted[20_000..].iter().sum();
        assert!(last > 0, "{kind:?}: something passes again");
    }
}

#[test]
fn spent_window_sends_one_command_per_host_and_hold() {
    let cell = Plan::cell(5, Shape::Even, 60_000);
    let plan = windowed(Plan { rate: 100, period_s: 60, ms: 50_000, credit: 0, ..cell }, Kind::Fixed);
    let world = run(&plan);
    let admitted: u32 = world.measure.admitted.iter().sum();
    let cells: u64 = world.measure.cells.iter().sum();
    // One window, or two if an edge lies in the run.
    assert!((100..=200).contains(&admitted), "{admitted} admitted");
    // At most one command for each token, and then one for each host and hold of 1.9 s.
    let holds = plan.ms * 10 / 19_000 + 1;
    assert!(cells <= u64::from(admitted) + 5 * holds, "{cells} cells");
}
