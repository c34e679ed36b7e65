//! Durations: the periods of rates, and `15min` alone.

use std::fmt;
use std::time::Duration;

use super::amount;
use super::problem::{ValueProblem, shown};

/// A period. A month counts 30 days and is marked, so that calendar windows use calendar months.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Period {
    /// Nanoseconds, 30 days per month.
    pub(crate) nanos: u64,
    /// The number of months, if written in months.
    pub(crate) months: Option<u32>,
}

impl Period {
    /// 366 days.
    pub(super) const NANOS_MAX: u64 = 366 * 86_400 * SECOND;

    /// Makes a period of `count` units.
    pub(super) fn of(count: u32, unit: &str) -> Option<Period> {
        let nanos = u64::from(count).saturating_mul(unit_nanos(unit)?);
        Some(Period { nanos, months: (unit == "month").then_some(count) })
    }
}

/// Uses the largest unit that divides the period, as in a rate: `s`, `15min`, `month`.
impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, unit) = match self.months {
            Some(months) => (u64::from(months), "month"),
            None => {
                let units = UNITS.iter().rev().filter(|(name, _)| *name != "month");
                let fits = |nanos: u64| nanos > 0 && self.nanos > 0 && self.nanos.is_multiple_of(nanos);
                let (unit, nanos) = units.copied().find(|(_, nanos)| fits(*nanos)).unwrap_or(("ns", 1));
                (self.nanos / nanos, unit)
            }
        };
        if count == 1 { f.write_str(unit) } else { write!(f, "{count}{unit}") }
    }
}

/// Parses a duration that stands alone, such as `15min`; at most 366 days.
pub(super) fn parse(text: &str, field: &str) -> Result<Duration, ValueProblem> {
    let (digits, unit) = split_number(text);
    let example = "write it like 60s, 15min, 2h or 1day";
    if digits.is_empty() {
        return Err(ValueProblem::new(
            format!("`{field}` is a number and a unit, not {}", shown(text)),
            example,
        ));
    }
    if unit.is_empty() {
        let mend = match amount::parse(digits) {
            Ok(number) => format!("write {number}s, {number}min, {number}h or {number}day"),
            Err(_) => example.to_owned(),
        };
        return Err(ValueProblem::new(format!("`{field}: {}` has no unit", cut(text)), mend));
    }
    if unit_nanos(unit).is_none() {
        let message = format!("unknown unit {} in `{field}: {}`", shown(unit), cut(text));
        let mend = match right_units(unit) {
            [] => "write ms, s, min, h, day or week, such as 15min".to_owned(),
            [YEAR] => "write 365day".to_owned(),
            units => format!("write {}", each(units, |unit| format!("{digits}{unit}"))),
        };
        return Err(ValueProblem::new(message, mend));
    }
    let wrong = |wrong: ValueProblem| {
        let message = format!("{} in `{field}: {}`", wrong.message, cut(text));
        ValueProblem { message, mend: wrong.mend.map(|mend| format!("{mend} before `{unit}`")) }
    };
    let count = amount::parse(digits).map_err(wrong)?;
    match Period::of(count, unit) {
        Some(Period { nanos: 0, .. }) | None => Err(ValueProblem::new(
            format!("`{field}` is no time at all"),
            format!("leave it out, or {example}"),
        )),
        Some(Period { nanos, .. }) if nanos > Period::NANOS_MAX => Err(ValueProblem::new(
            format!("`{field}: {}` is longer than 366 days", cut(text)),
            "write at most 366day",
        )),
        Some(Period { nanos, .. }) => Ok(Duration::from_nanos(nanos)),
    }
}

/// Splits the number at the start from the unit. Signs, points and underscores count to the number.
pub(super) fn split_number(period: &str) -> (&str, &str) {
    let is_number =
        |character: char| character.is_ascii_digit() || matches!(character, '.' | '_' | '-' | '+');
    let at = period.find(|character| !is_number(character)).unwrap_or(period.len());
    period.split_at(at)
}

pub(super) fn unit_nanos(unit: &str) -> Option<u64> {
    UNITS.iter().find(|(name, _)| *name == unit).map(|(_, nanos)| *nanos)
}

