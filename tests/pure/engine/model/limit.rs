//! One limit and one key of it, as designed, on top of the definition of its algorithm.

use tidegate::clock::{Now, Timestamp};

use super::spec::{Algorithm, Over, Terms, Written};
use crate::definition::{Charged, Definition};

/// Parts of a nanosecond in which every drawn rate is exact.
const PARTS: i128 = 42;

const SECOND: u64 = 1_000_000_000;

/// The longest wait to search, in microseconds: more than any debt here.
const WAIT_MAX: u64 = 1 << 40;

#[derive(Clone, Debug)]
pub(super) struct Quota {
    definition: Definition,
    pub(super) limit: u64,
    pub(super) window_us: u64,
    /// Whether requests wait in a queue.
    queues: bool,
    utc: u64,
}

/// A limit in full.
#[derive(Clone, Debug)]
pub(super) struct ReferenceLimit {
    pub(super) quota: Quota,
    soft: Option<(Quota, Option<u64>)>,
    elastic: Option<Quota>,
    pub(super) counted: bool,
    block: Option<u64>,
    max_debt: u64,
    /// For a bucket: the parts of a tick in which all rates of the rule are exact.
    tick: i128,
}

#[derive(Clone, Debug, Default)]
pub(super) struct State {
    own: Charged,
    elastic: Charged,
    soft_since: Option<u64>,
    blocked_until: u64,
    /// Whether a log has merged entries above the limit: refused requests.
    pub(super) is_merged: bool,
}

/// A request to one limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask {
    pub(super) cost: u64,
    pub(super) wait_max: Option<u64>,
    pub(super) room: bool,
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn ceil(number: i128, by: i128) -> i128 {
    (number + by - 1).div_euclid(by)
}

fn wide(number: u64) -> i128 {
    i128::from(number)
}

fn narrow(number: i128) -> u64 {
    u64::try_from(number).unwrap()
}

impl Quota {
    fn new(written: &Written, terms: Terms, burst: u64, utc: u64) -> Quota {
        let nanos = terms.seconds * SECOND;
        let period = wide(nanos) * PARTS;
        assert_eq!(period % wide(terms.count), 0);
        let bucket = Definition::Bucket { parts: PARTS, interval: period / wide(terms.count) };
        let (definition, limit) = match written.algorithm {
            Algorithm::TokenBucket => (bucket, burst),
            Algorithm::LeakyBucket => (bucket, written.queue + 1),
            Algorithm::FixedWindow => (Definition::FixedWindow { nanos, first: written.first }, terms.count),
            Algorithm::SlidingLog => (Definition::SlidingLog { nanos }, terms.count),
            Algorithm::SlidingWindow => {
                let buckets = u8::try_from(written.buckets).unwrap();
                (Definition::SlidingWindow { nanos, buckets }, terms.count)
            }
        };
        let queues = written.algorithm == Algorithm::LeakyBucket;
        Quota { definition, limit: 0, window_us: 0, queues, utc }.with_limit(limit, nanos)
    }

    /// The same with another limit; a window has its own length.
    fn with_limit(self, limit: u64, nanos: u64) -> Quota {
        let window_us = match self.definition {
            Definition::Bucket { interval, .. } => micros(interval * wide(limit)),
            _ => nanos / 1_000,
        };
        Quota { limit, window_us, ..self }
    }

    fn now(&self, at: u64) -> Now {
        Now { at: Timestamp::from_nanos(at), utc_offset_nanos: i64::try_from(self.utc).unwrap() }
    }

    fn ahead(&self, charged: &Charged, at: u64) -> i128 {
        self.definition.ahead(charged, self.now(at))
    }

    fn remaining(&self, charged: &Charged, at: u64) -> u64 {
        self.definition.remaining(charged, self.now(at), self.limit)
    }

    fn fits(&self, charged: &Charged, at: u64, ask: Ask) -> bool {
        let wait = micros(self.ahead(charged, at));
        let is_patient = !self.queues || ask.wait_max.is_none_or(|most| wait <= most);
        is_patient && ask.cost <= self.remaining(charged, at)
    }

