//! One trait over all algorithms, so that judging and charging are written once.

pub(super) mod shared;

use super::digest::Digest;
use super::part::CheckContext;
use super::shards::Shard;
use super::table::StateTable;
use super::tag::{PINNED, TableState, Tag};
use crate::clock::{Micros, Now};
use crate::limit::concurrency::{self, LeaseCount};
use crate::limit::fixed_window::{self, FixedWindowState};
use crate::limit::leaky_bucket::{self, QueueWait};
use crate::limit::sliding_log::{self, SlidingLogState};
use crate::limit::sliding_window::{self, SlidingWindowState};
use crate::limit::token_bucket::{self, GcraState};
use crate::limit::{Outcome, Quota, QuotaLevel};

/// The quota of one algorithm, and the table that stores its states.
pub(super) trait AlgorithmTable {
    type State: TableState;

    /// Whether a state of other quotas must be converted before it is judged.
    const CONVERTS_STATES: bool;

    fn table(shard: &Shard) -> &StateTable<Self::State>;

    fn table_mut(shard: &mut Shard) -> &mut StateTable<Self::State>;

    /// Returns the quota if it belongs to this algorithm.
    fn from_quota(quota: &Quota) -> Option<&Self>;

    fn new_state(&self, now: Now) -> Self::State;

    /// Judges a request that may wait at most `wait_max`; `None`: as long as the rule allows.
    ///
    /// Returns the exact wait beside the outcome; zero for algorithms that never delay.
    fn judge(
        &self,
        state: &Self::State,
        now: Now,
        cost: u32,
        wait_max: Option<Micros>,
    ) -> (Outcome, QueueWait);

    /// As `judge`, with access to other states of the key in the shard.
    #[inline(always)]
    fn judge_beside(
        &self,
        _: (&Shard, &Digest),
        state: &Self::State,
        now: Now,
        cost: u32,
        wait_max: Option<Micros>,
    ) -> (Outcome, QueueWait) {
        self.judge(state, now, cost, wait_max)
    }

    /// Charges a request that starts after `wait`.
    fn charge(&self, state: &mut Self::State, now: Now, cost: u32, wait: QueueWait);

    /// Judges a request and charges it if it passes. It starts after its wait if `waits`, else at once.
    #[inline]
    fn admit(
        &self,
        state: &mut Self::State,
        now: Now,
        cost: u32,
        wait_max: Option<Micros>,
        waits: bool,
    ) -> Outcome {
        let (outcome, wait) = self.judge(state, now, cost, wait_max);
        if outcome.is_allowed() {
            self.charge(state, now, cost, if waits { wait } else { QueueWait::NONE });
        }
        outcome
    }

    /// Judges, charges and returns the level in one step. `None` if the request needs the general path;
    /// nothing has changed then.
    #[inline(always)]
    fn admit_at_once(&self, _: &mut Self::State, _: Now, _: u32) -> Option<QuotaLevel> {
        None
    }

    /// Charges actual use after the fact, limited by the maximum debt.
    fn charge_debt(&self, state: &mut Self::State, now: Now, amount: u32, debt_max: u32);

    /// Refunds unused units, never above full.
    fn refund(&self, state: &mut Self::State, now: Now, amount: u32);

    fn level(&self, state: &Self::State, now: Now) -> QuotaLevel;

    /// As `level`, with access to other states of the key in the shard.
    #[inline(always)]
    fn level_beside(&self, _: (&Shard, &Digest), state: &Self::State, now: Now) -> QuotaLevel {
        self.level(state, now)
    }

    /// Records a charge in the key's other states; the pair is the digest of the key and that of the state.
    /// Returns the level.
    #[inline(always)]
    fn record_charge(
        &self,
        _: (Digest, Digest),
        level: QuotaLevel,
        _: &CheckContext<'_>,
        _: &mut Shard,
    ) -> QuotaLevel {
        level
    }

    /// Whether the algorithm is a fleet budget: refusals change its state too, and a state may request a sync
    /// of its key.
    const IS_SHARED: bool = false;

    fn record_refusal(&self, _: &mut Self::State, _: Now, _: u32) {}

    /// Returns whether the sync task must be notified of the key, and resets that request.
    fn take_sync_request(_: &mut Self::State) -> bool {
        false
    }

