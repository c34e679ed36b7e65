//! Charts as SVG, without scripts or other files: lines over time, and bars by size with logarithmic axes.

use std::fmt::Write;

use maud::{Markup, Render, html};

use super::count;

/// A line: its class in the style sheet, and the seconds before the right edge and the value of each point, the oldest
/// first.
pub type ChartLine = (&'static str, Vec<(f32, f32)>);

/// Draws lines over some seconds and between two values. `label` describes them in words.
pub fn draw_lines(
    class: &str,
    label: &str,
    seconds: f32,
    (low, high): (f32, f32),
    lines: &[ChartLine],
) -> Markup {
    let x_of = |ago: f32| format!("{:.0}", (1.0 - ago / seconds.max(f32::MIN_POSITIVE)) * WIDTH);
    let y_of = |value: f32| {
        let share = ((value - low) / (high - low).max(f32::MIN_POSITIVE)).clamp(0.0, 1.0);
        // A line at the very edge would be cut in half.
        format!("{:.0}", HEIGHT - MARGIN - share * (HEIGHT - 2.0 * MARGIN))
    };
    let paths = |points: &[(f32, f32)]| {
        let points: Vec<_> = points.iter().filter(|(ago, _)| *ago <= seconds).collect();
        let (mut line, mut area) = (String::new(), String::new());
        for segment in points.chunk_by(|before, next| before.0 - next.0 <= GAP_SECONDS) {
            let joined = segment.iter().map(|(ago, value)| format!("{} {}", x_of(*ago), y_of(*value)));
            let joined = joined.collect::<Vec<_>>().join("L");
            // A single point is drawn as a short line.
            let _ = write!(line, "M{joined}{}", if segment.len() == 1 { "h1" } else { "" });
            if let (Some((first, _)), Some((last, _))) = (segment.first(), segment.last()) {
                let _ = write!(area, "M{} {HEIGHT}L{joined}L{} {HEIGHT}Z", x_of(*first), x_of(*last));
            }
        }
        (line, area)
    };
    html! {
        svg class=(class) role="img" viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } preserveAspectRatio="none" aria-label=(label) {
            path class="rule" d={ "M0 " (y_of(0.0)) "H" (WIDTH) } {}
            @for (class, points) in lines {
                @let (line, area) = paths(points);
                @if FILLED.contains(class) { path class={ (class) " area" } d=(area) {} }
                path class={ (class) " line" } d=(line) {}
            }
        }
    }
}

/// Returns a chart with the labels of its scale, from the top, and of its time range, from the left.
pub(crate) fn frame(scale: [impl Render; 2], chart: &Markup, span: &[impl Render]) -> Markup {
    html! {
        figure {
            div.scale aria-hidden="true" { @for mark in scale { span { (mark) } } }
            (chart)
            div.span aria-hidden="true" { @for mark in span { span { (mark) } } }
        }
    }
}

pub(crate) fn legend(lines: &[(&str, &str)]) -> Markup {
    html! { p.key { @for (class, name) in lines { span { span class={ "swatch " (class) } {} (name) } } } }
}

/// Returns the largest value of some lines, at least `least`: the top of a chart.
pub fn largest(lines: &[ChartLine], least: f32) -> f32 {
    lines.iter().flat_map(|(_, points)| points).map(|(_, value)| *value).fold(least, f32::max)
}

