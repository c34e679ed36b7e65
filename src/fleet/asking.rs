//! Calls that requests wait for, without making them: tickets go in, payments come out; what is said to them goes into the
//! shares of this host. Time is an argument. The same code runs over a real Redis and in the simulation.
//!
//! ```text
//!   ticket ──▶ one payment for each bucket ──▶ all answered in time ──▶ the request is judged again
//!                     │ nothing heard                   │ a bucket refuses, or it is too late
//!                     ▼                                 ▼
//!            the same bytes once more          what was paid goes back with the next sync
//! ```

mod breaker;
mod places;

use super::call::{Bucket, Call, Cost, Host, Payment};
use super::cell::{TOKEN, Terms};
use super::dice::Dice;
use super::lanes::{self, Lanes};
use super::page::{cell_window, terms};
use super::redis_clock::RedisClock;
use super::reply::{Answer, Kind, Paid, Wait};
use super::window::Stands;
use crate::clock::{Micros, Now, Timestamp};
use crate::engine::{Brought, Budget, Engine, More, Need, OnBrought, Standing, Ticket};
use breaker::Breaker;
use places::Queue;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// What happened to calls that requests waited for, counted since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// Tickets that were answered in time, whatever was said.
    pub answered: u64,
    /// Those to which no answer came in time.
    pub missed: u64,
    /// Those for which nobody was called: too much is on its way, or calls are stopped.
    pub declined: u64,
    /// How often calls were stopped because too many in a row were not answered in time.
    pub stopped: u64,
}

type Flight = lanes::Flight<Payment>;

/// The calls of this host that requests wait for.
pub struct Asking {
    engine: Arc<Engine>,
    standing: Arc<Standing>,
    /// Another name in each life, and another than that of the syncs: nobody's calls are taken for this host's.
    host: Host,
    buckets: u16,
    dice: Dice,
    lanes: Vec<Lanes<Payment>>,
    tickets: HashMap<u64, Open>,
    last: u64,
    told: HashMap<[u8; 16], Heard>,
    /// Those that wait for a place, by key.
    queues: Vec<Queue>,
    breaker: Breaker,
    clock: RedisClock,
    asked: Asked,
}

/// A ticket that somebody waits for.
struct Open {
    due: Timestamp,
    /// Payments that are not answered yet, and places that are waited for.
    left: usize,
    /// Of a place that is waited for it was said that there is none.
    is_told: bool,
    brought: Brought,
    on_brought: OnBrought,
}

/// When Redis last spoke of a key, and for how long it surely keeps it.
#[derive(Clone, Copy, Debug)]
struct Heard {
    at: Timestamp,
    kept: Duration,
}

impl Asking {
    /// Nothing was asked yet. `seed` is drawn at random.
    #[must_use]
    pub fn new(engine: Arc<Engine>, standing: Arc<Standing>, buckets: u16, seed: u64) -> Asking {
        let buckets = buckets.clamp(1, 256);
        let lanes = (0..buckets).filter_map(|bucket| u8::try_from(bucket).ok());
        let mut dice = Dice::new(seed);
        Asking {
            engine,
            standing,
            host: dice.bytes(),
            buckets,
            dice,
            lanes: lanes.map(|bucket| Lanes::new(Bucket::from_number(bucket))).collect(),
            tickets: HashMap::new(),
            last: 0,
            told: HashMap::new(),
            queues: Vec::new(),
            breaker: Breaker::Closed { misses: 0 },
            clock: RedisClock::default(),
            asked: Asked::default(),
        }
    }

    /// What happened since the start.
    #[must_use]
    pub fn asked(&self) -> Asked {
        self.asked
    }

