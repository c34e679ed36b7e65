//! Credit: units that a host may admit before they are charged; and the estimated level of Redis that bounds it.

use super::{ShareQuota, ShareState, is_linked};
use crate::clock::Timestamp;
use crate::limit::token_bucket::GcraState;

/// The credit of an untracked key without borrowed tokens, as most keys are. All in ticks.
pub(super) struct UntrackedCredit {
    /// Credit used and not yet forgiven.
    pub(super) ahead: u64,
    pub(super) unit: u64,
    pub(super) most: u64,
}

impl UntrackedCredit {
    /// The credit on one of `hosts` hosts; `None` if it is less than a unit or requests wait for remote checks.
    #[inline(always)]
    pub(super) fn new(
        quota: &ShareQuota,
        hosts: u32,
        used: GcraState,
        now: Timestamp,
    ) -> Option<UntrackedCredit> {
        if quota.may_check_remotely(hosts) {
            return None;
        }
        let units = u64::from(quota.credit_units(hosts));
        let unit = quota.credit_ticks(hosts);
        let ahead = used.ticks_until_full(quota.bucket().scale(), now);
        // Neither overflows if there is a unit: all units together are at most the time that the bucket takes to fill.
        (units > 0).then(|| UntrackedCredit { ahead, unit, most: unit.saturating_mul(units) })
    }

    /// The credit used after `cost` more units, if `cost` is at least one and the credit suffices.
    #[inline(always)]
    pub(super) fn after(&self, cost: u32) -> Option<u64> {
        let ahead = self.ahead.saturating_add(self.unit.saturating_mul(u64::from(cost)));
        (cost > 0 && ahead <= self.most).then_some(ahead)
    }

    /// Whether this much used credit makes a sync due.
    pub(super) fn is_sync_due(&self, ahead: u64) -> bool {
        ahead > self.most / 2
    }

    /// Whether another unit of credit is left.
    pub(super) fn has_one(&self) -> bool {
        self.ahead.saturating_add(self.unit) <= self.most
    }
}

impl ShareQuota {
    /// Whether a host without tokens admits requests on credit, and makes no remote check.
    pub(super) fn gives_credit(&self, hosts: u32) -> bool {
        self.credit() > 0 && !self.may_check_remotely(hosts)
    }

    /// The level in Redis, in millionths of a unit, `age_nanos` after a reply with this level and this fleet demand.
    #[inline]
    pub(super) fn estimate(&self, level: i64, demand: u64, age_nanos: u64) -> i64 {
        let age_ms = age_nanos / NANOS_PER_MILLI;
        // Saturating arithmetic is exact enough: at the extremes the bucket is full, or far in debt. Demand counts as
        // long as Redis remembers it. Thousandths of a unit per second are as many millionths per millisecond.
        let earned = signed(self.micro_units_per_second()).saturating_mul(signed(age_ms)) / 1_000;
        let spent = signed(demand.saturating_mul(age_ms.min(DEMAND_LASTS_MS)));
        level.saturating_add(earned).saturating_sub(spent).min(self.derived.full)
    }
}

impl ShareState {
    /// The estimated level in Redis, in millionths of a unit; `None` without a reply since the last outage.
    pub(super) fn estimate(&self, quota: &ShareQuota, now: Timestamp) -> Option<i64> {
        let seen = self.last_level()?;
        let age = now.nanos_since(seen.received_at);
        if quota.window().is_some() {
            let spent = signed(seen.demand.saturating_mul((age / NANOS_PER_MILLI).min(DEMAND_LASTS_MS)));
            return Some(self.window_rest(quota, now, seen.level.saturating_sub(spent)));
        }
        Some(quota.estimate(seen.level, seen.demand, age))
    }

