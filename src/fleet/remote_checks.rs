//! Remote checks that requests wait for, without I/O: shortfalls go in, payments come out, replies go into the
//! shares of this host. Time is an argument. The same code runs over a real Redis and in the simulation.
//!
//! ```text
//!   shortfalls ──▶ payments per bucket ────▶ all answered in time ──▶ the request is judged again
//!                         │ no reply                       │ a bucket refuses, or the deadline has passed
//!                         ▼                                ▼
//!                decided by the fallback        the next sync refunds the payment
//! ```

mod breaker;

use super::cell::{LastReply, TOKEN};
use super::command::{Batches, Bucket, Buckets, CheckPayment, KeyPayment, Payment, ScriptCommand};
use super::key_sync::{cell_quota, cell_window};
use super::key_table::NEVER;
use super::permits::PermitSync;
use super::reply::{CommandReply, CostCover, PaymentResult};
use super::rng::Rng;
use super::sync::Sync;
use crate::clock::{Micros, Now, Timestamp};
use crate::engine::{
    CheckReply, Engine, FleetBudget, FleetStatus, KeyCheckReply, OnCheckReply, RemoteChecker, SharedKey,
    Shortfall, Shortfalls,
};
use breaker::Breaker;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::Sender;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteCheckCounts {
    /// Checks answered while their requests waited, with either outcome.
    pub answered: u64,
    /// Checks without a reply by their deadline, or whose clients had closed their connections.
    pub missed: u64,
    /// Checks declined without a command: too many commands in flight, or the breaker is open.
    pub declined: u64,
    /// How often the breaker opened because of too many late answers in a row.
    pub stopped: u64,
}

pub struct WaitingRequest {
    pub shortfalls: Arc<Shortfalls>,
    pub due: Timestamp,
    pub on_reply: OnCheckReply,
}

/// The bounded channel of pending requests from the decision threads to the sync task. It never blocks.
impl RemoteChecker for Sender<WaitingRequest> {
    fn start_check(&self, shortfalls: Arc<Shortfalls>, due: Timestamp, on_reply: OnCheckReply) -> bool {
        self.try_send(WaitingRequest { shortfalls, due, on_reply }).is_ok()
    }
}

/// The remote checks of this host and their pending requests.
pub struct PendingChecks {
    engine: Arc<Engine>,
    status: Arc<FleetStatus>,
    buckets: Buckets,
    rng: Rng,
    checks: HashMap<u64, PendingCheck>,
    /// No check is due before.
    due_min: Timestamp,
    last_number: u64,
    last_replies: HashMap<[u8; 16], LastReply>,
    queues: Vec<PermitQueue>,
    breaker: Breaker,
    pub counts: RemoteCheckCounts,
}

struct PendingCheck {
    begun: Timestamp,
    /// The longest wait of its request, which ends at `due`.
    wait: Duration,
    due: Timestamp,
    /// Unanswered payments and permits not yet granted.
    left: usize,
    reply: CheckReply,
    on_reply: OnCheckReply,
}

impl PendingCheck {
    /// Ends it without a reply. Dropping its replies so far refunds their payments.
    fn end_unanswered(self, counts: &mut RemoteCheckCounts) {
        counts.missed += 1;
        drop(self.reply);
        (self.on_reply)(None);
    }
}

/// The checks that wait for a permit of one key, by number, oldest first.
#[derive(Debug)]
struct PermitQueue {
    key: SharedKey,
    checks: VecDeque<u64>,
    /// The last ones, for which no command has been sent.
    new: usize,
}

impl PendingChecks {
    /// Makes the state without pending requests. `seed` is random.
    pub fn new(engine: Arc<Engine>, status: Arc<FleetStatus>, buckets: u16, seed: u64) -> PendingChecks {
        PendingChecks {
            engine,
            status,
            buckets: Buckets::new(buckets),
            rng: Rng::new(seed),
            checks: HashMap::new(),
            due_min: NEVER,
            last_number: 0,
            last_replies: HashMap::new(),
            queues: Vec::new(),
            breaker: Breaker::CLOSED,
            counts: RemoteCheckCounts::default(),
        }
    }

