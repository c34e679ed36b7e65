//! Handling of replies to batches, and of batches without one.

use super::{CellReply, Engine, Now, Sync, SyncBatch, Timestamp};
use crate::engine::{NextIncrease, ShareReply};
use crate::fleet::cell::TOKEN;
use crate::fleet::page::EVERY;
use crate::fleet::reply::CommandReply;
use crate::fleet::window::{WindowReply, WindowStatus};
use std::time::Duration;

impl Sync {
    /// Applies the reply to a batch.
    pub fn answered(
        &mut self,
        batch: &SyncBatch,
        answer: &CommandReply<Vec<CellReply>>,
        engine: &Engine,
        now: Now,
    ) {
        self.round_trip.heard(now.at.since(batch.head.sent_at), now.at);
        self.clock.heard(answer.now_us, now.at);
        let is_lost = batch.head.bucket.of_each(&mut self.buckets).answered(answer.born_us);
        self.happened.flushed += u64::from(is_lost);
        self.happened.batches += 1;
        self.settle(batch, &answer.results, engine, now);
    }

    fn settle(&mut self, batch: &SyncBatch, said: &[CellReply], engine: &Engine, now: Now) {
        let pace = self.pace(now.at);
        let sent_at = batch.head.sent_at;
        assert_eq!(
            batch.numbers.len(),
            said.len(),
            "a reply is read cell by cell: without its own a page waits on"
        );
        for ((number, ask), said) in batch.numbers.iter().zip(&batch.asks).zip(said) {
            self.happened.cells += 1;
            self.happened.lost += u64::from(said.lost);
            let below = said.level.min(0).unsigned_abs();
            self.happened.excess += below.min(ask.owed) / TOKEN;
            let Some(page) = self.book.page_of(*number, &ask.key) else {
                continue;
            };
            if !page.hear((ask, said), sent_at, &pace) {
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
                sent_at,
                next_increase: said
                    .window
                    .and_then(|said| more(&said, now.at.after(pace.round_trip + TURNS))),
                low_mark: if budget.quota.borrows(pace.hosts) { page.low(budget, &pace) } else { 0 },
            };
            self.happened.lapsed += u64::from(engine.apply_share_reply(&page.key, budget, &settled, now));
            let at = page.after(budget, now.at);
            self.book.schedule(*number, at);
        }
    }

    /// Handles a batch that may or may not have run: nothing of it counts as reported.
    pub fn failed(&mut self, batch: &SyncBatch, now: Timestamp) {
        self.round_trip.missed(now);
        self.happened.unanswered += 1;
        batch.head.bucket.of_each(&mut self.buckets).failed();
        for (number, ask) in batch.numbers.iter().zip(&batch.asks) {
            let at = now.after(self.dice.up_to(EVERY));
            if let Some(page) = self.book.page_of(*number, &ask.key) {
                page.lose(batch.head.sent_at);
                self.book.schedule(*number, at);
            }
        }
    }

    /// Takes a new name, as another daemon uses this one.
    pub fn rename(&mut self) {
        self.options.host = self.dice.bytes();
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
