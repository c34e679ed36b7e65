//! ARITHMETIC: old state, quota, time and cost in; outcome and new state out.
//!
//! One file per algorithm. Nothing here locks, logs, fails or reads a clock. Only a charge to a key whose log or whose
//! row of buckets has to grow allocates.

mod calendar;
pub mod concurrency;
mod entries;
pub mod fixed_window;
pub mod leaky_bucket;
mod rate;
mod ring;
pub mod share;
pub mod sliding_log;
pub mod sliding_window;
pub mod token_bucket;

pub use rate::{LimitError, Rate, TickScale};
pub(crate) use rate::{PERIOD_NANOS_MAX, greatest_common_divisor};

use serde::{Deserialize, Serialize};

use crate::clock::Micros;
use fixed_window::WindowPeriod::Nanos;

/// The configured numbers of one limit, for any algorithm.
#[derive(Clone, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Quota {
    /// A burst that refills at a rate.
    TokenBucket(token_bucket::TokenBucketQuota),
    /// A rate with a queue before it.
    LeakyBucket(leaky_bucket::LeakyBucketQuota),
    /// One counter that restarts when its window ends.
    FixedWindow(fixed_window::FixedWindowQuota),
    /// A record of every request of the window.
    SlidingLog(sliding_log::SlidingLogQuota),
    /// An estimate from a few counters.
    SlidingWindow(sliding_window::SlidingWindowQuota),
    /// Leases in progress, on one host or on all hosts together.
    Concurrency(concurrency::ConcurrencyQuota),
    /// A budget over several hosts. Boxed: an override of a rule on one host need not be as large.
    FleetBudget(Box<share::ShareQuota>),
}

impl Quota {
    /// The limit in a reply: the burst, the queue and the unit being served, N, or the most leases at once.
    pub fn limit(&self) -> u32 {
        match self {
            Quota::TokenBucket(quota) => quota.burst(),
            Quota::LeakyBucket(quota) => quota.bucket().burst(),
            Quota::FixedWindow(quota) => quota.count(),
            Quota::SlidingLog(quota) => quota.count(),
            Quota::SlidingWindow(quota) => quota.count(),
            Quota::Concurrency(quota) => quota.max(),
            Quota::FleetBudget(quota) => quota.bucket().burst(),
        }
    }

    /// The largest debt that a key can have.
    pub(crate) fn debt_max(&self) -> u32 {
        match self {
            Quota::TokenBucket(quota) => u32::try_from(quota.debt_max()).unwrap_or(u32::MAX),
            quota => u32::MAX - quota.limit(),
        }
    }

    /// The time over which the limit is granted: limit ÷ rate, or W. Nominal for calendar windows, whose lengths
    /// differ. Zero for concurrency limits.
    pub fn window(&self) -> Micros {
        match self {
            Quota::TokenBucket(quota) => quota.window(),
            Quota::LeakyBucket(quota) => quota.bucket().window(),
            Quota::FixedWindow(quota) => quota.window(),
            Quota::SlidingLog(quota) => quota.window(),
            Quota::SlidingWindow(quota) => quota.window(),
            Quota::Concurrency(_) => Micros::ZERO,
            Quota::FleetBudget(quota) => quota.window_length(),
        }
    }

    /// The rate in the notation of rules.
    pub fn format_rate(&self) -> String {
        match self {
            Quota::TokenBucket(quota) => quota.rate().to_string(),
            Quota::LeakyBucket(quota) => quota.bucket().rate().to_string(),
            Quota::FixedWindow(quota) => format!("{}/{}", quota.count(), quota.period()),
            Quota::SlidingLog(quota) => format!("{}/{}", quota.count(), Nanos(quota.window_nanos())),
            Quota::SlidingWindow(quota) => format!("{}/{}", quota.count(), Nanos(quota.window_nanos())),
            Quota::Concurrency(quota) => format!("{} at once", quota.max()),
            Quota::FleetBudget(quota) => quota.local_quota().format_rate(),
        }
    }

    /// The algorithm in the notation of rules.
    pub fn algorithm(&self) -> &'static str {
        match self {
            Quota::FleetBudget(quota) => quota.local_quota().into(),
            quota => quota.into(),
        }
    }
}

/// The outcome of one rule for one request. A refusal leaves the key unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Outcome {
    Pass,
    /// The request is granted and starts after this wait.
    Queued(Micros),
    /// The request would fit after this wait and not a microsecond sooner, if no other request came.
    Later(Micros),
    /// The cost exceeds the limit: no wait is long enough.
    Never,
}

impl Outcome {
    pub fn is_allowed(self) -> bool {
        matches!(self, Outcome::Pass | Outcome::Queued(_))
    }
}

/// The state of one key as the numbers of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaLevel {
    /// The limit in units of the rule: the burst of a token bucket.
    pub limit: u64,
    /// The time over which the limit is granted: burst ÷ rate of a token bucket.
    pub window: Micros,
    /// Whole units that would pass now; never below zero.
    pub remaining: u64,
    /// The smallest wait after which `remaining` would be larger if no other request came; zero when full.
    pub reset: Micros,
}

impl QuotaLevel {
    /// Returns the level for a refusal of `cost` units, with `remaining` below the cost. Under a shared limit
    /// `remaining` is an estimate, and a refusal must not report that enough is left.
    pub fn for_refusal(self, cost: u32) -> QuotaLevel {
        QuotaLevel { remaining: self.remaining.min(u64::from(cost.saturating_sub(1))), ..self }
    }
}

/// The lower and the upper half of a word.
#[inline]
pub(crate) const fn halves(word: u64) -> [u32; 2] {
    let [a, b, c, d, high @ ..] = word.to_le_bytes();
    [u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes(high)]
}

/// The word of these [`halves`].
#[inline]
pub(crate) fn join([low, high]: [u32; 2]) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

/// The lower half of a number.
#[inline]
pub(crate) const fn low_half(number: u32) -> u16 {
    let [a, b, ..] = number.to_le_bytes();
    u16::from_le_bytes([a, b])
}

/// Bytes that malloc (glibc, 64 bits) allocates for a block of `payload` bytes: 8 bytes of header, rounded up to 16, at
/// least 32, whole pages once the block is mapped on its own. Zero for zero. A block for which the heap has room is not
/// mapped: the result is then at most a page too large.
pub const fn malloc_block_bytes(payload: usize) -> usize {
    if payload == 0 {
        return 0;
    }
    let chunk = payload.saturating_add(8).next_multiple_of(16);
    if chunk >= MAPPED_BYTES_MIN {
        return chunk.saturating_add(8).next_multiple_of(4_096);
    }
    if chunk < 32 { 32 } else { chunk }
}

/// The size, with the header, from which malloc maps a block on its own: `sys::return_freed_memory` sets it.
pub const MAPPED_BYTES_MIN: usize = 64 * 1_024;