/// Returns the units that may have been meant by another spelling.
pub(super) fn right_units(unit: &str) -> &'static [&'static str] {
    let word = unit.trim().to_lowercase();
    ALIASES.iter().find(|(_, aliases)| aliases.contains(&word.as_str())).map_or(&[], |(right, _)| right)
}

/// Joins one suggestion per unit with `, or `.
pub(super) fn each(units: &[&str], write: impl Fn(&str) -> String) -> String {
    units.iter().map(|unit| write(unit)).collect::<Vec<_>>().join(", or ")
}

/// Shortens a text for use inside backticks.
fn cut(text: &str) -> String {
    shown(text).trim_matches('`').to_owned()
}

/// Returns the names of the units, for the schema.
pub(super) fn unit_names() -> impl Iterator<Item = &'static str> {
    UNITS.iter().map(|(name, _)| *name)
}

/// Not a unit, as a year has 365 or 366 days.
pub(super) const YEAR: &str = "year";

pub(super) const SECOND: u64 = 1_000_000_000;

const UNITS: [(&str, u64); 7] = [
    ("ms", SECOND / 1000),
    ("s", SECOND),
    ("min", 60 * SECOND),
    ("h", 3_600 * SECOND),
    ("day", 86_400 * SECOND),
    ("week", 7 * 86_400 * SECOND),
    ("month", 30 * 86_400 * SECOND),
];

/// Units and their other common spellings.
const ALIASES: [(&[&str], &[&str]); 9] = [
    (&["min", "month"], &["m", "mo"]),
    (&["ms"], &["ms", "msec", "millis", "millisecond", "milliseconds"]),
    (&["s"], &["s", "sec", "secs", "second", "seconds"]),
    (&["min"], &["min", "mins", "minute", "minutes"]),
    (&["h"], &["h", "hr", "hrs", "hour", "hours"]),
    (&["day"], &["d", "day", "days", "daily"]),
    (&["week"], &["w", "wk", "week", "weeks"]),
    (&["month"], &["month", "months"]),
    (&[YEAR], &["y", "yr", "year", "years"]),
];

#[cfg(test)]
mod tests {
    use super::{Duration, parse};

    #[test]
    fn a_span_is_a_number_and_a_unit() {
        let table: &[(&str, u64)] = &[
            ("1ms", 1),
            ("60s", 60_000),
            ("15min", 900_000),
            ("2h", 7_200_000),
            ("366day", 366 * 86_400_000),
            ("1week", 7 * 86_400_000),
            ("1month", 30 * 86_400_000),
        ];
        for (text, millis) in table {
            assert_eq!(parse(text, "block"), Ok(Duration::from_millis(*millis)), "{text}");
        }
    }

    #[test]
    fn what_is_nearly_a_span_is_told_how_to_become_one() {
        let table: &[(&str, &str, &str)] = &[
            ("", "`block` is a number and a unit, not ``", "like 60s"),
            ("soon", "not `soon`", "like 60s"),
            ("900", "`block: 900` has no unit", "write 900s, 900min"),
            ("15m", "unknown unit `m` in `block: 15m`", "write 15min, or 15month"),
            ("15 min", "unknown unit ` min`", "write 15min"),
            ("2hours", "unknown unit `hours`", "write 2h"),
            ("1y", "unknown unit `y`", "write 365day"),
            ("1fortnight", "unknown unit `fortnight`", "such as 15min"),
            ("1.5h", "`1.5` is not a whole number in `block: 1.5h`", "before `h`"),
            ("-5s", "`-5` is negative", "at least 1"),
            ("0s", "`block` is no time at all", "leave it out"),
            ("367day", "`block: 367day` is longer than 366 days", "at most 366day"),
            ("99999999999s", "too large", "at most"),
        ];
        for (text, message, mend) in table {
            let wrong = parse(text, "block").unwrap_err();
            assert!(wrong.message.contains(message), "{text:?}: {wrong:?}");
            assert!(wrong.mend.as_deref().unwrap().contains(mend), "{text:?}: {wrong:?}");
        }
    }
}
