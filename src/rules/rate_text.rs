//! Rates such as `100/s`, `20/h`, `5/15min`, `unlimited`, and durations such as `15min`.

use std::fmt;
use std::time::Duration;

use super::amount;
use super::problem::{ValueProblem, shown};
use crate::limit::fixed_window::WindowPeriod;
use crate::limit::{LimitError, PERIOD_NANOS_MAX, Rate};

/// A rate as written. The algorithm decides whether it is supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum WrittenRate {
    Unlimited,
    Every(u32, WindowPeriod),
}

impl WrittenRate {
    /// Converts it to the rate of a bucket; `None` if unlimited.
    pub(crate) fn steady(self) -> Result<Option<Rate>, ValueProblem> {
        let WrittenRate::Every(count, period) = self else { return Ok(None) };
        Rate::new(count, period.nanos()).map(Some).map_err(|error| impossible(self, error))
    }
}

/// The form that [`parse`] reads.
impl fmt::Display for WrittenRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WrittenRate::Unlimited => f.write_str(UNLIMITED),
            WrittenRate::Every(count, period) => write!(f, "{count}/{period}"),
        }
    }
}

/// Parses `N/UNIT` or `N/NUNIT`, or `unlimited`.
///
/// Errors suggest the rate that was probably meant: `write 100/s` for `100/sec`.
pub(crate) fn parse(text: &str) -> Result<WrittenRate, ValueProblem> {
    if text == UNLIMITED {
        return Ok(WrittenRate::Unlimited);
    }
    let Some((count, period)) = text.split_once('/') else {
        return Err(without_slash(text));
    };
    let (digits, unit) = split_number(period);
    if unit_nanos(unit).is_none() {
        return Err(wrong_unit(text, count, digits, unit));
    }
    let number = amount::parse(count).map_err(|wrong| wrong_count(text, count, period, wrong))?;
    let periods = if digits.is_empty() { 1 } else { parse_periods(text, count, digits, unit)? };
    match period_of(periods, unit) {
        _ if number == 0 => Err(impossible(text, LimitError::Zero)),
        Some(period) if period.nanos() <= PERIOD_NANOS_MAX => Ok(WrittenRate::Every(number, period)),
        _ => Err(impossible(text, LimitError::Period)),
    }
}

fn without_slash(text: &str) -> ValueProblem {
    let message = format!("a rate is a number, a slash and a unit, not {}", shown(text));
    if text.trim().to_lowercase().starts_with("unlimit") {
        return ValueProblem::new(message, format!("write {UNLIMITED}"));
    }
    match amount::parse(text) {
        Ok(number) => ValueProblem::new(
            format!("the rate {} has no unit", shown(text)),
            format!("write {number}/s, {number}/min, {number}/h or {number}/day"),
        ),
        Err(_) => ValueProblem::new(message, "write it like 100/s, 20/min, 5/15min or 1000/day"),
    }
}

fn wrong_unit(text: &str, count: &str, digits: &str, unit: &str) -> ValueProblem {
    let message = if unit.is_empty() {
        format!("the rate {} has no unit", shown(text))
    } else {
        format!("unknown unit {} in the rate {}", shown(unit), shown(text))
    };
    let count = count.trim();
    match right_units(unit) {
        [] => ValueProblem::new(message, "write s, min, h, day, week or month, such as 100/s or 5/15min"),
        [YEAR] => ValueProblem::new(message, format!("write {count}/365day")),
        units => ValueProblem::new(
            message,
            format!("write {}", each(units, |unit| format!("{count}/{digits}{unit}"))),
        ),
    }
}

fn wrong_count(text: &str, count: &str, period: &str, wrong: ValueProblem) -> ValueProblem {
    let message = format!("{} in the rate {}", wrong.message, shown(text));
    let help = match wrong.help.as_deref().and_then(|help| help.strip_prefix("write ")) {
        Some(number) if number.parse::<u32>().is_ok() => format!("write {number}/{period}"),
        _ => match fraction(count, period) {
            Some(rate) => format!("write {rate}"),
            None => wrong.help.unwrap_or_default(),
        },
    };
    ValueProblem::new(message, help)
}

