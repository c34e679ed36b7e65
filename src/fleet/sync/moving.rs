//! All hosts turn to another secret: keys have other names from then on, and their cells go along ([`crate::fleet::carry`]).
//!
//! A host has a cell carried before it asks by the new name, and hears nothing any more of what it asked by the old one: an
//! answer that was given after the turn brings nothing. What it has in hand, owes, and last reported stays as it is.

use super::{PAGES_MAX, Sync};
use crate::clock::{Now, Timestamp};
use crate::engine::{Engine, Moved, SharedKey};
use crate::fleet::call::{Bucket, CELLS_MAX, Call};
use crate::fleet::carry::{CellName, Lift, Lifted, Plant};
use crate::fleet::page::Carry;
use crate::fleet::turn::Turn;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// Cells on their way.
#[derive(Debug, Default)]
pub(super) struct Moving {
    turn: Turn,
    /// When this host left the names of before, if it did.
    left: Option<Timestamp>,
    /// The pages of cells that are being read or written, by the names of these.
    on_way: HashMap<[u8; 16], usize>,
    /// Pages whose cells are to be read or written.
    due: Vec<usize>,
    moved: Vec<Moved>,
}

impl Sync {
    /// All turn then, by the clock of Redis, and this host has not.
    pub fn turns(&mut self, from_us: Option<u64>) {
        self.moving.turn.turns(from_us);
    }

    /// This host has turned. `is_renamed`: its keys have other names from now on, and those that it is in touch about are those
    /// of before. Who lacks the secret that the others turn to goes on by the same names.
    pub fn turned(&mut self, is_renamed: bool, now: Timestamp) {
        self.moving.turn.turned(now);
        if !is_renamed {
            return;
        }
        self.moving.left = Some(now);
        // What is on its way goes by the names of before: nothing comes of it any more.
        self.moving.on_way.clear();
        for number in self.book.numbers() {
            let page = self.book.page_mut(number);
            page.is_former = true;
            if page.carry.take().is_some() {
                page.is_on_way = false;
            }
            self.book.schedule(number, now.after(FORMER_KEPT));
        }
    }

    /// Whether nobody is to be told yet of a key that calls and that no page is of: it may be of a decision that had begun when
    /// all turned, and went by the name of before. What goes by the new one was moved, and has a page.
    pub(super) fn calls_late(&self, now: Timestamp) -> bool {
        self.moving.left.is_some_and(|left| now.since(left) < BEGUN)
    }

    /// Whether what was answered about a key then is not to be heard.
    pub(super) fn is_unheard(&self, number: usize, now_us: u64) -> bool {
        let is_former = self.book.page(number).is_former;
        self.moving.turn.is_unheard(now_us, |_| is_former)
    }

    /// Whether the cell of a key is on its way: it is not to be asked about before it is there.
    #[must_use]
    pub fn is_carried(&self, key: &SharedKey) -> bool {
        self.book.find(key).is_some_and(|number| self.book.page(number).carry.is_some())
    }

    /// Takes the keys that have another name since the last time. Before they are asked about.
    pub fn take_moved(&mut self, engine: &Engine, now: Timestamp) {
        let mut moved = std::mem::take(&mut self.moving.moved);
        engine.take_moved(&mut moved);
        self.have_carried(moved, now);
    }

    /// Takes the keys that call, and has the cells carried of those among them that have another name.
    pub(super) fn take_calls(&mut self, engine: &Engine, calls: &mut Vec<SharedKey>, now: Timestamp) {
        let mut moved = std::mem::take(&mut self.moving.moved);
        engine.take_calls_and_moved(calls, &mut moved);
        self.have_carried(moved, now);
    }

    /// The cells of these keys are to be carried.
    fn have_carried(&mut self, mut moved: Vec<Moved>, now: Timestamp) {
        for Moved { key, former } in moved.drain(..) {
            let number = match (self.book.find(&key), self.book.find(&former)) {
                (Some(number), _) => number,
                (None, Some(number)) if self.book.rename(number, key) => number,
                _ if self.book.len() < PAGES_MAX => self.open(key, now),
                _ => continue,
            };
            let page = self.book.page_mut(number);
            if page.carry.is_some() {
                // It is on its way already.
                continue;
            }
            if page.in_flight() && page.is_former {
                // What comes of it will not be heard.
                page.forget();
            }
            page.is_former = false;
            page.carry = Some(Box::new(Carry::Lift(former.name())));
            if !page.in_flight() {
                self.book.schedule(number, now);
            }
        }
        self.moving.moved = moved;
    }

    /// Looks at a page of which there is nothing to be asked yet, or any more. False: it is as any other.
    pub(super) fn looks_elsewhere(&mut self, engine: &Engine, number: usize, now: Now) -> bool {
        let page = self.book.page_mut(number);
        if page.is_former {
            let until = self.moving.turn.turned_at().unwrap_or(now.at).after(FORMER_KEPT);
            if now.at < until {
                self.book.schedule(number, until);
            } else {
                // Nothing of it is in hand any more. It is to call when it is next asked for, should all turn back.
                if let Some(budget) = self.budgets.get(&page.key.budget()) {
                    engine.let_go(&page.key, budget, now);
                }
                self.close(number);
            }
            return true;
        }
        let is_carried = page.carry.is_some();
        if is_carried && !page.in_flight() {
            page.is_on_way = true;
            self.moving.due.push(number);
        }
        is_carried
    }

