//! Windows that many hosts share. What is in hand is judged as that of a bucket is; what differs is when there is more: not
//! a little with every moment, but all of it, or what leaves, at one that Redis tells.

use super::{Quota, Share};
use crate::clock::{Micros, Now, Timestamp};
use crate::limit::{self, Rate, RateError, Scale, fixed_window, sliding_window, token_bucket};
use std::sync::Arc;
use std::time::Duration;

/// How the windows of a budget turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// What each host would count for itself.
    like: limit::Quota,
    turns: Turns,
}

/// What turns windows, in microseconds of Unix time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turns {
    /// All are of one length.
    Every {
        /// How many sub-buckets count: one of a fixed window, one more than there are in one that slides.
        slots: u32,
        /// How long each of them is.
        step: u64,
        /// Where one of them began.
        origin: u64,
    },
    /// They are those of a calendar: [`Window::edges`] tells which.
    Calendar,
}

/// Why hosts cannot share a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WindowFault {
    /// It begins with the first request of a key, of which other hosts know nothing.
    #[error("its windows begin with the first request of a key")]
    OfEachKey,
    /// It is over before hosts have heard of each other.
    #[error("its windows are shorter than a second")]
    TooShort,
    /// It is of another algorithm.
    #[error("it is no window")]
    NoWindow,
    /// It cannot be counted.
    #[error(transparent)]
    Rate(#[from] RateError),
}

impl Quota {
    /// A budget of so much in each window as this one, which counts on one host.
    ///
    /// # Errors
    /// A window that hosts cannot share.
    pub fn of_window(
        like: limit::Quota,
        credit: u16,
        when_down: super::WhenDown,
    ) -> Result<Quota, WindowFault> {
        let (count, nanos, turns) = match &like {
            limit::Quota::FixedWindow(window) => {
                (window.count(), window.window().0.saturating_mul(NANOS_PER_MICRO), of_fixed(window)?)
            }
            limit::Quota::SlidingWindow(window) => {
                (window.count(), window.window_nanos(), of_sliding(window))
            }
            _ => return Err(WindowFault::NoWindow),
        };
        if nanos < WINDOW_NANOS_MIN {
            return Err(WindowFault::TooShort);
        }
        // One scale for all budgets of a rule, overrides included: that of their windows.
        let scale = if nanos <= FINE_NANOS_MAX { Scale::FINEST } else { Scale::of(Rate::new(1, nanos)?) };
        let bucket = token_bucket::Quota::on_scale(Rate::new(count, nanos)?, count, scale)?;
        // Credit comes back within a window: half at once and half in its course are all of it.
        let credit = if credit == 0 { 0 } else { (credit / 2).max(1) };
        let window = Some(Arc::new(Window { like, turns }));
        Ok(Quota { window, ..Quota::new(bucket, credit, when_down) })
    }

    /// The time over which the limit is given out.
    #[must_use]
    pub fn span(&self) -> Micros {
        self.window().map_or(self.bucket.window(), |window| window.like.window())
    }

    /// How its windows turn; `None`: it is a bucket.
    #[must_use]
    pub fn window(&self) -> Option<&Window> {
        self.window.as_deref()
    }
}

fn of_fixed(window: &fixed_window::Quota) -> Result<Turns, WindowFault> {
    if window.is_of_each_key() {
        return Err(WindowFault::OfEachKey);
    }
    let whole = |(step, origin): &(u64, u64)| {
        step.is_multiple_of(NANOS_PER_MICRO) && origin.is_multiple_of(NANOS_PER_MICRO)
    };
    Ok(window.regular().filter(whole).map_or(Turns::Calendar, |(step, origin)| Turns::Every {
        slots: 1,
        step: step / NANOS_PER_MICRO,
        origin: origin / NANOS_PER_MICRO,
    }))
}

fn of_sliding(window: &sliding_window::Quota) -> Turns {
    let parts = u32::from(window.buckets()).max(PARTS_MIN);
    let step = window.window_nanos().div_ceil(NANOS_PER_MICRO).div_ceil(u64::from(parts));
    Turns::Every { slots: parts + 1, step, origin: 0 }
}

impl Window {
    /// What each host would count for itself.
    #[must_use]
    pub const fn like(&self) -> &limit::Quota {
        &self.like
    }