/// Suggests whole numbers: `0.5/s` is `1/2s`, `2.5/min` is `5/2min`.
fn fraction(count: &str, unit: &str) -> Option<String> {
    let (whole, part) = count.split_once('.')?;
    let places = u32::try_from(part.len()).ok().filter(|places| (1..=4).contains(places))?;
    let number: u32 = format!("{whole}{part}").parse().ok().filter(|number| *number > 0)?;
    unit_nanos(unit)?;
    let scale = 10u32.checked_pow(places)?;
    let divisor = (1..=scale).rev().find(|by| number.is_multiple_of(*by) && scale.is_multiple_of(*by))?;
    Some(format!("{}/{}{unit}", number / divisor, scale / divisor))
}

fn parse_periods(text: &str, count: &str, digits: &str, unit: &str) -> Result<u32, ValueProblem> {
    match amount::parse(digits) {
        Ok(0) => Err(ValueProblem::new(
            format!("a period of 0 in the rate {}", shown(text)),
            format!("write {count}/{unit}"),
        )),
        Ok(periods) => Ok(periods),
        Err(wrong) => {
            let message = format!("{} in the rate {}", wrong.message, shown(text));
            Err(ValueProblem { message, help: wrong.help.map(|help| format!("{help} before `{unit}`")) })
        }
    }
}

/// Describes valid numbers that do not fit together.
pub(super) fn impossible(text: impl fmt::Display, error: LimitError) -> ValueProblem {
    let help = match error {
        LimitError::Zero => {
            "to refuse such requests, use `deny` with the same `match`; to count nothing, write `mode: disabled`"
        }
        LimitError::Period => "write a period of at most 366 days",
        LimitError::TooFast => {
            "write at most 1000000/s, or a rate that divides a second evenly, such as 2000000/s"
        }
        LimitError::BurstTooLarge => "write a smaller burst",
        LimitError::Window => "write a window from 1 ms to 366 days",
        LimitError::LogTooLarge => {
            "write `algorithm: sliding_window`, or a smaller count over a shorter window"
        }
        LimitError::Buckets => "write `buckets:` from 1 to 60",
        LimitError::QueueTooLong => "write a shorter queue",
        LimitError::PartDays => "write a whole number of days, or `align: first`",
    };
    ValueProblem::new(format!("{error}: {}", shown(&text.to_string())), help)
}

/// Makes a period of `count` units; `None` of an unknown one.
fn period_of(count: u32, unit: &str) -> Option<WindowPeriod> {
    Some(match unit {
        "month" => WindowPeriod::Months(count),
        unit => WindowPeriod::Nanos(u64::from(count).saturating_mul(unit_nanos(unit)?)),
    })
}

/// Parses a duration that stands alone, such as `15min`; at most 366 days.
pub(super) fn parse_duration(text: &str, field: &str) -> Result<Duration, ValueProblem> {
    let (digits, unit) = split_number(text);
    let example = "write it like 60s, 15min, 2h or 1day";
    if digits.is_empty() {
        return Err(ValueProblem::new(
            format!("`{field}` is a number and a unit, not {}", shown(text)),
            example,
        ));
    }
    if unit.is_empty() {
        let help = match amount::parse(digits) {
            Ok(number) => format!("write {number}s, {number}min, {number}h or {number}day"),
            Err(_) => example.to_owned(),
        };
        return Err(ValueProblem::new(format!("`{field}: {}` has no unit", cut(text)), help));
    }
    if unit_nanos(unit).is_none() {
        let message = format!("unknown unit {} in `{field}: {}`", shown(unit), cut(text));
        let help = match right_units(unit) {
            [] => "write ms, s, min, h, day or week, such as 15min".to_owned(),
            [YEAR] => "write 365day".to_owned(),
            units => format!("write {}", each(units, |unit| format!("{digits}{unit}"))),
        };
        return Err(ValueProblem::new(message, help));
    }
    let wrong = |wrong: ValueProblem| {
        let message = format!("{} in `{field}: {}`", wrong.message, cut(text));
        ValueProblem { message, help: wrong.help.map(|help| format!("{help} before `{unit}`")) }
    };
    let count = amount::parse(digits).map_err(wrong)?;
    match period_of(count, unit).map_or(0, WindowPeriod::nanos) {
        0 => Err(ValueProblem::new(
            format!("`{field}` is no time at all"),
            format!("leave it out, or {example}"),
        )),
        nanos if nanos > PERIOD_NANOS_MAX => Err(ValueProblem::new(
            format!("`{field}: {}` is longer than 366 days", cut(text)),
            "write at most 366day",
        )),
        nanos => Ok(Duration::from_nanos(nanos)),
    }
}

