//! This host's state of one key, and the judgement of requests by it.

use super::fallback::fallback_parts;
use super::{Fallback, FleetStatus, MICRO_UNITS, ShareQuota};
use crate::clock::{Micros, NANOS_PER_MICRO, Timestamp};
use crate::limit::token_bucket::GcraState;
use crate::limit::{Outcome, TickScale};
use std::time::Duration;

/// This host's share of the budget for one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareState {
    /// Borrowed tokens, until `expires_at`.
    pub(super) tokens: u32,
    /// The borrowed tokens as Redis counts them; refunds restore at most these.
    pub(super) held_in_redis: u32,
    pub(super) expires_at: Timestamp,
    /// Units admitted and not charged yet, of a tracked key.
    pub(super) owed: u32,
    /// Units requested since the last report, allowed or refused.
    pub(super) requested: u32,
    /// Since when, for an untracked key.
    pub(super) requested_since: Timestamp,
    /// The largest number of tokens that one request lacked since the last report.
    pub(super) lacked: u32,
    /// A sync is due when fewer tokens than this are left.
    pub(super) low: u32,
    /// Units admitted and not charged, of an untracked key: forgiven with time.
    pub(super) untracked: GcraState,
    /// The bucket of this host in an outage.
    pub(super) fallback: GcraState,
    /// The bucket in Redis by its last reply, if no token had been taken since; full before the first.
    pub(super) bucket_in_redis: GcraState,
    /// The level in the last reply of Redis; [`RedisLevel::UNKNOWN`] before the first.
    pub(super) seen: RedisLevel,
    /// The reply predates the last outage.
    pub(super) is_seen_before: bool,
    /// The value of the outage counter at the last update.
    pub(super) outages: u32,
    /// Tracked in Redis: debt is charged, not forgiven.
    pub(super) tracked: bool,
    pub(super) sync_request: SyncRequest,
    /// Redis has refused a request of `refused_cost` units; one as large is refused until then.
    pub(super) refused_until: Timestamp,
    pub(super) refused_cost: u32,
    /// Tokens granted by a remote check and not needed: refunded with the next report. They are not spent meanwhile,
    /// because the bucket may have earned them again.
    pub(super) refund: u32,
    /// Borrowed tokens reserved for requests about to be judged: they are not returned meanwhile.
    pub(super) reserved: u32,
}

/// The level of a key in a reply of Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RedisLevel {
    /// In millionths of a unit; negative for a debt.
    pub level: i64,
    /// The demand of all hosts, in thousandths of a unit per second.
    pub demand: u64,
    /// The time of the reply, rounded to about a microsecond.
    pub received_at: Timestamp,
}

impl RedisLevel {
    /// In place of an `Option`, which would take another eight bytes for each key.
    pub(super) const UNKNOWN: RedisLevel =
        RedisLevel { level: 0, demand: 0, received_at: Timestamp::from_nanos(u64::MAX) };

    /// Returns the level with its time rounded up to 2¹⁰ ns, so that it fits 48 bits and is never dated too early.
    pub(super) fn dated(self) -> RedisLevel {
        let at =
            self.received_at.as_nanos().saturating_add((1 << SEEN_SHIFT) - 1) >> SEEN_SHIFT << SEEN_SHIFT;
        RedisLevel { received_at: Timestamp::from_nanos(at), ..self }
    }
}

/// The time of a level is stored in units of 2¹⁰ ns; 47 bits of them span four years.
pub(super) const SEEN_SHIFT: u32 = 10;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::limit) enum SyncRequest {
    #[default]
    Idle,
    /// The sync task has to be signalled.
    Due,
    /// The sync task was signalled.
    Signalled,
}

impl SyncRequest {
    /// Whether the sync task has to be signalled; the caller does it.
    pub(in crate::limit) fn take_due(&mut self) -> bool {
        let is_due = *self == SyncRequest::Due;
        if is_due {
            *self = SyncRequest::Signalled;
        }
        is_due
    }
}