    /// How it turns.
    #[must_use]
    pub const fn turns(&self) -> Turns {
        self.turns
    }

    /// Whether it slides: then there is more whenever something leaves, and else at its end.
    #[must_use]
    pub const fn slides(&self) -> bool {
        matches!(self.turns, Turns::Every { slots: 2.., .. })
    }

    /// How long the window lasts, or the part of one that slides, by the clock of this host.
    #[must_use]
    pub fn until_edge(&self, now: Now) -> Micros {
        let unix_nanos = now.at.as_nanos().saturating_add_signed(now.utc);
        let edge = match (&self.like, self.turns) {
            (limit::Quota::FixedWindow(window), _) => window.edges(unix_nanos).1,
            (_, Turns::Every { step, .. }) => {
                let step = step.saturating_mul(NANOS_PER_MICRO).max(1);
                (unix_nanos - unix_nanos % step).saturating_add(step)
            }
            _ => unix_nanos,
        };
        Micros(edge.saturating_sub(unix_nanos).div_ceil(NANOS_PER_MICRO))
    }

    /// Where the window begins that lies around a moment, where the next one takes its place, and where that ends: all in
    /// microseconds of Unix time. The moment may be a little off: it is taken for an earlier one, by a part of a window.
    #[must_use]
    pub fn edges(&self, unix_us: u64) -> (u64, u64, u64) {
        let limit::Quota::FixedWindow(window) = &self.like else { return (0, 0, 0) };
        let early = (window.window().0 / 4).min(EARLY_US);
        let nanos = |us: u64| us.saturating_mul(NANOS_PER_MICRO);
        let (start, turn) = window.edges(nanos(unix_us.saturating_sub(early)));
        let (_, finish) = window.edges(turn);
        (start / NANOS_PER_MICRO, turn / NANOS_PER_MICRO, finish / NANOS_PER_MICRO)
    }
}

/// When there is more of a window, as Redis has said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct More {
    /// From then on.
    pub at: Timestamp,
    /// Nobody gets any before.
    pub is_spent_out: bool,
}

impl Share {
    /// Takes what Redis has said of a window: from what cost on a request is refused before there is more. Whatever it says,
    /// a window is over after its length; a month may be longer than thirty days, and a day than 24 hours.
    pub(super) fn hear_more(&mut self, quota: &Quota, now: Timestamp, more: Option<More>) {
        if let Some(More { at, is_spent_out }) = more {
            let span = Duration::from_micros(quota.span().0);
            self.refused_until = at.min(now.after(span + span / 10));
            self.refused_cost = if is_spent_out { 1 } else { u32::MAX };
        }
    }

    /// What Redis has of a window by now, in millionths of a unit, given what it had and what others have taken since.
    pub(super) fn left_of_window(&self, quota: &Quota, now: Timestamp, level: i64) -> i64 {
        let is_full = now >= self.refused_until && self.refused_until > Timestamp::ORIGIN;
        match quota.window() {
            // What leaves one that slides is not known: at the least enough for one.
            Some(window) if is_full && window.slides() => level.max(super::MICRO_UNITS.cast_signed()),
            Some(_) if is_full => quota.derived.full,
            _ => level.min(quota.derived.full),
        }
    }

    /// How long until there is more of a window, as far as is known.
    pub(super) fn until_more(&self, now: Timestamp) -> Option<Micros> {
        let nanos = self.refused_until.as_nanos().checked_sub(now.as_nanos()).filter(|nanos| *nanos > 0)?;
        Some(Micros(nanos.div_ceil(NANOS_PER_MICRO)))
    }
}

/// Shorter ones are over before hosts have heard of each other.
const WINDOW_NANOS_MIN: u64 = 1_000_000_000;

/// What the finest scale holds of time.
const FINE_NANOS_MAX: u64 = 180 * 86_400 * 1_000_000_000;

/// Parts of a window that slides, where its rule says fewer: what is counted leaves up to a part too late.
const PARTS_MIN: u32 = 10;

/// A host that has just heard the clock of Redis does not know it better than this.
const EARLY_US: u64 = 5_000_000;

const NANOS_PER_MICRO: u64 = 1_000;