    fn charge(&self, charged: &mut Charged, at: u64, cost: u64, start: i128) {
        self.definition.charge(charged, self.now(at), cost, start);
    }
}

/// The first wait in whole microseconds at which this holds; it then holds for good.
fn first(holds: impl Fn(u64) -> bool) -> Option<u64> {
    if holds(0) {
        return Some(0);
    }
    let (mut below, mut above) = (0, WAIT_MAX);
    if !holds(above) {
        return None;
    }
    while above - below > 1 {
        let middle = below + (above - below) / 2;
        if holds(middle) { above = middle } else { below = middle }
    }
    Some(above)
}

impl ReferenceLimit {
    /// The limit of a key with these numbers, among those that keys of the rule can have.
    pub(super) fn new(written: &Written, own: bool, terms: Terms, all: &[Terms], utc: u64) -> ReferenceLimit {
        let burst = if own { written.burst } else { terms.count };
        let quota = Quota::new(written, terms, burst, utc);
        let has_over = written.algorithm != Algorithm::LeakyBucket;
        let with_limit = |limit| quota.clone().with_limit(limit, terms.seconds * SECOND);
        let (mut soft, mut elastic) = (None, None);
        match written.over {
            Over::Soft(share, millis) if has_over => {
                let larger = with_limit(quota.limit + quota.limit * share / 100);
                soft = Some((larger, millis.map(|millis| millis * 1_000_000)));
            }
            Over::Elastic(share) if has_over => {
                let second = with_limit((quota.limit * share / 100).max(1));
                elastic = Some(match quota.definition {
                    Definition::Bucket { parts, interval } => {
                        assert_eq!(interval * 100 % wide(share), 0);
                        let interval = interval * 100 / wide(share);
                        Quota { definition: Definition::Bucket { parts, interval }, ..second }
                    }
                    _ => second,
                });
            }
            _ => {}
        }
        let is_window = !quota.definition.is_bucket();
        let ticks = all.iter().fold(1, |ticks, terms| {
            let lowest = terms.count / gcd(terms.count, terms.seconds * SECOND);
            ticks / gcd(ticks, lowest) * lowest
        });
        ReferenceLimit {
            max_debt: written.max_debt.unwrap_or(quota.limit),
            quota,
            soft,
            elastic,
            counted: written.counted && is_window,
            block: written.block_ms.map(|millis| millis * 1_000_000),
            tick: PARTS / wide(ticks),
        }
    }

    fn soft_is_spent(&self, state: &State, at: u64) -> bool {
        let lasts = self.soft.as_ref().and_then(|(_, lasts)| *lasts);
        // It restarts once some quota remains again.
        let since = state.soft_since.filter(|_| self.quota.remaining(&state.own, at) == 0);
        since.zip(lasts).is_some_and(|(since, lasts)| at >= since + lasts)
    }

    fn soft_fits(&self, state: &State, at: u64, ask: Ask) -> bool {
        self.soft.as_ref().is_some_and(|(larger, _)| larger.fits(&state.own, at, ask))
            && !self.soft_is_spent(state, at)
    }

    fn elastic_fits(&self, state: &State, at: u64, ask: Ask) -> bool {
        let second = self.elastic.as_ref().filter(|_| ask.room && ask.cost <= self.quota.limit);
        second.is_some_and(|second| second.fits(&state.elastic, at, ask))
    }

    pub(super) fn passes(&self, state: &State, at: u64, ask: Ask) -> bool {
        ask.cost == 0
            || at >= state.blocked_until
                && (self.quota.fits(&state.own, at, ask)
                    || self.soft_fits(state, at, ask)
                    || self.elastic_fits(state, at, ask))
    }

    /// Whether an allowed request is above the quota.
    pub(super) fn is_beyond(&self, state: &State, at: u64, ask: Ask) -> bool {
        ask.cost > 0 && self.passes(state, at, ask) && !self.quota.fits(&state.own, at, ask)
    }

