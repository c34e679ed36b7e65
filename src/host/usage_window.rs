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
    pub(super) added: u64,
    pub(super) span: u64,
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

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_nanos(seconds * SECOND)
    }

    #[test]
    fn share_covers_last_eight_seconds() {
        let mut window = UsageWindow::default();
        assert_eq!(window.push(at(100), 7 * SECOND), None, "one sample has no increase");
        // Half of the time for ten seconds, then none of it.
        let busy = (1..=10).map(|second| window.push(at(100 + second), 7 * SECOND + second * SECOND / 2));
        let busy: Vec<u32> = busy.map(|share| share.unwrap().thousandths_of(1, 1)).collect();
        assert_eq!(busy, [500; 10]);
        let idle = (11..=19).map(|second| window.push(at(100 + second), 12 * SECOND));
        let idle: Vec<u32> = idle.map(|share| share.unwrap().thousandths_of(1, 1)).collect();
        assert_eq!(idle, [437, 375, 312, 250, 187, 125, 62, 0, 0]);
    }

    #[test]
    fn clears_samples_after_decrease_or_gap() {
        let mut window = UsageWindow::default();
        window.push(at(1), 100);
        assert_eq!(window.push(at(2), 99), None);
        assert_eq!(window.push(at(3), 199), Some(UsageShare { added: 100, span: SECOND }));
        assert_eq!(window.push(at(9), 299), None);
        assert_eq!(window.push(at(9), 299), None, "no time has passed");
    }

    #[test]
    fn thousandths_are_relative_to_possible_increase() {
        let share = UsageShare { added: 3 * SECOND, span: 2 * SECOND };
        let table = [((1, 1), 1_500), ((2, 1), 750), ((50_000, 100_000), 3_000), ((0, 1), 0)];
        for ((parts, whole), expected) in table {
            assert_eq!(share.thousandths_of(parts, whole), expected, "{parts}/{whole}");
        }
        assert_eq!(UsageShare { added: u64::MAX, span: 1 }.thousandths_of(1, u64::MAX), u32::MAX);
    }
}
