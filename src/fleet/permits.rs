//! Permits of concurrency limits over the fleet. Redis has one sorted set for each key; its members are the leases of all
//! hosts, scored by their expiry.
//!
//! ```text
//!   request without a permit ──▶ Redis adds a member, if there are fewer than `max` ──▶ the request is judged again
//!   lease in progress        ──▶ the host renews its member every 0.9 s; without it the member expires after 4 s
//!   lease ended              ──▶ the host removes the member, unless another request takes the permit before
//!   lease begun in an outage ──▶ the host adds a member, whatever their number
//! ```
//!
//! Commands are sent once. A member of unknown state is removed by a later command.

use super::command::{Batches, Bucket, Buckets, CELLS_MAX, CommandHead, Host, ScriptCommand, are_distinct};
use super::link::RedisCommand;
use super::reply::CommandReply;
use super::rng::Rng;
use super::scripts;
use super::tally::Tallies;
use super::wire::{ReplyReader, ScriptWriter};
use crate::clock::{Now, Timestamp};
use crate::engine::{Engine, FleetConcurrencyLimit, PermitReply, SharedKey};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

/// A command about the permits of some keys of one bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PermitCommand {
    pub head: CommandHead,
    /// The host, as in the names of its members.
    pub host: Host,
    /// At most [`CELLS_MAX`], of distinct keys.
    pub requests: Vec<PermitRequest>,
}

/// The part of a command for one key. Members have numbers on each host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PermitRequest {
    pub key: [u8; 16],
    /// The permits of the whole fleet.
    pub max: u32,
    /// Members to add while there are fewer than `max`.
    pub wanted: Vec<u32>,
    /// Members to renew, or to add in any case.
    pub kept: Vec<u32>,
    pub dropped: Vec<u32>,
    /// Whether all members of this host are among `wanted` and `kept`. Not part of the bytes.
    pub is_whole: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyPermitReply {
    /// How many of the wanted members were added; `None`: Redis has lost the set.
    pub added: Option<u32>,
    pub members: u32,
}

impl PermitCommand {
    pub(super) fn encode(&self) -> RedisCommand<'static> {
        debug_assert!(
            are_distinct(self.requests.iter().map(|request| request.key), 1..=CELLS_MAX),
            "{self:?}"
        );
        let mut bytes = ScriptWriter::default();
        for request in &self.requests {
            let numbers = [&request.dropped, &request.kept, &request.wanted];
            bytes.small(request.max);
            numbers.iter().rev().for_each(|numbers| bytes.small(u32::try_from(numbers.len()).unwrap_or(0)));
            numbers.into_iter().flatten().for_each(|number| bytes.small(*number));
        }
        RedisCommand {
            script: &scripts::PERMITS,
            keys: self.head.keys(self.requests.iter().map(|request| ('m', request.key))),
            args: vec![self.head.bytes(), self.host.to_vec(), bytes.bytes],
        }
    }
}

impl KeyPermitReply {
    pub(super) fn read(from: &mut ReplyReader<'_>, request: &PermitRequest) -> KeyPermitReply {
        let wanted = u32::try_from(request.wanted.len()).unwrap_or(u32::MAX);
        let added = match from.small(u32::MAX) {
            LOST => None,
            added => {
                from.clamped += u32::from(added > wanted);
                Some(added.min(wanted))
            }
        };
        KeyPermitReply { added, members: from.small(u32::MAX) }
    }
}

#[derive(Debug)]
pub struct PermitSync {
    engine: Arc<Engine>,
    pub(super) limits: Arc<HashMap<u64, FleetConcurrencyLimit>>,
    keys: HashMap<[u8; 16], KeyPermits>,
    /// When to renew which key; a key occurs more than once if it was renewed meanwhile.
    renewals: BinaryHeap<Reverse<(Timestamp, [u8; 16])>>,
    /// Keys to look at in the next tick.
    due: Vec<SharedKey>,
    buckets: Buckets,
    /// Until then other hosts may not have renewed their members of a bucket after a loss.
    closed_until: HashMap<Bucket, Timestamp>,
    rng: Rng,
    /// Requests for a permit of a key whose answer is unknown, until they are ended.
    pub(super) unanswered: Vec<(SharedKey, usize)>,
    pub(super) tallies: Tallies,
}

