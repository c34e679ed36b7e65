//! Requests that may wait for one call: what this host lacks is asked for at once, and judged again with what came.

use super::state::{HOLD, Seen};
use super::{MICRO_UNITS, More, Quota, Share, Standing, WhenDown, is_linked};
use crate::clock::{Micros, Timestamp};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Whether a request may wait for a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Asks {
    /// No decision waits for anything.
    #[default]
    Never,
    /// One for which this host holds too little, where the part of a host of the credit is less than a unit.
    WhereCreditIsLess,
    /// One for which this host holds too little.
    OnMiss,
    /// Each: nothing is borrowed ahead.
    Always,
}

/// What a call for one key came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Brought {
    /// Units that were paid for.
    pub granted: u32,
    /// What Redis has left, in millionths of a unit.
    pub level: i64,
    /// Redis has refused so many units, for so long; `None` as the time: they can never pass.
    pub refused: Option<(u32, Option<Micros>)>,
    /// When the call was first sent: what it brought lapses so long after.
    pub sent: Timestamp,
    /// When there is more, of a window.
    pub more: Option<More>,
    /// When it was paid by the clock of Redis, in microseconds: what is of no use leaves the window that it was counted in.
    pub paid_us: u64,
}

impl Quota {
    /// The same, with requests that may wait for a call.
    #[must_use]
    pub fn asking(self, asks: Asks) -> Quota {
        Quota { asks, ..self }
    }

    /// The same, with requests that wait no longer than this.
    #[must_use]
    pub fn waiting(self, patience: Duration) -> Quota {
        Quota { patience, ..self }
    }

    /// How long a request waits for a call at most.
    #[must_use]
    pub const fn patience(&self) -> Duration {
        self.patience
    }

    /// Whether requests may ever wait for a call.
    #[must_use]
    pub fn ever_asks(&self) -> bool {
        self.asks != Asks::Never
    }

    /// Whether requests may wait for a call, so many hosts being alive as there are.
    #[must_use]
    pub fn asks_now(&self) -> bool {
        self.ever_asks() && self.standing().is_some_and(|standing| self.may_ask(standing.hosts()))
    }

    /// Whether requests may wait for a call, where so many hosts are alive.
    #[must_use]
    pub fn may_ask(&self, hosts: u32) -> bool {
        match self.asks {
            Asks::Never => false,
            Asks::WhereCreditIsLess => self.credit_units(hosts) == 0,
            Asks::OnMiss | Asks::Always => true,
        }
    }

    /// Whether requests would wait for a call, and do not, because none is answered in time.
    pub(super) fn asks_in_vain(&self, standing: &Standing) -> bool {
        self.may_ask(standing.hosts()) && !standing.is_answering()
    }

    /// Whether nothing is borrowed ahead.
    pub(super) fn always_asks(&self) -> bool {
        self.asks == Asks::Always
    }

    /// Whether tokens are borrowed ahead of need. What is tiny would be spread over hosts that have no use for it.
    #[must_use]
    pub fn borrows(&self, hosts: u32) -> bool {
        match self.asks {
            Asks::Always => false,
            Asks::Never => true,
            Asks::WhereCreditIsLess | Asks::OnMiss => !(self.may_ask(hosts) && self.is_tiny(hosts)),
        }
    }

    fn is_tiny(&self, hosts: u32) -> bool {
        u64::from(self.bucket.burst()) < 2 * u64::from(hosts)
    }

    /// Whether Redis is heard, in time for who waits for it.
    pub(super) fn is_heard(&self, standing: &Standing) -> bool {
        is_linked(self.outages(standing))
    }

    /// The outages that matter to it: what borrows has tokens as long as Redis is heard at all, however late it answers.
    pub(super) fn outages(&self, standing: &Standing) -> u32 {
        if self.always_asks() {
            standing.outages_of_asking.load(Ordering::Relaxed)
        } else {
            standing.outages()
        }
    }
}

