//! Reader of a descriptor's `rate_limit`: requests per window or unlimited, and the limits it replaces.

use super::placed::placed;
use super::tree::{HOMES, written};
use crate::rules::amount;
use crate::rules::fields::{Field, Fields, choice, list, text};
use crate::rules::problem::{ValueProblem, shown};
use crate::rules::source::{Report, Span};
use crate::rules::tree::{NodeLimit, RequestsPerUnit};
use crate::rules::written::{RATE_LIMIT, REPLACED};
use crate::rules::yaml::{ScalarKind, Value, YamlNode};

/// Reads a limit; its rule has no name yet.
pub(super) fn rate_limit(node: &YamlNode, report: &mut Report<'_>) -> Option<NodeLimit> {
    let node = placed(node, "`rate_limit`", RATE_LIMIT, HOMES, report);
    let fields = Fields::read(&node, "`rate_limit`", RATE_LIMIT, report)?;
    let unlimited = match written(&fields, "unlimited") {
        // An invalid flag is reported, and dependent fields are not checked.
        Some(node) => flag(node, "unlimited", report)?,
        None => false,
    };
    let count = count(&fields, unlimited, report);
    let seconds = if unlimited { not_a_unit(&fields, report) } else { unit(&fields, report) };
    let name = written(&fields, "name").and_then(|node| text(node, "name", report));
    let name = name.filter(|name| !name.is_empty());
    let replaces = replaces(&fields, name, report);
    let amount = if unlimited { None } else { Some(RequestsPerUnit { count: count?, seconds: seconds? }) };
    let name = name.map(Into::into);
    Some(NodeLimit { rule: Box::default(), amount, shadow: false, quota: false, fleet: None, name, replaces })
}

/// Reads a boolean. Words such as `yes`, which envoyproxy/ratelimit accepts, are texts here and reported.
pub(super) fn flag(node: &YamlNode, field: &str, report: &mut Report<'_>) -> Option<bool> {
    let meant = match &node.value {
        Value::Scalar(ScalarKind::Boolean, text) => return Some(text.eq_ignore_ascii_case("true")),
        Value::Scalar(_, text) => match text.to_ascii_lowercase().as_str() {
            "y" | "yes" | "on" | "true" | "1" => Some("`true`"),
            "n" | "no" | "off" | "false" | "0" => Some("`false`"),
            _ => None,
        },
        _ => None,
    };
    let found = node.as_scalar().map_or(node.kind().to_owned(), shown);
    let mend = format!("write {}, without quotes", meant.unwrap_or("`true` or `false`"));
    report.error(node.at, format!("`{field}` is true or false, not {found}"), mend);
    None
}

fn count(fields: &Fields<'_>, unlimited: bool, report: &mut Report<'_>) -> Option<u32> {
    let Some(node) = written(fields, "requests_per_unit") else {
        if !unlimited {
            let message = "without `requests_per_unit` every request is refused";
            let mend = "write how many may pass, or `requests_per_unit: 0` if none is meant";
            report.warning(fields.at(), message, mend);
        }
        return Some(0);
    };
    if unlimited {
        let message = "`requests_per_unit` has no effect beside `unlimited`";
        report.warning(node.at, message, "leave one of the two out");
    }
    let field = "requests_per_unit";
    let number = match &node.value {
        Value::Scalar(ScalarKind::Number, text) => whole_number(text),
        Value::Scalar(_, text) => {
            let message = format!("`{field}` is a number, not the text {}", shown(text));
            Err(ValueProblem::new(message, "write a whole number in digits, without quotes"))
        }
        _ => {
            let message = format!("`{field}` is a number, not {}", node.kind());
            Err(ValueProblem::new(message, "write a whole number"))
        }
    };
    report.settle(node.at, number)
}

fn whole_number(text: &str) -> Result<u32, ValueProblem> {
    let octal = text.strip_prefix("0o").or_else(|| text.strip_prefix('0')).filter(|rest| !rest.is_empty());
    if let Some(octal) = octal.and_then(|rest| u32::from_str_radix(rest, 8).ok()) {
        let message = format!("{} is octal, and {octal} to that service", shown(text));
        return Err(ValueProblem::new(
            message,
            format!("write {octal}, or the decimal number that is meant"),
        ));
    }
    amount::parse(text).map_err(|wrong| match text.starts_with('-') {
        true => ValueProblem::new(wrong.message, "write 0, which refuses every request, or more"),
        false => wrong,
    })
}

/// Reads the length of a window in seconds.
fn unit(fields: &Fields<'_>, report: &mut Report<'_>) -> Option<u32> {
    let Some(node) = written(fields, "unit") else {
        let mend = "write `unit: second`, minute, hour, day, week, month or year, or `unlimited: true`";
        report.error(fields.at(), "`rate_limit` needs `unit`", mend);
        return None;
    };
    choice(&lowercase(node), "unit", UNITS, report)
}

/// Checks the unit of an unlimited node: a known one is an error, another word a warning.
fn not_a_unit(fields: &Fields<'_>, report: &mut Report<'_>) -> Option<u32> {
    let node = written(fields, "unit")?;
    let unit = text(node, "unit", report)?.to_lowercase();
    if UNITS.iter().any(|(known, _)| known.name == unit) {
        let message = format!("an unlimited descriptor has no unit, and this says {}", shown(&unit));
        report.error(node.at, message, "leave out `unit`, or `unlimited`");
    } else {
        report.warning(node.at, "`unit` has no effect beside `unlimited`", "leave it out");
    }
    None
}

fn replaces(fields: &Fields<'_>, own: Option<&str>, report: &mut Report<'_>) -> Vec<(Box<str>, Span)> {
    let mend = "write `replaces: [{name: NAME}]`";
    let items = written(fields, "replaces").and_then(|node| list(node, "replaces", mend, report));
    let mut replaces = Vec::new();
    for item in items.unwrap_or_default() {
        if let Some(name) = item.as_scalar() {
            let message = format!("an entry of `replaces` is a mapping, not the text {}", shown(name));
            report.error(item.at, message, format!("write `- name: {name}`"));
            continue;
        }
        let item = placed(item, "an entry of `replaces`", REPLACED, HOMES, report);
        let Some(fields) = Fields::read(&item, "an entry of `replaces`", REPLACED, report) else { continue };
        let (at, name) = match written(&fields, "name") {
            Some(node) => (node.at, text(node, "name", report)),
            None => (item.at, Some("")),
        };
        let Some(name) = name else { continue };
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

fn lowercase(node: &YamlNode) -> YamlNode {
    let value = match &node.value {
        Value::Scalar(kind, text) => Value::Scalar(*kind, text.to_lowercase().into()),
        other => other.clone(),
    };
    YamlNode { at: node.at, value }
}

/// As envoyproxy/ratelimit counts: a month is 30 days and a year 365, independent of the calendar.
const UNITS: &[(Field, u32)] = &[
    (Field::built("second"), 1),
    (Field::built("minute"), 60),
    (Field::built("hour"), 3_600),
    (Field::built("day"), DAY),
    (Field::built("week"), 7 * DAY),
    (Field::built("month"), 30 * DAY),
    (Field::built("year"), 365 * DAY),
];

const DAY: u32 = 86_400;