/// The permits of this host of one key.
#[derive(Debug, Default)]
struct KeyPermits {
    /// With the limit that holds now: leases under an override are members of the same set.
    key: SharedKey,
    /// The number of its rule.
    rule: u64,
    /// Members of this host in Redis.
    held: Vec<u32>,
    /// Members to remove with the next command.
    dropped: Vec<u32>,
    /// Pending requests to want a permit for with the next command, and with commands without a reply.
    requested: usize,
    wanted: usize,
    /// Numbers that are of no member.
    free: BinaryHeap<Reverse<u32>>,
    next: u32,
    /// Commands without a reply.
    in_flight: u32,
    renew_at: Timestamp,
    /// When all members were last reported with success.
    reported_at: Timestamp,
}

impl KeyPermits {
    /// Takes numbers of new members: small ones, so that a restarted host finds those of its leases again.
    fn take_numbers(&mut self, count: usize) -> Vec<u32> {
        let mut next = || match self.free.pop() {
            Some(Reverse(number)) => number,
            None => {
                self.next += 1;
                self.next - 1
            }
        };
        (0..count).map(|_| next()).collect()
    }

    /// Builds the requests that are due: more than one if the members are many.
    fn requests(&mut self, needed: u32, max: u32, now: Timestamp) -> Vec<PermitRequest> {
        let needed = usize::try_from(needed).unwrap_or(usize::MAX);
        if needed < self.held.len() {
            self.dropped.extend(self.held.drain(needed..));
        }
        let missing = needed.saturating_sub(self.held.len()).min(MEMBERS_AT_ONCE);
        let added = self.take_numbers(missing);
        let is_renewal = now >= self.renew_at && !(self.held.is_empty() && added.is_empty());
        let is_whole = is_renewal || self.held.is_empty();
        let mut kept = if is_renewal { self.held.clone() } else { Vec::new() };
        kept.extend(&added);
        self.held.extend(added);
        let requested = std::mem::take(&mut self.requested);
        self.wanted += requested;
        let wanted = self.take_numbers(requested);
        let mut dropped = std::mem::take(&mut self.dropped);
        if kept.is_empty() && wanted.is_empty() && dropped.is_empty() {
            return Vec::new();
        }
        if is_whole {
            self.renew_at = now.after(RENEW_EVERY);
        }
        let mut requests = Vec::new();
        let request = |kept: &[u32], dropped: Vec<u32>| PermitRequest {
            key: self.key.name(),
            max,
            wanted: Vec::new(),
            kept: kept.to_vec(),
            dropped,
            is_whole: false,
        };
        while kept.len() + dropped.len() > MEMBERS_AT_ONCE {
            let first: Vec<u32> = kept.drain(..kept.len().min(MEMBERS_AT_ONCE)).collect();
            let room = MEMBERS_AT_ONCE - first.len();
            requests.push(request(&first, dropped.drain(..dropped.len().min(room)).collect()));
        }
        requests.push(PermitRequest { wanted, is_whole, ..request(&kept, dropped) });
        self.in_flight += u32::try_from(requests.len()).unwrap_or(u32::MAX);
        requests
    }

    fn is_idle(&self) -> bool {
        self.in_flight == 0 && self.held.is_empty() && self.dropped.is_empty() && self.requested == 0
    }
}

impl PermitSync {
    pub(super) fn new(engine: Arc<Engine>, buckets: u16, seed: u64) -> PermitSync {
        PermitSync {
            engine,
            limits: Arc::default(),
            keys: HashMap::new(),
            renewals: BinaryHeap::new(),
            due: Vec::new(),
            buckets: Buckets::new(buckets),
            closed_until: HashMap::new(),
            rng: Rng::new(seed),
            unanswered: Vec::new(),
            tallies: Tallies::default(),
        }
    }

    pub(super) fn set_limits(&mut self, limits: Arc<HashMap<u64, FleetConcurrencyLimit>>) {
        let rules: HashSet<u64> = limits.values().map(|limit| limit.rule_number).collect();
        self.tallies.keep(|rule| rules.contains(&rule));
        self.limits = limits;
    }

    pub fn keys(&self) -> usize {
        self.keys.len()
    }

