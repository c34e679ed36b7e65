//! The brake by tables: its times on and off, for readings every 250 ms, and the number of slots in a band.

use tidegate::shed::brake::queue_min;
use tidegate::shed::{Brake, band_slots};

use super::at_millis;

/// A readable queue, or the utilization instead.
type Reading = (Option<u32>, Option<f64>);

/// Slots, readings until a millisecond, and the milliseconds at which the brake switches on and off.
type Case<'a> = (u32, &'a [(u64, Reading)], &'a [(u64, bool)]);

fn queue(waiting: u32) -> Reading {
    (Some(waiting), Some(1.0))
}

fn unreadable(utilization: f64) -> Reading {
    (None, Some(utilization))
}

/// Reads every 250 ms; each stretch includes its last millisecond. Returns the times of switching.
fn changes(slots: u32, stretches: &[(u64, Reading)]) -> Vec<(u64, bool)> {
    let mut brake = Brake::default();
    let (mut changes, mut millis) = (Vec::new(), 0);
    for (until, (queue, utilization)) in stretches {
        while millis <= *until {
            let was = brake.is_on();
            let is = brake.tick(at_millis(millis), *queue, *utilization, slots);
            assert_eq!(is, brake.is_on());
            if is != was {
                changes.push((millis, is));
            }
            millis += 250;
        }
    }
    changes
}

#[test]
fn brakes_on_standing_queue_until_two_seconds_without() {
    let table: &[Case<'_>] = &[
        (16, &[(900_000, queue(15))], &[]),
        (16, &[(5_000, queue(16))], &[(1_000, true)]),
        (16, &[(750, queue(900)), (60_000, queue(0))], &[]),
        (16, &[(5_000, queue(16)), (9_000, queue(15))], &[(1_000, true), (7_000, false)]),
        // A dip in each second: no standing queue.
        (16, &[(750, queue(99)), (1_000, queue(3)), (1_750, queue(99)), (2_000, queue(3))], &[]),
        // A dip while it is on: the cause returns a second later, within two seconds.
        (
            16,
            &[(3_000, queue(20)), (3_250, queue(0)), (9_000, queue(20)), (12_000, queue(0))],
            &[(1_000, true), (11_000, false)],
        ),
        // Few slots: a shorter queue for longer.
        (8, &[(9_000, queue(7))], &[]),
        (8, &[(9_000, queue(8))], &[(1_000, true)]),
        (7, &[(9_000, queue(3))], &[]),
        (7, &[(9_000, queue(4))], &[(2_000, true)]),
        (4, &[(9_000, queue(1))], &[]),
        (4, &[(9_000, queue(2))], &[(2_000, true)]),
        (1, &[(9_000, queue(1))], &[]),
        (1, &[(9_000, queue(2))], &[(2_000, true)]),
        // The queue is not readable.
        (16, &[(900_000, unreadable(0.97))], &[]),
        (16, &[(5_000, unreadable(0.98)), (9_000, unreadable(0.5))], &[(2_000, true), (7_000, false)]),
        (16, &[(900_000, unreadable(f64::NAN))], &[]),
        (16, &[(900_000, (None, None))], &[]),
        (16, &[(5_000, queue(99)), (9_000, (None, None))], &[(1_000, true), (7_000, false)]),
        // A short, readable queue: busy workers are no cause.
        (16, &[(900_000, queue(0))], &[]),
        // One kind of reading does not count for the other.
        (16, &[(750, queue(99)), (3_000, unreadable(1.0))], &[(3_000, true)]),
        (16, &[(1_750, unreadable(1.0)), (3_000, queue(99))], &[(3_000, true)]),
    ];
    for (slots, stretches, expected) in table {
        assert_eq!(changes(*slots, stretches), *expected, "{slots} slots, {stretches:?}");
    }
}

#[test]
fn sparse_samples_show_no_standing_queue() {
    let mut brake = Brake::default();
    for seconds in [0, 2, 4, 6, 3_606] {
        assert!(!brake.tick(at_millis(seconds * 1_000), Some(500), None, 16), "{seconds}");
    }
    assert!(brake.tick(at_millis(3_607_000), Some(500), None, 16), "a second apart is near enough");
    assert!(!brake.tick(at_millis(7_200_000), Some(500), None, 16), "a machine that slept starts without it");
}

#[test]
fn queue_threshold_grows_with_slots() {
    let table = [(0, 2), (1, 2), (4, 2), (5, 3), (6, 3), (7, 4), (8, 8), (16, 16), (u32::MAX, u32::MAX)];
    for (slots, least) in table {
        assert_eq!(queue_min(slots), least, "{slots} slots");
    }
}

#[test]
fn band_is_share_of_slots_rounded_up() {
    // Slots, thousandths, usable slots.
    let table = [
        (100, 700, 70),
        (100, 701, 71),
        (16, 700, 12),
        (16, 800, 13),
        (16, 900, 15),
        (4, 700, 3),
        (4, 800, 4),
        (1, 700, 1),
        (1, 0, 0),
        (0, 700, 0),
        (32, 1_000, 32),
        (32, u16::MAX, 32),
        (u32::MAX, 1_000, u32::MAX),
        (u32::MAX, 999, 4_290_672_328),
    ];
    for (slots, permille, most) in table {
        assert_eq!(band_slots(slots, permille), most, "{permille} of {slots}");
    }
}