    /// Makes the commands of a remote check, whose replies are of use until `due`. Without commands, `on_reply(None)`
    /// runs at once. `sync` knows the version of a key's quota, its last level and the clock of Redis.
    pub fn start(
        &mut self,
        WaitingRequest { shortfalls, due, on_reply }: WaitingRequest,
        sync: &Sync,
        now: Now,
        out: &mut Vec<ScriptCommand>,
    ) {
        self.expire(now.at);
        let costs = if due > now.at { self.costs(&shortfalls, sync, now) } else { None };
        let Some(costs) = costs.filter(|_| self.may_start(shortfalls.patience, now.at)) else {
            self.counts.declined += 1;
            on_reply(None);
            return;
        };
        self.last_number += 1;
        let number = self.last_number;
        let left = costs.len() + self.queue_for_permits(&shortfalls, number);
        for (bucket, costs) in costs {
            let (needs, costs): (Vec<Shortfall>, Vec<KeyPayment>) = costs.into_iter().unzip();
            self.pay(bucket, CheckPayment { number, costs, needs }, now.at, out);
        }
        let reply = CheckReply::new(&self.engine, now);
        self.due_min = self.due_min.min(due);
        let wait = shortfalls.patience;
        self.checks.insert(number, PendingCheck { begun: now.at, wait, due, left, reply, on_reply });
    }

    /// Adds a payment to the last command of its bucket, or makes another: checks that arrive together share the fixed cost
    /// of commands, which is three times that of a key.
    fn pay(&mut self, bucket: Bucket, check: CheckPayment, now: Timestamp, out: &mut Vec<ScriptCommand>) {
        let last = out.iter_mut().rev().find_map(|command| match command {
            ScriptCommand::Exact(payment) if payment.head.bucket == bucket => Some(payment),
            _ => None,
        });
        if let Some(last) = last.filter(|last| last.has_room_for(&check)) {
            last.checks.push(check);
            return;
        }
        let head = self.buckets.send(bucket, now);
        out.push(ScriptCommand::Exact(Payment { head, checks: vec![check] }));
    }

    pub fn tick(&mut self, now: Now) {
        self.expire(now.at);
        if self.status.is_redis_reachable() {
            self.offer_probe(now.at);
        }
    }

    /// Whether no check is pending and no payment unanswered.
    pub fn is_idle(&self) -> bool {
        self.checks.is_empty() && self.queues.is_empty() && !self.has_commands()
    }

    pub fn has_commands(&self) -> bool {
        self.buckets.has_commands()
    }

    pub fn answered(&mut self, payment: &Payment, answer: &CommandReply<PaymentResult>, now: Now) {
        // A reply after its deadline is late even if no tick has ended the check yet.
        self.expire(now.at);
        self.buckets.answered(&payment.head, answer.born_us);
        self.record_last_replies(payment, &answer.results, now.at);
        self.record_reply_after(now.at.since(payment.head.sent_at), now.at);
        assert_eq!(payment.costs().count(), answer.results.len(), "a reply has one result for each key");
        let mut results = answer.results.as_slice();
        for check in &payment.checks {
            let (of_check, rest) = results.split_at(check.costs.len());
            results = rest;
            self.settle(check, payment.head.sent_at, of_check, answer.now_us, now);
        }
    }

    /// Handles a payment that may or may not have run: its check ends without a reply.
    pub fn failed(&mut self, payment: &Payment, now: Timestamp) {
        self.buckets.failed(&payment.head);
        payment.checks.iter().for_each(|check| self.end_unanswered(check.number, now));
    }

    /// Ends a check without a reply, and counts it for the breaker.
    fn end_unanswered(&mut self, number: u64, now: Timestamp) {
        if let Some(open) = self.checks.remove(&number) {
            let (wait, begun) = (open.wait, open.begun);
            open.end_unanswered(&mut self.counts);
            self.missed(wait, begun, now);
        }
    }

    /// Forgets the payments without a reply: their connections were closed.
    pub fn forget_commands(&mut self) {
        self.buckets.forget_commands();
        self.dismiss(Duration::MAX);
    }

    /// Closes the breaker at the end of an outage, forgetting earlier misses.
    pub fn linked(&mut self) {
        self.breaker = Breaker::CLOSED;
    }

