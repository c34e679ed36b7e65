//! What Redis was told of a key, in one row of reports or in two: each report takes the place of the one before it in its row.
//!
//! One row has one question on its way. Where Redis is far, and there is less than hosts ask for, that is too slow: what was
//! granted is reported as held until it was told to be spent, and of a burst that is held so long nothing can be earned. With
//! one question on the way two thirds of a burst pass in twice the way there and back, with two questions all of it. To Redis
//! the rows are as two hosts, of which each holds a part of what this one holds.
//!
//! ```text
//!   held here + what is granted and on its way here  ≤  what both rows report as held, as Redis knows them
//! ```
//!
//! holds at every moment, in whatever order questions are heard: a row reports what the other one surely does not.

use crate::clock::Timestamp;
use crate::fleet::cell::{Ask, Report, Said};
use std::time::Duration;

/// The rows of reports about one key.
#[derive(Debug, Default)]
pub(super) struct Reports {
    /// Of the second one nothing is known to anybody while the rows are not two.
    rows: [Row; 2],
    is_double: bool,
    /// When there was last reason for two.
    reason: Timestamp,
    /// What was granted last, µtok.
    granted: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Row {
    /// The last report that was surely heard, and when it was sent.
    last: Option<(Report, Timestamp)>,
    /// When it was last asked in this row.
    asked_at: Option<Timestamp>,
    /// What was asked, until somebody answers.
    flight: Option<Flight>,
}

/// Of a question what the other row has to know, µtok.
#[derive(Clone, Copy, Debug)]
struct Flight {
    hold: u64,
    owed: u64,
    want: u64,
}

/// The row in which to ask, and what it is to leave to the other one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    row: usize,
    /// The last report in this row that was surely heard.
    pub(super) last: Option<Report>,
    /// When it was last asked in this row.
    pub(super) asked_at: Option<Timestamp>,
    /// What the other one surely reports as held. `None`: nobody can say, and this one reports all.
    elsewhere: Option<u64>,
    /// What it is about to have charged.
    charged: u64,
    /// What it is about to be granted, if that is as much as the last time, µtok.
    pub(super) coming: u64,
    is_double: bool,
}

impl Turn {
    /// Of what this host holds, the part that is reported here, µtok.
    pub(super) fn hold(&self, held: u64) -> u64 {
        held.saturating_sub(self.elsewhere.unwrap_or(0))
    }

    /// Of what it owes, the part that is told here, µtok.
    pub(super) fn owed(&self, owed: u64) -> u64 {
        owed.saturating_sub(self.charged)
    }

    /// Of what is asked of it, the part that is told here, mtok/s.
    pub(super) fn demand(&self, demand: u64) -> u64 {
        if self.is_double { demand / 2 } else { demand }
    }
}

impl Reports {
    /// When it was last asked about.
    pub(super) fn asked_at(&self) -> Option<Timestamp> {
        self.rows.iter().filter_map(|row| row.asked_at).max()
    }

    /// Whether a question is on its way.
    pub(super) fn in_flight(&self) -> bool {
        self.flights().next().is_some()
    }

    /// Whether nothing can be asked until there is an answer.
    pub(super) fn is_busy(&self) -> bool {
        self.flights().count() > usize::from(self.is_double)
    }

    /// Whether two questions may be on their way at once.
    pub(super) fn is_double(&self) -> bool {
        self.is_double
    }

    /// What is owed here and on its way to be charged, µtok.
    pub(super) fn owed_on_way(&self) -> u64 {
        self.flights().map(|flight| flight.owed).sum()
    }

    /// What was last heard to be held, µtok.
    pub(super) fn held(&self) -> u64 {
        self.heard().map(|last| last.hold).sum()
    }

    /// Whether others were told that it is asked for here.
    pub(super) fn is_in_demand(&self) -> bool {
        self.heard().any(|last| last.demand > 0)
    }

    /// Whether others may believe that this host has or wants something.
    pub(super) fn is_believed(&self) -> bool {
        let [first, second] = self.rows;
        let has = |(last, _): (Report, _)| last.hold > 0 || last.demand > 0;
        first.last.is_none_or(has) || second.last.is_some_and(has)
    }