    /// The number of the fleet budget, if the quota is one.
    fn budget(&self) -> Option<u64> {
        None
    }

    /// The tag of a state at this level.
    fn tag(tag: Tag, _: &QuotaLevel) -> Tag {
        tag
    }

    /// The tag of a state that has refused a request.
    fn tag_refusing(tag: Tag) -> Tag {
        tag
    }
}

/// Evaluates one expression with a quota of any algorithm.
macro_rules! each_algorithm {
    ($quota:expr, $bound:ident => $body:expr) => {
        match $quota {
            $crate::limit::Quota::TokenBucket($bound) => $body,
            $crate::limit::Quota::LeakyBucket($bound) => $body,
            $crate::limit::Quota::FixedWindow($bound) => $body,
            $crate::limit::Quota::SlidingLog($bound) => $body,
            $crate::limit::Quota::SlidingWindow($bound) => $body,
            $crate::limit::Quota::Concurrency($bound) => $body,
            $crate::limit::Quota::FleetBudget(boxed) => {
                let $bound = &**boxed;
                $body
            }
            $crate::limit::Quota::FleetConcurrency($bound) => $body,
        }
    };
}
pub(super) use each_algorithm;

/// Implements the access to the table and the quota variant of an algorithm.
macro_rules! lives_in {
    ($table:ident, $variant:ident) => {
        fn table(shard: &Shard) -> &StateTable<Self::State> {
            &shard.$table
        }

        fn table_mut(shard: &mut Shard) -> &mut StateTable<Self::State> {
            &mut shard.$table
        }

        fn from_quota(quota: &Quota) -> Option<&Self> {
            match quota {
                Quota::$variant(quota) => Some(quota),
                _ => None,
            }
        }
    };
}

use lives_in;

impl AlgorithmTable for token_bucket::TokenBucketQuota {
    type State = GcraState;

    const CONVERTS_STATES: bool = true;

    lives_in!(buckets, TokenBucket);

    fn new_state(&self, now: Now) -> GcraState {
        GcraState::full(self.scale(), now.at)
    }

    fn judge(&self, state: &GcraState, now: Now, cost: u32, _: Option<Micros>) -> (Outcome, QueueWait) {
        (state.judge(self, now.at, cost).0, QueueWait::NONE)
    }

    fn charge(&self, state: &mut GcraState, now: Now, cost: u32, _: QueueWait) {
        *state = state.judge(self, now.at, cost).1;
    }

    #[inline]
    fn admit(&self, state: &mut GcraState, now: Now, cost: u32, _: Option<Micros>, _: bool) -> Outcome {
        let (outcome, charged) = state.judge(self, now.at, cost);
        if outcome.is_allowed() {
            *state = charged;
        }
        outcome
    }

    fn charge_debt(&self, state: &mut GcraState, now: Now, amount: u32, debt_max: u32) {
        *state = state.charge_debt(self, now.at, amount, debt_max);
    }

    fn refund(&self, state: &mut GcraState, now: Now, amount: u32) {
        *state = state.refund(self, now.at, amount);
    }

    fn level(&self, state: &GcraState, now: Now) -> QuotaLevel {
        state.level(self, now.at)
    }
}

impl AlgorithmTable for leaky_bucket::LeakyBucketQuota {
    type State = GcraState;

    const CONVERTS_STATES: bool = true;

    lives_in!(buckets, LeakyBucket);

    fn new_state(&self, now: Now) -> GcraState {
        GcraState::full(self.bucket().scale(), now.at)
    }

    fn judge(
        &self,
        state: &GcraState,
        now: Now,
        cost: u32,
        wait_max: Option<Micros>,
    ) -> (Outcome, QueueWait) {
        leaky_bucket::judge(*state, self, now.at, cost, wait_max)
    }

    fn charge(&self, state: &mut GcraState, now: Now, cost: u32, wait: QueueWait) {
        *state = leaky_bucket::charge_at(*state, self, now.at, wait, cost);
    }

    /// No effect: a request that has started can no longer be delayed.
    fn charge_debt(&self, _: &mut GcraState, _: Now, _: u32, _: u32) {}

    /// No effect: a reserved slot is not transferable.
    fn refund(&self, _: &mut GcraState, _: Now, _: u32) {}

    fn level(&self, state: &GcraState, now: Now) -> QuotaLevel {
        state.level(self.bucket(), now.at)
    }
}

