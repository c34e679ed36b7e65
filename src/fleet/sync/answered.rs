//! Handling of replies to batches, and of batches without one.

use super::{CellReply, Now, Sync, SyncBatch, Timestamp};
use crate::engine::ShareReply;
use crate::fleet::cell::TOKEN;
use crate::fleet::command::Payment;
use crate::fleet::key_sync::EVERY;
use crate::fleet::reply::{CommandReply, PaymentResult};
use crate::fleet::window::WindowStatus;
use std::time::Duration;

impl Sync {
    /// Applies a reply. Returns whether Redis has created the bucket anew: it has lost its data.
    pub fn answered(&mut self, batch: &SyncBatch, answer: &CommandReply<CellReply>, now: Now) -> bool {
        self.record_reply(now.at.since(batch.head.sent_at), now.at);
        self.clock.record_reply(answer.now_us, now.at);
        let is_lost = self.buckets.answered(&batch.head, answer.born_us);
        self.counts.batches += 1;
        let (pace, sent_at) = (self.pace(now.at), batch.head.sent_at);
        assert_eq!(
            batch.numbers.len(),
            answer.results.len(),
            "a reply is read cell by cell: without its own the entry waits on"
        );
        for ((number, ask), reply) in batch.numbers.iter().zip(&batch.asks).zip(&answer.results) {
            self.counts.cells += 1;
            self.counts.lost += u64::from(reply.lost);
            let below = reply.level.min(0).unsigned_abs();
            self.counts.excess += below.min(ask.owed) / TOKEN;
            let Some(entry) = self.key_table.entry_of(*number, &ask.key) else {
                continue;
            };
            if !entry.apply_reply((ask, reply), sent_at, &pace) {
                continue;
            }
            let mistake = self.tallies.record_reply(entry.rule, (ask, reply), entry.was_refused(), now.at);
            self.counts.false_refusals += u64::from(mistake);
            let Some(budget) = self.budgets.get(&entry.key.budget()) else {
                self.close(*number);
                continue;
            };
            let settled = ShareReply {
                paid: if is_noted(reply) { tokens(ask.owed) } else { 0 },
                granted: tokens(reply.grant),
                // While other hosts may be in fallback, they spend from the same level: no credit on it.
                level: if pace.others_are_away && budget.quota.credit() > 0 {
                    reply.level.min(0)
                } else {
                    reply.level
                },
                demand: reply.demand,
                sent_at,
                next_increase: reply
                    .window
                    .and_then(|reply| reply.next_increase(now.at.after(pace.round_trip + TURNS))),
                low_mark: if budget.quota.borrows(pace.hosts) { entry.low(budget, &pace) } else { 0 },
            };
            self.counts.expired +=
                u64::from(self.engine.apply_share_reply(&entry.key, budget, &settled, now));
            let at = entry.after(budget, now.at);
            self.key_table.schedule(*number, at);
        }
        is_lost
    }

    /// Records the versions in the reply to remote checks.
    pub(in crate::fleet) fn record_versions(&mut self, payment: &Payment, results: &[PaymentResult]) {
        let needs = payment.checks.iter().flat_map(|check| &check.needs);
        for (need, paid) in needs.zip(results) {
            if let Some(budget) = self.budgets.get(&need.key.budget()) {
                self.tallies.record_version(budget.rule_number, paid.version);
            }
        }
    }

    /// Handles a batch that may or may not have run: nothing of it counts as reported.
    pub fn failed(&mut self, batch: &SyncBatch, now: Timestamp) {
        self.round_trip.missed(now);
        self.counts.unanswered += 1;
        self.buckets.failed(&batch.head);
        for (number, ask) in batch.numbers.iter().zip(&batch.asks) {
            let at = now.after(self.rng.up_to(EVERY));
            if let Some(entry) = self.key_table.entry_of(*number, &ask.key) {
                entry.record_failure(batch.head.sent_at);
                self.key_table.schedule(*number, at);
            }
        }
    }
}

/// Whether Redis counted the reported debt: a report for a window that is not the present one creates no
/// cell, and is counted only in an existing one.
fn is_noted(reply: &CellReply) -> bool {
    reply.window.is_none_or(|window| window.stands != WindowStatus::OtherWindow || reply.hosts > 0)
}

fn tokens(micro: u64) -> u32 {
    u32::try_from(micro / TOKEN).unwrap_or(u32::MAX)
}

/// The two ticks in which new tokens are fetched, and a margin.
const TURNS: Duration = Duration::from_millis(6);
