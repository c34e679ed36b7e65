//! Hosts that were cut off come back one by one. Whoever is back lives on its own part for as long as the others may do so:
//! else the first would be given all that is earned, while they spend their parts beside it.

use crate::clock::Timestamp;
use std::time::Duration;

/// Who may be away still.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Absence {
    /// When Redis was last found not to be heard.
    cut_off: Option<Timestamp>,
    /// When it was heard again after that.
    back: Option<Timestamp>,
    /// Hosts that Redis had heard by itself when it was last asked, if those from before the outage are no longer counted.
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

    /// So many were heard by Redis of late.
    pub(super) fn counted(&mut self, alive: u32, now: Timestamp) {
        if self.cut_off.is_none_or(|cut_off| now >= cut_off.after(COUNTED)) {
            self.alive = alive;
        }
    }

    /// Whether others, of so many hosts in all, may live on their own parts still.
    pub(super) fn others_are_away(&self, hosts: u32, now: Timestamp) -> bool {
        self.alive < hosts && self.back.is_some_and(|back| now < back.after(BACK_BY))
    }
}

/// Redis counts a host for so long after it was last heard.
const COUNTED: Duration = Duration::from_secs(5);

/// A new connection is tried at least so often, and a beat says soon after that its host is there: who is not back by then
/// is gone.
const BACK_BY: Duration = Duration::from_secs(7);
