//! What is known of one key that others are kept in touch with about: what Redis believes, how much is asked for here, and
//! from that what to ask of Redis, and when.

mod demand;
mod pace;
mod window;

use super::cell::{Ask, Report, Said, TOKEN, Terms};
use super::window::{CellWindow, Returned, Stands, WindowAsk};
use crate::clock::Timestamp;
use crate::engine::{Budget, Reported, SharedKey};
use demand::{needed, own_part, token_takes};
pub(super) use pace::Pace;
use std::time::Duration;
pub(super) use window::{cell_window, terms};

/// One key.
#[derive(Debug)]
pub(super) struct Page {
    pub(super) key: SharedKey,
    /// The last report that Redis surely has; `None`: it is not known what Redis has.
    last: Option<Report>,
    /// When it was last asked about.
    asked_at: Option<Timestamp>,
    /// Whether a request about it is in flight.
    pub(super) in_flight: bool,
    /// What is asked for here, in thousandths of a token a second.
    demand: u64,
    /// When there is more of a window, and whether nobody gets any before.
    more: Option<(Timestamp, bool)>,
    /// When Redis last spoke of it, and for how long it then surely keeps it.
    known: Option<(Timestamp, Duration)>,
    /// What all hosts have, as last said.
    level: i64,
    fleet_demand: u64,
    /// Far more is asked for than the demand of before tells.
    is_rising: bool,
    /// Less was granted than was wanted.
    is_short: bool,
    /// Less was wanted than is needed, for others are not back yet.
    is_paced: bool,
    /// In which time this host's part of what is earned is a token, as last said.
    token_takes: Duration,
    /// A request was refused before it was last asked about.
    pub(super) refused: bool,
    /// It has called since it was last asked about: it does not call again before it is.
    pub(super) calls: bool,
    /// How often it had been asked for since the last report, when it was last looked at.
    asked: u32,
    /// When that was last seen to grow.
    busy: Timestamp,
    /// When to look at it next.
    pub(super) due: Timestamp,
    /// It is looked at when its bucket has room, and not before.
    pub(super) waits: bool,
}

/// What to do about a key that was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Ask Redis, giving back so many tokens.
    Ask(u32),
    /// Look again then.
    Look(Timestamp),
    /// Nobody asks for it any more.
    LetGo,
}

impl Page {
    pub(super) fn new(key: SharedKey, now: Timestamp) -> Page {
        Page {
            key,
            last: None,
            asked_at: None,
            in_flight: false,
            demand: 0,
            more: None,
            known: None,
            level: 0,
            fleet_demand: 0,
            is_rising: false,
            is_short: false,
            is_paced: false,
            token_takes: EVERY,
            refused: false,
            calls: false,
            asked: 0,
            busy: now,
            due: now,
            waits: false,
        }
    }

    /// The earliest moment to ask again: what is in demand everywhere is asked for at the pace of all.
    pub(super) fn soonest(&self, now: Timestamp) -> Timestamp {
        let gap = match (self.is_short, self.is_rising) {
            (false, _) => GAP_MIN,
            (true, true) => EVERY / 10,
            (true, false) => self.token_takes.clamp(EVERY / 2, EVERY),
        };
        self.asked_at.map_or(now, |asked| asked.after(gap)).max(now)
    }

    /// What to do, given what there is.
    pub(super) fn next(&mut self, there: &Reported, budget: &Budget, pace: &Pace) -> Next {
        if there.asked != self.asked || there.owed > 0 {
            self.busy = pace.now;
            self.asked = there.asked;
        }
        self.turn(budget, pace.now);
        let borrows = budget.quota.borrows(pace.hosts);
        let Some(asked_at) = self.asked_at else {
            return Next::Ask(if borrows { 0 } else { there.held });
        };
        let has_plenty = self.has_plenty(budget);
        let is_over = self.is_over(pace.now);
        let target = if is_over { 0 } else { self.target(there, budget, pace) };
        // Where there is plenty, nobody needs what is left here: it lapses without a word.
        let excess = if borrows && has_plenty {
            0
        } else if is_over || !borrows {
            there.held
        } else if there.held > target + target / 2 && pace.now >= asked_at.after(BACK_AFTER) {
            there.held - target
        } else {
            0
        };
        let is_wanted = there.asked > 0
            && !self.is_spent_out()
            && (self.calls || self.is_short && there.held < target || there.held < self.low(budget, pace));
        let is_to_be_told = !has_plenty
            && is_over
            && pace.now < asked_at.after(FORGOTTEN)
            && self.last.is_some_and(|last| last.demand > 0);
        let is_lapsing =
            there.held > 0 && self.renews(has_plenty).is_some_and(|after| pace.now >= asked_at.after(after));
        let is_owed = there.owed > 0 && (self.calls || !has_plenty || pace.now >= asked_at.after(OWED_MAX));
        let is_to_be_settled = is_owed || there.returns > 0 || excess > 0;
        if is_to_be_settled || is_wanted || is_to_be_told || is_lapsing {
            let soonest = self.soonest(pace.now);
            return if soonest > pace.now { Next::Look(soonest) } else { Next::Ask(excess) };
        }
        if there.held == 0 && there.owed == 0 && pace.now >= self.busy.after(KEEP) {
            return Next::LetGo;
        }
        Next::Look(self.look_again(there.held > 0, has_plenty, pace.now))
    }

