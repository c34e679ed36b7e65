//! The block of a key that was refused: once refused, refused for a time.

use super::{Case, Part};
use crate::clock::{Micros, Now, Timestamp};
use crate::engine::shards::Shard;
use crate::engine::tag::Until;
use crate::limit::{Level, Outcome};

impl Part {
    /// Refused until then at least, because somebody said so.
    #[inline]
    pub(in crate::engine) fn refused_until(mut self, until: Timestamp) -> Part {
        self.blocked_until = self.blocked_until.max(until);
        self
    }

    /// How long the key is blocked. A block that has ended lies there until it is swept away, and means nothing.
    pub(super) fn blocked_for(&self, now: Now, shard: &Shard) -> Micros {
        let ends = shard.blocks.find(&self.digest).map_or(now.at, |Until(ends)| *ends);
        micros_up(ends.since(now.at))
    }

    /// How long somebody said that the key is refused.
    pub(in crate::engine) fn blocked_by_hand(&self, now: Now) -> Micros {
        micros_up(self.blocked_until.since(now.at))
    }

    /// Without a limit nothing but somebody's word refuses a key. What it has is nothing then.
    pub(super) fn judge_unlimited(&mut self, case: &Case<'_>) {
        let left = self.blocked_by_hand(case.now);
        if left > Micros::ZERO && self.cost > 0 {
            self.outcome = Outcome::Later(left);
            self.level = Some(Level { limit: 0, window: Micros::ZERO, remaining: 0, reset: left });
        }
    }

    /// Starts the block of a limit that has refused what it could pass later. It is told as part of the wait.
    pub(in crate::engine) fn block(&mut self, case: &Case<'_>, shard: &mut Shard) {
        let Some(lasts) = self.law(case).and_then(|law| law.limit.block) else { return };
        // What somebody said is no refusal of its own.
        if !matches!(self.outcome, Outcome::Later(_)) || self.blocked_until > case.now.at {
            return;
        }
        if let Some(block) = shard.blocks.find_mut(&self.digest) {
            if block.0 > case.now.at {
                // What comes meanwhile does not extend it.
                return;
            }
            *block = Until(case.now.at.after(lasts));
        } else {
            let block = Until(case.now.at.after(lasts));
            if !shard.blocks.insert_if_room(self.digest, block, case.shards.memory()) {
                // Without room nobody is let go for it: the limit itself goes on refusing.
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
