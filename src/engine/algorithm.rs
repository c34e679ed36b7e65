//! One trait over all algorithms of rates, so that judging and charging are written once.

use super::shards::Shard;
use super::table::StateTable;
use super::tag::{TableState, Tag};
use crate::clock::{Micros, Now, Timestamp};
use crate::limit::fixed_window::{self, FixedWindowState};
use crate::limit::leaky_bucket::{self, QueueWait};
use crate::limit::share::{self, CompactShare};
use crate::limit::sliding_log::{self, SlidingLogState};
use crate::limit::sliding_window::{self, SlidingWindowState};
use crate::limit::token_bucket::{self, GcraState};
use crate::limit::{Outcome, Quota, QuotaLevel};

/// The quota of one algorithm, and the table that stores its states.
pub(super) trait AlgorithmTable {
    type State: TableState;

    /// Whether a state of other quotas must be converted before it is judged.
    const CONVERTS_STATES: bool = false;

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

    /// Refunds unused units, never above full. `charged_at`: when they were charged, if that is known; a window gives back
    /// only what it counts still.
    fn refund(&self, state: &mut Self::State, now: Now, amount: u32, charged_at: Option<Timestamp>);

    fn level(&self, state: &Self::State, now: Now) -> QuotaLevel;

    /// Whether the algorithm is a fleet budget: refusals change its state too, and a state may request a sync
    /// of its key.
    const IS_SHARED: bool = false;

    fn record_refusal(&self, _: &mut Self::State, _: Now, _: u32) {}

    /// Whether a rule in shadow passes a request that this state refuses.
    fn passes_in_shadow(&self, _: &Self::State, _: Now, _: u32) -> bool {
        false
    }

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

/// Evaluates one expression with a quota of any algorithm, or another one with a concurrency limit.
macro_rules! each_algorithm {
    ($quota:expr, $bound:ident => $body:expr, $leases:pat => $other:expr) => {
        match $quota {
            $crate::limit::Quota::TokenBucket($bound) => $body,
            $crate::limit::Quota::LeakyBucket($bound) => $body,
            $crate::limit::Quota::FixedWindow($bound) => $body,
            $crate::limit::Quota::SlidingLog($bound) => $body,
            $crate::limit::Quota::SlidingWindow($bound) => $body,
            $crate::limit::Quota::Concurrency($leases) => $other,
            $crate::limit::Quota::FleetBudget(boxed) => {
                let $bound = &**boxed;
                $body
            }
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

    fn refund(&self, state: &mut GcraState, now: Now, amount: u32, _: Option<Timestamp>) {
        *state = state.refund(self, now.at, amount);
    }

    #[inline(always)]
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
    fn refund(&self, _: &mut GcraState, _: Now, _: u32, _: Option<Timestamp>) {}

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

        fn refund(&self, state: &mut Self::State, now: Now, amount: u32, charged_at: Option<Timestamp>) {
            state.refund(self, now, amount, charged_at);
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
    lives_in!(windows, FixedWindow);
    counts!();
}

impl AlgorithmTable for sliding_log::SlidingLogQuota {
    type State = SlidingLogState;
    lives_in!(logs, SlidingLog);
    counts!();
}

impl AlgorithmTable for sliding_window::SlidingWindowQuota {
    type State = SlidingWindowState;
    lives_in!(sliding_windows, SlidingWindow);
    counts!();
}

impl AlgorithmTable for share::ShareQuota {
    type State = CompactShare;

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

    fn passes_in_shadow(&self, state: &CompactShare, now: Now, cost: u32) -> bool {
        state.unfold(self, now.at).passes_in_shadow(self, now.at, cost)
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

    fn refund(&self, state: &mut CompactShare, now: Now, amount: u32, _: Option<Timestamp>) {
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

impl TableState for GcraState {
    #[inline]
    fn nanos_until_fresh(&self, tag: Tag, now: Now) -> u64 {
        let scale = tag.scale();
        self.ticks_until_full(scale, now.at).div_ceil(u64::from(scale.ticks_per_nano()))
    }
}

/// Implements the state of a window algorithm; its span and its fill level are in the tag.
macro_rules! window_state {
    ($state:ty, $heap_bytes:expr) => {
        impl TableState for $state {
            fn nanos_until_fresh(&self, tag: Tag, now: Now) -> u64 {
                self.nanos_until_fresh(tag.span_nanos(), now)
            }

            fn weight(&self, tag: Tag) -> u16 {
                tag.fill()
            }

            fn heap_bytes(&self) -> usize {
                $heap_bytes(self)
            }
        }
    };
}

window_state!(FixedWindowState, |_| 0);
window_state!(SlidingLogState, SlidingLogState::heap_bytes);
window_state!(SlidingWindowState, SlidingWindowState::heap_bytes);

impl TableState for CompactShare {
    /// Never for a tracked state: evicted, it would lose its borrowed tokens.
    fn nanos_until_fresh(&self, tag: Tag, now: Now) -> u64 {
        self.nanos_until_fresh(tag.scale(), now.at)
    }

    fn heap_bytes(&self) -> usize {
        self.heap_bytes()
    }
}