    /// The smallest wait after which the request is allowed, in microseconds.
    pub(super) fn retry(&self, state: &State, at: u64, ask: Ask) -> Option<u64> {
        let later = |wait: u64| at + wait * 1_000;
        // Each condition, once true, stays true; the request becomes allowed when one of them does.
        // A request of cost 0 is allowed now.
        let begins = [
            Some(0),
            first(|wait| later(wait) >= state.blocked_until),
            first(|wait| self.quota.fits(&state.own, later(wait), ask)),
            first(|wait| self.quota.remaining(&state.own, later(wait)) > 0),
            first(|wait| self.soft.as_ref().is_some_and(|(soft, _)| soft.fits(&state.own, later(wait), ask))),
            first(|wait| self.elastic_fits(state, later(wait), ask)),
        ];
        begins.into_iter().flatten().filter(|wait| self.passes(state, later(*wait), ask)).min()
    }

    /// How long a request would wait, in parts of a nanosecond.
    pub(super) fn wait(&self, state: &State, at: u64, ask: Ask) -> i128 {
        let waits = self.quota.queues && ask.cost > 0;
        if waits { self.quota.ahead(&state.own, at) } else { 0 }
    }

    /// Drops expired state. Call it before any change.
    fn touch(&self, state: &mut State, at: u64) {
        if self.quota.remaining(&state.own, at) > 0 {
            state.soft_since = None;
        }
    }

    pub(super) fn charge(&self, state: &mut State, at: u64, ask: Ask, wait: i128) {
        if ask.cost == 0 {
            return;
        }
        self.touch(state, at);
        let is_strict = self.quota.fits(&state.own, at, ask) || !self.passes(state, at, ask);
        if !is_strict && let Some(second) = &self.elastic {
            return second.charge(&mut state.elastic, at, ask.cost, 0);
        }
        if !is_strict {
            state.soft_since.get_or_insert(at);
        }
        let start = if self.quota.queues { ceil(wait, self.tick) * self.tick } else { 0 };
        self.quota.charge(&mut state.own, at, ask.cost, start);
        self.note_merged(state, at);
    }

    /// Starts a block, unless the request could never be allowed.
    pub(super) fn refuse(&self, state: &mut State, at: u64, ask: Ask) {
        let most = self.soft.as_ref().map_or(self.quota.limit, |(larger, _)| larger.limit);
        if let Some(lasts) = self.block
            && ask.cost <= most
            && at >= state.blocked_until
        {
            state.blocked_until = at + lasts;
        }
    }

    pub(super) fn settle_up(&self, state: &mut State, at: u64, amount: i64) {
        if self.quota.queues {
            return;
        }
        self.touch(state, at);
        let (definition, now) = (self.quota.definition, self.quota.now(at));
        if amount < 0 {
            definition.refund(&mut state.own, now, amount.unsigned_abs());
            self.touch(state, at);
        } else {
            let most = self.quota.limit + self.max_debt;
            definition.owe(&mut state.own, now, amount.unsigned_abs(), most);
            self.note_merged(state, at);
        }
    }

    fn note_merged(&self, state: &mut State, at: u64) {
        let soft = self.soft.as_ref().map_or(0, |(larger, _)| larger.limit);
        let most = soft.max(self.quota.limit + self.max_debt);
        let Definition::SlidingLog { .. } = self.quota.definition else { return };
        state.is_merged |= self.quota.definition.used(&state.own, self.quota.now(at)) > most;
    }

    /// `remaining` and `reset_us`.
    pub(super) fn level(&self, state: &State, at: u64) -> (u64, u64) {
        let remaining = |wait: u64| self.quota.remaining(&state.own, at + wait * 1_000);
        let now = remaining(0);
        let is_full = now == self.quota.limit && self.quota.ahead(&state.own, at) == 0;
        let reset = if is_full { Some(0) } else { first(|wait| remaining(wait) > now) };
        (now, reset.unwrap())
    }
}

/// A wait in whole microseconds, rounded up.
pub(super) fn micros(parts: i128) -> u64 {
    narrow(ceil(parts, PARTS * 1_000))
}
