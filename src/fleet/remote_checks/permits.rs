//! Requests that wait for a permit: a command wants one for each. Granted permits go to the oldest checks.

use super::PendingChecks;
use crate::clock::Now;
use crate::engine::{SharedKey, Shortfalls};
use crate::fleet::permits::PermitSync;
use std::collections::VecDeque;

/// The checks that wait for a permit of one key, by number, oldest first.
#[derive(Debug)]
pub(super) struct PermitQueue {
    key: SharedKey,
    checks: VecDeque<u64>,
    /// The last ones, for which no command has been sent.
    new: usize,
}

impl PendingChecks {
    /// Queues a check for each permit that its request lacks. Returns how many.
    pub(super) fn queue_for_permits(&mut self, shortfalls: &Shortfalls, number: u64) -> usize {
        let mut permits = 0;
        for need in shortfalls.needs.iter().filter(|need| need.is_permit) {
            permits += 1;
            let position = self.queues.iter().position(|queue| queue.key.name() == need.key.name());
            let position = position.unwrap_or(self.queues.len());
            if position == self.queues.len() {
                self.queues.push(PermitQueue { key: need.key, checks: VecDeque::new(), new: 0 });
            }
            if let Some(queue) = self.queues.get_mut(position) {
                // The limit that holds now: that of an override counts the same leases.
                queue.key = need.key;
                queue.checks.push_back(number);
                queue.new += 1;
            }
        }
        permits
    }

    /// Grants free permits to waiting checks and requests the missing ones. Call it after checks were queued, after a
    /// reply about permits, and at each iteration of the sync task.
    pub fn tend_permits(&mut self, permits: &mut PermitSync, now: Now) {
        let unanswered = permits.take_unanswered();
        if self.queues.is_empty() {
            return;
        }
        self.expire(now.at);
        for mut queue in std::mem::take(&mut self.queues) {
            self.grant(&mut queue, now);
            let unanswered = unanswered.iter().filter(|(key, _)| key.name() == queue.key.name());
            let unanswered = unanswered.map(|(_, count)| count).sum();
            let requested = permits.requested(&queue.key);
            self.end(&mut queue, requested, unanswered, now);
            let new = std::mem::take(&mut queue.new);
            if new > 0 {
                permits.request(queue.key, new, &self.engine, now);
            }
            if !queue.checks.is_empty() {
                self.queues.push(queue);
            }
        }
    }

    /// Grants the idle permits of this host to the oldest checks.
    fn grant(&mut self, queue: &mut PermitQueue, now: Now) {
        queue.checks.retain(|number| self.checks.contains_key(number));
        queue.new = queue.new.min(queue.checks.len());
        let limits = self.engine.fleet_concurrency_limits();
        let Some(limit) = limits.get(&queue.key.budget()) else { return };
        while let Some(number) = queue.checks.front().copied() {
            let Some(permit) = self.engine.claim_permit(&queue.key, limit, now) else { return };
            queue.checks.pop_front();
            let Some(open) = self.checks.get_mut(&number) else {
                unreachable!("a permit claimed for no check would stay reserved")
            };
            open.reply.add_permit(permit);
            self.end_part(number, now);
            queue.new = queue.new.min(queue.checks.len());
        }
    }

    /// Ends the checks that no command will get a permit for, the youngest first: Redis has refused them, or its reply
    /// is unknown.
    fn end(&mut self, queue: &mut PermitQueue, requested: usize, mut unanswered: usize, now: Now) {
        while queue.checks.len() > queue.new + requested {
            let youngest = queue.checks.len() - queue.new - 1;
            let Some(number) = queue.checks.remove(youngest) else { return };
            if unanswered > 0 {
                unanswered -= 1;
                self.end_unanswered(number, now.at);
            } else {
                self.end_part(number, now);
            }
        }
    }
}
