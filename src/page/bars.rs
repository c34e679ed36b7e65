//! Bar charts with logarithmic axes: the distribution of values by size. Positions are percentages of the width, so
//! that text has the same size on narrow and wide screens.

use std::fmt::Write;

use super::html::{EscapedText, count};

/// The number of values in each of several ranges.
#[derive(Clone, Debug)]
pub struct Bars<'b> {
    /// The class in the style sheet.
    pub class: &'b str,
    /// A description in words.
    pub label: &'b str,
    /// The first edge and the end of the last, 1 or more; equal for charts that are compared.
    pub edges: (u64, u64),
    /// The highest count on the scale.
    pub top: u64,
    /// The edges and the count of each bar.
    pub bars: &'b [(u64, u64, u64)],
    /// A marked value, drawn if it lies between the edges.
    pub mark: Option<BarMark<'b>>,
}

/// A marked value.
#[derive(Clone, Copy, Debug)]
pub struct BarMark<'m> {
    /// The value.
    pub at: u64,
    /// Its label.
    pub text: &'m str,
}

impl Bars<'_> {
    /// Draws the chart as HTML with SVG.
    #[must_use]
    pub fn draw(&self) -> String {
        let mut picture = "<figure class=\"bars\"><svg class=\"much\" aria-hidden=\"true\">".to_owned();
        for value in self.scale_labels() {
            let y = self.y_percent(value);
            let _ = write!(
                picture,
                "<text x=\"100%\" y=\"{y:.1}%\" dy=\"4\" text-anchor=\"end\">{}</text>",
                count(value)
            );
        }
        let _ = write!(
            picture,
            "</svg><svg class=\"{}\" role=\"img\" aria-label=\"{}\">",
            self.class,
            EscapedText(self.label)
        );
        for value in powers_of_ten(self.top) {
            let y = self.y_percent(value);
            let _ =
                write!(picture, "<line class=\"rule\" x1=\"0\" x2=\"100%\" y1=\"{y:.1}%\" y2=\"{y:.1}%\"/>");
        }
        for (from, to, number) in self.bars.iter().filter(|(.., number)| *number > 0) {
            let (left, right, y) = (self.x_percent(*from), self.x_percent(*to), self.y_percent(*number));
            let _ = write!(
                picture,
                "<rect class=\"passed\" x=\"{left:.2}%\" y=\"{y:.1}%\" width=\"{:.2}%\" height=\"{:.1}%\"><title>{}</title></rect>",
                (right - left - GAP).max(GAP),
                FLOOR - y,
                EscapedText(&format!("{}: {}", range_text(*from, *to), count(*number))),
            );
        }
        let _ =
            write!(picture, "<line class=\"ground\" x1=\"0\" x2=\"100%\" y1=\"{FLOOR}%\" y2=\"{FLOOR}%\"/>");
        for value in self.axis_labels() {
            let x = self.x_percent(value);
            let _ = write!(
                picture,
                "<text x=\"{x:.2}%\" y=\"100%\" dy=\"-4\" text-anchor=\"{}\">{}</text>",
                text_anchor(x),
                count(value)
            );
        }
        if let Some(mark) = self.mark.filter(|mark| (self.edges.0..=self.edges.1).contains(&mark.at)) {
            let x = self.x_percent(mark.at);
            let _ = write!(
                picture,
                "<line class=\"mark\" x1=\"{x:.2}%\" x2=\"{x:.2}%\" y1=\"{CEILING}%\" y2=\"{FLOOR}%\"/><text \
                 class=\"mark\" x=\"{x:.2}%\" y=\"0\" dy=\"12\" text-anchor=\"{}\">{}</text>",
                text_anchor(x),
                EscapedText(mark.text),
            );
        }
        picture.push_str("</svg></figure>");
        picture
    }

    /// The position of a value from the left, in percent.
    fn x_percent(&self, value: u64) -> f64 {
        let (first, last) = self.edges;
        let whole = log_ratio(first, last.max(first.saturating_add(1)));
        (log_ratio(first, value) / whole).clamp(0.0, 1.0) * 100.0
    }

    /// The position of a count from the top, in percent. A count of one is as high as the step from one to two, to be
    /// visible.
    fn y_percent(&self, number: u64) -> f64 {
        let share = (number as f64).ln_1p() / (self.top.max(1) as f64).ln_1p();
        FLOOR - share.clamp(0.0, 1.0) * (FLOOR - CEILING)
    }

    /// The labels of the vertical scale: powers of ten, and the top if it is far enough from them.
    fn scale_labels(&self) -> impl Iterator<Item = u64> {
        let highest = powers_of_ten(self.top).last().unwrap_or(1);
        let top = (self.top / highest > 2).then_some(self.top);
        powers_of_ten(self.top).chain(top)
    }

    /// The labels of the horizontal scale: 1, 2, 5, 10 and so on, or only powers of ten where those are too many.
    fn axis_labels(&self) -> Vec<u64> {
        let within = |value: &u64| (self.edges.0..=self.edges.1).contains(value);
        let tens: Vec<u64> = powers_of_ten(self.edges.1).collect();
        let all: Vec<u64> = tens
            .iter()
            .flat_map(|ten| [1, 2, 5].map(|times| ten.saturating_mul(times)))
            .filter(within)
            .collect();
        if all.len() <= LABELS_MAX {
            return all;
        }
        let tens: Vec<u64> = tens.into_iter().filter(within).collect();
        let every = tens.len().div_ceil(LABELS_MAX).max(1);
        tens.into_iter().step_by(every).collect()
    }
}

