//! Remote checks: a request that lacks tokens waits for one Redis command, and is then judged again with the tokens
//! granted.

use super::state::{HOLD, RedisLevel};
use super::{
    Fallback, FleetStatus, FleetTerms, MICRO_UNITS, NextIncrease, ShareQuota, ShareState, is_linked,
};
use crate::clock::{Micros, Timestamp};
use std::sync::atomic::Ordering;
use std::time::Duration;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RemoteCheckWait {
    /// No request waits.
    #[default]
    Never,
    /// A request for which this host has too few tokens, where a host's part of the credit is less than a unit.
    BelowUnitCredit,
    /// A request for which this host has too few tokens.
    OnMiss,
    /// Every request: nothing is borrowed ahead.
    Always,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyCheckReply {
    /// Units charged in Redis for this host.
    pub granted: u32,
    /// The remaining level in Redis, in millionths of a unit.
    pub level: i64,
    /// The units that Redis refused, and for how long; `None` as the time if they can never pass.
    pub refused: Option<(u32, Option<Micros>)>,
    /// The time at which the check was first sent: granted tokens expire one hold after it.
    pub sent_at: Timestamp,
    /// The next increase, for a window.
    pub next_increase: Option<NextIncrease>,
    /// The time of the charge by the clock of Redis, in microseconds: a refund goes to the window of the charge.
    pub paid_us: u64,
}

impl ShareQuota {
    #[must_use]
    pub fn with_remote_checks(self, asks: RemoteCheckWait) -> ShareQuota {
        ShareQuota { terms: FleetTerms { asks, ..self.terms }, ..self }
    }

    #[must_use]
    pub fn with_wait_max(self, wait_max: Duration) -> ShareQuota {
        ShareQuota { terms: FleetTerms { wait_max, ..self.terms }, ..self }
    }

    /// The longest wait of a request for a remote check.
    pub const fn patience(&self) -> Duration {
        self.terms.wait_max
    }

    /// Whether requests may wait for a remote check at any number of hosts.
    pub fn has_remote_checks(&self) -> bool {
        self.terms.may_wait()
    }

    /// Whether requests may wait for a remote check at the current number of hosts.
    pub fn checks_remotely_now(&self) -> bool {
        self.has_remote_checks()
            && self.fleet_status().is_some_and(|fleet_status| self.may_check_remotely(fleet_status.hosts()))
    }

    /// Whether requests may wait for a remote check at `hosts` hosts.
    pub fn may_check_remotely(&self, hosts: u32) -> bool {
        match self.terms.asks {
            RemoteCheckWait::Never => false,
            RemoteCheckWait::BelowUnitCredit => self.credit_units(hosts) == 0,
            RemoteCheckWait::OnMiss | RemoteCheckWait::Always => true,
        }
    }

    /// Whether remote checks are configured but off, because Redis does not answer in time.
    pub(super) fn remote_checks_fail(&self, fleet_status: &FleetStatus) -> bool {
        self.may_check_remotely(fleet_status.hosts()) && !fleet_status.answers_within(self.patience())
    }

    /// Whether nothing is borrowed ahead.
    pub(super) fn always_checks_remotely(&self) -> bool {
        self.terms.asks == RemoteCheckWait::Always
    }

    /// Whether tokens are borrowed ahead of demand. A tiny budget would be spread over hosts that do not need it.
    pub fn borrows(&self, hosts: u32) -> bool {
        match self.terms.asks {
            RemoteCheckWait::Always => false,
            RemoteCheckWait::Never => true,
            RemoteCheckWait::BelowUnitCredit | RemoteCheckWait::OnMiss => {
                !(self.may_check_remotely(hosts) && self.is_tiny(hosts))
            }
        }
    }

    /// Whether it is less than two tokens per host.
    pub(crate) fn is_tiny(&self, hosts: u32) -> bool {
        u64::from(self.bucket.burst()) < 2 * u64::from(hosts)
    }

    /// Whether Redis is reachable, and in time for budgets that always use remote checks.
    pub(super) fn is_reachable(&self, fleet_status: &FleetStatus) -> bool {
        is_linked(self.outages(fleet_status))
    }

    /// The outage counter of this budget. A budget that borrows has tokens as long as Redis is reachable, however late
    /// it replies.
    pub(super) fn outages(&self, fleet_status: &FleetStatus) -> u32 {
        if self.always_checks_remotely() && !fleet_status.answers_within(self.patience()) {
            fleet_status.remote_check_outages.load(Ordering::Relaxed)
        } else {
            fleet_status.outages()
        }
    }
}

impl ShareState {
    /// The tokens that a refused request of `cost` units lacks, if a remote check could obtain them; otherwise `None`.
    pub fn missing_tokens(&self, quota: &ShareQuota, now: Timestamp, cost: u32) -> Option<u32> {
        let fleet_status =
            quota.fleet_status().filter(|fleet_status| quota.may_check_remotely(fleet_status.hosts()))?;
        if self.outages != quota.outages(fleet_status) {
            return self.after_outages(quota, fleet_status, now).missing_tokens(quota, now, cost);
        }
        let need = cost.checked_sub(self.borrowed(now)).filter(|need| *need > 0)?;
        let may = cost <= quota.bucket().burst()
            && fleet_status.answers_within(quota.patience())
            && !self.is_refused_lately(now, need);
        may.then_some(need)
    }

    /// Whether a remote check would allow a request that is refused here, by the last known level. An estimate: other hosts may
    /// have returned tokens since.
    pub fn may_pass_elsewhere(&self, quota: &ShareQuota, now: Timestamp, cost: u32) -> bool {
        self.missing_tokens(quota, now, cost).is_some_and(|need| {
            self.estimate(quota, now).is_none_or(|level| level >= i64::from(need) * MICRO_UNITS.cast_signed())
        })
    }

    /// Whether a request that is refused here would pass by the last known level, less the debt of this host. For rules
    /// in shadow, whose requests make no remote check: units that pass so are charged with the next sync.
    pub fn passes_in_shadow(&self, quota: &ShareQuota, now: Timestamp, cost: u32) -> bool {
        self.missing_tokens(quota, now, cost).is_some_and(|need| {
            // Without the demand of other hosts: what they spend is in the level of the next reply.
            let left = self.last_level().map_or(quota.derived.full, |seen| {
                let age = now.nanos_since(seen.received_at);
                match quota.window() {
                    Some(_) => self.window_rest(quota, now, seen.level),
                    None => quota.estimate(seen.level, 0, age),
                }
            });
            let spent = i64::from(self.owed).saturating_add(i64::from(need));
            left >= spent.saturating_mul(MICRO_UNITS.cast_signed())
        })
    }

    /// Applies the reply to a remote check. The granted tokens are reserved for the waiting request until it is
    /// [judged](ShareState::release_reservation).
    pub fn apply_remote_reply(&mut self, quota: &ShareQuota, now: Timestamp, brought: &KeyCheckReply) {
        if let Some(fleet_status) = quota.fleet_status() {
            self.note_outages(quota, fleet_status, now);
            // A key that was checked a moment ago is in use: borrow tokens for later requests.
            let is_in_use = self.last_level().is_some_and(|seen| now.since(seen.received_at) < HOLD);
            if is_in_use && quota.borrows(fleet_status.hosts()) {
                self.request_sync();
            }
        }
        let demand = self.seen.demand;
        self.apply_level(quota, now, 0, RedisLevel { level: brought.level, demand, received_at: now });
        self.refused_until = Timestamp::ORIGIN;
        self.apply_more(quota, now, brought.next_increase);
        let knows_more = brought.next_increase.is_some_and(|more| more.is_exhausted);
        if let Some((cost, wait)) = brought.refused.filter(|_| !knows_more) {
            // Redis may lie: no key is refused for longer than its rule takes to earn the burst and the largest debt.
            let wait =
                wait.map_or(quota.bucket().window(), |wait| wait.min(quota.longest_wait())).max(REFUSED_MIN);
            let is_late = quota.window().is_some() && now.since(brought.sent_at) >= LATE;
            self.refused_until = if is_late { brought.sent_at } else { now }.after(wait.into());
            self.refused_cost = cost;
        }
        self.reserve(brought.granted, brought.sent_at.after(HOLD), now);
    }

    /// Applies the fallback to a request that lacks `need` tokens and whose remote check timed out; tokens granted so
    /// are charged later. Returns the tokens reserved for the request until it is [judged](ShareState::release_reservation).
    pub fn apply_timeout(&mut self, quota: &ShareQuota, now: Timestamp, need: u32) -> u32 {
        let Some(fleet_status) = quota.fleet_status() else { return 0 };
        self.note_outages(quota, fleet_status, now);
        if !quota.is_reachable(fleet_status) || need == 0 || self.is_refused(now, need) {
            // Judging applies the fallback, or the last refusal, anyway.
            return 0;
        }
        if !self.is_within_part(quota, fleet_status, now, need) {
            return 0;
        }
        self.owe_now(quota, fleet_status.hosts(), now, need);
        self.reserve(need, now.after(HOLD), now);
        need
    }

    /// Whether `need` tokens are within this host's part of the last known level.
    pub(super) fn is_within_part(
        &self,
        quota: &ShareQuota,
        fleet_status: &FleetStatus,
        now: Timestamp,
        need: u32,
    ) -> bool {
        let hosts = match quota.fallback() {
            Fallback::Share => u64::from(fleet_status.hosts()),
            Fallback::Local => 1,
            Fallback::Allow => return true,
            Fallback::Refuse => return false,
        };
        let left = self.estimate(quota, now).map_or_else(
            || self.units_in_redis(quota, now),
            |level| u64::try_from(level).unwrap_or(0) / MICRO_UNITS,
        );
        let part = (left / hosts.max(1)).max(left.min(1));
        u64::from(self.owed) + u64::from(need) <= part
    }

    /// Whether `need` tokens are within this host's part of the tokens earned in two to three round trips, less the debt in
    /// Redis, while remote checks time out. Borrowing alone admits at most the burst in the time from a grant to the report
    /// of its use. The debt in Redis bounds the excess: its hosts admit less until it is earned.
    pub(super) fn passes_on_earnings(
        &self,
        quota: &ShareQuota,
        fleet_status: &FleetStatus,
        now: Timestamp,
        need: u32,
    ) -> bool {
        let is_shared = quota.fallback() == Fallback::Share && quota.window().is_none();
        let Some(seen) = self.last_level().filter(|_| is_shared && quota.remote_checks_fail(fleet_status))
        else {
            return false;
        };
        let round_trip = fleet_status.round_trip();
        let span = now.since(seen.received_at).min(round_trip) + round_trip * 2;
        let earned = u128::from(quota.micro_units_per_second()) * span.as_micros() / 1_000_000;
        let earned = i64::try_from(earned).unwrap_or(i64::MAX);
        let left = u64::try_from(earned.saturating_add(seen.level.min(0))).unwrap_or(0) / MICRO_UNITS;
        u64::from(self.owed) + u64::from(need) <= left / u64::from(fleet_status.hosts().max(1))
    }

    /// Adds a debt that is charged with the next batch.
    pub(super) fn owe_now(&mut self, quota: &ShareQuota, hosts: u32, now: Timestamp, need: u32) {
        self.start_tracking(quota, hosts, now);
        self.owed = self.owed.saturating_add(need);
        self.request_sync();
    }

    /// Ends the reservation of `kept` tokens, because the request has been judged.
    pub fn release_reservation(&mut self, kept: u32) {
        self.reserved = self.reserved.saturating_sub(kept);
    }

    pub(super) fn unreserved(&self, now: Timestamp) -> u32 {
        self.borrowed(now).saturating_sub(self.reserved)
    }

    /// Records units allowed while remote checks were off. Where only the remote checks time out, the units are charged
    /// with the next batch, else once Redis is reachable.
    pub(super) fn charge_for_next_batch(
        &mut self,
        quota: &ShareQuota,
        fleet_status: &FleetStatus,
        now: Timestamp,
        units: u32,
    ) {
        if units > 0 && quota.always_checks_remotely() && fleet_status.is_redis_reachable() {
            self.owe_now(quota, fleet_status.hosts(), now, units);
        }
    }

    /// Applies the reply to a remote check whose request no longer waits. If the request was refused, the granted tokens of a
    /// bucket stay here for its retry, and return with a later report; others are refunded.
    pub fn refund_remote_reply(&mut self, quota: &ShareQuota, now: Timestamp, reply: &KeyCheckReply) {
        self.apply_remote_reply(quota, now, &KeyCheckReply { granted: 0, ..*reply });
        let borrows = quota.fleet_status().is_some_and(|fleet_status| quota.borrows(fleet_status.hosts()));
        let may_keep = borrows && quota.window().is_none() && now.since(reply.sent_at) < LATE;
        // A request that passed meanwhile left a debt, which the next report charges.
        let kept = if may_keep { reply.granted.saturating_sub(self.owed) } else { 0 };
        if kept > 0 {
            self.add_borrowed(kept, reply.sent_at.after(HOLD), now);
            self.request_sync();
        }
        self.queue_refund(reply.granted - kept);
    }

    /// Refunds the unspent tokens, at most `granted`, of a request that has been judged.
    pub fn refund_unspent(&mut self, now: Timestamp, granted: u32) {
        self.release_reservation(granted);
        let unspent = self.unreserved(now).min(granted);
        self.tokens = self.tokens.saturating_sub(unspent);
        self.held_in_redis = self.held_in_redis.saturating_sub(unspent);
        self.queue_refund(unspent);
    }

    pub(super) fn queue_refund(&mut self, tokens: u32) {
        self.refund = self.refund.saturating_add(tokens);
        if tokens > 0 {
            self.request_sync();
        }
    }

    pub(super) fn is_refused(&self, now: Timestamp, need: u32) -> bool {
        now < self.refused_until && need >= self.refused_cost
    }

    /// Whether Redis has refused `need` units until later, and lately: other hosts may return tokens before that.
    pub(super) fn is_refused_lately(&self, now: Timestamp, need: u32) -> bool {
        self.is_refused(now, need) && self.is_recent(now)
    }

    /// Whether the last reply of Redis is younger than tokens that another host holds can be.
    fn is_recent(&self, now: Timestamp) -> bool {
        self.level_of_reply().is_some_and(|seen| now.since(seen.received_at) < HOLD)
    }

    /// Adds borrowed tokens and reserves them.
    fn reserve(&mut self, tokens: u32, expires_at: Timestamp, now: Timestamp) {
        if tokens == 0 {
            return;
        }
        self.add_borrowed(tokens, expires_at, now);
        self.reserved = self.reserved.saturating_add(tokens);
    }

    pub(super) fn add_borrowed(&mut self, tokens: u32, expires_at: Timestamp, now: Timestamp) {
        let before = self.borrowed(now);
        if before == 0 || self.expires_at < now.after(LAPSING) {
            // Tokens about to expire are dropped.
            self.tokens = tokens;
            self.held_in_redis = tokens;
            self.expires_at = expires_at;
        } else {
            self.tokens = before.saturating_add(tokens);
            self.held_in_redis = self.held_in_redis.saturating_add(tokens);
            self.expires_at = self.expires_at.min(expires_at);
        }
    }
}

/// The default wait of a request for a remote check.
pub const REMOTE_CHECK_WAIT_DEFAULT: Duration = Duration::from_millis(5);

/// The least time between two remote checks after a refusal.
const REFUSED_MIN: Micros = Micros(1_000);

/// A reply later than this may have been computed long before.
const LATE: Duration = Duration::from_millis(100);

/// Tokens that expire within this time are not worth keeping.
const LAPSING: Duration = Duration::from_millis(100);