    /// Makes the calls of a ticket, of which nobody waits for the answers after `due`. Where there are none to be made, that
    /// is said at once.
    pub fn ask(
        &mut self,
        (ticket, due): (&Ticket, Timestamp),
        on_brought: OnBrought,
        version: impl Fn(u64) -> u64,
        now: Now,
        out: &mut Vec<Call>,
    ) {
        self.expire(now.at);
        let costs = if due > now.at { self.costs(ticket, version, now) } else { None };
        let Some(costs) = costs.filter(|_| self.may_call(now.at)) else {
            self.asked.declined += 1;
            on_brought(None);
            return;
        };
        self.last += 1;
        let number = self.last;
        let left = costs.len() + self.queue_up(ticket, number);
        for (bucket, costs) in costs {
            let who = (self.host, 1, self.dice.bytes());
            let (needs, costs): (Vec<Need>, Vec<Cost>) = costs.into_iter().unzip();
            match bucket.of_each(&mut self.lanes).send(who, costs, (needs, number), now.at) {
                Ok(payment) => out.push(Call::Exact(payment.clone())),
                Err(_) => unreachable!("`costs` sees that there is room: else the ticket would wait in vain"),
            }
        }
        let brought = Brought::new(&self.engine, now);
        self.tickets.insert(number, Open { due, left, is_told: false, brought, on_brought });
    }

    /// What is to be said again, and who has waited too long.
    pub fn tick(&mut self, now: Now, out: &mut Vec<Call>) {
        self.expire(now.at);
        self.lanes.iter_mut().for_each(|lanes| drop(lanes.give_up(now.at)));
        if self.standing.is_linked() {
            self.offer_probe(now.at);
            let due = self.lanes.iter_mut().flat_map(Lanes::flights);
            let due = due
                .filter_map(|flight| flight.again.take_if(|again| *again <= now.at).map(|_| &flight.batch));
            out.extend(due.cloned().map(Call::Exact));
        }
    }

    /// Whether some were not answered yet.
    #[must_use]
    pub fn has_calls(&self) -> bool {
        self.lanes.iter().any(Lanes::is_busy)
    }

    /// Takes the answer to a payment.
    pub fn answered(&mut self, payment: &Payment, answer: Answer<Vec<Paid>>, now: Now) {
        // What comes after its deadline is late, also where nobody has noticed yet.
        self.expire(now.at);
        let place = &payment.place;
        let lanes = place.bucket.of_each(&mut self.lanes);
        let Some(flight) = lanes.land(place) else { return };
        match answer.kind {
            Kind::Done(paid) => {
                lanes.nonce = Some(answer.nonce);
                self.clock.heard(answer.now_us, now.at);
                self.note_told(&flight, &paid, now.at);
                self.settle(&flight, &paid, answer.now_us, now);
            }
            // A later call has been there, or the number is somebody else's: what it did will not be known.
            Kind::Stale | Kind::Unknown => {
                lanes.renew(place.lane);
                self.settle(&flight, &[], answer.now_us, now);
            }
        }
    }

    /// Whether a payment was heard is not known: it will be said once more, in the same words.
    pub fn failed(&mut self, payment: &Payment, now: Timestamp) {
        let again = now.after(self.dice.up_to(AGAIN_AFTER));
        payment.place.bucket.of_each(&mut self.lanes).repeat(&payment.place, again);
    }

    /// Redis is heard again: whatever was not answered in time before is forgotten.
    pub fn linked(&mut self) {
        self.breaker = Breaker::Closed { misses: 0 };
    }

    /// Costs by bucket; `None` where something cannot be called for.
    fn costs(
        &self,
        ticket: &Ticket,
        version: impl Fn(u64) -> u64,
        now: Now,
    ) -> Option<HashMap<Bucket, Vec<(Need, Cost)>>> {
        let (budgets, limits) = (self.engine.budgets(), self.engine.places_budgets());
        let mut costs: HashMap<Bucket, Vec<(Need, Cost)>> = HashMap::new();
        for need in &ticket.needs {
            if need.is_place {
                limits.get(&need.key.budget())?;
                continue;
            }
            let number = need.key.budget();
            let budget: &Budget = budgets.get(&number)?;
            let terms: Terms = terms(budget, version(number))?;
            let key = need.key.name();
            let heard = self.told.get(&key).filter(|heard| now.at.since(heard.at) < heard.kept);
            let knew_us = heard.map(|heard| micros(now.at.since(heard.at)));
            let window = cell_window(budget, self.clock.unix_us(now));
            let cost = Cost { key, terms, cost: u64::from(need.lacks) * TOKEN, knew_us, window };
            costs.entry(Bucket::of(&key, self.buckets)).or_default().push((*need, cost));
        }
        let has_room =
            |bucket: &Bucket| self.lanes.get(usize::from(bucket.number())).is_some_and(Lanes::has_room);
        costs.keys().all(has_room).then_some(costs)
    }

