//! All or nothing: every rule is judged on the state as it was, then every state is committed.
//!
//! All shards that a request touches are locked for the whole of it, in ascending order, so no two requests can
//! both take the last token, none sees half of another's charges, and none waits in a circle.

use arrayvec::ArrayVec;
use parking_lot::MutexGuard;

use super::counters::Slot;
use super::digest::Digest;
use super::ruling::Terms;
use super::shards::{SHARDS, Shard, Shards};
use crate::clock::Now;
use crate::limit::Outcome;
use crate::limit::token_bucket::Gcra;
use crate::rules::Rule;

/// One rule's part in one judgement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    /// The rule's number in its domain.
    pub(super) rule: u32,
    /// Where the rule is counted.
    pub(super) slot: Slot,
    /// Whether its refusal refuses the request.
    pub(super) enforced: bool,
    /// What the rule says, once judged.
    pub(super) outcome: Outcome,
    /// The key's state: as it was, and once charged as it then is.
    pub(super) state: Gcra,
    cost: u32,
    digest: Digest,
    charged: Gcra,
    place: Option<usize>,
}

impl Part {
    #[inline]
    pub(super) fn new(rule: u32, terms: &Terms, cost: u32, digest: Digest, fresh: Gcra) -> Part {
        Part {
            rule,
            slot: terms.slot,
            enforced: terms.enforced,
            outcome: Outcome::Pass,
            state: fresh,
            cost,
            digest,
            charged: fresh,
            place: None,
        }
    }

    /// The rule and what tells its keys apart.
    pub(super) fn fingerprint(&self) -> (u32, u64) {
        (self.rule, self.digest.hash())
    }

    /// Looks the key up and judges it. Changes nothing but what this part knows.
    #[inline]
    fn judge(&mut self, shard: &Shard, rules: &[Rule], now: Now) {
        let Some(rule) = rules.get(self.rule as usize) else { return };
        if let Some((place, state)) = shard.buckets.find(&self.digest) {
            self.place = Some(place);
            self.state = state;
        }
        (self.outcome, self.charged) = self.state.judge(&rule.quota, now.at, self.cost);
    }

    /// Whether a commit changes its key.
    #[inline]
    fn is_charged(&self) -> bool {
        self.outcome == Outcome::Pass && self.cost > 0
    }

    /// Whether the request is refused by it.
    #[inline]
    pub(super) fn refuses(&self) -> bool {
        self.enforced && self.outcome != Outcome::Pass
    }
}

/// Judges every part and, if all enforced ones pass and it is asked for, charges every part that passes. Returns
/// whether all enforced ones pass.
#[inline]
pub(super) fn admit(shards: &Shards, rules: &[Rule], parts: &mut [Part], charge: bool, now: Now) -> bool {
    if let [part] = parts {
        return admit_one(shards, rules, part, charge, now);
    }
    admit_all(shards, rules, parts, charge, now)
}

/// Most requests match one rule: one lock, no list of locks, and the key is looked up once.
#[inline]
fn admit_one(shards: &Shards, rules: &[Rule], part: &mut Part, charge: bool, now: Now) -> bool {
    let Some(rule) = rules.get(part.rule as usize) else { return true };
    let mut shard = shards.lock(shards.of(&part.digest));
    let kept = shard.buckets.find_mut(&part.digest);
    if let Some(state) = &kept {
        part.state = **state;
    }
    (part.outcome, part.charged) = part.state.judge(&rule.quota, now.at, part.cost);
    let passes = !part.refuses();
    if charge && part.is_charged() {
        part.state = part.charged;
        match kept {
            Some(state) => *state = part.charged,
            None => shards.insert(&mut shard, part.digest, part.charged, now.at),
        }
    }
    passes
}

/// The same for any number of parts.
fn admit_all(shards: &Shards, rules: &[Rule], parts: &mut [Part], charge: bool, now: Now) -> bool {
    let mut locked = Locked { held: 0, guards: ArrayVec::new_const() };
    locked.lock(shards, parts);
    for part in &mut *parts {
        part.judge(locked.shard(shards, &part.digest), rules, now);
    }
    let passes = !parts.iter().any(Part::refuses);
    if passes && charge {
        commit(shards, &mut locked, parts, now);
    }
    passes
}

/// Charges what passed. Keys that are there first: adding one may move the others.
fn commit(shards: &Shards, locked: &mut Locked<'_>, parts: &mut [Part], now: Now) {
    for part in parts.iter_mut().filter(|part| part.is_charged()) {
        part.state = part.charged;
        if let Some(place) = part.place {
            locked.shard(shards, &part.digest).buckets.update(place, part.charged);
        }
    }
    for part in parts.iter().filter(|part| part.is_charged() && part.place.is_none()) {
        shards.insert(locked.shard(shards, &part.digest), part.digest, part.charged, now.at);
    }
}

/// The shards of one judgement, locked.
struct Locked<'e> {
    /// A bit for each shard held: guards stand in the order of their bits.
    held: u64,
    guards: ArrayVec<MutexGuard<'e, Shard>, SHARDS>,
}

impl<'e> Locked<'e> {
    /// Locks the shards of all parts. In place: a kilobyte of guards is not to be moved.
    #[inline]
    fn lock(&mut self, shards: &'e Shards, parts: &[Part]) {
        self.held = parts.iter().fold(0, |held, part| held | 1 << shards.of(&part.digest));
        let mut wanted = self.held;
        while wanted != 0 {
            self.guards.push(shards.lock(wanted.trailing_zeros() as usize));
            wanted &= wanted - 1;
        }
    }

    #[inline]
    fn shard(&mut self, shards: &Shards, digest: &Digest) -> &mut Shard {
        let below = self.held & ((1 << shards.of(digest)) - 1);
        let guard = below.count_ones() as usize;
        #[allow(clippy::indexing_slicing, reason = "every part's shard was locked, so its guard is there")]
        &mut self.guards[guard]
    }
}
