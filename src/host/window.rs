//! A total that only grows, as a share of the last few seconds. Integers; time is an argument.

use std::collections::VecDeque;
use std::time::Duration;

use crate::clock::Timestamp;

/// What was added to a total over the last [`WINDOW`].
#[derive(Debug)]
pub(super) struct Window {
    /// When, and what the total was, oldest first.
    samples: VecDeque<(Timestamp, u64)>,
}

/// How much was added in how much time, both in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share {
    pub(super) added: u64,
    pub(super) span: u64,
}

impl Window {
    pub(super) fn new() -> Window {
        Window { samples: VecDeque::with_capacity(SAMPLES_MAX + 1) }
    }

    /// Forgets everything: the next total is of something else.
    pub(super) fn clear(&mut self) {
        self.samples.clear();
    }

    /// Takes the total as it is now, in nanoseconds. None: there is nothing yet to compare it with.
    ///
    /// A total that went back counts something else, and one that was not looked at for long would stand for a time
    /// nobody asks about, or for one in which the machine slept: both begin afresh.
    pub(super) fn push(&mut self, at: Timestamp, total: u64) -> Option<Share> {
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
        (span > 0).then(|| Share { added: total.saturating_sub(before), span })
    }
}

impl Share {
    /// In thousandths of what could have been added: `parts` ÷ `whole` in each unit of time.
    pub(super) fn thousandths_of(self, parts: u64, whole: u64) -> u32 {
        let added = u128::from(self.added).saturating_mul(1_000).saturating_mul(u128::from(whole));
        let possible = u128::from(self.span).saturating_mul(u128::from(parts));
        u32::try_from(added.checked_div(possible).unwrap_or_default()).unwrap_or(u32::MAX)
    }
}

/// Long enough that one busy moment is no overload, short enough to be as quick as the law that reads it.
const WINDOW: Duration = Duration::from_secs(8);

/// Totals are looked at once a second.
const GAP_MAX: Duration = Duration::from_secs(5);

/// One a second over the window, and as many again for a thread that was woken late.
const SAMPLES_MAX: usize = 18;

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_nanos(seconds * SECOND)
    }

    #[test]
    fn a_share_is_that_of_the_last_eight_seconds() {
        let mut window = Window::new();
        assert_eq!(window.push(at(100), 7 * SECOND), None, "one total says nothing");
        // Half of the time for ten seconds, then none of it.
        let busy = (1..=10).map(|second| window.push(at(100 + second), 7 * SECOND + second * SECOND / 2));
        let busy: Vec<u32> = busy.map(|share| share.unwrap().thousandths_of(1, 1)).collect();
        assert_eq!(busy, [500; 10]);
        let idle = (11..=19).map(|second| window.push(at(100 + second), 12 * SECOND));
        let idle: Vec<u32> = idle.map(|share| share.unwrap().thousandths_of(1, 1)).collect();
        assert_eq!(idle, [437, 375, 312, 250, 187, 125, 62, 0, 0]);
    }

    #[test]
    fn a_total_that_went_back_or_was_not_looked_at_begins_afresh() {
        let mut window = Window::new();
        window.push(at(1), 100);
        assert_eq!(window.push(at(2), 99), None);
        assert_eq!(window.push(at(3), 199), Some(Share { added: 100, span: SECOND }));
        assert_eq!(window.push(at(9), 299), None);
        assert_eq!(window.push(at(9), 299), None, "no time has passed");
    }

    #[test]
    fn a_share_is_of_what_could_have_been_added() {
        let share = Share { added: 3 * SECOND, span: 2 * SECOND };
        let table = [((1, 1), 1_500), ((2, 1), 750), ((50_000, 100_000), 3_000), ((0, 1), 0)];
        for ((parts, whole), expected) in table {
            assert_eq!(share.thousandths_of(parts, whole), expected, "{parts}/{whole}");
        }
        assert_eq!(Share { added: u64::MAX, span: 1 }.thousandths_of(1, u64::MAX), u32::MAX);
    }
}