impl Share {
    /// How much a request of `cost` units that is refused here lacks, if a call could bring it. `None`: a call would be of
    /// no use.
    #[must_use]
    pub fn lacks(&self, quota: &Quota, now: Timestamp, cost: u32) -> Option<u32> {
        let standing = quota.standing().filter(|standing| quota.may_ask(standing.hosts()))?;
        if self.outages != quota.outages(standing) {
            return self.after_outages(quota, standing, now).lacks(quota, now, cost);
        }
        let need = cost.checked_sub(self.in_hand(now)).filter(|need| *need > 0)?;
        let may = cost <= quota.bucket().burst() && standing.is_answering() && !self.is_refused(now, need);
        may.then_some(need)
    }

    /// Whether a call might let a request pass that is refused here, as far as is known.
    #[must_use]
    pub fn may_pass_elsewhere(&self, quota: &Quota, now: Timestamp, cost: u32) -> bool {
        self.lacks(quota, now, cost).is_some_and(|need| {
            let known = self.estimate(quota, now);
            known.is_none_or(|level| level >= i64::from(need) * MICRO_UNITS.cast_signed())
        })
    }

    /// Takes what a call has brought. It is kept for who waited for it until he is [judged](Share::judged).
    pub fn bring(&mut self, quota: &Quota, now: Timestamp, brought: &Brought) {
        if let Some(standing) = quota.standing() {
            self.catch_up(quota, standing, now);
            // A key that was checked a moment ago is in use: tokens are borrowed ahead for what follows.
            let is_in_use = self.seen().is_some_and(|seen| now.since(seen.at) < HOLD);
            if is_in_use && quota.borrows(standing.hosts()) {
                self.call();
            }
        }
        let demand = self.seen.map_or(0, |seen| seen.demand);
        self.hear(quota, now, 0, Seen { level: brought.level, demand, at: now });
        self.refused_until = Timestamp::ORIGIN;
        self.hear_more(quota, now, brought.more);
        let knows_more = brought.more.is_some_and(|more| more.is_spent_out);
        if let Some((cost, wait)) = brought.refused.filter(|_| !knows_more) {
            // Redis may lie: a key is never refused for longer than the window of its rule.
            let wait = wait.map_or(quota.bucket().window(), |wait| wait.min(quota.span())).max(REFUSED_MIN);
            let is_late = quota.window().is_some() && now.since(brought.sent) >= LATE;
            self.refused_until = if is_late { brought.sent } else { now }.after(wait.into());
            self.refused_cost = cost;
        }
        self.keep(brought.granted, brought.sent.after(HOLD), now);
    }

    /// No answer came in time to who lacks so much: what holds while Redis is not heard holds for him. What passes so is
    /// charged later. Returns how much is kept for him until he is [judged](Share::judged).
    pub fn miss(&mut self, quota: &Quota, now: Timestamp, need: u32) -> u32 {
        let Some(standing) = quota.standing() else { return 0 };
        self.catch_up(quota, standing, now);
        if !quota.is_heard(standing) || need == 0 {
            // It is judged so anyway.
            return 0;
        }
        if !self.is_in_part(quota, standing, now, need) {
            return 0;
        }
        self.owe_at_once(quota, standing, now, need);
        self.keep(need, now.after(HOLD), now);
        need
    }

    /// Whether a request that lacks so much passes while no call is answered in time, though Redis is heard.
    pub(super) fn has_part(&self, quota: &Quota, standing: &Standing, now: Timestamp, need: u32) -> bool {
        quota.asks_in_vain(standing) && self.is_in_part(quota, standing, now, need)
    }

