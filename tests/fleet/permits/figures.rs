//! Tests utilization without faults and around outages.

use tidegate::limit::share::Fallback;

use super::world::{Seen, WorkPlan, run};
use crate::plan::{Outage, Plan, Shape, is_short};

/// Plans `hosts` hosts, 1 000 permits, 100 ms each; `load` in thousandths of full utilization.
fn plan(hosts: u32, shape: Shape, load: u32) -> WorkPlan {
    let ms = if is_short() { 4_000 } else { 60_000 };
    let base = Plan { rate: 10_000, burst: 1_000, ms, ..Plan::cell(hosts, shape, load) };
    let (asks, when_down) = (true, Fallback::Share);
    WorkPlan { base, service_ms: 100, when_down, asks, held: 0, leaves: 0 }
}

fn tell(plan: &WorkPlan) -> Seen {
    let seen = run(plan);
    let seconds = plan.base.ms as f64 / 1_000.0;
    println!(
        "{:?}, {} of {} hosts, {:?}, {:.1} x, {} us: used {:.3}, most {}, {} cells/s, begun {:.3} (one counter {:.3}), \
         held {:.0}, in flight {:.0}, waited {:.3}, refused while free {}",
        plan.asks,
        plan.base.burst,
        plan.base.hosts,
        plan.base.shape,
        f64::from(plan.base.load) / 1_000.0,
        plan.base.round_trip_us,
        seen.used(),
        seen.most,
        (seen.cells as f64 / seconds) as u64,
        seen.begun as f64 / seen.asked as f64,
        seen.perfect_begun as f64 / seen.asked as f64,
        seen.held as f64 / (seconds * 10.0),
        seen.in_flight as f64 / plan.base.ms as f64,
        seen.waited as f64 / seen.asked as f64,
        seen.refused_while_free,
    );
    seen
}

#[test]
fn connected_hosts_stay_within_maximum_and_use_most_of_it() {
    let (hosts, loads): (u32, &[u32]) = if is_short() { (10, &[1_500]) } else { (100, &[700, 1_500]) };
    for shape in [Shape::Even, Shape::Zipf] {
        for &load in loads {
            let plan = plan(hosts, shape, load);
            let base = Plan { rate: hosts * 100, burst: hosts * 10, ..plan.base };
            let seen = tell(&WorkPlan { base, ..plan });
            assert!(seen.most <= hosts * 10, "{seen:?}");
            assert!(seen.used() >= 0.85, "{shape:?} {load}: {}", seen.used());
        }
    }
}

#[test]
fn renews_permits_of_many_leases_in_batches() {
    let plan = plan(1, Shape::Even, 1_500);
    let base = Plan { ms: 4_000, burst: 800, rate: 800, ..plan.base };
    let seen = tell(&WorkPlan { service_ms: 1_000, base, ..plan });
    assert!((600..=800).contains(&seen.most), "{seen:?}");
    assert!(seen.used() >= 0.9, "{seen:?}");
}

#[test]
fn flushed_redis_grants_no_permit_before_all_hosts_report() {
    let mut plan = WorkPlan { when_down: Fallback::Refuse, ..plan(10, Shape::Even, 1_500) };
    plan.base = Plan { ms: 16_000, burst: 60, rate: 600, ..plan.base };
    plan.base.faults.outages.push(Outage { from_ms: 2_000, to_ms: 2_300, empty: true, later_ms: 0 });
    let seen = tell(&plan);
    assert!(seen.most <= 60 && seen.most_loose == 0, "{seen:?}");
    // Redis grants nothing for six seconds after the loss.
    assert!(seen.used() > 0.55, "{seen:?}");
}

#[test]
fn excess_leases_of_an_outage_are_not_replaced() {
    let mut plan = WorkPlan { when_down: Fallback::Local, ..plan(10, Shape::Even, 2_000) };
    plan.base = Plan { ms: 7_000, burst: 60, rate: 600, ..plan.base };
    plan.base.faults.outages.push(Outage { from_ms: 1_000, to_ms: 3_000, empty: false, later_ms: 0 });
    let seen = tell(&plan);
    assert!(seen.most > 72, "the outage admits more: {seen:?}");
    assert!(seen.most_at_end <= 60 && seen.most_at_end >= 54, "{seen:?}");
}

/// Plans `max` permits over twenty hosts: less than four for each.
fn few(max: u32, shape: Shape, load: u32, asks: bool) -> WorkPlan {
    let plan = plan(20, shape, load);
    WorkPlan { base: Plan { rate: max * 10, burst: max, ..plan.base }, asks, ..plan }
}

#[test]
fn pending_requests_use_few_permits_fully() {
    for shape in [Shape::Even, Shape::OneHot] {
        for load in [300, 1_500] {
            if !is_short() {
                // For comparison: without pending requests.
                tell(&few(10, shape, load, false));
            }
            let seen = tell(&few(10, shape, load, true));
            assert!(seen.most <= 10, "{seen:?}");
            assert!(seen.used() >= 0.85, "{shape:?} {load}: {}", seen.used());
            // With enough permits for all, no request is refused.
            assert!(load > 1_000 || seen.begun == seen.asked, "{shape:?} {load}: {seen:?}");
        }
    }
}
