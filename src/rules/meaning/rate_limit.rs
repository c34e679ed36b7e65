//! Checks of a descriptor's `rate_limit`: requests per window or unlimited, and the limits it replaces.

use crate::rules::de::{Mapping, suggest};
use crate::rules::file::RateLimitFields;
use crate::rules::problem::shown;
use crate::rules::source::{Report, Span};
use crate::rules::tree::{NodeLimit, RequestsPerUnit};

/// Checks a limit; its rule has no name yet.
pub(super) fn rate_limit(
    fields: &RateLimitFields<'_>,
    mapping: Mapping<'_>,
    report: &mut Report<'_>,
) -> Option<NodeLimit> {
    let unlimited = fields.unlimited.unwrap_or_default();
    let count = count(fields, unlimited, mapping, report);
    let seconds = unit(fields, unlimited, mapping, report);
    let name = fields.name.map(|name| name.0).filter(|name| !name.is_empty());
    let replaces = replaces(fields, name, report);
    let amount = if unlimited { None } else { Some(RequestsPerUnit { count, seconds: seconds? }) };
    let name = name.map(Into::into);
    Some(NodeLimit { rule: Box::default(), amount, shadow: false, quota: false, fleet: None, name, replaces })
}

fn count(
    fields: &RateLimitFields<'_>,
    unlimited: bool,
    mapping: Mapping<'_>,
    report: &mut Report<'_>,
) -> u32 {
    let Some(count) = fields.requests_per_unit else {
        if !unlimited {
            let message = "without `requests_per_unit` every request is refused";
            let mend = "write how many may pass, or `requests_per_unit: 0` if none is meant";
            report.warning(mapping.0.at, message, mend);
        }
        return 0;
    };
    if unlimited {
        let message = "`requests_per_unit` has no effect beside `unlimited`";
        report.warning(mapping.at("requests_per_unit"), message, "leave one of the two out");
    }
    count.0
}

/// Returns the length of a window in seconds. The unit of an unlimited node is an error if it is a known one,
/// another word a warning.
fn unit(
    fields: &RateLimitFields<'_>,
    unlimited: bool,
    mapping: Mapping<'_>,
    report: &mut Report<'_>,
) -> Option<u32> {
    let at = mapping.at("unit");
    let Some(unit) = fields.unit.map(|unit| unit.0.to_lowercase()) else {
        if !unlimited {
            let mend = "write `unit: second`, minute, hour, day, week, month or year, or `unlimited: true`";
            report.error(mapping.0.at, "`rate_limit` needs `unit`", mend);
        }
        return None;
    };
    let known = UNITS.iter().find(|(known, _)| *known == unit);
    match (known, unlimited) {
        (Some(_), true) => {
            let message = format!("an unlimited descriptor has no unit, and this says {}", shown(&unit));
            report.error(at, message, "leave out `unit`, or `unlimited`");
        }
        (None, true) => report.warning(at, "`unit` has no effect beside `unlimited`", "leave it out"),
        (None, false) => {
            let mend = suggest(&unit, &UNITS.map(|(known, _)| known));
            report.error(at, format!("unknown unit {}", shown(&unit)), mend);
        }
        (Some(_), false) => {}
    }
    known.map(|(_, seconds)| *seconds)
}

fn replaces(
    fields: &RateLimitFields<'_>,
    own: Option<&str>,
    report: &mut Report<'_>,
) -> Vec<(Box<str>, Span)> {
    let mut replaces = Vec::new();
    for item in fields.replaces.iter().flatten() {
        let (at, name) = item.value.name.map_or((item.at, ""), |name| (name.at, name.value.0));
        if name.is_empty() {
            let mend = "write the `name` of the `rate_limit` that is replaced, or leave the entry out";
            report.error(at, "an entry of `replaces` is empty", mend);
        } else if own == Some(name) {
            let message = format!("{} replaces itself", shown(name));
            report.error(at, message, "name another limit, or leave the entry out");
        } else {
            replaces.push((name.into(), at));
        }
    }
    replaces
}

/// As envoyproxy/ratelimit counts: a month is 30 days and a year 365, independent of the calendar.
const UNITS: [(&str, u32); 7] = [
    ("second", 1),
    ("minute", 60),
    ("hour", 3_600),
    ("day", DAY),
    ("week", 7 * DAY),
    ("month", 30 * DAY),
    ("year", 365 * DAY),
];

const DAY: u32 = 86_400;