    /// Whether nobody asks for it any more: it was silent for as long as many requests take.
    fn is_over(&self, now: Timestamp) -> bool {
        self.demand > 0 && now >= self.busy.after(self.silence())
    }

    /// How long it is silent by mere chance less than once in a thousand times.
    fn silence(&self) -> Duration {
        let micros = u64::from(OVER_AFTER) * 1_000 * MICROS / self.demand.max(1);
        Duration::from_micros(micros).max(EVERY / 5)
    }

    /// When to look at a key about which nothing is to be said now, unless it calls before.
    fn look_again(&self, holds: bool, has_plenty: bool, now: Timestamp) -> Timestamp {
        let asked_at = self.asked_at.unwrap_or(now);
        let end = self.busy.after(KEEP);
        let report = self.renews(has_plenty).filter(|_| holds).map(|after| asked_at.after(after));
        let mut look = report.unwrap_or(end).min(end);
        if !has_plenty {
            look = look.min(self.busy.after(self.silence()));
            if holds {
                look = look.min(now.after(BACK_AFTER));
            }
        }
        if look > now { look } else { now.after(REPORT_EVERY) }
    }

    /// What to ask, given what was reported and so many tokens given back.
    pub(super) fn ask(
        &mut self,
        reported: &Reported,
        back: u32,
        terms: Terms,
        (budget, window): (&Budget, Option<CellWindow>),
        pace: &Pace,
        dice: u32,
    ) -> Ask {
        let is_first = self.asked_at.is_none();
        let waited = self.asked_at.map_or(EVERY, |asked| pace.now.since(asked));
        let before = self.demand;
        let seen = if is_first {
            self.begin_demand(reported, pace.now)
        } else {
            self.note_demand(reported.asked, waited)
        };
        if reported.asked == self.asked && pace.now >= self.busy.after(self.silence()) {
            self.demand = 0;
        }
        self.asked = 0;
        self.is_rising = reported.asked >= RISING_MIN && seen > 2 * before;
        let target = u64::from(self.target(reported, budget, pace));
        // Who asks for more than the demand of before tells has for half of the time: then it tells more. Over what span the
        // first were asked for nobody knows: they come again some times before the next answer.
        let soon =
            if reported.asked >= RISING_MIN { needed(seen, EVERY / 2, self.supply(budget), pace) } else { 0 };
        let first = match is_first {
            true if self.is_rising => START * u64::from(reported.asked),
            true => u64::from(budget.quota.credit() > 0 && !budget.quota.lends_one(pace.hosts)),
            false => 0,
        };
        let wanted = target.max(u64::from(soon)).max(first);
        let wanted = wanted.min(u64::from(budget.quota.bucket().burst()));
        let borrows = back == 0 && budget.quota.borrows(pace.hosts);
        let want = if borrows { wanted.saturating_sub(u64::from(reported.held)) } else { 0 };
        let needed = want.saturating_mul(TOKEN);
        let paced =
            if pace.others_are_away { needed.min(own_part(waited, dice, budget, pace)) } else { needed };
        self.is_paced = paced < needed;
        let want = paced.min(self.fair(reported.owed, waited, budget, pace));
        let knew = self.known.map(|(at, kept)| (pace.now.since(at), kept)).filter(|(age, kept)| age < kept);
        self.calls = false;
        let returned = Returned { amount: u64::from(reported.returns) * TOKEN, paid_us: reported.paid_us };
        // What goes back to a window from the hand was never spent: it is said apart from what was.
        let back = if window.is_some() { back.saturating_sub(reported.returns) } else { back };
        (self.asked_at, self.in_flight) = (Some(pace.now), true);
        Ask {
            key: self.key.name(),
            terms,
            last: self.last,
            hold: u64::from(reported.held) * TOKEN,
            back: u64::from(back) * TOKEN,
            owed: u64::from(reported.owed) * TOKEN,
            want,
            demand: self.demand,
            waited_us: micros(waited.min(WAITED_MAX)),
            dice,
            knew_us: knew.map(|(age, _)| micros(age)),
            window: window.map(|window| WindowAsk { window, returned }),
        }
    }

