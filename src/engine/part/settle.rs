//! What is charged, or given back, after the fact.

use super::{Case, Law, Part};
use crate::engine::algorithm::{Algorithm, each_algorithm};
use crate::engine::shards::Shard;
use crate::limit::Quota;
use crate::rules::Over;

impl Part {
    /// Charges, or with a negative amount gives back, after the fact.
    pub(in crate::engine) fn settle_up(&mut self, amount: i64, case: &Case<'_>, shard: &mut Shard) {
        let Some(law) = self.law(case) else { return };
        let is_pace_or_place =
            matches!(law.allowance.quota, Quota::LeakyBucket(_) | Quota::Concurrency(_) | Quota::Places(_));
        if amount == 0 || is_pace_or_place {
            return;
        }
        self.adopt(&law, case.now, shard);
        each_algorithm!(&law.allowance.quota, quota => self.settle_up_by(quota, amount, &law, case, shard));
    }

    fn settle_up_by<A: Algorithm>(
        &self,
        quota: &A,
        amount: i64,
        law: &Law<'_>,
        case: &Case<'_>,
        shard: &mut Shard,
    ) {
        let units = u32::try_from(amount.unsigned_abs()).unwrap_or(u32::MAX);
        if amount < 0 && A::table(shard).find(&self.digest).is_none() {
            // Full as it is.
            return;
        }
        let had_some = self.soft_ends(quota, case, shard).is_none();
        self.change(self.digest, quota, case, shard, |state| {
            if amount < 0 {
                quota.give_back(state, case.now, units);
            } else {
                quota.owe(state, case.now, units, law.allowance.max_debt);
            }
        });
        if matches!(law.allowance.over, Over::Soft(_)) && shard.softs.find(&self.digest).is_some() {
            let has_some = self.soft_ends(quota, case, shard).is_none();
            self.keep_soft(quota, had_some || has_some, case, shard);
        }
    }
}
