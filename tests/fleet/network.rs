//! Simulates the network to Redis: latency and losses.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use foldhash::HashMap;
use tidegate::fleet::command::ScriptCommand;
use tidegate::fleet::reply::ScriptReply;

use crate::plan::Plan;
use crate::random::Random;

/// Receiver of a message: a host and its epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct To {
    pub(crate) host: u32,
    pub(crate) epoch: u64,
}

#[derive(Clone, Debug)]
pub(crate) enum Event {
    AtStore { number: u64, command: ScriptCommand },
    AtHost { number: u64, command: ScriptCommand, reply: ScriptReply },
    TimedOut { number: u64 },
}

pub(crate) struct Network {
    events: BinaryHeap<Reverse<(u64, u64)>>,
    slots: HashMap<u64, (To, Event)>,
    numbers: u64,
    random: Random,
    pub(crate) round_trip_us: u64,
    pub(crate) lost: u32,
    plan: Plan,
    /// Longest round trip beyond the shortest, µs.
    pub(crate) slow_us: u32,
}

impl Network {
    pub(crate) fn new(plan: &Plan) -> Network {
        Network {
            events: BinaryHeap::new(),
            slots: HashMap::default(),
            numbers: 0,
            random: Random::new(plan.seed, 2),
            round_trip_us: plan.round_trip_us,
            lost: plan.faults.lost,
            plan: plan.clone(),
            slow_us: 0,
        }
    }

    /// Sends a command; returns its number.
    pub(crate) fn send(&mut self, to: To, command: ScriptCommand, us: u64, timeout_us: u64) -> u64 {
        self.numbers += 1;
        let number = self.numbers;
        let arrives = us + self.one_way();
        let is_heartbeat = matches!(command, ScriptCommand::Heartbeat(_));
        if self.random.below(1_000) < self.plan.faults.strays && is_heartbeat {
            let again = us + u64::from(self.random.below(3_000)) * 1_000;
            self.push(again, to, Event::AtStore { number: STRAY, command: command.clone() });
        }
        self.push(us + timeout_us, to, Event::TimedOut { number });
        self.push(arrives, to, Event::AtStore { number, command });
        number
    }

    /// Sends a reply, which may be lost.
    pub(crate) fn reply(&mut self, to: To, number: u64, command: ScriptCommand, reply: ScriptReply, us: u64) {
        if self.random.below(1_000) < self.lost {
            return;
        }
        let late = if self.random.below(1_000) < self.plan.faults.late { self.plan.late_us } else { 0 };
        let arrives = us + self.one_way() + late;
        self.push(arrives, to, Event::AtHost { number, command, reply });
    }

    /// Returns the next event before `until_us`.
    pub(crate) fn next(&mut self, until_us: u64) -> Option<(u64, To, Event)> {
        let Reverse((at, number)) = *self.events.peek()?;
        if at > until_us {
            return None;
        }
        self.events.pop();
        let (to, event) = self.slots.remove(&number).unwrap();
        Some((at, to, event))
    }

    /// Draws half a round trip, ±10 %.
    fn one_way(&mut self) -> u64 {
        let slow = if self.slow_us > 0 { self.random.below(self.slow_us + 1) } else { 0 };
        let half = (self.round_trip_us + u64::from(slow)) / 2;
        half - half / 10 + u64::from(self.random.below((half / 5) as u32 + 1))
    }

    fn push(&mut self, at: u64, to: To, event: Event) {
        self.numbers += 1;
        self.slots.insert(self.numbers, (to, event));
        self.events.push(Reverse((at, self.numbers)));
    }
}

/// The number of a command whose reply is not awaited.
pub(crate) const STRAY: u64 = 0;
