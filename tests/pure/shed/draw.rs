//! The refused callers, how long the choice lasts, and the retry-after: spread by half of it either way.

use std::time::Duration;

use proptest::prelude::*;
use tidegate::clock::Micros;
use tidegate::shed::draw::{draw_epoch, is_refused};
use tidegate::shed::hint::{with_jitter, workers_base};

use super::at_millis;
use crate::rng::Rng;

const ROTATE: Duration = Duration::from_secs(600);

#[test]
fn callers_redraw_once_per_rotation_and_evenly() {
    let mut random = Rng::new(7);
    let phases: Vec<u64> = (0..20_000).map(|_| random.word()).collect();
    for start in [0, 1, 599_999, 86_400_000, 1_790_000_000_000_u64] {
        let mut changed = [0_u32; 20];
        for phase in &phases {
            let epochs: Vec<u64> =
                (0..=20).map(|slice| draw_epoch(at_millis(start + slice * 30_000), *phase, ROTATE)).collect();
            let slices: Vec<usize> = (0..20).filter(|slice| epochs[*slice] != epochs[slice + 1]).collect();
            assert_eq!((slices.len(), epochs[20]), (1, epochs[0] + 1), "phase {phase}, from {start} ms");
            changed[slices[0]] += 1;
        }
        // A twentieth each, within five deviations (31).
        assert!(changed.iter().all(|count| count.abs_diff(1_000) < 155), "from {start} ms: {changed:?}");
    }
}

#[test]
fn accepts_extreme_rotations() {
    let late = tidegate::clock::Timestamp::from_nanos(u64::MAX);
    for rotate in [Duration::ZERO, Duration::from_nanos(1), ROTATE, Duration::MAX] {
        for phase in [0, u64::MAX] {
            assert!(draw_epoch(late, phase, rotate) >= draw_epoch(at_millis(0), phase, rotate), "{rotate:?}");
        }
    }
    assert_eq!(draw_epoch(at_millis(0), 0, Duration::MAX), draw_epoch(at_millis(1_000), 0, Duration::MAX));
}

#[test]
fn probability_zero_sheds_none_and_one_sheds_all() {
    const HALF: u64 = 1 << 63;
    // Draw, probability, whether it is refused.
    let table = [
        (0, 0.0, false),
        (u64::MAX, 1.0, true),
        (0, 1.0, true),
        (0, f64::MIN_POSITIVE, true),
        (u64::MAX, 1.0 - f64::EPSILON, false),
        (HALF, 0.5, false),
        (HALF - 1, 0.5, true),
        (HALF / 2, 0.25, false),
        (HALF / 2 - 1, 0.25, true),
        (0, f64::NAN, false),
        (0, -1.0, false),
        (u64::MAX, 2.0, true),
    ];
    for (draw, chance, refused) in table {
        assert_eq!(is_refused(draw, chance), refused, "{draw} at {chance}");
    }
}

proptest! {
    #[test]
    fn epoch_advances_once_per_rotation(nanos in 0..u64::MAX / 2, phase in any::<u64>(), rotate in 1_u64..1 << 62) {
        let at = tidegate::clock::Timestamp::from_nanos(nanos);
        let rotate = Duration::from_nanos(rotate);
        prop_assert_eq!(draw_epoch(at.after(rotate), phase, rotate), draw_epoch(at, phase, rotate) + 1);
        prop_assert!(draw_epoch(at.after(rotate / 2), phase, rotate) - draw_epoch(at, phase, rotate) <= 1);
    }

    #[test]
    fn shed_callers_stay_shed_as_probability_grows(draw in any::<u64>(), chance in 0.0..1.0_f64, more in 0.0..1.0_f64) {
        prop_assert!(!is_refused(draw, chance) || is_refused(draw, chance + more));
    }
}

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
