//! The sliding window against its definition in fractions, over a list of all that was ever charged.

use proptest::prelude::*;
use tidegate::clock::{Micros, Now, Timestamp};
use tidegate::limit::sliding_window::{SlidingWindowQuota, SlidingWindowState};
use tidegate::limit::{LimitError, Outcome, QuotaLevel};

use Outcome::{Later, Never, Pass};

const MILLI: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MILLI;
const DAY: u64 = 86_400 * SECOND;

fn quota(count: u32, window_nanos: u64, buckets: u8) -> SlidingWindowQuota {
    SlidingWindowQuota::new(count, window_nanos, buckets).unwrap()
}

fn at_ms(millis: u64) -> Now {
    Now::at_nanos(millis * MILLI)
}

fn ms(millis: u64) -> Micros {
    Micros(millis * 1_000)
}

/// Runs steps of (milliseconds, cost, expected) on one key.
fn check(quota: SlidingWindowQuota, steps: &[(u64, u32, Outcome)]) {
    let mut window = SlidingWindowState::default();
    for (millis, cost, expected) in steps {
        let outcome = window.judge(&quota, at_ms(*millis), *cost);
        assert_eq!(outcome, *expected, "{cost} at {millis} ms of {quota:?}");
        if outcome == Pass {
            window.charge(&quota, at_ms(*millis), *cost);
        }
    }
}

#[test]
fn seven_a_minute_as_in_the_literature() {
    // 5 in the minute before and 3 in this: at 30 % of it 3 + 5 × 0.7 = 6.5, down to 6.
    check(
        quota(7, 60 * SECOND, 1),
        &[
            (50_000, 5, Pass),
            (61_000, 2, Pass),
            (75_000, 1, Pass),
            (78_000, 1, Pass),
            // 4 + 5 × share ≤ 6 as soon as less than 3 of the 5 are left: after 2/5 of the minute.
            (78_000, 1, Later(Micros(6_000_001))),
        ],
    );
}

#[test]
fn four_buckets_leave_one_by_one() {
    check(
        quota(8, 4 * SECOND, 4), // buckets of one second
        &[
            (10_000, 4, Pass),
            (11_999, 3, Pass),
            (12_000, 0, Pass), // nothing asked, nothing charged
            (12_000, 9, Never),
            (12_500, 1, Pass),
            (12_500, 1, Later(Micros(1_500_001))), // the 4 start to leave at 14.0, and 3 or less of them pass at once
            (13_999, 1, Later(Micros(1_001))),
            (14_500, 2, Pass),
            (15_000, 5, Later(Micros(666_667))), // until less than one of the 3 of 11 s is left
            (18_999, 8, Pass),                   // of the 2 of 14 s a thousandth is left
            (60_000, 8, Pass),                   // idle time buys N, no more
            (60_000, 1, Later(Micros(4_000_001))),
        ],
    );
}

#[test]
fn buckets_turn_on_utc() {
    let quota = quota(1, 60 * SECOND, 1);
    // A process that was started 59.9 s into a minute: its clock counts from there.
    let now =
        |millis: u64| Now { at: Timestamp::from_nanos(millis * MILLI), utc_offset_nanos: 59_900_000_000 };
    let mut window = SlidingWindowState::default();
    window.charge(&quota, now(0), 1);
    assert_eq!(window.judge(&quota, now(0), 1), Later(Micros(100_001)), "the share falls from 60.0 s on");
}

