//! Models one window: its movement over time, and grants.

use std::collections::BTreeMap;

use tidegate::fleet::cell::{
    AMOUNT_MAX, CellQuota, CellReply, CellReport, CellRequest, GENERATION_US, TOKEN,
};
use tidegate::fleet::command::KeyPayment;
use tidegate::fleet::reply::{CostCover, PaymentResult};
use tidegate::fleet::window::{CellWindow, WindowReply, WindowStatus};

use super::share::{Reports, granted, portion};

/// State of one key in Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowCell {
    pub version: u64,
    pub slots: u32,
    pub is_by_calendar: bool,
    pub step: i64,
    pub origin: i64,
    pub limit: i64,
    /// Earlier payments do not count.
    pub since: i64,
    pub newest: i64,
    pub at: i64,
    pub reports: Reports,
    /// Spent tokens by sub-bucket, without those that no longer count.
    pub(super) spent: BTreeMap<i64, i64>,
}

impl WindowCell {
    /// Returns the requested cell, whether it had been lost, and whether it is of the current window.
    pub fn for_request(
        value: Option<&WindowCell>,
        cell_quota: &CellQuota,
        window: &CellWindow,
        known_age_us: Option<u64>,
        now_us: u64,
    ) -> (Option<WindowCell>, bool, bool) {
        let now = now_us.cast_signed();
        let (shape, is_by_calendar) = match window.ends {
            None => (Some((window.origin.cast_signed(), window.step.cast_signed())), false),
            Some((turn, finish)) => {
                let [start, turn, finish] = [window.origin, turn, finish].map(u64::cast_signed);
                let around = [(start, turn), (turn, finish)]
                    .into_iter()
                    .find(|(from, to)| (*from..*to).contains(&now));
                (around.map(|(from, to)| (from, to - from)), true)
            }
        };
        let limit = cell_quota.burst.cast_signed();
        let Some(cell) = value else {
            let lost = known_age_us.is_some();
            let Some((origin, step)) = shape else { return (None, lost, false) };
            let mut cell = WindowCell {
                version: cell_quota.version,
                slots: window.slots,
                is_by_calendar,
                step,
                origin,
                limit,
                since: now,
                newest: (now - origin).div_euclid(step),
                at: now,
                reports: Reports::default(),
                spent: BTreeMap::new(),
            };
            if lost {
                cell.spend(limit, now);
            }
            return (Some(cell), lost, true);
        };
        let mut cell = cell.clone();
        cell.forward(now_us);
        if cell_quota.version >= cell.version {
            let is_alike = cell.is_by_calendar == is_by_calendar
                && cell.slots == window.slots
                && (is_by_calendar || shape == Some((cell.origin, cell.step)));
            let changed = shape.filter(|_| cell_quota.version > cell.version);
            if let Some((origin, step)) = changed.filter(|_| !is_alike) {
                cell.gather(now, window.slots, step, origin);
                cell.is_by_calendar = is_by_calendar;
            }
            if is_alike || changed.is_some() {
                (cell.version, cell.limit) = (cell_quota.version, limit);
            }
        }
        if !cell.is_by_calendar {
            return (Some(cell), false, true);
        }
        if let Some((origin, step)) = shape.filter(|_| !cell.is_in(now) && is_by_calendar) {
            cell.gather(now, 1, step, origin);
        }
        let is_its = cell.is_in(now);
        (Some(cell), false, is_its)
    }

    /// Moves it to `now`. All holds expire after two generation edges.
    pub fn forward(&mut self, now_us: u64) {
        let now = now_us.cast_signed();
        let generation = GENERATION_US.cast_signed();
        if now < self.at {
            if self.at - now <= generation {
                return;
            }
            self.gather(now, self.slots, self.step, self.origin);
            self.at = now;
        }
        for _ in 0..2 {
            let edge = (self.at / generation + 1) * generation;
            if now < edge {
                break;
            }
            self.spend(self.reports.before.held.cast_signed(), edge);
            self.reports.turn();
            self.at = edge;
        }
        self.turn(now);
        self.at = now;
    }

    fn is_in(&self, now: i64) -> bool {
        (self.origin..self.origin + self.step).contains(&now)
    }

    fn turn(&mut self, time: i64) {
        let newest = (time - self.origin).div_euclid(self.step);
        if newest > self.newest {
            self.newest = newest;
            let oldest = self.oldest();
            self.spent.retain(|bucket, _| *bucket >= oldest);
        }
    }

    fn gather(&mut self, now: i64, slots: u32, step: i64, origin: i64) {
        let sum = self.spent();
        (self.slots, self.step, self.origin) = (slots, step, origin);
        self.newest = (now - origin).div_euclid(step);
        self.spent = BTreeMap::from([(self.newest, sum)]);
    }

    fn oldest(&self) -> i64 {
        self.newest - i64::from(self.slots) + 1
    }

    pub fn spent(&self) -> i64 {
        self.spent.values().sum()
    }

    fn spend(&mut self, amount: i64, time: i64) {
        self.turn(time);
        if amount > 0 {
            let room = AMOUNT_MAX.cast_signed() - self.spent();
            *self.spent.entry(self.newest).or_default() += amount.min(room);
        }
    }

    fn unspend(&mut self, amount: i64) {
        let mut left = amount;
        for spent in self.spent.values_mut() {
            let part = left.min(*spent);
            *spent -= part;
            left -= part;
        }
    }

    pub fn level(&self) -> i64 {
        let held = self.reports.held().min(AMOUNT_MAX).cast_signed();
        (self.limit - self.spent() - held).max(-4_500_000_000_000_000)
    }