/// Splits the number at the start from the unit. Signs, points and underscores count to the number.
fn split_number(period: &str) -> (&str, &str) {
    let is_number =
        |character: char| character.is_ascii_digit() || matches!(character, '.' | '_' | '-' | '+');
    let at = period.find(|character| !is_number(character)).unwrap_or(period.len());
    period.split_at(at)
}

fn unit_nanos(unit: &str) -> Option<u64> {
    UNITS.iter().find(|(name, _)| *name == unit).map(|(_, nanos)| *nanos)
}

/// Returns the units that may have been meant by another spelling.
fn right_units(unit: &str) -> &'static [&'static str] {
    let word = unit.trim().to_lowercase();
    ALIASES.iter().find(|(_, aliases)| aliases.contains(&word.as_str())).map_or(&[], |(right, _)| right)
}

/// Joins one suggestion per unit with `, or `.
fn each(units: &[&str], write: impl Fn(&str) -> String) -> String {
    units.iter().map(|unit| write(unit)).collect::<Vec<_>>().join(", or ")
}

/// Shortens a text for use inside backticks.
fn cut(text: &str) -> String {
    shown(text).trim_matches('`').to_owned()
}

pub(super) fn unit_names() -> impl Iterator<Item = &'static str> {
    UNITS.iter().map(|(name, _)| *name)
}

const UNLIMITED: &str = "unlimited";

/// Not a unit, as a year has 365 or 366 days.
const YEAR: &str = "year";

