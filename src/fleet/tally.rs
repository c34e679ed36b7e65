//! Counters of each rule, for observation only: no decision uses them.

use std::collections::HashMap;
use std::time::Duration;

use super::cell::{CellReply, CellRequest, TOKEN};
use crate::clock::Timestamp;

/// The counters of the budgets of one rule on this host, since it is in force.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BudgetCounters {
    pub keys: u64,
    pub cells: u64,
    /// Answered cells per second, over the last second.
    pub cells_per_second: u64,
    /// Cells that expired early.
    pub lost: u64,
    /// Millionths of a token charged below zero: admitted beyond the budget.
    pub excess: u64,
    /// Refusals of a key of which the next reply showed at least a tenth of the budget: an estimate.
    pub false_refusals: u64,
    pub replied_at: Option<Timestamp>,
    /// The version of the rule's numbers in the last reply.
    pub version: u64,
    /// Whether that version is newer than the numbers of this host: another host has others, which hold for all.
    pub is_outdated: bool,
}

#[derive(Debug, Default)]
pub(super) struct Tallies(HashMap<u64, TallyEntry>);

#[derive(Clone, Copy, Debug, Default)]
struct TallyEntry {
    tally: BudgetCounters,
    /// The start of the rate's interval, and `cells` at that time.
    since: Timestamp,
    before: u64,
}

impl Tallies {
    pub(super) fn each(&self, now: Timestamp) -> impl Iterator<Item = (u64, BudgetCounters)> + '_ {
        self.0.iter().map(move |(rule, entry)| (*rule, entry.at(now)))
    }

    /// Drops rules that are not in force and have no keys.
    pub(super) fn keep(&mut self, is_in_force: impl Fn(u64) -> bool) {
        self.0.retain(|rule, entry| entry.tally.keys > 0 || is_in_force(*rule));
    }

    pub(super) fn opens(&mut self, rule: u64) {
        self.0.entry(rule).or_default().tally.keys += 1;
    }

    pub(super) fn closes(&mut self, rule: u64) {
        let tally = &mut self.0.entry(rule).or_default().tally;
        tally.keys = tally.keys.saturating_sub(1);
    }

    /// Records a reply; `refused`: a request had been refused before. Returns whether that refusal was false.
    pub(super) fn record_reply(
        &mut self,
        rule: u64,
        (ask, reply): (&CellRequest, &CellReply),
        refused: bool,
        now: Timestamp,
    ) -> bool {
        let entry = self.0.entry(rule).or_default();
        let tally = &mut entry.tally;
        let below = reply.level.min(0).unsigned_abs();
        // The level before the grant.
        let there = u64::try_from(reply.level).map_or(0, |level| level.saturating_add(reply.grant));
        let is_false = refused && there >= TOKEN && there >= ask.cell_quota.burst / 10;
        tally.cells += 1;
        tally.lost += u64::from(reply.lost);
        tally.excess += below.min(ask.owed);
        tally.false_refusals += u64::from(is_false);
        tally.replied_at = Some(now);
        tally.version = reply.version;
        entry.reckon(now);
        is_false
    }

    /// Records the version of a reply; that of a window without a cell is 0.
    pub(super) fn record_version(&mut self, rule: u64, version: u64) {
        if version > 0 {
            self.0.entry(rule).or_default().tally.version = version;
        }
    }

    pub(super) fn record_permits(&mut self, rule: u64, now: Timestamp) {
        let entry = self.0.entry(rule).or_default();
        entry.tally.cells += 1;
        entry.tally.replied_at = Some(now);
        entry.reckon(now);
    }
}

impl TallyEntry {
    /// Updates the rate once a second has passed.
    fn reckon(&mut self, now: Timestamp) {
        let lasted = now.since(self.since);
        if lasted >= SECOND {
            let cells =
                u128::from(self.tally.cells - self.before) * SECOND.as_nanos() / lasted.as_nanos().max(1);
            self.tally.cells_per_second = u64::try_from(cells).unwrap_or(u64::MAX);
            (self.since, self.before) = (now, self.tally.cells);
        }
    }

    /// The counters at a time; the rate of an idle rule falls to zero.
    fn at(&self, now: Timestamp) -> BudgetCounters {
        let mut entry = *self;
        if now.since(entry.since) >= SECOND * 2 {
            entry.reckon(now);
        }
        entry.tally
    }
}

const SECOND: Duration = Duration::from_secs(1);
