//! One trait over all algorithms, so that judging and charging are written once.

pub(super) mod shared;

use super::digest::Digest;
use super::part::Case;
use super::shards::Shard;
use super::table::StateTable;
use super::tag::{Fading, PINNED, Tag};
use crate::clock::{Micros, Now};
use crate::limit::concurrency::{self, InProgress};
use crate::limit::fixed_window::{self, FixedWindow};
use crate::limit::leaky_bucket::{self, QueueWait};
use crate::limit::sliding_log::{self, SlidingLog};
use crate::limit::sliding_window::{self, SlidingWindow};
use crate::limit::token_bucket::{self, Gcra};
use crate::limit::{Outcome, Quota, QuotaLevel};

/// The quota of one algorithm, and the table that stores its states.
pub(super) trait AlgorithmTable {
    type State: Fading;

    /// Whether a state of other quotas must be converted before it is judged.
    const ADOPTS: bool;

    fn table(shard: &Shard) -> &StateTable<Self::State>;

    fn table_mut(shard: &mut Shard) -> &mut StateTable<Self::State>;

    /// Returns the quota if it belongs to this algorithm.
    fn of(quota: &Quota) -> Option<&Self>;

    fn fresh(&self, now: Now) -> Self::State;

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
        if outcome.passes() {
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
    fn owe(&self, state: &mut Self::State, now: Now, amount: u32, debt_max: u32);

    /// Refunds unused units, never above full.
    fn give_back(&self, state: &mut Self::State, now: Now, amount: u32);

    fn level(&self, state: &Self::State, now: Now) -> QuotaLevel;

    /// As `level`, with access to other states of the key in the shard.
    #[inline(always)]
    fn level_beside(&self, _: (&Shard, &Digest), state: &Self::State, now: Now) -> QuotaLevel {
        self.level(state, now)
    }

    /// Records a charge in the key's other states; the pair is the digest of the key and that of the state.
    /// Returns the level.
    #[inline(always)]
    fn charged(&self, _: (Digest, Digest), level: QuotaLevel, _: &Case<'_>, _: &mut Shard) -> QuotaLevel {
        level
    }

    /// Whether the algorithm is a fleet budget: refusals change its state too, and a state may request a sync
    /// of its key.
    const IS_SHARED: bool = false;

    fn note_refused(&self, _: &mut Self::State, _: Now, _: u32) {}

    /// Returns whether the sync task must be notified of the key, and resets that request.
    fn calls(_: &mut Self::State) -> bool {
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
            $crate::limit::Quota::Share(boxed) => {
                let $bound = &**boxed;
                $body
            }
            $crate::limit::Quota::Places($bound) => $body,
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

        fn of(quota: &Quota) -> Option<&Self> {
            match quota {
                Quota::$variant(quota) => Some(quota),
                _ => None,
            }
        }
    };
}

use lives_in;

impl AlgorithmTable for token_bucket::TokenBucketQuota {
    type State = Gcra;

    const ADOPTS: bool = true;

    lives_in!(buckets, TokenBucket);

    fn fresh(&self, now: Now) -> Gcra {
        Gcra::full(self.scale(), now.at)
    }

    fn judge(&self, state: &Gcra, now: Now, cost: u32, _: Option<Micros>) -> (Outcome, QueueWait) {
        (state.judge(self, now.at, cost).0, QueueWait::NONE)
    }

    fn charge(&self, state: &mut Gcra, now: Now, cost: u32, _: QueueWait) {
        *state = state.judge(self, now.at, cost).1;
    }

    #[inline]
    fn admit(&self, state: &mut Gcra, now: Now, cost: u32, _: Option<Micros>, _: bool) -> Outcome {
        let (outcome, charged) = state.judge(self, now.at, cost);
        if outcome.passes() {
            *state = charged;
        }
        outcome
    }

    fn owe(&self, state: &mut Gcra, now: Now, amount: u32, debt_max: u32) {
        *state = state.owe(self, now.at, amount, debt_max);
    }

    fn give_back(&self, state: &mut Gcra, now: Now, amount: u32) {
        *state = state.give_back(self, now.at, amount);
    }

    fn level(&self, state: &Gcra, now: Now) -> QuotaLevel {
        state.level(self, now.at)
    }
}

impl AlgorithmTable for leaky_bucket::LeakyBucketQuota {
    type State = Gcra;

    const ADOPTS: bool = true;