#[test]
fn a_wall_clock_that_steps_keeps_what_counts_and_how_long() {
    let quota = quota(2, 60 * SECOND, 6);
    let now = |millis: u64, step: i64| Now {
        at: Timestamp::from_nanos(millis * MILLI),
        utc_offset_nanos: step * 1_000_000,
    };
    let mut window = SlidingWindowState::default();
    window.charge(&quota, now(125_000, 0), 2);
    let Later(wait) = window.judge(&quota, now(125_000, 0), 1) else { panic!("full") };
    assert_eq!(wait, Micros(55_000_001));
    for step in [-120_000, -60_000, 60_000, 86_400_000, 90_000] {
        assert_eq!(window.judge(&quota, now(125_000, step), 1), Later(wait), "{step} ms");
    }
    // In another bucket of the same length, it ends with that: at most a bucket earlier or later.
    assert_eq!(window.judge(&quota, now(125_000, -4_000), 1), Later(Micros(59_000_001)));
    assert_eq!(window.judge(&quota, now(125_000, 3_000), 1), Later(Micros(52_000_001)));
    // Before 1970 buckets pass as they do later.
    assert_eq!(window.judge(&quota, now(125_000, -10_000_000), 1), Later(wait));
    assert_eq!(window.judge(&quota, now(190_000, -10_000_000), 2), Pass);
}

#[test]
fn another_thread_may_be_a_moment_behind() {
    let quota = quota(2, 60 * SECOND, 6);
    let mut window = SlidingWindowState::default();
    window.charge(&quota, at_ms(120_001), 2);
    assert_eq!(window.judge(&quota, at_ms(120_001), 1), Later(Micros(59_999_001)));
    assert_eq!(window.judge(&quota, at_ms(119_999), 1), Later(Micros(60_001_001)));
    assert_eq!(window.level(&quota, at_ms(119_999)).remaining, 0);
}

#[test]
fn what_cannot_be_is_refused() {
    let table = [
        (SlidingWindowQuota::new(0, SECOND, 1).err(), Some(LimitError::Zero)),
        (SlidingWindowQuota::new(u32::MAX, MILLI, 60).err(), None),
        (SlidingWindowQuota::new(1, MILLI - 1, 1).err(), Some(LimitError::Window)),
        (SlidingWindowQuota::new(1, 366 * DAY, 60).err(), None),
        (SlidingWindowQuota::new(1, 366 * DAY + 1, 1).err(), Some(LimitError::Window)),
        (SlidingWindowQuota::new(1, SECOND, 0).err(), Some(LimitError::Buckets)),
        (SlidingWindowQuota::new(1, SECOND, 61).err(), Some(LimitError::Buckets)),
        (quota(1, SECOND, 1).with_count(0).err(), Some(LimitError::Zero)),
    ];
    for (error, expected) in table {
        assert_eq!(error, expected);
    }
}

#[test]
fn debt_ends_at_its_bound_and_what_is_given_back_is_the_newest() {
    for buckets in [1, 2, 60] {
        let (quota, wide) = (quota(3, 60 * SECOND, buckets), quota(100, 60 * SECOND, buckets));
        let mut window = SlidingWindowState::default();
        let used = |window: &SlidingWindowState, now| 100 - window.level(&wide, now).remaining;
        window.charge(&quota, at_ms(59_000), 2);
        window.charge_debt(&quota, at_ms(60_000), 10, 2);
        assert_eq!(used(&window, at_ms(60_000)), 5);
        window.charge_debt(&quota, at_ms(60_000), 1, 2);
        assert_eq!(used(&window, at_ms(60_000)), 5);
        let level = window.level(&quota, at_ms(60_000));
        assert_eq!((level.remaining, level.limit, level.window), (0, 3, ms(60_000)));
        window.refund(&quota, at_ms(60_000), 4);
        assert_eq!(used(&window, at_ms(60_000)), 1, "of those of the bucket before");
        assert_eq!(used(&window, at_ms(120_000)), 0);
        window.refund(&quota, at_ms(60_000), u32::MAX);
        let full = QuotaLevel { limit: 3, window: ms(60_000), remaining: 3, reset: Micros(0) };
        assert_eq!(window.level(&quota, at_ms(60_000)), full);
        assert_eq!((window.heap_bytes(), window.nanos_until_fresh(SECOND, at_ms(60_000))), (0, 0));
    }
}