    fn leaves(&self, bucket: i64, now: i64) -> i64 {
        let leaves = (bucket + i64::from(self.slots)) * self.step + self.origin;
        (leaves - now).clamp(1, AMOUNT_MAX.cast_signed())
    }

    fn sent(&self, is_its: bool, now_us: u64) -> WindowReply {
        let now = now_us.cast_signed();
        let mut counting = self.spent.iter().filter(|(_, spent)| **spent > 0);
        let oldest = counting.next().map(|(bucket, _)| *bucket);
        let first = if self.slots == 1 { Some(self.newest) } else { oldest };
        let stands = match is_its {
            false => WindowStatus::OtherWindow,
            true if self.limit - self.spent() < TOKEN.cast_signed() => WindowStatus::SpentOut,
            true => WindowStatus::Open,
        };
        let more_us = first.map_or(0, |bucket| self.leaves(bucket, now).unsigned_abs());
        WindowReply { more_us, stands }
    }

    pub fn serve(
        &mut self,
        ask: &CellRequest,
        (lost, is_its): (bool, bool),
        other_birth: bool,
        now_us: u64,
    ) -> CellReply {
        let generation = self.at.unsigned_abs() / GENERATION_US;
        let signed = |amount: u64| amount.min(AMOUNT_MAX).cast_signed();
        let last: Option<CellReport> = ask.last.filter(|_| !other_birth);
        if let Some(last) = last.filter(|last| matches!(generation.checked_sub(last.generation), Some(0 | 1)))
        {
            self.spend(signed(last.hold) - signed(ask.hold) - signed(ask.back), self.at);
        }
        self.reports.replace(generation, last, ask.hold, ask.demand);
        self.spend(signed(ask.owed), self.at);
        let returned = ask.window.unwrap();
        if let Some(paid) = returned.paid_us.map(|us| us.min((1 << 53) - 1).cast_signed())
            && paid >= self.since
            && (paid - self.origin).div_euclid(self.step) >= self.oldest()
        {
            self.unspend(signed(returned.refund));
        }
        let (demand, mut level, mut grant) = (self.reports.demand(), 0, 0);
        if is_its {
            level = self.level();
            let share = portion(level, ask.demand.min(tidegate::fleet::cell::DEMAND_MAX), demand);
            grant = granted(level, share, demand, ask.want.min(AMOUNT_MAX), ask.random);
            level -= grant.cast_signed();
            self.reports.hold(grant);
        }
        CellReply {
            level,
            demand,
            grant,
            hosts: self.reports.hosts(),
            lost,
            version: self.version,
            generation,
            window: Some(self.sent(is_its, now_us)),
        }
    }

    /// Returns the reply to a sync without a cell.
    pub fn none(lost: bool, version: u64, now_us: u64) -> CellReply {
        let window = Some(WindowReply { more_us: 0, stands: WindowStatus::OtherWindow });
        let generation = now_us / GENERATION_US;
        CellReply { level: 0, demand: 0, grant: 0, hosts: 0, lost, version, generation, window }
    }

    /// Returns the retry time of an exact check.
    pub fn wait(&self, cost: u64, now_us: u64) -> CostCover {
        let (cost, now) = (cost.min(AMOUNT_MAX).cast_signed(), now_us.cast_signed());
        let mut level = self.level();
        if level >= cost {
            return CostCover::No;
        }
        if cost > self.limit {
            return CostCover::Never;
        }
        for (bucket, spent) in &self.spent {
            level += spent;
            if level >= cost {
                return CostCover::Until(self.leaves(*bucket, now).unsigned_abs());
            }
        }
        CostCover::Until(self.leaves(self.newest, now).unsigned_abs())
    }

    /// Pays if all cells can pay; returns the result of the exact check.
    pub fn pay(
        &mut self,
        cost: &KeyPayment,
        wait: CostCover,
        all_pay: bool,
        is_its: bool,
        now_us: u64,
    ) -> PaymentResult {
        if all_pay {
            self.spend(cost.cost.min(AMOUNT_MAX).cast_signed(), self.at);
        }
        let level = if is_its { self.level() } else { 0 };
        PaymentResult { level, wait, window: Some(self.sent(is_its, now_us)) }
    }

    /// Returns its expiry, ms.
    pub fn kept_ms(&self) -> u64 {
        let us = self.leaves(self.newest, self.at) + 2 * GENERATION_US.cast_signed() + self.step;
        (us.unsigned_abs() / 1000 + 10_001).min(69_120_000_000)
    }

    pub fn bytes(&self) -> Vec<u8> {
        let WindowCell {
            version,
            slots,
            is_by_calendar,
            step,
            origin,
            limit,
            since,
            newest,
            at,
            reports,
            spent,
        } = self;
        let mut bytes = version.to_le_bytes().to_vec();
        bytes.extend(slots.to_le_bytes());
        bytes.extend(u32::from(*is_by_calendar).to_le_bytes());
        for number in [step, origin, limit, since, newest, at] {
            bytes.extend(number.to_le_bytes());
        }
        let (now, before) = (reports.now, reports.before);
        for amount in [now.held, before.held, now.demand, before.demand] {
            bytes.extend(amount.to_le_bytes());
        }
        bytes.extend(now.hosts.to_le_bytes());
        bytes.extend(before.hosts.to_le_bytes());
        let slots = i64::from(*slots);
        let mut row = vec![0_i64; usize::try_from(slots).unwrap()];
        for (bucket, amount) in spent {
            row[usize::try_from(bucket.rem_euclid(slots)).unwrap()] = *amount;
        }
        bytes.extend(row.into_iter().flat_map(i64::to_le_bytes));
        bytes
    }
}
