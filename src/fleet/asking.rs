//! Remote checks that requests wait for, without I/O: tickets go in, payments come out, replies go into the
//! shares of this host. Time is an argument. The same code runs over a real Redis and in the simulation.
//!
//! ```text
//!   ticket ──▶ one payment per bucket ──▶ all answered in time ──▶ the request is judged again
//!                     │ no reply                       │ a bucket refuses, or the deadline has passed
//!                     ▼                                ▼
//!            resend the same bytes          the next sync refunds the payment
//! ```

mod breaker;
mod places;

use super::call::{Bucket, Host, KeyPayment, Payment, ScriptCommand};
use super::cell::{CellQuota, TOKEN};
use super::dice::Rng;
use super::lanes::{self, Sequences};
use super::page::{cell_window, terms};
use super::redis_clock::RedisClock;
use super::reply::{CommandReply, CostCover, PaymentResult, ReplyKind};
use super::window::WindowStatus;
use crate::clock::{Micros, Now, Timestamp};
use crate::engine::{
    CheckReply, Engine, FleetBudget, FleetStatus, NextIncrease, OnCheckReply, Shortfall, Shortfalls,
};
use breaker::Breaker;
use places::PermitQueue;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// Outcomes of remote checks, counted since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteCheckCounts {
    /// Tickets answered in time, with either outcome.
    pub answered: u64,
    /// Tickets not answered by their deadline.
    pub missed: u64,
    /// Tickets declined without a call: too many calls in flight, or the breaker is open.
    pub declined: u64,
    /// How often the breaker opened because of too many late answers in a row.
    pub stopped: u64,
}

type PendingCheck = lanes::UnansweredBatch<Payment>;

/// The remote checks of this host and their pending requests.
pub struct PendingChecks {
    engine: Arc<Engine>,
    standing: Arc<FleetStatus>,
    /// Differs in each process and from the identity of the syncs, so sequence numbers never collide.
    host: Host,
    buckets: u16,
    dice: Rng,
    lanes: Vec<Sequences<Payment>>,
    tickets: HashMap<u64, WaitingRequests>,
    last: u64,
    told: HashMap<[u8; 16], LastReply>,
    queues: Vec<PermitQueue>,
    breaker: Breaker,
    clock: RedisClock,
    asked: RemoteCheckCounts,
}

/// A ticket with a pending request.
struct WaitingRequests {
    due: Timestamp,
    /// Unanswered payments and permits not yet granted.
    left: usize,
    /// Redis has reported that no permit is free.
    is_told: bool,
    brought: CheckReply,
    on_brought: OnCheckReply,
}

/// When Redis last reported a key, and the minimum time it keeps the key after that.
#[derive(Clone, Copy, Debug)]
struct LastReply {
    at: Timestamp,
    kept: Duration,
}

impl PendingChecks {
    /// Makes the state without pending requests. `seed` is random.
    #[must_use]
    pub fn new(engine: Arc<Engine>, standing: Arc<FleetStatus>, buckets: u16, seed: u64) -> PendingChecks {
        let buckets = buckets.clamp(1, 256);
        let lanes = (0..buckets).filter_map(|bucket| u8::try_from(bucket).ok());
        let mut dice = Rng::new(seed);
        PendingChecks {
            engine,
            standing,
            host: dice.bytes(),
            buckets,
            dice,
            lanes: lanes.map(|bucket| Sequences::new(Bucket::from_number(bucket))).collect(),
            tickets: HashMap::new(),
            last: 0,
            told: HashMap::new(),
            queues: Vec::new(),
            breaker: Breaker::Closed { misses: 0 },
            clock: RedisClock::default(),
            asked: RemoteCheckCounts::default(),
        }
    }

    /// The outcomes since the start.
    #[must_use]
    pub fn asked(&self) -> RemoteCheckCounts {
        self.asked
    }

