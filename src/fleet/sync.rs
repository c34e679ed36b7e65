//! The sync of fleet budgets with Redis, without I/O: commands come out, replies go in, time is an argument.
//! The same code runs over a real Redis and in the simulation.

mod answered;

use super::cell::{CellReply, CellRequest, TOKEN};
use super::command::{Batches, Bucket, Buckets, Host, ScriptCommand, SyncBatch};
use super::host_count::Absence;
use super::key_sync::{self, KeySync, NextAction, Pace};
use super::key_table::KeyTable;
use super::rng::Rng;
use super::round_trip::RoundTrip;
use super::tally::{BudgetCounters, Tallies};
use super::version::Versions;
use super::window::RedisClock;
use crate::clock::{Now, Timestamp};
use crate::engine::{Engine, FleetBudget, FleetStatus, SharedKey, Shortfall};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

#[derive(Clone, Copy, Debug)]
pub struct SyncOptions {
    pub host: Host,
    /// Cell buckets, 1 to 256; equal on all hosts.
    pub buckets: u16,
    pub seed: u64,
}

/// Events, counted since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SyncCounts {
    pub cells: u64,
    pub batches: u64,
    /// Batches without a reply, whether they ran or not.
    pub unanswered: u64,
    /// Cells that expired early.
    pub lost: u64,
    /// Tokens charged below zero: admitted beyond the budget.
    pub excess: u64,
    /// Refusals of a key of which the next reply showed at least a tenth of the budget: an estimate.
    pub false_refusals: u64,
    /// Borrowed tokens that expired unused or were granted too late.
    pub expired: u64,
}

#[derive(Debug)]
pub struct Sync {
    engine: Arc<Engine>,
    /// The identity of this host, which changes after another daemon has used its name.
    pub host: Host,
    status: Arc<FleetStatus>,
    key_table: KeyTable,
    /// Keys that requested a sync in an outage and are not in the table, oldest first: what passed is a debt.
    owing: VecDeque<SharedKey>,
    buckets: Buckets,
    pub(super) budgets: Arc<HashMap<u64, FleetBudget>>,
    pub(super) versions: Versions,
    pub(super) round_trip: RoundTrip,
    pub(super) clock: RedisClock,
    absence: Absence,
    rng: Rng,
    pub counts: SyncCounts,
    tallies: Tallies,
}

impl Sync {
    pub fn new(engine: Arc<Engine>, options: SyncOptions, status: Arc<FleetStatus>) -> Sync {
        Sync {
            engine,
            host: options.host,
            status,
            key_table: KeyTable::default(),
            owing: VecDeque::new(),
            buckets: Buckets::new(options.buckets),
            budgets: Arc::default(),
            versions: Versions::default(),
            round_trip: RoundTrip::default(),
            clock: RedisClock::default(),
            absence: Absence::default(),
            rng: Rng::new(options.seed),
            counts: SyncCounts::default(),
            tallies: Tallies::default(),
        }
    }

