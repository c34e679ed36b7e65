//! Mappings, the reserve and queue age, by tables.

use std::time::Duration;

use proptest::prelude::*;
use tidegate::clock::Micros;
use tidegate::shed::PoolLoad;
use tidegate::shed::mapping::utilization;
use tidegate::shed::queue_age::is_too_old;

/// Readings and thousandths.
type Map = &'static [(u32, u16)];

#[test]
fn mapping_interpolates_between_points_and_is_flat_outside() {
    let queue: Map = &[(4, 0), (8, 700), (16, 800), (64, 1_000)];
    let table: &[(Map, u32, f64)] = &[
        (queue, 0, 0.0),
        (queue, 4, 0.0),
        (queue, 6, 0.35),
        (queue, 8, 0.7),
        (queue, 12, 0.75),
        (queue, 64, 1.0),
        (queue, u32::MAX, 1.0),
        (&[(10, 500)], 0, 0.5),
        (&[(10, 500)], 10, 0.5),
        (&[(10, 500)], 99, 0.5),
        // A jump, and a line that falls.
        (&[(0, 0), (10, 200), (10, 900), (20, 1_000)], 9, 0.18),
        (&[(0, 0), (10, 200), (10, 900), (20, 1_000)], 10, 0.9),
        (&[(0, 1_000), (10, 0)], 5, 0.5),
        (&[(0, 0), (u32::MAX, 1_000)], u32::MAX, 1.0),
        (&[], 5, 0.0),
    ];
    for (map, reading, expected) in table {
        let is = utilization(map, *reading);
        assert!((is - expected).abs() < 1e-12, "{reading} on {map:?}: {is}, expected {expected}");
    }
}

#[test]
fn maximum_here_is_fleet_part_less_other_hosts() {
    // Slots and other requests elsewhere, slots here, the reserve, and the maximum for this host.
    let table = [
        (0, 0, 100, 200, 80),
        (100, 0, 100, 200, 160), // the other host is idle: its part may be used here
        (100, 80, 100, 200, 80),
        (100, 159, 100, 200, 1),
        (100, 160, 100, 200, 0),
        (100, 500, 100, 200, 0), // it has more than it should
        (u64::MAX, 0, 1, 0, u32::MAX),
        (u64::MAX, u64::MAX, u32::MAX, 0, 0),
    ];
    for (slots, others, here, reserve, most) in table {
        let elsewhere = PoolLoad { slots, critical: 5, noncritical: others };
        assert_eq!(elsewhere.noncritical_max_here(here, reserve), most, "{elsewhere:?}, {here}, {reserve}");
    }
}

#[test]
fn request_older_than_bound_is_too_old() {
    let bound = Duration::from_millis(500);
    let table = [
        (0, false),
        (500_000, false),
        (500_001, true),
        (60_000_000, true),
        (60_000_001, false), // a clock that is off
        (u64::MAX, false),
    ];
    for (queued, too_old) in table {
        assert_eq!(is_too_old(Micros(queued), bound), too_old, "{queued} µs");
    }
    assert!(is_too_old(Micros(1), Duration::ZERO));
    assert!(!is_too_old(Micros(60_000_000), Duration::from_secs(60)));
}

proptest! {
    #[test]
    fn mapping_stays_within_its_points(
        map in proptest::collection::vec((any::<u32>(), 0_u16..=1_000), 1..10), reading in any::<u32>(), is_sorted in any::<bool>(),
    ) {
        let mut map = map;
        if is_sorted {
            map.sort_unstable();
        }
        let is = utilization(&map, reading);
        let lowest = map.iter().map(|point| point.1).min().unwrap();
        let highest = map.iter().map(|point| point.1).max().unwrap();
        prop_assert!(is >= f64::from(lowest) / 1_000.0 - 1e-12 && is <= f64::from(highest) / 1_000.0 + 1e-12, "{is}");
    }

    #[test]
    fn reserve_is_exact(slots in any::<u32>(), reserve in 0_u16..=1_000) {
        let exact = u64::from(slots) * u64::from(1_000 - reserve);
        let most = u64::from(PoolLoad::default().noncritical_max_here(slots, reserve)) * 1_000;
        prop_assert!(most <= exact && exact < most + 1_000);
    }
}
