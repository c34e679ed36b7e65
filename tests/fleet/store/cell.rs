//! Models one cell: refill over time, and grants.

use tidegate::fleet::cell::{AMOUNT_MAX, CellQuota, CellReply, CellRequest, DEMAND_MAX, GENERATION_US};
use tidegate::fleet::reply::{CostCover, PaymentResult};

use super::share::{Reports, granted, portion};

/// State of one key in Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    pub cell_quota: CellQuota,
    /// µtok; negative after admissions beyond the budget.
    pub level: i64,
    /// Remainder of the last refill, in `den` parts of a µtok.
    pub rem: u64,
    /// Time of the last refill, µs.
    pub at: u64,
    /// Host reports in the generation of `at`, and those of the one before without a newer one.
    pub reports: Reports,
}

impl Cell {
    /// Returns the requested cell, moved to `now`, and whether it had been lost.
    pub fn for_request(
        value: Option<&Cell>,
        asked: &CellQuota,
        known_age_us: Option<u64>,
        other_birth: bool,
        now_us: u64,
    ) -> (Cell, bool) {
        let Some(&(mut cell)) = value else {
            let lost = known_age_us.is_some_and(|knew| other_birth || knew < SURELY_KEPT_US);
            let level = if lost { 0 } else { asked.burst.cast_signed() };
            let reports = Reports::default();
            return (Cell { cell_quota: *asked, level, rem: 0, at: now_us, reports }, lost);
        };
        cell.forward(now_us);
        let numbers = |quota: &CellQuota| (quota.rate, quota.burst);
        if asked.version >= cell.cell_quota.version && numbers(asked) != numbers(&cell.cell_quota) {
            (cell.cell_quota, cell.rem) = (*asked, 0);
            cell.level = cell.level.min(asked.burst.cast_signed());
        }
        cell.cell_quota.version = cell.cell_quota.version.max(asked.version);
        (cell, false)
    }

    /// Moves it to `now` by generations: holds limit its refill. All holds expire after two edges.
    pub fn forward(&mut self, now_us: u64) {
        if now_us < self.at {
            if self.at - now_us > GENERATION_US {
                self.at = now_us;
            }
            return;
        }
        for _ in 0..2 {
            let edge = (self.at / GENERATION_US + 1) * GENERATION_US;
            if now_us < edge {
                break;
            }
            self.earn(edge);
            self.reports.turn();
        }
        self.earn(now_us);
    }

    fn earn(&mut self, until: u64) {
        let us = until - self.at;
        self.at = until;
        let cap = self.cell_quota.burst.cast_signed() - self.reports.held().cast_signed();
        if self.level >= cap {
            self.rem = 0;
            return;
        }
        let (num, den) = (i128::from(self.cell_quota.rate.num()), i128::from(self.cell_quota.rate.den()));
        let earned = i128::from(us) * num + i128::from(self.rem);
        let level = i128::from(self.level) + earned / den;
        (self.level, self.rem) = match i64::try_from(level) {
            Ok(level) if level < cap => (level, u64::try_from(earned % den).unwrap()),
            _ => (cap, 0),
        };
    }

    /// Executes a sync: settles debts and returns, and grants the host's portion.
    pub fn serve(&mut self, ask: &CellRequest, lost: bool, other_birth: bool) -> CellReply {
        let generation = self.at / GENERATION_US;
        self.reports.replace(generation, ask.last.filter(|_| !other_birth), ask.hold, ask.demand);
        let room = self.cell_quota.burst.cast_signed() - self.reports.held().cast_signed();
        self.level = self.level.max((self.level + ask.back.min(AMOUNT_MAX).cast_signed()).min(room));
        let debt_max = (2 * self.cell_quota.burst + DEBT_BEYOND_BURSTS).min(DEBT_MAX);
        self.level = (self.level - ask.owed.min(AMOUNT_MAX).cast_signed()).max(-debt_max.cast_signed());

        let demand = self.reports.demand();
        let share = portion(self.level + self.filled(ask.waited_us), ask.demand.min(DEMAND_MAX), demand);
        let grant = granted(self.level, share, demand, ask.want.min(AMOUNT_MAX), ask.random);
        self.level -= grant.cast_signed();
        self.reports.hold(grant);
        let (hosts, version) = (self.reports.hosts(), self.cell_quota.version);
        CellReply { level: self.level, demand, grant, hosts, lost, version, generation, window: None }
    }

    /// Returns the level of an empty cell after this time.
    fn filled(&self, us: u64) -> i64 {
        let filled = u128::from(us.min(AMOUNT_MAX)) * u128::from(self.cell_quota.rate.num());
        let filled = filled / u128::from(self.cell_quota.rate.den());
        let burst = self.cell_quota.burst;
        u64::try_from(filled).map_or(burst, |filled| filled.min(burst)).cast_signed()
    }

    /// Returns the result of an exact check.
    pub fn look(&self, cost: u64, now_us: u64) -> PaymentResult {
        let cost = cost.min(AMOUNT_MAX);
        let need = u64::try_from(cost.cast_signed() - self.level).unwrap_or(0);
        let wait = match need {
            0 => CostCover::No,
            _ if cost > self.cell_quota.burst => CostCover::Never,
            need => {
                let (num, den) =
                    (u128::from(self.cell_quota.rate.num()), u128::from(self.cell_quota.rate.den()));
                let us = (u128::from(need) * den - u128::from(self.rem)).div_ceil(num);
                let us = us + u128::from(self.at - now_us.min(self.at));
                CostCover::Until(u64::try_from(us).map_or(AMOUNT_MAX, |us| us.min(AMOUNT_MAX)))
            }
        };
        PaymentResult { level: self.level, wait, window: None }
    }

    /// Returns its expiry, ms.
    pub fn kept_ms(&self) -> u64 {
        let need = u64::try_from(self.cell_quota.burst.cast_signed() - self.level).unwrap_or(0);
        let us =
            u128::from(need.div_ceil(self.cell_quota.rate.num())) * u128::from(self.cell_quota.rate.den());
        u64::try_from(us / 1000 + 10_001).map_or(KEPT_MS_MAX, |ms| ms.min(KEPT_MS_MAX))
    }
}

const SURELY_KEPT_US: u64 = 9_000_000;
const DEBT_BEYOND_BURSTS: u64 = 10_000_000_000;
const DEBT_MAX: u64 = 4_500_000_000_000_000;
const KEPT_MS_MAX: u64 = 34_560_000_000;
