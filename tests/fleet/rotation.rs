//! Tests admissions beyond one budget while hosts restart one by one with another fleet secret, at twice the
//! rate.

use tidegate::limit::share::Fallback;

use crate::plan::{Faults, Plan, Rollout, Shape};
use crate::windows::{self, Kind};
use crate::world::run;

const HOSTS: u32 = 4;
const FROM_MS: u64 = 3_000;
const APART_MS: u64 = 1_000;
const NEW: u8 = 77;

fn rotation(window: Option<Kind>) -> Plan {
    let restart = |host: u32| Rollout { host, at_ms: FROM_MS + u64::from(host) * APART_MS, secret: NEW };
    let rollouts = (0..HOSTS).map(restart).collect();
    let faults = Faults { rollouts, ..Faults::default() };
    let cell = Plan::cell(HOSTS, Shape::Even, 2_000);
    Plan { ms: 14_000, period_s: 2, credit: 0, when_down: Fallback::Refuse, window, faults, ..cell }
}

#[test]
fn admits_one_more_burst_and_twice_the_rate_while_two_secrets_are_in_use() {
    let plan = rotation(None);
    let seen = run(&plan).measure.seen();
    let overlap_ms = u64::from(HOSTS - 1) * APART_MS;
    let most = f64::from(plan.burst) + plan.budget_per_ms() * overlap_ms as f64;
    assert!(seen.excess <= most, "{seen:?}: {plan:#?}");
    assert!(seen.excess >= f64::from(plan.burst) / 2.0, "the keys begin anew: {seen:?}");
    assert!(seen.used > 0.9, "{seen:?}");
}

#[test]
fn admits_two_windows_in_one_while_two_secrets_are_in_use() {
    for kind in [Kind::Fixed, Kind::Sliding] {
        let plan = rotation(Some(kind));
        let (most, _) = windows::seen(&run(&plan), &plan, kind);
        assert!(most <= 2 * u64::from(plan.rate), "{most}: {plan:#?}");
        assert!(most > u64::from(plan.rate), "the keys begin anew: {most}");
    }
}
