//! A table copied piece by piece while it is in use, and filled again.

use super::{Entry, SMALLEST, Table, allocation_size, capacity};
use crate::clock::Now;
use crate::engine::digest::Digest;
use crate::engine::memory::Memory;
use crate::engine::tag::Fading;

/// Where copying a table stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::engine) struct Progress {
    /// The next bucket.
    next: usize,
    /// How the table lay when its first bucket was copied.
    layout: u64,
}

/// What copying a piece has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Copied {
    /// There is more.
    Some(Progress),
    /// That was the last.
    All,
    /// The table was laid out anew meanwhile: what was copied may lack keys, so begin again.
    Moved,
}

impl<S: Fading + Clone> Table<S> {
    /// Copies what is not as good as new of the next buckets: at most so many of them, and no more once the copies hold
    /// so many bytes outside of themselves.
    pub(in crate::engine) fn copy_piece(
        &self,
        from: Progress,
        (buckets, bytes): (usize, usize),
        now: Now,
        copies: &mut Vec<(Digest, S)>,
    ) -> Copied {
        // Nothing was copied of it yet: however it lies is well.
        if from.next > 0 && from.layout != self.layout {
            return Copied::Moved;
        }
        let from = from.next;
        let all = self.entries.num_buckets();
        let end = all.min(from.saturating_add(buckets));
        let mut outside = 0;
        for place in from..end {
            let Some(entry) = self.entries.get_bucket(place) else { continue };
            if entry.nanos_until_fresh(now) > 0 {
                outside += entry.state.heap_bytes();
                copies.push((entry.digest, entry.state.clone()));
            }
            if outside >= bytes && place + 1 < all {
                return Copied::Some(Progress { next: place + 1, layout: self.layout });
            }
        }
        if end < all { Copied::Some(Progress { next: end, layout: self.layout }) } else { Copied::All }
    }
}

impl<S: Fading> Table<S> {
    /// Puts a key back, in the place of what is kept under it. Returns how many others, not yet fresh, had to go for it.
    pub(in crate::engine) fn put(&mut self, digest: Digest, state: S, memory: &Memory, now: Now) -> u64 {
        self.remove(&digest, memory);
        self.insert(digest, state, memory, now)
    }

    /// Makes room for so many keys more at once, if the budget allows: to grow on the way would move each of them twice.
    pub(in crate::engine) fn reserve(&mut self, keys: usize, memory: &Memory) {
        let wanted = self.entries.len().saturating_add(keys.min(RESERVED_MAX));
        let mut buckets = SMALLEST;
        while capacity(buckets) < wanted {
            buckets *= 2;
        }
        let bytes = allocation_size::<Entry<S>>(buckets);
        if wanted <= self.entries.capacity() || !memory.claim(self.kind, bytes) {
            return;
        }
        let claimed = self.bytes() + bytes;
        self.layout += 1;
        self.entries.reserve(wanted - self.entries.len(), Entry::hash);
        memory.settle(self.kind, claimed, self.bytes());
    }
}

/// More keys than the largest budget has room for in one shard.
const RESERVED_MAX: usize = 1 << 32;
