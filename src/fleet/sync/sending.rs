//! Batching of commands, and resending until they are answered.

use super::{BatchParts, Sync};
use crate::clock::Timestamp;
use crate::fleet::book::NEVER;
use crate::fleet::call::{Bucket, CELLS_MAX, ScriptCommand};
use crate::fleet::cell::CellRequest;
use crate::fleet::lanes::{Sequences, UnansweredBatch};
use std::time::Duration;

impl Sync {
    /// Adds a command to the batch of its cell bucket, which is sent when full.
    pub(super) fn gather(
        &mut self,
        asks: &mut BatchParts,
        bucket: Bucket,
        ask: (usize, CellRequest),
        now: Timestamp,
        out: &mut Vec<ScriptCommand>,
    ) {
        let batch = asks.entry(bucket).or_default();
        batch.push(ask);
        if batch.len() == CELLS_MAX {
            let batch = std::mem::take(batch);
            self.send(bucket, batch, now, out);
        }
    }

    /// Sends the batches that are not full.
    pub(super) fn send_rest(&mut self, asks: BatchParts, now: Timestamp, out: &mut Vec<ScriptCommand>) {
        for (bucket, batch) in asks.into_iter().filter(|(_, batch)| !batch.is_empty()) {
            self.send(bucket, batch, now, out);
        }
    }

    pub(super) fn send(
        &mut self,
        bucket: Bucket,
        batch: Vec<(usize, CellRequest)>,
        now: Timestamp,
        out: &mut Vec<ScriptCommand>,
    ) {
        let offer = self.dice.bytes();
        let who = (self.options.host, self.options.epoch, offer);
        let (pages, asks): (Vec<usize>, Vec<CellRequest>) = batch.into_iter().unzip();
        let lanes = bucket.of_each(&mut self.lanes);
        match lanes.send(who, asks, pages, now) {
            Ok(batch) => out.push(ScriptCommand::Sync(batch.clone())),
            // The caller has checked for a free lane. Should there be none, the report counts as not sent.
            Err(pages) => {
                for number in pages {
                    self.book.page_mut(number).forget();
                    if self.book.wait(number) {
                        lanes.wait(number);
                    }
                }
            }
        }
    }

    pub(super) fn give_up(&mut self, now: Timestamp) {
        if now < self.give_up {
            return;
        }
        self.give_up = now.after(GIVE_UP_EVERY);
        let flights: Vec<UnansweredBatch> =
            self.lanes.iter_mut().flat_map(|lanes| lanes.give_up(now)).collect();
        for flight in flights {
            self.happened.given_up += 1;
            self.start_over(&flight, now);
        }
        self.give_up_places(now);
    }

    pub(super) fn repeat(&mut self, now: Timestamp, out: &mut Vec<ScriptCommand>) {
        if now < self.again {
            return;
        }
        self.again = NEVER;
        for flight in self.lanes.iter_mut().flat_map(Sequences::flights) {
            let Some(again) = &mut flight.again else { continue };
            if *again <= now {
                *again = NEVER;
                self.happened.repeats += 1;
                out.push(ScriptCommand::Sync(flight.batch.clone()));
            }
            self.again = self.again.min(*again);
        }
    }
}

/// Unanswered batches are resent after at most this time.
pub(super) const AGAIN_AFTER: Duration = Duration::from_millis(100);

const GIVE_UP_EVERY: Duration = Duration::from_secs(1);