    /// Whether `need` units, at least one, may be admitted before they are charged.
    pub(super) fn has_credit(&self, quota: &ShareQuota, hosts: u32, now: Timestamp, need: u32) -> bool {
        if !quota.gives_credit(hosts) {
            return false;
        }
        let units = quota.credit_units(hosts);
        if need > units.max(1) {
            return false;
        }
        let left = units.max(1) - need;
        let ahead = self.untracked.ticks_until_full(quota.bucket().scale(), now);
        // Untracked units count until they are forgiven.
        let uncharged = if self.tracked || ahead == 0 { 0 } else { self.requested };
        if self.owed > left {
            return false;
        }
        let is_forgiven = if units == 0 {
            !self.tracked && self.last_level().is_none() && ahead == 0
        } else {
            // Paying a debt to Redis frees no credit, or an empty budget would be exceeded without bound: credit
            // returns with time, at θR/N, or when Redis has tokens to spare.
            ahead <= quota.credit_ticks(hosts).saturating_mul(u64::from(left))
        };
        is_forgiven || uncharged.saturating_add(self.owed) <= left && self.has_spare_tokens(quota, now)
    }

    /// The credit of the key, if it is untracked, has no other state, and this host has at least a unit of credit.
    #[inline(always)]
    pub(super) fn untracked_credit(&self, quota: &ShareQuota, now: Timestamp) -> Option<UntrackedCredit> {
        let fleet_status = quota.fleet_status()?;
        let is_reachable = self.outages == quota.outages(fleet_status) && is_linked(self.outages);
        if self.tracked || !is_reachable || self.owed > 0 || self.borrowed(now) > 0 {
            return None;
        }
        UntrackedCredit::new(quota, fleet_status.hosts(), self.untracked, now)
    }

    /// Whether Redis has tokens to spare, by the last known level.
    fn has_spare_tokens(&self, quota: &ShareQuota, now: Timestamp) -> bool {
        let Some(seen) = self.last_level() else { return false };
        // Demand does not count twice: where hosts ask for more than there is, they do not get it.
        let level = self.estimate(quota, now).unwrap_or(i64::MIN).max(seen.level);
        level >= quota.lending_level_min(seen.demand)
    }

    pub(super) fn use_credit(&mut self, quota: &ShareQuota, hosts: u32, now: Timestamp, need: u32) {
        if need == 0 && self.tracked && self.owed == 0 {
            if self.borrowed(now) < self.low {
                self.request_sync();
            }
            return;
        }
        let (units, ticks) = (u64::from(quota.credit_units(hosts)), quota.credit_ticks(hosts));
        let scale = quota.bucket().scale();
        let mut ahead = 0;
        let mut is_forgiven_later = false;
        if need > 0 && (units > 0 || !self.tracked) {
            ahead = self.untracked.ticks_until_full(scale, now);
            ahead = ahead.saturating_add(ticks.saturating_mul(u64::from(need)));
            is_forgiven_later = ahead <= ticks.saturating_mul(units.max(1));
            if is_forgiven_later {
                self.untracked = self.untracked.with_ahead(scale, now, ahead);
            }
        }
        if self.tracked || !is_forgiven_later {
            self.owed = self.owed.saturating_add(need);
        }
        let is_sync_due = if self.tracked {
            u64::from(self.owed).saturating_mul(2) > units || self.borrowed(now) < self.low
        } else {
            // A credit of a single unit is reported at once, so that the next request is not refused.
            ahead > ticks.saturating_mul(units) / 2 || self.owed > 0
        };
        if is_sync_due {
            self.request_sync();
        }
    }

    /// Starts tracking the key: its debt is charged from now on.
    pub(super) fn start_tracking(&mut self, quota: &ShareQuota, hosts: u32, now: Timestamp) {
        if self.tracked {
            return;
        }
        self.tracked = true;
        let scale = quota.bucket().scale();
        // The caller read the clock a moment ago, and a request may have arrived since: a full bucket must not seem
        // partly used.
        let at = now.max(self.requested_since);
        let used = self.untracked.ticks_until_full(scale, at).div_ceil(quota.credit_ticks(hosts));
        // Debt that is already reported is not charged twice. Refused requests count as demand too: after some, one
        // unit too many may be charged.
        let uncharged = self.requested.saturating_sub(self.owed);
        self.owed = self.owed.saturating_add(u32::try_from(used).unwrap_or(u32::MAX).min(uncharged));
    }
}

/// Converts to a signed number, saturated at `i64::MAX`.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Redis forgets the demand of hosts after two to four seconds.
const DEMAND_LASTS_MS: u64 = 4_000;

const NANOS_PER_MILLI: u64 = 1_000_000;