    /// Passes on what was said. Nothing said: what became of it is not known.
    fn settle(&mut self, flight: &Flight, paid: &[Paid], paid_us: u64, now: Now) {
        let mut late = None;
        let in_time = self.tickets.get_mut(&flight.about.1);
        let is_late = in_time.is_none();
        let brought = match in_time {
            Some(open) => &mut open.brought,
            // Nobody waits: it goes into the share, and back.
            None => late.insert(Brought::new(&self.engine, now)),
        };
        assert!(
            paid.is_empty() || paid.len() == flight.about.0.len(),
            "what is paid for a need without an answer is lost"
        );
        let is_paid = !paid.is_empty() && paid.iter().all(|paid| paid.wait == Wait::No);
        for (need, paid) in flight.about.0.iter().zip(paid) {
            match paid.wait {
                Wait::No if is_paid => brought.paid(need, paid.level, flight.sent),
                Wait::No => brought.not_taken(need, paid.level, flight.sent),
                Wait::Until(us) => brought.refused(need, Some(Micros(us)), paid.level, flight.sent),
                Wait::Never => brought.refused(need, None, paid.level, flight.sent),
            }
            if let Some(said) = &paid.window {
                let more = (said.more_us > 0).then(|| More {
                    at: heard_at(flight, now.at).after(Duration::from_micros(said.more_us)),
                    is_spent_out: said.stands == Stands::SpentOut,
                });
                brought.of_window(more, paid_us);
            }
        }
        if is_late {
            return;
        }
        self.came(flight.about.1, now);
    }

    /// One of the things that a ticket waits for has come to something. The last of them ends it.
    fn came(&mut self, ticket: u64, now: Now) {
        let Some(open) = self.tickets.get_mut(&ticket) else { return };
        open.left = open.left.saturating_sub(1);
        if open.left == 0
            && let Some(open) = self.tickets.remove(&ticket)
        {
            self.asked.answered += 1;
            self.heard_in_time();
            (open.on_brought)(Some(open.brought.at(now)));
        }
    }

    fn note_told(&mut self, flight: &Flight, paid: &[Paid], now: Timestamp) {
        if self.told.len() >= TOLD_MAX {
            self.told.retain(|_, heard| now.since(heard.at) < heard.kept.min(TOLD_FOR));
        }
        if self.told.len() >= TOLD_MAX {
            return;
        }
        for (cost, paid) in flight.batch.costs.iter().zip(paid) {
            let kept = match (cost.window, &paid.window) {
                (Some(window), Some(said)) => window.lasts_us(said),
                _ => cost.terms.kept_us(paid.level),
            };
            let kept = Duration::from_micros(kept);
            self.told.insert(cost.key, Heard { at: now, kept });
        }
    }

    /// Tickets that are due are nobody's any more: what still comes for them goes back.
    fn expire(&mut self, now: Timestamp) {
        let due: Vec<u64> =
            self.tickets.iter().filter(|(_, open)| open.due <= now).map(|(number, _)| *number).collect();
        for number in due {
            // What it has brought so far goes back as it drops.
            match self.tickets.remove(&number) {
                // That there was no place is an answer.
                Some(open) if open.is_told => self.asked.answered += 1,
                Some(_) => {
                    self.asked.missed += 1;
                    self.missed(now);
                }
                None => {}
            }
        }
    }

    /// Nobody waits any longer.
    fn dismiss(&mut self) {
        for (_, open) in self.tickets.drain() {
            self.asked.missed += 1;
            drop(open.brought);
            (open.on_brought)(None);
        }
    }
}

impl std::fmt::Debug for Asking {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Asking").field("breaker", &self.breaker).finish_non_exhaustive()
    }
}

/// When an answer was given, or later where nobody can tell: one that comes late may have been given long ago.
fn heard_at(flight: &Flight, now: Timestamp) -> Timestamp {
    if now.since(flight.sent) < LATE { now } else { flight.sent }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

/// A payment of which nothing was heard is said again after up to this long.
const AGAIN_AFTER: Duration = Duration::from_millis(100);

/// An answer that takes longer may have been lost, and said again.
const LATE: Duration = Duration::from_millis(100);

/// Keys of which it is known when Redis spoke of them: some 4 MB.
const TOLD_MAX: usize = 1 << 16;

const TOLD_FOR: Duration = Duration::from_secs(60);
