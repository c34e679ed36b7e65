//! The sync of fleet budgets with Redis, without I/O: commands come out, replies go in, time is an argument.
//! The same code runs over a real Redis and in the simulation.

mod absence;
mod answered;
mod leave;
mod places;
mod sending;

use super::book::{KeyTable, NEVER};
use super::call::{Bucket, Host, ScriptCommand, SyncBatch};
use super::cell::{CellQuota, CellReply, CellRequest};
use super::dice::Rng;
use super::lanes::{Sequences, UnansweredBatch};
use super::page::{self, NextAction, Pace};
use super::redis_clock::RedisClock;
use super::round_trip::RoundTrip;
use super::tally::{BudgetCounters, Tallies};
use crate::clock::{Now, Timestamp};
use crate::engine::{Engine, FleetBudget, FleetStatus, SharedKey};
use absence::Absence;
pub use places::PermitCheckReply;
use places::PermitSync;
use sending::AGAIN_AFTER;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

/// The parameters of a host in a fleet.
#[derive(Clone, Copy, Debug)]
pub struct SyncOptions {
    /// The identity of this host.
    pub host: Host,
    /// The epoch of this host; a later one is larger.
    pub epoch: u64,
    /// Cell buckets, 1 to 256; equal on all hosts.
    pub buckets: u16,
    /// The seed of the rng.
    pub seed: u64,
}

/// Events, counted since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SyncCounts {
    /// Cells that were answered.
    pub cells: u64,
    /// Batches that were answered.
    pub batches: u64,
    /// Batches that were sent again.
    pub repeats: u64,
    /// Batches given up, whether they ran or not.
    pub given_up: u64,
    /// Cells that expired early.
    pub lost: u64,
    /// Cell buckets with a new nonce: Redis has lost their data.
    pub flushed: u64,
    /// Batches that came after a later one.
    pub stale: u64,
    /// Batches whose predecessors Redis did not know.
    pub unknown: u64,
    /// Tokens charged below zero: admitted beyond the budget.
    pub excess: u64,
    /// Refusals of a key of which the next reply showed at least a tenth of the budget: an estimate.
    pub false_refusals: u64,
    /// Borrowed tokens that expired unused or were granted too late.
    pub lapsed: u64,
}

/// The sync state of this host.
#[derive(Debug)]
pub struct Sync {
    options: SyncOptions,
    standing: Arc<FleetStatus>,
    book: KeyTable,
    /// The earliest resend of a batch.
    again: Timestamp,
    /// When to check next for batches to give up.
    give_up: Timestamp,
    lanes: Vec<Sequences>,
    budgets: Arc<HashMap<u64, FleetBudget>>,
    versions: HashMap<u64, u64>,
    round_trip: RoundTrip,
    clock: RedisClock,
    absence: Absence,
    dice: Rng,
    happened: SyncCounts,
    tallies: Tallies,
    calls: Vec<SharedKey>,
    places: PermitSync,
}

impl Sync {
    /// Makes the state of a host that has sent nothing yet.
    #[must_use]
    pub fn new(options: SyncOptions, standing: Arc<FleetStatus>) -> Sync {
        let buckets = (0..options.buckets.clamp(1, 256)).filter_map(|bucket| u8::try_from(bucket).ok());
        Sync {
            options,
            standing,
            book: KeyTable::default(),
            again: NEVER,
            give_up: Timestamp::ORIGIN,
            lanes: buckets.map(|bucket| Sequences::new(Bucket::from_number(bucket))).collect(),
            budgets: Arc::default(),
            versions: HashMap::new(),
            round_trip: RoundTrip::default(),
            clock: RedisClock::default(),
            absence: Absence::default(),
            dice: Rng::new(options.seed),
            happened: SyncCounts::default(),
            tallies: Tallies::default(),
            calls: Vec::new(),
            places: PermitSync::new(options.buckets),
        }
    }

    /// The identity of this host, which changes after another daemon has used its name.
    #[must_use]
    pub fn host(&self) -> Host {
        self.options.host
    }

    /// The events since the start.
    #[must_use]
    pub fn happened(&self) -> SyncCounts {
        self.happened
    }

