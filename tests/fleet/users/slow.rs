//! Tests the use of a budget whose burst is small beside the tokens earned in a round trip.

use super::{ONE, Seen, one, see};
use crate::load::{Costs, Pages, Routing};
use crate::plan::{Plan, is_short};

/// Three hosts and one caller at 100/s; the round trip, 1 ms at first, changes to each of these.
fn far(burst: u32, load: u64, pages: Pages, then_us: &[u64]) -> Plan {
    let ms = if is_short() { 20_000 } else { 60_000 };
    Plan { load, ms, pages: Some(pages), then_us: then_us.to_vec(), ..one(3, (100, burst)) }
}

/// The part of the requests that a perfect bucket admits.
fn used(row: &Plan, seen: &Seen) -> f64 {
    let might = f64::from(row.burst) + row.budget_per_ms() * row.ms as f64;
    (seen.asked - seen.refused) as f64 / (seen.asked as f64).min(might)
}

/// The tokens earned in three round trips.
fn excess_max(row: &Plan, round_trip_us: u64) -> f64 {
    f64::from(row.rate) * (3.0 * round_trip_us as f64 / 1e6 + 0.005)
}

#[test]
fn uses_budget_at_long_round_trips() {
    let all = [200, 20_000, 100_000, 300_000, 500_000, 800_000, 1_200_000, 2_500_000];
    let mut faults = Vec::new();
    let sticky = Pages { routing: Routing::Sticky, ..ONE };
    for round_trip_us in if is_short() { all[3..6].to_vec() } else { all.to_vec() } {
        // A host that gets all requests borrows, and has its part beside.
        for (burst, pages, least) in [(100, ONE, 0.95), (400, ONE, 0.95), (100, sticky, 0.4)] {
            for load in [3_000, 900] {
                let row = far(burst, load, pages, &[round_trip_us; 3]);
                let seen = see(&row);
                let used = used(&row, &seen);
                if used < least || seen.excess > excess_max(&row, round_trip_us) {
                    faults.push(format!("used {used:.3}, {seen:?}: {row:?}"));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Covers pages after idle time, many hosts, heavy costs, and a round trip that changes every two seconds.
/// Also over minutes: what passes beyond the budget once the round trip grows is earned back before more does.
#[test]
fn admits_three_round_trips_beyond_budget_once() {
    let (steady, changing) = ([800_000], [800_000, 1_000, 300_000, 1_000, 500_000, 1_000, 50_000]);
    let paged = |page| Pages { page, ..ONE };
    let heavy = Pages { costs: Costs::OneIn(10, 20), ..ONE };
    let rows = [
        Plan { tenants: 4, ..far(100, 500, paged(60), &steady) },
        far(400, 1_500, paged(300), &steady),
        Plan { hosts: 20, ..far(100, 3_000, ONE, &steady) },
        Plan { rate: 10, ..far(10, 3_000, ONE, &steady) },
        far(100, 2_000, heavy, &steady),
        far(100, 3_000, ONE, &changing),
        far(400, 3_000, ONE, &changing),
        far(100, 10_000, Pages { routing: Routing::Sticky, ..ONE }, &changing),
    ];
    for row in rows {
        let seen = see(&row);
        assert!(seen.excess <= excess_max(&row, 800_000), "{seen:?}: {row:?}");
    }
}