    pub fn next(&self) -> Timestamp {
        let renewal = self.renewals.peek().map_or(super::key_table::NEVER, |Reverse((at, _))| *at);
        if self.due.is_empty() { renewal } else { Timestamp::ORIGIN }
    }

    /// Requests permits for pending requests with the next tick. Without room for another key their answer is
    /// unknown.
    pub(super) fn request(&mut self, key: SharedKey, count: usize, now: Now) {
        let closed_until = self.closed_until.get(&self.buckets.of(&key.name()));
        let is_open = closed_until.is_none_or(|until| now.at >= *until);
        let has_room = self.keys.contains_key(&key.name()) || self.keys.len() < KEYS_MAX;
        let Some(rule) =
            self.limits.get(&key.budget()).filter(|_| is_open && has_room).map(|it| it.rule_number)
        else {
            self.unanswered.push((key, count));
            return;
        };
        self.engine.create_permits(&key, now);
        self.open(key, rule).requested += count;
        self.due.push(key);
    }

    /// The pending requests that a command is to get a permit for.
    pub(super) fn requested(&self, key: &SharedKey) -> usize {
        self.keys.get(&key.name()).map_or(0, |permits| permits.requested + permits.wanted)
    }

    pub(super) fn tick(&mut self, host: Host, now: Now, out: &mut Vec<ScriptCommand>) {
        self.engine.take_due_permit_keys(&mut self.due);
        while let Some(Reverse((_, name))) = self.renewals.peek().filter(|Reverse((at, _))| *at <= now.at) {
            let permits = self.keys.get(name).filter(|permits| permits.renew_at <= now.at);
            self.due.extend(permits.map(|permits| permits.key));
            self.renewals.pop();
        }
        let mut batches = Batches::new();
        for key in std::mem::take(&mut self.due) {
            let bucket = self.buckets.of(&key.name());
            self.look(key, now)
                .into_iter()
                .for_each(|request| batches.add(bucket, request, |request| request.key));
        }
        out.extend(batches.all().map(|(bucket, requests)| {
            let head = self.buckets.send(bucket, now.at);
            ScriptCommand::Permits(PermitCommand { head, host, requests })
        }));
    }

    fn look(&mut self, key: SharedKey, now: Now) -> Vec<PermitRequest> {
        let known = self.keys.get(&key.name()).map(|permits| permits.key.budget());
        if !known.into_iter().chain([key.budget()]).any(|budget| self.limits.contains_key(&budget)) {
            // The rule was removed: its members expire.
            self.close(&key);
            return Vec::new();
        }
        let (needed, key) = self.engine.report_permits(&key, now).unwrap_or((0, key));
        let limit = self.limits.get(&key.budget());
        let Some((rule, max)) = limit.map(|limit| (limit.rule_number, limit.quota.max())) else {
            return Vec::new();
        };
        if known.is_none() && (needed == 0 || self.keys.len() >= KEYS_MAX) {
            return Vec::new();
        }
        let permits = self.open(key, rule);
        let requests = permits.requests(needed, max, now.at);
        let (renew_at, is_idle) = (permits.renew_at, permits.is_idle());
        if requests.iter().any(|request| request.is_whole) {
            self.renewals.push(Reverse((renew_at, key.name())));
        }
        if is_idle && self.engine.remove_permits(&key, now) {
            self.close(&key);
        }
        requests
    }

    pub(super) fn answered(
        &mut self,
        command: &PermitCommand,
        reply: CommandReply<KeyPermitReply>,
        now: Now,
    ) {
        if self.buckets.answered(&command.head, reply.born_us) {
            self.closed_until.insert(command.head.bucket, now.at.after(CLOSED_FOR));
            self.renew_soon(now.at);
        }
        assert_eq!(command.requests.len(), reply.results.len(), "a reply has one result for each key");
        for (request, result) in command.requests.iter().zip(reply.results) {
            self.settle(request, result, command.head.sent_at, now);
        }
    }