    /// Has cells read and written that are to be.
    pub fn carry(&mut self, now: Timestamp, out: &mut Vec<Call>) {
        let from_us = self.moving.turn.at_us().unwrap_or(0);
        let mut lifts: BTreeMap<Bucket, Vec<CellName>> = BTreeMap::new();
        let mut plants: BTreeMap<Bucket, Vec<(CellName, Vec<u8>)>> = BTreeMap::new();
        for number in std::mem::take(&mut self.moving.due) {
            let page = self.book.page_mut(number);
            let Some(carry) = page.carry.as_deref() else { continue };
            let Some(budget) = self.budgets.get(&page.key.budget()) else {
                self.close(number);
                continue;
            };
            let key = if let Carry::Lift(former) = carry { *former } else { page.key.name() };
            let name = CellName { key, window: budget.quota.window().is_some() };
            let bucket = Bucket::of(&key, self.options.buckets);
            if *self.moving.on_way.entry(key).or_insert(number) != number {
                // Two budgets have one key: one after the other.
                page.is_on_way = false;
                self.book.schedule(number, now.after(AGAIN_AFTER));
                continue;
            }
            match carry {
                Carry::Lift(_) => lifts.entry(bucket).or_default().push(name),
                Carry::Plant(bytes) => plants.entry(bucket).or_default().push((name, bytes.clone())),
            }
        }
        for (bucket, cells) in lifts {
            let lifts = cells.chunks(CELLS_MAX);
            out.extend(lifts.map(|cells| Call::Lift(Lift { bucket, from_us, cells: cells.to_vec() })));
        }
        for (bucket, cells) in plants {
            let plants = cells.chunks(CELLS_MAX);
            out.extend(plants.map(|cells| Call::Plant(Plant { bucket, from_us, cells: cells.to_vec() })));
        }
    }

    /// Takes what was read.
    pub fn lifted(&mut self, lift: &Lift, lifted: Lifted, now: Timestamp) {
        let Some(cells) = lifted.cells else {
            // By the clock of that server it is not time yet.
            lift.cells.iter().for_each(|name| self.carry_again(name, AGAIN_AFTER, now));
            return;
        };
        assert_eq!(
            lift.cells.len(),
            cells.len(),
            "a reply is read cell by cell: without its own a key is not asked about"
        );
        for (name, bytes) in lift.cells.iter().zip(cells) {
            let Some(number) = self.land(name, |carry| *carry == Carry::Lift(name.key)) else { continue };
            if bytes.is_empty() {
                self.arrive(number, now);
            } else {
                self.book.page_mut(number).carry = Some(Box::new(Carry::Plant(bytes)));
                self.moving.due.push(number);
            }
        }
    }

    /// They were written, when the clock of that server showed this.
    pub fn planted(&mut self, plant: &Plant, now_us: u64, now: Timestamp) {
        if now_us < plant.from_us {
            // By that clock it is not time yet, as it was by that of the server where they were read.
            plant.cells.iter().for_each(|(name, _)| self.carry_again(name, AGAIN_AFTER, now));
            return;
        }
        for (name, bytes) in &plant.cells {
            let is_this = |carry: &Carry| matches!(carry, Carry::Plant(read) if read == bytes);
            if let Some(number) = self.land(name, is_this) {
                self.arrive(number, now);
            }
        }
    }

    /// The page for which something about a cell has come to an end, if that is what it waits for. What was asked before all
    /// turned once more may be answered while something else is asked about the same cell: that stays on its way.
    fn land(&mut self, name: &CellName, is_this: impl Fn(&Carry) -> bool) -> Option<usize> {
        let number = *self.moving.on_way.get(&name.key)?;
        let carry = self.book.page(number).carry.as_deref()?;
        is_this(carry).then(|| {
            self.moving.on_way.remove(&name.key);
            number
        })
    }

    /// Whether they were is not known: it does no harm to say it again.
    pub fn carry_failed(&mut self, names: impl Iterator<Item = CellName>, now: Timestamp) {
        for name in names {
            let after = self.dice.up_to(FAILED_AFTER);
            self.carry_again(&name, after, now);
        }
    }

    fn carry_again(&mut self, name: &CellName, after: Duration, now: Timestamp) {
        let Some(number) = self.moving.on_way.remove(&name.key) else { return };
        let page = self.book.page_mut(number);
        if page.carry.is_some() {
            page.is_on_way = false;
            self.book.schedule(number, now.after(after));
        }
    }

    /// The cell is there: it may be asked about.
    fn arrive(&mut self, number: usize, now: Timestamp) {
        let page = self.book.page_mut(number);
        (page.carry, page.is_on_way) = (None, false);
        self.book.schedule(number, now);
    }
}

/// Until it is looked again whether it is time: clocks of servers are some milliseconds apart.
const AGAIN_AFTER: Duration = Duration::from_millis(5);

const FAILED_AFTER: Duration = Duration::from_millis(100);

/// A decision takes some microseconds, and a thread that is not run some milliseconds.
const BEGUN: Duration = Duration::from_secs(1);

/// As long as Redis counts what this host last reported of a key under its old name.
const FORMER_KEPT: Duration = Duration::from_secs(4);
