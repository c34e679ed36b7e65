//! Tests random small runs with faults: leases exceed the maximum only on hosts in an outage.
//! [`world`](super::world) checks each millisecond.

use tidegate::limit::share::Fallback;

use super::world::{Seen, WorkPlan, run};
use crate::plan::{Crash, Faults, Outage, Plan, SHAPES, draws, each_seed, runs, seed};

fn plan(seed: u64) -> WorkPlan {
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

/// Selected by `SEED` and `RUNS`; one run takes as long as ten token runs.
#[test]
fn only_hosts_in_outage_exceed_maximum_concurrency() {
    let all = each_seed(seed()..seed() + runs().div_ceil(10), plan, run);
    let sum = |of: fn(&Seen) -> u64| all.iter().map(of).sum::<u64>();
    let (begun, waited) = (sum(|seen| seen.begun), sum(|seen| seen.waited));
    let loose = sum(|seen| u64::from(seen.most_loose));
    assert!(
        begun > 500 && loose > 0 && waited > 50,
        "too little happened: {begun} began, {loose} under hosts in an outage, {waited} waited"
    );
}
