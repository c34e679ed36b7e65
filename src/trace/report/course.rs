//! Counts over time: a line for each kind, a step for each interval.

use std::time::{Duration, UNIX_EPOCH};

use maud::{Markup, html};

use crate::clock::Timestamp;
use crate::page::{count, draw_lines, frame, legend, span};
use crate::trace::course::Course;

/// A line's class in the style sheet, and its label.
type LineKind = (&'static str, &'static str);

/// Returns the largest count of one step.
pub(super) fn most(steps: impl Iterator<Item = [u64; 3]>) -> u64 {
    steps.flatten().max().unwrap_or_default()
}

/// Draws the counts of each kind on a scale up to `most`.
pub(super) fn chart(
    title: &str,
    kinds: [LineKind; 3],
    course: &Course,
    steps: &[[u64; 3]],
    most: u64,
) -> Markup {
    let Some(first) = course.first() else { return html! { p.none { "nothing was played" } } };
    let sums = steps.iter().fold([0; 3], |[a, b, c], [x, y, z]| [a + x, b + y, c + z]);
    let all = kinds.iter().zip(sums).map(|((_, name), sum)| format!("{} {name}", count(sum)));
    let shown: Vec<(usize, LineKind)> = (0..)
        .zip(kinds)
        .zip(sums)
        .filter(|((kind, _), sum)| *kind == 0 || *sum > 0)
        .map(|(kind, _)| kind)
        .collect();
    let lines = shown.iter().map(|(kind, (class, _))| (*class, stairs(steps, *kind)));
    let label = format!(
        "{title} over time: {}; at most {} in {}",
        all.collect::<Vec<_>>().join(", "),
        count(most),
        span(course.step())
    );
    let lines: Vec<_> = lines.collect();
    let chart = draw_lines("large", &label, steps.len() as f32, (0.0, most.max(1) as f32), &lines);
    let last = first.after(course.step().saturating_mul(u32::try_from(steps.len()).unwrap_or(u32::MAX)));
    html! {
        (frame([count(most.max(1)), "0".to_owned()], &chart, &[moment(first), moment(last)]))
        (legend(&shown.iter().map(|(_, kind)| *kind).collect::<Vec<_>>()))
        p.none { "in each " (span(course.step())) }
    }
}

/// Returns a line that is constant over each step.
fn stairs(steps: &[[u64; 3]], kind: usize) -> Vec<(f32, f32)> {
    let values = steps.iter().map(|step| step.get(kind).copied().unwrap_or_default() as f32);
    let ends = (0..steps.len()).rev().map(|steps_after| steps_after as f32);
    ends.zip(values).flat_map(|(end, value)| [(end + 1.0, value), (end, value)]).collect()
}

/// Formats a time: as a date if the trace has Unix times, else since its zero.
fn moment(at: Timestamp) -> String {
    let since = Duration::from_nanos(at.as_nanos());
    if since < CALENDAR {
        return span(since);
    }
    let text = humantime::format_rfc3339_seconds(UNIX_EPOCH + since).to_string();
    text.replace('T', " ").replace('Z', " UTC")
}

pub(super) const DECISIONS: [LineKind; 3] =
    [("passed", "allowed"), ("refused", "limited or denied"), ("shed", "shed")];

pub(super) const CHECKS: [LineKind; 3] =
    [("passed", "passed"), ("refused", "refused"), ("would", "would refuse")];

/// Three years after 1970: later times are Unix times.
const CALENDAR: Duration = Duration::from_secs(100_000_000);

#[cfg(test)]
mod tests {
    use super::moment;
    use crate::clock::Timestamp;

    #[test]
    fn formats_times_as_the_trace_has_them() {
        let table =
            [(0, "0s"), (90_500_000_000, "1m 30s"), (1_732_183_201_000_000_000, "2024-11-21 10:00:01 UTC")];
        for (nanos, expected) in table {
            assert_eq!(moment(Timestamp::from_nanos(nanos)), expected);
        }
        assert!(moment(Timestamp::from_nanos(u64::MAX)).starts_with("2554-"));
    }
}
