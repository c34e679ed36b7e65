//! How much is asked for of a key, how many tokens that needs, and whether there is plenty of them.

use super::{
    EVERY, MICROS, Pace, Page, RENEW_AFTER, RENEWED_FROM, REPORT_EVERY, RISING_MIN, SLACK, WAITED_MAX, micros,
};
use crate::clock::Timestamp;
use crate::engine::{Budget, Reported};
use crate::fleet::cell::{CellRate, TOKEN};
use std::time::Duration;

impl Page {
    /// Whether there is so much that what is held here and not used is missed by nobody.
    pub(super) fn has_plenty(&self, budget: &Budget) -> bool {
        let quota = &budget.quota;
        let burst = i64::from(quota.bucket().burst()) * TOKEN.cast_signed();
        // What lapses of a window is spent.
        quota.window().is_none()
            && quota.credit() > 0
            && !self.is_short
            && self.level >= burst / 2
            && self.fleet_demand.saturating_mul(2_000) <= quota.micro_units_per_second()
    }

    /// How long after it was last asked about what is held is reported again, lest it lapse.
    pub(super) fn renews(&self, has_plenty: bool) -> Option<Duration> {
        if !has_plenty {
            Some(REPORT_EVERY)
        } else if self.demand >= RENEWED_FROM {
            Some(RENEW_AFTER)
        } else {
            None
        }
    }

    /// How much there should be in hand: what is asked for in the time until it can be asked for again, and a part of what
    /// nobody needs.
    pub(super) fn target(&self, there: &Reported, budget: &Budget, pace: &Pace) -> u32 {
        let needed = needed(self.demand, EVERY, self.supply(budget), pace);
        // One for later is not worth having, unless nothing else would let the next one pass: no credit, and no call.
        let passes = budget.quota.may_ask(pace.hosts) || budget.quota.credit() > 0 && there.lacked <= 1;
        let lacked = if passes { 0 } else { there.lacked };
        let spare = if self.demand > 0 && !self.is_short {
            let level = u64::try_from(self.level).unwrap_or(0) / TOKEN;
            let hosts = u64::from(pace.hosts);
            // Where there is plenty, twice that for who has need of it before it lapses.
            if budget.quota.window().is_some() {
                // What a host that dies has of a window is gone until its end.
                let soon = tokens_in(self.demand, WAITED_MAX, 1, 1).max(1);
                let spare = (level / (hosts * SPARE_PART)).min(u64::from(soon));
                return needed
                    .max(lacked)
                    .max(u32::try_from(spare).unwrap_or(u32::MAX))
                    .min(budget.quota.bucket().burst());
            }
            let soon = if self.has_plenty(budget) { tokens_in(self.demand, RENEW_AFTER, 5, 4) } else { 0 };
            (level / (hosts * SPARE_PART)).max((2 * level / (hosts * SPARE_PART)).min(u64::from(soon)))
        } else {
            0
        };
        needed.max(lacked).max(u32::try_from(spare).unwrap_or(u32::MAX)).min(budget.quota.bucket().burst())
    }

    /// Redis is to be asked again once less than this is in hand: what is asked for until the answer is here, half as much
    /// again, and one.
    pub(in crate::fleet) fn low(&self, budget: &Budget, pace: &Pace) -> u32 {
        if self.has_plenty(budget) && self.demand < RENEWED_FROM {
            // The next one may come when all has lapsed: it passes on credit.
            return 0;
        }
        let span = pace.round_trip + SLACK;
        let low = tokens_in(self.demand, span, 3, 2).saturating_add(1);
        let half = if self.is_rising { self.held() / (2 * TOKEN) } else { 0 };
        low.max(u32::try_from(half).unwrap_or(u32::MAX))
    }

    /// The most to want, in millionths of a token, where all together ask for more than there is: a part of what is earned,
    /// and a little less or more, so that something stays with Redis. Else who happens to ask right after somebody else finds
    /// nothing time and again; and hosts that are asked for little live on what Redis lends while it has enough. Who has just
    /// begun to be asked for more does not know his part yet.
    pub(super) fn fair(&self, owed: u32, waited: Duration, budget: &Budget, pace: &Pace) -> u64 {
        let quota = &budget.quota;
        if quota.window().is_some() {
            // Nothing is earned that could be divided: Redis divides what there is.
            return u64::MAX;
        }
        let earns = u128::from(quota.micro_units_per_second());
        let kept = if quota.lends_one(pace.hosts) {
            quota.lends_above(self.fleet_demand)
        } else {
            let burst = u128::from(quota.bucket().burst()) * u128::from(TOKEN);
            i64::try_from((earns * EVERY.as_micros() / u128::from(MICROS)).min(burst / 10))
                .unwrap_or(i64::MAX)
        };
        let is_enough =
            u128::from(self.fleet_demand) * 1_000 <= earns || self.level >= kept.saturating_mul(2);
        // What takes longer than that to be heard tells nothing of what there is now.
        let is_old = pace.round_trip > EVERY;
        if is_enough || is_old || self.is_rising || kept == 0 {
            return u64::MAX;
        }
        let earned = earns * u128::from(micros(waited.min(WAITED_MAX))) / u128::from(MICROS);
        let part = earned * u128::from(self.demand) / u128::from(self.fleet_demand);
        let (level, kept) =
            (u128::from(self.level.max(kept / 4).unsigned_abs()), u128::from(kept.unsigned_abs()));
        // What is owed was a part of it.
        let part = (part * level / kept.max(1)).saturating_sub(u128::from(owed) * u128::from(TOKEN));
        u64::try_from(part).unwrap_or(u64::MAX)
    }

