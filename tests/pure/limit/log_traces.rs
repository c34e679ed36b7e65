//! The sliding log against a list of all that was ever charged, over random traces.

use proptest::prelude::*;
use tidegate::clock::{Micros, Now, Timestamp};
use tidegate::limit::Outcome;
use tidegate::limit::sliding_log::{COUNT_MAX, SlidingLogQuota, SlidingLogState};

use Outcome::{Later, Never, Pass};

const MILLI: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MILLI;
const DAY: u64 = 86_400 * SECOND;

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
    quota: SlidingLogQuota,
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
        steps.prop_map(move |steps| Trace { quota: SlidingLogQuota::new(count, window).unwrap(), steps })
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
fn run(trace: &Trace, mut each: impl FnMut(u64, u32, &SlidingLogState, &Reference)) -> Reference {
    let (quota, window) = (trace.quota, trace.quota.window_nanos());
    let (mut log, mut reference) = (SlidingLogState::default(), Reference::default());
    let mut nanos = 400 * DAY;
    for (jump, step) in &trace.steps {
        nanos = nanos.saturating_add_signed(*jump);
        let now = Now { at: Timestamp::from_nanos(nanos), utc_offset_nanos: *jump };
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
                log.charge_debt(&quota, now, amount, u32::MAX);
                charged = amount;
            }
            Step::GiveBack(amount) => {
                log.refund(&quota, now, amount);
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
    #![proptest_config(crate::cases(120))]

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
