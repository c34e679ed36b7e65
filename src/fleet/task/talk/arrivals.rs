//! What comes of what arrives, and of what does not.

use super::Talk;
use crate::clock::Now;
use crate::fleet::call::{Call, Host};
use crate::fleet::link::NodeId;
use crate::fleet::reply::{Received, Reply};
use crate::fleet::task::servers::Arrival;
use tracing::debug;

impl Talk {
    pub(super) fn take(&mut self, arrival: Arrival) {
        let now = self.clock.now();
        let Arrival { at, call, reply } = arrival;
        let decoded = reply.map(|bytes| Reply::decode(&call, &bytes));
        match decoded {
            Some(Ok(Received { reply, clamped })) => {
                self.view.clamped += u64::from(clamped);
                self.counters.heard(now.at);
                // A host is heard of budgets: whether it is, is told by what is said of them.
                let servers = self.servers.as_mut().filter(|_| !matches!(call, Call::Orders(_)));
                servers.into_iter().for_each(|servers| servers.heard(at, now.at));
                self.answered(&call, reply, now);
                self.relink(now);
            }
            Some(Err(fault)) => {
                self.view.undecodable += 1;
                debug!(%fault, "what came back is no reply: the call is repeated");
                self.failed(at, &call, now);
            }
            None => self.failed(at, &call, now),
        }
    }

    fn answered(&mut self, call: &Call, reply: Reply, now: Now) {
        match (call, reply) {
            (Call::Sync(batch), Reply::Sync(answer)) => {
                let before = (self.sync.host(), self.sync.happened().flushed);
                self.sync.answered(batch, answer, &self.engine, now);
                self.after_answer(before);
            }
            (Call::Places(call), Reply::Places(answer)) => {
                let before = (self.sync.host(), self.sync.happened().flushed);
                self.sync.places_answered(call, answer, &self.engine, now);
                self.after_answer(before);
                let mut calls = Vec::new();
                self.asking.tend_places(&mut self.sync, now, &mut calls);
                self.send(calls.into_iter().map(|call| (None, call)).collect(), now);
            }
            (Call::Exact(payment), Reply::Exact(answer)) => self.asking.answered(payment, answer, now),
            (Call::Beat(beat), Reply::Beat(beaten)) => {
                if self.reserves.heard(beat, &beaten, &self.engine) && beat.host == self.sync.host() {
                    self.sync.rename();
                    self.rename();
                }
                if let Some(agreed) = &beaten.agreed {
                    self.turning.heard(agreed, beaten.now_us, now.at);
                    self.attend_secret(now);
                }
                self.view.alive = beaten.hosts;
                let hosts = self.crowd.heard(beaten.hosts, now.at);
                self.standing.set_hosts(hosts);
                self.sync.set_alive(beaten.hosts, now.at);
                if self.plan.identity.hosts != hosts {
                    self.plan.identity.hosts = hosts;
                    self.keep();
                }
            }
            (Call::Version(call), Reply::Version(version)) => {
                if let Some(budget) = self.versions.answered(call, version) {
                    self.sync.set_version(budget, version);
                }
            }
            (Call::Lift(lift), Reply::Lift(lifted)) => {
                self.sync.lifted(lift, lifted, now.at);
                self.after_carry(now);
            }
            (Call::Plant(plant), Reply::Plant(now_us)) => {
                self.sync.planted(plant, now_us, now.at);
                self.after_carry(now);
            }
            (Call::Orders(call), Reply::Orders(said)) => {
                let news = self.orders.answered(call, said, now.at);
                news.iter().for_each(|orders| self.engine.take_fleet_orders(orders));
            }
            // A reply is read as one to its call.
            _ => {}
        }
    }

    /// A cell has come a step on: requests may wait for it.
    fn after_carry(&mut self, now: Now) {
        let mut calls = Vec::new();
        self.sync.carry(now.at, &mut calls);
        self.ask_held(now, &mut calls);
        self.send(calls.into_iter().map(|call| (None, call)).collect(), now);
    }

    /// What an answer may have told besides: that Redis has forgotten, or that another goes by this host's name.
    fn after_answer(&mut self, (host, flushed): (Host, u64)) {
        if self.sync.happened().flushed > flushed {
            self.versions.ask_again();
        }
        if self.sync.host() != host {
            self.rename();
        }
    }

    fn failed(&mut self, at: Option<NodeId>, call: &Call, now: Now) {
        match call {
            Call::Sync(batch) => self.sync.failed(batch, now.at),
            Call::Places(call) => self.sync.places_failed(call, now.at),
            Call::Beat(beat) => {
                self.reserves.failed(beat);
                if let Some(servers) = &mut self.servers {
                    servers.beat_failed(at, now.at);
                }
            }
            Call::Version(call) => self.versions.failed(call),
            Call::Orders(call) => self.orders.failed(call),
            Call::Exact(payment) => self.asking.failed(payment, now.at),
            Call::Lift(lift) => self.sync.carry_failed(lift.cells.iter().copied(), now.at),
            Call::Plant(plant) => {
                self.sync.carry_failed(plant.cells.iter().map(|(name, _)| *name), now.at);
            }
            // Nobody here asks so.
            Call::Peek(_) | Call::Reset(_) => {}
        }
    }
}