    /// What is asked for, to begin with: the first request only says when it began. Two tell little of a pace.
    pub(super) fn begin_demand(&mut self, reported: &Reported, now: Timestamp) -> u64 {
        let sure = if reported.asked < RISING_MIN { MICROS } else { 10_000 };
        let span = micros(now.since(reported.since)).saturating_add(sure);
        let pace = u64::from(reported.asked.saturating_sub(1)).saturating_mul(1_000 * MICROS) / span;
        self.demand = pace;
        pace
    }

    /// What is asked for, over as long as some requests take; faster where it has surely grown. Returns what was asked for
    /// since the last time.
    pub(super) fn note_demand(&mut self, asked: u32, waited: Duration) -> u64 {
        let waited = micros(waited).max(1_000);
        let seen = u64::from(asked).saturating_mul(1_000 * MICROS) / waited;
        let follows = if asked >= RISING_MIN && seen > 2 * self.demand {
            UP_US
        } else {
            (u64::from(FOLLOWS) * 1_000 * MICROS / self.demand.max(1)).clamp(DOWN_US, 10 * DOWN_US)
        };
        let (old, new) = (u128::from(self.demand), u128::from(seen));
        let mixed = (old * u128::from(follows) + new * u128::from(waited)) / u128::from(follows + waited);
        self.demand = u64::try_from(mixed).unwrap_or(u64::MAX);
        if asked == 0 && self.demand < DEMAND_MIN {
            self.demand = 0;
        }
        seen
    }
}

/// Tokens that such a demand needs until it is asked for again after this long: what is asked for until then, and a quarter
/// more. Who asks for more than the whole budget earns has for a shorter time, and asks more often: he may end at once, and
/// all others lack what he has.
///
/// `supply`: what hosts are given in a second, in millionths of a token.
pub(super) fn needed(demand: u64, span: Duration, supply: u64, pace: &Pace) -> u32 {
    let all = supply / 1_000;
    let shortest = tokens_in(demand, pace.round_trip + SLACK, 3, 1);
    let of_all = tokens_in(all, EVERY + pace.round_trip, 5, 4);
    tokens_in(demand, span + pace.round_trip, 5, 4).min(shortest.max(of_all))
}

/// What may be wanted while others live on their own parts: this host's, since it last asked. What is not whole is rounded at
/// random.
pub(super) fn own_part(waited: Duration, dice: u32, budget: &Budget, pace: &Pace) -> u64 {
    let earned = u128::from(budget.quota.micro_units_per_second()) * waited.min(WAITED_MAX).as_micros();
    let part = earned / u128::from(MICROS) / u128::from(pace.hosts.max(1)) + u128::from(dice);
    u64::try_from(part - part % u128::from(TOKEN)).unwrap_or(u64::MAX)
}

/// In which time the part of what is earned is a token that falls to one who is asked for so much.
pub(super) fn token_takes(rate: CellRate, demand: u64, fleet_demand: u64) -> Duration {
    let all = u128::from(TOKEN) * u128::from(rate.den()) * u128::from(fleet_demand.max(demand).max(1));
    let part = u128::from(rate.num()) * u128::from(demand.max(1));
    Duration::from_micros(u64::try_from(all / part.max(1)).unwrap_or(u64::MAX))
}

/// Tokens asked for in a span, times a fraction, to the nearest whole.
pub(super) fn tokens_in(demand: u64, span: Duration, times: u64, of: u64) -> u32 {
    let milli_micro = u128::from(demand) * span.as_micros() * u128::from(times) / u128::from(of);
    u32::try_from((milli_micro + HALF) / (2 * HALF)).unwrap_or(u32::MAX)
}

/// Of what nobody needs, each host has at most its part of one in so many.
const SPARE_PART: u64 = 4;

/// Requests over which demand is taken, where they are rare.
const FOLLOWS: u32 = 5;

const UP_US: u64 = 100_000;

const DOWN_US: u64 = 300_000;

/// Less than one in 20 seconds, and nobody asks: that is nothing.
const DEMAND_MIN: u64 = 50;

/// Half a token, in thousandths of a token a second times microseconds.
const HALF: u128 = 500_000_000;
