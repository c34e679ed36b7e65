//! The sync of permits, as that of tokens but with lanes and key states of its own.

mod asking;

pub use asking::PermitCheckReply;

use super::{AGAIN_AFTER, Engine, Now, PAGES_MAX, ScriptCommand, SharedKey, Sync, Timestamp, VERSION_FIRST};
use crate::engine::{FleetConcurrencyLimit, PlacesSettled};
use crate::fleet::book::{KeyTable, NEVER};
use crate::fleet::call::{Bucket, CELLS_MAX};
use crate::fleet::lanes::{Sequences, UnansweredBatch};
use crate::fleet::page::EVERY;
use crate::fleet::places::{
    KeyPermitReply, NextPermitKey, PermitCommand, PermitKeySync, PermitRequest, PlacesPace,
};
use crate::fleet::reply::{CommandReply, ReplyKind};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

#[derive(Debug)]
pub(super) struct PermitSync {
    book: KeyTable<PermitKeySync>,
    lanes: Vec<Sequences<PermitCommand>>,
    limits: Arc<HashMap<u64, FleetConcurrencyLimit>>,
    /// The earliest resend of a command.
    again: Timestamp,
    calls: Vec<SharedKey>,
    /// Keys with pending requests that Redis has answered.
    told: Vec<PermitCheckReply>,
}

impl PermitSync {
    pub(super) fn new(buckets: u16) -> PermitSync {
        let buckets = (0..buckets.clamp(1, 256)).filter_map(|bucket| u8::try_from(bucket).ok());
        PermitSync {
            book: KeyTable::default(),
            lanes: buckets.map(|bucket| Sequences::new(Bucket::from_number(bucket))).collect(),
            limits: Arc::default(),
            again: NEVER,
            calls: Vec::new(),
            told: Vec::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.book.len()
    }

    pub(super) fn is_in_force(&self, limit: u64) -> bool {
        self.limits.contains_key(&limit)
    }

    pub(super) fn next(&self) -> Timestamp {
        let is_waited_for = self.lanes.iter().any(Sequences::has_room_for_waiting);
        if is_waited_for { Timestamp::ORIGIN } else { self.book.next().min(self.again) }
    }

    pub(super) fn renew_all(&mut self) {
        self.lanes.iter_mut().for_each(Sequences::renew_all);
    }
}

impl Sync {
    /// Replaces the concurrency limits by those of the rules in force. Call it before [`Sync::set_budgets`].
    pub fn set_places(&mut self, limits: Arc<HashMap<u64, FleetConcurrencyLimit>>) {
        self.places.limits = limits;
    }

    pub(super) fn answer_place_calls(&mut self, engine: &Engine, now: Now) {
        let mut calls = std::mem::take(&mut self.places.calls);
        engine.take_due_permit_keys(&mut calls);
        for key in calls.drain(..) {
            let Some(number) = self.find_or_open_place(key, now.at) else {
                if let Some(limit) = self.places.limits.get(&key.budget()) {
                    engine.remove_permits(&key, limit, now);
                }
                continue;
            };
            self.places.book.page_mut(number).calls = true;
            self.hurry_place(number, now.at);
        }
        self.places.calls = calls;
    }

    /// Finds or opens the state of a key; `None` if there are too many.
    fn find_or_open_place(&mut self, key: SharedKey, now: Timestamp) -> Option<usize> {
        if let Some(number) = self.places.book.find(&key) {
            return Some(number);
        }
        (self.places.book.len() < PAGES_MAX).then(|| {
            self.tallies.opens(key.budget());
            self.places.book.open(key, now)
        })
    }

    /// Emits the commands about permits that are due now.
    pub(super) fn tick_places(&mut self, engine: &Engine, now: Now, out: &mut Vec<ScriptCommand>) {
        self.repeat_places(now.at, out);
        let mut asks = PermitBatchParts::new();
        let mut look_at = |sync: &mut Sync, number: usize| {
            if let Some((bucket, ask)) = sync.look_at_place(engine, number, now) {
                sync.gather_places(&mut asks, bucket, (number, ask), now.at, out);
            }
        };
        // Keys that waited for a lane go before keys that are due now.
        for bucket in 0..self.places.lanes.len() {
            while let Some(number) = self.places.lanes.get_mut(bucket).and_then(Sequences::take_waiting) {
                if self.places.book.wake(number) {
                    look_at(self, number);
                }
            }
        }
        while let Some(number) = self.places.book.take_due(now.at) {
            look_at(self, number);
        }
        self.send_rest_of_places(asks, now.at, out);
    }

