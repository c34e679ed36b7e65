//! The sliding log against a list of all that was ever charged.

use proptest::prelude::*;
use tidegate::clock::{Micros, Now, Timestamp};
use tidegate::limit::sliding_log::{COUNT_MAX, Quota, SlidingLog};
use tidegate::limit::{Level, Outcome, RateError};

use Outcome::{Later, Never, Pass};

const MILLI: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MILLI;
const DAY: u64 = 86_400 * SECOND;

fn quota(count: u32, window_nanos: u64) -> Quota {
    Quota::new(count, window_nanos).unwrap()
}

fn at_ms(millis: u64) -> Now {
    Now::at_nanos(millis * MILLI)
}

fn ms(millis: u64) -> Micros {
    Micros(millis * 1_000)
}

/// Runs steps of (milliseconds, cost, expected) on one key.
fn check(quota: Quota, steps: &[(u64, u32, Outcome)]) {
    let mut log = SlidingLog::fresh(&quota, Now::default());
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
        (Quota::new(0, SECOND).err(), Some(RateError::Zero)),
        (Quota::new(COUNT_MAX, SECOND).err(), None),
        (Quota::new(COUNT_MAX + 1, SECOND).err(), Some(RateError::LogTooLarge)),
        (Quota::new(1, MILLI - 1).err(), Some(RateError::Window)),
        (Quota::new(1, MILLI).err(), None),
        (Quota::new(1, 366 * DAY).err(), None),
        (Quota::new(1, 366 * DAY + 1).err(), Some(RateError::Window)),
        (quota(1, SECOND).with_count(0).err(), Some(RateError::Zero)),
    ];
    for (error, expected) in table {
        assert_eq!(error, expected);
    }
}

#[test]
fn a_level_says_what_would_pass() {
    let quota = quota(5, SECOND);
    let mut log = SlidingLog::fresh(&quota, Now::default());
    let full = Level { limit: 5, window: ms(1_000), remaining: 5, reset: Micros(0) };
    assert_eq!(log.level(&quota, at_ms(0)), full);
    log.charge(&quota, at_ms(0), 2);
    log.charge(&quota, at_ms(400), 1);
    assert_eq!(log.level(&quota, at_ms(400)), Level { remaining: 2, reset: ms(600), ..full });
    assert_eq!(log.level(&quota, at_ms(1_000)), Level { remaining: 4, reset: ms(400), ..full });
    assert_eq!(log.level(&quota, at_ms(1_400)), full);
    // Over N the wait is until something remains: the debt of 4 at 0.5 s has to go, not only the 3 before it.
    log.owe(&quota, at_ms(500), 4, 100);
    assert_eq!(log.level(&quota, at_ms(500)), Level { remaining: 0, reset: ms(900), ..full });
    assert_eq!(log.level(&quota, at_ms(1_400)), Level { remaining: 1, reset: ms(100), ..full });
}

#[test]
fn debt_ends_at_its_bound_and_what_is_given_back_is_the_newest() {
    let (quota, wide) = (quota(3, SECOND), quota(100, SECOND));
    let mut log = SlidingLog::fresh(&quota, Now::default());
    let used = |log: &SlidingLog, now| 100 - log.level(&wide, now).remaining;
    log.charge(&quota, at_ms(0), 2);
    log.owe(&quota, at_ms(100), 10, 2);
    assert_eq!(used(&log, at_ms(100)), 5);
    log.owe(&quota, at_ms(200), 1, 2);
    assert_eq!(used(&log, at_ms(200)), 5);
    log.give_back(&quota, at_ms(300), 4);
    assert_eq!(used(&log, at_ms(300)), 1);
    assert_eq!(log.judge(&quota, at_ms(300), 3), Later(ms(700)), "what came at 0 is left");
    log.give_back(&quota, at_ms(300), u32::MAX);
    assert_eq!(log.level(&quota, at_ms(300)).remaining, 3);
    assert_eq!((log.heap_bytes(), log.nanos_until_fresh(SECOND, at_ms(300))), (0, 0));
}

