//! Retry-after: spread by half of it either way, the same for the same draw.

use std::time::Duration;

use proptest::prelude::*;
use tidegate::clock::Micros;
use tidegate::shed::hint::{with_jitter, workers_base};

#[test]
fn hint_is_half_to_one_and_a_half() {
    let second = Duration::from_secs(1);
    let table = [
        (second, 0, 500_000),
        (second, 1 << 62, 750_000),
        (second, 1 << 63, 1_000_000),
        (second, u64::MAX, 1_500_000),
        (Duration::from_secs(60), 0, 30_000_000),
        (Duration::from_nanos(1), u64::MAX, 0), // less than a nanosecond
        (Duration::from_nanos(10), 0, 1),       // rounded up
        (Duration::ZERO, u64::MAX, 0),
        (Duration::MAX, u64::MAX, 27_670_116_110_564_328),
    ];
    for (base, draw, micros) in table {
        assert_eq!(with_jitter(base, draw), Micros(micros), "{base:?}, {draw}");
    }
}

#[test]
fn hint_grows_with_shed_probability() {
    let table = [
        (0.0, 10.0),
        (0.1, 15.0),
        (0.5, 35.0),
        (1.0, 60.0),
        (9.0, 60.0),
        (-1.0, 10.0),
        (f64::NAN, 10.0),
        (f64::INFINITY, 60.0),
    ];
    for (chance, seconds) in table {
        assert_eq!(workers_base(chance), Duration::from_secs_f64(seconds), "{chance}");
    }
}

proptest! {
    #[test]
    fn a_hint_grows_with_its_draw_and_stays_in_range(millis in 0_u64..10_000_000, draw in any::<u64>(), other in any::<u64>()) {
        let base = Duration::from_millis(millis);
        let (low, high) = (draw.min(other), draw.max(other));
        prop_assert!(with_jitter(base, low) <= with_jitter(base, high));
        prop_assert!(with_jitter(base, low).0 >= millis * 500);
        prop_assert!(with_jitter(base, high).0 <= millis * 1_500);
    }
}
