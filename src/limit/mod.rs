//! ARITHMETIC: old state, quota, time and cost in; outcome and new state out.
//!
//! One file per algorithm. Nothing here allocates, locks, logs, fails or reads a clock.

mod calendar;
mod civil;
pub mod fixed_window;
pub mod leaky_bucket;
mod rate;
pub mod token_bucket;

pub use rate::{Rate, RateError, Scale};

use crate::clock::Micros;

/// The numbers of one limit, of whatever algorithm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Quota {
    /// A burst that refills steadily.
    TokenBucket(token_bucket::Quota),
    /// A count that starts afresh when its window ends.
    FixedWindow(fixed_window::Quota),
}

impl Quota {
    /// What a reply calls the limit: the burst, or N.
    #[must_use]
    pub fn limit(&self) -> u32 {
        match self {
            Quota::TokenBucket(quota) => quota.burst(),
            Quota::FixedWindow(quota) => quota.count(),
        }
    }

    /// The time over which the limit is given out: burst ÷ rate, or W.
    #[must_use]
    pub fn window(&self) -> Micros {
        match self {
            Quota::TokenBucket(quota) => quota.window(),
            Quota::FixedWindow(quota) => quota.window(),
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
