//! The demand for a key, the tokens that it needs, and whether there are plenty.

use super::{EVERY, KeySync, MICROS, Pace, RENEWED_FROM, RISING_MIN, SLACK, WAITED_MAX};
use crate::clock::{Micros, Timestamp};
use crate::engine::{FleetBudget, ShareReport};
use crate::fleet::cell::{CellRate, TOKEN};
use std::time::Duration;

impl KeySync {
    /// Whether the fleet has so many tokens that unused ones held here are not missed elsewhere.
    pub(super) fn has_plenty(&self, budget: &FleetBudget) -> bool {
        let quota = &budget.quota;
        let burst = i64::from(quota.bucket().burst()) * TOKEN.cast_signed();
        // Expired tokens of a window are lost until it turns.
        quota.window().is_none()
            && quota.credit() > 0
            && !self.is_short
            && self.level >= burst / 2
            && self.fleet_demand.saturating_mul(2_000) <= quota.micro_units_per_second()
    }

    /// Whether held tokens are reported again before they expire.
    pub(super) fn renews(&self, has_plenty: bool) -> bool {
        !has_plenty || self.demand >= RENEWED_FROM
    }

    /// The tokens to hold: the demand until the next command, and a part of the free tokens.
    pub(super) fn target(&self, there: &ShareReport, budget: &FleetBudget, pace: &Pace) -> u32 {
        let needed = needed(self.demand, EVERY, self.supply(budget), pace);
        // A spare token is useful only if neither credit nor a remote check lets the next request pass.
        let passes = KeySync::checks(budget, pace) || budget.quota.credit() > 0 && there.missing_max <= 1;
        let lacked = if passes { 0 } else { there.missing_max };
        needed.max(lacked).max(u32::try_from(self.spare(budget, pace)).unwrap_or(u32::MAX))
    }

    /// The part of the free tokens to hold, where no remote check brings them in time.
    fn spare(&self, budget: &FleetBudget, pace: &Pace) -> u64 {
        if self.demand == 0 || self.is_short || KeySync::checks(budget, pace) {
            return 0;
        }
        let level = u64::try_from(self.level).unwrap_or(0) / TOKEN;
        let parts = u64::from(pace.hosts) * SPARE_PART;
        if budget.quota.window().is_some() {
            // Window tokens of a host that dies are lost until the window ends.
            let soon = tokens_in(self.demand, WAITED_MAX, 1, 1).max(1);
            return (level / parts).min(u64::from(soon));
        }
        level / parts
    }

    /// Whether a request that lacks tokens gets them by a remote check.
    fn checks(budget: &FleetBudget, pace: &Pace) -> bool {
        budget.quota.may_check_remotely(pace.hosts) && pace.round_trip <= budget.quota.patience()
    }

    /// The most tokens to hold; 0: none is borrowed ahead of demand. Where a request that lacks some waits for a remote
    /// check, all hosts together leave the larger part of the burst to such checks, as held tokens keep the bucket from
    /// filling. Each request is a check if that part is small beside the demand until the next command, or if that demand
    /// is a few requests.
    pub(super) fn hold_max(&self, budget: &FleetBudget, pace: &Pace) -> u32 {
        let burst = budget.quota.bucket().burst();
        if !budget.quota.borrows(pace.hosts) {
            return 0;
        }
        if !KeySync::checks(budget, pace) {
            return burst;
        }
        // What is lent of a window is of no use to others until it turns: the last part is not lent.
        let left = u32::try_from(self.level.max(0).unsigned_abs() / TOKEN).unwrap_or(u32::MAX);
        let is_window = budget.quota.window().is_some();
        let lent = if is_window { burst.min(left).saturating_sub(burst / LENT_PART) } else { burst };
        let heaviest = self.heaviest.0.max(1);
        let users = if self.users > 0 { self.users } else { pace.hosts };
        let part = lent.saturating_sub(heaviest) / LENT_PART / users.max(1);
        let needed = needed(self.demand, EVERY, self.supply(budget), pace);
        let worth = LENT_FROM.saturating_mul(heaviest);
        if (worth..=2 * part).contains(&needed) { part } else { 0 }
    }

