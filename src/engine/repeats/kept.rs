//! Grants copied out and put back. Which rules their numbers mean is known as long as the rules are the same.

use super::{Grant, Granted, Repeats};
use crate::clock::{Micros, Now};
use crate::engine::digest::Digest;
use crate::engine::kept::{Kept, KeptGrant, KeptKey, KeptLevel, copy_pieces};
use crate::engine::shards::Shards;
use crate::limit::Level;

impl Repeats {
    /// Copies all grants; those under this rule set are current.
    pub(in crate::engine) fn copy_out(&self, ruling: u64, now: Now, visit: &mut dyn FnMut(Kept)) {
        for shard in &self.shards {
            let piece = &mut |from, size, copies: &mut Vec<(Digest, Granted)>| {
                shard.lock().copy_piece(from, size, now, copies)
            };
            copy_pieces(piece, &mut |name, granted| {
                visit(Kept::Repeat(Box::new(kept(name, granted, ruling))));
            });
        }
    }

    /// Puts one grant back, as one of this rule set.
    pub(in crate::engine) fn put_back(&self, kept: KeptGrant, ruling: u64, shards: &Shards, now: Now) {
        let (digest, granted) = granted(kept, ruling);
        if let Some(shard) = self.shards.get(digest.shard(super::SHARDS)) {
            let evicted = shard.lock().put(digest, granted, shards.memory(), now);
            shards.count_evictions(evicted);
        }
    }
}

fn kept(name: KeptKey, granted: Granted, ruling: u64) -> KeptGrant {
    let Granted { asks, grant } = granted;
    let binding = grant.binding.map(|(number, name, level)| (number, name, kept_level(level)));
    KeptGrant {
        name,
        asks,
        at: grant.at,
        verdict: grant.verdict,
        wait_micros: grant.wait.0,
        lease: grant.lease,
        binding,
        listed: grant.listed,
        notes: grant.notes.into_vec(),
        all: grant.all.iter().map(|(rule, level)| (*rule, kept_level(*level))).collect(),
        is_current: grant.ruling == ruling,
    }
}

fn granted(kept: KeptGrant, ruling: u64) -> (Digest, Granted) {
    let grant = Grant {
        at: kept.at,
        verdict: kept.verdict,
        wait: Micros(kept.wait_micros),
        lease: kept.lease,
        binding: kept.binding.map(|(number, name, kept)| (number, name, level(kept))),
        listed: kept.listed,
        notes: kept.notes.into(),
        all: kept.all.into_iter().map(|(rule, kept)| (rule, level(kept))).collect(),
        // No rule set that was ever in force has the number zero.
        ruling: if kept.is_current { ruling } else { 0 },
    };
    (kept.name.digest(), Granted { asks: kept.asks, grant: Box::new(grant) })
}

fn kept_level(level: Level) -> KeptLevel {
    KeptLevel {
        limit: level.limit,
        window_micros: level.window.0,
        remaining: level.remaining,
        reset_micros: level.reset.0,
    }
}

fn level(kept: KeptLevel) -> Level {
    Level {
        limit: kept.limit,
        window: Micros(kept.window_micros),
        remaining: kept.remaining,
        reset: Micros(kept.reset_micros),
    }
}
