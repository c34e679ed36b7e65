//! Records a run second by second, and computes its results. It judges nothing.

use std::io::Write;
use std::ops::Range;

use crate::plan::{CRITICAL, PRIORITIES, Plan};
use crate::real::View;

/// One second. Outcomes of a request count in the second of its first arrival.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Second {
    /// Requests by priority; retries do not count.
    pub(crate) offered: [u32; 4],
    /// Tries, including first ones.
    pub(crate) tries: [u32; 4],
    /// Admitted tries.
    pub(crate) admitted: [u32; 4],
    /// Requests answered in time.
    pub(crate) succeeded: [u32; 4],
    /// Tries answered after the client's timeout.
    pub(crate) late: [u32; 4],
    /// Tries that found the backlog full.
    pub(crate) lost: [u32; 4],
    /// Shed tries.
    pub(crate) shed: [u32; 4],
    /// Tries over the caller's limit.
    pub(crate) limited: [u32; 4],
    /// Requests answered in time in this second, regardless of arrival.
    pub(crate) answered: u32,
    /// Nanoseconds under leases since the start.
    pub(crate) busy_nanos: u64,
    /// Peak of waiting connections.
    pub(crate) queue_max: u32,
    /// Waiting connections at its end.
    pub(crate) queue: u32,
    /// View of the engine at its end.
    pub(crate) view: View,
}

/// A run.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) plan: Plan,
    pub(crate) seconds: Vec<Second>,
    /// Seconds from the event to the first refusal.
    pub(crate) first_shed: f64,
    /// The same by the slow loop.
    pub(crate) first_slow: f64,
    /// Largest error of the reported u.
    pub(crate) utilization_off: f64,
}

impl Run {
    pub(crate) fn span(&self, range: &Range<u64>) -> &[Second] {
        let end = (range.end as usize).min(self.seconds.len());
        &self.seconds[(range.start as usize).min(end)..end]
    }

    fn sum(&self, range: &Range<u64>, count: impl Fn(&Second) -> u32) -> f64 {
        self.span(range).iter().map(|second| f64::from(count(second))).sum()
    }

    /// Returns the share of critical requests answered in time.
    pub(crate) fn critical(&self, range: &Range<u64>) -> f64 {
        self.success(CRITICAL, range)
    }

    /// The same by tries: an earlier try of a retried request failed.
    pub(crate) fn critical_by_tries(&self, range: &Range<u64>) -> f64 {
        let tries = self.sum(range, |second| second.tries[CRITICAL]);
        self.sum(range, |second| second.succeeded[CRITICAL]) / tries.max(1.0)
    }

    pub(crate) fn success(&self, priority: usize, range: &Range<u64>) -> f64 {
        let offered = self.sum(range, |second| second.offered[priority]);
        self.sum(range, |second| second.succeeded[priority]) / offered.max(1.0)
    }

    /// Returns the share of tries of a priority that were shed, or lost at a full backlog.
    pub(crate) fn refused(&self, priority: usize, range: &Range<u64>) -> f64 {
        let refused = self.sum(range, |second| second.shed[priority] + second.lost[priority]);
        refused / self.sum(range, |second| second.tries[priority]).max(1.0)
    }

    /// Returns tries of any priority that were shed or lost.
    pub(crate) fn all_refused(&self) -> f64 {
        let all = 0..self.plan.end();
        self.sum(&all, |second| second.shed.iter().chain(&second.lost).sum())
    }

    /// Returns answers in time, in requests a second.
    pub(crate) fn goodput(&self, range: &Range<u64>) -> f64 {
        self.sum(range, |second| second.answered) / (range.end - range.start) as f64
    }

    /// Returns the share of critical requests within their caller's limit that were answered in time.
    pub(crate) fn critical_within_quota(&self, range: &Range<u64>) -> f64 {
        let limited = self.sum(range, |second| second.limited[CRITICAL]);
        let offered = self.sum(range, |second| second.offered[CRITICAL]) - limited;
        self.sum(range, |second| second.succeeded[CRITICAL]) / offered
    }

    /// Returns requests over their caller's limit, a second.
    pub(crate) fn limited(&self, range: &Range<u64>) -> f64 {
        self.sum(range, |second| second.limited.iter().sum()) / (range.end - range.start) as f64
    }

    /// Returns offered requests, a second.
    pub(crate) fn offered(&self, range: &Range<u64>) -> f64 {
        self.sum(range, |second| second.offered.iter().sum()) / (range.end - range.start) as f64
    }

