//! Blocks: a key that was refused once stays refused for a time.

use super::{CheckContext, StageCheck};
use crate::clock::{Micros, Now, Timestamp};
use crate::engine::shards::Shard;
use crate::engine::tag::BlockedUntil;
use crate::limit::{Outcome, QuotaLevel};

impl StageCheck {
    #[inline]
    pub(in crate::engine) fn refused_until(mut self, until: Timestamp) -> StageCheck {
        self.blocked_until = self.blocked_until.max(until);
        self
    }

    /// Returns the remaining block of the key. An expired block has no effect until it is swept.
    pub(super) fn block_remaining(&self, now: Now, shard: &Shard) -> Micros {
        let ends = shard.blocks.find(&self.digest).map_or(now.at, |BlockedUntil(ends)| *ends);
        round_up_to_micros(ends.since(now.at))
    }

    pub(in crate::engine) fn operator_block_remaining(&self, now: Now) -> Micros {
        round_up_to_micros(self.blocked_until.since(now.at))
    }

    /// Without a limit only an operator's block refuses a key, which then has a level of 0.
    pub(super) fn judge_unlimited(&mut self, case: &CheckContext<'_>) {
        let left = self.operator_block_remaining(case.now);
        if left > Micros::ZERO && self.cost > 0 {
            self.outcome = Outcome::Later(left);
            self.level = Some(QuotaLevel { limit: 0, window: Micros::ZERO, remaining: 0, reset: left });
        }
    }

    /// Starts the block of a limit that refuses with `Later`, and judges again to include it in the wait.
    pub(in crate::engine) fn block_key(&mut self, case: &CheckContext<'_>, shard: &mut Shard) {
        let Some(lasts) = self.find_limit(case).and_then(|law| law.limit.block) else { return };
        // An operator's block is no refusal by the limit.
        if !matches!(self.outcome, Outcome::Later(_)) || self.blocked_until > case.now.at {
            return;
        }
        if let Some(block) = shard.blocks.find_mut(&self.digest) {
            if block.0 > case.now.at {
                // Further requests do not extend the block.
                return;
            }
            *block = BlockedUntil(case.now.at.after(lasts));
        } else {
            let block = BlockedUntil(case.now.at.after(lasts));
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

fn round_up_to_micros(span: std::time::Duration) -> Micros {
    Micros(u64::try_from(span.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX))
}
