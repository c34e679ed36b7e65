//! Counts over time in a bounded number of steps, whose length grows with the trace.

use std::collections::HashMap;
use std::time::{Duration, UNIX_EPOCH};

use crate::clock::Timestamp;
use crate::engine::{Totals, VerdictTotals};
use crate::page::span;

/// Cumulative counts of an engine at the end of each step.
#[derive(Debug, Default)]
pub struct StepCounts {
    first: Option<Timestamp>,
    /// How many of [`WIDENINGS`] have been applied.
    widened: usize,
    /// For each step the counts of decisions, then those of each rule.
    ends: Vec<Vec<[u64; 3]>>,
    /// The index of each rule in these.
    places: HashMap<(Box<str>, Box<str>), usize>,
}

impl StepCounts {
    /// Advances to `at`: closes the steps before it with the current totals.
    pub fn reach(&mut self, at: Timestamp, totals: impl FnOnce() -> Totals) {
        let first = *self.first.get_or_insert(at);
        let passed = at.since(first).as_nanos();
        while self.widened < WIDENINGS.len() && passed / self.step().as_nanos() >= STEPS_MAX as u128 {
            self.widen();
        }
        let step = usize::try_from(passed / self.step().as_nanos()).unwrap_or(STEPS_MAX).min(STEPS_MAX - 1);
        if step > self.ends.len() {
            // The step that ends here, and steps without events.
            let sums = self.sums(&totals());
            self.ends.resize(step, sums);
        }
    }

    /// Merges several steps into one. A remainder belongs to a step that has not ended.
    fn widen(&mut self) {
        let times = WIDENINGS.get(self.widened).map_or(1, |times| *times as usize);
        let mut place = 0;
        self.ends.retain(|_| {
            place += 1;
            place % times == 0
        });
        self.widened += 1;
    }

    pub fn end(&mut self, totals: &Totals) {
        let sums = self.sums(totals);
        self.ends.push(sums);
    }

    pub(super) fn step(&self) -> Duration {
        let widenings = WIDENINGS.iter().take(self.widened).map(|times| u64::from(*times));
        Duration::from_millis(STEP_MILLIS_MIN.saturating_mul(widenings.product()))
    }

    /// Formats the start of the first step and the end of the last; `None` if nothing was played.
    pub(super) fn times(&self) -> Option<[String; 2]> {
        let steps = u32::try_from(self.ends.len()).unwrap_or(u32::MAX);
        let first = self.first?;
        Some([first, first.after(self.step().saturating_mul(steps))].map(time))
    }

    /// Requests allowed (including waits), limited or denied, and shed, in each step.
    pub(super) fn verdicts(&self) -> Vec<[u64; 3]> {
        self.in_each_step(0)
    }

    /// Requests that passed a rule, were refused by it, or would have been, in each step.
    pub fn of(&self, domain: &str, rule: &str) -> Vec<[u64; 3]> {
        let place = self.places.get(&(domain.into(), rule.into()));
        place.map(|place| self.in_each_step(*place)).unwrap_or_default()
    }

    fn in_each_step(&self, place: usize) -> Vec<[u64; 3]> {
        apart(self.ends.iter().map(|sums| sums.get(place).copied().unwrap_or_default()).collect())
    }

    fn sums(&mut self, totals: &Totals) -> Vec<[u64; 3]> {
        let VerdictTotals { allow, limit, shed, wait, deny } = totals.verdicts;
        let mut sums = vec![[allow + wait, limit + deny, shed]];
        for rule in &totals.rules {
            let next = self.places.len() + 1;
            let place = *self.places.entry((rule.domain.clone(), rule.rule.clone())).or_insert(next);
            sums.resize(sums.len().max(place + 1), [0; 3]);
            if let Some(checks) = sums.get_mut(place) {
                *checks = rule.outcomes();
            }
        }
        sums
    }
}

/// Formats a time: as a date if the trace has Unix times, else since its zero.
fn time(at: Timestamp) -> String {
    let since = Duration::from_nanos(at.as_nanos());
    if since < CALENDAR {
        return span(since);
    }
    let text = humantime::format_rfc3339_seconds(UNIX_EPOCH + since).to_string();
    text.replace('T', " ").replace('Z', " UTC")
}

/// Converts cumulative counts to counts per step. A sum shrinks where a removed rule's counts move to the
/// rest; later, smaller sums then cap the earlier ones.
fn apart(mut sums: Vec<[u64; 3]>) -> Vec<[u64; 3]> {
    let mut least = [u64::MAX; 3];
    for sum in sums.iter_mut().rev() {
        for (number, least) in sum.iter_mut().zip(&mut least) {
            *least = (*least).min(*number);
            *number = *least;
        }
    }
    let mut before = [0; 3];
    for sum in &mut sums {
        let until = *sum;
        for (number, before) in sum.iter_mut().zip(before) {
            *number -= before;
        }
        before = until;
    }
    sums
}

/// As many steps as a picture can resolve; about 3 MB for 512 rules.
const STEPS_MAX: usize = 240;

/// The initial length of a step.
const STEP_MILLIS_MIN: u64 = 1;

/// How many steps each widening merges: 5 and 10 ms and so on to 10 s, 30 s, 1, 5, 10 and 30 minutes, 1, 6
/// and 12 hours, 1, 7, 28, 364 and 3 640 days. No trace is longer: timestamps end after 584 years.
const WIDENINGS: [u8; 21] = [5, 2, 5, 2, 5, 2, 5, 2, 3, 2, 5, 2, 3, 2, 6, 2, 2, 7, 4, 13, 10];

/// Three years after 1970: later times are Unix times.
const CALENDAR: Duration = Duration::from_secs(100_000_000);
