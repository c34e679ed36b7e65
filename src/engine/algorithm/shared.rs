//! Fleet budgets and fleet concurrency limits as algorithms.

use super::{
    AlgorithmTable, Digest, Fading, Micros, Now, Outcome, PINNED, QueueWait, Quota, QuotaLevel, Shard,
    StateTable, Tag, lives_in,
};
use crate::engine::part::Case;
use crate::limit::concurrency::InProgress;
use crate::limit::places::{self, Permits};
use crate::limit::share::{self, Folded};

impl AlgorithmTable for share::ShareQuota {
    type State = Folded;

    const ADOPTS: bool = false;

    const IS_SHARED: bool = true;

    lives_in!(shares, Share);

    fn fresh(&self, now: Now) -> Folded {
        Folded::fresh(self, now.at)
    }

    fn judge(&self, state: &Folded, now: Now, cost: u32, _: Option<Micros>) -> (Outcome, QueueWait) {
        (state.unfold(self, now.at).judge(self, now.at, cost), QueueWait::NONE)
    }

    fn charge(&self, state: &mut Folded, now: Now, cost: u32, _: QueueWait) {
        state.change(self, now.at, |share| share.charge(self, now.at, cost));
    }

    fn admit(&self, state: &mut Folded, now: Now, cost: u32, _: Option<Micros>, _: bool) -> Outcome {
        state.change(self, now.at, |share| share.admit(self, now.at, cost))
    }

    #[inline]
    fn admit_at_once(&self, state: &mut Folded, now: Now, cost: u32) -> Option<QuotaLevel> {
        state.admit_at_once(self, now.at, cost)
    }

    fn note_refused(&self, state: &mut Folded, now: Now, cost: u32) {
        state.change(self, now.at, |share| share.refuse(self, now.at, cost));
    }

    fn calls(state: &mut Folded) -> bool {
        state.calls()
    }

    fn budget(&self) -> Option<u64> {
        share::ShareQuota::budget(self)
    }

    fn owe(&self, state: &mut Folded, now: Now, amount: u32, debt_max: u32) {
        state.change(self, now.at, |share| share.owe(self, now.at, amount, debt_max));
    }

    fn give_back(&self, state: &mut Folded, now: Now, amount: u32) {
        state.change(self, now.at, |share| share.give_back(self, now.at, amount));
    }

    fn level(&self, state: &Folded, now: Now) -> QuotaLevel {
        let level = state.unfold(self, now.at).level(self, now.at);
        // Without data from Redis about the window, the clock of this host determines its end.
        match self.window().filter(|_| level.reset == level.window) {
            Some(window) => QuotaLevel { reset: window.until_edge(now).min(level.window), ..level },
            None => level,
        }
    }
}

impl Fading for Folded {
    /// Never for a tracked state: evicted, it would lose its borrowed tokens.
    fn nanos_until_fresh(&self, tag: Tag, now: Now) -> u64 {
        self.nanos_until_fresh(tag.scale(), now.at)
    }

    fn heap_bytes(&self) -> usize {
        self.heap_bytes()
    }
}

impl AlgorithmTable for places::PermitQuota {
    type State = InProgress;

    const ADOPTS: bool = false;

    lives_in!(in_progress, Places);

    fn fresh(&self, _: Now) -> InProgress {
        InProgress::default()
    }

    /// Judges without permits of this host: while Redis is reachable nothing passes, else the fallback.
    fn judge(&self, state: &InProgress, now: Now, _: u32, _: Option<Micros>) -> (Outcome, QueueWait) {
        (places::PermitQuota::judge(self, None, state.count(), now.at), QueueWait::NONE)
    }

    fn judge_beside(
        &self,
        (shard, digest): (&Shard, &Digest),
        state: &InProgress,
        now: Now,
        _: u32,
        _: Option<Micros>,
    ) -> (Outcome, QueueWait) {
        (places::PermitQuota::judge(self, shard.places.find(digest), state.count(), now.at), QueueWait::NONE)
    }

    fn charge(&self, state: &mut InProgress, _: Now, _: u32, _: QueueWait) {
        state.begin();
    }

    /// No effect: leases alone count permits.
    fn owe(&self, _: &mut InProgress, _: Now, _: u32, _: u32) {}

    /// No effect: the permit is released with its lease.
    fn give_back(&self, _: &mut InProgress, _: Now, _: u32) {}

    fn level(&self, state: &InProgress, now: Now) -> QuotaLevel {
        places::PermitQuota::level(self, None, state.count(), now.at)
    }

    fn level_beside(&self, (shard, digest): (&Shard, &Digest), state: &InProgress, now: Now) -> QuotaLevel {
        places::PermitQuota::level(self, shard.places.find(digest), state.count(), now.at)
    }

    fn charged(
        &self,
        (key, digest): (Digest, Digest),
        _: QuotaLevel,
        case: &Case<'_>,
        shard: &mut Shard,
    ) -> QuotaLevel {
        let in_use = shard.in_use(&digest);
        note(self, (key, digest), case, shard, |places| places.begin(in_use, case.now.at));
        places::PermitQuota::level(self, shard.places.find(&digest), in_use, case.now.at)
    }
}

/// Records that the permits of this host did not suffice for a request.
pub(in crate::engine) fn note_refused(
    quota: &places::PermitQuota,
    keys: (Digest, Digest),
    could_ask: bool,
    case: &Case<'_>,
    shard: &mut Shard,
) {
    note(quota, keys, case, shard, |places| places.refuse(could_ask, case.now.at));
}

/// Applies a change to the key's permit record, for the sync task; only if the limit is shared with a fleet.
fn note(
    quota: &places::PermitQuota,
    (key, digest): (Digest, Digest),
    case: &Case<'_>,
    shard: &mut Shard,
    change: impl FnOnce(&mut Permits),
) {
    let Some(budget) = quota.budget() else { return };
    let may_call = shard.place_calls.has_room();
    let change = |places: &mut Permits| {
        places.move_to(budget);
        change(places);
        may_call && places.calls()
    };
    let (memory, fresh) = (case.shards.memory(), || Permits::of(budget));
    let (calls, evicted) = shard.places.change(digest, memory, case.now, fresh, change);
    case.shards.count_evictions(evicted);
    if calls {
        shard.place_calls.push_place(key, budget, case.shards);
    }
}

impl Fading for Permits {
    fn nanos_until_fresh(&self, _: Tag, now: Now) -> u64 {
        self.nanos_until_forgotten(now.at)
    }

    /// Pinned: other hosts rely on this record.
    fn weight(&self, _: Tag) -> u16 {
        PINNED
    }
}
