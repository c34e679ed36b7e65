//! Work that may wait for one call where its host has no idle place.

use super::{Places, Quota};
use crate::clock::Timestamp;
use std::time::Duration;

/// Whether work may wait for a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Asks {
    /// What finds no place is refused.
    #[default]
    Never,
    /// What finds no place waits.
    OnMiss,
}

impl Quota {
    /// The same, with work that may wait for a call.
    #[must_use]
    pub fn asking(self, asks: Asks) -> Quota {
        Quota { asks, ..self }
    }

    /// The same, with work that waits no longer than this.
    #[must_use]
    pub fn waiting(self, patience: Duration) -> Quota {
        Quota { patience, ..self }
    }

    /// How long work waits for a call at most.
    #[must_use]
    pub const fn patience(&self) -> Duration {
        self.patience
    }

    /// Whether there are so few places for so many hosts that one often finds none while others lie idle.
    #[must_use]
    pub fn is_few(&self, hosts: u32) -> bool {
        u64::from(self.max) < u64::from(A_HOST) * u64::from(hosts)
    }

    /// Whether work may wait for a call.
    #[must_use]
    pub fn may_ask(&self) -> bool {
        self.asks == Asks::OnMiss
    }

    /// Whether hosts borrow only what somebody waits for, and give it back as soon as it is idle: there are few, and Redis
    /// answers in time.
    #[must_use]
    pub fn lends_for_work_alone(&self) -> bool {
        self.joined.get().is_some_and(|joined| {
            self.is_few(joined.standing.hosts()) && self.may_ask() && joined.standing.is_answering()
        })
    }

    /// Whether a call might bring a place. Who was just told that there is none need not ask again.
    #[must_use]
    pub fn may_bring(&self, places: Option<&Places>, now: Timestamp) -> bool {
        let is_refused = places.is_some_and(|places| now < places.refused_until);
        let is_answering = || self.joined.get().is_some_and(|joined| joined.standing.is_answering());
        !is_refused && self.may_ask() && is_answering()
    }

    /// Whether a call might bring a place, as far as is known.
    #[must_use]
    pub fn may_pass_elsewhere(&self, places: Option<&Places>, now: Timestamp) -> bool {
        let known = places.filter(|places| now < places.lapses);
        known.is_none_or(|places| places.free > 0) && self.may_bring(places, now)
    }
}

impl Places {
    /// Keeps an idle place for who has waited for one. Returns whether there is one.
    pub fn claim(&mut self, in_use: u32, now: Timestamp) -> bool {
        let is_idle = in_use < self.unclaimed(now);
        self.claimed = self.claimed.saturating_add(u32::from(is_idle));
        is_idle
    }

    /// Who has waited for a place takes it now, or has no use for it.
    pub fn unclaim(&mut self, in_use: u32, now: Timestamp) {
        self.claimed = self.claimed.saturating_sub(1);
        self.end(in_use, now);
    }
}

/// Places for each host below which borrowing ahead of need does badly: they lie idle where nobody needs them.
pub const A_HOST: u32 = 4;
