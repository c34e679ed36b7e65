//! The refused callers, and how long the choice lasts.

use std::time::Duration;

use proptest::prelude::*;
use tidegate::shed::draw::{draw_epoch, is_refused};

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
