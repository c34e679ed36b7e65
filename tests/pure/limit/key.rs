//! One key under a quota of any algorithm, so that a property of all is written once.

use tidegate::clock::Now;
use tidegate::limit::fixed_window::{FixedWindowQuota, FixedWindowState};
use tidegate::limit::leaky_bucket::{self, LeakyBucketQuota};
use tidegate::limit::sliding_log::{SlidingLogQuota, SlidingLogState};
use tidegate::limit::sliding_window::{SlidingWindowQuota, SlidingWindowState};
use tidegate::limit::token_bucket::{GcraState, TokenBucketQuota};
use tidegate::limit::{Outcome, QuotaLevel};

use Key::{FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket};

#[derive(Clone, Debug)]
pub(crate) enum Key {
    TokenBucket(TokenBucketQuota, GcraState),
    LeakyBucket(LeakyBucketQuota, GcraState),
    FixedWindow(FixedWindowQuota, FixedWindowState),
    SlidingLog(SlidingLogQuota, SlidingLogState),
    SlidingWindow(SlidingWindowQuota, SlidingWindowState),
}

impl Key {
    pub(crate) fn token_bucket(quota: TokenBucketQuota, now: Now) -> Key {
        TokenBucket(quota, GcraState::full(quota.scale(), now.at))
    }

    pub(crate) fn leaky_bucket(quota: LeakyBucketQuota, now: Now) -> Key {
        LeakyBucket(quota, GcraState::full(quota.bucket().scale(), now.at))
    }

    pub(crate) fn fixed_window(quota: FixedWindowQuota) -> Key {
        FixedWindow(quota, FixedWindowState::default())
    }

    pub(crate) fn sliding_log(quota: SlidingLogQuota) -> Key {
        SlidingLog(quota, SlidingLogState::default())
    }

    pub(crate) fn sliding_window(quota: SlidingWindowQuota) -> Key {
        SlidingWindow(quota, SlidingWindowState::default())
    }

    pub(crate) fn judge(&self, now: Now, cost: u32) -> Outcome {
        match self {
            TokenBucket(quota, state) => state.judge(quota, now.at, cost).0,
            LeakyBucket(quota, state) => leaky_bucket::judge(*state, quota, now.at, cost, None).0,
            FixedWindow(quota, state) => state.judge(quota, now, cost),
            SlidingLog(quota, state) => state.judge(quota, now, cost),
            SlidingWindow(quota, state) => state.judge(quota, now, cost),
        }
    }

    pub(crate) fn passes(&self, now: Now, cost: u32) -> bool {
        self.judge(now, cost).is_allowed()
    }

    /// Charges a checked request. Only windows count a refused one.
    pub(crate) fn charge(&mut self, now: Now, cost: u32) {
        match self {
            TokenBucket(quota, state) => *state = state.judge(quota, now.at, cost).1,
            LeakyBucket(quota, state) => {
                let (_, start) = leaky_bucket::judge(*state, quota, now.at, cost, None);
                *state = leaky_bucket::charge_at(*state, quota, now.at, start, cost);
            }
            FixedWindow(quota, state) => state.charge(quota, now, cost),
            SlidingLog(quota, state) => state.charge(quota, now, cost),
            SlidingWindow(quota, state) => state.charge(quota, now, cost),
        }
    }

    /// A leaky bucket has started the charged requests, and takes no charge after the fact.
    pub(crate) fn charge_debt(&mut self, now: Now, amount: u32, debt_max: u32) {
        match self {
            TokenBucket(quota, state) => *state = state.charge_debt(quota, now.at, amount, debt_max),
            LeakyBucket(..) => {}
            FixedWindow(quota, state) => state.charge_debt(quota, now, amount, debt_max),
            SlidingLog(quota, state) => state.charge_debt(quota, now, amount, debt_max),
            SlidingWindow(quota, state) => state.charge_debt(quota, now, amount, debt_max),
        }
    }

    pub(crate) fn refund(&mut self, now: Now, amount: u32) {
        match self {
            TokenBucket(quota, state) => *state = state.refund(quota, now.at, amount),
            LeakyBucket(..) => {}
            FixedWindow(quota, state) => state.refund(quota, now, amount, None),
            SlidingLog(quota, state) => state.refund(quota, now, amount, None),
            SlidingWindow(quota, state) => state.refund(quota, now, amount, None),
        }
    }

    pub(crate) fn level(&self, now: Now) -> QuotaLevel {
        match self {
            TokenBucket(quota, state) => state.level(quota, now.at),
            LeakyBucket(quota, state) => state.level(quota.bucket(), now.at),
            FixedWindow(quota, state) => state.level(quota, now),
            SlidingLog(quota, state) => state.level(quota, now),
            SlidingWindow(quota, state) => state.level(quota, now),
        }
    }

    /// How long the table keeps the key if nothing more is charged to it.
    pub(crate) fn nanos_until_fresh(&self, now: Now) -> u64 {
        match self {
            TokenBucket(quota, state) => {
                let ticks = state.ticks_until_full(quota.scale(), now.at);
                ticks.div_ceil(u64::from(quota.scale().ticks_per_nano()))
            }
            LeakyBucket(quota, state) => Key::TokenBucket(*quota.bucket(), *state).nanos_until_fresh(now),
            FixedWindow(quota, state) => state.nanos_until_fresh(quota.window_nanos_max(), now),
            SlidingLog(quota, state) => state.nanos_until_fresh(quota.window_nanos(), now),
            SlidingWindow(quota, state) => state.nanos_until_fresh(quota.window_nanos(), now),
        }
    }
}
