//! Batches of the requests of one tick.

use super::{BatchParts, Sync};
use crate::clock::Timestamp;
use crate::fleet::call::{Bucket, CELLS_MAX, ScriptCommand, SyncBatch};
use crate::fleet::cell::CellRequest;

impl Sync {
    /// Adds a request to the batch of its cell bucket, which is sent when full.
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
            out.push(self.command(bucket, batch, now));
        }
    }

    /// Sends the batches that are not full.
    pub(super) fn send_rest(&mut self, asks: BatchParts, now: Timestamp, out: &mut Vec<ScriptCommand>) {
        for (bucket, batch) in asks.into_iter().filter(|(_, batch)| !batch.is_empty()) {
            out.push(self.command(bucket, batch, now));
        }
    }

    fn command(&mut self, bucket: Bucket, batch: Vec<(usize, CellRequest)>, now: Timestamp) -> ScriptCommand {
        let head = bucket.of_each(&mut self.buckets).send(bucket, now);
        let (numbers, asks) = batch.into_iter().unzip();
        ScriptCommand::Sync(SyncBatch { head, asks, numbers })
    }
}
