//! What this host has of one key, and how requests are judged by it.

use super::alone::parts_alone;
use super::{MICRO_UNITS, NANOS_PER_MICRO, Quota, Standing, WhenDown, is_linked};
use crate::clock::{Micros, Timestamp};
use crate::limit::Outcome;
use crate::limit::token_bucket::Gcra;
use std::time::Duration;

/// What this host has of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Tokens in hand, until they lapse.
    pub(super) tokens: u32,
    /// What Redis believes to be in hand; what is given back is never more.
    pub(super) believed: u32,
    pub(super) lapses: Timestamp,
    /// Admitted and not charged yet, of a key that is kept in touch about.
    pub(super) owed: u32,
    /// Asked for since it was last reported, refused or not.
    pub(super) asked: u32,
    /// Since when, as long as nobody is told of it.
    pub(super) asked_since: Timestamp,
    /// The most that one request lacked since it was last reported.
    pub(super) lacked: u32,
    /// Redis is to be asked once less than this is in hand.
    pub(super) low: u32,
    /// Admitted and not charged, of a key that nobody was told of: forgiven with time.
    pub(super) quiet: Gcra,
    /// The bucket of this host alone, while nobody else is heard.
    pub(super) alone: Gcra,
    /// What Redis last said.
    pub(super) seen: Option<Seen>,
    /// It said so before the last outage.
    pub(super) is_seen_before: bool,
    /// The outage that it last knew of.
    pub(super) outages: u32,
    /// Kept in touch about: what is owed is charged, not forgiven.
    pub(super) in_touch: bool,
    /// Redis is to be asked soon.
    pub(super) calls: Calls,
    /// Redis has refused a request of `refused_cost` and said until when one as large is refused.
    pub(super) refused_until: Timestamp,
    pub(super) refused_cost: u32,
    /// Paid for by a call, and of no use here: it goes back with the next report. Nobody spends it meanwhile: the bucket may
    /// have earned it again.
    pub(super) returns: u32,
    /// Of what is in hand, so much was brought for requests that are about to be judged: nobody gives it back meanwhile.
    pub(super) kept: u32,
}

/// What Redis last said of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// In millionths of a unit; below zero where it is owed.
    pub level: i64,
    /// What all hosts ask for, in thousandths of a unit a second.
    pub demand: u64,
    /// When it said so, to a microsecond.
    pub at: Timestamp,
}

impl Seen {
    /// The same, said at the next moment that 48 bits can tell: nothing is taken for older than it is.
    pub(super) fn dated(self) -> Seen {
        let at = self.at.as_nanos().saturating_add((1 << SEEN_SHIFT) - 1) >> SEEN_SHIFT << SEEN_SHIFT;
        Seen { at: Timestamp::from_nanos(at), ..self }
    }
}

/// What was heard is dated in units of 2¹⁰ ns, of which 47 bits count four years.
pub(super) const SEEN_SHIFT: u32 = 10;

/// Whether Redis is to be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Calls {
    No,
    /// Somebody is to be told.
    Yes,
    /// Somebody was told.
    Told,
}

impl Calls {
    /// Whether somebody is to be told, who is told by this.
    pub(super) fn tell(&mut self) -> bool {
        let tells = *self == Calls::Yes;
        if tells {
            *self = Calls::Told;
        }
        tells
    }
}

impl Share {
    /// A key that was never seen.
    #[must_use]
    pub fn fresh(quota: &Quota, now: Timestamp) -> Share {
        let full = Gcra::full(quota.bucket().scale(), now);
        Share {
            tokens: 0,
            believed: 0,
            lapses: Timestamp::ORIGIN,
            owed: 0,
            asked: 0,
            asked_since: now,
            lacked: 0,
            low: 0,
            quiet: full,
            alone: full,
            seen: None,
            is_seen_before: false,
            outages: quota.standing().map_or(0, |standing| quota.outages(standing)),
            in_touch: false,
            calls: Calls::No,
            refused_until: Timestamp::ORIGIN,
            refused_cost: 0,
            returns: 0,
            kept: 0,
        }
    }

