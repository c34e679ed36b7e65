//! The sync state of a key of a fleet budget: the last report to Redis, local demand, and the next command.

mod demand;

use super::cell::{CellQuota, CellRate, CellReply, CellReport, CellRequest, LastReply, TOKEN};
use super::command::Bucket;
use super::window::{CellWindow, WindowRequest};
use crate::clock::{Micros, Timestamp};
use crate::engine::{FleetBudget, HOLD, NextIncrease, ShareReport, SharedKey, WindowTurns};
use demand::{needed, token_takes};
use std::time::Duration;

/// Returns the numbers of a budget for Redis; `None` if the scripts cannot count them exactly.
pub(super) fn cell_quota(budget: &FleetBudget, version: u64) -> Option<CellQuota> {
    let bucket = budget.quota.bucket();
    let rate = match budget.quota.window() {
        None => CellRate::of(bucket.rate())?,
        // The scripts do not count by the rate of a window: any will do.
        Some(_) => CellRate { num: 1, den: 1 },
    };
    Some(CellQuota { version, rate, burst: u64::from(bucket.burst()) * TOKEN })
}

/// Returns how the budget's window turns; `None` for a bucket. `unix_us`: the approximate clock of Redis.
pub(super) fn cell_window(budget: &FleetBudget, unix_us: u64) -> Option<CellWindow> {
    let window = budget.quota.window()?;
    Some(match window.turns() {
        WindowTurns::Every { slots, step, origin } => CellWindow { slots, step, origin, ends: None },
        WindowTurns::Calendar => {
            let (origin, turn, finish) = window.edges(unix_us);
            CellWindow { slots: 1, step: 0, origin, ends: Some((turn, finish)) }
        }
    })
}

/// Inputs common to all keys of a tick.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    pub(super) now: Timestamp,
    pub(super) hosts: u32,
    pub(super) round_trip: Duration,
    /// Redis is reachable again, but other hosts may still be in fallback.
    pub(super) others_are_away: bool,
}

#[derive(Debug, Default)]
pub(super) struct KeySync {
    pub(super) key: SharedKey,
    /// The name of its cell.
    pub(super) cell: [u8; 16],
    pub(super) bucket: Bucket,
    /// The number of its rule.
    pub(super) rule: u64,
    /// The last report that Redis is known to have; `None` if that is unknown.
    last: Option<CellReport>,
    sent_at: Option<Timestamp>,
    pub(super) in_flight: bool,
    /// Local demand, in thousandths of a token per second.
    demand: u64,
    /// When the window has more tokens, and whether it is spent out until then.
    more: Option<NextIncrease>,
    last_reply: Option<LastReply>,
    /// The tokens of the fleet as of the last reply, µtok.
    pub(super) level: i64,
    fleet_demand: u64,
    /// The hosts that use the key, as of the last reply; 0: unknown.
    users: u32,
    /// Demand has grown far beyond the smoothed value.
    is_rising: bool,
    /// Redis granted less than was wanted.
    is_short: bool,
    /// The tokens to borrow while other hosts may still be in fallback, µtok; `None`: they are not, or no reply came yet.
    own: Option<u64>,
    /// The time in which this host's share earns one token, as of the last reply.
    token_takes: Duration,
    /// The most tokens that a refused request lacked, and when they were asked for.
    lacked: (u32, Timestamp),
    /// The engine has called for a sync since the last command; it does not call again before the next one.
    pub(super) calls: bool,
    /// Requests since the last report, as of the last check of the key.
    requests_sent: u32,
    /// The largest cost of late of a remote check or of a refused request, and when.
    heaviest: (u32, Timestamp),
    /// Requests since the last report that the demand counts, and when it was last updated.
    measured: (u32, Timestamp),
    /// When `asked` was last seen to grow.
    busy: Timestamp,
    pub(super) due: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextAction {
    /// Send a command that returns this number of tokens.
    Ask(u32),
    Look(Timestamp),
    /// Drop the state: the key is idle.
    LetGo,
}

impl KeySync {
    pub(super) fn new(key: SharedKey, budget: &FleetBudget, bucket: Bucket, now: Timestamp) -> KeySync {
        KeySync {
            key,
            cell: budget.cell(&key),
            bucket,
            rule: budget.rule_number,
            token_takes: EVERY,
            measured: (0, now),
            busy: now,
            due: now,
            ..KeySync::default()
        }
    }

