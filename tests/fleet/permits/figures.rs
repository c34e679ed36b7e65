//! Tests utilization without faults and around outages, and random small runs with faults.

use tidegate::limit::share::Fallback;

use super::world::{Seen, WorkPlan, run};
use crate::plan::{Crash, Faults, Outage, Plan, SHAPES, Shape, draws, each_seed, is_short, runs, seed};

/// Plans `hosts` hosts, 1 000 permits, 100 ms each; `load` in thousandths of full utilization.
fn plan(hosts: u32, shape: Shape, load: u32) -> WorkPlan {
    let ms = if is_short() { 4_000 } else { 60_000 };
    let base = Plan { rate: 10_000, burst: 1_000, ms, ..Plan::cell(hosts, shape, load) };
    WorkPlan { base, service_ms: 100, asks: true, held: 0, leaves: 0 }
}

#[test]
fn connected_hosts_stay_within_maximum_and_use_most_of_it() {
    let (hosts, loads): (u32, &[u32]) = if is_short() { (10, &[1_500]) } else { (100, &[700, 1_500]) };
    for shape in [Shape::Even, Shape::Zipf] {
        for &load in loads {
            let plan = plan(hosts, shape, load);
            let base = Plan { rate: hosts * 100, burst: hosts * 10, ..plan.base };
            let seen = run(&WorkPlan { base, ..plan });
            assert!(seen.most <= hosts * 10, "{seen:?}");
            assert!(seen.used() >= 0.85, "{shape:?} {load}: {}", seen.used());
        }
    }
}

#[test]
fn renews_permits_of_many_leases_in_batches() {
    let plan = plan(1, Shape::Even, 1_500);
    let base = Plan { ms: 4_000, burst: 800, rate: 800, ..plan.base };
    let seen = run(&WorkPlan { service_ms: 1_000, base, ..plan });
    assert!((600..=800).contains(&seen.most), "{seen:?}");
    assert!(seen.used() >= 0.9, "{seen:?}");
}

#[test]
fn flushed_redis_grants_no_permit_before_all_hosts_report() {
    let mut plan = plan(10, Shape::Even, 1_500);
    plan.base = Plan { when_down: Fallback::Refuse, ms: 16_000, burst: 60, rate: 600, ..plan.base };
    plan.base.faults.outages.push(Outage { from_ms: 2_000, to_ms: 2_300, empty: true, later_ms: 0 });
    let seen = run(&plan);
    assert!(seen.most <= 60 && seen.most_loose == 0, "{seen:?}");
    // Redis grants nothing for six seconds after the loss.
    assert!(seen.used() > 0.55, "{seen:?}");
}

#[test]
fn excess_leases_of_an_outage_are_not_replaced() {
    let mut plan = plan(10, Shape::Even, 2_000);
    plan.base = Plan { when_down: Fallback::Local, ms: 7_000, burst: 60, rate: 600, ..plan.base };
    plan.base.faults.outages.push(Outage { from_ms: 1_000, to_ms: 3_000, empty: false, later_ms: 0 });
    let seen = run(&plan);
    assert!(seen.most > 72, "the outage admits more: {seen:?}");
    assert!(seen.most_at_end <= 60 && seen.most_at_end >= 54, "{seen:?}");
}

/// Plans `max` permits over twenty hosts: less than four for each.
fn few(max: u32, shape: Shape, load: u32) -> WorkPlan {
    let plan = plan(20, shape, load);
    WorkPlan { base: Plan { rate: max * 10, burst: max, ..plan.base }, ..plan }
}

#[test]
fn pending_requests_use_few_permits_fully() {
    for shape in [Shape::Even, Shape::OneHot] {
        for load in [300, 1_500] {
            let seen = run(&few(10, shape, load));
            assert!(seen.most <= 10, "{seen:?}");
            assert!(seen.used() >= 0.85, "{shape:?} {load}: {}", seen.used());
            // With enough permits for all, no request is refused.
            assert!(load > 1_000 || seen.begun == seen.asked, "{shape:?} {load}: {seen:?}");
        }
    }
}

/// A random small run with faults.
fn drawn(seed: u64) -> WorkPlan {
    let mut draw = draws(seed, 14);
    let hosts = [2, 3, 5, 10, 20, 50][draw(0, 5) as usize];
    let max = draw(1, 300);
    let service_ms = [20, 100, 700][draw(0, 2) as usize];
    let load = [300, 700, 1_000, 1_500, 5_000][draw(0, 4) as usize];
    let ms = u64::from(draw(1_000, 15_000)).min(200_000 / u64::from(hosts)).max(1_000);
    let mut faults = Faults::drawn(&mut draw, 300);
    for _ in 0..draw(0, 2) {
        faults.crashes.push(Crash::drawn(&mut draw, hosts, 0..ms, 4_000));
    }
    faults.crashes.dedup_by_key(|crash| crash.host);
    if draw(0, 2) == 0 {
        faults.outages.push(Outage::drawn(&mut draw, ms, 6_000));
    }
    let when_down_all = [Fallback::Share, Fallback::Refuse, Fallback::Local, Fallback::Allow];
    let base = Plan {
        seed,
        hosts,
        rate: (max * 1_000 / service_ms).max(1),
        burst: max,
        ms,
        load,
        shape: SHAPES[draw(0, 6) as usize],
        round_trip_us: [500, 50_000, 500_000][draw(0, 2) as usize],
        tenants: [1, 1, 3][draw(0, 2) as usize],
        tick_ms: [1, 2, 10][draw(0, 2) as usize],
        faults,
        when_down: when_down_all[draw(0, 3) as usize],
        ..Plan::cell(hosts, SHAPES[0], load)
    };
    let asks = [true, false][draw(0, 1) as usize];
    let (held, leaves) = ([0, 300][draw(0, 1) as usize], [0, 100][draw(0, 1) as usize]);
    WorkPlan { base, service_ms, asks, held, leaves }
}

/// [`world`](super::world) checks each millisecond. Selected by `SEED` and `RUNS`; one run takes as long as ten token runs.
#[test]
fn only_hosts_in_outage_exceed_maximum_concurrency() {
    let all = each_seed(seed()..seed() + runs().div_ceil(10), drawn, run);
    let sum = |of: fn(&Seen) -> u64| all.iter().map(of).sum::<u64>();
    let (begun, waited) = (sum(|seen| seen.begun), sum(|seen| seen.waited));
    let loose = sum(|seen| u64::from(seen.most_loose));
    assert!(
        begun > 500 && loose > 0 && waited > 50,
        "too little happened: {begun} began, {loose} under hosts in an outage, {waited} waited"
    );
}
