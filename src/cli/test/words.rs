//! Parses the words of a line of a test: times, spans, numbers and names. It does not know their purpose.

use super::expected::is_note;
use crate::clock::Micros;
use crate::protocol::is_name;
use crate::rules::{ValueProblem, shown};

#[derive(Debug, Default)]
pub(super) struct TestWord {
    pub(super) text: String,
    /// A part of it was quoted, so it is no keyword.
    pub(super) is_quoted: bool,
}

/// Splits a line into words. A part in double quotes may contain spaces.
pub(super) fn words(line: &str) -> Result<Vec<TestWord>, ValueProblem> {
    let mut words = Vec::new();
    let mut word: Option<TestWord> = None;
    let mut in_quotes = false;
    for character in line.chars() {
        match character {
            '"' => {
                in_quotes = !in_quotes;
                word.get_or_insert_default().is_quoted = true;
            }
            character if character.is_whitespace() && !in_quotes => words.extend(word.take()),
            character => word.get_or_insert_default().text.push(character),
        }
    }
    words.extend(word);
    if in_quotes {
        Err(ValueProblem::new("a quote that does not end", "end it with another \""))
    } else {
        Ok(words)
    }
}

/// Parses `[DAYSd]H:MM[:SS[.FRACTION]]`, a span, or an RFC 3339 date with `Z`, to nanoseconds since 1970.
pub(super) fn time(text: &str) -> Result<u64, ValueProblem> {
    let read = if text.contains('T') { date(text) } else { clock(text) };
    let read = read.or_else(|| nanos(text).ok());
    let mend = "write H:MM:SS.FRACTION, 2d9:00 for the second day after 1970-01-01, a span from there such as 90s, or \
                2026-03-29T01:00:00Z";
    read.ok_or_else(|| ValueProblem::new(format!("{} is no time", shown(text)), mend))
}

fn date(text: &str) -> Option<u64> {
    let at = humantime::parse_rfc3339(text).ok()?;
    let since = at.duration_since(std::time::UNIX_EPOCH).ok()?;
    u64::try_from(since.as_nanos()).ok()
}

fn clock(text: &str) -> Option<u64> {
    let (days, text) = text.split_once('d').unwrap_or(("0", text));
    let (text, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let parts: Vec<u64> = text.split(':').map(digits).collect::<Option<_>>()?;
    let (hours, minutes, seconds) = match *parts {
        [hours, minutes] => (hours, minutes, 0),
        [hours, minutes, seconds] => (hours, minutes, seconds),
        _ => return None,
    };
    digits(fraction).filter(|_| fraction.len() <= 9 && minutes < 60 && seconds < 60)?;
    let hours = digits(days)?.checked_mul(24)?.checked_add(hours)?;
    let seconds = hours.checked_mul(3_600)?.checked_add(minutes * 60 + seconds)?;
    seconds.checked_mul(1_000_000_000)?.checked_add(digits(&format!("{fraction:0<9}"))?)
}

fn digits(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}

pub(super) fn nanos(span: &str) -> Result<u64, ValueProblem> {
    let read = humantime::parse_duration(span).ok().and_then(|span| u64::try_from(span.as_nanos()).ok());
    read.ok_or_else(|| {
        ValueProblem::new(
            format!("{} is no span of time", shown(span)),
            "write one such as 200ms, 90s or 1h30m",
        )
    })
}

pub(super) fn micros(span: &str) -> Result<Micros, ValueProblem> {
    match nanos(span)? {
        nanos if nanos % 1_000 == 0 => Ok(Micros(nanos / 1_000)),
        _ => Err(ValueProblem::new(
            format!("{} is no whole number of microseconds", shown(span)),
            "write one such as 5s1us",
        )),
    }
}

pub(super) fn whole(number: &str) -> Result<u32, ValueProblem> {
    let read = digits(number).and_then(|number| u32::try_from(number).ok());
    let mend = format!("write a whole number, at most {}", u32::MAX);
    read.ok_or_else(|| ValueProblem::new(format!("{} is no number", shown(number)), mend))
}

/// Parses a cost, which may exceed the costs that rules can count: those above 63 bits are clamped.
pub(super) fn cost(number: &str) -> Result<i64, ValueProblem> {
    let mend = format!("write a whole number, at most {}", u64::MAX);
    let cost = digits(number).map(|cost| i64::try_from(cost).unwrap_or(i64::MAX));
    cost.ok_or_else(|| ValueProblem::new(format!("{} is no number", shown(number)), mend))
}

pub(super) fn signed(number: &str) -> Result<i64, ValueProblem> {
    let magnitude = whole(number.strip_prefix('-').unwrap_or(number))?;
    Ok(if number.starts_with('-') { -i64::from(magnitude) } else { i64::from(magnitude) })
}

/// Parses the name of a session, a pool or a lease.
pub(super) fn name(text: &str) -> Result<String, ValueProblem> {
    if is_name(text) {
        return Ok(text.to_owned());
    }
    let mend = "write 1 to 64 bytes without control characters, `:` or `/`";
    Err(ValueProblem::new(format!("{} is no name", shown(text)), mend))
}

/// Whether a word is a count such as `x5`.
pub(super) fn is_times(word: &str) -> bool {
    word.strip_prefix('x').and_then(digits).is_some()
}

pub(super) fn times(word: &str) -> Result<u32, ValueProblem> {
    match whole(word.trim_start_matches('x'))? {
        0 => Err(ValueProblem::new("no request on the line: x0", "write x1, or put `#` before the line")),
        times => Ok(times),
    }
}

pub(super) fn note(text: &str) -> Result<(String, String), ValueProblem> {
    match text.split_once(':').filter(|(kind, _)| is_note(kind)) {
        Some((kind, rule)) => Ok((kind.to_owned(), rule.to_owned())),
        None => {
            let mend = "write KIND:RULE, the kind being shadow, candidate, over or near; - for none";
            Err(ValueProblem::new(format!("{} is no note", shown(text)), mend))
        }
    }
}
