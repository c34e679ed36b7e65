//! This host among the others, without a connection: what it says of its budgets, and what it makes of the answers. Calls come
//! out, replies go in, and time is an argument: the task of a daemon carries them over connections, and the simulation over
//! none, so both run this.

use super::asking::Asking;
use super::beat::Beaten;
use super::call::Call;
use super::crowd::Crowd;
use super::questions::Question;
use super::reply::Reply;
use super::sync::{Options, Sync};
use super::versions::Versions;
use crate::clock::{Now, Timestamp};
use crate::engine::{Budget, Engine, PlacesBudget, Standing};
use std::collections::HashMap;
use std::sync::Arc;

/// This host among the others.
#[derive(Debug)]
pub struct Member {
    engine: Arc<Engine>,
    standing: Arc<Standing>,
    budgets: Arc<HashMap<u64, Budget>>,
    places: Arc<HashMap<u64, PlacesBudget>>,
    sync: Sync,
    asking: Asking,
    versions: Versions,
    crowd: Crowd,
}

impl Member {
    /// One that has said nothing yet, of the rules that the engine has.
    #[must_use]
    pub fn new(engine: Arc<Engine>, standing: Arc<Standing>, options: Options) -> Member {
        let (of_asking, seed) = (Arc::clone(&standing), options.seed.rotate_left(17));
        let mut member = Member {
            sync: Sync::new(options, Arc::clone(&standing)),
            asking: Asking::new(Arc::clone(&engine), of_asking, options.buckets, seed),
            engine,
            standing,
            budgets: Arc::default(),
            places: Arc::default(),
            versions: Versions::default(),
            crowd: Crowd::default(),
        };
        member.take_budgets();
        member
    }

    /// Its talk about budgets.
    #[must_use]
    pub fn sync(&self) -> &Sync {
        &self.sync
    }

    /// Its calls for requests that wait.
    #[must_use]
    pub fn asking(&self) -> &Asking {
        &self.asking
    }

    /// Until somebody says otherwise there are as many hosts as this.
    pub fn expect(&mut self, hosts: u32, now: Timestamp) {
        self.standing.set_hosts(hosts);
        self.crowd.heard(hosts, now);
    }

    /// The budgets of the rules in force, which may be others now.
    pub fn take_budgets(&mut self) {
        let (budgets, places) = (self.engine.budgets(), self.engine.places_budgets());
        if !Arc::ptr_eq(&budgets, &self.budgets) || !Arc::ptr_eq(&places, &self.places) {
            self.sync.set_places(Arc::clone(&places));
            self.sync.set_budgets(Arc::clone(&budgets));
            self.versions.set(&budgets, &places);
            (self.budgets, self.places) = (budgets, places);
        }
    }

    /// Whether there are any.
    #[must_use]
    pub fn has_budgets(&self) -> bool {
        !self.budgets.is_empty() || !self.places.is_empty()
    }

    /// Which version of its numbers each budget has, by number, as far as that is known.
    pub fn versions(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.versions.all()
    }

    /// Asks which version some of the budgets have, where that is not known.
    pub fn ask_versions(&mut self, out: &mut Vec<Call>) {
        if self.standing.is_linked() {
            let due = std::iter::from_fn(|| self.versions.next()).take(VERSIONS_AT_ONCE);
            out.extend(due.map(Call::Version));
        }
    }

    /// It goes by another name from now on.
    pub fn rename(&mut self) {
        self.sync.rename();
    }

    /// Redis is heard, or not any more. Returns whether that is a change.
    pub fn set_heard(&mut self, is_heard: bool, now: Timestamp) -> bool {
        if is_heard == self.standing.is_linked() {
            return false;
        }
        self.sync.set_linked(is_heard, now);
        if is_heard {
            self.asking.linked();
            // It may be another one than before, or have forgotten everything.
            self.versions.ask_again();
        }
        true
    }

    /// What is to be said now.
    pub fn tick(&mut self, now: Now, out: &mut Vec<Call>) {
        self.sync.tick(&self.engine, now, out);
        self.asking.tick(now, out);
        self.tend_places(now, out);
    }

    /// Makes the calls of a request that waits. Requests that wait for places are [served](Member::tend_places) once all have
    /// asked.
    pub fn ask(&mut self, question: Question, now: Now, out: &mut Vec<Call>) {
        let Question { ticket, due, on_brought } = question;
        let sync = &self.sync;
        self.asking.ask((&*ticket, due), on_brought, |budget| sync.version(budget), now, out);
    }

    /// Hands out places to requests that wait for them, and has asked for what is lacking.
    pub fn tend_places(&mut self, now: Now, out: &mut Vec<Call>) {
        self.asking.tend_places(&mut self.sync, now, out);
    }

    /// Takes the answer to a call about budgets or cells; of others it makes nothing.
    pub fn answered(&mut self, call: &Call, reply: Reply, now: Now, out: &mut Vec<Call>) {
        let flushed = self.sync.happened().flushed;
        match (call, reply) {
            (Call::Sync(batch), Reply::Sync(answer)) => self.sync.answered(batch, answer, &self.engine, now),
            (Call::Places(call), Reply::Places(answer)) => {
                self.sync.places_answered(call, answer, &self.engine, now);
                self.tend_places(now, out);
            }
            (Call::Exact(payment), Reply::Exact(answer)) => self.asking.answered(payment, answer, now),
            (Call::Version(call), Reply::Version(version)) => {
                if let Some(budget) = self.versions.answered(call, version) {
                    self.sync.set_version(budget, version);
                }
            }
            _ => {}
        }
        if self.sync.happened().flushed > flushed {
            self.versions.ask_again();
        }
    }

    /// Takes from the answer to a beat how many hosts are alive.
    pub fn beaten(&mut self, beaten: &Beaten, now: Timestamp) {
        self.standing.set_hosts(self.crowd.heard(beaten.hosts, now));
        self.sync.set_alive(beaten.hosts, now);
    }

    /// Whether a call about budgets or cells was heard is not known.
    pub fn failed(&mut self, call: &Call, now: Timestamp) {
        match call {
            Call::Sync(batch) => self.sync.failed(batch, now),
            Call::Places(call) => self.sync.places_failed(call, now),
            Call::Exact(payment) => self.asking.failed(payment, now),
            Call::Version(call) => self.versions.failed(call),
            _ => {}
        }
    }

    /// Gives back what is in hand, before this host leaves. Whether something is still to be said or to be answered.
    pub fn leave(&mut self, now: Now, out: &mut Vec<Call>) -> bool {
        let is_left = self.sync.leave(&self.engine, now, out);
        self.asking.tick(now, out);
        is_left || self.standing.is_linked() && self.asking.has_calls()
    }
}

/// Rules may be many when they are read; a thousand turns pass in ten seconds.
const VERSIONS_AT_ONCE: usize = 16;
