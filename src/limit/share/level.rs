//! The level of one key in a reply.

use super::credit::UntrackedCredit;
use super::{MICRO_UNITS, ShareQuota, ShareState};
use crate::clock::{Micros, Timestamp};
use crate::limit::{Outcome, QuotaLevel};

impl ShareQuota {
    /// The level of an untracked key: full except for the units used here.
    #[inline]
    pub(super) fn untracked_level(&self, is_untouched: bool) -> QuotaLevel {
        let limit = self.bucket().burst();
        self.level_of(if is_untouched { limit } else { limit.saturating_sub(1).max(1) })
    }

    /// The level for `level` millionths of a unit in Redis and `borrowed` borrowed tokens.
    #[inline]
    pub(super) fn known_level(&self, level: i64, borrowed: u32) -> QuotaLevel {
        let whole = level.max(0).unsigned_abs() / MICRO_UNITS;
        let remaining = u32::try_from(whole).unwrap_or(u32::MAX).saturating_add(borrowed);
        self.level_of(remaining.clamp(1, self.bucket().burst()))
    }

    #[inline]
    fn level_of(&self, remaining: u32) -> QuotaLevel {
        let is_full = remaining == self.bucket().burst();
        self.level_with(remaining, if is_full { Micros::ZERO } else { self.derived.one_unit })
    }

    #[inline]
    fn level_with(&self, remaining: u32, reset: Micros) -> QuotaLevel {
        let bucket = self.bucket();
        let (limit, remaining) = (u64::from(bucket.burst()), u64::from(remaining));
        QuotaLevel { limit, window: bucket.window(), remaining, reset }
    }
}

impl ShareState {
    /// The numbers of a reply: the units that this host could admit now, and the last known rest. An estimate, because
    /// other hosts admit requests meanwhile.
    pub fn level(&self, quota: &ShareQuota, now: Timestamp) -> QuotaLevel {
        let level = self.level_of_bucket(quota, now);
        if quota.window().is_none() {
            return level;
        }
        // A window returns all of its units, or a part, at one instant, and none before.
        let reset = match level.remaining {
            0 => level.reset,
            remaining if remaining == level.limit => Micros::ZERO,
            _ => self.until_more(now).unwrap_or(quota.window_length()),
        };
        QuotaLevel { window: quota.window_length(), reset, ..level }
    }

    fn level_of_bucket(&self, quota: &ShareQuota, now: Timestamp) -> QuotaLevel {
        let Some(fleet_status) = quota.fleet_status() else {
            return self.fallback.level(quota.bucket(), now);
        };
        if self.last_level().is_none()
            && let Some(credit) = self.untracked_credit(quota, now).filter(UntrackedCredit::has_one)
        {
            return quota.untracked_level(credit.ahead == 0);
        }
        let borrowed = self.borrowed(now);
        let passes = borrowed > 0 && self.outages == quota.outages(fleet_status);
        if !passes
            && let Outcome::Later(wait) = self.judge(quota, now, 1)
            && !self.may_pass_elsewhere(quota, now, 1)
        {
            return quota.level_with(0, wait);
        }
        match self.estimate(quota, now) {
            Some(level) => quota.known_level(level, borrowed),
            None => quota.untracked_level(self.is_untouched(quota, now)),
        }
    }

    fn is_untouched(&self, quota: &ShareQuota, now: Timestamp) -> bool {
        self.owed == 0 && self.untracked.ticks_until_full(quota.bucket().scale(), now) == 0
    }
}
