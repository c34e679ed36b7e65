//! The host count for shares: grows at once and shrinks only after 30 s, so that the share of a host that is
//! away for a moment stays unused instead of being used twice.

use crate::clock::Timestamp;
use std::time::Duration;

#[derive(Clone, Copy, Debug, Default)]
pub struct HostCount {
    hosts: u32,
    /// When this count was last reached.
    seen: Timestamp,
    /// The greatest count since then.
    since: u32,
    /// When the last count came.
    replied_at: Timestamp,
}

impl HostCount {
    /// Takes the number of live hosts. Returns the host count for shares.
    pub fn update(&mut self, alive: u32, now: Timestamp) -> u32 {
        let alive = alive.max(1);
        if now.since(self.replied_at) >= COUNTED {
            // After a silence other hosts return one by one: wait another 30 s before counting fewer.
            (self.seen, self.since) = (now, 0);
        }
        self.replied_at = now;
        if alive >= self.hosts {
            (self.hosts, self.seen, self.since) = (alive, now, 0);
            return alive;
        }
        self.since = self.since.max(alive);
        if now.since(self.seen) >= FEWER_AFTER {
            (self.hosts, self.seen, self.since) = (self.since, now, 0);
        }
        self.hosts
    }
}

/// Whether hosts may still be in fallback: after an outage, a reconnected host stays within its own share meanwhile;
/// otherwise the first one back would borrow all new tokens while the others still spend their shares.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Absence {
    /// When the last outage began.
    cut_off: Option<Timestamp>,
    /// When it ended.
    back: Option<Timestamp>,
    /// Hosts that Redis counted at the last reply, without those counted from before the outage.
    alive: u32,
}

impl Absence {
    pub(super) fn set_linked(&mut self, linked: bool, now: Timestamp) {
        if linked {
            self.back = self.cut_off.map(|_| now);
        } else {
            *self = Absence { cut_off: Some(now), ..Absence::default() };
        }
    }

    pub(super) fn counted(&mut self, alive: u32, now: Timestamp) {
        if self.cut_off.is_none_or(|cut_off| now >= cut_off.after(COUNTED)) {
            self.alive = alive;
        }
    }

    /// Whether other hosts of this total may still be in fallback.
    pub(super) fn others_are_away(&self, hosts: u32, now: Timestamp) -> bool {
        self.alive < hosts && self.back.is_some_and(|back| now < back.after(BACK_BY))
    }
}

const FEWER_AFTER: Duration = Duration::from_secs(30);

/// Redis counts a host for this time after its last heartbeat.
const COUNTED: Duration = Duration::from_secs(5);

/// Hosts reconnect at least this often, and send a heartbeat soon after; a host absent for longer has left.
const BACK_BY: Duration = Duration::from_secs(7);
