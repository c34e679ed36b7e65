//! Fleet budgets and fleet concurrency limits as algorithms.

use super::{
    AlgorithmTable, Digest, Micros, Now, Outcome, PINNED, QueueWait, Quota, QuotaLevel, Shard, StateTable,
    TableState, Tag, lives_in,
};
use crate::engine::part::CheckContext;
use crate::limit::concurrency::LeaseCount;
use crate::limit::places::{self, Permits};
use crate::limit::share::{self, CompactShare};

impl AlgorithmTable for share::ShareQuota {
    type State = CompactShare;

    const CONVERTS_STATES: bool = false;

    const IS_SHARED: bool = true;

    lives_in!(shares, FleetBudget);

    fn new_state(&self, now: Now) -> CompactShare {
        CompactShare::fresh(self, now.at)
    }

    fn judge(&self, state: &CompactShare, now: Now, cost: u32, _: Option<Micros>) -> (Outcome, QueueWait) {
        (state.unfold(self, now.at).judge(self, now.at, cost), QueueWait::NONE)
    }

    fn charge(&self, state: &mut CompactShare, now: Now, cost: u32, _: QueueWait) {
        state.update(self, now.at, |share| share.charge(self, now.at, cost));
    }

    fn admit(&self, state: &mut CompactShare, now: Now, cost: u32, _: Option<Micros>, _: bool) -> Outcome {
        state.update(self, now.at, |share| share.admit(self, now.at, cost))
    }

    #[inline]
    fn admit_at_once(&self, state: &mut CompactShare, now: Now, cost: u32) -> Option<QuotaLevel> {
        state.admit_fast(self, now.at, cost)
    }

    fn record_refusal(&self, state: &mut CompactShare, now: Now, cost: u32) {
        state.update(self, now.at, |share| share.record_refusal(self, now.at, cost));
    }

    fn take_sync_request(state: &mut CompactShare) -> bool {
        state.take_sync_due()
    }

    fn budget(&self) -> Option<u64> {
        share::ShareQuota::budget(self)
    }

    fn charge_debt(&self, state: &mut CompactShare, now: Now, amount: u32, debt_max: u32) {
        state.update(self, now.at, |share| share.charge_debt(self, now.at, amount, debt_max));
    }

    fn refund(&self, state: &mut CompactShare, now: Now, amount: u32) {
        state.update(self, now.at, |share| share.refund(self, now.at, amount));
    }

    fn level(&self, state: &CompactShare, now: Now) -> QuotaLevel {
        let level = state.unfold(self, now.at).level(self, now.at);
        // Without data from Redis about the window, the clock of this host determines its end.
        match self.window().filter(|_| level.reset == level.window) {
            Some(window) => QuotaLevel { reset: window.until_edge(now).min(level.window), ..level },
            None => level,
        }
    }
}

impl TableState for CompactShare {
    /// Never for a tracked state: evicted, it would lose its borrowed tokens.
    fn nanos_until_fresh(&self, tag: Tag, now: Now) -> u64 {
        self.nanos_until_fresh(tag.scale(), now.at)
    }

    fn heap_bytes(&self) -> usize {
        self.heap_bytes()
    }
}

impl AlgorithmTable for places::PermitQuota {
    type State = LeaseCount;

    const CONVERTS_STATES: bool = false;

    lives_in!(in_progress, FleetConcurrency);

    fn new_state(&self, _: Now) -> LeaseCount {
        LeaseCount::default()
    }

    /// Judges without permits of this host: while Redis is reachable nothing passes, else the fallback.
    fn judge(&self, state: &LeaseCount, now: Now, _: u32, _: Option<Micros>) -> (Outcome, QueueWait) {
        (places::PermitQuota::judge(self, None, state.count(), now.at), QueueWait::NONE)
    }

    fn judge_beside(
        &self,
        (shard, digest): (&Shard, &Digest),
        state: &LeaseCount,
        now: Now,
        _: u32,
        _: Option<Micros>,
    ) -> (Outcome, QueueWait) {
        (places::PermitQuota::judge(self, shard.permits.find(digest), state.count(), now.at), QueueWait::NONE)
    }

    fn charge(&self, state: &mut LeaseCount, _: Now, _: u32, _: QueueWait) {
        state.add_lease();
    }

    /// No effect: leases alone count permits.
    fn charge_debt(&self, _: &mut LeaseCount, _: Now, _: u32, _: u32) {}

    /// No effect: the permit is released with its lease.
    fn refund(&self, _: &mut LeaseCount, _: Now, _: u32) {}

    fn level(&self, state: &LeaseCount, now: Now) -> QuotaLevel {
        places::PermitQuota::level(self, None, state.count(), now.at)
    }

    fn level_beside(&self, (shard, digest): (&Shard, &Digest), state: &LeaseCount, now: Now) -> QuotaLevel {
        places::PermitQuota::level(self, shard.permits.find(digest), state.count(), now.at)
    }

    fn record_charge(
        &self,
        (key, digest): (Digest, Digest),
        _: QuotaLevel,
        case: &CheckContext<'_>,
        shard: &mut Shard,
    ) -> QuotaLevel {
        let in_use = shard.in_use(&digest);
        update_permits(self, (key, digest), case, shard, |places| places.record_start(in_use, case.now.at));
        places::PermitQuota::level(self, shard.permits.find(&digest), in_use, case.now.at)
    }
}

/// Records that the permits of this host did not suffice for a request.
pub(in crate::engine) fn note_refused(
    quota: &places::PermitQuota,
    keys: (Digest, Digest),
    could_ask: bool,
    case: &CheckContext<'_>,
    shard: &mut Shard,
) {
    update_permits(quota, keys, case, shard, |places| places.record_refusal(could_ask, case.now.at));
}

/// Applies a change to the key's permit record, for the sync task; only if the limit is shared with a fleet.
fn update_permits(
    quota: &places::PermitQuota,
    (key, digest): (Digest, Digest),
    case: &CheckContext<'_>,
    shard: &mut Shard,
    change: impl FnOnce(&mut Permits),
) {
    let Some(budget) = quota.budget() else { return };
    let may_call = shard.permit_sync_queue.has_room();
    let change = |places: &mut Permits| {
        places.set_budget(budget);
        change(places);
        may_call && places.take_sync_due()
    };
    let (memory, fresh) = (case.shards.memory(), || Permits::none_of(budget));
    let (calls, evicted) = shard.permits.change(digest, memory, case.now, fresh, change);
    case.shards.count_evictions(evicted);
    if calls {
        shard.permit_sync_queue.push_permit_key(key, budget, case.shards);
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
