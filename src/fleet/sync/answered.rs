//! Handling of replies to batches.

use super::{CellReply, Engine, Now, Sync, SyncBatch, Timestamp, UnansweredBatch};
use crate::engine::{NextIncrease, ShareReply};
use crate::fleet::cell::TOKEN;
use crate::fleet::lanes::Sequences;
use crate::fleet::page::EVERY;
use crate::fleet::reply::{CommandReply, ReplyKind};
use crate::fleet::window::{WindowReply, WindowStatus};
use std::time::Duration;

impl Sync {
    /// Applies the reply to a batch.
    pub fn answered(
        &mut self,
        batch: &SyncBatch,
        answer: CommandReply<Vec<CellReply>>,
        engine: &Engine,
        now: Now,
    ) {
        let place = &batch.place;
        let lanes = place.bucket.of_each(&mut self.lanes);
        let Some(flight) = lanes.land(place) else { return };
        let took = flight.again.is_none().then(|| now.at.since(flight.sent));
        self.round_trip.heard(took, now.at);
        if !flight.is_repeated {
            self.clock.heard(answer.now_us, now.at);
        }
        match answer.kind {
            ReplyKind::Done(said) => {
                let before = lanes.nonce.replace(answer.nonce);
                self.happened.flushed += u64::from(before.is_some_and(|nonce| nonce != answer.nonce));
                self.happened.batches += 1;
                self.settle(&flight, &said, engine, now);
            }
            ReplyKind::Stale => {
                self.happened.stale += 1;
                self.rename();
                self.start_over(&flight, now.at);
            }
            ReplyKind::Unknown => {
                self.happened.unknown += 1;
                lanes.renew(place.lane);
                self.start_over(&flight, now.at);
            }
        }
    }

    fn settle(&mut self, flight: &UnansweredBatch, said: &[CellReply], engine: &Engine, now: Now) {
        let pace = self.pace(now.at);
        // The reply to a resent batch may have been computed at its first attempt.
        let heard = if flight.is_repeated { flight.sent.after(pace.round_trip).min(now.at) } else { now.at };
        assert_eq!(
            flight.about.len(),
            said.len(),
            "a reply is read cell by cell: without its own a page waits on"
        );
        for ((number, ask), said) in flight.about.iter().zip(&flight.batch.asks).zip(said) {
            self.happened.cells += 1;
            self.happened.lost += u64::from(said.lost);
            let below = said.level.min(0).unsigned_abs();
            self.happened.excess += below.min(ask.owed) / TOKEN;
            let Some(page) = self.book.page_of(*number, &ask.key) else {
                continue;
            };
            if !page.hear((ask, said), (flight.sent, heard), &pace) {
                continue;
            }
            let mistake = self.tallies.hears(page.key.budget(), (ask, said), page.refused, now.at);
            self.happened.false_refusals += u64::from(mistake);
            let Some(budget) = self.budgets.get(&page.key.budget()) else {
                self.close(*number);
                continue;
            };
            let settled = ShareReply {
                paid: if is_noted(said) { tokens(ask.owed) } else { 0 },
                granted: tokens(said.grant),
                // While other hosts may be in fallback, they spend from the same level: no credit on it.
                level: if pace.others_are_away { said.level.min(0) } else { said.level },
                demand: said.demand,
                sent_at: flight.sent,
                next_increase: said.window.and_then(|said| more(&said, heard.after(pace.round_trip + TURNS))),
                low_mark: if budget.quota.borrows(pace.hosts) { page.low(budget, &pace) } else { 0 },
            };
            self.happened.lapsed += u64::from(engine.apply_share_reply(&page.key, budget, &settled, now));
            let at = page.after(budget, now.at);
            self.book.schedule(*number, at);
        }
    }

    /// Resets the keys of a batch that may or may not have run: nothing of it counts as reported.
    pub(super) fn start_over(&mut self, flight: &UnansweredBatch, now: Timestamp) {
        for (number, ask) in flight.about.iter().zip(&flight.batch.asks) {
            let at = now.after(self.dice.up_to(EVERY));
            if let Some(page) = self.book.page_of(*number, &ask.key) {
                page.lose(flight.sent);
                self.book.schedule(*number, at);
            }
        }
    }

    /// Takes a new name, as another daemon uses this one.
    pub fn rename(&mut self) {
        self.options.host = self.dice.bytes();
        self.lanes.iter_mut().for_each(Sequences::renew_all);
        self.places.renew_all();
    }
}

/// Whether Redis counted the reported debt: a report for a window that is not the present one creates no
/// cell, and is counted only in an existing one.
fn is_noted(said: &CellReply) -> bool {
    said.window.is_none_or(|window| window.stands != WindowStatus::OtherWindow || said.hosts > 0)
}

/// When the window has more tokens, which the host fetches then: counted from `from`.
fn more(said: &WindowReply, from: Timestamp) -> Option<NextIncrease> {
    let is_spent_out = said.stands == WindowStatus::SpentOut;
    (said.more_us > 0).then(|| NextIncrease {
        at: from.after(Duration::from_micros(said.more_us)),
        is_exhausted: is_spent_out,
    })
}

fn tokens(micro: u64) -> u32 {
    u32::try_from(micro / TOKEN).unwrap_or(u32::MAX)
}

/// The two ticks in which new tokens are fetched, and a margin.
const TURNS: Duration = Duration::from_millis(6);