#[test]
fn another_count_meets_the_same_units() {
    let (few, many) = (quota(2, SECOND), quota(50, SECOND));
    let mut log = SlidingLog::fresh(&many, Now::default());
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
fn a_sum_of_any_size_neither_wraps_nor_panics() {
    let (quota, end) = (quota(3, 366 * DAY), u64::MAX);
    let mut log = SlidingLog::fresh(&quota, Now::default());
    for nanos in [0, 1, 2, 2, end - 2, end - 1, end, end, 5] {
        let now = Now { at: Timestamp::from_nanos(nanos), utc: i64::MIN };
        for cost in [u32::MAX, 1, 1, u32::MAX, u32::MAX - 1, 2, 1, 1, 1] {
            log.charge(&quota, now, cost);
            assert_ne!(log.judge(&quota, now, 1), Pass);
            assert_eq!(log.judge(&quota, now, u32::MAX), Never);
            log.owe(&quota, now, u32::MAX, u32::MAX);
            assert_eq!(log.level(&quota, now).remaining, 0);
            assert!(log.nanos_until_fresh(u64::MAX, now) >= log.nanos_until_fresh(SECOND, now));
        }
    }
    log.give_back(&quota, Now::default(), u32::MAX);
    assert_eq!(log.level(&quota, Now::at_nanos(end)).remaining, 3);
}

#[test]
fn a_key_takes_what_was_promised() {
    // A slot of the table: digest, state, a control byte, at a fill of 7/8.
    let resident = |heap_bytes: usize| (16 + size_of::<SlidingLog>() + 1) * 8 / 7 + heap_bytes;
    for (count, bytes_max) in [(3, 88), (500, 12_000), (COUNT_MAX, 160_000)] {
        let quota = quota(count, 3_600 * SECOND);
        let mut log = SlidingLog::fresh(&quota, Now::default());
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
        log.charge(&quota, late, 0);
        for turn in 0..3 {
            log.charge(&quota, Now::at_nanos(late.at.as_nanos() + (turn + 1) * 3_600 * SECOND), 1);
        }
        assert!(log.heap_bytes() <= 48, "a log that was long is short again: {} bytes", log.heap_bytes());
    }
}

/// All that was ever charged: time and units.
#[derive(Default)]
struct Reference {
    charged: Vec<(u64, u32)>,
}

impl Reference {
    fn moment(&self, nanos: u64) -> u64 {
        self.charged.last().map_or(nanos, |(newest, _)| nanos.max(*newest))
    }

    fn units(&self, window: u64, nanos: u64) -> u64 {
        let moment = self.moment(nanos);
        let counted = self.charged.iter().filter(|(at, _)| moment - at < window);
        counted.map(|(_, units)| u64::from(*units)).sum()
    }

    fn give_back(&mut self, window: u64, nanos: u64, amount: u32) {
        let moment = self.moment(nanos);
        // What has left is gone for good, also when the clock runs backwards afterwards.
        self.charged.retain(|(at, _)| moment - at < window);
        let mut amount = amount;
        for (_, units) in self.charged.iter_mut().rev() {
            let taken = amount.min(*units);
            *units -= taken;
            amount -= taken;
        }
        // The log keeps no empty entries, and so not their times.
        self.charged.retain(|(_, units)| *units > 0);
    }
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Ask(u32),
    /// Counted although refused.
    Count(u32),
    Owe(u32),
    GiveBack(u32),
}

#[derive(Debug, Clone)]
struct Trace {
    quota: Quota,
    /// How far the clock moves, backwards where it is negative.
    steps: Vec<(i64, Step)>,
}

/// What a trace has beside requests, which are charged when they pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Requests,
    GivenBack,
    Owed,
    /// Counted although refused, up to the largest amounts.
    Counted,
    /// All of it, moderate amounts, no time that runs backwards.
    Mixed,
}

fn traces(kind: Kind) -> impl Strategy<Value = Trace> {
    let count = prop_oneof![3 => 1_u32..12, 2 => 12_u32..200, 1 => Just(COUNT_MAX)];
    let window =
        prop_oneof![Just(MILLI), Just(SECOND), Just(60 * SECOND + 1), Just(366 * DAY), MILLI..SECOND];
    (count, window).prop_flat_map(move |(count, window)| {
        let whole = i64::try_from(window).unwrap();
        let unit = whole / i64::from(count.min(50));
        let past = if kind == Kind::Mixed { 0..1 } else { -unit * 3..0 };
        let jump =
            prop_oneof![8 => 0..unit * 2, 3 => Just(0), 1 => Just(whole), 1 => 0..whole * 3, 1 => past];
        let cost = prop_oneof![6 => Just(1_u32), 2 => 0..count + 2, 1 => Just(count)];
        let much = prop_oneof![4 => cost.clone(), 1 => 0..=u32::MAX, 1 => Just(u32::MAX)];
        let ask = cost.clone().prop_map(Step::Ask);
        let back = cost.clone().prop_map(Step::GiveBack);
        let owe = cost.clone().prop_map(Step::Owe);
        let step = match kind {
            Kind::Requests => ask.boxed(),
            Kind::GivenBack => prop_oneof![4 => ask, 1 => back].boxed(),
            Kind::Owed => prop_oneof![4 => ask, 1 => owe].boxed(),
            Kind::Counted => prop_oneof![3 => ask, 1 => much.prop_map(Step::Count)].boxed(),
            Kind::Mixed => {
                prop_oneof![4 => ask, 1 => cost.prop_map(Step::Count), 1 => owe, 1 => back].boxed()
            }
        };
        let steps = proptest::collection::vec((jump, step), 1..250);
        steps.prop_map(move |steps| Trace { quota: Quota::new(count, window).unwrap(), steps })
    })
}

/// Traces on which the log does as the list, whatever is asked.
fn exact_traces() -> impl Strategy<Value = Trace> {
    prop_oneof![traces(Kind::Requests), traces(Kind::GivenBack), traces(Kind::Owed), traces(Kind::Counted)]
}

