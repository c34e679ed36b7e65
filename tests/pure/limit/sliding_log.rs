//! The sliding log, step by step.

use tidegate::clock::{Micros, Now, Timestamp};
use tidegate::limit::sliding_log::{COUNT_MAX, SlidingLogQuota, SlidingLogState};
use tidegate::limit::{LimitError, Outcome, QuotaLevel};

use Outcome::{Later, Never, Pass};

const MILLI: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MILLI;
const DAY: u64 = 86_400 * SECOND;

fn quota(count: u32, window_nanos: u64) -> SlidingLogQuota {
    SlidingLogQuota::new(count, window_nanos).unwrap()
}

fn at_ms(millis: u64) -> Now {
    Now::at_nanos(millis * MILLI)
}

fn ms(millis: u64) -> Micros {
    Micros(millis * 1_000)
}

/// Runs steps of (milliseconds, cost, expected) on one key.
fn check(quota: SlidingLogQuota, steps: &[(u64, u32, Outcome)]) {
    let mut log = SlidingLogState::default();
    for (millis, cost, expected) in steps {
        let outcome = log.judge(&quota, at_ms(*millis), *cost);
        assert_eq!(outcome, *expected, "{cost} at {millis} ms of {quota:?}");
        if outcome == Pass {
            log.charge(&quota, at_ms(*millis), *cost);
        }
    }
}

#[test]
fn two_a_minute_as_in_the_literature() {
    let one = 3_600_000; // 1:00
    check(
        quota(2, 60 * SECOND),
        &[
            (one + 1_000, 1, Pass),
            (one + 30_000, 1, Pass),
            (one + 50_000, 1, Later(ms(11_000))),
            (one + 100_000, 1, Pass),
        ],
    );
}

#[test]
fn a_log_fills_and_empties() {
    check(
        quota(5, SECOND),
        &[
            (0, 3, Pass),
            (100, 2, Pass),
            (100, 0, Pass), // nothing asked, nothing charged
            (200, 6, Never),
            (200, 1, Later(ms(800))),
            (200, 4, Later(ms(900))), // needs the second entry gone as well
            (999, 1, Later(ms(1))),
            (1_000, 3, Pass), // half-open: what came at 0 is not in (0, 1000]
            (1_000, 1, Later(ms(100))),
            (1_100, 2, Pass),
            (9_000, 5, Pass), // idle time buys N, no more
            (9_000, 1, Later(ms(1_000))),
        ],
    );
}

#[test]
fn a_clock_that_steps_back_mints_nothing() {
    check(
        quota(2, SECOND),
        &[
            (5_000, 1, Pass),
            (1_000, 1, Pass), // kept as of 5 s
            (1_000, 1, Later(ms(5_000))),
            (5_999, 1, Later(ms(1))),
            (6_000, 2, Pass),
        ],
    );
}

#[test]
fn what_cannot_be_is_refused() {
    let table = [
        (SlidingLogQuota::new(0, SECOND).err(), Some(LimitError::Zero)),
        (SlidingLogQuota::new(COUNT_MAX, SECOND).err(), None),
        (SlidingLogQuota::new(COUNT_MAX + 1, SECOND).err(), Some(LimitError::LogTooLarge)),
        (SlidingLogQuota::new(1, MILLI - 1).err(), Some(LimitError::Window)),
        (SlidingLogQuota::new(1, MILLI).err(), None),
        (SlidingLogQuota::new(1, 366 * DAY).err(), None),
        (SlidingLogQuota::new(1, 366 * DAY + 1).err(), Some(LimitError::Window)),
        (quota(1, SECOND).with_count(0).err(), Some(LimitError::Zero)),
    ];
    for (error, expected) in table {
        assert_eq!(error, expected);
    }
}

#[test]
fn a_level_says_what_would_pass() {
    let quota = quota(5, SECOND);
    let mut log = SlidingLogState::default();
    let full = QuotaLevel { limit: 5, window: ms(1_000), remaining: 5, reset: Micros(0) };
    assert_eq!(log.level(&quota, at_ms(0)), full);
    log.charge(&quota, at_ms(0), 2);
    log.charge(&quota, at_ms(400), 1);
    assert_eq!(log.level(&quota, at_ms(400)), QuotaLevel { remaining: 2, reset: ms(600), ..full });
    assert_eq!(log.level(&quota, at_ms(1_000)), QuotaLevel { remaining: 4, reset: ms(400), ..full });
    assert_eq!(log.level(&quota, at_ms(1_400)), full);
    // Over N the wait is until something remains: the debt of 4 at 0.5 s has to go, not only the 3 before it.
    log.charge_debt(&quota, at_ms(500), 4, 100);
    assert_eq!(log.level(&quota, at_ms(500)), QuotaLevel { remaining: 0, reset: ms(900), ..full });
    assert_eq!(log.level(&quota, at_ms(1_400)), QuotaLevel { remaining: 1, reset: ms(100), ..full });
}