    /// Judges a request of `cost` units. `Later` is an estimate: what other hosts will ask for is not known.
    pub fn judge(&self, quota: &Quota, now: Timestamp, cost: u32) -> Outcome {
        if cost == 0 {
            return Outcome::Pass;
        }
        if cost > quota.bucket().burst() {
            return Outcome::Never;
        }
        let Some(standing) = quota.standing() else { return self.judge_alone(quota, now, cost, 1) };
        if self.outages != quota.outages(standing) {
            return self.after_outages(quota, standing, now).judge(quota, now, cost);
        }
        let need = cost.saturating_sub(self.in_hand(now));
        if need == 0 {
            return Outcome::Pass;
        }
        if !quota.is_heard(standing) {
            return match quota.when_down() {
                WhenDown::Share | WhenDown::Local => {
                    self.judge_alone(quota, now, need, parts_alone(quota, standing))
                }
                WhenDown::Allow => Outcome::Pass,
                WhenDown::Refuse => Outcome::Later(AGAIN_AFTER),
            };
        }
        if self.is_refused(now, need) {
            let nanos = self.refused_until.since(now).as_nanos();
            return Outcome::Later(Micros(u64::try_from(nanos.div_ceil(1_000)).unwrap_or(u64::MAX)));
        }
        if self.has_credit(quota, standing.hosts(), now, need) || self.has_part(quota, standing, now, need) {
            Outcome::Pass
        } else {
            Outcome::Later(self.wait(quota, now, need))
        }
    }

    /// Judges a request of `cost` units, and charges it if it passes.
    #[inline]
    pub fn admit(&mut self, quota: &Quota, now: Timestamp, cost: u32) -> Outcome {
        if self.in_touch {
            if self.is_at_hand(quota, now, cost) {
                self.tokens -= cost;
                self.asked = self.asked.saturating_add(cost);
                if self.tokens < self.low {
                    self.call();
                }
                return Outcome::Pass;
            }
        } else if let Some(unseen) = self.unseen(quota, now)
            && self.admit_unseen(&unseen, quota, now, cost)
        {
            return Outcome::Pass;
        }
        let outcome = self.judge(quota, now, cost);
        if outcome.passes() {
            self.charge(quota, now, cost);
        }
        outcome
    }

    /// Whether such a request, of a key that is kept in touch about, takes tokens in hand and nothing besides.
    fn is_at_hand(&self, quota: &Quota, now: Timestamp, cost: u32) -> bool {
        let is_heard =
            |standing: &Standing| self.outages == quota.outages(standing) && is_linked(self.outages);
        (1..=self.in_hand(now)).contains(&cost)
            && cost <= quota.bucket().burst()
            && self.owed == 0
            && quota.standing().is_some_and(is_heard)
    }

    /// Charges a request that passed.
    pub fn charge(&mut self, quota: &Quota, now: Timestamp, cost: u32) {
        let Some(standing) = quota.standing() else { return self.charge_alone(quota, now, cost, 1) };
        self.catch_up(quota, standing, now);
        self.note_asked(quota, now, cost);
        let need = self.take(now, cost);
        if !quota.is_heard(standing) {
            match quota.when_down() {
                WhenDown::Share | WhenDown::Local => {
                    self.charge_alone(quota, now, need, parts_alone(quota, standing));
                }
                WhenDown::Allow | WhenDown::Refuse => {}
            }
            return self.charge_without_calls(quota, standing, now, need);
        }
        if need > 0 && quota.asks_in_vain(standing) {
            self.owe_at_once(quota, standing, now, need);
        } else {
            self.use_credit(quota, standing.hosts(), now, need);
        }
    }

    /// Notes a request that this budget refused: it shows what is asked for.
    pub fn refuse(&mut self, quota: &Quota, now: Timestamp, cost: u32) {
        let Some(standing) = quota.standing() else { return };
        self.catch_up(quota, standing, now);
        self.note_asked(quota, now, cost);
        if quota.is_heard(standing) && quota.borrows(standing.hosts()) && !self.is_refused(now, cost) {
            self.lacked = self.lacked.max(cost);
            self.call();
        }
    }

    /// Charges after the fact, as far as the debt goes.
    pub fn owe(&mut self, quota: &Quota, now: Timestamp, amount: u32, debt_max: u32) {
        let Some(standing) = quota.standing() else {
            self.alone = self.alone.owe(quota.bucket(), now, amount, debt_max);
            return;
        };
        self.catch_up(quota, standing, now);
        let need = self.take(now, amount);
        if quota.is_heard(standing) {
            self.begin_touch(quota, standing.hosts(), now);
            self.owed = self.owed.saturating_add(need).min(self.owed.max(debt_max));
            self.call();
        } else {
            self.charge_alone(quota, now, need, parts_alone(quota, standing));
            self.charge_without_calls(quota, standing, now, need);
        }
    }

    /// Gives back what was charged, as far as Redis knows of it or nobody has charged it yet.
    pub fn give_back(&mut self, quota: &Quota, now: Timestamp, amount: u32) {
        let Some(standing) = quota.standing() else {
            self.alone = self.alone.give_back(quota.bucket(), now, amount);
            return;
        };
        self.catch_up(quota, standing, now);
        let paid = self.owed.min(amount);
        self.owed -= paid;
        let room = if now < self.lapses { self.believed.saturating_sub(self.tokens) } else { 0 };
        self.tokens += room.min(amount - paid);
    }

