//! After an outage, a reconnected host stays within its own share while others may be in fallback; otherwise
//! the first one back would borrow all new tokens while the others still spend their shares.

use crate::clock::Timestamp;
use std::time::Duration;

/// Whether hosts may still be in fallback.
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

    /// Records the number of hosts that Redis counts.
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

/// Redis counts a host for this time after its last heartbeat.
const COUNTED: Duration = Duration::from_secs(5);

/// Hosts reconnect at least this often, and send a heartbeat soon after; a host absent for longer is gone.
const BACK_BY: Duration = Duration::from_secs(7);