#[test]
fn a_count_of_any_size_neither_wraps_nor_panics() {
    for (buckets, window_nanos) in [(1, MILLI), (1, 366 * DAY), (60, MILLI), (60, 366 * DAY), (59, MILLI + 1)]
    {
        let quota = quota(u32::MAX, window_nanos, buckets);
        let mut window = SlidingWindowState::default();
        for (nanos, utc) in
            [(0, i64::MIN), (5, 0), (u64::MAX / 2, 7), (u64::MAX, i64::MAX), (u64::MAX, i64::MIN), (0, 0)]
        {
            let now = Now { at: Timestamp::from_nanos(nanos), utc_offset_nanos: utc };
            for _ in 0..3 {
                window.charge(&quota, now, u32::MAX);
                assert!(matches!(window.judge(&quota, now, 1), Later(Micros(1..))));
                assert!(matches!(window.judge(&quota, now, u32::MAX), Later(Micros(1..))));
                window.charge_debt(&quota, now, u32::MAX, u32::MAX);
                assert!(window.level(&quota, now).reset > Micros::ZERO);
                assert!(window.nanos_until_fresh(u64::MAX, now) >= window.nanos_until_fresh(SECOND, now));
            }
        }
        window.refund(&quota, Now::default(), u32::MAX);
    }
}

#[test]
fn counts_restore_the_window() {
    for buckets in [1, 6, 60] {
        let quota = quota(100, 60 * SECOND, buckets);
        let mut window = SlidingWindowState::default();
        for second in 100..150 {
            window.charge(&quota, at_ms(second * 1_000), 1);
        }
        let (began, counts) = window.counts();
        assert_eq!((counts.len(), counts.iter().sum::<u32>()), (usize::from(buckets) + 1, 50));
        let restored = SlidingWindowState::from_counts(began, &counts).unwrap();
        for second in [149, 170, 200, 230] {
            let levels = [&window, &restored].map(|key| key.level(&quota, at_ms(second * 1_000)));
            assert_eq!(levels[0], levels[1], "{buckets} buckets, at {second} s");
        }
    }
    for len in [0, 1, 62] {
        assert!(SlidingWindowState::from_counts(Timestamp::ORIGIN, &vec![1; len]).is_none(), "{len} counts");
    }
}

#[test]
fn a_key_takes_what_was_promised() {
    // A slot of the table: digest, state, a control byte, at a fill of 7/8.
    let slot = (16 + size_of::<SlidingWindowState>() + 1) * 8 / 7;
    for (buckets, bytes_max) in [(1, 48), (2, 80), (6, 96), (60, 320)] {
        let quota = quota(u32::MAX, 60 * SECOND, buckets);
        let mut window = SlidingWindowState::default();
        assert_eq!(window.heap_bytes(), 0);
        for second in 0..500 {
            window.charge(&quota, at_ms(second * 1_000), 1_000);
            let bytes = slot + window.heap_bytes();
            assert!(bytes <= bytes_max, "{bytes} bytes with {buckets} buckets");
            assert_eq!(window.heap_bytes(), quota.heap_bytes());
        }
    }
}

/// Every charge: its time, its bucket counted from the first, and its units.
struct Reference {
    quota: SlidingWindowQuota,
    charged: Vec<(i128, i128, u32)>,
    newest: i128,
    /// When the newest bucket was first counted in, by the boot-time clock.
    began: Timestamp,
}

impl Reference {
    fn new(quota: SlidingWindowQuota) -> Reference {
        Reference { quota, charged: Vec::new(), newest: 0, began: Timestamp::ORIGIN }
    }

    fn sizes(&self) -> (i128, i128) {
        (i128::from(self.quota.window_nanos()), i128::from(self.quota.buckets()))
    }

    /// Now in 1/B nanoseconds of Unix time, not before the newest bucket; and how many buckets after that it is. Which
    /// bucket that is, the wall clock says as it is now.
    fn moment(&self, now: Now) -> (i128, i128) {
        let (window, buckets) = self.sizes();
        let units = |at: Timestamp| (i128::from(at.as_nanos()) + i128::from(now.utc_offset_nanos)) * buckets;
        let newest = units(self.began).div_euclid(window);
        let moment = units(now.at).max(newest * window);
        (moment, moment.div_euclid(window) - newest)
    }

