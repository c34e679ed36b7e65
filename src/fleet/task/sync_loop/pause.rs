//! The pause between two ticks of a host that shares budgets.

use std::time::Duration;

/// Returns the pause after a tick that sent commands for `cells` cells, `before` being the pause before it.
/// Under load the pause is longer, as ticks every 2 ms took half of the task's time by themselves. A pending
/// request keeps it short, since ticks enforce its deadline.
pub(super) fn pause(cells: usize, before: Duration, is_waited_for: bool) -> Duration {
    let millis = before.as_millis().max(1);
    let is_much = cells as u128 >= MUCH_A_MILLI * millis;
    if is_much && !is_waited_for { LONG } else { SHORT }
}

/// The delay of a starting burst and of keys that need a sync; the simulation uses the same.
pub(super) const SHORT: Duration = Duration::from_millis(2);

/// Less than the time that held tokens cover until a reply, and half of the margin that the simulation adds.
const LONG: Duration = Duration::from_millis(8);

/// The load in cells per millisecond from which the pause is long: 4 000 per second.
const MUCH_A_MILLI: u128 = 4;

#[cfg(test)]
mod tests {
    use super::{LONG, SHORT, pause};

    #[test]
    fn who_says_much_pauses_longer_and_who_is_waited_for_does_not() {
        for (cells, before, is_waited_for, expected) in [
            (0, SHORT, false, SHORT),
            (7, SHORT, false, SHORT),
            (8, SHORT, false, LONG),
            (8, SHORT, true, SHORT),
            (31, LONG, false, SHORT),
            (32, LONG, false, LONG),
            (1_000, LONG, true, SHORT),
        ] {
            assert_eq!(pause(cells, before, is_waited_for), expected, "{cells} after {before:?}");
        }
    }
}