    pub fn tallies(&self, now: Timestamp) -> impl Iterator<Item = (u64, BudgetCounters)> + '_ {
        self.tallies.each(now)
    }

    pub fn keys(&self) -> usize {
        self.key_table.len()
    }

    pub fn timeout(&self) -> Duration {
        self.round_trip.timeout()
    }

    pub fn set_budgets(&mut self, budgets: Arc<HashMap<u64, FleetBudget>>) {
        let rules: HashSet<u64> = budgets.values().map(|budget| budget.rule_number).collect();
        self.tallies.keep(|rule| rules.contains(&rule));
        self.versions.set(&budgets);
        self.budgets = budgets;
    }

    /// The level of a key in the last reply, µtok; 0 if none came.
    pub(super) fn level(&self, key: &SharedKey) -> i64 {
        self.key_table.find(key).map_or(0, |number| self.key_table.entry(number).level)
    }

    pub fn tick(&mut self, now: Now, out: &mut Vec<ScriptCommand>) {
        self.answer_calls(now);
        if !self.status.is_redis_reachable() {
            return;
        }
        if !self.owing.is_empty() {
            let hosts = u64::from(self.status.hosts());
            let count = (OWING_PER_TICK + self.rng.below(hosts)) / hosts;
            self.open_owing(count, now);
        }
        let mut asks = Batches::new();
        for bucket in Bucket::all().take(self.buckets.len()) {
            // Without room the keys stay due.
            while self.has_room(bucket, &asks)
                && let Some(number) = self.key_table.take_due(bucket, now.at)
            {
                if let Some(ask) = self.look(number, now) {
                    asks.add(bucket, (number, ask), |(_, ask)| ask.key);
                }
            }
        }
        self.send(asks, now.at, out);
    }

    /// When the next tick is due, unless the engine calls or a reply comes earlier.
    pub fn next(&self) -> Timestamp {
        if !self.owing.is_empty() && self.status.is_redis_reachable() {
            return Timestamp::ORIGIN;
        }
        self.key_table.next(|bucket| self.buckets.has_room(bucket, IN_FLIGHT_MAX))
    }

    /// Records the number of hosts that Redis counts as alive. Asks again for versions of which cells have newer ones.
    pub fn set_alive(&mut self, alive: u32, now: Timestamp) {
        self.absence.counted(alive, now);
        for (rule, counters) in self.tallies.each(now) {
            self.versions.record_seen(rule, counters.version);
        }
    }

    /// Records that Redis is reachable or not. After an outage, all keys are checked within 100 ms.
    pub fn set_linked(&mut self, linked: bool, now: Timestamp) {
        self.status.set_redis_reachable(linked);
        self.absence.set_linked(linked, now);
        if linked {
            self.check_all_soon(now);
        }
    }

    fn check_all_soon(&mut self, now: Timestamp) {
        for number in self.key_table.numbers() {
            let at = now.after(self.rng.up_to(key_sync::EVERY));
            self.key_table.schedule(number, at);
        }
    }

    pub fn forget_commands(&mut self, now: Timestamp) {
        self.buckets.forget_commands();
        self.key_table.numbers().into_iter().for_each(|number| self.key_table.entry_mut(number).forget());
        self.check_all_soon(now);
    }

    pub(super) fn record_reply(&mut self, took: Duration, now: Timestamp) {
        self.round_trip.record_reply(took, now);
        self.status.set_round_trip(self.round_trip.took);
    }

    fn answer_calls(&mut self, now: Now) {
        let mut calls = Vec::new();
        self.engine.take_due_share_keys(&mut calls);
        let is_reachable = self.status.is_redis_reachable();
        for key in calls {
            if !is_reachable && self.key_table.find(&key).is_none() {
                // The oldest debt has earned most.
                if self.owing.len() >= OWING_MAX {
                    self.owing.pop_front();
                }
                self.owing.push_back(key);
            } else if let Some(number) = self.open(key, now) {
                let entry = self.key_table.entry_mut(number);
                entry.calls = true;
                let soonest = entry.soonest(now.at);
                if !entry.in_flight && soonest < entry.due {
                    self.key_table.schedule(number, soonest);
                }
            }
        }
    }

    /// Makes the debts of some keys due.
    fn open_owing(&mut self, count: u64, now: Now) {
        for _ in 0..count {
            let Some(key) = self.owing.pop_front() else { break };
            self.open(key, now);
        }
    }

    /// Finds the entry of a key, or adds one that is due now. `None`: it has no budget, or there is no room.
    fn open(&mut self, key: SharedKey, now: Now) -> Option<usize> {
        let budget = self.budgets.get(&key.budget())?;
        let found = self.key_table.find(&key);
        if found.is_some() {
            return found;
        }
        if self.key_table.len() >= TRACKED_MAX {
            self.engine.remove_share(&key, budget, now);
            return None;
        }
        self.tallies.opens(budget.rule_number);
        let bucket = self.buckets.of(&budget.cell(&key));
        Some(self.key_table.open(KeySync::new(key, budget, bucket, now.at)))
    }

    fn close(&mut self, number: usize) {
        if let Some(entry) = self.key_table.close(number) {
            self.tallies.closes(entry.rule);
        }
    }

    /// Checks a due key and returns the command for it, if one is needed.
    fn look(&mut self, number: usize, now: Now) -> Option<CellRequest> {
        let pace = self.pace(now.at);
        let entry = self.key_table.entry_mut(number);
        let budget = self.budgets.get(&entry.key.budget());
        let there = budget.and_then(|budget| self.engine.peek_share(&entry.key, budget, now));
        let (Some(budget), Some(there)) = (budget, there) else {
            // The rule was removed, or the state was evicted: its tokens expire.
            self.close(number);
            return None;
        };
        match entry.next(&there, budget, &pace) {
            NextAction::Look(at) => {
                self.key_table.schedule(number, at);
                None
            }
            NextAction::LetGo => {
                if self.engine.remove_share(&entry.key, budget, now) {
                    self.counts.expired += u64::from(there.expired);
                    self.close(number);
                } else {
                    self.key_table.schedule(number, now.at.after(key_sync::EVERY));
                }
                None
            }
            NextAction::Ask(back) => self.ask_about(number, back, now),
        }
    }

    /// Makes the command about a key, which returns this number of tokens.
    fn ask_about(&mut self, number: usize, back: u32, now: Now) -> Option<CellRequest> {
        let random = u32::try_from(self.rng.below(TOKEN)).unwrap_or(0);
        let pace = self.pace(now.at);
        let entry = self.key_table.entry_mut(number);
        let budget = self.budgets.get(&entry.key.budget())?;
        let cell_quota = key_sync::cell_quota(budget, self.versions.of(budget));
        let there = cell_quota.and_then(|cell_quota| {
            Some((cell_quota, self.engine.report_share(&entry.key, budget, back, now)?))
        });
        let Some((cell_quota, (reported, back))) = there else {
            // Redis cannot count these numbers, or the state was just evicted.
            self.close(number);
            return None;
        };
        self.counts.expired += u64::from(reported.expired);
        let window = key_sync::cell_window(budget, self.clock.unix_us(now));
        Some(entry.ask(&reported, back, cell_quota, (budget, window), &pace, random))
    }

    /// Before a remote check of a key: notes its cost, and reports tokens that Redis still counts as held by this host,
    /// which keep the bucket from filling.
    pub(super) fn before_check(
        &mut self,
        Shortfall { key, cost, .. }: &Shortfall,
        now: Now,
        out: &mut Vec<ScriptCommand>,
    ) {
        let Some(number) = self.key_table.find(key) else { return };
        let entry = self.key_table.entry_mut(number);
        let bucket = entry.bucket;
        let has_room = self.buckets.has_room(bucket, IN_FLIGHT_MAX);
        entry.note_cost(*cost, now.at);
        let budget = self.budgets.get(&key.budget());
        let there = budget.and_then(|budget| self.engine.peek_share(key, budget, now));
        let is_due = has_room && !entry.in_flight && there.is_some_and(|there| entry.has_spent(&there));
        if !is_due || !self.status.is_redis_reachable() {
            return;
        }
        if let Some(ask) = self.ask_about(number, 0, now) {
            // The check itself brings the tokens.
            out.push(self.command(bucket, vec![(number, CellRequest { want: 0, ..ask })], now.at));
        }
    }

    /// Whether another command of a bucket fits beside these.
    fn has_room(&self, bucket: Bucket, asks: &BatchParts) -> bool {
        self.buckets.has_room(bucket, IN_FLIGHT_MAX.saturating_sub(asks.count(bucket).saturating_sub(1)))
    }

    fn send(&mut self, asks: BatchParts, now: Timestamp, out: &mut Vec<ScriptCommand>) {
        out.extend(asks.all().map(|(bucket, batch)| self.command(bucket, batch, now)));
    }

    /// Makes a command; one about no cell shows whether the server of its bucket runs commands.
    pub(super) fn command(
        &mut self,
        bucket: Bucket,
        batch: Vec<(usize, CellRequest)>,
        now: Timestamp,
    ) -> ScriptCommand {
        let head = self.buckets.send(bucket, now);
        let (numbers, asks) = batch.into_iter().unzip();
        ScriptCommand::Sync(SyncBatch { head, asks, numbers })
    }

    /// Emits the final commands; requests must have stopped. Returns whether to call it again for the rest.
    pub fn leave(&mut self, now: Now, out: &mut Vec<ScriptCommand>) -> bool {
        self.answer_calls(now);
        self.open_owing(u64::MAX, now);
        let mut asks = Batches::new();
        let mut is_left = false;
        for number in self.key_table.numbers() {
            let entry = self.key_table.entry(number);
            let bucket = entry.bucket;
            if entry.in_flight || !self.has_room(bucket, &asks) {
                is_left = true;
            } else if let Some(ask) = self.last_words(number, now) {
                is_left = true;
                asks.add(bucket, (number, ask), |(_, ask)| ask.key);
            }
        }
        self.send(asks, now.at, out);
        is_left
    }

    /// Returns the final command about a key, unless no host counts anything for it.
    fn last_words(&mut self, number: usize, now: Now) -> Option<CellRequest> {
        let entry = self.key_table.entry(number);
        let budget = self.budgets.get(&entry.key.budget())?;
        let there = self.engine.peek_share(&entry.key, budget, now)?;
        if there.borrowed == 0 && there.debt == 0 && there.refund == 0 && !entry.is_believed() {
            return None;
        }
        let ask = self.ask_about(number, there.borrowed, now)?;
        Some(CellRequest { want: 0, demand: 0, ..ask })
    }

    fn pace(&self, now: Timestamp) -> Pace {
        let hosts = self.status.hosts();
        let others_are_away = self.absence.others_are_away(hosts, now);
        Pace { now, hosts, round_trip: self.round_trip.took, others_are_away }
    }
}

/// The requests of one tick, with the numbers of the keys.
type BatchParts = Batches<(usize, CellRequest)>;

/// Cell buckets on one Redis; a tick sends one command per bucket. With 16 a command had three cells, with
/// two it has a dozen, which saves Redis and this host a fifth of the work.
pub const BUCKETS: u16 = 2;

/// Batches of one bucket without a reply: with two buckets 1000 cells, or 2000 cells/s at a round trip of 0.5 s.
const IN_FLIGHT_MAX: u32 = 16;

/// Debts that all hosts together send in a tick after an outage: 16 000 cells/s, a fifth of what one Redis is planned for.
const OWING_PER_TICK: u64 = 32;

/// The most keys that owe after an outage: 4 MB.
const OWING_MAX: usize = 1 << 17;

/// The most synced keys: about 50 MB.
const TRACKED_MAX: usize = 1 << 18;