    /// Costs by bucket. `None` if a limit or its version is unknown, or too many payments of a bucket are unanswered.
    fn costs(&self, shortfalls: &Shortfalls, sync: &Sync, now: Now) -> Option<Vec<BucketCosts>> {
        let (budgets, limits) = (self.engine.fleet_budgets(), self.engine.fleet_concurrency_limits());
        let mut costs = Batches::new();
        for need in &shortfalls.needs {
            if need.is_permit {
                limits.get(&need.key.budget())?;
                continue;
            }
            let budget: &FleetBudget = budgets.get(&need.key.budget())?;
            let cell_quota = cell_quota(budget, sync.versions.of(budget))?;
            let key = budget.cell(&need.key);
            let known_age_us = self.last_replies.get(&key).and_then(|last_reply| last_reply.age_us(now.at));
            let window = cell_window(budget, sync.clock.unix_us(now));
            // Other requests may take the tokens of this host meanwhile: the whole cost, where there is enough.
            let is_enough = sync.level(&need.key) >= i64::from(need.cost) * TOKEN.cast_signed();
            let units = if is_enough { need.cost } else { need.missing_units };
            let payment =
                KeyPayment { key, cell_quota, cost: u64::from(units) * TOKEN, known_age_us, window };
            let need = Shortfall { missing_units: units, ..*need };
            costs.add(self.buckets.of(&key), (need, payment), |(_, cost)| cost.key);
        }
        let costs: Vec<BucketCosts> = costs.all().collect();
        costs.iter().all(|(bucket, _)| self.buckets.has_room(*bucket, IN_FLIGHT_MAX)).then_some(costs)
    }

    fn settle(
        &mut self,
        check: &CheckPayment,
        sent_at: Timestamp,
        paid: &[PaymentResult],
        paid_us: u64,
        now: Now,
    ) {
        let mut late = None;
        let reply = match self.checks.get_mut(&check.number) {
            Some(open) => &mut open.reply,
            // The check has ended: tokens go into the share and are refunded from there.
            None => late.insert(CheckReply::new(&self.engine, now)),
        };
        let is_paid = paid.iter().all(|paid| paid.wait == CostCover::No);
        for (need, paid) in check.needs.iter().zip(paid) {
            let wait = match paid.wait {
                CostCover::No => None,
                CostCover::Until(us) => Some(Some(Micros(us))),
                CostCover::Never => Some(None),
            };
            let of_key = KeyCheckReply {
                granted: if is_paid { need.missing_units } else { 0 },
                level: paid.level,
                refused: wait.map(|wait| (need.missing_units, wait)),
                sent_at,
                next_increase: paid.window.and_then(|window| window.next_increase(now.at)),
                paid_us: paid.window.map_or(0, |_| paid_us),
            };
            reply.add(need.key, of_key);
        }
        if late.is_none() {
            self.end_part(check.number, now);
        }
    }

    /// Counts one answered part of a check; the last one completes it.
    fn end_part(&mut self, number: u64, now: Now) {
        let Some(open) = self.checks.get_mut(&number) else { return };
        open.left = open.left.saturating_sub(1);
        if open.left == 0
            && let Some(open) = self.checks.remove(&number)
        {
            self.answered_in_time(open.wait, now.at.since(open.begun));
            // A closed connection says nothing about Redis: only the count differs.
            let is_of_use = (open.on_reply)(Some(open.reply.with_time(now)));
            let count = if is_of_use { &mut self.counts.answered } else { &mut self.counts.missed };
            *count += 1;
        }
    }

    fn record_last_replies(&mut self, payment: &Payment, paid: &[PaymentResult], now: Timestamp) {
        if self.last_replies.len() >= LAST_REPLIES_MAX {
            self.last_replies
                .retain(|_, last_reply| now.since(last_reply.at) < last_reply.kept.min(LAST_REPLY_AGE_MAX));
        }
        if self.last_replies.len() >= LAST_REPLIES_MAX {
            return;
        }
        for (cost, paid) in payment.costs().zip(paid) {
            let last_reply = LastReply::new(&cost.cell_quota, paid.level, cost.window.zip(paid.window), now);
            self.last_replies.insert(cost.key, last_reply);
        }
    }

