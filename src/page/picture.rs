//! Line charts over time as SVG, without scripts or other files.

use std::fmt::Write;

use super::html::EscapedText;

/// The time range of a chart.
#[derive(Clone, Copy, Debug)]
pub struct Stretch {
    /// The seconds from the left edge to the right one.
    pub seconds: f32,
    /// Points further apart than this are not joined: there are no readings between them.
    pub gap_seconds: f32,
}

/// One line of a chart.
#[derive(Clone, Debug)]
pub struct ChartLine {
    /// The class in the style sheet.
    pub class: &'static str,
    /// Whether the area below the line is filled.
    pub is_filled: bool,
    /// Seconds before the right edge and value of each point, the oldest first.
    pub points: Vec<(f32, f32)>,
}

/// Draws lines between two values as SVG. `label` describes them in words.
#[must_use]
pub fn draw(
    class: &str,
    label: &str,
    stretch: &Stretch,
    (low, high): (f32, f32),
    lines: &[ChartLine],
) -> String {
    let mut picture = format!(
        "<svg class=\"{class}\" role=\"img\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" preserveAspectRatio=\"none\" \
         aria-label=\"{}\"><path class=\"rule\" d=\"M0 {}H{WIDTH}\"/>",
        EscapedText(label),
        y_of(0.0, low, high),
    );
    for line in lines {
        let segments = segments(&line.points, stretch, low, high);
        if line.is_filled {
            let areas = segments.iter().map(|segment| area_data(segment)).collect::<String>();
            let _ = write!(picture, "<path class=\"{} area\" d=\"{areas}\"/>", line.class);
        }
        let drawn = segments.iter().map(|segment| path_data(segment)).collect::<String>();
        let _ = write!(picture, "<path class=\"{} line\" d=\"{drawn}\"/>", line.class);
    }
    picture.push_str("</svg>");
    picture
}

/// Appends a chart with the labels of its scale, from the top, and of its time range, from the left.
pub fn frame(page: &mut String, scale: &[String], picture: &str, span: &[&str]) {
    let marks = |mark: &dyn std::fmt::Display| format!("<span>{mark}</span>");
    let scale: String = scale.iter().map(|mark| marks(mark)).collect();
    let span: String = span.iter().map(|mark| marks(mark)).collect();
    let _ = write!(
        page,
        "<figure><div class=\"scale\" aria-hidden=\"true\">{scale}</div>{picture}<div class=\"span\" \
         aria-hidden=\"true\">{span}</div></figure>"
    );
}

/// Appends the legend of a chart.
pub fn key(page: &mut String, lines: &[(&str, &str)]) {
    page.push_str("<p class=\"key\">");
    for (class, name) in lines {
        let _ = write!(page, "<span><span class=\"swatch {class}\"></span>{name}</span>");
    }
    page.push_str("</p>");
}

/// The largest value of some lines, at least `least`: the top of a chart.
#[must_use]
pub fn top(lines: &[ChartLine], least: f32) -> f32 {
    lines.iter().flat_map(|line| &line.points).map(|(_, value)| *value).fold(least, f32::max)
}

/// Splits points into segments at gaps without readings, in units of the view box.
fn segments(points: &[(f32, f32)], stretch: &Stretch, low: f32, high: f32) -> Vec<Vec<(i32, i32)>> {
    let mut segments: Vec<Vec<(i32, i32)>> = Vec::new();
    let mut before = f32::INFINITY;
    for (ago, value) in points.iter().filter(|(ago, _)| *ago <= stretch.seconds) {
        let share = ago / stretch.seconds.max(f32::MIN_POSITIVE);
        let point = (round_position((1.0 - share) * WIDTH), y_of(*value, low, high));
        match segments.last_mut() {
            Some(segment) if before - ago <= stretch.gap_seconds => segment.push(point),
            _ => segments.push(vec![point]),
        }
        before = *ago;
    }
    segments
}

fn path_data(segment: &[(i32, i32)]) -> String {
    let mut path = String::with_capacity(segment.len() * 8);
    for (place, (x, y)) in segment.iter().enumerate() {
        let _ = write!(path, "{}{x} {y}", if place == 0 { "M" } else { "L" });
    }
    // A single point is drawn as a short line.
    if segment.len() == 1 { path + "h1" } else { path }
}

fn area_data(segment: &[(i32, i32)]) -> String {
    match (segment.first(), segment.last()) {
        (Some((first, _)), Some((last, _))) => {
            let above = path_data(segment).replacen('M', "L", 1);
            format!("M{first} {HEIGHT}{above}L{last} {HEIGHT}Z")
        }
        _ => String::new(),
    }
}

fn y_of(value: f32, low: f32, high: f32) -> i32 {
    let share = ((value - low) / (high - low).max(f32::MIN_POSITIVE)).clamp(0.0, 1.0);
    // A line at the very edge would be cut in half.
    round_position(HEIGHT - MARGIN - share * (HEIGHT - 2.0 * MARGIN))
}

fn round_position(place: f32) -> i32 {
    #[allow(clippy::cast_possible_truncation, reason = "places of a picture are between 0 and its size")]
    let whole = place.round() as i32;
    whole
}

/// The width of the view box: about the pixels of a chart that fills a page.
const WIDTH: f32 = 600.0;

const HEIGHT: f32 = 100.0;

const MARGIN: f32 = 2.0;

#[cfg(test)]
mod tests {
    use super::{ChartLine, Stretch, draw, segments, top};

    const TEN_MINUTES: Stretch = Stretch { seconds: 600.0, gap_seconds: 15.0 };

    #[test]
    fn draws_lines_by_time_and_splits_at_gaps() {
        let points = vec![(700.0, 9.0), (600.0, 0.0), (595.0, 1.0), (300.0, 0.5), (0.0, 2.0)];
        let drawn = segments(&points, &TEN_MINUTES, 0.0, 1.0);
        assert_eq!(drawn, [vec![(0, 98), (5, 2)], vec![(300, 50)], vec![(600, 2)]]);
        let line = ChartLine { class: "u", is_filled: true, points };
        assert_eq!(top(std::slice::from_ref(&line), 1.0), 9.0);
        let picture = draw("wide", "a < b", &TEN_MINUTES, (0.0, 1.0), &[line]);
        assert!(picture.contains("aria-label=\"a &lt; b\""), "{picture}");
        assert!(picture.contains("d=\"M0 98L5 2M300 50h1M600 2h1\""), "{picture}");
        assert!(picture.contains("M0 100L0 98L5 2L5 100Z"), "{picture}");
        assert!(!picture.contains("NaN") && !picture.contains("inf"), "{picture}");
        assert!(draw("wide", "nothing", &TEN_MINUTES, (0.0, 0.0), &[]).ends_with("</svg>"));
    }
}