impl Bars<'_> {
    /// The edges of the bar of a value, two bars per octave: 1, 2, 3, 4, 6, 8, 12, 16 and so on. Zero counts as one.
    #[must_use]
    pub fn bar(value: u64) -> (u64, u64) {
        let value = value.max(1);
        let octave = 1_u64 << value.ilog2();
        let half = octave + octave / 2;
        match value {
            1 => (1, 2),
            value if value < half => (octave, half),
            _ => (half, octave.saturating_mul(2)),
        }
    }
}

fn range_text(from: u64, to: u64) -> String {
    match to.saturating_sub(1) {
        last if last <= from => count(from),
        last => format!("{} to {}", count(from), count(last)),
    }
}

fn log_ratio(one: u64, other: u64) -> f64 {
    (other.max(1) as f64 / one.max(1) as f64).ln()
}

fn powers_of_ten(last: u64) -> impl Iterator<Item = u64> {
    std::iter::successors(Some(1_u64), |ten| ten.checked_mul(10)).take_while(move |ten| *ten <= last)
}

/// The text anchor that keeps a label inside the chart.
fn text_anchor(place: f64) -> &'static str {
    match place {
        place if place < 12.0 => "start",
        place if place > 88.0 => "end",
        _ => "middle",
    }
}

/// The bottom and the top of the bars, in percent from the top.
const FLOOR: f64 = 86.0;
const CEILING: f64 = 13.0;

/// The gap between two bars, in percent.
const GAP: f64 = 0.3;

/// The most labels that fit side by side on a phone.
const LABELS_MAX: usize = 7;

#[cfg(test)]
mod tests {
    use super::{BarMark, Bars};

    #[test]
    fn assigns_each_value_one_bar() {
        let mut edge = 1;
        for value in 1..5_000 {
            let (from, to) = Bars::bar(value);
            assert!(from <= value && value < to, "{value}: {from} to {to}");
            assert!(from == edge || to > edge && from < edge, "{value}: bars lie beside each other");
            edge = if value + 1 == to { to } else { edge.max(from) };
        }
        assert_eq!(
            [0, 1, 2, 3, 4, 5, 6, 8, 12].map(|value| Bars::bar(value).0),
            [1, 1, 2, 3, 4, 4, 6, 8, 12]
        );
        assert_eq!(Bars::bar(u64::MAX).1, u64::MAX);
    }

    #[test]
    fn draws_within_bounds_and_escapes_text() {
        let mark = Some(BarMark { at: 100, text: "limit <100>" });
        let bars = [(1, 2, 1_000), (2, 3, 1), (512, 768, 2)];
        let label = "a < b";
        let drawn = Bars { class: "x", label, edges: (1, 1_024), top: 1_000, bars: &bars, mark }.draw();
        assert!(drawn.contains("limit &lt;100&gt;") && drawn.contains("aria-label=\"a &lt; b\""), "{drawn}");
        assert!(drawn.contains("x=\"0.00%\" y=\"13.0%\""), "the highest reaches the ceiling: {drawn}");
        assert!(
            drawn.contains("<title>512 to 767: 2</title>") && drawn.contains("<title>1: 1\u{202f}000<"),
            "{drawn}"
        );
        assert_eq!(drawn.matches("<rect").count(), 3);
        assert!(!drawn.contains("NaN") && !drawn.contains("inf"), "{drawn}");
        let nothing = Bars { class: "x", label, edges: (1, 1), top: 0, bars: &[], mark: None }.draw();
        assert!(
            !nothing.contains("NaN") && !nothing.contains("inf") && nothing.ends_with("</svg></figure>"),
            "{nothing}"
        );
    }
}