/// Implements the methods of window algorithms: they never delay and change in place.
macro_rules! counts {
    () => {
        fn new_state(&self, _: Now) -> Self::State {
            Self::State::default()
        }

        fn judge(&self, state: &Self::State, now: Now, cost: u32, _: Option<Micros>) -> (Outcome, QueueWait) {
            (state.judge(self, now, cost), QueueWait::NONE)
        }

        fn charge(&self, state: &mut Self::State, now: Now, cost: u32, _: QueueWait) {
            state.charge(self, now, cost);
        }

        fn charge_debt(&self, state: &mut Self::State, now: Now, amount: u32, debt_max: u32) {
            state.charge_debt(self, now, amount, debt_max);
        }

        fn refund(&self, state: &mut Self::State, now: Now, amount: u32) {
            state.refund(self, now, amount);
        }

        fn level(&self, state: &Self::State, now: Now) -> QuotaLevel {
            state.level(self, now)
        }

        fn tag(tag: Tag, level: &QuotaLevel) -> Tag {
            tag.filled(level.remaining, level.limit)
        }

        fn tag_refusing(tag: Tag) -> Tag {
            tag.refusing()
        }
    };
}

impl AlgorithmTable for fixed_window::FixedWindowQuota {
    type State = FixedWindowState;
    const CONVERTS_STATES: bool = false;
    lives_in!(windows, FixedWindow);
    counts!();
}

impl AlgorithmTable for sliding_log::SlidingLogQuota {
    type State = SlidingLogState;
    const CONVERTS_STATES: bool = false;
    lives_in!(logs, SlidingLog);
    counts!();
}

impl AlgorithmTable for sliding_window::SlidingWindowQuota {
    type State = SlidingWindowState;
    const CONVERTS_STATES: bool = false;
    lives_in!(sliding_windows, SlidingWindow);
    counts!();
}

impl AlgorithmTable for concurrency::ConcurrencyQuota {
    type State = LeaseCount;

    const CONVERTS_STATES: bool = false;

    lives_in!(in_progress, Concurrency);

    fn new_state(&self, _: Now) -> LeaseCount {
        LeaseCount::default()
    }

    /// Each request takes one permit, regardless of its cost.
    fn judge(&self, state: &LeaseCount, _: Now, _: u32, _: Option<Micros>) -> (Outcome, QueueWait) {
        (state.judge(self), QueueWait::NONE)
    }

    fn charge(&self, state: &mut LeaseCount, _: Now, _: u32, _: QueueWait) {
        state.add_lease();
    }

    /// No effect: leases alone count permits.
    fn charge_debt(&self, _: &mut LeaseCount, _: Now, _: u32, _: u32) {}

    /// No effect: the permit is released with its lease.
    fn refund(&self, _: &mut LeaseCount, _: Now, _: u32) {}

    fn level(&self, state: &LeaseCount, _: Now) -> QuotaLevel {
        state.level(self)
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

impl TableState for GcraState {
    #[inline]
    fn nanos_until_fresh(&self, tag: Tag, now: Now) -> u64 {
        let scale = tag.scale();
        self.ticks_until_full(scale, now.at).div_ceil(u64::from(scale.ticks_per_nano()))
    }
}

impl TableState for FixedWindowState {
    fn nanos_until_fresh(&self, tag: Tag, now: Now) -> u64 {
        self.nanos_until_fresh(tag.span_nanos(), now)
    }

    fn weight(&self, tag: Tag) -> u16 {
        tag.fill()
    }
}

impl TableState for SlidingLogState {
    fn nanos_until_fresh(&self, tag: Tag, now: Now) -> u64 {
        self.nanos_until_fresh(tag.span_nanos(), now)
    }

    fn weight(&self, tag: Tag) -> u16 {
        tag.fill()
    }

    fn heap_bytes(&self) -> usize {
        self.heap_bytes()
    }
}

impl TableState for SlidingWindowState {
    fn nanos_until_fresh(&self, tag: Tag, now: Now) -> u64 {
        self.nanos_until_fresh(tag.span_nanos(), now)
    }

    fn weight(&self, tag: Tag) -> u16 {
        tag.fill()
    }

    fn heap_bytes(&self) -> usize {
        self.heap_bytes()
    }
}