    /// Whether so much is within this host's part of what Redis last said that it had.
    fn is_in_part(&self, quota: &Quota, standing: &Standing, now: Timestamp, need: u32) -> bool {
        let hosts = match quota.when_down() {
            WhenDown::Share => u64::from(standing.hosts()),
            WhenDown::Local => 1,
            WhenDown::Allow => return true,
            WhenDown::Refuse => return false,
        };
        let burst = i64::from(quota.bucket().burst());
        let left = self.estimate(quota, now).map_or(burst, |level| level / MICRO_UNITS.cast_signed());
        let left = u64::try_from(left).unwrap_or(0);
        let part = (left / hosts.max(1)).max(left.min(1));
        u64::from(self.owed) + u64::from(need) <= part
    }

    /// Has so much charged with the next batch.
    pub(super) fn owe_at_once(&mut self, quota: &Quota, standing: &Standing, now: Timestamp, need: u32) {
        self.begin_touch(quota, standing.hosts(), now);
        self.owed = self.owed.saturating_add(need);
        self.call();
    }

    /// Who so much was kept for has been judged.
    pub fn judged(&mut self, kept: u32) {
        self.kept = self.kept.saturating_sub(kept);
    }

    /// Tokens in hand that nobody has waited for.
    pub(super) fn unkept(&self, now: Timestamp) -> u32 {
        self.in_hand(now).saturating_sub(self.kept)
    }

    /// Notes what passed while no call was answered. Where it is only the calls that nobody answers in time, it is charged
    /// with the next batch; else once Redis is heard.
    pub(super) fn charge_without_calls(
        &mut self,
        quota: &Quota,
        standing: &Standing,
        now: Timestamp,
        units: u32,
    ) {
        if units > 0 && quota.always_asks() && standing.is_linked() {
            self.begin_touch(quota, standing.hosts(), now);
            self.owed = self.owed.saturating_add(units);
            self.call();
        }
    }

    /// Takes what a call has brought that nobody waits for any more: what was paid for goes back.
    pub fn bring_back(&mut self, quota: &Quota, now: Timestamp, brought: &Brought) {
        self.bring(quota, now, &Brought { granted: 0, ..*brought });
        self.give_up(brought.granted);
    }

    /// Of so many that were brought for who has been judged, what is in hand and was not spent goes back.
    pub fn hand_back(&mut self, now: Timestamp, brought: u32) {
        self.judged(brought);
        let unspent = self.unkept(now).min(brought);
        self.tokens = self.tokens.saturating_sub(unspent);
        self.believed = self.believed.saturating_sub(unspent);
        self.give_up(unspent);
    }

    fn give_up(&mut self, tokens: u32) {
        self.returns = self.returns.saturating_add(tokens);
        if tokens > 0 {
            self.call();
        }
    }

    pub(super) fn is_refused(&self, now: Timestamp, need: u32) -> bool {
        now < self.refused_until && need >= self.refused_cost
    }

    /// Takes so much in hand, and keeps it.
    fn keep(&mut self, tokens: u32, lapses: Timestamp, now: Timestamp) {
        if tokens == 0 {
            return;
        }
        self.take_in_hand(tokens, lapses, now);
        self.kept = self.kept.saturating_add(tokens);
    }

    pub(super) fn take_in_hand(&mut self, tokens: u32, lapses: Timestamp, now: Timestamp) {
        let before = self.in_hand(now);
        if before == 0 || self.lapses < now.after(LAPSING) {
            // What lapses at once anyway is nobody's any more.
            self.tokens = tokens;
            self.believed = tokens;
            self.lapses = lapses;
        } else {
            self.tokens = before.saturating_add(tokens);
            self.believed = self.believed.saturating_add(tokens);
            self.lapses = self.lapses.min(lapses);
        }
    }
}

/// How long a request waits for a call, where nobody says how long.
pub const PATIENCE: Duration = Duration::from_millis(5);

/// Who is refused by Redis calls no sooner than this.
const REFUSED_MIN: Micros = Micros(1_000);

/// What takes longer to be answered may have been answered long ago.
const LATE: Duration = Duration::from_millis(100);

/// Tokens that lapse within this are not worth waiting for.
const LAPSING: Duration = Duration::from_millis(100);
