//! Counts over time: a line for each kind, a step for each interval.

use maud::{Markup, html};

use crate::page::{count, draw_lines, frame, legend, span};
use crate::trace::course::StepCounts;

/// A line's class in the style sheet, and its label.
type LineKind = (&'static str, &'static str);

/// Returns the largest count of one step.
pub(super) fn most<'s>(steps: impl Iterator<Item = &'s [u64; 3]>) -> u64 {
    steps.flatten().copied().max().unwrap_or_default()
}

/// Draws the counts of each kind on a scale up to `most`.
pub(super) fn chart(
    title: &str,
    kinds: [LineKind; 3],
    course: &StepCounts,
    steps: &[[u64; 3]],
    most: u64,
) -> Markup {
    let Some(times) = course.times() else { return html! { p.none { "nothing was played" } } };
    let sums = steps.iter().fold([0; 3], |[a, b, c], [x, y, z]| [a + x, b + y, c + z]);
    let mut lines: Vec<_> = kinds.into_iter().zip(sums).zip(0..).collect();
    let all = lines.iter().map(|(((_, name), sum), _)| format!("{} {name}", count(*sum)));
    let (all, step) = (all.collect::<Vec<_>>().join(", "), span(course.step()));
    let label = format!("{title} over time: {all}; at most {} in {step}", count(most));
    lines.retain(|((_, sum), kind)| *kind == 0 || *sum > 0);
    let key: Vec<LineKind> = lines.iter().map(|((kind, _), _)| *kind).collect();
    let lines: Vec<_> = lines.iter().map(|(((class, _), _), kind)| (*class, stairs(steps, *kind))).collect();
    let top = most.max(1);
    html! {
        (frame(
            [count(top), "0".to_owned()],
            &draw_lines("large", &label, steps.len() as f32, (0.0, top as f32), &lines),
            &times,
        ))
        (legend(&key))
        p.none { "in each " (step) }
    }
}

/// Returns a line that is constant over each step.
fn stairs(steps: &[[u64; 3]], kind: usize) -> Vec<(f32, f32)> {
    let values = steps.iter().map(|step| step.get(kind).copied().unwrap_or_default() as f32);
    let ends = (0..steps.len()).rev().map(|steps_after| steps_after as f32);
    ends.zip(values).flat_map(|(end, value)| [(end + 1.0, value), (end, value)]).collect()
}

pub(super) const DECISIONS: [LineKind; 3] =
    [("passed", "allowed"), ("refused", "limited or denied"), ("shed", "shed")];

pub(super) const CHECKS: [LineKind; 3] =
    [("passed", "passed"), ("refused", "refused"), ("would", "would refuse")];
