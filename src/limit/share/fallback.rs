//! The fallback of a host in an outage: its own bucket, which starts with the N-th part of the last known level, and
//! the debt that remains after the outage.

use super::state::{RedisLevel, SyncRequest};
use super::{Fallback, FleetStatus, MICRO_UNITS, ShareQuota, ShareState, is_linked};
use crate::clock::Timestamp;
use crate::limit::Outcome;
use crate::limit::token_bucket::{GcraState, micros_up};

impl ShareState {
    pub(super) fn judge_fallback(
        &self,
        quota: &ShareQuota,
        now: Timestamp,
        cost: u32,
        hosts: u32,
    ) -> Outcome {
        let (used, added, most) = self.fallback_ahead(quota, now, cost, hosts);
        let ahead = used.saturating_add(added);
        if ahead <= most {
            Outcome::Pass
        } else if added > most {
            // More than this host's part of the burst. The time at which Redis answers again is unknown.
            Outcome::Never
        } else {
            Outcome::Later(micros_up(ahead - most, quota.bucket().scale()))
        }
    }

    pub(super) fn charge_fallback(&mut self, quota: &ShareQuota, now: Timestamp, cost: u32, hosts: u32) {
        if cost > 0 {
            let (used, added, _) = self.fallback_ahead(quota, now, cost, hosts);
            self.fallback = self.fallback.with_ahead(quota.bucket().scale(), now, used.saturating_add(added));
            // The sync task charges the debt once Redis is reachable.
            self.request_sync();
        }
    }

    /// The ticks ahead of the N-th part of the bucket, those that such a request adds, and the most allowed: at least one
    /// unit.
    fn fallback_ahead(&self, quota: &ShareQuota, now: Timestamp, cost: u32, hosts: u32) -> (u64, u64, u64) {
        let bucket = quota.bucket();
        let unit = bucket.ticks_of(1).saturating_mul(u64::from(hosts));
        let used = self.fallback.ticks_until_full(bucket.scale(), now);
        (used, unit.saturating_mul(u64::from(cost)), bucket.capacity().max(unit))
    }

    pub(super) fn after_outages(
        &self,
        quota: &ShareQuota,
        fleet_status: &FleetStatus,
        now: Timestamp,
    ) -> ShareState {
        let mut share = *self;
        let unit = fallback_unit_ticks(quota, fleet_status);
        if !is_linked(self.outages) {
            // Redis has earned meanwhile and has no record of the units admitted here.
            let owed = self.fallback_debt(quota, now).saturating_add(unit / 2).checked_div(unit).unwrap_or(0);
            share.owed = self.owed.max(u32::try_from(owed).unwrap_or(u32::MAX));
            share.fallback = GcraState::full(quota.bucket().scale(), now);
        }
        if !quota.is_reachable(fleet_status) {
            // Starts with the N-th part of the last known level and of the units earned since, less this host's debt:
            // the time until the host notices the outage grants nothing extra.
            share.reset_fallback(quota, now, unit.saturating_mul(u64::from(share.owed)));
        }
        // A key that always uses remote checks keeps the last known level also while remote checks time out.
        share.is_seen_before |= !quota.always_checks_remotely();
        share.refused_until = Timestamp::ORIGIN;
        // A key in use need not wait for its turn among those that only have a debt.
        share.sync_request = SyncRequest::Idle;
        share.outages = quota.outages(fleet_status);
        share
    }

    /// Sets the fallback bucket to the last known level less `beyond` ticks.
    fn reset_fallback(&mut self, quota: &ShareQuota, now: Timestamp, beyond: u64) {
        let scale = quota.bucket().scale();
        let ahead = self.ahead_in_redis(quota, now).saturating_add(beyond);
        self.fallback = GcraState::full(scale, now).with_ahead(scale, now, ahead);
    }

    /// The units admitted in the outage and not earned since, with the debt from before, in ticks.
    fn fallback_debt(&self, quota: &ShareQuota, now: Timestamp) -> u64 {
        let ahead = self.fallback.ticks_until_full(quota.bucket().scale(), now);
        ahead.saturating_sub(self.ahead_in_redis(quota, now))
    }

    /// The units in Redis by its last reply, also one of before an outage or a restart, if none had been taken since.
    pub(super) fn units_in_redis(&self, quota: &ShareQuota, now: Timestamp) -> u64 {
        let bucket = quota.bucket();
        (bucket.capacity() - self.ahead_in_redis(quota, now)) / bucket.ticks_of(1).max(1)
    }

    /// The ticks until the bucket in Redis is full, if no token is taken; at most those of an empty one, also after a change
    /// of its numbers.
    fn ahead_in_redis(&self, quota: &ShareQuota, now: Timestamp) -> u64 {
        let bucket = quota.bucket();
        self.bucket_in_redis.ticks_until_full(bucket.scale(), now).min(bucket.capacity())
    }

    /// Applies the level of a reply of Redis, and `paid` charged units. The reply may arrive after the request for it
    /// timed out.
    pub(super) fn apply_level(&mut self, quota: &ShareQuota, now: Timestamp, paid: u32, seen: RedisLevel) {
        let paid = paid.min(self.owed);
        let fallback = quota.fleet_status().filter(|_| !is_linked(self.outages));
        let beyond = fallback.map(|fleet_status| {
            self.fallback_debt(quota, now)
                .saturating_sub(fallback_unit_ticks(quota, fleet_status).saturating_mul(u64::from(paid)))
        });
        self.owed -= paid;
        let refused = i64::from(self.refused_cost) * MICRO_UNITS.cast_signed();
        if quota.window().is_none() && seen.level >= refused {
            // Another host has returned tokens.
            self.refused_until = Timestamp::ORIGIN;
        }
        let seen = seen.dated();
        self.seen = seen;
        self.bucket_in_redis = bucket_at(quota, &seen);
        self.is_seen_before = false;
        if let Some(beyond) = beyond {
            self.reset_fallback(quota, now, beyond);
        }
    }
}

/// The bucket at a level in Redis.
fn bucket_at(quota: &ShareQuota, seen: &RedisLevel) -> GcraState {
    let missing = quota.derived.full.saturating_sub(seen.level).clamp(0, quota.derived.full);
    let ticks = u128::from(quota.bucket().ticks_of(1)) * u128::from(missing.unsigned_abs());
    let ahead = u64::try_from(ticks / u128::from(MICRO_UNITS)).unwrap_or(u64::MAX);
    GcraState::from_ahead(quota.bucket().scale(), seen.received_at, ahead)
}

fn fallback_unit_ticks(quota: &ShareQuota, fleet_status: &FleetStatus) -> u64 {
    quota.bucket().ticks_of(1).saturating_mul(u64::from(fallback_parts(quota, fleet_status)))
}

/// The number of parts into which the budget is divided in an outage.
pub(super) fn fallback_parts(quota: &ShareQuota, fleet_status: &FleetStatus) -> u32 {
    if quota.fallback() == Fallback::Share { fleet_status.hosts() } else { 1 }
}
