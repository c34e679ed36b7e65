//! A host that hears nobody: a bucket of its own, the N-th part of what was last known to be left, and what it owes
//! afterwards.

use super::state::Seen;
use super::{MICRO_UNITS, Quota, Share, Standing, WhenDown, is_linked};
use crate::clock::Timestamp;
use crate::limit::Outcome;
use crate::limit::token_bucket::{Gcra, micros_up};

impl Share {
    pub(super) fn judge_alone(&self, quota: &Quota, now: Timestamp, cost: u32, hosts: u32) -> Outcome {
        let (ahead, most) = self.ahead_alone(quota, now, cost, hosts);
        if ahead <= most {
            Outcome::Pass
        } else {
            Outcome::Later(micros_up(ahead - most, quota.bucket().scale()))
        }
    }

    pub(super) fn charge_alone(&mut self, quota: &Quota, now: Timestamp, cost: u32, hosts: u32) {
        if cost > 0 {
            let (ahead, _) = self.ahead_alone(quota, now, cost, hosts);
            self.alone = self.alone.moved(quota.bucket().scale(), now, ahead);
        }
    }

    /// How far the N-th part of the bucket would be ahead after such a request, and how far it may be: one unit at least.
    fn ahead_alone(&self, quota: &Quota, now: Timestamp, cost: u32, hosts: u32) -> (u64, u64) {
        let bucket = quota.bucket();
        let unit = bucket.ticks_of(1).saturating_mul(u64::from(hosts));
        let ahead = self.alone.ticks_until_full(bucket.scale(), now);
        (ahead.saturating_add(unit.saturating_mul(u64::from(cost))), bucket.capacity().max(unit))
    }

    pub(super) fn after_outages(&self, quota: &Quota, standing: &Standing, now: Timestamp) -> Share {
        let mut share = *self;
        let unit = unit_alone(quota, standing);
        if !is_linked(self.outages) {
            // Redis has earned meanwhile, and knows nothing of what was admitted here.
            let owed = self.beyond(quota, now).saturating_add(unit / 2).checked_div(unit).unwrap_or(0);
            share.owed = self.owed.max(u32::try_from(owed).unwrap_or(u32::MAX));
            share.alone = Gcra::full(quota.bucket().scale(), now);
        }
        if !quota.is_heard(standing) {
            // It begins with the N-th part of what was last known to be left and of what was earned since, less what this
            // host owes: whoever hears nothing gets nothing either until he notices.
            share.begin_alone(quota, now, unit.saturating_mul(u64::from(share.owed)));
        }
        // What asks each time goes by what was last known also while nobody answers in time.
        share.is_seen_before |= !quota.always_asks();
        share.refused_until = Timestamp::ORIGIN;
        share.outages = quota.outages(standing);
        share
    }

    /// The bucket of this host alone is what Redis last said, less this, in ticks.
    fn begin_alone(&mut self, quota: &Quota, now: Timestamp, beyond: u64) {
        let scale = quota.bucket().scale();
        let ahead = self.untouched(quota, now).ticks_until_full(scale, now).saturating_add(beyond);
        self.alone = Gcra::full(scale, now).moved(scale, now, ahead);
    }

    /// What this host admitted alone and has not earned since, with what it owed before, in ticks.
    fn beyond(&self, quota: &Quota, now: Timestamp) -> u64 {
        let ahead = |bucket: Gcra| bucket.ticks_until_full(quota.bucket().scale(), now);
        ahead(self.alone).saturating_sub(ahead(self.untouched(quota, now)))
    }

    /// Takes what Redis last said, and that it has charged so many. An answer may come after others were given up.
    pub(super) fn hear(&mut self, quota: &Quota, now: Timestamp, paid: u32, seen: Seen) {
        let paid = paid.min(self.owed);
        let alone = quota.standing().filter(|_| !is_linked(self.outages));
        let beyond = alone.map(|standing| {
            self.beyond(quota, now)
                .saturating_sub(unit_alone(quota, standing).saturating_mul(u64::from(paid)))
        });
        self.owed -= paid;
        self.seen = Some(seen.dated());
        self.is_seen_before = false;
        if let Some(beyond) = beyond {
            self.begin_alone(quota, now, beyond);
        }
    }

    /// The bucket of Redis as it last said, if nobody had taken anything since. Full, where nothing is known.
    fn untouched(&self, quota: &Quota, now: Timestamp) -> Gcra {
        let scale = quota.bucket().scale();
        let Some(seen) = self.seen else { return Gcra::full(scale, now) };
        let missing = quota.derived.full.saturating_sub(seen.level).clamp(0, quota.derived.full);
        let ticks = u128::from(quota.bucket().ticks_of(1)) * u128::from(missing.unsigned_abs());
        let ahead = u64::try_from(ticks / u128::from(MICRO_UNITS)).unwrap_or(u64::MAX);
        Gcra::placed(scale, seen.at, ahead)
    }
}

/// One unit of the bucket of this host alone, in ticks.
fn unit_alone(quota: &Quota, standing: &Standing) -> u64 {
    quota.bucket().ticks_of(1).saturating_mul(u64::from(parts_alone(quota, standing)))
}

/// Into how many parts the budget falls while Redis is not heard.
pub(super) fn parts_alone(quota: &Quota, standing: &Standing) -> u32 {
    if quota.when_down() == WhenDown::Share { standing.hosts() } else { 1 }
}