    lives_in!(buckets, LeakyBucket);

    fn fresh(&self, now: Now) -> Gcra {
        Gcra::full(self.scale(), now.at)
    }

    fn judge(&self, state: &Gcra, now: Now, cost: u32, wait_max: Option<Micros>) -> (Outcome, QueueWait) {
        leaky_bucket::judge(*state, self, now.at, cost, wait_max)
    }

    fn charge(&self, state: &mut Gcra, now: Now, cost: u32, wait: QueueWait) {
        *state = leaky_bucket::charge_at(*state, self, now.at, wait, cost);
    }

    /// No effect: a request that has started can no longer be delayed.
    fn owe(&self, _: &mut Gcra, _: Now, _: u32, _: u32) {}

    /// No effect: a reserved slot is not transferable.
    fn give_back(&self, _: &mut Gcra, _: Now, _: u32) {}

    fn level(&self, state: &Gcra, now: Now) -> QuotaLevel {
        state.level(self.bucket(), now.at)
    }
}

/// Implements the methods of window algorithms: they never delay and change in place.
macro_rules! counts {
    () => {
        fn fresh(&self, now: Now) -> Self::State {
            Self::State::fresh(self, now)
        }

        fn judge(&self, state: &Self::State, now: Now, cost: u32, _: Option<Micros>) -> (Outcome, QueueWait) {
            (state.judge(self, now, cost), QueueWait::NONE)
        }

        fn charge(&self, state: &mut Self::State, now: Now, cost: u32, _: QueueWait) {
            state.charge(self, now, cost);
        }

        fn owe(&self, state: &mut Self::State, now: Now, amount: u32, debt_max: u32) {
            state.owe(self, now, amount, debt_max);
        }

        fn give_back(&self, state: &mut Self::State, now: Now, amount: u32) {
            state.give_back(self, now, amount);
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
    type State = FixedWindow;
    const ADOPTS: bool = false;
    lives_in!(windows, FixedWindow);
    counts!();
}

impl AlgorithmTable for sliding_log::SlidingLogQuota {
    type State = SlidingLog;
    const ADOPTS: bool = false;
    lives_in!(logs, SlidingLog);
    counts!();
}

impl AlgorithmTable for sliding_window::SlidingWindowQuota {
    type State = SlidingWindow;
    const ADOPTS: bool = false;
    lives_in!(sliding_windows, SlidingWindow);
    counts!();
}

impl AlgorithmTable for concurrency::ConcurrencyQuota {
    type State = InProgress;

    const ADOPTS: bool = false;

    lives_in!(in_progress, Concurrency);

    fn fresh(&self, _: Now) -> InProgress {
        InProgress::default()
    }

    /// Each request takes one permit, regardless of its cost.
    fn judge(&self, state: &InProgress, _: Now, _: u32, _: Option<Micros>) -> (Outcome, QueueWait) {
        (state.judge(self), QueueWait::NONE)
    }

    fn charge(&self, state: &mut InProgress, _: Now, _: u32, _: QueueWait) {
        state.begin();
    }

    /// No effect: leases alone count permits.
    fn owe(&self, _: &mut InProgress, _: Now, _: u32, _: u32) {}

    /// No effect: the permit is released with its lease.
    fn give_back(&self, _: &mut InProgress, _: Now, _: u32) {}

    fn level(&self, state: &InProgress, _: Now) -> QuotaLevel {
        state.level(self)
    }
}

impl Fading for InProgress {
    fn nanos_until_fresh(&self, _: Tag, _: Now) -> u64 {
        if self.count() == 0 { 0 } else { u64::MAX }
    }

    /// Pinned: after an eviction, the key would admit more than its limit.
    fn weight(&self, _: Tag) -> u16 {
        PINNED
    }
}

impl Fading for Gcra {
    #[inline]
    fn nanos_until_fresh(&self, tag: Tag, now: Now) -> u64 {
        let scale = tag.scale();
        self.ticks_until_full(scale, now.at).div_ceil(u64::from(scale.ticks_per_nano()))
    }
}

impl Fading for FixedWindow {
    fn nanos_until_fresh(&self, tag: Tag, now: Now) -> u64 {
        self.nanos_until_fresh(tag.span_nanos(), now)
    }

    fn weight(&self, tag: Tag) -> u16 {
        tag.fill()
    }
}

impl Fading for SlidingLog {
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

impl Fading for SlidingWindow {
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