impl ShareState {
    pub fn fresh(quota: &ShareQuota, now: Timestamp) -> ShareState {
        let outages = quota.fleet_status().map_or(0, |fleet_status| quota.outages(fleet_status));
        ShareState::full(quota.bucket().scale(), outages, now)
    }

    /// The state of a key with full buckets, at this value of the outage counter.
    pub(super) fn full(scale: TickScale, outages: u32, now: Timestamp) -> ShareState {
        let full = GcraState::full(scale, now);
        ShareState {
            tokens: 0,
            held_in_redis: 0,
            expires_at: Timestamp::ORIGIN,
            owed: 0,
            requested: 0,
            requested_since: now,
            lacked: 0,
            low: 0,
            untracked: full,
            fallback: full,
            bucket_in_redis: full,
            seen: RedisLevel::UNKNOWN,
            is_seen_before: false,
            outages,
            tracked: false,
            sync_request: SyncRequest::Idle,
            refused_until: Timestamp::ORIGIN,
            refused_cost: 0,
            refund: 0,
            reserved: 0,
        }
    }

    /// Judges a request of `cost` units. `Later` is an estimate: the demand of other hosts is not known.
    pub fn judge(&self, quota: &ShareQuota, now: Timestamp, cost: u32) -> Outcome {
        if cost == 0 {
            return Outcome::Pass;
        }
        if cost > quota.bucket().burst() {
            return Outcome::Never;
        }
        let Some(fleet_status) = quota.fleet_status() else {
            return self.judge_fallback(quota, now, cost, 1);
        };
        if self.outages != quota.outages(fleet_status) {
            return self.after_outages(quota, fleet_status, now).judge(quota, now, cost);
        }
        let need = cost.saturating_sub(self.borrowed(now));
        if need == 0 {
            return Outcome::Pass;
        }
        if !quota.is_reachable(fleet_status) {
            return match quota.fallback() {
                Fallback::Share | Fallback::Local => {
                    self.judge_fallback(quota, now, need, fallback_parts(quota, fleet_status))
                }
                Fallback::Allow => Outcome::Pass,
                Fallback::Refuse => Outcome::Later(AGAIN_AFTER),
            };
        }
        if self.passes_on_earnings(quota, fleet_status, now, need) {
            return Outcome::Pass;
        }
        if self.is_refused(now, need) && self.owed == 0 {
            return Outcome::Later(Micros::from_nanos(self.refused_until.nanos_since(now)));
        }
        if self.has_credit(quota, fleet_status.hosts(), now, need)
            || quota.remote_checks_fail(fleet_status) && self.is_within_part(quota, fleet_status, now, need)
        {
            Outcome::Pass
        } else {
            Outcome::Later(self.wait(quota, now, need))
        }
    }

    /// Judges a request of `cost` units, and charges it if it passes.
    pub fn admit(&mut self, quota: &ShareQuota, now: Timestamp, cost: u32) -> Outcome {
        let outcome = self.judge(quota, now, cost);
        if outcome.is_allowed() {
            self.charge(quota, now, cost);
        }
        outcome
    }

    pub fn charge(&mut self, quota: &ShareQuota, now: Timestamp, cost: u32) {
        let Some(fleet_status) = quota.fleet_status() else {
            return self.charge_fallback(quota, now, cost, 1);
        };
        self.note_outages(quota, fleet_status, now);
        self.count_requested(quota, now, cost);
        let need = self.take_borrowed(now, cost);
        if !quota.is_reachable(fleet_status) {
            match quota.fallback() {
                Fallback::Share | Fallback::Local => {
                    self.charge_fallback(quota, now, need, fallback_parts(quota, fleet_status));
                }
                Fallback::Allow | Fallback::Refuse => {}
            }
            return self.charge_for_next_batch(quota, fleet_status, now, need);
        }
        if need > 0 && quota.remote_checks_fail(fleet_status) {
            self.owe_now(quota, fleet_status.hosts(), now, need);
        } else {
            self.use_credit(quota, fleet_status.hosts(), now, need);
        }
    }