    fn look_at_place(&mut self, engine: &Engine, number: usize, now: Now) -> Option<(Bucket, PermitRequest)> {
        let (dice, pace) = (self.dice.part_of_token(), self.places_pace(now.at));
        let limits = Arc::clone(&self.places.limits);
        let page = self.places.book.page_mut(number);
        let bucket = Bucket::of(&page.key.name(), self.options.buckets);
        let lanes = bucket.of_each(&mut self.places.lanes);
        if !lanes.has_room() {
            if self.places.book.wait(number) {
                lanes.wait(number);
            }
            return None;
        }
        let limit = limits.get(&page.key.budget());
        let there = limit.and_then(|limit| engine.read_permits_for_sync(&page.key, limit, now));
        let (Some(limit), Some(there)) = (limit, there) else {
            // The rule was removed, or the state was evicted: its permits expire.
            self.close_place(number);
            return None;
        };
        match page.next(&there, limit, &pace) {
            NextPermitKey::Look(at) => {
                self.places.book.schedule(number, at);
                None
            }
            NextPermitKey::LetGo => {
                if engine.remove_permits(&page.key, limit, now) {
                    self.close_place(number);
                } else {
                    self.places.book.schedule(number, now.at.after(EVERY));
                }
                None
            }
            NextPermitKey::Ask(keep) => {
                let Some(reported) = engine.report_permits(&page.key, limit, keep, now) else {
                    // The state was just evicted.
                    self.close_place(number);
                    return None;
                };
                let version = self.versions.get(&page.key.budget()).copied().unwrap_or(VERSION_FIRST);
                Some((bucket, page.ask(&reported, (version, dice), limit, &pace)))
            }
        }
    }

    fn gather_places(
        &mut self,
        asks: &mut PermitBatchParts,
        bucket: Bucket,
        ask: (usize, PermitRequest),
        now: Timestamp,
        out: &mut Vec<ScriptCommand>,
    ) {
        let batch = asks.entry(bucket).or_default();
        batch.push(ask);
        if batch.len() == CELLS_MAX {
            let batch = std::mem::take(batch);
            self.send_places(bucket, batch, now, out);
        }
    }

    fn send_rest_of_places(&mut self, asks: PermitBatchParts, now: Timestamp, out: &mut Vec<ScriptCommand>) {
        for (bucket, batch) in asks.into_iter().filter(|(_, batch)| !batch.is_empty()) {
            self.send_places(bucket, batch, now, out);
        }
    }

    fn send_places(
        &mut self,
        bucket: Bucket,
        batch: Vec<(usize, PermitRequest)>,
        now: Timestamp,
        out: &mut Vec<ScriptCommand>,
    ) {
        let who = (self.options.host, self.options.epoch, self.dice.bytes());
        let (pages, asks): (Vec<usize>, Vec<PermitRequest>) = batch.into_iter().unzip();
        let lanes = bucket.of_each(&mut self.places.lanes);
        match lanes.send(who, asks, pages, now) {
            Ok(call) => out.push(ScriptCommand::Places(call.clone())),
            // As with tokens.
            Err(pages) => {
                for number in pages {
                    self.places.book.page_mut(number).forget();
                    if self.places.book.wait(number) {
                        lanes.wait(number);
                    }
                }
            }
        }
    }

    /// Applies the reply to a command.
    pub fn places_answered(
        &mut self,
        call: &PermitCommand,
        answer: CommandReply<Vec<KeyPermitReply>>,
        engine: &Engine,
        now: Now,
    ) {
        let place = &call.place;
        let lanes = place.bucket.of_each(&mut self.places.lanes);
        let Some(flight) = lanes.land(place) else { return };
        let took = flight.again.is_none().then(|| now.at.since(flight.sent));
        self.round_trip.heard(took, now.at);
        match answer.kind {
            ReplyKind::Done(said) => {
                let before = lanes.nonce.replace(answer.nonce);
                self.happened.flushed += u64::from(before.is_some_and(|nonce| nonce != answer.nonce));
                self.happened.batches += 1;
                self.settle_places(&flight, &said, engine, now);
            }
            ReplyKind::Stale => {
                self.happened.stale += 1;
                self.rename();
                self.start_places_over(&flight, now.at);
            }
            ReplyKind::Unknown => {
                self.happened.unknown += 1;
                lanes.renew(place.lane);
                self.start_places_over(&flight, now.at);
            }
        }
    }

    fn settle_places(
        &mut self,
        flight: &UnansweredBatch<PermitCommand>,
        said: &[KeyPermitReply],
        engine: &Engine,
        now: Now,
    ) {
        let pace = self.places_pace(now.at);
        assert_eq!(
            flight.about.len(),
            said.len(),
            "a reply is read key by key: without its own a page waits on"
        );
        for ((number, ask), said) in flight.about.iter().zip(&flight.batch.asks).zip(said) {
            self.happened.cells += 1;
            self.happened.lost += u64::from(said.lost);
            let Some(page) = self.places.book.page_of(*number, &ask.key) else { continue };
            self.tallies.hears_of_places(page.key.budget(), said, now.at);
            let Some(limit) = self.places.limits.get(&page.key.budget()) else {
                self.close_place(*number);
                continue;
            };
            page.hear(ask, said, limit, now.at);
            let is_few = limit.quota.borrows_for_waiting_only();
            let settled = PlacesSettled {
                hold: ask.hold,
                granted: said.grant,
                free: said.free,
                sent_at: flight.sent,
                low_mark: if is_few { 0 } else { page.low(&pace) },
                refused_for: page.refused_for(ask, said),
                return_idle: is_few,
            };
            if ask.need > 0 {
                let is_short = said.grant < ask.need;
                self.places.told.push(PermitCheckReply { key: page.key, is_short });
            }
            engine.apply_permit_reply(&page.key, limit, &settled, now);
            let at = page.after(limit, now.at);
            self.places.book.schedule(*number, at);
        }
    }