fn any_trace() -> impl Strategy<Value = Trace> {
    prop_oneof![4 => exact_traces(), 1 => traces(Kind::Mixed)]
}

/// Runs a trace; `each` sees the log and the reference before every step.
fn run(trace: &Trace, mut each: impl FnMut(u64, u32, &SlidingLog, &Reference)) -> Reference {
    let (quota, window) = (trace.quota, trace.quota.window_nanos());
    let (mut log, mut reference) = (SlidingLog::fresh(&quota, Now::default()), Reference::default());
    let mut nanos = 400 * DAY;
    for (jump, step) in &trace.steps {
        nanos = nanos.saturating_add_signed(*jump);
        let now = Now { at: Timestamp::from_nanos(nanos), utc: *jump };
        let mut charged = 0;
        match *step {
            Step::Ask(cost) => {
                each(nanos, cost, &log, &reference);
                if log.judge(&quota, now, cost) == Pass {
                    log.charge(&quota, now, cost);
                    charged = cost;
                }
            }
            Step::Count(cost) => {
                log.charge(&quota, now, cost);
                charged = cost;
            }
            Step::Owe(amount) => {
                log.owe(&quota, now, amount, u32::MAX);
                charged = amount;
            }
            Step::GiveBack(amount) => {
                log.give_back(&quota, now, amount);
                reference.give_back(window, nanos, amount);
            }
        }
        if charged > 0 {
            reference.charged.push((reference.moment(nanos), charged));
        }
    }
    reference
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn decides_as_the_list_does(trace in exact_traces()) {
        let (quota, window) = (trace.quota, trace.quota.window_nanos());
        run(&trace, |nanos, cost, log, list| {
            let now = Now::at_nanos(nanos);
            let units = list.units(window, nanos);
            let passes = cost == 0 || units + u64::from(cost) <= u64::from(quota.count());
            assert_eq!(log.judge(&quota, now, cost) == Pass, passes, "{cost} at {nanos}, {units} counted");
            let remaining = u64::from(quota.count()).saturating_sub(units);
            assert_eq!(log.level(&quota, now).remaining, remaining);
        });
    }

    #[test]
    fn never_counts_for_too_little(trace in any_trace()) {
        // Also not under a larger count, nor when a key above its count is given units back.
        let (quota, window) = (trace.quota, trace.quota.window_nanos());
        let wide = quota.with_count(COUNT_MAX).unwrap();
        run(&trace, |nanos, _, log, list| {
            for quota in [quota, wide] {
                let remaining = u64::from(quota.count()).saturating_sub(list.units(window, nanos));
                assert!(log.level(&quota, Now::at_nanos(nanos)).remaining <= remaining);
            }
        });
    }

    #[test]
    fn in_every_window_at_most_n_pass(trace in traces(Kind::Requests)) {
        let list = run(&trace, |_, _, _, _| ()).charged;
        let (mut first, mut sum) = (0, 0);
        for (to, units) in &list {
            sum += u64::from(*units);
            while to - list[first].0 >= trace.quota.window_nanos() {
                sum -= u64::from(list[first].1);
                first += 1;
            }
            prop_assert!(sum <= u64::from(trace.quota.count()), "{} up to {}", sum, to);
        }
    }

    #[test]
    fn a_wait_is_enough_and_not_a_microsecond_too_long(trace in any_trace()) {
        let quota = trace.quota;
        run(&trace, |nanos, cost, log, _| {
            let at = |micros: u64| Now::at_nanos(nanos + micros * 1_000);
            match log.judge(&quota, at(0), cost) {
                Later(Micros(wait)) => {
                    assert_eq!(log.judge(&quota, at(wait), cost), Pass);
                    assert_ne!(log.judge(&quota, at(wait - 1), cost), Pass);
                }
                Never => assert!(cost > quota.count()),
                _ => assert!(cost <= quota.count()),
            }
        });
    }

    #[test]
    fn reset_is_when_more_remains(trace in any_trace()) {
        let quota = trace.quota;
        run(&trace, |nanos, _, log, _| {
            let at = |micros: u64| Now::at_nanos(nanos + micros * 1_000);
            let level = log.level(&quota, at(0));
            if level.remaining == level.limit {
                assert_eq!(level.reset, Micros::ZERO);
            } else {
                assert!(log.level(&quota, at(level.reset.0)).remaining > level.remaining);
                assert_eq!(log.level(&quota, at(level.reset.0 - 1)).remaining, level.remaining);
            }
            let fresh = log.nanos_until_fresh(quota.window_nanos(), at(0));
            assert_eq!(log.level(&quota, Now::at_nanos(nanos + fresh)).remaining, level.limit);
            assert!(fresh == 0 || log.level(&quota, Now::at_nanos(nanos + fresh - 1)).remaining < level.limit);
            assert!(log.heap_bytes() <= (usize::try_from(quota.count()).unwrap() * 5 / 4).max(3) * 12 + 4_200);
        });
    }
}
