//! Tests the use of a budget whose burst is small beside the tokens earned in a round trip.

use super::{Costs, ONE, Routing, Scenario, Seen, run};
use crate::plan::is_short;

/// Three hosts and one caller at 100/s; the round trip grows after a quarter of the run.
fn far(burst: u32, load: f64, routing: Routing, round_trips: &[u64]) -> Scenario<'_> {
    let seconds = if is_short() { 20 } else { 60 };
    Scenario { hosts: 3, rate: 100, burst, load, routing, round_trips, seconds, ..ONE }
}

/// The part of the requests that a perfect bucket admits.
fn used(row: &Scenario<'_>, seen: &Seen) -> f64 {
    let might = f64::from(row.burst) + f64::from(row.rate) * row.seconds as f64;
    (seen.asked - seen.refused) as f64 / (seen.asked as f64).min(might)
}

/// The tokens earned in three round trips.
fn excess_max(row: &Scenario<'_>, round_trip_us: u64) -> f64 {
    f64::from(row.rate) * (3.0 * round_trip_us as f64 / 1e6 + 0.005)
}

#[test]
fn uses_budget_at_long_round_trips() {
    let all = [200, 20_000, 100_000, 300_000, 500_000, 800_000, 1_200_000, 2_500_000];
    let mut faults = Vec::new();
    for round_trip_us in if is_short() { all[3..6].to_vec() } else { all.to_vec() } {
        for (burst, load, routing) in
            [(100, Routing::Requests), (400, Routing::Requests), (100, Routing::Sticky)]
                .into_iter()
                .flat_map(|(burst, routing)| [3.0, 0.9].map(|load| (burst, load, routing)))
        {
            let round_trips = [1_000, round_trip_us, round_trip_us, round_trip_us];
            let row = far(burst, load, routing, &round_trips);
            let seen = run(&row);
            let used = used(&row, &seen);
            // A host that gets all requests borrows, and has its part beside.
            let least = if matches!(routing, Routing::Requests) { 0.95 } else { 0.4 };
            if used < least || seen.excess > excess_max(&row, round_trip_us) {
                faults.push(format!("used {used:.3}, {seen:?}: {row:?}"));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Covers pages after idle time, many hosts, heavy costs, and a round trip that changes every two seconds.
/// Also over minutes: what passes beyond the budget once the round trip grows is earned back before more does.
#[test]
fn admits_three_round_trips_beyond_budget_once() {
    let (steady, changing) =
        ([1_000, 800_000], [1_000, 800_000, 1_000, 300_000, 1_000, 500_000, 1_000, 50_000]);
    let rows = [
        Scenario { page: 60, callers: 4, ..far(100, 0.5, Routing::Requests, &steady) },
        Scenario { page: 300, ..far(400, 1.5, Routing::Requests, &steady) },
        Scenario { hosts: 20, ..far(100, 3.0, Routing::Requests, &steady) },
        Scenario { rate: 10, ..far(10, 3.0, Routing::Requests, &steady) },
        Scenario { costs: Costs::OneIn(10, 20), ..far(100, 2.0, Routing::Requests, &steady) },
        far(100, 3.0, Routing::Requests, &changing),
        far(400, 3.0, Routing::Requests, &changing),
        far(100, 10.0, Routing::Sticky, &changing),
    ];
    for row in rows {
        let seen = run(&row);
        assert!(seen.excess <= excess_max(&row, 800_000), "{seen:?}: {row:?}");
    }
}
