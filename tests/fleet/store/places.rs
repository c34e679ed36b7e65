//! The places of one key: what no host has reported is free.

use tidegate::fleet::cell::{DEMAND_MAX, GENERATION_US, TOKEN};
use tidegate::fleet::places::{KeyPermitReply, PermitRequest};

use super::share::{Reports, granted, portion};

/// What Redis knows of the places of one key; in millionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacesCell {
    pub version: u64,
    pub most: u64,
    pub at: u64,
    pub reports: Reports,
    /// The generation before which nothing is given away.
    pub closed: u64,
}

impl PlacesCell {
    pub fn serve(
        value: Option<&PlacesCell>,
        ask: &PermitRequest,
        other_nonce: bool,
        now_us: u64,
    ) -> (PlacesCell, KeyPermitReply) {
        let most = u64::from(ask.max) * TOKEN;
        let (mut cell, lost) = match value {
            Some(&(mut cell)) => {
                cell.forward(now_us);
                if ask.version > cell.version {
                    (cell.version, cell.most) = (ask.version, most);
                }
                (cell, false)
            }
            None => {
                let lost = ask.knew_us.is_some_and(|knew| other_nonce || knew < 9_000_000);
                let closed = if lost { now_us / GENERATION_US + 2 } else { 0 };
                let reports = Reports::default();
                (PlacesCell { version: ask.version, most, at: now_us, reports, closed }, lost)
            }
        };
        let generation = cell.at / GENERATION_US;
        let last = ask.last.filter(|_| !other_nonce);
        let hold = u64::from(ask.hold) * TOKEN;
        cell.reports.replace(generation, last, hold, ask.demand);
        let free = cell.most.cast_signed() - cell.reports.held().cast_signed();
        let all = cell.reports.demand();
        let mut grant = 0;
        if generation >= cell.closed {
            let mine = ask.demand.min(DEMAND_MAX);
            let missing = portion(cell.most.cast_signed(), mine, all).saturating_sub(hold);
            let share = portion(free, mine, all).max(missing);
            grant = granted(free, share, all, u64::from(ask.want) * TOKEN, ask.dice);
            let there_are = u64::try_from(free).unwrap_or(0) / TOKEN;
            grant = grant.max(u64::from(ask.need.min(ask.want)).min(there_are) * TOKEN);
        }
        cell.reports.hold(grant);
        let said = KeyPermitReply {
            free: (free - grant.cast_signed()).div_euclid(TOKEN.cast_signed()),
            demand: all,
            grant: u32::try_from(grant / TOKEN).unwrap(),
            hosts: cell.reports.hosts(),
            lost,
            version: cell.version,
            generation,
        };
        (cell, said)
    }

    fn forward(&mut self, now_us: u64) {
        let passed = (now_us / GENERATION_US).saturating_sub(self.at / GENERATION_US);
        (0..passed.min(2)).for_each(|_| self.reports.turn());
        if now_us > self.at || self.at - now_us > GENERATION_US {
            self.at = now_us;
        }
        self.closed = self.closed.min(self.at / GENERATION_US + 2);
    }
}

/// For how long they are kept: hosts that have any speak each second.
pub const KEPT_MS: u64 = 10_001;
