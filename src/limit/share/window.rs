//! Windows shared by several hosts. Borrowed tokens are judged as for a bucket. The difference is the refill: not
//! continuous, but all units, or those that leave the window, at an instant that Redis reports.

use super::{Derived, ShareQuota, ShareState};
use crate::clock::{Micros, NANOS_PER_MICRO, Now, Timestamp};
use crate::limit::{self, LimitError, Rate, TickScale, fixed_window, sliding_window, token_bucket};
use std::sync::Arc;
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetWindow {
    /// The equivalent quota of a single host.
    like: limit::Quota,
    turns: WindowSchedule,
}

/// The schedule of windows, in microseconds of Unix time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowSchedule {
    /// All windows have the same length.
    Every {
        /// The number of sub-buckets that count: one for a fixed window, parts + 1 for a sliding one.
        slots: u32,
        /// The length of a sub-bucket.
        step: u64,
        /// The start of one of them.
        origin: u64,
    },
    /// Calendar windows: see [`BudgetWindow::edges`].
    Calendar,
}

/// The reason why hosts cannot share a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum SharedWindowError {
    #[error("its windows begin with the first request of a key")]
    PerKey,
    #[error("its windows are shorter than a second")]
    TooShort,
    #[error("it has no window")]
    NoWindow,
    #[error(transparent)]
    Rate(#[from] LimitError),
}

impl ShareQuota {
    /// Makes a budget with the limit and the windows of a single host's quota.
    ///
    /// # Errors A window that hosts cannot share.
    pub fn for_window(
        like: limit::Quota,
        credit: u16,
        when_down: super::Fallback,
    ) -> Result<ShareQuota, SharedWindowError> {
        let (count, nanos, turns) = match &like {
            limit::Quota::FixedWindow(window) => {
                (window.count(), window.window().as_nanos(), fixed_turns(window)?)
            }
            limit::Quota::SlidingWindow(window) => {
                (window.count(), window.window_nanos(), sliding_turns(window))
            }
            _ => return Err(SharedWindowError::NoWindow),
        };
        if nanos < WINDOW_NANOS_MIN {
            return Err(SharedWindowError::TooShort);
        }
        // One scale for all budgets of a rule, overrides included: the scale of their windows.
        let scale = if nanos <= FINE_NANOS_MAX {
            TickScale::FINEST
        } else {
            TickScale::for_rate(Rate::new(1, nanos)?)
        };
        let bucket = token_bucket::TokenBucketQuota::on_scale(Rate::new(count, nanos)?, count, scale)?;
        let window = Some(Arc::new(BudgetWindow { like, turns }));
        let share = ShareQuota { window, ..ShareQuota::new(bucket, credit, when_down) };
        Ok(ShareQuota { derived: Derived::new(&share), ..share })
    }

    /// The time over which the limit is granted.
    pub fn window_length(&self) -> Micros {
        self.window().map_or(self.bucket.window(), |window| window.like.window())
    }

    pub fn window(&self) -> Option<&BudgetWindow> {
        self.window.as_deref()
    }
}

fn fixed_turns(window: &fixed_window::FixedWindowQuota) -> Result<WindowSchedule, SharedWindowError> {
    if window.is_per_key() {
        return Err(SharedWindowError::PerKey);
    }
    let is_whole_micros = |(step, origin): &(u64, u64)| {
        step.is_multiple_of(NANOS_PER_MICRO) && origin.is_multiple_of(NANOS_PER_MICRO)
    };
    Ok(window.uniform_period().filter(is_whole_micros).map_or(WindowSchedule::Calendar, |(step, origin)| {
        WindowSchedule::Every { slots: 1, step: step / NANOS_PER_MICRO, origin: origin / NANOS_PER_MICRO }
    }))
}

fn sliding_turns(window: &sliding_window::SlidingWindowQuota) -> WindowSchedule {
    let parts = u32::from(window.buckets()).max(PARTS_MIN);
    let step = window.window_nanos().div_ceil(NANOS_PER_MICRO).div_ceil(u64::from(parts));
    WindowSchedule::Every { slots: parts + 1, step, origin: 0 }
}

impl BudgetWindow {
    /// The equivalent quota of a single host.
    pub const fn local_quota(&self) -> &limit::Quota {
        &self.like
    }