    /// Returns the earliest time of the next command: where tokens are scarce, once per token earned here.
    pub(super) fn soonest(&self, now: Timestamp) -> Timestamp {
        let gap = match (self.is_short, self.is_rising) {
            (false, _) => GAP_MIN,
            (true, true) => EVERY / 10,
            (true, false) => self.token_takes.clamp(EVERY / 2, EVERY),
        };
        self.sent_at.map_or(now, |sent| sent.after(gap)).max(now)
    }

    /// Decides the next step from the engine's state of the key.
    pub(super) fn next(&mut self, there: &ShareReport, budget: &FleetBudget, pace: &Pace) -> NextAction {
        if there.requested != self.requests_sent || there.debt > 0 {
            self.busy = pace.now;
            self.requests_sent = there.requested;
        }
        self.turn(budget, pace.now);
        if self.calls && self.sent_at.is_some() && pace.now >= self.measured.1.after(EVERY) {
            self.measure_demand(there.requested, pace.now);
        }
        let hold_max = self.hold_max(budget, pace);
        let borrows = hold_max > 0;
        let Some(sent_at) = self.sent_at else {
            // A debt of an outage may be earned by now.
            let is_earned = !self.calls && there.debt == 0 && there.refund == 0;
            let back = if borrows { 0 } else { there.borrowed };
            return if is_earned { NextAction::LetGo } else { NextAction::Ask(back) };
        };
        let has_plenty = self.has_plenty(budget);
        let is_over = self.is_over(pace.now);
        let target = if is_over { 0 } else { self.target(there, budget, pace) };
        let target = target.max(self.awaited(budget, pace.now)).min(hold_max);
        // With plenty of tokens no other host needs these: they expire without a command.
        let is_excess = there.borrowed > target + target / 2 && pace.now >= sent_at.after(BACK_AFTER);
        let returns = !borrows || (!has_plenty && (is_over || is_excess));
        let excess = if returns { there.borrowed.saturating_sub(target) } else { 0 };
        let is_wanted = borrows
            && there.requested > 0
            && !self.is_spent_out(pace.now)
            && (self.calls
                || self.is_short && there.borrowed < target
                || there.borrowed < self.low(budget, pace));
        let must_report_demand = !has_plenty
            && is_over
            && pace.now < sent_at.after(FORGOTTEN)
            && self.last.is_some_and(|last| last.demand > 0);
        let is_lapsing =
            there.borrowed > 0 && self.renews(has_plenty) && pace.now >= sent_at.after(REPORT_EVERY);
        // Without a last report, what a command without a reply reported as requested is still wanted.
        let must_settle = there.debt > 0 || there.refund > 0 || excess > 0 || self.last.is_none();
        if must_settle || is_wanted || must_report_demand || is_lapsing {
            let soonest = self.soonest(pace.now);
            return if soonest > pace.now { NextAction::Look(soonest) } else { NextAction::Ask(excess) };
        }
        if there.borrowed == 0 && there.debt == 0 && pace.now >= self.busy.after(KEEP) {
            return NextAction::LetGo;
        }
        let again = self.look_again(there.borrowed > 0, has_plenty, pace.now);
        // Whether it is worth borrowing shows in the demand meanwhile.
        NextAction::Look(if self.calls { again.min(pace.now.after(EVERY)) } else { again })
    }

    /// Whether the window was spent out lately: other hosts may return tokens before it ends.
    fn is_spent_out(&self, now: Timestamp) -> bool {
        self.more.is_some_and(|more| more.is_exhausted)
            && self.last_reply.is_some_and(|reply| now.since(reply.at) < HOLD)
    }

    /// Resets the state of a window that may have turned since the last reply.
    fn turn(&mut self, budget: &FleetBudget, now: Timestamp) {
        if self.more.is_some_and(|more| now >= more.at) {
            self.more = None;
            self.is_short = false;
            if budget.quota.window().is_some_and(|window| !window.slides()) {
                self.level = i64::from(budget.quota.bucket().burst()) * TOKEN.cast_signed();
            }
        }
    }

    /// The most tokens that hosts get per second, µtok: the rate, or the rest of a window if that is more.
    fn supply(&self, budget: &FleetBudget) -> u64 {
        let earns = budget.quota.micro_units_per_second();
        match budget.quota.window() {
            None => earns,
            Some(_) => earns.max(u64::try_from(self.level).unwrap_or(0)),
        }
    }

    /// Whether demand has ended: no request for longer than [`KeySync::idle_after`].
    fn is_over(&self, now: Timestamp) -> bool {
        self.demand > 0 && now >= self.busy.after(self.idle_after())
    }

