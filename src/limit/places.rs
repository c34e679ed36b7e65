//! A host's places of one concurrency limit that many hosts have together: borrowed ahead of need, used and freed here
//! without asking anybody, and given back when they lie idle.
//!
//! ```text
//!   Redis: `max` places of a key       free + all that hosts have ≤ max
//!      ▲ given back      │ granted
//!   this host: places ───┴──▶ each held by work in progress, or idle
//! ```
//!
//! Promise: while a host hears Redis it begins nothing for which it has no place, and all places together are never more
//! than `max`. Who is not answered for as long as a hold lasts has no places any more: what is in progress goes on, and
//! nothing new begins but what `on_redis_down` says. Work in progress that has no place is reported like work that has one:
//! nobody gets a place until all of it fits.
//!
//! How much is in progress is not kept here: [`InProgress`](super::concurrency::InProgress) counts it, on every host.

mod asking;
mod sync;

pub use asking::{A_HOST, Asks};
pub use sync::{Reported, Settled};

use std::num::NonZeroU32;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::share::{HOLD, PATIENCE, Standing, WhenDown};
use super::{Level, Outcome};
use crate::clock::{Micros, Timestamp};

/// The number of one limit.
#[derive(Clone, Debug)]
pub struct Quota {
    max: u32,
    when_down: WhenDown,
    asks: Asks,
    /// How long a request waits for a call at most.
    patience: Duration,
    joined: Arc<OnceLock<Joined>>,
}

/// What a limit is part of.
#[derive(Debug)]
struct Joined {
    standing: Arc<Standing>,
    budget: u64,
}

impl Quota {
    /// At most `max` at once, on all hosts together.
    #[must_use]
    pub fn new(max: NonZeroU32, when_down: WhenDown) -> Quota {
        let (asks, joined) = (Asks::Never, Arc::default());
        Quota { max: max.get(), when_down, asks, patience: PATIENCE, joined }
    }

    /// The most at once.
    #[must_use]
    pub const fn max(&self) -> u32 {
        self.max
    }

    /// What holds while Redis is not heard.
    #[must_use]
    pub const fn when_down(&self) -> WhenDown {
        self.when_down
    }

    /// Joins the fleet under a number of its own: from now on this is how the host stands. Until then it is judged as if
    /// there were no other host. Whoever joins twice stays where it is.
    pub fn join(&self, standing: &Arc<Standing>, budget: u64) {
        self.joined.get_or_init(|| Joined { standing: Arc::clone(standing), budget });
    }

    /// The number under which it has joined, if it has.
    #[must_use]
    pub fn budget(&self) -> Option<u64> {
        self.joined.get().map(|joined| joined.budget)
    }

    /// How much may be in progress here for another to begin. `places`: what this host has of the key, if anything.
    #[must_use]
    pub fn usable(&self, places: Option<&Places>, now: Timestamp) -> u32 {
        places.map_or(0, |places| places.held(now)).min(self.max).max(self.beyond_hand())
    }

    /// How much may be in progress here, whatever is in hand.
    fn beyond_hand(&self) -> u32 {
        let Some(joined) = self.joined.get() else { return self.max };
        if joined.standing.is_linked() { 0 } else { self.unheard(&joined.standing) }
    }

    /// The same where Redis does not answer.
    fn unheard(&self, standing: &Standing) -> u32 {
        match self.when_down {
            // One at least, as of tokens: an outage is no reason to refuse everything. What is left over of the division
            // nobody has.
            WhenDown::Share => (self.max / standing.hosts().max(1)).max(1),
            WhenDown::Local => self.max,
            WhenDown::Allow => u32::MAX,
            WhenDown::Refuse => 0,
        }
    }

    /// Judges one more, where so much is in progress here. When others end is not known: a refusal names no time.
    #[inline]
    pub fn judge(&self, places: Option<&Places>, in_use: u32, now: Timestamp) -> Outcome {
        // With a place in hand it does not matter how this host stands with the others.
        let in_hand = places.map_or(0, |places| places.unclaimed(now)).min(self.max);
        let passes = in_use < in_hand || in_use < self.beyond_hand();
        if passes { Outcome::Pass } else { Outcome::Later(Micros::ZERO) }
    }

    /// What a reply says about a key: what this host could begin now, and what Redis last had besides. An estimate: other
    /// hosts begin meanwhile.
    #[must_use]
    pub fn level(&self, places: Option<&Places>, in_use: u32, now: Timestamp) -> Level {
        let here = self.usable(places, now).saturating_sub(in_use);
        let known = places.filter(|places| now < places.lapses).map(|places| places.free);
        let elsewhere = match here {
            0 if !self.may_bring(places, now) => 0,
            // Nobody has said anything of it of late: others may have none.
            0 => known.unwrap_or(self.max),
            _ => known.unwrap_or(0),
        };
        Level {
            limit: u64::from(self.max),
            window: Micros::ZERO,
            remaining: u64::from(here.saturating_add(elsewhere).min(self.max)),
            reset: Micros::ZERO,
        }
    }
}