    /// Describes its windows, without their limit.
    pub fn describe(&self) -> String {
        match &self.like {
            limit::Quota::FixedWindow(window) => window.describe_windows(),
            like => format!("{} {:?}", like.window(), self.turns),
        }
    }

    pub const fn turns(&self) -> WindowSchedule {
        self.turns
    }

    /// Whether the window slides: it then refills whenever units leave it, a fixed one at its end.
    pub const fn slides(&self) -> bool {
        matches!(self.turns, WindowSchedule::Every { slots: 2.., .. })
    }

    /// The time until the end of the window, or of the part of a sliding one, by the clock of this host.
    pub fn until_edge(&self, now: Now) -> Micros {
        let unix_nanos = now.at.as_nanos().saturating_add_signed(now.utc_offset_nanos);
        let edge = match (&self.like, self.turns) {
            (limit::Quota::FixedWindow(window), _) => window.edges(unix_nanos).1,
            (_, WindowSchedule::Every { step, .. }) => {
                let step = step.saturating_mul(NANOS_PER_MICRO).max(1);
                (unix_nanos - unix_nanos % step).saturating_add(step)
            }
            _ => unix_nanos,
        };
        Micros::from_nanos(edge.saturating_sub(unix_nanos))
    }

    /// The start and the end of the window that contains an instant, and the end of the next window, in microseconds of
    /// Unix time. The instant may be imprecise and is moved to an earlier one, by at most a quarter of a window.
    pub fn edges(&self, unix_us: u64) -> (u64, u64, u64) {
        let limit::Quota::FixedWindow(window) = &self.like else { return (0, 0, 0) };
        let early = (window.window().0 / 4).min(EARLY_US);
        let nanos = |us: u64| us.saturating_mul(NANOS_PER_MICRO);
        let (start, end) = window.edges(nanos(unix_us.saturating_sub(early)));
        let (_, finish) = window.edges(end);
        (start / NANOS_PER_MICRO, end / NANOS_PER_MICRO, finish / NANOS_PER_MICRO)
    }
}

/// The next increase of a window, as reported by Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextIncrease {
    pub at: Timestamp,
    /// No host obtains a unit before that.
    pub is_exhausted: bool,
}

impl ShareState {
    /// Applies the report of Redis about a window: requests from some cost on are refused until the next increase.
    /// Whatever the report, a window ends after its length, and a tenth more: months and days of a calendar may exceed
    /// the nominal length.
    pub(super) fn apply_more(&mut self, quota: &ShareQuota, now: Timestamp, more: Option<NextIncrease>) {
        if let Some(NextIncrease { at, is_exhausted: is_spent_out }) = more {
            let span = Duration::from_micros(quota.window_length().0);
            self.refused_until = at.min(now.after(span + span / 10));
            self.refused_cost = if is_spent_out { 1 } else { u32::MAX };
        }
    }

    /// The estimated rest of a window in Redis, in millionths of a unit, from its level less the demand of other hosts
    /// since.
    pub(super) fn window_rest(&self, quota: &ShareQuota, now: Timestamp, level: i64) -> i64 {
        let is_full = now >= self.refused_until && self.refused_until > Timestamp::ORIGIN;
        match quota.window() {
            // The units that leave a sliding window are not known: assume at least one.
            Some(window) if is_full && window.slides() => level.max(super::MICRO_UNITS.cast_signed()),
            Some(_) if is_full => quota.derived.full,
            _ => level.min(quota.derived.full),
        }
    }

    /// The time until the next increase of a window, if it is known.
    pub(super) fn until_more(&self, now: Timestamp) -> Option<Micros> {
        Some(Micros::from_nanos(self.refused_until.nanos_since(now))).filter(|left| *left > Micros::ZERO)
    }
}

/// A shorter window ends before hosts have exchanged their counts.
const WINDOW_NANOS_MIN: u64 = 1_000_000_000;

/// The longest time that the finest scale can hold.
const FINE_NANOS_MAX: u64 = 180 * 86_400 * 1_000_000_000;

/// The least number of parts of a sliding window: units leave the window up to one part late.
const PARTS_MIN: u32 = 10;

/// The largest error of an instant by the clock of Redis on a host that has just received it.
const EARLY_US: u64 = 5_000_000;