    /// The tally of each budget, by number.
    pub fn tallies(&self, now: Timestamp) -> impl Iterator<Item = (u64, BudgetCounters)> + '_ {
        self.tallies.each(now)
    }

    /// The number of synced keys.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.book.len() + self.places.len()
    }

    /// The tokens held and the tokens owed, over all synced keys.
    #[must_use]
    pub fn in_hand(&self, engine: &Engine, now: Now) -> (u64, u64) {
        let there = self.book.open_pages();
        let there =
            there.filter_map(|page| engine.peek_share(&page.key, self.budgets.get(&page.key.budget())?, now));
        there.fold((0, 0), |(held, owed), there| {
            (held + u64::from(there.borrowed), owed + u64::from(there.debt))
        })
    }

    /// The smoothed round trip.
    #[must_use]
    pub fn round_trip(&self) -> Duration {
        self.round_trip.took
    }

    /// The timeout of a command.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.round_trip.timeout()
    }

    /// Replaces the budgets by those of the rules in force.
    pub fn set_budgets(&mut self, budgets: Arc<HashMap<u64, FleetBudget>>) {
        let places = &self.places;
        self.tallies.keep(|budget| budgets.contains_key(&budget) || places.is_in_force(budget));
        self.budgets = budgets;
    }

    /// The version of a budget's numbers, as far as known.
    #[must_use]
    pub fn version(&self, budget: u64) -> u64 {
        self.versions.get(&budget).copied().unwrap_or(VERSION_FIRST)
    }

    /// Sets the version of a budget's numbers.
    pub fn set_version(&mut self, budget: u64, version: u64) {
        self.versions.insert(budget, version);
    }

    /// Emits the commands that are due now.
    pub fn tick(&mut self, engine: &Engine, now: Now, out: &mut Vec<ScriptCommand>) {
        self.answer_calls(engine, now);
        self.answer_place_calls(engine, now);
        self.give_up(now.at);
        if !self.standing.is_redis_reachable() {
            return;
        }
        self.repeat(now.at, out);
        let mut asks = BatchParts::new();
        let mut look_at = |sync: &mut Sync, number: usize| {
            if sync.is_gathered(&asks, number) {
                sync.book.schedule(number, now.at.after(NEXT_BATCH));
            } else if let Some((bucket, ask)) = sync.look(engine, number, now) {
                sync.gather(&mut asks, bucket, (number, ask), now.at, out);
            }
        };
        // Keys that waited for a lane go before keys that are due now.
        for bucket in 0..self.lanes.len() {
            while let Some(number) = self.lanes.get_mut(bucket).and_then(Sequences::take_waiting) {
                if self.book.wake(number) {
                    look_at(self, number);
                }
            }
        }
        while let Some(number) = self.book.take_due(now.at) {
            look_at(self, number);
        }
        self.send_rest(asks, now.at, out);
        self.tick_places(engine, now, out);
    }

    /// When the next tick is due, unless the engine calls or a reply comes earlier.
    #[must_use]
    pub fn next(&self) -> Timestamp {
        let due = self.book.next().min(self.again).min(self.give_up).min(self.places.next());
        let is_waited_for = self.lanes.iter().any(Sequences::has_room_for_waiting);
        if is_waited_for { Timestamp::ORIGIN } else { due }
    }

    /// Schedules a resend of a batch that may or may not have run, unchanged.
    pub fn failed(&mut self, batch: &SyncBatch, now: Timestamp) {
        let again = now.after(self.dice.up_to(AGAIN_AFTER));
        self.round_trip.missed(now);
        batch.place.bucket.of_each(&mut self.lanes).repeat(&batch.place, again);
        self.again = self.again.min(again);
    }

    /// Records the number of hosts that Redis counts as alive.
    pub fn set_alive(&mut self, alive: u32, now: Timestamp) {
        self.absence.counted(alive, now);
    }

    /// Records that Redis is reachable or not. After an outage, all keys are checked within 100 ms.
    pub fn set_linked(&mut self, linked: bool, now: Timestamp) {
        if !self.standing.set_redis_reachable(linked) {
            return;
        }
        self.absence.set_linked(linked, now);
        if !linked {
            return;
        }
        self.again = now;
        for lanes in &mut self.lanes {
            lanes
                .flights()
                .filter(|flight| flight.again.is_some())
                .for_each(|flight| flight.again = Some(now));
        }
        for number in self.book.numbers() {
            let at = now.after(self.dice.up_to(page::EVERY));
            self.book.schedule(number, at);
        }
        self.relink_places(now);
    }

    fn answer_calls(&mut self, engine: &Engine, now: Now) {
        let mut calls = std::mem::take(&mut self.calls);
        engine.take_due_share_keys(&mut calls);
        for key in calls.drain(..) {
            let number = match self.book.find(&key) {
                Some(number) => number,
                None if self.book.len() < PAGES_MAX => self.open(key, now.at),
                None => {
                    if let Some(budget) = self.budgets.get(&key.budget()) {
                        engine.remove_share(&key, budget, now);
                    }
                    continue;
                }
            };
            let page = self.book.page_mut(number);
            page.calls = true;
            if !page.in_flight && !page.waits {
                let soonest = page.soonest(now.at);
                if soonest < page.due || page.due <= now.at {
                    self.book.schedule(number, soonest);
                }
            }
        }
        self.calls = calls;
    }

    fn open(&mut self, key: SharedKey, now: Timestamp) -> usize {
        self.tallies.opens(key.budget());
        self.book.open(key, now)
    }

    fn close(&mut self, number: usize) {
        if let Some(budget) = self.book.close(number) {
            self.tallies.closes(budget);
        }
    }

    /// Checks a due key and returns the command for it, if one is needed.
    fn look(&mut self, engine: &Engine, number: usize, now: Now) -> Option<(Bucket, CellRequest)> {
        let dice = self.dice.part_of_token();
        let pace = self.pace(now.at);
        let page = self.book.page_mut(number);
        let bucket = Bucket::of(&page.key.name(), self.options.buckets);
        let lanes = bucket.of_each(&mut self.lanes);
        if !lanes.has_room() {
            if self.book.wait(number) {
                lanes.wait(number);
            }
            return None;
        }
        let budget = self.budgets.get(&page.key.budget());
        let there = budget.and_then(|budget| engine.peek_share(&page.key, budget, now));
        let (Some(budget), Some(there)) = (budget, there) else {
            // The rule was removed, or the state was evicted: its tokens expire.
            self.close(number);
            return None;
        };
        match page.next(&there, budget, &pace) {
            NextAction::Look(at) => {
                self.book.schedule(number, at);
                None
            }
            NextAction::LetGo => {
                if engine.remove_share(&page.key, budget, now) {
                    self.happened.lapsed += u64::from(there.expired);
                    self.close(number);
                } else {
                    self.book.schedule(number, now.at.after(page::EVERY));
                }
                None
            }
            NextAction::Ask(back) => {
                let terms = terms(&self.versions, page.key.budget(), budget);
                let there =
                    terms.and_then(|terms| Some((terms, engine.report_share(&page.key, budget, back, now)?)));
                let Some((terms, (reported, back))) = there else {
                    // Redis cannot count these numbers, or the state was just evicted.
                    self.close(number);
                    return None;
                };
                page.refused = reported.missing_max > 0;
                self.happened.lapsed += u64::from(reported.expired);
                let window = page::cell_window(budget, self.clock.unix_us(now));
                let ask = page.ask(&reported, back, terms, (budget, window), &pace, dice);
                Some((bucket, ask))
            }
        }
    }

    /// Whether the pending batch has this cell, for another budget: a command names each cell once.
    fn is_gathered(&self, asks: &BatchParts, number: usize) -> bool {
        let key = self.book.page(number).key.name();
        let batch = asks.get(&Bucket::of(&key, self.options.buckets));
        batch.is_some_and(|batch| batch.iter().any(|(_, ask)| ask.key == key))
    }

    fn pace(&self, now: Timestamp) -> Pace {
        let hosts = self.standing.hosts();
        let others_are_away = self.absence.others_are_away(hosts, now);
        Pace { now, hosts, round_trip: self.round_trip.took, others_are_away }
    }
}

/// The numbers of a budget, under their known version.
fn terms(versions: &HashMap<u64, u64>, number: u64, budget: &FleetBudget) -> Option<CellQuota> {
    page::terms(budget, versions.get(&number).copied().unwrap_or(VERSION_FIRST))
}

/// The parts of the pending batches of one tick, with the numbers of the keys.
type BatchParts = BTreeMap<Bucket, Vec<(usize, CellRequest)>>;

/// Cell buckets on one Redis; a tick sends one command per bucket. With 16 a command had three cells, with
/// two it has a dozen, which saves Redis and this host a fifth of the work.
pub const BUCKETS: u16 = 2;

/// A key whose cell is already in the pending batch goes out after this time, at the next tick.
const NEXT_BATCH: Duration = Duration::from_millis(1);

/// The most synced keys: about 50 MB.
const PAGES_MAX: usize = 1 << 18;

const VERSION_FIRST: u64 = 1;

#[cfg(test)]
mod tests;