    /// Returns the share of workers' time under leases in the 8 s before the end of a second.
    pub(crate) fn utilization(&self, second: u64) -> f64 {
        let busy = |second: u64| self.seconds.get(second as usize).map_or(0, |second| second.busy_nanos);
        let span = second.min(8);
        let done = busy(second) - busy(second - span);
        done as f64 / (span.max(1) as f64 * 1e9 * f64::from(self.plan.workers))
    }

    pub(crate) fn queue_max(&self, range: &Range<u64>) -> f64 {
        f64::from(self.span(range).iter().map(|second| second.queue_max).max().unwrap_or(0))
    }

    /// Returns the seconds from the start of `range` until a queue has cleared and u is below 0.9.
    pub(crate) fn cleared_after(&self, range: &Range<u64>) -> f64 {
        let stood = |second: u64| self.seconds[second as usize].queue_max >= self.plan.workers;
        let is_clear =
            |second: u64| self.seconds[second as usize].queue == 0 && self.utilization(second) < 0.9;
        let cleared = range
            .clone()
            .find(|second| stood(*second))
            .and_then(|first| (first..range.end).find(|second| is_clear(*second)));
        cleared.map_or(f64::INFINITY, |second| (second + 1 - range.start) as f64)
    }

    fn severities(&self, range: &Range<u64>) -> impl Iterator<Item = f64> + '_ {
        self.span(range).iter().map(|second| second.view.severity)
    }

    /// Counts reversals of s by 0.05 or more.
    pub(crate) fn reversals(&self, range: &Range<u64>) -> f64 {
        let Some(first) = self.severities(range).next() else { return 0.0 };
        let (mut turns, mut direction, mut low, mut high) = (0.0, 0.0, first, first);
        for s in self.severities(range) {
            (low, high) = (low.min(s), high.max(s));
            // The direction so far is known; s reverses once it is far enough from its extreme.
            let (up, down) = (s - low >= TURN, high - s >= TURN);
            let turned = match direction {
                1.0 => down,
                -1.0 => up,
                _ => up || down,
            };
            if turned {
                turns += f64::from(u8::from(direction != 0.0));
                direction = if direction == 0.0 { if up { 1.0 } else { -1.0 } } else { -direction };
                (low, high) = (s, s);
            }
        }
        turns
    }

    /// Returns the standard deviation of s.
    pub(crate) fn severity_spread(&self, range: &Range<u64>) -> f64 {
        let count = self.span(range).len() as f64;
        let mean = self.severities(range).sum::<f64>() / count;
        (self.severities(range).map(|s| (s - mean) * (s - mean)).sum::<f64>() / count).sqrt()
    }

    /// Returns the seconds from the start of `range` until s is at most 0.
    pub(crate) fn recovered_after(&self, range: &Range<u64>) -> f64 {
        let found = self.severities(range).position(|s| s <= 0.0);
        found.map_or(f64::INFINITY, |second| second as f64)
    }

    /// Returns the largest rise of s within one second.
    pub(crate) fn steepest_rise(&self, range: &Range<u64>) -> f64 {
        let severities: Vec<f64> = self.severities(range).collect();
        severities.windows(2).map(|pair| pair[1] - pair[0]).fold(0.0, f64::max)
    }

    /// Writes the run as a table.
    pub(crate) fn write_csv(&self, to: &mut impl Write) -> std::io::Result<()> {
        let counts = ["offered", "admitted", "succeeded", "late", "shed", "lost"];
        write!(to, "second")?;
        for count in counts {
            PRIORITIES.iter().try_for_each(|priority| write!(to, ",{count}_{priority}"))?;
        }
        writeln!(to, ",answered,queue,u,s,braking,leases_critical,leases_other")?;
        for (number, second) in self.seconds.iter().enumerate() {
            write!(to, "{number}")?;
            let Second { offered, admitted, succeeded, late, shed, lost, .. } = second;
            for counts in [offered, admitted, succeeded, late, shed, lost] {
                counts.iter().try_for_each(|count| write!(to, ",{count}"))?;
            }
            let (u, view) = (self.utilization(number as u64), second.view);
            let (braking, [critical, other]) = (u8::from(view.braking), view.leases);
            write!(to, ",{},{},{u:.4},{:.4}", second.answered, second.queue, view.severity)?;
            writeln!(to, ",{braking},{critical},{other}")?;
        }
        Ok(())
    }
}

/// Smallest reversal of s that counts.
const TURN: f64 = 0.05;
