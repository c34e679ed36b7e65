//! The soft part of an allowance: whether it is open to a key, and since when it is in use.

use super::{CheckContext, LimitedBy, OverQuota, StageCheck};
use crate::clock::{Micros, Now, Timestamp};
use crate::engine::algorithm::AlgorithmTable;
use crate::engine::shards::Shard;
use crate::engine::table::AnyTable;
use crate::engine::tag::{TableState, Tag};
use crate::limit::Outcome;

impl StageCheck {
    /// Judges by the soft part where the quota refuses. `one`: the wait until one unit of the quota is left.
    pub(super) fn judge_soft(
        &mut self,
        strict: Outcome,
        lenient: Outcome,
        one: Micros,
        limited_by: &LimitedBy<'_>,
        context: &CheckContext<'_>,
        shard: &Shard,
    ) -> Outcome {
        let since =
            shard.soft_states.find(&self.digest).filter(|_| one > Micros::ZERO).map(|soft| soft.since);
        let is_spent = |after: Micros| {
            let ends = since.zip(limited_by.limit.soft_for).map(|(since, lasts)| since.after(lasts));
            ends.is_some_and(|ends| context.now.at.after(after.into()) >= ends)
        };
        let wait = match lenient {
            Outcome::Never => return Outcome::Never,
            Outcome::Pass | Outcome::Queued(_) => Micros::ZERO,
            Outcome::Later(wait) => wait,
        };
        if !is_spent(wait) {
            if wait > Micros::ZERO {
                return Outcome::Later(wait);
            }
            self.beyond = Some(OverQuota::Soft);
            return Outcome::Pass;
        }
        // The soft part is closed until one unit is left, unless the quota has enough before.
        let on_again = wait.max(one);
        match strict {
            Outcome::Later(strict) => Outcome::Later(strict.min(on_again)),
            _ => Outcome::Later(on_again),
        }
    }

    /// Returns when one unit of the quota will be left; `None`: one is left now.
    pub(super) fn soft_end<A: AlgorithmTable>(
        &self,
        quota: &A,
        context: &CheckContext<'_>,
        shard: &Shard,
    ) -> Option<Timestamp> {
        let state = A::table(shard).find(&self.digest)?;
        let wait = wait_for_one(quota, state, context.now);
        (wait > Micros::ZERO).then(|| context.now.at.after(wait.into()))
    }

    /// Records since when the key uses its soft part, or removes the record. `had_some`: some of the quota
    /// was left before this charge, so an earlier record is void.
    pub(super) fn record_soft_use<A: AlgorithmTable>(
        &self,
        quota: &A,
        had_some: bool,
        context: &CheckContext<'_>,
        shard: &mut Shard,
    ) {
        let memory = context.shards.memory();
        let ends = self.soft_end(quota, context, shard);
        let known = shard.soft_states.find(&self.digest).copied().filter(|_| !had_some);
        let since = match (known, self.beyond) {
            (Some(soft), _) => Some(soft.since),
            (None, Some(OverQuota::Soft)) => Some(context.now.at),
            (None, _) => None,
        };
        match since.zip(ends) {
            Some((since, ends)) => {
                let soft = SoftState { since, ends };
                let (_, evicted) =
                    shard.soft_states.change(self.digest, memory, context.now, || soft, |kept| *kept = soft);
                context.shards.count_evictions(evicted);
            }
            None => {
                shard.soft_states.remove(&self.digest, memory);
            }
        }
    }
}

pub(super) fn wait_for_one<A: AlgorithmTable>(quota: &A, state: &A::State, now: Now) -> Micros {
    match quota.judge(state, now, 1, None).0 {
        Outcome::Later(wait) => wait,
        // Never for one unit: the quota never has one.
        Outcome::Never => Micros(u64::MAX),
        Outcome::Pass | Outcome::Queued(_) => Micros::ZERO,
    }
}

/// The record of a key that exceeds its quota, as its rule permits for a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) struct SoftState {
    /// The first request passed above the quota since some of it was last left.
    pub(in crate::engine) since: Timestamp,
    /// When some of the quota will be left, without further requests.
    pub(in crate::engine) ends: Timestamp,
}

impl TableState for SoftState {
    fn nanos_until_fresh(&self, _: Tag, now: Now) -> u64 {
        self.ends.nanos_since(now.at)
    }
}
