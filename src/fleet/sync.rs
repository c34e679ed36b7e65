//! The sync of fleet budgets with Redis, without I/O: commands come out, replies go in, time is an argument.
//! The same code runs over a real Redis and in the simulation.

mod absence;
mod answered;
mod leave;
mod sending;

use super::book::KeyTable;
use super::call::{Bucket, BucketState, Host, ScriptCommand, SyncBatch};
use super::cell::{CellQuota, CellReply, CellRequest};
use super::dice::Rng;
use super::page::{self, NextAction, Pace};
use super::redis_clock::RedisClock;
use super::round_trip::RoundTrip;
use super::tally::{BudgetCounters, Tallies};
use crate::clock::{Now, Timestamp};
use crate::engine::{Engine, FleetBudget, FleetStatus, SharedKey};
use absence::Absence;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// The parameters of a host in a fleet.
#[derive(Clone, Copy, Debug)]
pub struct SyncOptions {
    /// The identity of this host.
    pub host: Host,
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
    /// Batches without a reply, whether they ran or not.
    pub unanswered: u64,
    /// Cells that expired early.
    pub lost: u64,
    /// Cell buckets that Redis has created anew: it has lost their data.
    pub flushed: u64,
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
    buckets: Vec<BucketState>,
    /// Keys of each bucket that wait until fewer of its commands are unanswered, oldest first.
    waiting: Vec<VecDeque<usize>>,
    budgets: Arc<HashMap<u64, FleetBudget>>,
    versions: HashMap<u64, u64>,
    round_trip: RoundTrip,
    clock: RedisClock,
    absence: Absence,
    dice: Rng,
    happened: SyncCounts,
    tallies: Tallies,
    calls: Vec<SharedKey>,
}

impl Sync {
    /// Makes the state of a host that has sent nothing yet.
    #[must_use]
    pub fn new(options: SyncOptions, standing: Arc<FleetStatus>) -> Sync {
        Sync {
            options,
            standing,
            book: KeyTable::default(),
            buckets: vec![BucketState::default(); usize::from(options.buckets.clamp(1, 256))],
            waiting: vec![VecDeque::new(); usize::from(options.buckets.clamp(1, 256))],
            budgets: Arc::default(),
            versions: HashMap::new(),
            round_trip: RoundTrip::default(),
            clock: RedisClock::default(),
            absence: Absence::default(),
            dice: Rng::new(options.seed),
            happened: SyncCounts::default(),
            tallies: Tallies::default(),
            calls: Vec::new(),
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
        self.book.len()
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
        self.tallies.keep(|budget| budgets.contains_key(&budget));
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
        if !self.standing.is_redis_reachable() {
            return;
        }
        let mut asks = BatchParts::new();
        // Keys that have waited go before keys that are due now.
        while let Some(number) = self.take_waiting().or_else(|| self.book.take_due(now.at)) {
            if self.is_gathered(&asks, number) {
                self.book.schedule(number, now.at.after(NEXT_BATCH));
            } else if let Some((bucket, ask)) = self.look(engine, number, now) {
                self.gather(&mut asks, bucket, (number, ask), now.at, out);
            }
        }
        self.send_rest(asks, now.at, out);
    }

    /// Takes the key that has waited longest for its bucket, if that has room.
    fn take_waiting(&mut self) -> Option<usize> {
        loop {
            let buckets = self.buckets.iter().zip(&mut self.waiting);
            let number = buckets
                .filter(|(bucket, _)| bucket.has_room(IN_FLIGHT_MAX))
                .find_map(|(_, waiting)| waiting.pop_front())?;
            if self.book.wake(number) {
                return Some(number);
            }
        }
    }

    /// When the next tick is due, unless the engine calls or a reply comes earlier.
    #[must_use]
    pub fn next(&self) -> Timestamp {
        let is_room_for_waiting = self
            .buckets
            .iter()
            .zip(&self.waiting)
            .any(|(bucket, waiting)| bucket.has_room(IN_FLIGHT_MAX) && !waiting.is_empty());
        if is_room_for_waiting { Timestamp::ORIGIN } else { self.book.next() }
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
        for number in self.book.numbers() {
            let at = now.after(self.dice.up_to(page::EVERY));
            self.book.schedule(number, at);
        }
    }

    /// Forgets the commands without a reply: their connections were closed.
    pub fn forget_commands(&mut self, now: Timestamp) {
        self.buckets.iter_mut().for_each(BucketState::forget_commands);
        for number in self.book.numbers() {
            self.book.page_mut(number).forget();
            let at = now.after(self.dice.up_to(page::EVERY));
            self.book.schedule(number, at);
        }
    }

    pub(super) fn heard(&mut self, took: Duration, now: Timestamp) {
        self.round_trip.heard(took, now);
    }

    pub(super) fn missed(&mut self, now: Timestamp) {
        self.round_trip.missed(now);
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
        if !bucket.of_each(&mut self.buckets).has_room(IN_FLIGHT_MAX) {
            self.book.wait(number);
            bucket.of_each(&mut self.waiting).push_back(number);
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

/// Batches of one bucket without a reply: with two buckets 1000 cells, or 2000 cells/s at a round trip of 0.5 s.
const IN_FLIGHT_MAX: u32 = 16;

/// A key whose cell is already in the pending batch goes out after this time, at the next tick.
const NEXT_BATCH: Duration = Duration::from_millis(1);

/// The most synced keys: about 50 MB.
const PAGES_MAX: usize = 1 << 18;

const VERSION_FIRST: u64 = 1;

#[cfg(test)]
mod tests;
