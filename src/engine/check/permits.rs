//! Checks of concurrency limits, by the leases in progress and, of a fleet limit, by the permits of this host.

use super::{CheckContext, StageCheck};
use crate::clock::Now;
use crate::engine::fleet::SharedKey;
use crate::engine::shards::Shard;
use crate::engine::tag::{PINNED, TableState, Tag};
use crate::limit::concurrency::Permits;
use crate::limit::concurrency::{ConcurrencyQuota, LeaseCount};
use crate::limit::{Outcome, QuotaLevel};

impl StageCheck {
    /// Judges one more lease, regardless of the cost.
    pub(super) fn judge_lease(&self, quota: &ConcurrencyQuota, now: Now, shard: &Shard) -> Outcome {
        let (permits, in_use) = (shard.permits.find(&self.digest), shard.in_use(&self.digest));
        let outcome = quota.judge(permits, in_use, now.at);
        // A rule in shadow delays no request: it goes by the last reply.
        let passes = !self.enforced && quota.may_pass_elsewhere(permits, in_use, now.at);
        if passes { Outcome::Pass } else { outcome }
    }

    pub(super) fn lease_level(&self, quota: &ConcurrencyQuota, now: Now, shard: &Shard) -> QuotaLevel {
        quota.level(shard.permits.find(&self.digest), shard.in_use(&self.digest), now.at)
    }

    /// Counts a lease until its end.
    pub(super) fn charge_lease(
        &mut self,
        quota: &ConcurrencyQuota,
        context: &CheckContext<'_>,
        shard: &mut Shard,
    ) {
        shard.begin_progress(self.digest, context.shards, context.now);
        // The sync task learns of the leases of a limit that is shared with a fleet.
        if let Some(budget) = quota.budget() {
            let (key, in_use, now) =
                (SharedKey::new(self.key, budget), shard.in_use(&self.digest), context.now);
            let record = |permits: &mut Permits| permits.record_start(in_use, now.at);
            context.shards.change_permits(shard, &key, self.digest, now, record);
        }
        self.level = Some(self.lease_level(quota, context.now, shard));
    }

    /// Returns whether a remote check might bring the missing permit.
    pub(super) fn lacks_permit(
        &self,
        quota: &ConcurrencyQuota,
        by_what_is_known: bool,
        now: Now,
        shard: &Shard,
    ) -> bool {
        let permits = shard.permits.find(&self.digest);
        match by_what_is_known {
            true => quota.may_pass_elsewhere(permits, shard.in_use(&self.digest), now.at),
            false => quota.may_obtain(permits, now.at),
        }
    }
}

impl TableState for LeaseCount {
    fn nanos_until_fresh(&self, _: Tag, _: Now) -> u64 {
        if self.count() == 0 { 0 } else { u64::MAX }
    }

    /// Pinned: after an eviction, the key would admit more than its limit.
    fn weight(&self, _: Tag) -> u16 {
        PINNED
    }
}

impl TableState for Permits {
    fn nanos_until_fresh(&self, _: Tag, now: Now) -> u64 {
        self.nanos_until_droppable(now.at)
    }

    /// Pinned: other hosts rely on this record.
    fn weight(&self, _: Tag) -> u16 {
        PINNED
    }
}
