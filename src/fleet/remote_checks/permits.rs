//! Requests that wait for a permit: a command wants one for each. Granted permits go to the oldest tickets.

use super::PendingChecks;
use crate::clock::Now;
use crate::engine::{SharedKey, Shortfalls};
use crate::fleet::permits::PermitSync;
use std::collections::VecDeque;

/// The tickets that wait for a permit of one key, oldest first.
#[derive(Debug)]
pub(super) struct PermitQueue {
    key: SharedKey,
    tickets: VecDeque<u64>,
    /// The last ones, for which no command has been sent.
    new: usize,
}

impl PendingChecks {
    /// Queues a ticket for each permit it needs. Returns their number.
    pub(super) fn queue_up(&mut self, ticket: &Shortfalls, number: u64) -> usize {
        let mut permits = 0;
        for need in ticket.needs.iter().filter(|need| need.is_permit) {
            permits += 1;
            let position = self.queues.iter().position(|queue| queue.key.name() == need.key.name());
            let position = position.unwrap_or(self.queues.len());
            if position == self.queues.len() {
                self.queues.push(PermitQueue { key: need.key, tickets: VecDeque::new(), new: 0 });
            }
            if let Some(queue) = self.queues.get_mut(position) {
                // The limit that holds now: that of an override counts the same leases.
                queue.key = need.key;
                queue.tickets.push_back(number);
                queue.new += 1;
            }
        }
        permits
    }

    /// Grants free permits to waiting tickets and requests the missing ones. Call it after tickets were queued, after a
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
            if !queue.tickets.is_empty() {
                self.queues.push(queue);
            }
        }
    }

    /// Grants the idle permits of this host to the oldest tickets.
    fn grant(&mut self, queue: &mut PermitQueue, now: Now) {
        queue.tickets.retain(|ticket| self.tickets.contains_key(ticket));
        queue.new = queue.new.min(queue.tickets.len());
        let limits = self.engine.fleet_concurrency_limits();
        let Some(limit) = limits.get(&queue.key.budget()) else { return };
        while let Some(ticket) = queue.tickets.front().copied() {
            let Some(permit) = self.engine.claim_permit(&queue.key, limit, now) else { return };
            queue.tickets.pop_front();
            let Some(open) = self.tickets.get_mut(&ticket) else {
                unreachable!("a permit claimed for no ticket would stay reserved")
            };
            open.reply.add_permit(permit);
            self.end_part(ticket, now);
            queue.new = queue.new.min(queue.tickets.len());
        }
    }

    /// Ends the tickets that no command is to get a permit for, the youngest first: Redis has refused them, or its answer is
    /// unknown.
    fn end(&mut self, queue: &mut PermitQueue, requested: usize, mut unanswered: usize, now: Now) {
        while queue.tickets.len() > queue.new + requested {
            let youngest = queue.tickets.len() - queue.new - 1;
            let Some(ticket) = queue.tickets.remove(youngest) else { return };
            if unanswered > 0 {
                unanswered -= 1;
                self.end_unanswered(ticket, now.at);
            } else {
                self.end_part(ticket, now);
            }
        }
    }
}