    /// There is reason for two rows now, or none. Where there may be two they stay for a while: each change leaves something
    /// reported twice until Redis has forgotten it.
    pub(super) fn set_double(&mut self, has_reason: bool, may_stay: bool, now: Timestamp) {
        if has_reason {
            self.reason = now;
        }
        let stays = self.is_double && may_stay && now < self.reason.after(DOUBLE_FOR);
        self.is_double = has_reason || stays;
    }

    /// All is said in one row again.
    pub(super) fn end_double(&mut self) {
        self.is_double = false;
    }

    /// Where to ask next. Not while it is [busy](Reports::is_busy).
    pub(super) fn turn(&self, now: Timestamp) -> Turn {
        let [first, second] = &self.rows;
        let is_second = first.flight.is_some()
            || self.is_double && second.flight.is_none() && second.asked_at < first.asked_at;
        let (row, this, other) = if is_second { (1, second, first) } else { (0, first, second) };
        Turn {
            row,
            last: this.last.map(|(last, _)| last),
            asked_at: this.asked_at,
            elsewhere: if self.is_double { other.surely_holds(now) } else { None },
            charged: other.flight.map_or(0, |flight| flight.owed),
            coming: other.flight.map_or(0, |flight| flight.want.min(self.granted)),
            is_double: self.is_double,
        }
    }

    /// It is asked.
    pub(super) fn ask(&mut self, turn: &Turn, ask: &Ask, now: Timestamp) {
        for (number, row) in self.rows.iter_mut().enumerate() {
            if number == turn.row {
                let Ask { hold, owed, want, .. } = *ask;
                (row.asked_at, row.flight) = (Some(now), Some(Flight { hold, owed, want }));
            } else if turn.elsewhere.is_none() && row.flight.is_none() {
                // What it reported is reported here, and lapses there.
                row.last = None;
            }
        }
    }

    /// It is told. Since when all that is held is reported; `None`: nobody waits for this answer.
    pub(super) fn hear(&mut self, sent: Timestamp, ask: &Ask, said: &Said) -> Option<Timestamp> {
        let row = self.rows.iter_mut().find(|row| row.flight.is_some() && row.asked_at == Some(sent))?;
        let report = Report { hold: ask.hold + said.grant, demand: ask.demand, generation: said.generation };
        (row.flight, row.last) = (None, Some((report, sent)));
        self.granted = said.grant;
        let holding = self.rows.iter().filter_map(|row| row.last).filter(|(last, _)| last.hold > 0);
        Some(holding.map(|(_, sent)| sent).fold(sent, Timestamp::min))
    }

    /// Whether a question was heard will never be known.
    pub(super) fn lose(&mut self, sent: Timestamp) {
        self.rows.iter_mut().filter(|row| row.asked_at == Some(sent)).for_each(Row::forget);
    }

    /// Nobody knows what Redis believes.
    pub(super) fn forget(&mut self) {
        self.rows.iter_mut().for_each(Row::forget);
    }

    fn flights(&self) -> impl Iterator<Item = Flight> + '_ {
        self.rows.iter().filter_map(|row| row.flight)
    }

    fn heard(&self) -> impl Iterator<Item = Report> + '_ {
        self.rows.iter().filter_map(|row| row.last).map(|(last, _)| last)
    }
}

impl Row {
    /// What Redis counts as held in this row whether or not it has heard the question that is on its way, and will when one is
    /// heard that is asked now.
    fn surely_holds(&self, now: Timestamp) -> Option<u64> {
        let (last, _) = self.last.filter(|(_, sent)| now < sent.after(COUNTS))?;
        Some(self.flight.map_or(last.hold, |flight| flight.hold.min(last.hold)))
    }

    fn forget(&mut self) {
        (self.flight, self.last) = (None, None);
    }
}

/// For how long a row can be left what it reported. It lapses half a second later ([`crate::engine::Settled`]): by then the other
/// row has reported it.
const COUNTS: Duration = Duration::from_millis(1_400);

/// For how long there are two rows without reason: longer than what changes with each answer.
const DOUBLE_FOR: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests;
