//! The sliding log: the entries of a key, and merged entries that never count for too little; and the bytes of a
//! sliding window.

use proptest::prelude::*;
use tidegate::clock::{Micros, Now, Timestamp};
use tidegate::limit::Outcome;
use tidegate::limit::sliding_log::{COUNT_MAX, SlidingLogQuota, SlidingLogState};
use tidegate::limit::sliding_window::{SlidingWindowQuota, SlidingWindowState};

use super::{DAY, MILLI, SECOND};
use crate::definition::{Charged, Definition};

fn quota(count: u32, window_nanos: u64) -> SlidingLogQuota {
    SlidingLogQuota::new(count, window_nanos).unwrap()
}

fn at_ms(millis: u64) -> Now {
    Now::at_nanos(millis * MILLI)
}

#[test]
fn changed_count_keeps_logged_units() {
    let (few, many) = (quota(2, SECOND), quota(50, SECOND));
    let mut log = SlidingLogState::default();
    for millis in 0..40 {
        log.charge(&many, at_ms(millis * 10), 1);
    }
    assert_eq!(log.judge(&few, at_ms(400), 1), Outcome::Later(Micros(980_000)), "all but one must go");
    assert_eq!(log.level(&many, at_ms(400)).remaining, 10);
    // Charges under the smaller count merge entries that it no longer needs, and never count for too little.
    log.charge(&few, at_ms(1_100), 1);
    assert_eq!(log.level(&many, at_ms(1_100)).remaining, 50 - 29 - 1);
    assert_eq!(log.level(&many, at_ms(1_379)).remaining, 50 - 29 - 1);
    assert_eq!(log.level(&many, at_ms(1_390)).remaining, 49);
}

/// In the table and in a block of memory, the refunds in the order of the charges and backwards.
#[test]
fn refunds_the_entry_charged_at_an_instant() {
    let quota = quota(50, SECOND);
    for (count, is_reversed) in [(3, false), (3, true), (9, false), (9, true)] {
        let mut log = SlidingLogState::default();
        let mut left: Vec<(u64, u32)> =
            (1..=count).map(|number| (u64::from(number) * MILLI, number)).collect();
        left.iter().for_each(|(nanos, units)| log.charge(&quota, Now::at_nanos(*nanos), *units));
        while !left.is_empty() {
            // Of the middle entry a unit, of one at an end more than it has.
            let middle = left.len() / 2;
            let end = if is_reversed { left.len() - 1 } else { 0 };
            for (index, units) in [(middle, 1), (end, u32::MAX)] {
                let Some((nanos, own)) = left.get_mut(index) else { continue };
                log.refund(&quota, at_ms(500), units, Some(Timestamp::from_nanos(*nanos)));
                *own = own.saturating_sub(units);
                left.retain(|(_, own)| *own > 0);
                assert_eq!(log.entries().collect::<Vec<_>>(), left, "{count} entries");
            }
        }
        assert_eq!(log.heap_bytes(), 0, "{count} entries");
    }
}

#[test]
fn separates_units_up_to_larger_count() {
    let (few, many) = (quota(2, SECOND), quota(50, SECOND));
    for (kept, remaining) in [(0, 20), (2, 20), (31, 47), (50, 47), (u32::MAX, 47)] {
        let mut log = SlidingLogState::default();
        for millis in 0..40 {
            log.charge(&many, at_ms(millis * 10), 1);
        }
        log.charge(&few.with_stored_units(kept), at_ms(1_100), 1);
        assert_eq!(log.level(&many, at_ms(1_379)).remaining, remaining, "{kept} units kept apart");
    }
}

#[test]
fn bytes_per_key_within_stated_bounds() {
    // A slot of the table: key, state, a control byte, at a fill of 7/8.
    let resident = |heap_bytes: usize| (16 + size_of::<SlidingLogState>() + 1) * 8 / 7 + heap_bytes;
    for (count, bytes_max) in [(3, 88), (500, 12_000), (COUNT_MAX, 160_000)] {
        let quota = quota(count, 3_600 * SECOND);
        let mut log = SlidingLogState::default();
        assert_eq!(log.heap_bytes(), 0);
        let mut largest = 0;
        let step = 3_600 * SECOND / u64::from(count);
        for turn in 0..u64::from(count) * 5 {
            // Every other request is counted although refused: no more entries for that.
            log.charge(&quota, Now::at_nanos(turn * step / 2), 1);
            largest = largest.max(resident(log.heap_bytes()));
        }
        assert!(largest <= bytes_max, "{largest} bytes at {count}");
        let late = Now::at_nanos(u64::from(count) * 5 * step);
        for turn in 0..3 {
            log.charge(&quota, Now::at_nanos(late.at.as_nanos() + (turn + 1) * 3_600 * SECOND), 1);
        }
        assert!(log.heap_bytes() <= 48, "a log that was long is short again: {} bytes", log.heap_bytes());
    }
}

#[test]
fn block_does_not_grow_while_as_many_entries_leave_as_come() {
    let quota = quota(COUNT_MAX, SECOND);
    let mut log = SlidingLogState::default();
    for turn in 0..500 {
        // Ten entries are in the window.
        log.charge(&quota, at_ms(turn * 100), 1);
        assert!(log.heap_bytes() <= 192, "{} bytes after {turn} charges", log.heap_bytes());
    }
}

