//! The axis labels of pictures: times, and counts per step.

use std::time::{Duration, UNIX_EPOCH};

use crate::clock::Timestamp;
use crate::page::count;

/// Formats a time: as a date if the trace has Unix times, else since its zero.
pub(super) fn moment(at: Timestamp) -> String {
    let nanos = at.as_nanos();
    if nanos < CALENDAR_NANOS {
        return span(Duration::from_nanos(nanos));
    }
    let text = humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_nanos(nanos)).to_string();
    text.replace('T', " ").replace('Z', " UTC")
}

/// Formats a span in its two largest units.
pub(super) fn span(span: Duration) -> String {
    let all = humantime::format_duration(span).to_string();
    all.split(' ').take(2).collect::<Vec<_>>().join(" ")
}

/// `12 in 5s`.
pub(super) fn in_step(number: u64, step: Duration) -> String {
    format!("{} in {}", count(number), span(step))
}

/// Three years after 1970: later times are Unix times.
const CALENDAR_NANOS: u64 = 100_000_000 * 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::moment;
    use crate::clock::Timestamp;

    #[test]
    fn moments_are_told_as_the_trace_counts_them() {
        let table =
            [(0, "0s"), (90_500_000_000, "1m 30s"), (1_732_183_201_000_000_000, "2024-11-21 10:00:01 UTC")];
        for (nanos, expected) in table {
            assert_eq!(moment(Timestamp::from_nanos(nanos)), expected);
        }
        assert!(moment(Timestamp::from_nanos(u64::MAX)).starts_with("2554-"));
    }
}
