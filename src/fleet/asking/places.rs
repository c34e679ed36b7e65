//! Requests that wait for a permit: the host asks for as many permits as it has waiting requests and grants
//! them in order of arrival. Permits left over stay in the host's share and are returned from there.

use super::PendingChecks;
use crate::clock::Now;
use crate::engine::{SharedKey, Shortfalls};
use crate::fleet::call::ScriptCommand;
use crate::fleet::sync::{PermitCheckReply, Sync};
use std::collections::VecDeque;
use std::time::Duration;

/// The tickets that wait for a permit of one key, oldest first.
#[derive(Debug)]
pub(super) struct PermitQueue {
    key: SharedKey,
    tickets: VecDeque<u64>,
}

impl PendingChecks {
    /// Queues a ticket for each permit it needs. Returns their number.
    pub(super) fn queue_up(&mut self, ticket: &Shortfalls, number: u64) -> usize {
        let mut places = 0;
        for need in ticket.needs.iter().filter(|need| need.is_permit) {
            places += 1;
            match self.queues.iter_mut().find(|queue| queue.key == need.key) {
                Some(queue) => queue.tickets.push_back(number),
                None => self.queues.push(PermitQueue { key: need.key, tickets: VecDeque::from([number]) }),
            }
        }
        places
    }

    /// Grants free permits to waiting tickets and asks Redis for the missing ones. Call it after a ticket was
    /// queued, after a reply about permits, and at each iteration of the sync task.
    pub fn tend_places(&mut self, sync: &mut Sync, now: Now, out: &mut Vec<ScriptCommand>) {
        let told = sync.take_places_told();
        if self.queues.is_empty() {
            return;
        }
        self.expire(now.at);
        for mut queue in std::mem::take(&mut self.queues) {
            self.hand_out(&mut queue, now);
            let told = told.iter().find(|told| told.key == queue.key);
            if let Some(PermitCheckReply { is_short: true, .. }) = told {
                self.send_away(&mut queue, sync.round_trip(), now);
            }
            let waiting = u32::try_from(queue.tickets.len()).unwrap_or(u32::MAX);
            sync.wait_for_places(queue.key, waiting, &self.engine, now);
            if waiting > 0 {
                self.queues.push(queue);
            }
        }
        sync.say_places(&self.engine, now, out);
    }

    /// Grants the idle permits of this host to the oldest tickets.
    fn hand_out(&mut self, queue: &mut PermitQueue, now: Now) {
        queue.tickets.retain(|ticket| self.tickets.contains_key(ticket));
        let limits = self.engine.fleet_concurrency_limits();
        let Some(limit) = limits.get(&queue.key.budget()) else { return };
        while let Some(ticket) = queue.tickets.front().copied() {
            let Some(place) = self.engine.claim_permit(&queue.key, limit, now) else { return };
            queue.tickets.pop_front();
            let Some(open) = self.tickets.get_mut(&ticket) else {
                unreachable!("a place is claimed for who waits: it would be kept for nobody")
            };
            open.brought.add_permit(place);
            self.came(ticket, now);
        }
    }

    /// Handles "no permit free": ends tickets whose deadline comes before the next request to Redis. The
    /// others keep waiting, as a permit just released elsewhere may be on its way.
    fn send_away(&mut self, queue: &mut PermitQueue, round_trip: Duration, now: Now) {
        let again = now.at.after(AGAIN + round_trip);
        let mut gone = Vec::new();
        queue.tickets.retain(|ticket| {
            let Some(open) = self.tickets.get_mut(ticket) else { return false };
            open.is_told = true;
            let stays = again < open.due;
            if !stays {
                gone.push(*ticket);
            }
            stays
        });
        gone.into_iter().for_each(|ticket| self.came(ticket, now));
    }
}

/// Time to the next request to Redis: the shortest gap and one iteration of the sync task.
const AGAIN: Duration = Duration::from_millis(3);