/// Draws the number of values in each range, from 1 to `last`, on a scale up to `top`; and a marked value. Positions
/// are percentages of the width, so that text has the same size on narrow and wide screens.
pub fn draw_bars(
    label: &str,
    bars: impl IntoIterator<Item = ((u64, u64), u64)>,
    (last, top): (u64, u64),
    (mark, mark_text): (u64, &str),
) -> Markup {
    let ln = |value: u64| (value.max(1) as f64).ln();
    let x_of = |value: u64| (ln(value) / ln(last.max(2))).clamp(0.0, 1.0) * 100.0;
    // A count of one is as high as the step from one to two, to be visible.
    let share = |number: u64| ((number as f64).ln_1p() / (top.max(1) as f64).ln_1p()).clamp(0.0, 1.0);
    let y_of = |number: u64| FLOOR - share(number) * (FLOOR - CEILING);
    let at = |percent: f64| format!("{percent:.2}%");
    let horizontal =
        |class: &str, y: f64| html! { line class=(class) x1="0" x2="100%" y1=(at(y)) y2=(at(y)) {} };
    let highest = powers_of_ten(top).last().unwrap_or(1);
    let numbers = powers_of_ten(top).chain((top / highest > 2).then_some(top));
    html! {
        figure.bars {
            svg.much aria-hidden="true" {
                @for number in numbers { text x="100%" y=(at(y_of(number))) dy="4" text-anchor="end" { (count(number)) } }
            }
            svg.spread role="img" aria-label=(label) {
                @for number in powers_of_ten(top) { (horizontal("rule", y_of(number))) }
                @for ((from, to), number) in bars {
                    @let (x, y) = (x_of(from), y_of(number));
                    rect class="passed" x=(at(x)) y=(at(y)) width=(at((x_of(to) - x - GAP).max(GAP))) height=(at(FLOOR - y)) {
                        title { (count(from)) @if to - 1 > from { " to " (count(to - 1)) } ": " (count(number)) }
                    }
                }
                (horizontal("ground", FLOOR))
                @for value in axis_labels(last) {
                    text x=(at(x_of(value))) y="100%" dy="-4" text-anchor=(text_anchor(x_of(value))) { (count(value)) }
                }
                @if mark <= last {
                    @let x = x_of(mark);
                    line class="mark" x1=(at(x)) x2=(at(x)) y1=(at(CEILING)) y2=(at(FLOOR)) {}
                    text class="mark" x=(at(x)) y="0" dy="12" text-anchor=(text_anchor(x)) { (mark_text) }
                }
            }
        }
    }
}

/// Returns the edges of the bar of a value, two bars per octave: 1, 2, 3, 4, 6, 8, 12, 16 and so on. Zero counts as one.
pub fn bar_edges(value: u64) -> (u64, u64) {
    let value = value.max(1);
    let octave = 1_u64 << value.ilog2();
    let half = octave + octave / 2;
    match value {
        1 => (1, 2),
        value if value < half => (octave, half),
        _ => (half, octave.saturating_mul(2)),
    }
}

/// Returns the labels of the horizontal scale: 1, 2, 5, 10 and so on, or only powers of ten where those are too many.
fn axis_labels(last: u64) -> Vec<u64> {
    let tens: Vec<u64> = powers_of_ten(last).collect();
    let all = tens.iter().flat_map(|ten| [1, 2, 5].map(|times| ten.saturating_mul(times)));
    let all: Vec<u64> = all.filter(|value| *value <= last).collect();
    let every = tens.len().div_ceil(LABELS_MAX).max(1);
    if all.len() <= LABELS_MAX { all } else { tens.into_iter().step_by(every).collect() }
}

fn powers_of_ten(last: u64) -> impl Iterator<Item = u64> {
    std::iter::successors(Some(1_u64), |ten| ten.checked_mul(10)).take_while(move |ten| *ten <= last)
}

/// Returns the text anchor that keeps a label inside the chart.
fn text_anchor(percent: f64) -> &'static str {
    match percent {
        percent if percent < 12.0 => "start",
        percent if percent > 88.0 => "end",
        _ => "middle",
    }
}

/// Lines with a filled area below.
const FILLED: [&str; 3] = ["passed", "utilization", "severity"];

/// Points further apart are not joined: there are no readings between them.
const GAP_SECONDS: f32 = 15.0;

/// The view box of a line chart: about the pixels of a chart that fills a page.
const WIDTH: f32 = 600.0;
const HEIGHT: f32 = 100.0;
const MARGIN: f32 = 2.0;

/// The bottom and the top of the bars, and the gap between two bars, in percent.
const FLOOR: f64 = 86.0;
const CEILING: f64 = 13.0;
const GAP: f64 = 0.3;

/// The most labels that fit side by side on a phone.
const LABELS_MAX: usize = 7;
