//! This host among the others, without a connection: what it says of its budgets, and what it makes of the answers. Calls come
//! out, replies go in, and time is an argument: the task of a daemon carries them over connections, and the simulation over
//! none, so both run this.

use super::asking::Asking;
use super::beat::Beaten;
use super::call::Call;
use super::crowd::Crowd;
use super::questions::Question;
use super::reply::Reply;
use super::secrets::{Held, Mark};
use super::sync::{Options, Sync};
use super::turning::{SecretsView, Turning, lasts};
use super::versions::Versions;
use crate::clock::{Now, Timestamp};
use crate::engine::{Budget, Engine, PlacesBudget, Standing};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// This host among the others.
#[derive(Debug)]
pub struct Member {
    engine: Arc<Engine>,
    standing: Arc<Standing>,
    budgets: Arc<HashMap<u64, Budget>>,
    places: Arc<HashMap<u64, PlacesBudget>>,
    sync: Sync,
    asking: Asking,
    /// Requests that wait for cells that go along with a turn.
    held: Vec<Question>,
    turning: Turning,
    /// Which secret it goes by, and whether the others have none of its own.
    uses: Option<(usize, bool)>,
    /// For how long a cell has something to say.
    lasts: Duration,
    versions: Versions,
    crowd: Crowd,
}

/// A secret makes the keys from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SecretUsed {
    /// No other did before.
    pub is_first: bool,
    /// The others use one that this host does not have.
    pub lacks: bool,
}

impl Member {
    /// One that has said nothing yet, of the rules that the engine has.
    #[must_use]
    pub fn new(
        engine: Arc<Engine>,
        standing: Arc<Standing>,
        options: Options,
        secrets: impl IntoIterator<Item = Mark>,
    ) -> Member {
        let (of_asking, seed) = (Arc::clone(&standing), options.seed.rotate_left(17));
        let mut member = Member {
            sync: Sync::new(options, Arc::clone(&standing)),
            asking: Asking::new(Arc::clone(&engine), of_asking, options.buckets, seed),
            engine,
            standing,
            budgets: Arc::default(),
            places: Arc::default(),
            held: Vec::new(),
            turning: Turning::new(secrets),
            uses: None,
            lasts: Duration::ZERO,
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

    /// How its secrets stand.
    #[must_use]
    pub fn secrets(&self, now: Now) -> SecretsView {
        self.turning.view(now)
    }

    /// What is to be said of its secrets, now.
    pub fn says_secrets(&mut self, now: Timestamp) -> Held {
        self.turning.says(now)
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
            self.lasts = lasts(&budgets);
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

    /// Turns to another secret, if it is time. Returns which, if it did.
    pub fn attend_secret(&mut self, now: Now) -> Option<SecretUsed> {
        self.turns(self.turning.turns_us());
        let choice = self.turning.turns(self.lasts, now)?;
        let before = self.uses.replace((choice.uses, choice.lacks));
        self.engine.use_secret(choice.uses, choice.former.map(|(former, _)| former));
        self.take_budgets();
        if before == Some((choice.uses, choice.lacks)) {
            return None;
        }
        if choice.has_turned {
            // Before it was told for the first time it asked for nothing.
            self.turned(before.is_some_and(|(uses, _)| uses != choice.uses), now.at);
        }
        Some(SecretUsed { is_first: before.is_none(), lacks: choice.lacks })
    }

    /// All turn to another secret then, by the clock of Redis, and this host has not.
    pub fn turns(&mut self, from_us: Option<u64>) {
        self.sync.turns(from_us);
        self.asking.turns(from_us);
    }

    /// This host has turned. `is_renamed`: its keys have other names from now on.
    pub fn turned(&mut self, is_renamed: bool, now: Timestamp) {
        self.sync.turned(is_renamed, now);
        self.asking.turned(now);
    }

    /// Redis is heard, or not any more. Returns whether that is a change: who does not know which secret to go by is not heard
    /// either.
    pub fn set_heard(&mut self, is_heard: bool, now: Now) -> bool {
        let is_heard = is_heard && self.turning.is_settled(now);
        if is_heard == self.standing.is_linked() {
            return false;
        }
        self.sync.set_linked(is_heard, now.at);
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
        self.ask_held(now, out);
        self.asking.tick(now, out);
        self.tend_places(now, out);
    }

    /// A request waits for a call. One about a key whose cell is on its way waits for that first. Who waits for places is
    /// [tended](Member::tend_places) once all have asked.
    pub fn ask(&mut self, question: Question, now: Now, out: &mut Vec<Call>) {
        // A key is moved before its request is asked about, by a thread that does not wait for this one: what came after the
        // others were taken may have moved since.
        self.sync.take_moved(&self.engine, now.at);
        let is_carried = question.ticket.needs.iter().any(|need| self.sync.is_carried(&need.key));
        if is_carried && now.at < question.due && self.held.len() < HELD_MAX {
            self.held.push(question);
            return;
        }
        let Question { ticket, due, on_brought } = question;
        let due = if is_carried { now.at } else { due };
        let sync = &self.sync;
        self.asking.ask((&*ticket, due), on_brought, |budget| sync.version(budget), now, out);
    }

    /// Requests that waited for cells may ask about them, where these are there.
    fn ask_held(&mut self, now: Now, out: &mut Vec<Call>) {
        for question in std::mem::take(&mut self.held) {
            self.ask(question, now, out);
        }
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
            (Call::Lift(lift), Reply::Lift(lifted)) => {
                self.sync.lifted(lift, lifted, now.at);
                self.after_carry(now, out);
            }
            (Call::Plant(plant), Reply::Plant(now_us)) => {
                self.sync.planted(plant, now_us, now.at);
                self.after_carry(now, out);
            }
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

    /// A cell has come a step on: requests may wait for it.
    fn after_carry(&mut self, now: Now, out: &mut Vec<Call>) {
        self.sync.carry(now.at, out);
        self.ask_held(now, out);
    }

    /// Takes what the answer to a beat says of the hosts and their secrets. Returns which secret makes the keys from now on, if
    /// it is another.
    pub fn beaten(&mut self, beaten: &Beaten, now: Now) -> Option<SecretUsed> {
        let mut used = None;
        if let Some(agreed) = &beaten.agreed {
            self.turning.heard(agreed, beaten.now_us, now.at);
            used = self.attend_secret(now);
        }
        self.standing.set_hosts(self.crowd.heard(beaten.hosts, now.at));
        self.sync.set_alive(beaten.hosts, now.at);
        used
    }

    /// Whether a call about budgets or cells was heard is not known.
    pub fn failed(&mut self, call: &Call, now: Timestamp) {
        match call {
            Call::Sync(batch) => self.sync.failed(batch, now),
            Call::Places(call) => self.sync.places_failed(call, now),
            Call::Exact(payment) => self.asking.failed(payment, now),
            Call::Version(call) => self.versions.failed(call),
            Call::Lift(lift) => self.sync.carry_failed(lift.cells.iter().copied(), now),
            Call::Plant(plant) => self.sync.carry_failed(plant.cells.iter().map(|(name, _)| *name), now),
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

/// Requests that wait for cells: more than are decided while one is carried; who comes then goes by `on_redis_down`.
const HELD_MAX: usize = 4_096;

/// Rules may be many when they are read; a thousand turns pass in ten seconds.
const VERSIONS_AT_ONCE: usize = 16;