    /// What Redis last said of it, if it has said anything since the last outage.
    #[must_use]
    pub fn seen(&self) -> Option<Seen> {
        self.seen.filter(|_| !self.is_seen_before)
    }

    /// Whether it is kept in touch about.
    #[must_use]
    pub fn is_in_touch(&self) -> bool {
        self.in_touch
    }

    /// Whether somebody is to be told that Redis is to be asked about this key. It says so once.
    pub fn calls(&mut self) -> bool {
        self.calls.tell()
    }

    /// Whether nobody has heard of it: what there is then is what was asked for, and used of its buckets.
    pub(super) fn is_unknown(&self) -> bool {
        let is_empty =
            self.tokens == 0 && self.believed == 0 && self.lapses == Timestamp::ORIGIN && self.low == 0;
        let is_silent =
            !self.in_touch && self.owed == 0 && self.returns == 0 && self.lacked == 0 && self.kept == 0;
        let is_refused = self.refused_until > Timestamp::ORIGIN || self.refused_cost > 0;
        is_empty && is_silent && !is_refused && self.seen.is_none()
    }

    /// Nanoseconds until it equals one that was never seen, on a scale of the bucket's ticks.
    #[must_use]
    pub fn nanos_until_fresh(&self, quota_scale: crate::limit::Scale, now: Timestamp) -> u64 {
        if self.in_touch || self.owed > 0 || self.returns > 0 || self.in_hand(now) > 0 {
            return u64::MAX;
        }
        let ticks = |bucket: Gcra| bucket.ticks_until_full(quota_scale, now);
        let full = ticks(self.quiet).max(ticks(self.alone)).div_ceil(u64::from(quota_scale.ticks_per_nano()));
        let refused = if self.refused_cost < u32::MAX { self.refused_until } else { Timestamp::ORIGIN };
        full.max(refused.as_nanos().saturating_sub(now.as_nanos()))
    }

    /// Tokens in hand that have not lapsed.
    pub(super) fn in_hand(&self, now: Timestamp) -> u32 {
        if now < self.lapses { self.tokens } else { 0 }
    }

    /// Tokens in hand that have lapsed, and were not reported as that yet.
    pub(super) fn lapsed(&self, now: Timestamp) -> u32 {
        self.tokens - self.in_hand(now)
    }

    /// Takes so many of what is in hand, and returns how many are lacking. What has lapsed stays where it is: nobody spends
    /// it, and how much it was is yet to be told.
    fn take(&mut self, now: Timestamp, cost: u32) -> u32 {
        let in_hand = self.in_hand(now);
        let taken = in_hand.min(cost);
        self.tokens -= taken;
        cost - taken
    }

    /// Counts what is asked for. Of what nobody is told of, only what is not forgiven yet tells anything.
    fn note_asked(&mut self, quota: &Quota, now: Timestamp, cost: u32) {
        if !self.in_touch && self.quiet.ticks_until_full(quota.bucket().scale(), now) == 0 {
            self.asked = 0;
            self.asked_since = now;
        }
        self.asked = self.asked.saturating_add(cost);
    }

    pub(super) fn call(&mut self) {
        if self.calls == Calls::No {
            self.calls = Calls::Yes;
        }
    }

    /// Knows of the outages that have begun or ended since it was last looked at.
    pub(super) fn catch_up(&mut self, quota: &Quota, standing: &Standing, now: Timestamp) {
        if self.outages != quota.outages(standing) {
            *self = self.after_outages(quota, standing, now);
        }
    }

    /// How long until a request may pass: never sooner than Redis could be asked again, and no later where nothing is known
    /// of the rest.
    fn wait(&self, quota: &Quota, now: Timestamp, need: u32) -> Micros {
        let Some(level) = self.estimate(quota, now) else { return SYNC_EVERY };
        let missing = (i64::from(need) * MICRO_UNITS.cast_signed()).saturating_sub(level).max(0);
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
        // Whatever Redis says: a bucket that has earned nothing is full after its window.
        Micros(micros.unwrap_or(u64::MAX)).min(quota.bucket().window()).max(SYNC_EVERY)
    }
}

/// How often Redis is asked about a key that is in demand.
const SYNC_EVERY: Micros = Micros(100_000);

/// When to come again to what refuses for as long as Redis is not heard.
const AGAIN_AFTER: Micros = Micros(1_000_000);

/// How long before its hold ends in Redis a host lets go of what it has: [`Settled::lapses`](super::Settled).
pub(in crate::limit) const HOLD: Duration = Duration::from_millis(1_900);