    /// The span without requests that occurs by chance less than once in 1 000 times at the present demand.
    fn idle_after(&self) -> Duration {
        let micros = u64::from(OVER_AFTER) * 1_000 * MICROS / self.demand.max(1);
        let least = if self.heaviest.0 > 1 { BACK_AFTER } else { EVERY / 5 };
        Duration::from_micros(micros).max(least)
    }

    /// The tokens that a refused request lacked, until its retry may have come, where no remote check brings them.
    fn awaited(&self, budget: &FleetBudget, now: Timestamp) -> u32 {
        let is_awaited = !budget.quota.has_remote_checks() && now < self.lacked.1.after(RETRIED_BY);
        if is_awaited { self.lacked.0 } else { 0 }
    }

    /// Whether a request was refused before the last command.
    pub(super) fn was_refused(&self) -> bool {
        self.lacked.0 > 0 && self.sent_at == Some(self.lacked.1)
    }

    /// When to check a key that needs no command now, unless the engine calls earlier.
    fn look_again(&self, holds: bool, has_plenty: bool, now: Timestamp) -> Timestamp {
        let sent_at = self.sent_at.unwrap_or(now);
        let end = self.busy.after(KEEP);
        let reports = holds && self.renews(has_plenty);
        let mut look = if reports { sent_at.after(REPORT_EVERY).min(end) } else { end };
        if !has_plenty {
            look = look.min(self.busy.after(self.idle_after()));
            if holds {
                look = look.min(now.after(BACK_AFTER));
            }
        }
        if look > now { look } else { now.after(REPORT_EVERY) }
    }

    /// Builds the command from the engine's report and the number of tokens to return.
    pub(super) fn ask(
        &mut self,
        reported: &ShareReport,
        back: u32,
        cell_quota: CellQuota,
        (budget, window): (&FleetBudget, Option<CellWindow>),
        pace: &Pace,
        random: u32,
    ) -> CellRequest {
        if reported.missing_max > 0 {
            self.lacked = (reported.missing_max, pace.now);
            self.note_cost(reported.missing_max, pace.now);
        }
        let waited = self.sent_at.map_or(EVERY, |sent| pace.now.since(sent));
        let before = self.demand;
        let seen = match self.sent_at {
            None if self.calls => self.begin_demand(reported, pace.now),
            // A debt of an outage: nothing is requested now.
            None => 0,
            Some(_) => self.measure_demand(reported.requested, pace.now),
        };
        self.measured = (0, pace.now);
        if reported.requested == self.requests_sent && pace.now >= self.busy.after(self.idle_after()) {
            self.demand = 0;
        }
        self.requests_sent = 0;
        self.is_rising = reported.requested >= RISING_MIN && seen > 2 * before;
        // After a jump in demand, cover half an interval at the new demand.
        let soon = if reported.requested >= RISING_MIN {
            needed(seen, EVERY / 2, self.supply(budget), pace)
        } else {
            0
        };
        let wanted = self.target(reported, budget, pace).max(soon).min(self.hold_max(budget, pace));
        let want = if back == 0 { wanted.saturating_sub(reported.borrowed) } else { 0 };
        let needed = u64::from(want) * TOKEN;
        let own_part = self.own_part(reported.debt, waited, budget, pace);
        let want = needed.min(own_part).min(self.fair(reported.debt, waited, budget, pace));
        // Who wants nothing, as after a move to another entry, does not set the numbers of the cell.
        let cell_quota = CellQuota { version: if want > 0 { cell_quota.version } else { 0 }, ..cell_quota };
        self.calls = false;
        let (refund, paid_us) = (u64::from(reported.refund) * TOKEN, reported.paid_us);
        // Returned window tokens were never spent: they are reported apart from refunds of spent ones.
        let back = if window.is_some() { back.saturating_sub(reported.refund) } else { back };
        (self.sent_at, self.in_flight) = (Some(pace.now), true);
        CellRequest {
            key: self.cell,
            cell_quota,
            last: self.last,
            hold: u64::from(reported.borrowed) * TOKEN,
            back: u64::from(back) * TOKEN,
            owed: u64::from(reported.debt) * TOKEN,
            want,
            demand: self.demand,
            waited_us: Micros::from(waited.min(WAITED_MAX)).0,
            random,
            known_age_us: self.last_reply.and_then(|reply| reply.age_us(pace.now)),
            window: window.map(|window| WindowRequest { window, refund, paid_us }),
        }
    }