    fn settle(&mut self, request: &PermitRequest, result: KeyPermitReply, sent_at: Timestamp, now: Now) {
        let Some(permits) = self.keys.get_mut(&request.key) else { return };
        let key = permits.key;
        self.tallies.record_permits(permits.rule, now.at);
        permits.in_flight = permits.in_flight.saturating_sub(1);
        let added = usize::try_from(result.added.unwrap_or(0)).unwrap_or(0).min(request.wanted.len());
        let (new, refused) = request.wanted.split_at(added);
        permits.held.extend(new);
        permits.free.extend(refused.iter().chain(&request.dropped).copied().map(Reverse));
        if request.is_whole {
            permits.reported_at = permits.reported_at.max(sent_at);
        }
        permits.wanted = permits.wanted.saturating_sub(request.wanted.len());
        if result.added.is_none() && !request.wanted.is_empty() {
            self.unanswered.push((key, request.wanted.len()));
        }
        let is_refused = result.added.is_some() && added < request.wanted.len();
        let (Some(limit), held) = (self.limits.get(&key.budget()), permits.held.len()) else { return };
        let reply = PermitReply {
            held: u32::try_from(held).unwrap_or(u32::MAX),
            free: i64::from(limit.quota.max()) - i64::from(result.members),
            reported_at: permits.reported_at,
            refused_for: if is_refused { REFUSED_FOR } else { Duration::ZERO },
        };
        self.engine.apply_permit_reply(&key, &reply, now);
        self.due.push(key);
    }

    pub(super) fn failed(&mut self, command: &PermitCommand, now: Timestamp) {
        self.buckets.failed(&command.head);
        for request in &command.requests {
            let renew_at = now.after(self.rng.up_to(RENEW_AFTER_FAILURE));
            let Some(permits) = self.keys.get_mut(&request.key) else { continue };
            permits.in_flight = permits.in_flight.saturating_sub(1);
            permits.dropped.extend(request.wanted.iter().chain(&request.dropped));
            permits.renew_at = permits.renew_at.min(renew_at);
            self.renewals.push(Reverse((permits.renew_at, request.key)));
            permits.wanted = permits.wanted.saturating_sub(request.wanted.len());
            if !request.wanted.is_empty() {
                self.unanswered.push((permits.key, request.wanted.len()));
            }
        }
    }

    /// Renews all members soon: Redis answers again, or has lost its data.
    pub(super) fn renew_soon(&mut self, now: Timestamp) {
        for permits in self.keys.values_mut() {
            permits.renew_at = now.after(self.rng.up_to(RENEW_AFTER_FAILURE));
            self.renewals.push(Reverse((permits.renew_at, permits.key.name())));
        }
    }

    pub(super) fn forget_commands(&mut self, now: Timestamp) {
        self.buckets.forget_commands();
        self.keys.values_mut().for_each(|permits| (permits.in_flight, permits.wanted) = (0, 0));
        self.renew_soon(now);
    }

    pub(super) fn has_commands(&self) -> bool {
        self.buckets.has_commands()
    }

    fn open(&mut self, key: SharedKey, rule: u64) -> &mut KeyPermits {
        let tallies = &mut self.tallies;
        let permits = self.keys.entry(key.name()).or_insert_with(|| {
            tallies.opens(rule);
            KeyPermits { rule, ..KeyPermits::default() }
        });
        permits.key = key;
        permits
    }

    fn close(&mut self, key: &SharedKey) {
        if let Some(permits) = self.keys.remove(&key.name()) {
            self.tallies.closes(permits.rule);
            self.unanswered.push((permits.key, permits.requested + permits.wanted));
        }
    }
}

/// The most keys with permits: about 50 MB.
const KEYS_MAX: usize = 1 << 18;

/// The most members in one request: Redis takes some 0.5 ms for them.
const MEMBERS_AT_ONCE: usize = 512;

/// The interval of renewals, well before permits expire here after 1.9 s and in Redis after 4 s.
const RENEW_EVERY: Duration = Duration::from_millis(900);

/// The longest time until members are renewed after a failure.
const RENEW_AFTER_FAILURE: Duration = Duration::from_millis(100);

/// After a refusal a host refuses by itself for this time, so that overload costs little.
const REFUSED_FOR: Duration = Duration::from_micros(2_500);

/// By then each host has renewed its members after Redis has lost them: one that noticed the outage connects again within five
/// seconds.
const CLOSED_FOR: Duration = Duration::from_secs(6);

/// The number of added members if Redis has lost the set.
const LOST: u32 = u32::MAX;