    /// Records a request that this budget refused as demand, unless its cost never fits.
    pub fn record_refusal(&mut self, quota: &ShareQuota, now: Timestamp, cost: u32) {
        let Some(fleet_status) = quota.fleet_status().filter(|_| cost <= quota.bucket().burst()) else {
            return;
        };
        self.note_outages(quota, fleet_status, now);
        self.count_requested(quota, now, cost);
        if quota.is_reachable(fleet_status)
            && quota.borrows(fleet_status.hosts())
            && !self.is_refused_lately(now, cost)
        {
            self.lacked = self.lacked.max(cost);
            self.request_sync();
        }
    }

    /// Charges after the fact, up to `debt_max` units of debt.
    pub fn charge_debt(&mut self, quota: &ShareQuota, now: Timestamp, amount: u32, debt_max: u32) {
        let Some(fleet_status) = quota.fleet_status() else {
            self.fallback = self.fallback.charge_debt(quota.bucket(), now, amount, debt_max);
            return;
        };
        self.note_outages(quota, fleet_status, now);
        let need = self.take_borrowed(now, amount);
        if quota.is_reachable(fleet_status) {
            self.start_tracking(quota, fleet_status.hosts(), now);
            self.owed = self.owed.saturating_add(need).min(self.owed.max(debt_max));
            self.request_sync();
        } else {
            self.charge_fallback(quota, now, need, fallback_parts(quota, fleet_status));
            self.charge_for_next_batch(quota, fleet_status, now, need);
        }
    }

    /// Refunds charged units: cancels debt first; the rest of a bucket returns to Redis with the next report, unless it was
    /// admitted on credit or in an outage and may never be charged. Of a window, whose charge may be of an earlier one, it
    /// restores borrowed tokens, at most those that Redis counts.
    pub fn refund(&mut self, quota: &ShareQuota, now: Timestamp, amount: u32) {
        let Some(fleet_status) = quota.fleet_status() else {
            self.fallback = self.fallback.refund(quota.bucket(), now, amount);
            return;
        };
        self.note_outages(quota, fleet_status, now);
        let uncharged = self.owed.min(amount);
        self.owed -= uncharged;
        let charged = amount - uncharged;
        let is_on_credit = !self.tracked && quota.gives_credit(fleet_status.hosts());
        if quota.window().is_none() && quota.is_reachable(fleet_status) && !is_on_credit {
            self.queue_refund(charged.min(quota.bucket().burst()));
        } else if now < self.expires_at {
            self.tokens += self.held_in_redis.saturating_sub(self.tokens).min(charged);
        }
    }

    /// The level of the last reply of Redis, if it came after the last outage.
    pub fn last_level(&self) -> Option<RedisLevel> {
        self.level_of_reply().filter(|_| !self.is_seen_before)
    }

    /// The level of the last reply of Redis, also of one before the last outage.
    pub(super) fn level_of_reply(&self) -> Option<RedisLevel> {
        Some(self.seen).filter(|seen| *seen != RedisLevel::UNKNOWN)
    }

    pub fn is_tracked(&self) -> bool {
        self.tracked
    }

    /// Whether a sync of this key is due; returns `true` once per request for a sync.
    pub fn take_sync_due(&mut self) -> bool {
        self.sync_request.take_due()
    }

    /// Whether Redis has no record of the key: its state is then demand and the levels of its buckets.
    pub(super) fn is_unknown_to_redis(&self) -> bool {
        let is_empty = self.tokens == 0
            && self.held_in_redis == 0
            && self.expires_at == Timestamp::ORIGIN
            && self.low == 0;
        let is_silent =
            !self.tracked && self.owed == 0 && self.refund == 0 && self.lacked == 0 && self.reserved == 0;
        let is_refused = self.refused_until > Timestamp::ORIGIN || self.refused_cost > 0;
        is_empty && is_silent && !is_refused && self.seen == RedisLevel::UNKNOWN
    }