    fn charge(&mut self, now: Now, units: u32) {
        let (moment, passed) = self.moment(now);
        if passed > 0 || self.charged.is_empty() {
            (self.newest, self.began) = (self.newest + passed, now.at);
        }
        self.charged.push((moment.div_euclid(self.sizes().1), self.newest, units));
    }

    fn in_buckets(&self, from: i128, to: i128) -> i128 {
        let within = self.charged.iter().filter(|(_, bucket, _)| (from..=to).contains(bucket));
        within.map(|(.., units)| i128::from(*units)).sum()
    }

    /// The estimate, what the oldest bucket counts, and how much of that is in the estimate.
    fn estimate(&self, now: Now) -> (i128, i128, i128) {
        let (window, buckets) = self.sizes();
        let (moment, passed) = self.moment(now);
        let bucket = self.newest + passed;
        let oldest = self.in_buckets(bucket - buckets, bucket - buckets);
        let share = oldest * (window - moment.rem_euclid(window)) / window;
        (self.in_buckets(bucket - buckets + 1, bucket) + share, oldest, share)
    }

    /// What was truly charged in the window.
    fn truly(&self, now: Now) -> i128 {
        let (window, buckets) = self.sizes();
        let unix = self.moment(now).0.div_euclid(buckets);
        let within = self.charged.iter().filter(|(at, ..)| unix - at < window);
        within.map(|(.., units)| i128::from(*units)).sum()
    }
}

#[derive(Debug, Clone)]
struct Trace {
    quota: SlidingWindowQuota,
    /// How far the clock moves, how far the wall clock steps, a cost, and whether it counts although refused.
    steps: Vec<(i64, i64, u32, bool)>,
}

fn traces(steps: bool) -> impl Strategy<Value = Trace> {
    let count = prop_oneof![3 => 1_u32..12, 2 => 12_u32..500, 1 => Just(u32::MAX)];
    let window = prop_oneof![Just(MILLI), Just(SECOND), Just(60 * SECOND), Just(366 * DAY), MILLI..SECOND];
    let buckets = prop_oneof![Just(1), Just(2), Just(7), Just(60), 1_u8..=60];
    (count, window, buckets).prop_flat_map(move |(count, window, buckets)| {
        let whole = i64::try_from(window).unwrap();
        let unit = whole / i64::from(count.min(20));
        let past = if steps { -unit * 3..0 } else { 0..1 };
        let jump = prop_oneof![8 => 0..unit * 2, 3 => Just(0), 1 => Just(whole), 1 => 0..whole * 3, 1 => past];
        let step = if steps { prop_oneof![9 => Just(0), 1 => -whole..whole].boxed() } else { Just(0).boxed() };
        let cost = prop_oneof![6 => Just(1), 2 => 0..count.saturating_add(2), 1 => Just(count), 1 => Just(count / 7)];
        let counted = if steps { prop::bool::weighted(0.1).boxed() } else { Just(false).boxed() };
        let steps = proptest::collection::vec((jump, step, cost, counted), 1..200);
        steps.prop_map(move |steps| Trace { quota: SlidingWindowQuota::new(count, window, buckets).unwrap(), steps })
    })
}

/// Runs a trace; `each` sees the window and the reference before every step.
fn run(trace: &Trace, mut each: impl FnMut(Now, u32, &SlidingWindowState, &Reference)) -> Reference {
    let (mut window, mut reference) = (SlidingWindowState::default(), Reference::new(trace.quota));
    let mut now = Now::at_nanos(1_700_000_000 * SECOND);
    for (jump, step, cost, counted) in &trace.steps {
        let at = now.at.as_nanos().saturating_add_signed(*jump);
        now = Now { at: Timestamp::from_nanos(at), utc_offset_nanos: now.utc_offset_nanos + step };
        each(now, *cost, &window, &reference);
        if window.judge(&trace.quota, now, *cost) == Pass || *counted {
            window.charge(&trace.quota, now, *cost);
            if *cost > 0 {
                reference.charge(now, *cost);
            }
        }
    }
    reference
}

