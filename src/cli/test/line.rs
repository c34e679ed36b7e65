//! One line of a test: requests, when they come, and what is expected of them. It is judged elsewhere.

use std::collections::VecDeque;

use super::expected::{Expected, NEVER, NOTHING, is_note, verdict};
use crate::clock::{Micros, Timestamp};
use crate::engine::{Op, Verdict};
use crate::rules::{Wrong, shown};

/// One line of a test.
#[derive(Clone, Debug)]
pub(super) struct Line {
    /// Where it stands in its file.
    pub(super) number: u32,
    first_nanos: u64,
    /// How many requests it has.
    times: u32,
    apart_nanos: u64,
    pub(super) op: Op,
    /// Each as its attributes.
    pub(super) descriptors: Vec<Vec<(String, String)>>,
    /// By unit; empty: one request.
    pub(super) cost: Vec<(String, u32)>,
    pub(super) priority: Option<String>,
    pub(super) wait_max: Option<Micros>,
    pub(super) expected: Expected,
}

/// When one request of a line comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Moment {
    /// Since 1970.
    pub(super) at: Timestamp,
    /// Which line of the test it is of, from 0.
    pub(super) line: usize,
    /// Which request of that line it is, from 1.
    pub(super) nth: u32,
}

impl Line {
    /// Reads a line that has something on it.
    pub(super) fn read(text: &str, number: u32) -> Result<Line, Wrong> {
        let mut words: VecDeque<Word> = words(text)?.into();
        let next = |words: &mut VecDeque<Word>| words.pop_front().map(|word| word.text).unwrap_or_default();
        let first_nanos = time(&next(&mut words))?;
        let times = match words.pop_front_if(|word| is_times(&word.text)) {
            Some(word) => times(&word.text)?,
            None => 1,
        };
        let apart_nanos = match words.pop_front_if(|word| word.text == "every") {
            Some(_) => nanos(&next(&mut words))?,
            None => 0,
        };
        let op = match words.pop_front_if(|word| matches!(word.text.as_str(), "hit" | "peek")) {
            Some(word) if word.text == "peek" => Op::Peek,
            _ => Op::Hit,
        };
        let mut line = Line {
            number,
            first_nanos,
            times,
            apart_nanos,
            op,
            descriptors: vec![Vec::new()],
            cost: Vec::new(),
            priority: None,
            wait_max: None,
            expected: Expected::new(Verdict::Allow),
        };
        line.expected.verdict = loop {
            let Some(word) = words.pop_front() else {
                return Err(Wrong::new("no verdict on the line", "end it with allow, limit, wait or deny"));
            };
            match verdict(&word.text).filter(|_| !word.is_quoted) {
                Some(verdict) => break verdict,
                None => line.ask(&word)?,
            }
        };
        words.iter().try_for_each(|word| line.expect(&word.text))?;
        Ok(line)
    }

    /// Takes a word in front of the verdict: what the request has.
    fn ask(&mut self, word: &Word) -> Result<(), Wrong> {
        if let Some((key, value)) = word.text.split_once('=') {
            let last = self.descriptors.last_mut();
            last.into_iter().for_each(|descriptor| descriptor.push((key.to_owned(), value.to_owned())));
            return Ok(());
        }
        match word.text.split_once(':') {
            None if word.text == "+" => self.descriptors.push(Vec::new()),
            Some(("cost", cost)) => {
                let (unit, number) = cost.rsplit_once(':').unwrap_or((crate::engine::UNIT_REQUESTS, cost));
                self.cost.push((unit.to_owned(), whole(number)?));
            }
            Some(("priority", name)) => self.priority = Some(name.to_owned()),
            Some(("max_wait", span)) => self.wait_max = Some(micros(span)?),
            _ => {
                let mend = "before the verdict stand KEY=VALUE, cost:N, cost:UNIT:N, priority:NAME, max_wait:SPAN and, \
                            before another descriptor, +; a verdict is allow, limit, wait or deny";
                return Err(Wrong::new(format!("{} is not known here", shown(&word.text)), mend));
            }
        }
        Ok(())
    }

