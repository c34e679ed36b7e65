//! How long a host that shares budgets pauses between two turns.

use std::time::Duration;

/// How long to pause after a turn in which so many cells were asked about, and before which there was such a pause. Who says
/// much pauses longer and says it in fewer turns: with turns of 2 ms their own cost was half of what this talk took. Not while a
/// request waits for an answer: it is told at a turn that its time is over.
pub(super) fn pause(cells: usize, before: Duration, is_waited_for: bool) -> Duration {
    let millis = before.as_millis().max(1);
    let is_much = cells as u128 >= MUCH_A_MILLI * millis;
    if is_much && !is_waited_for { LONG } else { SHORT }
}

/// How long a burst that begins waits, and keys that call: the simulation is run with as much.
pub(super) const SHORT: Duration = Duration::from_millis(2);

/// Less than what is kept in hand for until an answer comes, and half of what the simulation is run with besides.
const LONG: Duration = Duration::from_millis(8);

/// Cells in a millisecond from which on it is much: 4 000 a second.
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
