//! Another secret makes the keys of the fleet from now on: what this host knows of a key goes along, to be found under its new
//! digest. Only a request tells both digests, so it happens with the first request of each key, and only where nothing is
//! found under the new one: whatever is found costs no look more.

use super::Engine;
use super::digest::{Digest, Salt};
use super::fleet::{Fleet, SharedKey};
use super::judgement::Judgement;
use super::shards::Shard;
use super::sync::MutexGuard;
use super::tag::Tag;
use super::workspace::Workspace;
use crate::clock::Now;
use crate::limit::share::{Folded, Quota};

/// A key that is known by another digest from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// By which it is known.
    pub key: SharedKey,
    /// By which it was.
    pub former: SharedKey,
}

/// What lies under the former digest of a key of some quota is to lie under its new one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Former {
    /// The part of the judgement that it is about.
    pub(super) part: usize,
    /// The digest of the key under the secret of before.
    pub(super) key: Digest,
}

impl Engine {
    /// Makes keys with another of the secrets that were joined with, for every rule at once; for some time, what was known
    /// of a key under the former one goes along. Decisions go on meanwhile.
    pub fn use_secret(&self, uses: usize, former: Option<usize>) {
        if self.fleet.turn(uses, former) {
            self.enact_now();
        }
    }

    /// Takes the keys that are known by another digest since it was last asked.
    pub fn take_moved(&self, moved: &mut Vec<Moved>) {
        moved.append(&mut self.fleet.moved.lock());
    }

    /// Takes the keys that have called since it was last asked, and those that are known by another digest: no key has called
    /// by its new one of which nobody was told that it has one.
    pub fn take_calls_and_moved(&self, calls: &mut Vec<SharedKey>, moved: &mut Vec<Moved>) {
        // A key is moved before it calls. The other way round one could do both in between.
        self.take_calls(calls);
        self.take_moved(moved);
    }

    /// Brings along what is known of a key, if nothing is known of it under its new digest. From then on something is.
    pub(super) fn bring_along(
        &self,
        (former, key): (Digest, Digest),
        (tag, salt): (Tag, Salt),
        quota: &Quota,
        now: Now,
    ) {
        let Some(budget) = quota.budget() else { return };
        let (old, new) = (former.of(tag, salt), key.of(tag, salt));
        let (of_old, of_new) = (self.shards.of(&old), self.shards.of(&new));
        if self.shards.lock(of_new).shares.find(&new).is_some() {
            return;
        }
        // Both at once, in the order of all: else of two requests one would begin afresh while the other moves it.
        let mut first = self.shards.lock(of_old.min(of_new));
        let mut second = (of_old != of_new).then(|| self.shards.lock(of_old.max(of_new)));
        if shard(&mut first, &mut second, of_new <= of_old).shares.find(&new).is_some() {
            return;
        }
        let mut moved = self.fleet.moved.lock();
        if moved.len() >= MOVED_MAX {
            return;
        }
        let memory = self.shards.memory();
        let there = shard(&mut first, &mut second, of_old <= of_new);
        let (state, block) = (there.shares.take(&old, memory), there.blocks.take(&old, memory));
        let (tag, state) = state.unwrap_or_else(|| (tag, Folded::fresh(quota, now.at)));
        let here = shard(&mut first, &mut second, of_new <= of_old);
        let evicted = here.shares.insert(new.tagged(tag), state, memory, now);
        self.shards.count_evictions(evicted);
        if let Some((tag, block)) = block {
            here.blocks.insert_if_room(new.tagged(tag), block, memory);
        }
        let (key, former) = (SharedKey::new(key, budget), SharedKey::new(former, budget));
        if let Some(paid_us) = self.fleet.returned.take(&former) {
            self.fleet.returned.note(&key, paid_us);
        }
        moved.push(Moved { key, former });
    }
}

/// The first of two shards that are locked, or the second; of one it is the same.
fn shard<'s>(
    first: &'s mut MutexGuard<'_, Shard>,
    second: &'s mut Option<MutexGuard<'_, Shard>>,
    is_first: bool,
) -> &'s mut Shard {
    match second {
        Some(second) if !is_first => second,
        _ => first,
    }
}

impl Judgement<'_> {
    /// What is known of the keys of a request goes along.
    pub(super) fn bring_along(&self, workspace: &Workspace) {
        for Former { part, key } in &workspace.formers {
            if let Some(part) = workspace.parts.get(*part) {
                part.bring_along(self.engine, *key, &self.case(None));
            }
        }
    }
}

impl Fleet {
    /// Whether it is a change.
    fn turn(&self, uses: usize, former: Option<usize>) -> bool {
        let Some(joined) = self.joined.get() else { return false };
        let mut turn = joined.turn.lock();
        let before = *turn;
        let former = former.filter(|former| *former != uses);
        (turn.uses, turn.former) = (uses, former);
        *turn != before
    }
}

/// Keys that wait to be told of. They are taken every few milliseconds, which is time for some thousand; of one for which there
/// is no room the cell in Redis does not go along.
const MOVED_MAX: usize = 1 << 18;