    /// Applies a reply to the command sent at `sent`. Returns whether that command was in flight.
    pub(super) fn apply_reply(
        &mut self,
        (ask, reply): (&CellRequest, &CellReply),
        sent: Timestamp,
        pace: &Pace,
    ) -> bool {
        let now = pace.now;
        if !self.in_flight || self.sent_at != Some(sent) {
            return false;
        }
        let report =
            CellReport { hold: ask.hold + reply.grant, demand: ask.demand, generation: reply.generation };
        (self.in_flight, self.last) = (false, Some(report));
        let window = ask.window.map(|ask| ask.window).zip(reply.window);
        self.last_reply = Some(LastReply::new(&ask.cell_quota, reply.level, window, now));
        self.more = window.and_then(|(_, reply)| reply.next_increase(now));
        self.level = reply.level;
        self.fleet_demand = reply.demand;
        self.users = reply.hosts;
        self.own = self.own.map(|own| own.saturating_sub(reply.grant));
        self.is_short = reply.grant < ask.want || self.own.is_some();
        self.token_takes = match window {
            Some(_) => EVERY,
            None => token_takes(ask.cell_quota.rate, self.demand, reply.demand),
        };
        true
    }

    /// Forgets the last report if the command sent at that time may or may not have run.
    pub(super) fn record_failure(&mut self, sent: Timestamp) {
        if self.sent_at == Some(sent) {
            self.forget();
        }
    }

    /// Forgets the last report: the state of Redis is unknown.
    pub(super) fn forget(&mut self) {
        (self.in_flight, self.last) = (false, None);
    }

    /// Whether other hosts may count tokens or demand of this host.
    pub(super) fn is_believed(&self) -> bool {
        self.last.is_none_or(|last| last.hold > 0 || last.demand > 0)
    }

    /// Notes the cost of a remote check or of a refused request, which the bucket must have room for.
    pub(super) fn note_cost(&mut self, cost: u32, now: Timestamp) {
        if cost >= self.heaviest.0 || now >= self.heaviest.1.after(KEEP) {
            self.heaviest = (cost, now);
        }
    }

    /// Whether Redis counts more tokens as held here than there are.
    pub(super) fn has_spent(&self, there: &ShareReport) -> bool {
        self.held() > u64::from(there.borrowed) * TOKEN
    }

    /// Tokens in the last report, µtok.
    fn held(&self) -> u64 {
        self.last.map_or(0, |last| last.hold)
    }

    /// When to check a key after its reply.
    pub(super) fn after(&self, budget: &FleetBudget, now: Timestamp) -> Timestamp {
        let sent = self.sent_at.unwrap_or(now);
        if let Some(NextIncrease { at, is_exhausted: true }) = self.more
            && self.held() == 0
        {
            return at.min(now.after(KEEP)).max(now);
        }
        if self.calls {
            return self.soonest(now);
        }
        if self.is_short {
            // Two commands per token suffice.
            let again = (self.token_takes / 2).clamp(EVERY, REPORT_EVERY);
            return sent.after(again.min(self.idle_after())).max(now);
        }
        if self.has_plenty(budget) {
            return self.look_again(self.held() > 0, true, now);
        }
        sent.after(BACK_AFTER.min(self.idle_after())).max(now)
    }
}

/// The interval of commands about a key in demand (T).
pub(super) const EVERY: Duration = Duration::from_millis(100);

/// The least interval of commands about a key with enough tokens.
const GAP_MIN: Duration = Duration::from_millis(2);

/// Unneeded tokens return after this time.
const BACK_AFTER: Duration = Duration::from_millis(250);

/// A caller that reads `Retry-After` in whole seconds has retried by then.
const RETRIED_BY: Duration = Duration::from_millis(1_100);

/// The interval of reports about held tokens, well before [`crate::engine::ShareReply`] expires.
const REPORT_EVERY: Duration = Duration::from_millis(900);

/// How long the state of an idle key is kept.
const KEEP: Duration = Duration::from_secs(10);

/// Redis has expired the report of an idle key by then.
const FORGOTTEN: Duration = Duration::from_secs(4);

/// With plenty, held tokens are renewed before they expire from this demand on, mtok/s; below it they expire.
const RENEWED_FROM: u64 = 1_000;

/// Allowance for a reply beyond the round trip.
const SLACK: Duration = Duration::from_millis(10);

/// Upper bound of the waiting time that counts for a share.
const WAITED_MAX: Duration = Duration::from_secs(1);

/// Fewer requests than this at once are no sign of growth.
const RISING_MIN: u32 = 3;

/// Demand has ended when this number of expected requests did not come.
const OVER_AFTER: u32 = 8;

const MICROS: u64 = 1_000_000;

#[cfg(test)]
mod tests;
