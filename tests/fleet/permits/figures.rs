//! Tests utilization without faults and around outages.

use tidegate::limit::share::Fallback;

use super::world::{WorkPlan, run};
use crate::plan::{Outage, Plan, Shape, is_short};

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
