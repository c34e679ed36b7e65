//! What is reported of the places of a key to Redis, and what comes of its answer.

use super::{Calls, Places};
use crate::clock::Timestamp;
use crate::limit::share::HOLD;
use std::time::Duration;

/// What a host has of one key, as it is reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reported {
    /// Places that it has and that have not lapsed.
    pub held: u32,
    /// Work in progress, with a place or without.
    pub in_use: u32,
    /// The most that was in progress since the last report.
    pub peak: u32,
    /// Asked for since the last report, refused or not.
    pub asked: u32,
    /// Begun of those.
    pub begun: u32,
    /// Refused to who could not wait for a call.
    pub unasked: u32,
    /// Places that are kept for requests that have waited for them.
    pub claimed: u32,
}

impl Reported {
    /// What nobody else may have: what is in progress has its place, whoever gave it.
    #[must_use]
    pub fn hold(&self) -> u32 {
        self.held.max(self.in_use)
    }

    /// What is in progress, or is about to be.
    #[must_use]
    pub fn taken(&self) -> u32 {
        self.in_use.saturating_add(self.claimed)
    }
}

/// What Redis has answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled {
    /// What was reported to be held.
    pub hold: u32,
    /// Places that were granted beside it.
    pub granted: u32,
    /// How many nobody has; below zero where hosts have more than there are.
    pub free: i64,
    /// When the report was first sent: what is held lapses so long after.
    pub sent: Timestamp,
    /// Redis is to be asked again once fewer than this are idle.
    pub low: u32,
    /// There was none for who waits: for so long nobody is to ask again. Zero: there was.
    pub refused_for: Duration,
    /// What lies idle from now on is to go back at once.
    pub is_few: bool,
}

impl Places {
    /// Reports what there is of the key, which is kept in touch about from now on. At most `keep` places stay: from now on
    /// nothing begins on the others.
    pub fn report(&mut self, keep: u32, in_use: u32, now: Timestamp) -> Reported {
        self.calls = Calls::Told;
        self.granted = self.held(now).min(keep);
        if !std::mem::replace(&mut self.in_touch, true) {
            self.lapses = self.lapses.max(now);
        }
        let reported = self.look(in_use, now);
        (self.asked, self.begun, self.unasked, self.peak) = (0, 0, 0, in_use);
        reported
    }

    /// Says what there is without changing anything.
    #[must_use]
    pub fn look(&self, in_use: u32, now: Timestamp) -> Reported {
        let Places { asked, begun, unasked, claimed, .. } = *self;
        Reported { held: self.held(now), in_use, peak: self.peak.max(in_use), asked, begun, unasked, claimed }
    }

    /// The same, by whoever was told that it calls: what lies idle from now on is told of anew.
    #[must_use]
    pub fn visit(&mut self, in_use: u32, now: Timestamp) -> Reported {
        if self.is_few {
            self.calls = Calls::No;
        }
        self.look(in_use, now)
    }

    /// Takes what Redis has answered, while so much is in progress.
    pub fn settle(&mut self, settled: &Settled, in_use: u32, now: Timestamp) {
        let lapses = settled.sent.after(HOLD);
        if lapses >= self.lapses {
            // Where all that hosts said they have fits, so does what is in progress here without a place. Where it does
            // not, others have been given what this host let lapse, and nothing begins in its stead.
            let kept = if settled.free >= 0 { settled.hold } else { self.held(now) };
            self.granted = kept.saturating_add(settled.granted);
            self.lapses = lapses;
        }
        if now >= self.lapses {
            self.granted = 0;
        }
        self.free = u32::try_from(settled.free.max(0)).unwrap_or(u32::MAX);
        (self.low, self.is_few) = (settled.low, settled.is_few);
        self.refused_until = now.after(settled.refused_for);
        self.calls = Calls::No;
        if self.asked > 0 && self.held(now).saturating_sub(in_use) < self.low {
            self.call();
        }
        // What ended while the answer was on its way.
        self.end(in_use, now);
    }

    /// Nothing more is said of the key until it calls. Returns whether that may be: there is no place and no work.
    pub fn let_go(&mut self, in_use: u32, now: Timestamp) -> bool {
        let may = in_use == 0 && self.held(now) == 0;
        if may {
            self.in_touch = false;
            self.granted = 0;
            self.calls = Calls::No;
        }
        may
    }
}