#[test]
fn sliding_window_takes_the_stated_bytes_and_restores_only_possible_counts() {
    // A slot of the table: digest, state, a control byte, at a fill of 7/8.
    let slot = (16 + size_of::<SlidingWindowState>() + 1) * 8 / 7;
    for (buckets, bytes_max) in [(1, 48), (2, 80), (6, 96), (60, 320)] {
        let quota = SlidingWindowQuota::new(u32::MAX, 60 * SECOND, buckets).unwrap();
        let mut window = SlidingWindowState::default();
        assert_eq!(window.heap_bytes(), 0);
        for second in 0..500 {
            window.charge(&quota, at_ms(second * 1_000), 1_000);
            assert_eq!(window.heap_bytes(), quota.heap_bytes());
        }
        assert!(slot + window.heap_bytes() <= bytes_max, "{buckets} buckets");
    }
    for len in [0, 1, 62] {
        assert!(SlidingWindowState::from_counts(Timestamp::ORIGIN, &vec![1; len]).is_none(), "{len} counts");
    }
}

#[test]
fn restores_only_entries_of_a_possible_log() {
    let rising = |len: u32| (1..=u64::from(len)).map(|nanos| (nanos, 1)).collect::<Vec<_>>();
    let table = [
        (Vec::new(), true),
        (vec![(5, 2), (6, 1)], true),
        (vec![(5, 2), (5, 1)], false),
        (vec![(6, 2), (5, 1)], false),
        (vec![(5, 2), (6, 0)], false),
        (vec![(5, u32::MAX - 1), (6, 1)], true),
        (vec![(5, u32::MAX), (6, 1)], false),
        (rising(COUNT_MAX), true),
        (rising(COUNT_MAX + 1), false),
    ];
    for (entries, is_possible) in table {
        let restored = SlidingLogState::from_entries(&entries).map(|log| log.entries().collect::<Vec<_>>());
        let len = entries.len();
        assert_eq!(restored, is_possible.then_some(entries), "{len} entries");
    }
}

#[test]
fn counts_exactly_above_the_units_that_sums_hold() {
    for count in [3, COUNT_MAX] {
        let (quota, definition) = (quota(count, SECOND), Definition::SlidingLog { nanos: SECOND });
        let (mut log, mut list) = (SlidingLogState::default(), Charged::default());
        for (turn, units) in [9_000, 1, 20_000, 3, 70_000, 65_535].into_iter().cycle().take(200).enumerate() {
            // Up to 14 charges are in the window, and after every twentieth none.
            let millis = turn as u64 * 70 + turn as u64 / 20 * 1_000;
            log.charge(&quota, at_ms(millis), units);
            definition.charge(&mut list, at_ms(millis), u64::from(units), 0);
            for after in [0, 500, 929, 930, 999, 1_000] {
                let now = at_ms(millis + after);
                let remaining = definition.remaining(&list, now, u64::from(count));
                assert_eq!(log.level(&quota, now).remaining, remaining, "{after} ms after charge {turn}");
            }
        }
    }
}

#[test]
fn block_grows_to_the_stated_heap_bytes() {
    for (count, bytes) in [(1, 0), (3, 0), (4, 48), (7, 80), (8, 112), (200, 2_512)] {
        let quota = quota(count, SECOND);
        let mut log = SlidingLogState::default();
        let charged = (0..300).map(|millis| {
            log.charge(&quota, at_ms(millis), 1);
            log.heap_bytes()
        });
        assert_eq!((charged.max(), quota.heap_bytes()), (Some(bytes), (0, bytes)), "{count} units");
    }
}

proptest! {
    #![proptest_config(crate::rng::cases(120))]

    #[test]
    fn merged_entries_never_count_for_too_little(
        count in prop_oneof![1_u32..12, 12_u32..200], window in prop_oneof![Just(MILLI), Just(SECOND), Just(366 * DAY)],
        steps in prop::collection::vec((0_u64..150, 0..4, 0_u32..40), 1..150),
    ) {
        // Requests, charges above the count, debts and refunds; also under a larger count.
        let (quota, definition) = (quota(count, window), Definition::SlidingLog { nanos: window });
        let wide = quota.with_count(COUNT_MAX).unwrap();
        let (mut log, mut list, mut nanos) = (SlidingLogState::default(), Charged::default(), 400 * DAY);
        for (part, kind, units) in steps {
            nanos += window / 1_000 * part;
            let now = Now { at: Timestamp::from_nanos(nanos), utc_offset_nanos: 7 };
            match kind {
                0 if units == 0 || log.judge(&quota, now, units) != Outcome::Pass => {}
                0 | 1 => {
                    log.charge(&quota, now, units);
                    definition.charge(&mut list, now, u64::from(units), 0);
                }
                2 => {
                    log.charge_debt(&quota, now, units, u32::MAX);
                    definition.owe(&mut list, now, u64::from(units), u64::MAX);
                }
                _ => {
                    log.refund(&quota, now, units, None);
                    definition.refund(&mut list, now, u64::from(units));
                }
            }
            for quota in [quota, wide] {
                let remaining = definition.remaining(&list, now, u64::from(quota.count()));
                prop_assert!(log.level(&quota, now).remaining <= remaining, "{kind} of {units}");
            }
            prop_assert!(log.heap_bytes() <= (count as usize * 5 / 4).max(3) * 12 + 4_200);
        }
    }
}