#[test]
fn debt_ends_at_its_bound_and_what_is_given_back_is_the_newest() {
    let (quota, wide) = (quota(3, SECOND), quota(100, SECOND));
    let mut log = SlidingLogState::default();
    let used = |log: &SlidingLogState, now| 100 - log.level(&wide, now).remaining;
    log.charge(&quota, at_ms(0), 2);
    log.charge_debt(&quota, at_ms(100), 10, 2);
    assert_eq!(used(&log, at_ms(100)), 5);
    log.charge_debt(&quota, at_ms(200), 1, 2);
    assert_eq!(used(&log, at_ms(200)), 5);
    log.refund(&quota, at_ms(300), 4);
    assert_eq!(used(&log, at_ms(300)), 1);
    assert_eq!(log.judge(&quota, at_ms(300), 3), Later(ms(700)), "what came at 0 is left");
    log.refund(&quota, at_ms(300), u32::MAX);
    assert_eq!(log.level(&quota, at_ms(300)).remaining, 3);
    assert_eq!((log.heap_bytes(), log.nanos_until_fresh(SECOND, at_ms(300))), (0, 0));
}

#[test]
fn another_count_meets_the_same_units() {
    let (few, many) = (quota(2, SECOND), quota(50, SECOND));
    let mut log = SlidingLogState::default();
    for millis in 0..40 {
        log.charge(&many, at_ms(millis * 10), 1);
    }
    assert_eq!(log.judge(&few, at_ms(400), 1), Later(ms(980)), "all but one must go");
    assert_eq!(log.level(&many, at_ms(400)).remaining, 10);
    // Charged under the smaller count, what can no longer matter to it is merged, and never counts for too little.
    log.charge(&few, at_ms(1_100), 1);
    assert_eq!(log.level(&many, at_ms(1_100)).remaining, 50 - 29 - 1);
    assert_eq!(log.level(&many, at_ms(1_379)).remaining, 50 - 29 - 1);
    assert_eq!(log.level(&many, at_ms(1_390)).remaining, 49);
}

#[test]
fn keeps_units_apart_up_to_the_larger_count() {
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
fn a_sum_of_any_size_neither_wraps_nor_panics() {
    let (quota, end) = (quota(3, 366 * DAY), u64::MAX);
    let mut log = SlidingLogState::default();
    for nanos in [0, 1, 2, 2, end - 2, end - 1, end, end, 5] {
        let now = Now { at: Timestamp::from_nanos(nanos), utc_offset_nanos: i64::MIN };
        for cost in [u32::MAX, 1, 1, u32::MAX, u32::MAX - 1, 2, 1, 1, 1] {
            log.charge(&quota, now, cost);
            assert_ne!(log.judge(&quota, now, 1), Pass);
            assert_eq!(log.judge(&quota, now, u32::MAX), Never);
            log.charge_debt(&quota, now, u32::MAX, u32::MAX);
            assert_eq!(log.level(&quota, now).remaining, 0);
            assert!(log.nanos_until_fresh(u64::MAX, now) >= log.nanos_until_fresh(SECOND, now));
        }
    }
    log.refund(&quota, Now::default(), u32::MAX);
    assert_eq!(log.level(&quota, Now::at_nanos(end)).remaining, 3);
}

#[test]
fn a_key_takes_what_was_promised() {
    // A slot of the table: digest, state, a control byte, at a fill of 7/8.
    let resident = |heap_bytes: usize| (16 + size_of::<SlidingLogState>() + 1) * 8 / 7 + heap_bytes;
    for (count, bytes_max) in [(3, 88), (500, 12_000), (COUNT_MAX, 160_000)] {
        let quota = quota(count, 3_600 * SECOND);
        let mut log = SlidingLogState::default();
        assert_eq!(log.heap_bytes(), 0);
        let mut largest = 0;
        let step = 3_600 * SECOND / u64::from(count);
        for turn in 0..u64::from(count) * 5 {
            // Counted although refused every other time: no more entries for that.
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
fn block_grows_to_the_stated_heap_bytes() {
    for (count, bytes) in [(1, 32), (3, 48), (7, 96), (8, 144), (100, 1_520)] {
        let quota = quota(count, SECOND);
        let mut log = SlidingLogState::default();
        let charged = (0..300).map(|millis| {
            log.charge(&quota, at_ms(millis), 1);
            log.heap_bytes()
        });
        assert_eq!((charged.max(), quota.heap_bytes()), (Some(bytes), (32, bytes)), "{count} units");
    }
}
