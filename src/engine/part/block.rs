//! Blocks: a key that was refused once stays refused for a time.

use super::{Case, StagePart};
use crate::clock::{Micros, Now, Timestamp};
use crate::engine::shards::Shard;
use crate::engine::tag::Until;
use crate::limit::{Outcome, QuotaLevel};

impl StagePart {
    #[inline]
    pub(in crate::engine) fn refused_until(mut self, until: Timestamp) -> StagePart {
        self.blocked_until = self.blocked_until.max(until);
        self
    }

    /// Returns the remaining block of the key. An expired block has no effect until it is swept.
    pub(super) fn blocked_for(&self, now: Now, shard: &Shard) -> Micros {
        let ends = shard.blocks.find(&self.digest).map_or(now.at, |Until(ends)| *ends);
        micros_up(ends.since(now.at))
    }

    pub(in crate::engine) fn blocked_by_hand(&self, now: Now) -> Micros {
        micros_up(self.blocked_until.since(now.at))
    }

    /// Without a limit only an operator's block refuses a key, which then has a level of 0.
    pub(super) fn judge_unlimited(&mut self, case: &Case<'_>) {
        let left = self.blocked_by_hand(case.now);
        if left > Micros::ZERO && self.cost > 0 {
            self.outcome = Outcome::Later(left);
            self.level = Some(QuotaLevel { limit: 0, window: Micros::ZERO, remaining: 0, reset: left });
        }
    }

    /// Starts the block of a limit that refuses with `Later`, and judges again to include it in the wait.
    pub(in crate::engine) fn block(&mut self, case: &Case<'_>, shard: &mut Shard) {
        let Some(lasts) = self.law(case).and_then(|law| law.limit.block) else { return };
        // An operator's block is no refusal by the limit.
        if !matches!(self.outcome, Outcome::Later(_)) || self.blocked_until > case.now.at {
            return;
        }
        if let Some(block) = shard.blocks.find_mut(&self.digest) {
            if block.0 > case.now.at {
                // Further requests do not extend the block.
                return;
            }
            *block = Until(case.now.at.after(lasts));
        } else {
            let block = Until(case.now.at.after(lasts));
            if !shard.blocks.insert_if_room(self.digest, block, case.shards.memory()) {
                // A block must not evict another key's: without room the limit itself still refuses.
                case.shards.count_evictions(1);
                return;
            }
        }
        self.look_up(case, shard);
        self.judge(case, shard);
    }
}

fn micros_up(span: std::time::Duration) -> Micros {
    Micros(u64::try_from(span.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX))
}
