//! What is told of a budget, a bucket or windows; and what is different about a key that has windows.

use super::{Page, TOKEN, Terms};
use crate::clock::Timestamp;
use crate::engine::{Budget, WindowTurns};
use crate::fleet::cell::CellRate;
use crate::fleet::window::{CellWindow, Turns};
use crate::rules::{fleet_rate, nearest_fleet_rate};

/// The numbers of a budget as Redis is told them.
pub(in crate::fleet) fn terms(budget: &Budget, version: u64) -> Option<Terms> {
    let bucket = budget.quota.bucket();
    let (num, den) = match budget.quota.window() {
        None => fleet_rate(bucket.rate())?,
        // Nothing is counted by it.
        Some(_) => nearest_fleet_rate(bucket.rate()),
    };
    let rate = CellRate::new(num, den)?;
    Some(Terms { version, rate, burst: u64::from(bucket.burst()) * TOKEN })
}

/// How the windows of a budget turn, if it has windows and the clock of Redis shows about so much, in microseconds.
pub(in crate::fleet) fn cell_window(budget: &Budget, unix_us: u64) -> Option<CellWindow> {
    let window = budget.quota.window()?;
    Some(match window.turns() {
        WindowTurns::Every { slots, step, origin } => {
            CellWindow { slots, turns: Turns::Every { step, origin } }
        }
        WindowTurns::Calendar => {
            let (start, turn, finish) = window.edges(unix_us);
            CellWindow { slots: 1, turns: Turns::Calendar { start, turn, finish } }
        }
    })
}

impl Page {
    /// Whether all of the window is spent.
    pub(super) fn is_spent_out(&self) -> bool {
        matches!(self.more, Some((_, true)))
    }

    /// A window may have turned since Redis spoke of it: then there is all of it, or a little.
    pub(super) fn turn(&mut self, budget: &Budget, now: Timestamp) {
        if self.more.is_some_and(|(at, _)| now >= at) {
            self.more = None;
            self.is_short = false;
            if budget.quota.window().is_some_and(|window| !window.slides()) {
                self.level = i64::from(budget.quota.bucket().burst()) * TOKEN.cast_signed();
            }
        }
    }

    /// What hosts are given in a second at the most, in millionths of a token: what a bucket earns, or what there is of a
    /// window, if that is more than it admits at the mean.
    pub(super) fn supply(&self, budget: &Budget) -> u64 {
        let earns = budget.quota.micro_units_per_second();
        match budget.quota.window() {
            None => earns,
            Some(_) => earns.max(u64::try_from(self.level).unwrap_or(0)),
        }
    }
}