const SECOND: u64 = 1_000_000_000;

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
    use super::{Duration, SECOND, WindowPeriod, WrittenRate, parse, parse_duration};

    #[test]
    fn parses_rate_as_count_slash_unit() {
        let table: &[(&str, u32, u64)] = &[
            ("100/s", 100, SECOND),
            ("1/s", 1, SECOND),
            ("20/min", 20, 60 * SECOND),
            ("20/h", 20, 3_600 * SECOND),
            ("10000/day", 10_000, 86_400 * SECOND),
            ("5/week", 5, 7 * 86_400 * SECOND),
            ("5/month", 5, 30 * 86_400 * SECOND),
            ("5/30s", 5, 30 * SECOND),
            ("5/15min", 5, 900 * SECOND),
            ("300/3h", 300, 10_800 * SECOND),
            ("1/365day", 1, 365 * 86_400 * SECOND),
            ("1/100ms", 1, SECOND / 10),
            ("1000000/s", 1_000_000, SECOND),
            ("4294967295/month", u32::MAX, 30 * 86_400 * SECOND),
        ];
        for (text, count, period) in table {
            let rate = parse(text).unwrap();
            let is_month = text.ends_with("month");
            let written = if is_month { WindowPeriod::Months(1) } else { WindowPeriod::Nanos(*period) };
            assert_eq!(rate, WrittenRate::Every(*count, written), "{text}");
            assert_eq!(rate.to_string(), *text, "it is printed as it is written");
            let kept = rate.steady().unwrap().unwrap();
            assert_eq!((kept.count(), kept.period_nanos()), (*count, *period), "{text}");
        }
        assert_eq!(parse("unlimited"), Ok(WrittenRate::Unlimited));
        assert_eq!(WrittenRate::Unlimited.steady(), Ok(None));
    }

    #[test]
    fn suggests_window_for_rate_above_token_resolution() {
        let wrong = parse("1999999/s").unwrap().steady().unwrap_err();
        assert!(wrong.message.contains("one part in 100000: `1999999/s`"), "{wrong:?}");
        assert!(wrong.help.unwrap().contains("2000000/s"));
    }

    #[test]
    fn malformed_rate_gets_help() {
        let table: &[(&str, &str, &str)] = &[
            ("", "not ``", "like 100/s"),
            ("abc", "not `abc`", "like 100/s"),
            ("100", "`100` has no unit", "write 100/s, 100/min, 100/h or 100/day"),
            ("100/", "`100/` has no unit", "such as 100/s"),
            ("100/5", "`100/5` has no unit", "such as 100/s"),
            ("/s", "`` is not a whole number in the rate `/s`", "digits"),
            ("100 / s", "unknown unit ` s`", "write 100/s"),
            ("100/sec", "unknown unit `sec`", "write 100/s"),
            ("100/S", "unknown unit `S`", "write 100/s"),
            ("100/second", "unknown unit `second`", "write 100/s"),
            ("100/minute", "unknown unit `minute`", "write 100/min"),
            ("100/m", "unknown unit `m`", "write 100/min, or 100/month"),
            ("5/15m", "unknown unit `m`", "write 5/15min, or 5/15month"),
            ("100/hour", "unknown unit `hour`", "write 100/h"),
            ("100/d", "unknown unit `d`", "write 100/day"),
            ("1/2days", "unknown unit `days`", "write 1/2day"),
            ("1/year", "unknown unit `year`", "write 1/365day"),
            ("1/fortnight", "unknown unit `fortnight`", "week"),
            ("100/s/s", "unknown unit `s/s`", "such as 100/s"),
            ("100 per second", "not `100 per second`", "like 100/s"),
            ("100rps", "not `100rps`", "like 100/s"),
            ("5k/min", "`5k` is not a whole number", "write 5000/min"),
            ("1_000/s", "`1_000` is not a whole number", "write 1000/s"),
            ("1,000/s", "`1,000` is not a whole number", "write 1000/s"),
            ("1e3/s", "`1e3` is not a whole number", "write 1000/s"),
            ("+5/s", "`+5` is not a whole number", "write 5/s"),
            ("05/s", "`05` is not a whole number", "write 5/s"),
            ("5.0/s", "`5.0` is not a whole number", "write 5/s"),
            ("1.5/s", "`1.5` is not a whole number", "write 3/2s"),
            ("0.25/min", "`0.25` is not a whole number", "write 1/4min"),
            ("-5/s", "`-5` is negative", "at least 1"),
            ("0/s", "a rate of 0 refuses everything", "use `deny`"),
            ("5/0s", "a period of 0", "write 5/s"),
            ("5/1.5h", "`1.5` is not a whole number", "before `h`"),
            ("5/-1h", "`-1` is negative", "at least 1"),
            ("5/1_0s", "`1_0` is not a whole number", "write 10 before `s`"),
            ("4294967296/s", "`4294967296` is too large", "at most 4294967295"),
            ("1/4294967296s", "`4294967296` is too large", "at most"),
            ("1/13month", "at most 366 days", "366 days"),
            ("Unlimited", "not `Unlimited`", "write unlimited"),
            ("unlimited/s", "`unlimited` is not a whole number", "digits"),
            ("1/s\n", "unknown unit `s\\n`", "write 1/s"),
            ("١/s", "`١` is not a whole number", "digits"),
        ];
        for (text, message, help) in table {
            let wrong = parse(text).unwrap_err();
            assert!(wrong.message.contains(message), "{text:?}: {wrong:?}");
            assert!(wrong.help.as_deref().unwrap().contains(help), "{text:?}: {wrong:?}");
        }
    }

    #[test]
    fn parses_span_as_number_and_unit() {
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
            assert_eq!(parse_duration(text, "block"), Ok(Duration::from_millis(*millis)), "{text}");
        }
    }

    #[test]
    fn malformed_span_gets_help() {
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
        for (text, message, help) in table {
            let wrong = parse_duration(text, "block").unwrap_err();
            assert!(wrong.message.contains(message), "{text:?}: {wrong:?}");
            assert!(wrong.help.as_deref().unwrap().contains(help), "{text:?}: {wrong:?}");
        }
    }
}