    /// Makes the calls of a ticket, whose answers are of use until `due`. Without calls to make,
    /// `on_brought(None)` runs at once.
    pub fn ask(
        &mut self,
        (ticket, due): (&Shortfalls, Timestamp),
        on_brought: OnCheckReply,
        version: impl Fn(u64) -> u64,
        now: Now,
        out: &mut Vec<ScriptCommand>,
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
            let (needs, costs): (Vec<Shortfall>, Vec<KeyPayment>) = costs.into_iter().unzip();
            match bucket.of_each(&mut self.lanes).send(who, costs, (needs, number), now.at) {
                Ok(payment) => out.push(ScriptCommand::Exact(payment.clone())),
                Err(_) => unreachable!("`costs` sees that there is room: else the ticket would wait in vain"),
            }
        }
        let brought = CheckReply::new(&self.engine, now);
        self.tickets.insert(number, WaitingRequests { due, left, is_told: false, brought, on_brought });
    }

    /// Resends overdue payments and expires tickets.
    pub fn tick(&mut self, now: Now, out: &mut Vec<ScriptCommand>) {
        self.expire(now.at);
        self.lanes.iter_mut().for_each(|lanes| drop(lanes.give_up(now.at)));
        if self.standing.is_redis_reachable() {
            self.offer_probe(now.at);
            let due = self.lanes.iter_mut().flat_map(Sequences::flights);
            let due = due
                .filter_map(|flight| flight.again.take_if(|again| *again <= now.at).map(|_| &flight.batch));
            out.extend(due.cloned().map(ScriptCommand::Exact));
        }
    }

    /// Whether any payment is unanswered.
    #[must_use]
    pub fn has_calls(&self) -> bool {
        self.lanes.iter().any(Sequences::is_busy)
    }

    /// Handles the reply to a payment.
    pub fn answered(&mut self, payment: &Payment, answer: CommandReply<Vec<PaymentResult>>, now: Now) {
        // A reply after its deadline is late even if no tick has expired the ticket yet.
        self.expire(now.at);
        let place = &payment.place;
        let lanes = place.bucket.of_each(&mut self.lanes);
        let Some(flight) = lanes.land(place) else { return };
        match answer.kind {
            ReplyKind::Done(paid) => {
                lanes.nonce = Some(answer.nonce);
                self.clock.heard(answer.now_us, now.at);
                self.note_told(&flight, &paid, now.at);
                self.settle(&flight, &paid, answer.now_us, now);
            }
            // A later call has used the lane, or the sequence number is foreign: the effect of this call
            // stays unknown.
            ReplyKind::Stale | ReplyKind::Unknown => {
                lanes.renew(place.lane);
                self.settle(&flight, &[], answer.now_us, now);
            }
        }
    }

    /// Schedules a resend of the same bytes, as it is unknown whether Redis ran the payment.
    pub fn failed(&mut self, payment: &Payment, now: Timestamp) {
        let again = now.after(self.dice.up_to(AGAIN_AFTER));
        payment.place.bucket.of_each(&mut self.lanes).repeat(&payment.place, again);
    }

    /// Closes the breaker at the end of an outage, forgetting earlier misses.
    pub fn linked(&mut self) {
        self.breaker = Breaker::Closed { misses: 0 };
    }

    /// Costs by bucket; `None` if a limit or its version is unknown or a bucket has no free lane.
    fn costs(
        &self,
        ticket: &Shortfalls,
        version: impl Fn(u64) -> u64,
        now: Now,
    ) -> Option<HashMap<Bucket, Vec<(Shortfall, KeyPayment)>>> {
        let (budgets, limits) = (self.engine.fleet_budgets(), self.engine.fleet_concurrency_limits());
        let mut costs: HashMap<Bucket, Vec<(Shortfall, KeyPayment)>> = HashMap::new();
        for need in &ticket.needs {
            if need.is_permit {
                limits.get(&need.key.budget())?;
                continue;
            }
            let number = need.key.budget();
            let budget: &FleetBudget = budgets.get(&number)?;
            let terms: CellQuota = terms(budget, version(number))?;
            let key = need.key.name();
            let heard = self.told.get(&key).filter(|heard| now.at.since(heard.at) < heard.kept);
            let knew_us = heard.map(|heard| micros(now.at.since(heard.at)));
            let window = cell_window(budget, self.clock.unix_us(now));
            let cost =
                KeyPayment { key, terms, cost: u64::from(need.missing_units) * TOKEN, knew_us, window };
            costs.entry(Bucket::of(&key, self.buckets)).or_default().push((*need, cost));
        }
        let has_room =
            |bucket: &Bucket| self.lanes.get(usize::from(bucket.number())).is_some_and(Sequences::has_room);
        costs.keys().all(has_room).then_some(costs)
    }

    /// Passes a payment's outcome to its ticket. Empty `paid`: the outcome is unknown.
    fn settle(&mut self, flight: &PendingCheck, paid: &[PaymentResult], paid_us: u64, now: Now) {
        let mut late = None;
        let in_time = self.tickets.get_mut(&flight.about.1);
        let is_late = in_time.is_none();
        let brought = match in_time {
            Some(open) => &mut open.brought,
            // The ticket has expired: tokens go into the share and are refunded from there.
            None => late.insert(CheckReply::new(&self.engine, now)),
        };
        assert!(
            paid.is_empty() || paid.len() == flight.about.0.len(),
            "what is paid for a need without an answer is lost"
        );
        let is_paid = !paid.is_empty() && paid.iter().all(|paid| paid.wait == CostCover::No);
        for (need, paid) in flight.about.0.iter().zip(paid) {
            match paid.wait {
                CostCover::No if is_paid => brought.add_granted(need, paid.level, flight.sent),
                CostCover::No => brought.add_uncharged(need, paid.level, flight.sent),
                CostCover::Until(us) => brought.add_refused(need, Some(Micros(us)), paid.level, flight.sent),
                CostCover::Never => brought.add_refused(need, None, paid.level, flight.sent),
            }
            if let Some(said) = &paid.window {
                let more = (said.more_us > 0).then(|| NextIncrease {
                    at: heard_at(flight, now.at).after(Duration::from_micros(said.more_us)),
                    is_exhausted: said.stands == WindowStatus::SpentOut,
                });
                brought.set_window_refill(more, paid_us);
            }
        }
        if is_late {
            return;
        }
        self.came(flight.about.1, now);
    }

    /// Counts one answered part of a ticket; the last one completes the ticket.
    fn came(&mut self, ticket: u64, now: Now) {
        let Some(open) = self.tickets.get_mut(&ticket) else { return };
        open.left = open.left.saturating_sub(1);
        if open.left == 0
            && let Some(open) = self.tickets.remove(&ticket)
        {
            self.asked.answered += 1;
            self.heard_in_time();
            (open.on_brought)(Some(open.brought.with_time(now)));
        }
    }

    fn note_told(&mut self, flight: &PendingCheck, paid: &[PaymentResult], now: Timestamp) {
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
            self.told.insert(cost.key, LastReply { at: now, kept });
        }
    }

    /// Removes tickets past their deadline; payments answered later are refunded.
    fn expire(&mut self, now: Timestamp) {
        let due: Vec<u64> =
            self.tickets.iter().filter(|(_, open)| open.due <= now).map(|(number, _)| *number).collect();
        for number in due {
            // Dropping the ticket refunds its payments so far.
            match self.tickets.remove(&number) {
                // "No permit free" is an answer.
                Some(open) if open.is_told => self.asked.answered += 1,
                Some(_) => {
                    self.asked.missed += 1;
                    self.missed(now);
                }
                None => {}
            }
        }
    }

    /// Ends all tickets without an answer.
    fn dismiss(&mut self) {
        for (_, open) in self.tickets.drain() {
            self.asked.missed += 1;
            drop(open.brought);
            (open.on_brought)(None);
        }
    }
}

impl std::fmt::Debug for PendingChecks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Asking").field("breaker", &self.breaker).finish_non_exhaustive()
    }
}

/// The time of the reply, or the send time if the reply is late: it may be the kept reply of an earlier send.
fn heard_at(flight: &PendingCheck, now: Timestamp) -> Timestamp {
    if now.since(flight.sent) < LATE { now } else { flight.sent }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

/// Upper bound of the random delay before an unanswered payment is resent.
const AGAIN_AFTER: Duration = Duration::from_millis(100);

/// A reply that takes longer may answer a resend.
const LATE: Duration = Duration::from_millis(100);

/// Keys whose last report is remembered: about 4 MB.
const TOLD_MAX: usize = 1 << 16;

const TOLD_FOR: Duration = Duration::from_secs(60);
