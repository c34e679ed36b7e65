//! The numbers of a budget (bucket or window) as Redis gets them, and the sync of keys with windows.

use super::{CellQuota, KeySync, TOKEN};
use crate::clock::Timestamp;
use crate::engine::{FleetBudget, WindowTurns};
use crate::fleet::cell::CellRate;
use crate::fleet::window::{CellWindow, FleetWindowAlign};
use crate::rules::{fleet_rate, nearest_fleet_rate};

/// Returns the numbers of a budget for Redis; `None` if the scripts cannot count them exactly.
pub(in crate::fleet) fn terms(budget: &FleetBudget, version: u64) -> Option<CellQuota> {
    let bucket = budget.quota.bucket();
    let (num, den) = match budget.quota.window() {
        None => fleet_rate(bucket.rate())?,
        // The scripts do not count by the rate of a window.
        Some(_) => nearest_fleet_rate(bucket.rate()),
    };
    let rate = CellRate::new(num, den)?;
    Some(CellQuota { version, rate, burst: u64::from(bucket.burst()) * TOKEN })
}

/// Returns how the budget's window turns; `None` for a bucket. `unix_us`: the approximate clock of Redis.
pub(in crate::fleet) fn cell_window(budget: &FleetBudget, unix_us: u64) -> Option<CellWindow> {
    let window = budget.quota.window()?;
    Some(match window.turns() {
        WindowTurns::Every { slots, step, origin } => {
            CellWindow { slots, turns: FleetWindowAlign::Every { step, origin } }
        }
        WindowTurns::Calendar => {
            let (start, turn, finish) = window.edges(unix_us);
            CellWindow { slots: 1, turns: FleetWindowAlign::Calendar { start, turn, finish } }
        }
    })
}

impl KeySync {
    pub(super) fn is_spent_out(&self) -> bool {
        matches!(self.more, Some((_, true)))
    }

    /// Resets the state of a window that may have turned since the last reply.
    pub(super) fn turn(&mut self, budget: &FleetBudget, now: Timestamp) {
        if self.more.is_some_and(|(at, _)| now >= at) {
            self.more = None;
            self.is_short = false;
            if budget.quota.window().is_some_and(|window| !window.slides()) {
                self.level = i64::from(budget.quota.bucket().burst()) * TOKEN.cast_signed();
            }
        }
    }

    /// The most tokens that hosts get per second, µtok: the rate, or the rest of a window if that is more.
    pub(super) fn supply(&self, budget: &FleetBudget) -> u64 {
        let earns = budget.quota.micro_units_per_second();
        match budget.quota.window() {
            None => earns,
            Some(_) => earns.max(u64::try_from(self.level).unwrap_or(0)),
        }
    }
}
