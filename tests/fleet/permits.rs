//! Tests concurrency over many hosts: utilization without faults and around outages, and random small runs with
//! faults. [`Leases`](crate::leases::Leases) checks each millisecond.

use tidegate::limit::share::{Fallback, RemoteCheckWait};

use crate::leases::Leases;
use crate::plan::{Crash, Faults, Outage, Plan, SHAPES, Shape, draws, each_seed, is_short, runs, seed};
use crate::rules::Kind;
use crate::world;

/// Plans leases of 100 ms under `max` permits; `load` in thousandths of full utilization.
fn plan(hosts: u32, max: u32, shape: Shape, load: u64) -> Plan {
    Plan {
        kind: Kind::Permits,
        asks: RemoteCheckWait::OnMiss,
        rate: max * 10,
        burst: max,
        service_ms: 100,
        ms: if is_short() { 4_000 } else { 60_000 },
        ..Plan::cell(hosts, shape, load)
    }
}

/// Returns the leases and the number of requests and of those that waited.
fn run(plan: &Plan) -> (Leases, u64, u64) {
    let world = world::run(plan);
    (world.leases.unwrap(), world.measure.seen().offered, world.measure.waited)
}

/// Also many leases of one host, which it renews in batches, and less than four permits for each host.
#[test]
fn connected_hosts_stay_within_maximum_and_use_most_of_it() {
    let hosts = if is_short() { 10 } else { 100 };
    let batches = Plan { service_ms: 1_000, rate: 800, ms: 4_000, ..plan(1, 800, Shape::Even, 1_500) };
    for (plan, least) in [
        (plan(hosts, hosts * 10, Shape::Even, 1_500), 0.8),
        (plan(hosts, hosts * 10, Shape::Zipf, 1_500), 0.8),
        (batches, 0.7),
        (plan(20, 10, Shape::Even, 1_500), 0.7),
        (plan(20, 10, Shape::OneHot, 1_500), 0.7),
        (plan(20, 10, Shape::Even, 300), 0.0),
        (plan(20, 10, Shape::OneHot, 300), 0.0),
    ] {
        let (seen, asked, waited) = run(&plan);
        assert!(seen.most <= plan.burst, "{} at once: {plan:?}", seen.most);
        // With enough permits for all, no request is refused.
        let is_used = if plan.load > 1_000 { seen.used() >= least } else { seen.begun == asked };
        assert!(is_used, "{} used, {} of {asked}: {plan:?}", seen.used(), seen.begun);
        assert!(plan.hosts > 1 || (450..550).contains(&(waited * 1_000 / asked)), "{waited} waited");
    }
}

#[test]
fn flushed_redis_grants_no_permit_before_all_hosts_report() {
    let faults = Faults::outage(2_000, 2_300, true);
    let plan = plan(10, 60, Shape::Even, 1_500);
    let (seen, ..) = run(&Plan { when_down: Fallback::Refuse, ms: 16_000, faults, ..plan });
    assert!(seen.most <= 60 && seen.most_loose == 0, "{} at once, {} loose", seen.most, seen.most_loose);
    // Redis grants nothing for six seconds after the loss; for the rest of the time as many are used as without a fault.
    let granting = (16.0 - 0.3 - 6.0) / 16.0;
    assert!(seen.used() >= 0.85 * granting, "{} used", seen.used());
}

/// The members of all hosts expire while Redis stands still with its data: the hosts that are back first must not get them.
#[test]
fn redis_that_stood_still_grants_no_permit_of_hosts_on_their_way_back() {
    for still_ms in [3_500, 4_500, 30_000] {
        let (ms, faults) = (still_ms + 12_000, Faults::outage(3_000, 3_000 + still_ms, false));
        let long = Plan { service_ms: 60_000, rate: 60, ms, faults, ..plan(10, 60, Shape::Even, 1_500) };
        let (seen, ..) = run(&Plan { when_down: Fallback::Refuse, ..long });
        assert_eq!(seen.most, 60, "after {still_ms} ms");
    }
}

#[test]
fn excess_leases_of_an_outage_are_not_replaced() {
    let faults = Faults::outage(1_000, 3_000, false);
    let plan = plan(10, 60, Shape::Even, 2_000);
    let (seen, ..) = run(&Plan { when_down: Fallback::Local, ms: 7_000, faults, ..plan });
    assert!(seen.most > 72, "the outage admits more: {} at once", seen.most);
    assert!((54..=60).contains(&seen.most_at_end), "{} at once at the end", seen.most_at_end);
}

/// A random small run with faults.
fn drawn(seed: u64) -> Plan {
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
    Plan {
        seed,
        rate: (max * 1_000 / service_ms).max(1),
        service_ms,
        ms,
        shape: SHAPES[draw(0, 6) as usize],
        round_trip_us: [500, 50_000, 500_000][draw(0, 2) as usize],
        tenants: [1, 1, 3][draw(0, 2) as usize],
        tick_us: [1_000, 2_000, 10_000][draw(0, 2) as usize],
        faults,
        when_down: when_down_all[draw(0, 3) as usize],
        asks: [RemoteCheckWait::OnMiss, RemoteCheckWait::Never][draw(0, 1) as usize],
        held: [0, 300][draw(0, 1) as usize],
        leaves: [0, 100][draw(0, 1) as usize],
        ..plan(hosts, max, SHAPES[0], load)
    }
}

/// Selected by `SEED` and `RUNS`; one run takes as long as ten token runs.
#[test]
fn only_hosts_in_outage_exceed_maximum_concurrency() {
    let all = each_seed(seed()..seed() + runs().div_ceil(10), drawn, run);
    let sum = |of: fn(&(Leases, u64, u64)) -> u64| all.iter().map(of).sum::<u64>();
    let (begun, waited) = (sum(|(seen, ..)| seen.begun), sum(|(.., waited)| *waited));
    let loose = sum(|(seen, ..)| u64::from(seen.most_loose));
    assert!(
        begun > 500 && loose > 0 && waited > 50,
        "too little happened: {begun} began, {loose} under hosts in an outage, {waited} waited"
    );
}