    /// The number of held tokens that triggers a command: 1.5 times the demand until its reply, and one.
    pub(in crate::fleet) fn low(&self, budget: &FleetBudget, pace: &Pace) -> u32 {
        if self.has_plenty(budget) && self.demand < RENEWED_FROM {
            // The next request may come after everything expired: it passes on credit.
            return 0;
        }
        let span = pace.round_trip + SLACK;
        let low = tokens_in(self.demand, span, 3, 2).saturating_add(1);
        let half = if self.is_rising { self.held() / (2 * TOKEN) } else { 0 };
        low.max(u32::try_from(half).unwrap_or(u32::MAX))
    }

    /// The most to want, µtok, when the fleet wants more than there is: this host's share of the tokens
    /// earned since the last command, scaled by the level so that Redis keeps a reserve. Without the reserve,
    /// a host that asks right after another finds nothing time and again; with it, hosts with little demand
    /// are served from it. A host whose demand is rising is not bounded: its share is not known yet.
    pub(super) fn fair(&self, owed: u32, waited: Duration, budget: &FleetBudget, pace: &Pace) -> u64 {
        let quota = &budget.quota;
        if quota.window().is_some() {
            // A window earns nothing over time: Redis divides its tokens.
            return u64::MAX;
        }
        let earns = u128::from(quota.micro_units_per_second());
        let kept = if quota.credit_below_one_unit(pace.hosts) {
            quota.lending_level_min(self.fleet_demand)
        } else {
            let burst = u128::from(quota.bucket().burst()) * u128::from(TOKEN);
            i64::try_from((earns * EVERY.as_micros() / u128::from(MICROS)).min(burst / 10))
                .unwrap_or(i64::MAX)
        };
        let is_enough =
            u128::from(self.fleet_demand) * 1_000 <= earns || self.level >= kept.saturating_mul(2);
        // After so long a round trip, the reply does not describe the present.
        let is_old = pace.round_trip > EVERY;
        if is_enough || is_old || self.is_rising || kept == 0 {
            return u64::MAX;
        }
        let earned = earns * u128::from(Micros::from(waited.min(WAITED_MAX)).0) / u128::from(MICROS);
        let part = earned * u128::from(self.demand) / u128::from(self.fleet_demand);
        let (level, kept) =
            (u128::from(self.level.max(kept / 4).unsigned_abs()), u128::from(kept.unsigned_abs()));
        // Debt was a part of this share.
        let part = (part * level / kept.max(1)).saturating_sub(u128::from(owed) * u128::from(TOKEN));
        u64::try_from(part).unwrap_or(u64::MAX)
    }

    /// The most to want, µtok. While others may be in fallback: the tokens that Redis had beyond the largest debts of all
    /// others, and this host's part of the rate since, without its own debt.
    pub(super) fn own_part(&mut self, owed: u32, waited: Duration, budget: &FleetBudget, pace: &Pace) -> u64 {
        if !pace.others_are_away {
            self.own = None;
            return u64::MAX;
        }
        let (hosts, burst) = (u64::from(pace.hosts.max(1)), u64::from(budget.quota.bucket().burst()) * TOKEN);
        let rate = u128::from(budget.quota.micro_units_per_second());
        let earned = rate * waited.min(WAITED_MAX).as_micros() / u128::from(MICROS * hosts);
        let level = u64::try_from(self.level).unwrap_or(0);
        let own = self.own.unwrap_or(level.saturating_sub(burst - burst / hosts));
        let own = own.saturating_add(u64::try_from(earned).unwrap_or(u64::MAX));
        let own = own.saturating_sub(u64::from(owed) * TOKEN);
        self.own = self.last_reply.map(|_| own);
        own - own % TOKEN
    }