    /// Takes what Redis said, at the latest at the moment `heard`, to what was asked when it was `sent`. Returns whether it was
    /// the answer to the request in flight.
    pub(super) fn hear(
        &mut self,
        (ask, said): (&Ask, &Said),
        (sent, heard): (Timestamp, Timestamp),
        pace: &Pace,
    ) -> bool {
        let now = pace.now;
        if !self.in_flight || self.asked_at != Some(sent) {
            return false;
        }
        let report = Report { hold: ask.hold + said.grant, demand: ask.demand, generation: said.generation };
        (self.in_flight, self.last) = (false, Some(report));
        let window = ask.window.zip(said.window);
        let kept_us = match &window {
            Some((ask, said)) => ask.window.lasts_us(said),
            None => ask.terms.kept_us(said.level),
        };
        self.known = Some((now, Duration::from_micros(kept_us)));
        self.more = window.filter(|(_, said)| said.more_us > 0).map(|(_, said)| {
            (heard.after(Duration::from_micros(said.more_us)), said.stands == Stands::SpentOut)
        });
        self.level = said.level;
        self.fleet_demand = said.demand;
        self.is_short = said.grant < ask.want || self.is_paced;
        self.token_takes = match window {
            Some(_) => EVERY,
            None => token_takes(ask.terms.rate, self.demand, said.demand),
        };
        true
    }

    /// Whether a question about it was heard will never be known.
    pub(super) fn lose(&mut self, sent: Timestamp) {
        if self.asked_at == Some(sent) {
            self.forget();
        }
    }

    /// Nobody knows what Redis believes.
    pub(super) fn forget(&mut self) {
        (self.in_flight, self.last) = (false, None);
    }

    /// Whether others may believe that this host has or wants something.
    pub(super) fn is_believed(&self) -> bool {
        self.last.is_none_or(|last| last.hold > 0 || last.demand > 0)
    }

    /// What it was last reported to hold, µtok.
    fn held(&self) -> u64 {
        self.last.map_or(0, |last| last.hold)
    }

    /// When to look again at a key that was just spoken of.
    pub(super) fn after(&self, budget: &Budget, now: Timestamp) -> Timestamp {
        let asked = self.asked_at.unwrap_or(now);
        if let Some((at, true)) = self.more
            && self.held() == 0
        {
            return at.min(now.after(KEEP)).max(now);
        }
        if self.calls {
            return self.soonest(now);
        }
        if self.is_short {
            // Twice for each token is often enough.
            let again = (self.token_takes / 2).clamp(EVERY, REPORT_EVERY);
            return asked.after(again.min(self.silence())).max(now);
        }
        if self.has_plenty(budget) {
            return self.look_again(self.held() > 0, true, now);
        }
        asked.after(BACK_AFTER.min(self.silence())).max(now)
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

/// How often Redis is asked about a key that is in demand (T).
pub(super) const EVERY: Duration = Duration::from_millis(100);

/// A key that there is enough of is asked about no faster than this.
const GAP_MIN: Duration = Duration::from_millis(2);

/// What is not needed goes back after this long.
const BACK_AFTER: Duration = Duration::from_millis(250);

/// Who holds something says so again this often, well before [`crate::engine::Settled`] lapses.
const REPORT_EVERY: Duration = Duration::from_millis(900);

/// How long a key is kept in touch about that nobody asks for.
const KEEP: Duration = Duration::from_secs(10);

/// What Redis was told of a key that nobody speaks of any more it has forgotten by then.
const FORGOTTEN: Duration = Duration::from_secs(4);

/// Where there is plenty, debts that are small are told with what is asked next, or after this long.
const OWED_MAX: Duration = Duration::from_secs(2);

/// Where there is plenty, what is held is asked for again shortly before it lapses, if it is used so often: in thousandths of
/// a token a second. Else it lapses, and who comes next asks anew.
const RENEWED_FROM: u64 = 1_000;

const RENEW_AFTER: Duration = Duration::from_millis(1_500);

/// What an answer may take beside the way there and back.
const SLACK: Duration = Duration::from_millis(10);

/// Longer than this nobody has waited for his part of what is earned.
const WAITED_MAX: Duration = Duration::from_secs(1);

/// Fewer than this in one go are no sign of anything.
const RISING_MIN: u32 = 3;

/// Who starts wants so many times what was asked for before anybody could know: enough until the next answer.
const START: u64 = 4;

/// So many requests would have come if it were not over.
const OVER_AFTER: u32 = 8;

const MICROS: u64 = 1_000_000;
