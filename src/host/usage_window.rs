//! The increase of a monotonic total over the last few seconds. Integers; time is an argument.

use std::collections::VecDeque;
use std::time::Duration;

use crate::clock::Timestamp;

/// The samples of a total over the last [`WINDOW`].
#[derive(Debug, Default)]
pub(super) struct UsageWindow {
    /// Time and total, oldest first.
    samples: VecDeque<(Timestamp, u64)>,
}

/// An increase and the time in which it happened, both in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UsageShare {
    added: u64,
    span: u64,
}

impl UsageWindow {
    /// Drops all samples: the next total counts something else.
    pub(super) fn clear(&mut self) {
        self.samples.clear();
    }

    /// Adds the current total in nanoseconds. Returns the increase over the window; `None` for the first sample.
    ///
    /// The window is cleared if the total decreased, as it then counts something else, and after a gap of more than
    /// [`GAP_MAX`], as the machine may have slept.
    pub(super) fn push(&mut self, at: Timestamp, total: u64) -> Option<UsageShare> {
        if let Some(&(last, before)) = self.samples.back()
            && (total < before || at.since(last) > GAP_MAX)
        {
            self.samples.clear();
        }
        self.samples.push_back((at, total));
        while self.samples.len() > SAMPLES_MAX
            || self.samples.get(1).is_some_and(|(next, _)| at.since(*next) >= WINDOW)
        {
            self.samples.pop_front();
        }
        let (first, before) = *self.samples.front()?;
        let span = u64::try_from(at.since(first).as_nanos()).unwrap_or(u64::MAX);
        (span > 0).then(|| UsageShare { added: total.saturating_sub(before), span })
    }
}

impl UsageShare {
    /// Returns the increase in thousandths of the possible increase, which is `parts` ÷ `whole` per unit of time.
    pub(super) fn thousandths_of(self, parts: u64, whole: u64) -> u32 {
        let added = u128::from(self.added).saturating_mul(1_000).saturating_mul(u128::from(whole));
        let possible = u128::from(self.span).saturating_mul(u128::from(parts));
        u32::try_from(added.checked_div(possible).unwrap_or_default()).unwrap_or(u32::MAX)
    }
}

/// Long enough that one busy moment is no overload, short enough for the shedding controller that uses the signal.
const WINDOW: Duration = Duration::from_secs(8);

/// Totals are sampled once a second.
const GAP_MAX: Duration = Duration::from_secs(5);

/// One sample a second over the window, and as many again for a thread that wakes irregularly.
const SAMPLES_MAX: usize = 18;