fn after(now: Now, micros: u64) -> Now {
    Now {
        at: Timestamp::from_nanos(now.at.as_nanos() + micros * 1_000),
        utc_offset_nanos: now.utc_offset_nanos,
    }
}

proptest! {
    #![proptest_config(crate::cases(120))]

    #[test]
    fn decides_as_its_definition(trace in traces(true)) {
        let count = i128::from(trace.quota.count());
        run(&trace, |now, cost, window, reference| {
            let (estimate, ..) = reference.estimate(now);
            let passes = cost == 0 || estimate + i128::from(cost) <= count;
            // Counters stop at the largest number there is, which traces reach where N is that number.
            if count < i128::from(u32::MAX) {
                assert_eq!(window.judge(&trace.quota, now, cost) == Pass, passes, "{cost}, {estimate} counted");
                assert_eq!(i128::from(window.level(&trace.quota, now).remaining), (count - estimate).max(0));
            }
        });
    }

    #[test]
    fn is_within_its_stated_error(trace in traces(false)) {
        run(&trace, |now, _, _, reference| {
            let ((estimate, oldest, share), truly) = (reference.estimate(now), reference.truly(now));
            assert!(estimate - truly <= share, "{estimate}, truly {truly}, {share} of {oldest} in the share");
            assert!(truly - estimate <= oldest - share, "{estimate}, truly {truly}, {share} of {oldest}");
        });
    }

    #[test]
    fn in_every_window_at_most_twice_n_pass(trace in traces(false)) {
        let mut reference = run(&trace, |_, _, _, _| ());
        let charged = std::mem::take(&mut reference.charged);
        for (at, bucket, units) in charged {
            reference.charged.push((at, bucket, units));
            reference.newest = bucket;
            reference.began = Timestamp::from_nanos(u64::try_from(at).unwrap());
            let now = Now::at_nanos(u64::try_from(at).unwrap());
            prop_assert!(reference.truly(now) <= 2 * i128::from(trace.quota.count()));
        }
    }

    #[test]
    fn a_wait_is_enough_and_not_a_microsecond_too_long(trace in traces(true)) {
        let quota = trace.quota;
        run(&trace, |now, cost, window, _| match window.judge(&quota, now, cost) {
            Later(Micros(wait)) => {
                assert_eq!(window.judge(&quota, after(now, wait), cost), Pass);
                assert_ne!(window.judge(&quota, after(now, wait - 1), cost), Pass);
            }
            Never => assert!(cost > quota.count()),
            _ => assert!(cost <= quota.count()),
        });
    }

    #[test]
    fn reset_is_when_more_remains(trace in traces(true)) {
        let quota = trace.quota;
        run(&trace, |now, _, window, _| {
            let level = window.level(&quota, now);
            if level.remaining == level.limit {
                assert_eq!(level.reset, Micros::ZERO);
            } else {
                assert!(window.level(&quota, after(now, level.reset.0)).remaining > level.remaining);
                assert_eq!(window.level(&quota, after(now, level.reset.0 - 1)).remaining, level.remaining);
            }
            let fresh = window.nanos_until_fresh(quota.window_nanos(), now);
            assert_eq!(window.level(&quota, after(now, fresh.div_ceil(1_000))).remaining, level.limit);
        });
    }

    #[test]
    fn the_estimate_never_rises_by_itself(trace in traces(true), spans in prop::collection::vec(0_u64..40, 1..40)) {
        let quota = trace.quota;
        run(&trace, |now, _, window, _| {
            let (mut now, mut remaining) = (now, 0);
            for span in &spans {
                let next = window.level(&quota, now).remaining;
                assert!(next >= remaining);
                remaining = next;
                now = after(now, span * quota.window_nanos() / 400_000);
            }
        });
    }
}