    /// Queues a check for each permit that its request lacks. Returns how many.
    fn queue_for_permits(&mut self, shortfalls: &Shortfalls, number: u64) -> usize {
        let mut permits = 0;
        for need in shortfalls.needs.iter().filter(|need| need.is_permit) {
            permits += 1;
            let position = self.queues.iter().position(|queue| queue.key.name() == need.key.name());
            let position = position.unwrap_or(self.queues.len());
            if position == self.queues.len() {
                self.queues.push(PermitQueue { key: need.key, checks: VecDeque::new(), new: 0 });
            }
            if let Some(queue) = self.queues.get_mut(position) {
                // The limit that holds now: that of an override counts the same leases.
                queue.key = need.key;
                queue.checks.push_back(number);
                queue.new += 1;
            }
        }
        permits
    }

    /// Grants free permits to waiting checks and requests the missing ones. Call it after checks were queued, after a
    /// reply about permits, and at each iteration of the sync task.
    pub fn tend_permits(&mut self, permits: &mut PermitSync, now: Now) {
        let unanswered = std::mem::take(&mut permits.unanswered);
        if self.queues.is_empty() {
            return;
        }
        self.expire(now.at);
        for mut queue in std::mem::take(&mut self.queues) {
            self.grant(&mut queue, now);
            let unanswered = unanswered.iter().filter(|(key, _)| key.name() == queue.key.name());
            let unanswered = unanswered.map(|(_, count)| count).sum();
            let requested = permits.requested(&queue.key);
            self.end(&mut queue, requested, unanswered, now);
            let new = std::mem::take(&mut queue.new);
            if new > 0 {
                permits.request(queue.key, new, now);
            }
            if !queue.checks.is_empty() {
                self.queues.push(queue);
            }
        }
    }

    /// Grants the idle permits of this host to the oldest checks.
    fn grant(&mut self, queue: &mut PermitQueue, now: Now) {
        queue.checks.retain(|number| self.checks.contains_key(number));
        queue.new = queue.new.min(queue.checks.len());
        if !self.engine.fleet_concurrency_limits().contains_key(&queue.key.budget()) {
            return;
        }
        while let Some(number) = queue.checks.front().copied() {
            let Some(permit) = self.engine.claim_permit(&queue.key, now) else { return };
            queue.checks.pop_front();
            let Some(open) = self.checks.get_mut(&number) else {
                unreachable!("a permit claimed for no check would stay reserved")
            };
            open.reply.add_permit(permit);
            self.end_part(number, now);
            queue.new = queue.new.min(queue.checks.len());
        }
    }

    /// Ends the checks that no command will get a permit for, the youngest first: Redis has refused them, or its reply
    /// is unknown.
    fn end(&mut self, queue: &mut PermitQueue, requested: usize, mut unanswered: usize, now: Now) {
        while queue.checks.len() > queue.new + requested {
            let youngest = queue.checks.len() - queue.new - 1;
            let Some(number) = queue.checks.remove(youngest) else { return };
            if unanswered > 0 {
                unanswered -= 1;
                self.end_unanswered(number, now.at);
            } else {
                self.end_part(number, now);
            }
        }
    }

    /// Ends the checks past their deadlines; payments answered later are refunded.
    fn expire(&mut self, now: Timestamp) {
        if now < self.due_min {
            return;
        }
        let due: Vec<u64> =
            self.checks.iter().filter(|(_, open)| open.due <= now).map(|(number, _)| *number).collect();
        for number in due {
            self.end_unanswered(number, now);
        }
        self.due_min = self.checks.values().map(|open| open.due).min().unwrap_or(NEVER);
    }

    /// Ends the checks with waits up to this one without a reply.
    fn dismiss(&mut self, wait: Duration) {
        for (_, open) in self.checks.extract_if(|_, open| open.wait <= wait) {
            open.end_unanswered(&mut self.counts);
        }
    }
}

/// Costs of one payment of a check, with what the request lacks.
type BucketCosts = (Bucket, Vec<(Shortfall, KeyPayment)>);

/// Payments of one bucket without a reply, at which no check starts.
const IN_FLIGHT_MAX: u32 = 192;

/// Keys whose last report is remembered: about 4 MB.
const LAST_REPLIES_MAX: usize = 1 << 16;

const LAST_REPLY_AGE_MAX: Duration = Duration::from_secs(60);