/// Who a limit is shared with is no part of its number.
impl PartialEq for Quota {
    fn eq(&self, other: &Quota) -> bool {
        let numbers = |quota: &Quota| (quota.max, quota.when_down, quota.asks, quota.patience);
        numbers(self) == numbers(other)
    }
}

impl Eq for Quota {}

/// The places that this host has of one key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// Which limit the key is of, for those elsewhere.
    budget: u64,
    /// How many it has, in use or not, until they lapse.
    granted: u32,
    lapses: Timestamp,
    /// How many nobody had, as Redis last said.
    free: u32,
    /// Asked for since the last report, refused or not; and begun of those.
    asked: u32,
    begun: u32,
    /// Refused since then to who could not wait for a call.
    unasked: u32,
    /// The most that was in progress since then.
    peak: u32,
    /// Redis is to be asked once fewer than this are idle.
    low: u32,
    /// Of those that it has, how many are kept for requests that have waited for them.
    claimed: u32,
    /// Redis has none for anybody here before that.
    refused_until: Timestamp,
    /// What lies idle is to go back at once.
    is_few: bool,
    /// Kept in touch about.
    in_touch: bool,
    /// Redis is to be asked soon.
    calls: Calls,
}

/// Longer than any outage that somebody waits for.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(3_600);

/// Whether Redis is to be asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Calls {
    #[default]
    No,
    /// Somebody is to be told.
    Yes,
    /// Somebody was told.
    Told,
}

impl Places {
    /// None of a key of this limit.
    #[must_use]
    pub fn of(budget: u64) -> Places {
        Places { budget, ..Places::default() }
    }

    /// None of a key of which work goes on that an earlier process let begin: others are to hear of it.
    #[must_use]
    pub fn left_behind(budget: u64, now: Timestamp) -> Places {
        Places { in_touch: true, calls: Calls::Told, lapses: now, ..Places::of(budget) }
    }

    /// The key is of this limit now.
    pub fn move_to(&mut self, budget: u64) {
        self.budget = budget;
    }

    /// Nanoseconds until nothing is lost with it: nobody has spoken of it for so long that its rule must be gone.
    #[must_use]
    pub fn nanos_until_forgotten(&self, now: Timestamp) -> u64 {
        let ends = if self.in_touch { self.lapses.after(FORGOTTEN_AFTER) } else { now };
        ends.as_nanos().saturating_sub(now.as_nanos())
    }

    /// Which limit the key is of.
    #[must_use]
    pub const fn budget(&self) -> u64 {
        self.budget
    }

    /// How many it has, in use or not.
    #[must_use]
    pub fn held(&self, now: Timestamp) -> u32 {
        if now < self.lapses { self.granted } else { 0 }
    }

    /// How many of them are not kept for somebody who has waited.
    fn unclaimed(&self, now: Timestamp) -> u32 {
        self.held(now).saturating_sub(self.claimed)
    }

    /// Whether it is kept in touch about.
    #[must_use]
    pub const fn is_in_touch(&self) -> bool {
        self.in_touch
    }

    /// One more has begun, and so much is in progress now.
    pub fn begin(&mut self, in_use: u32, now: Timestamp) {
        self.asked = self.asked.saturating_add(1);
        self.begun = self.begun.saturating_add(1);
        self.peak = self.peak.max(in_use);
        // What began without a place is to be told in any case.
        if !self.in_touch || self.held(now) < in_use.saturating_add(self.low) {
            self.call_at(now);
        }
    }

    /// One has ended, and so much is in progress yet.
    pub fn end(&mut self, in_use: u32, now: Timestamp) {
        if self.is_few && in_use < self.unclaimed(now) {
            self.call();
        }
    }

    /// One was refused. `could_ask`: it could have waited for a call.
    pub fn refuse(&mut self, could_ask: bool, now: Timestamp) {
        self.asked = self.asked.saturating_add(1);
        self.unasked = self.unasked.saturating_add(u32::from(!could_ask));
        self.call_at(now);
    }

    /// Whether somebody is to be told that Redis is to be asked about this key.
    #[must_use]
    pub fn calls_soon(&self) -> bool {
        self.calls == Calls::Yes
    }

    /// The same, and it says so once.
    pub fn calls(&mut self) -> bool {
        let calls = self.calls == Calls::Yes;
        if calls {
            self.calls = Calls::Told;
        }
        calls
    }

    /// Who has called and was not heard of since calls again now and then: whom he told may have forgotten.
    fn call_at(&mut self, now: Timestamp) {
        if self.calls == Calls::Told && now >= self.lapses.after(HOLD) {
            (self.calls, self.granted, self.lapses) = (Calls::Yes, 0, now);
        }
        self.call();
    }

    fn call(&mut self) {
        if self.calls == Calls::No {
            self.calls = Calls::Yes;
        }
    }
}
