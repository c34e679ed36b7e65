//! ARITHMETIC: old state, quota, time and cost in; outcome and new state out.
//!
//! One file per algorithm. Nothing here locks, logs, fails or reads a clock; nothing allocates but a charge to a key
//! whose log or whose row of buckets has to grow.

mod calendar;
mod civil;
pub mod concurrency;
mod entries;
pub mod fixed_window;
mod heap;
pub mod leaky_bucket;
pub mod places;
mod rate;
mod ring;
pub mod share;
pub mod sliding_log;
pub mod sliding_window;
pub mod token_bucket;

pub use heap::block_bytes;
pub(crate) use rate::{PERIOD_NANOS_MAX, highest_common_factor};
pub use rate::{Rate, RateError, Scale};

use crate::clock::Micros;

/// The numbers of one limit, of whatever algorithm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Quota {
    /// A burst that refills steadily.
    TokenBucket(token_bucket::Quota),
    /// A pace, and a queue before it.
    LeakyBucket(leaky_bucket::Quota),
    /// One counter, set back when its window ends.
    FixedWindow(fixed_window::Quota),
    /// Every request of the window is kept.
    SlidingLog(sliding_log::Quota),
    /// An estimate from a few counters.
    SlidingWindow(sliding_window::Quota),
    /// So many at once, however long each takes.
    Concurrency(concurrency::Quota),
    /// So many at once, on all hosts together.
    Places(places::Quota),
    /// A budget that many hosts share.
    Share(share::Quota),
}

impl Quota {
    /// What a reply calls the limit: the burst, the places of the queue and the one being served, N, or the most at
    /// once.
    #[must_use]
    pub fn limit(&self) -> u32 {
        match self {
            Quota::TokenBucket(quota) => quota.burst(),
            Quota::LeakyBucket(quota) => quota.limit(),
            Quota::FixedWindow(quota) => quota.count(),
            Quota::SlidingLog(quota) => quota.count(),
            Quota::SlidingWindow(quota) => quota.count(),
            Quota::Concurrency(quota) => quota.max(),
            Quota::Places(quota) => quota.max(),
            Quota::Share(quota) => quota.bucket().burst(),
        }
    }

    /// The time over which the limit is given out: limit ÷ rate, or W. Of windows by the calendar, which differ, the
    /// nominal one. Zero where time plays no part.
    #[must_use]
    pub fn window(&self) -> Micros {
        match self {
            Quota::TokenBucket(quota) => quota.window(),
            Quota::LeakyBucket(quota) => quota.window(),
            Quota::FixedWindow(quota) => quota.window(),
            Quota::SlidingLog(quota) => quota.window(),
            Quota::SlidingWindow(quota) => quota.window(),
            Quota::Concurrency(_) | Quota::Places(_) => Micros::ZERO,
            Quota::Share(quota) => quota.span(),
        }
    }

    /// The rate, as rules write it.
    #[must_use]
    pub fn rate_text(&self) -> String {
        let every = |count, period_nanos| rate::Every { count, period_nanos }.to_string();
        match self {
            Quota::TokenBucket(quota) => quota.rate().to_string(),
            Quota::LeakyBucket(quota) => quota.rate().to_string(),
            Quota::FixedWindow(quota) => match quota.period() {
                fixed_window::Period::Months(1) => format!("{}/month", quota.count()),
                fixed_window::Period::Months(months) => format!("{}/{months}month", quota.count()),
                fixed_window::Period::Nanos(nanos) => every(quota.count(), nanos),
            },
            Quota::SlidingLog(quota) => every(quota.count(), quota.window_nanos()),
            Quota::SlidingWindow(quota) => every(quota.count(), quota.window_nanos()),
            Quota::Concurrency(quota) => format!("{} at once", quota.max()),
            Quota::Places(quota) => format!("{} at once", quota.max()),
            Quota::Share(quota) => match quota.window() {
                Some(window) => window.like().rate_text(),
                None => quota.bucket().rate().to_string(),
            },
        }
    }

    /// The algorithm, as rules write it.
    #[must_use]
    pub fn algorithm(&self) -> &'static str {
        match self {
            Quota::TokenBucket(_) => "token_bucket",
            Quota::LeakyBucket(_) => "leaky_bucket",
            Quota::FixedWindow(_) => "fixed_window",
            Quota::SlidingLog(_) => "sliding_log",
            Quota::SlidingWindow(_) => "sliding_window",
            Quota::Concurrency(_) | Quota::Places(_) => "concurrency",
            Quota::Share(quota) => quota.window().map_or("token_bucket", |window| window.like().algorithm()),
        }
    }
}

/// What one rule says to one request. Refusal leaves the key as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Outcome {
    /// It fits.
    Pass,
    /// It is granted and starts after this wait.
    Queued(Micros),
    /// It would fit after this wait and not a microsecond sooner, if nothing else came.
    Later(Micros),
    /// The cost is above the limit: no wait is long enough.
    Never,
}

impl Outcome {
    /// Whether the request is let through.
    #[must_use]
    pub fn passes(self) -> bool {
        matches!(self, Outcome::Pass | Outcome::Queued(_))
    }
}

/// Where one key stands: the numbers of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    /// The limit, in units of the rule: for a token bucket its burst.
    pub limit: u64,
    /// The time over which the limit is given out: for a token bucket burst ÷ rate.
    pub window: Micros,
    /// Whole units that would pass now; never below zero.
    pub remaining: u64,
    /// The smallest wait after which `remaining` would be larger if nothing else came; zero when full.
    pub reset: Micros,
}

impl Level {
    /// The same, as told to whoever was refused so many: what is left is an estimate where others have a part of it, and no
    /// refusal says that there was enough.
    #[must_use]
    pub fn refusing(self, cost: u32) -> Level {
        Level { remaining: self.remaining.min(u64::from(cost.saturating_sub(1))), ..self }
    }
}