    /// Takes a word behind the verdict: what is expected besides.
    fn expect(&mut self, word: &str) -> Result<(), Wrong> {
        let there = |name: &str| (name != NOTHING).then(|| name.to_owned());
        match word.split_once('=') {
            Some(("retry", NEVER)) => self.expected.retry = Some(None),
            Some(("retry", span)) => self.expected.retry = Some(Some(micros(span)?)),
            Some(("left", number)) => self.expected.left = Some(u64::from(whole(number)?)),
            Some(("rule", name)) => self.expected.rule = Some(there(name)),
            Some(("priority", name)) => self.expected.priority = Some(there(name)),
            Some(("notes", NOTHING)) => self.expected.notes = Some(Vec::new()),
            Some(("notes", notes)) => {
                self.expected.notes = Some(notes.split(',').map(note).collect::<Result<_, _>>()?);
            }
            _ => {
                let mend = "behind the verdict stand retry=SPAN, left=N, rule=NAME, priority=NAME and \
                            notes=KIND:RULE; attributes stand before it";
                return Err(Wrong::new(format!("{} is not known behind the verdict", shown(word)), mend));
            }
        }
        Ok(())
    }

    /// When its requests come, the line being the so many'th of its test.
    pub(super) fn moments(&self, line: usize) -> impl Iterator<Item = Moment> + '_ {
        (1..=self.times).map(move |nth| {
            let after = self.apart_nanos.saturating_mul(u64::from(nth) - 1);
            Moment { at: Timestamp::from_nanos(self.first_nanos.saturating_add(after)), line, nth }
        })
    }

    /// How many requests it has.
    pub(super) fn times(&self) -> u32 {
        self.times
    }
}

/// A word of a line.
#[derive(Debug, Default)]
struct Word {
    text: String,
    /// A part of it stood in quotes, so it is no word of the line's own.
    is_quoted: bool,
}

/// The words of a line. A part in double quotes may have spaces.
fn words(line: &str) -> Result<Vec<Word>, Wrong> {
    let mut words = Vec::new();
    let mut word: Option<Word> = None;
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
    if in_quotes { Err(Wrong::new("a quote that does not end", "end it with another \"")) } else { Ok(words) }
}

/// `[DAYSd]H:MM[:SS[.FRACTION]]`, a span, or a date of the calendar with `Z`; in nanoseconds since 1970.
fn time(text: &str) -> Result<u64, Wrong> {
    let read = if text.contains('T') { date(text) } else { clock(text) };
    let read = read.or_else(|| nanos(text).ok());
    let mend = "write H:MM:SS.FRACTION, 2d9:00 for the second day after 1970-01-01, a span from there such as 90s, or \
                2026-03-29T01:00:00Z";
    read.ok_or_else(|| Wrong::new(format!("{} is no time", shown(text)), mend))
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

fn nanos(span: &str) -> Result<u64, Wrong> {
    let read = humantime::parse_duration(span).ok().and_then(|span| u64::try_from(span.as_nanos()).ok());
    read.ok_or_else(|| {
        Wrong::new(format!("{} is no span of time", shown(span)), "write one such as 200ms, 90s or 1h30m")
    })
}

fn micros(span: &str) -> Result<Micros, Wrong> {
    match nanos(span)? {
        nanos if nanos % 1_000 == 0 => Ok(Micros(nanos / 1_000)),
        _ => Err(Wrong::new(
            format!("{} is no whole number of microseconds", shown(span)),
            "write one such as 5s1us",
        )),
    }
}

fn whole(number: &str) -> Result<u32, Wrong> {
    let read = digits(number).and_then(|number| u32::try_from(number).ok());
    let mend = format!("write a whole number, at most {}", u32::MAX);
    read.ok_or_else(|| Wrong::new(format!("{} is no number", shown(number)), mend))
}

/// `x5`.
fn is_times(word: &str) -> bool {
    word.strip_prefix('x').and_then(digits).is_some()
}

fn times(word: &str) -> Result<u32, Wrong> {
    match whole(word.trim_start_matches('x'))? {
        0 => Err(Wrong::new("no request on the line: x0", "write x1, or put `#` before the line")),
        times => Ok(times),
    }
}

fn note(text: &str) -> Result<(String, String), Wrong> {
    match text.split_once(':').filter(|(kind, _)| is_note(kind)) {
        Some((kind, rule)) => Ok((kind.to_owned(), rule.to_owned())),
        None => {
            let mend = "write KIND:RULE, the kind being shadow, candidate, over or near; - for none";
            Err(Wrong::new(format!("{} is no note", shown(text)), mend))
        }
    }
}
