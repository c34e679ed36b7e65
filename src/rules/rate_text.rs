//! Rates such as `100/s`, `20/h`, `5/15min`, `unlimited`.

use std::fmt;

use super::amount;
use super::period::{Period, YEAR, each, right_units, split_number, unit_nanos};
use super::problem::{ValueProblem, shown};
use crate::limit::{LimitError, Rate};

/// A rate as written. The algorithm decides whether it is supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum WrittenRate {
    /// No limit.
    Unlimited,
    /// A number of units in each period.
    Every(u32, Period),
}

impl WrittenRate {
    /// Converts it to the rate of a bucket; `None` if unlimited.
    pub(crate) fn steady(self) -> Result<Option<Rate>, ValueProblem> {
        let WrittenRate::Every(count, period) = self else { return Ok(None) };
        Rate::new(count, period.nanos).map(Some).map_err(|error| impossible(self, error))
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
    match Period::of(periods, unit) {
        _ if number == 0 => Err(impossible(text, LimitError::Zero)),
        Some(period) if period.nanos <= Period::NANOS_MAX => Ok(WrittenRate::Every(number, period)),
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
    let mend = match wrong.mend.as_deref().and_then(|mend| mend.strip_prefix("write ")) {
        Some(number) if number.parse::<u32>().is_ok() => format!("write {number}/{period}"),
        _ => match fraction(count, period) {
            Some(rate) => format!("write {rate}"),
            None => wrong.mend.unwrap_or_default(),
        },
    };
    ValueProblem::new(message, mend)
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
            Err(ValueProblem { message, mend: wrong.mend.map(|mend| format!("{mend} before `{unit}`")) })
        }
    }
}

/// Describes valid numbers that do not fit together.
pub(super) fn impossible(text: impl fmt::Display, error: LimitError) -> ValueProblem {
    let mend = match error {
        LimitError::Zero => {
            "write `mode: disabled` to switch the rule off; there is no rate that refuses everything"
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
    ValueProblem::new(format!("{error}: {}", shown(&text.to_string())), mend)
}

const UNLIMITED: &str = "unlimited";

#[cfg(test)]
mod tests {
    use super::super::period::{Period, SECOND};
    use super::{WrittenRate, parse};

    #[test]
    fn a_rate_is_a_number_a_slash_and_a_unit() {
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
            let months = text.ends_with("month").then_some(1);
            assert_eq!(rate, WrittenRate::Every(*count, Period { nanos: *period, months }), "{text}");
            assert_eq!(rate.to_string(), *text, "it is printed as it is written");
            let kept = rate.steady().unwrap().unwrap();
            assert_eq!((kept.count(), kept.period_nanos()), (*count, *period), "{text}");
        }
        assert_eq!(parse("unlimited"), Ok(WrittenRate::Unlimited));
        assert_eq!(WrittenRate::Unlimited.steady(), Ok(None));
    }

    #[test]
    fn what_comes_too_fast_one_by_one_may_still_be_counted_in_windows() {
        let wrong = parse("1999999/s").unwrap().steady().unwrap_err();
        assert!(wrong.message.contains("one part in 100000: `1999999/s`"), "{wrong:?}");
        assert!(wrong.mend.unwrap().contains("2000000/s"));
    }

    #[test]
    fn what_is_nearly_a_rate_is_told_how_to_become_one() {
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
            ("0/s", "a rate of 0 refuses everything", "mode: disabled"),
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
        for (text, message, mend) in table {
            let wrong = parse(text).unwrap_err();
            assert!(wrong.message.contains(message), "{text:?}: {wrong:?}");
            assert!(wrong.mend.as_deref().unwrap().contains(mend), "{text:?}: {wrong:?}");
        }
    }
}
