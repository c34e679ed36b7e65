//! Cells that go by other names.

use std::collections::BTreeMap;

use tidegate::fleet::carry::{CellName, Lift, Lifted, Plant};
use tidegate::fleet::cell::{CellRate, Terms};

use super::share::{Reports, Sums};
use super::{Cell, Kept, Store, WindowCell, bytes};

impl Store {
    pub(super) fn lift(&self, lift: &Lift, now_us: u64) -> Lifted {
        let bytes = |name: &CellName| {
            let id = (lift.bucket.number(), name.key);
            let cell = self.cells.get(&id).and_then(|kept| kept.at(now_us)).map(bytes::of_cell);
            let window = self.windows.get(&id).and_then(|kept| kept.at(now_us)).map(WindowCell::bytes);
            if name.window { window } else { cell }.unwrap_or_default()
        };
        let cells = (now_us >= lift.from_us).then(|| lift.cells.iter().map(bytes).collect());
        Lifted { now_us, cells }
    }

    pub(super) fn plant(&mut self, plant: &Plant, now_us: u64) {
        if now_us < plant.from_us {
            return;
        }
        for (name, bytes) in &plant.cells {
            let id = (plant.bucket.number(), name.key);
            if name.window {
                let present = self.windows.get(&id).and_then(|kept| kept.at(now_us));
                if present.is_none_or(|present| present.at < plant.from_us.cast_signed()) {
                    let cell = WindowCell::of_bytes(bytes);
                    let kept = cell.kept_ms();
                    self.windows.insert(id, Kept::new(cell, now_us, kept));
                }
            } else {
                let present = self.cells.get(&id).and_then(|kept| kept.at(now_us));
                if present.is_none_or(|present| present.at < plant.from_us) {
                    let cell = cell(bytes);
                    self.cells.insert(id, Kept::new(cell, now_us, cell.kept_ms()));
                }
            }
        }
    }
}

fn cell(bytes: &[u8]) -> Cell {
    let mut from = From(bytes);
    let (version, num, den) = (from.large(), from.small(), from.small());
    let rate = CellRate::new(num.into(), den.into()).unwrap();
    let terms = Terms { version, rate, burst: from.large() };
    let (level, rem, at) = (from.large().cast_signed(), from.small().into(), from.large());
    Cell { terms, level, rem, at, reports: from.reports() }
}

impl WindowCell {
    fn of_bytes(bytes: &[u8]) -> WindowCell {
        let mut from = From(bytes);
        let (version, slots, kind) = (from.large(), from.small(), from.small());
        let [step, origin, limit, since, newest, at] = [(); 6].map(|()| from.large().cast_signed());
        let reports = from.reports();
        let row: Vec<i64> = (0..slots).map(|_| from.large().cast_signed()).collect();
        let counting = newest - i64::from(slots) + 1..=newest;
        let spent =
            counting.map(|bucket| (bucket, row[usize::try_from(bucket.rem_euclid(slots.into())).unwrap()]));
        let spent: BTreeMap<i64, i64> = spent.filter(|(_, amount)| *amount > 0).collect();
        let is_by_calendar = kind == 1;
        WindowCell { version, slots, is_by_calendar, step, origin, limit, since, newest, at, reports, spent }
    }
}

/// What is left to read.
struct From<'b>(&'b [u8]);

impl From<'_> {
    fn large(&mut self) -> u64 {
        let (first, rest) = self.0.split_first_chunk().unwrap();
        self.0 = rest;
        u64::from_le_bytes(*first)
    }

    fn small(&mut self) -> u32 {
        let (first, rest) = self.0.split_first_chunk().unwrap();
        self.0 = rest;
        u32::from_le_bytes(*first)
    }

    fn reports(&mut self) -> Reports {
        let [held, held0, demand, demand0] = [(); 4].map(|()| self.large());
        let (hosts, hosts0) = (self.small(), self.small());
        Reports {
            now: Sums { held, demand, hosts },
            before: Sums { held: held0, demand: demand0, hosts: hosts0 },
        }
    }
}
