//! Counts over time: a line for each kind, a step for each interval.

use super::ReportSet;
use super::axis::{in_step, moment};
use crate::page::{ChartLine, Stretch, count, draw, frame, key};
use crate::trace::course::Course;

/// A line's class in the style sheet, and its label.
type LineKind = (&'static str, &'static str);

/// Draws the verdicts of all requests, on the scale of all sets.
pub(super) fn decisions(page: &mut String, set: &ReportSet<'_>, sets: &[&ReportSet<'_>]) {
    let all = sets.iter().flat_map(|set| set.watch.course.verdicts());
    picture(page, "Decisions", &DECISIONS, &set.watch.course, &set.watch.course.verdicts(), most(all));
}

/// Draws the checks of a rule, on the scale of all sets.
pub(super) fn rule(page: &mut String, course: &Course, steps: &[[u64; 3]], most: u64) {
    picture(page, "What the rule did", &CHECKS, course, steps, most);
}

/// The largest count of one step.
pub(super) fn most(steps: impl Iterator<Item = [u64; 3]>) -> u64 {
    steps.flatten().max().unwrap_or_default()
}

fn picture(
    page: &mut String,
    what: &str,
    kinds: &[LineKind; 3],
    course: &Course,
    steps: &[[u64; 3]],
    most: u64,
) {
    let Some(first) = course.first() else {
        page.push_str("<p class=\"none\">nothing was played</p>");
        return;
    };
    let length = steps.len() as f32;
    let lines: Vec<ChartLine> = kinds
        .iter()
        .enumerate()
        .filter(|(kind, _)| *kind == 0 || sum(steps, *kind) > 0)
        .map(|(kind, (class, _))| ChartLine { class, is_filled: kind == 0, points: stairs(steps, kind) })
        .collect();
    let shown: Vec<LineKind> = kinds
        .iter()
        .copied()
        .enumerate()
        .filter(|(kind, _)| *kind == 0 || sum(steps, *kind) > 0)
        .map(|(_, kind)| kind)
        .collect();
    let told: Vec<String> = kinds
        .iter()
        .enumerate()
        .map(|(kind, (_, name))| format!("{} {name}", count(sum(steps, kind))))
        .collect();
    let label = format!("{what} over time: {}; at most {}", told.join(", "), in_step(most, course.step()));
    let stretch = Stretch { seconds: length, gap_seconds: f32::INFINITY };
    let picture = draw("large", &label, &stretch, (0.0, most.max(1) as f32), &lines);
    let steps_long = u32::try_from(steps.len()).unwrap_or(u32::MAX);
    let last = first.after(course.step().saturating_mul(steps_long));
    frame(page, &[count(most.max(1)), "0".to_owned()], &picture, &[&moment(first), &moment(last)]);
    key(page, &shown);
    page.push_str(&format!("<p class=\"none\">in each {}</p>", super::axis::span(course.step())));
}

fn sum(steps: &[[u64; 3]], kind: usize) -> u64 {
    steps.iter().filter_map(|step| step.get(kind)).sum()
}

/// A stair: constant over each step.
fn stairs(steps: &[[u64; 3]], kind: usize) -> Vec<(f32, f32)> {
    let values = steps.iter().map(|step| step.get(kind).copied().unwrap_or_default() as f32);
    let stair = |(place, value)| {
        let before_the_end = (steps.len() - place) as f32;
        [(before_the_end, value), (before_the_end - 1.0, value)]
    };
    values.enumerate().flat_map(stair).collect()
}

const DECISIONS: [LineKind; 3] = [("passed", "allowed"), ("refused", "limited or denied"), ("shed", "shed")];

const CHECKS: [LineKind; 3] = [("passed", "passed"), ("refused", "refused"), ("would", "would refuse")];
