//! Places that many hosts share, in the words of all algorithms. What is in progress is counted as on one host; how many
//! places this host has lies beside the count, in the same shard under the same digest.

use super::{
    Algorithm, Digest, Fading, Level, Micros, Now, Outcome, PINNED, Quota, Shard, Table, Tag, Wait, lives_in,
};
use crate::engine::part::Case;
use crate::limit::concurrency::InProgress;
use crate::limit::places::{self, Places};

impl Algorithm for places::Quota {
    type State = InProgress;

    const ADOPTS: bool = false;

    lives_in!(in_progress, Places);

    fn fresh(&self, _: Now) -> InProgress {
        InProgress::default()
    }

    /// Without a place of this host nothing begins.
    fn judge(&self, state: &InProgress, now: Now, _: u32, _: Option<Micros>) -> (Outcome, Wait) {
        (places::Quota::judge(self, None, state.count(), now.at), Wait::NONE)
    }

    fn judge_beside(
        &self,
        (shard, digest): (&Shard, &Digest),
        state: &InProgress,
        now: Now,
        _: u32,
        _: Option<Micros>,
    ) -> (Outcome, Wait) {
        (places::Quota::judge(self, shard.places.find(digest), state.count(), now.at), Wait::NONE)
    }

    fn charge(&self, state: &mut InProgress, _: Now, _: u32, _: Wait) {
        state.begin();
    }

    /// What is in progress is known, whatever is charged after the fact.
    fn owe(&self, _: &mut InProgress, _: Now, _: u32, _: u32) {}

    /// It ends with its lease.
    fn give_back(&self, _: &mut InProgress, _: Now, _: u32) {}

    fn level(&self, state: &InProgress, now: Now) -> Level {
        places::Quota::level(self, None, state.count(), now.at)
    }

    fn level_beside(&self, (shard, digest): (&Shard, &Digest), state: &InProgress, now: Now) -> Level {
        places::Quota::level(self, shard.places.find(digest), state.count(), now.at)
    }

    fn charged(
        &self,
        (key, digest): (Digest, Digest),
        _: Level,
        case: &Case<'_>,
        shard: &mut Shard,
    ) -> Level {
        let in_use = shard.in_use(&digest);
        note(self, (key, digest), case, shard, |places| places.begin(in_use, case.now.at));
        places::Quota::level(self, shard.places.find(&digest), in_use, case.now.at)
    }
}

/// Notes that the host's places did not do for a request.
pub(in crate::engine) fn note_refused(
    quota: &places::Quota,
    keys: (Digest, Digest),
    could_ask: bool,
    case: &Case<'_>,
    shard: &mut Shard,
) {
    note(quota, keys, case, shard, |places| places.refuse(could_ask, case.now.at));
}

/// Notes what came, for those elsewhere: as long as there are any.
fn note(
    quota: &places::Quota,
    (key, digest): (Digest, Digest),
    case: &Case<'_>,
    shard: &mut Shard,
    change: impl FnOnce(&mut Places),
) {
    let Some(budget) = quota.budget() else { return };
    let may_call = shard.place_calls.has_room();
    let change = |places: &mut Places| {
        places.move_to(budget);
        change(places);
        may_call && places.calls()
    };
    let (memory, fresh) = (case.shards.memory(), || Places::of(budget));
    let (calls, evicted) = shard.places.change(digest, memory, case.now, fresh, change);
    case.shards.count_evictions(evicted);
    if calls {
        shard.place_calls.push_place(key, budget, case.shards);
    }
}

impl Fading for Places {
    fn nanos_until_fresh(&self, _: Tag, now: Now) -> u64 {
        self.nanos_until_forgotten(now.at)
    }

    /// Whoever lets it go forgets what others count on.
    fn weight(&self, _: Tag) -> u16 {
        PINNED
    }
}