    /// Sets the first demand; the first request only marks the start, and two requests are a weak sample.
    pub(super) fn begin_demand(&mut self, reported: &ShareReport, now: Timestamp) -> u64 {
        let sure = if reported.requested < RISING_MIN { MICROS } else { 10_000 };
        let span = Micros::from(now.since(reported.since)).0.saturating_add(sure);
        let pace = u64::from(reported.requested.saturating_sub(1)).saturating_mul(1_000 * MICROS) / span;
        self.demand = pace;
        pace
    }

    /// Smooths demand over a few requests, faster after growth. Takes the requests since the last report; returns the
    /// demand since the last measurement.
    pub(super) fn measure_demand(&mut self, requested: u32, now: Timestamp) -> u64 {
        let (known, at) = std::mem::replace(&mut self.measured, (requested, now));
        let new_requests = requested.saturating_sub(known);
        let waited = Micros::from(now.since(at)).0.max(1_000);
        let seen = u64::from(new_requests).saturating_mul(1_000 * MICROS) / waited;
        let follows = if new_requests >= RISING_MIN && seen > 2 * self.demand {
            UP_US
        } else {
            (u64::from(FOLLOWS) * 1_000 * MICROS / self.demand.max(1)).clamp(DOWN_US, 10 * DOWN_US)
        };
        let (old, new) = (u128::from(self.demand), u128::from(seen));
        let mixed = (old * u128::from(follows) + new * u128::from(waited)) / u128::from(follows + waited);
        self.demand = u64::try_from(mixed).unwrap_or(u64::MAX);
        if new_requests == 0 && self.demand < DEMAND_MIN {
            self.demand = 0;
        }
        seen
    }
}

/// Returns the tokens that a demand needs until the next reply, and a quarter more. A demand above the whole
/// supply (µtok/s) is covered for a shorter time and synced more often: it may end at once, and all other
/// hosts lack its tokens.
pub(super) fn needed(demand: u64, span: Duration, supply: u64, pace: &Pace) -> u32 {
    let all = supply / 1_000;
    let shortest = tokens_in(demand, pace.round_trip + SLACK, 3, 1);
    let of_all = tokens_in(all, EVERY + pace.round_trip, 5, 4);
    tokens_in(demand, span + pace.round_trip, 5, 4).min(shortest.max(of_all))
}

/// The time in which a host's share, in proportion to its demand, earns one token.
pub(super) fn token_takes(rate: CellRate, demand: u64, fleet_demand: u64) -> Duration {
    let all = u128::from(TOKEN) * u128::from(rate.den()) * u128::from(fleet_demand.max(demand).max(1));
    let part = u128::from(rate.num()) * u128::from(demand.max(1));
    Duration::from_micros(u64::try_from(all / part.max(1)).unwrap_or(u64::MAX))
}

/// Tokens of a demand over a span, times a fraction, rounded to nearest.
pub(super) fn tokens_in(demand: u64, span: Duration, times: u64, of: u64) -> u32 {
    let milli_micro = u128::from(demand) * span.as_micros() * u128::from(times) / u128::from(of);
    u32::try_from((milli_micro + HALF) / (2 * HALF)).unwrap_or(u32::MAX)
}

/// Each host holds at most its share of one part in this number of the free tokens.
const SPARE_PART: u64 = 4;

/// All hosts hold at most one part in this number of the burst.
const LENT_PART: u32 = 4;

/// Requests until the next command for which it is worth borrowing.
const LENT_FROM: u32 = 2;

/// Rare requests are averaged over this number of them.
const FOLLOWS: u32 = 5;

const UP_US: u64 = 100_000;

const DOWN_US: u64 = 300_000;

/// Demand below one token in 20 s, without new requests, counts as zero.
const DEMAND_MIN: u64 = 50;

/// Half a token, in thousandths of a token a second times microseconds.
const HALF: u128 = 500_000_000;