    /// Nanoseconds until the state equals that of a new key, for buckets on this scale.
    pub fn nanos_until_fresh(&self, quota_scale: TickScale, now: Timestamp) -> u64 {
        if self.tracked || self.owed > 0 || self.refund > 0 || self.borrowed(now) > 0 {
            return u64::MAX;
        }
        let ticks = |bucket: GcraState| bucket.ticks_until_full(quota_scale, now);
        let full =
            ticks(self.untracked).max(ticks(self.fallback)).div_ceil(u64::from(quota_scale.ticks_per_nano()));
        let refused = if self.refused_cost < u32::MAX { self.refused_until } else { Timestamp::ORIGIN };
        full.max(refused.nanos_since(now))
    }

    /// Borrowed tokens that have not expired.
    pub(super) fn borrowed(&self, now: Timestamp) -> u32 {
        if now < self.expires_at { self.tokens } else { 0 }
    }

    /// Borrowed tokens that have expired and are not reported as expired yet.
    pub(super) fn expired(&self, now: Timestamp) -> u32 {
        self.tokens - self.borrowed(now)
    }

    /// Takes borrowed tokens and returns the number lacking. Expired tokens stay in place until a report: they are not
    /// spent, and their number has to be reported.
    fn take_borrowed(&mut self, now: Timestamp, cost: u32) -> u32 {
        let borrowed = self.borrowed(now);
        let taken = borrowed.min(cost);
        self.tokens -= taken;
        cost - taken
    }

    /// Counts demand. For an untracked key only demand that is not forgiven yet counts.
    fn count_requested(&mut self, quota: &ShareQuota, now: Timestamp, cost: u32) {
        if !self.tracked && self.untracked.ticks_until_full(quota.bucket().scale(), now) == 0 {
            self.requested = 0;
            self.requested_since = now;
        }
        self.requested = self.requested.saturating_add(cost);
    }

    pub(super) fn request_sync(&mut self) {
        if self.sync_request == SyncRequest::Idle {
            self.sync_request = SyncRequest::Due;
        }
    }

    pub fn has_noted_outages(&self, quota: &ShareQuota) -> bool {
        quota.fleet_status().is_none_or(|fleet_status| self.outages == quota.outages(fleet_status))
    }

    /// Applies the outages that have begun or ended since the last update.
    pub fn note_outages(&mut self, quota: &ShareQuota, fleet_status: &FleetStatus, now: Timestamp) {
        if self.outages != quota.outages(fleet_status) {
            *self = self.after_outages(quota, fleet_status, now);
        }
    }

    /// The wait until a request may pass: never less than a sync interval, and exactly that if no level is known.
    fn wait(&self, quota: &ShareQuota, now: Timestamp, need: u32) -> Micros {
        let Some(level) = self.estimate(quota, now) else { return SYNC_EVERY };
        let spent = i64::from(need) + i64::from(self.owed);
        let missing = spent.saturating_mul(MICRO_UNITS.cast_signed()).saturating_sub(level).max(0);
        if quota.window().is_some() {
            return self.until_more(now).filter(|_| missing > 0).unwrap_or(SYNC_EVERY).max(SYNC_EVERY);
        }
        let (missing, rate) = (missing.unsigned_abs(), quota.bucket().rate());
        // A unit comes every period ÷ count nanoseconds.
        let (period, each) = (rate.period_nanos(), u64::from(rate.count()) * NANOS_PER_MICRO * MICRO_UNITS);
        let micros = missing.checked_mul(period).map_or_else(
            || u64::try_from((u128::from(missing) * u128::from(period)).div_ceil(u128::from(each))),
            |product| Ok(product.div_ceil(each)),
        );
        Micros(micros.unwrap_or(u64::MAX)).min(quota.longest_wait()).max(SYNC_EVERY)
    }
}

/// The sync interval of a key in demand.
const SYNC_EVERY: Micros = Micros(100_000);

/// The retry-after of `Fallback::Refuse` during an outage.
const AGAIN_AFTER: Micros = Micros(1_000_000);

/// The hold on this host: borrowed tokens expire this long after the report was sent, before their hold in Redis ends;
/// see [`ShareReply::sent_at`](super::ShareReply).
pub const HOLD: Duration = Duration::from_millis(1_900);
