//! The concurrency limit: how many pieces of work of one key are in progress at once. A counter that goes up when one is
//! granted and down when it ends; whoever holds the leases sees to it that each goes down once.
//!
//! Promise: never more than `max` are granted and not ended. A smaller `max` ends nothing: new work waits until fewer are
//! in progress.

use std::num::NonZeroU32;

use super::{Level, Outcome};
use crate::clock::Micros;

/// The number of one concurrency limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    max: u32,
}

impl Quota {
    /// At most `max` at once.
    #[must_use]
    pub const fn new(max: NonZeroU32) -> Quota {
        Quota { max: max.get() }
    }

    /// The most at once.
    #[must_use]
    pub const fn max(&self) -> u32 {
        self.max
    }
}

/// How many of one key are in progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InProgress(u32);

impl InProgress {
    /// So many.
    #[must_use]
    pub const fn count(self) -> u32 {
        self.0
    }

    /// Judges one more. When others end is not known: a refusal names no time of its own.
    pub fn judge(self, quota: &Quota) -> Outcome {
        if self.0 < quota.max { Outcome::Pass } else { Outcome::Later(Micros::ZERO) }
    }

    /// One more has begun.
    pub fn begin(&mut self) {
        self.0 = self.0.saturating_add(1);
    }

    /// One has ended. Returns how many are left.
    pub fn end(&mut self) -> u32 {
        debug_assert!(self.0 > 0, "only a lease that was counted ends");
        self.0 = self.0.saturating_sub(1);
        self.0
    }

    /// What a reply says about this key.
    #[must_use]
    pub fn level(self, quota: &Quota) -> Level {
        Level {
            limit: u64::from(quota.max),
            window: Micros::ZERO,
            remaining: u64::from(quota.max.saturating_sub(self.0)),
            reset: Micros::ZERO,
        }
    }
}