    /// Schedules a resend of a command that may or may not have run, unchanged.
    pub fn places_failed(&mut self, call: &PermitCommand, now: Timestamp) {
        let again = now.after(self.dice.up_to(AGAIN_AFTER));
        self.round_trip.missed(now);
        call.place.bucket.of_each(&mut self.places.lanes).repeat(&call.place, again);
        self.places.again = self.places.again.min(again);
    }

    fn repeat_places(&mut self, now: Timestamp, out: &mut Vec<ScriptCommand>) {
        if now < self.places.again {
            return;
        }
        self.places.again = NEVER;
        for flight in self.places.lanes.iter_mut().flat_map(Sequences::flights) {
            let Some(again) = &mut flight.again else { continue };
            if *again <= now {
                *again = NEVER;
                self.happened.repeats += 1;
                out.push(ScriptCommand::Places(flight.batch.clone()));
            }
            self.places.again = self.places.again.min(*again);
        }
    }

    pub(super) fn give_up_places(&mut self, now: Timestamp) {
        let lanes = self.places.lanes.iter_mut();
        let flights: Vec<UnansweredBatch<PermitCommand>> =
            lanes.flat_map(|lanes| lanes.give_up(now)).collect();
        for flight in flights {
            self.happened.given_up += 1;
            self.start_places_over(&flight, now);
        }
    }

    /// After an outage: resends commands in flight, and checks every key.
    pub(super) fn relink_places(&mut self, now: Timestamp) {
        self.places.again = now;
        let flights = self.places.lanes.iter_mut().flat_map(Sequences::flights);
        flights.filter(|flight| flight.again.is_some()).for_each(|flight| flight.again = Some(now));
        for number in self.places.book.numbers() {
            let at = now.after(self.dice.up_to(EVERY));
            self.places.book.schedule(number, at);
        }
    }

    fn start_places_over(&mut self, flight: &UnansweredBatch<PermitCommand>, now: Timestamp) {
        for (number, ask) in flight.about.iter().zip(&flight.batch.asks) {
            let at = now.after(self.dice.up_to(EVERY));
            if let Some(page) = self.places.book.page_of(*number, &ask.key) {
                page.forget();
                // Keys with pending requests are checked at once.
                let at = if page.is_waited_for() { now } else { at };
                self.places.book.schedule(*number, at);
            }
        }
    }

    /// Emits the final commands: only permits in use stay reported. Returns whether to call it again.
    pub(super) fn leave_places(&mut self, engine: &Engine, now: Now, out: &mut Vec<ScriptCommand>) -> bool {
        self.repeat_places(now.at, out);
        let (mut asks, mut is_left) = (PermitBatchParts::new(), false);
        for number in self.places.book.numbers() {
            match self.last_words_of_place(engine, number, now) {
                None => {}
                Some(None) => is_left = true,
                Some(Some((bucket, ask))) => {
                    is_left = true;
                    self.gather_places(&mut asks, bucket, (number, ask), now.at, out);
                }
            }
        }
        self.send_rest_of_places(asks, now.at, out);
        is_left
    }

    /// The final command of a key; `Some(None)`: later; `None`: no host counts more than the permits in use.
    fn last_words_of_place(
        &mut self,
        engine: &Engine,
        number: usize,
        now: Now,
    ) -> Option<Option<(Bucket, PermitRequest)>> {
        let (dice, pace) = (self.dice.part_of_token(), self.places_pace(now.at));
        let page = self.places.book.page_mut(number);
        if page.in_flight {
            return Some(None);
        }
        let limit = self.places.limits.get(&page.key.budget())?;
        let there = engine.peek_permits(&page.key, limit, now)?;
        if !page.is_believed_beyond(there.leases) {
            return None;
        }
        let bucket = Bucket::of(&page.key.name(), self.options.buckets);
        if !bucket.of_each(&mut self.places.lanes).has_room() {
            return Some(None);
        }
        let reported = engine.report_permits(&page.key, limit, there.leases, now)?;
        let version = self.versions.get(&page.key.budget()).copied().unwrap_or(VERSION_FIRST);
        let ask = page.ask(&reported, (version, dice), limit, &pace);
        Some(Some((bucket, PermitRequest { want: 0, need: 0, demand: 0, ..ask })))
    }

    fn close_place(&mut self, number: usize) {
        if let Some(limit) = self.places.book.close(number) {
            self.tallies.closes(limit);
        }
    }

    fn places_pace(&self, now: Timestamp) -> PlacesPace {
        PlacesPace { now, hosts: self.standing.hosts(), round_trip: self.round_trip.took }
    }
}

/// The parts of the pending batches of one tick, with the numbers of the keys.
type PermitBatchParts = BTreeMap<Bucket, Vec<(usize, PermitRequest)>>;
