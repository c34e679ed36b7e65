//! Reader of durations within bounds: `expires: 2h`.

use std::time::Duration;

use crate::rules::fields::text;
use crate::rules::period;
use crate::rules::source::Report;
use crate::rules::yaml::YamlNode;

/// The minimum and maximum of a duration, in milliseconds and as written.
pub(super) type Bounds = [(u64, &'static str); 2];

pub(super) fn span(
    node: &YamlNode,
    field: &str,
    bounds: Bounds,
    report: &mut Report<'_>,
) -> Option<Duration> {
    let written = text(node, field, report)?;
    let span = report.settle(node.at, period::parse(written, field))?;
    let [(least, least_written), (most, most_written)] = bounds;
    let what = if span < Duration::from_millis(least) {
        "short"
    } else if span > Duration::from_millis(most) {
        "long"
    } else {
        return Some(span);
    };
    let message = format!("`{field}: {written}` is too {what}");
    report.error(node.at, message, format!("write {least_written} to {most_written}"));
    None
}

pub(super) const SECOND: u64 = 1_000;
pub(super) const DAY: u64 = 86_400 * SECOND;
