//! Rates such as `100/s`, `20/h`, `5/15min`, `unlimited`, and durations such as `15min`.

use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;

use super::amount;
use super::problem::{ValueProblem, shown};
use crate::limit::fixed_window::WindowPeriod;
use crate::limit::{LimitError, PERIOD_NANOS_MAX, Rate};

/// A rate as written, or a `max`. The algorithm decides whether it is supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum WrittenRate {
    Unlimited,
    Every(u32, WindowPeriod),
    AtOnce(NonZeroU32),
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
            WrittenRate::AtOnce(max) => max.fmt(f),
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
    let written = WrittenSpan::of(period, format!("the rate {}", shown(text)), format!("{}/", count.trim()));
    written.check_unit("write s, min, h, day, week or month, such as 100/s or 5/15min")?;
    let WrittenSpan { digits, unit, .. } = written;
    let number = amount::parse(count).map_err(|wrong| wrong_count(&written.whole, count, period, wrong))?;
    let periods = match digits {
        "" => 1,
        _ => match written.count()? {
            0 => {
                let message = format!("a period of 0 in {}", written.whole);
                return Err(ValueProblem::new(message, format!("write {count}/{unit}")));
            }
            periods => periods,
        },
    };
    match period_of(periods, unit) {
        _ if number == 0 => Err(impossible(text, LimitError::Zero)),
        Some(period) if period.nanos() <= PERIOD_NANOS_MAX => Ok(WrittenRate::Every(number, period)),
        _ => Err(impossible(text, LimitError::Period)),
    }
}

/// A number of units in a text, such as `15min` in `5/15min`.
struct WrittenSpan<'t> {
    digits: &'t str,
    unit: &'t str,
    /// The text in messages: "the rate `5/15min`", "`block: 15min`".
    whole: String,
    /// The part of the text before it, for suggestions.
    before: String,
}

impl WrittenSpan<'_> {
    /// Splits the number at the start from the unit. Signs, points and underscores count to the number.
    fn of(text: &str, whole: String, before: String) -> WrittenSpan<'_> {
        let is_number =
            |character: char| character.is_ascii_digit() || matches!(character, '.' | '_' | '-' | '+');
        let at = text.find(|character| !is_number(character)).unwrap_or(text.len());
        let (digits, unit) = text.split_at(at);
        WrittenSpan { digits, unit, whole, before }
    }

    /// Checks the unit; `other` is the help for one that resembles none.
    fn check_unit(&self, other: &str) -> Result<(), ValueProblem> {
        let WrittenSpan { digits, unit, whole, before } = self;
        if unit_nanos(unit).is_some() {
            return Ok(());
        }
        let message = match *unit {
            "" => format!("{whole} has no unit"),
            unit => format!("unknown unit {} in {whole}", shown(unit)),
        };
        let word = unit.trim().to_lowercase();
        let right = ALIASES.iter().find(|(_, aliases)| aliases.contains(&word.as_str()));
        let help = match right.map(|(units, _)| *units) {
            None => other.to_owned(),
            Some([YEAR]) => format!("write {before}365day"),
            Some(units) => {
                let units = units.iter().map(|unit| format!("{before}{digits}{unit}"));
                format!("write {}", units.collect::<Vec<_>>().join(", or "))
            }
        };
        Err(ValueProblem::new(message, help))
    }

    fn count(&self) -> Result<u32, ValueProblem> {
        amount::parse(self.digits).map_err(|wrong| {
            let message = format!("{} in {}", wrong.message, self.whole);
            ValueProblem { message, help: format!("{} before `{}`", wrong.help, self.unit) }
        })
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

fn wrong_count(whole: &str, count: &str, period: &str, wrong: ValueProblem) -> ValueProblem {
    let message = format!("{} in {whole}", wrong.message);
    let help = match wrong.help.strip_prefix("write ") {
        Some(number) if number.parse::<u32>().is_ok() => format!("write {number}/{period}"),
        _ => match fraction(count, period) {
            Some(rate) => format!("write {rate}"),
            None => wrong.help,
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
    let example = "write it like 60s, 15min, 2h or 1day";
    let cut = shown(text);
    let whole = format!("`{field}: {}`", cut.trim_matches('`'));
    let written = WrittenSpan::of(text, whole, String::new());
    let whole = &written.whole;
    match (written.digits, written.unit) {
        ("", _) => {
            let message = format!("`{field}` is a number and a unit, not {}", shown(text));
            return Err(ValueProblem::new(message, example));
        }
        (digits, "") => {
            let help = match amount::parse(digits) {
                Ok(number) => format!("write {number}s, {number}min, {number}h or {number}day"),
                Err(_) => example.to_owned(),
            };
            return Err(ValueProblem::new(format!("{whole} has no unit"), help));
        }
        _ => written.check_unit("write ms, s, min, h, day or week, such as 15min")?,
    }
    match period_of(written.count()?, written.unit).map_or(0, WindowPeriod::nanos) {
        0 => {
            let message = format!("`{field}` is no time at all");
            Err(ValueProblem::new(message, format!("leave it out, or {example}")))
        }
        nanos if nanos > PERIOD_NANOS_MAX => {
            Err(ValueProblem::new(format!("{whole} is longer than 366 days"), "write at most 366day"))
        }
        nanos => Ok(Duration::from_nanos(nanos)),
    }
}

fn unit_nanos(unit: &str) -> Option<u64> {
    UNITS.iter().find(|(name, _)| *name == unit).map(|(_, nanos)| *nanos)
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
