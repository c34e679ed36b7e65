//! Parses one line of a test: its times, its step and the expected decision. It plays nothing.

use std::collections::{BTreeMap, VecDeque};

use crate::clock::{Micros, Timestamp};
use crate::engine::{NoteKind, Op, UNIT_REQUESTS, Verdict, WorkOutcome};
use crate::protocol::is_name;
use crate::rules::{ValueProblem, shown};
use crate::trace::json_line::{JsonLine, JsonList, Quantity};

#[derive(Debug)]
pub(super) struct TestLine {
    pub(super) number: u32,
    first_nanos: u64,
    pub(super) times: u32,
    apart_nanos: u64,
    pub(super) step: Step,
}

#[derive(Debug)]
pub(super) enum Step {
    Ask(RequestLine),
    /// Charges amounts by unit. A refund of work names it: the oldest lease of this name that has not ended.
    Charge(JsonLine<'static>, Option<String>),
    /// Releases the oldest lease of this name.
    Release(String, WorkOutcome),
    /// Renews all leases of this name.
    Renew(String),
    /// Starts a process, with its pool and its number of slots.
    Hello(String, String, u32),
    Bye(String),
    /// Loads other rules from a path.
    Reload(String),
}

/// A request, as a trace has it, with its expected decision.
#[derive(Debug)]
pub(super) struct RequestLine {
    pub(super) op: Op,
    pub(super) line: JsonLine<'static>,
    /// Name of its lease.
    pub(super) name: Option<String>,
    pub(super) verdict: Verdict,
    /// Further fields of the decision, as `field_of` formats them; other fields may have any value.
    pub(super) expected: BTreeMap<DecisionField, String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, strum::EnumString, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub(super) enum DecisionField {
    Retry,
    Left,
    Rule,
    Priority,
    Notes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LineTime {
    /// Time since 1970.
    pub(super) at: Timestamp,
    pub(super) line: usize,
    pub(super) nth: u32,
}

impl TestLine {
    /// Parses a line that is not empty.
    pub(super) fn read(text: &str, number: u32) -> Result<TestLine, ValueProblem> {
        let mut words: VecDeque<TestWord> = words(text)?.into();
        let next =
            |words: &mut VecDeque<TestWord>| words.pop_front().map(|word| word.text).unwrap_or_default();
        let first_nanos = time(&next(&mut words))?;
        let count = words.pop_front_if(|word| word.text.strip_prefix('x').and_then(digits).is_some());
        let times = count.map_or(Ok(1), |word| whole(word.text.trim_start_matches('x')))?;
        if times == 0 {
            let help = "write x1, or put `#` before the line";
            return Err(ValueProblem::new("no request on the line: x0", help));
        }
        let apart_nanos = match words.pop_front_if(|word| word.text == "every") {
            Some(_) => nanos(&next(&mut words))?,
            None => 0,
        };
        let op = words.pop_front_if(|word| OPS.contains(&word.text.as_str()) && !word.is_quoted);
        let step = step(op.as_ref().map_or("hit", |word| &word.text), words)?;
        Ok(TestLine { number, first_nanos, times, apart_nanos, step })
    }

    /// Returns the occurrences of the line, given its index in the test.
    pub(super) fn moments(&self, line: usize) -> impl Iterator<Item = LineTime> + '_ {
        (1..=self.times).map(move |nth| {
            let after = self.apart_nanos.saturating_mul(u64::from(nth) - 1);
            LineTime { at: Timestamp::from_nanos(self.first_nanos.saturating_add(after)), line, nth }
        })
    }
}

/// Parses the words after the op.
fn step(op: &str, mut words: VecDeque<TestWord>) -> Result<Step, ValueProblem> {
    let step = match op {
        "peek" => Step::Ask(RequestLine::read(Op::Peek, &mut words)?),
        "acquire" => Step::Ask(RequestLine::read(Op::Acquire, &mut words)?),
        "charge" => charge(&mut words)?,
        "release" => {
            let name = named(op, "NAME, the `id` of work", &mut words)?;
            let outcome = words.pop_front().map_or(Ok(WorkOutcome::Error), |TestWord { text, .. }| {
                text.parse().map_err(|_| is_no("end of work", &text, "write ok, error or dropped"))
            });
            Step::Release(name, outcome?)
        }
        "renew" => Step::Renew(named(op, "NAME, the `id` of work", &mut words)?),
        "hello" => hello(&mut words)?,
        "bye" => Step::Bye(named(op, "SESSION", &mut words)?),
        "reload" => {
            let path = words.pop_front().ok_or_else(|| incomplete(op, "PATH, from where the file stands"))?;
            Step::Reload(path.text)
        }
        _ => Step::Ask(RequestLine::read(Op::Hit, &mut words)?),
    };
    match words.pop_front() {
        None => Ok(step),
        Some(word) => {
            Err(ValueProblem::new(format!("{} is too much behind {op}", shown(&word.text)), "take it out"))
        }
    }
}

fn named(op: &str, what: &str, words: &mut VecDeque<TestWord>) -> Result<String, ValueProblem> {
    name(&words.pop_front().ok_or_else(|| incomplete(op, what))?.text)
}

fn incomplete(op: &str, what: &str) -> ValueProblem {
    ValueProblem::new(format!("nothing behind {op}"), format!("write {op} {what}"))
}

fn unknown(word: &TestWord, help: &str) -> ValueProblem {
    ValueProblem::new(format!("{} is not known here", shown(&word.text)), help)
}

fn hello(words: &mut VecDeque<TestWord>) -> Result<Step, ValueProblem> {
    let session = named("hello", "SESSION [pool:NAME] [slots:N]", words)?;
    let (mut pool, mut slots) = (POOL.to_owned(), 0);
    while let Some(word) = words.pop_front() {
        match word.text.split_once(':') {
            Some(("pool", text)) => pool = name(text)?,
            Some(("slots", number)) => slots = whole(number)?,
            _ => {
                let help = "behind hello SESSION stand pool:NAME and slots:N";
                return Err(unknown(&word, help));
            }
        }
    }
    Ok(Step::Hello(session, pool, slots))
}

fn charge(words: &mut VecDeque<TestWord>) -> Result<Step, ValueProblem> {
    let (mut line, mut amounts, mut of_work) = (JsonLine::of_subject(), Vec::new(), None);
    while let Some(word) = words.pop_front() {
        if take_subject(&mut line, &word)? {
            continue;
        }
        match word.text.split_once(':') {
            Some(("amount", amount)) => {
                let (unit, number) = amount.rsplit_once(':').unwrap_or((UNIT_REQUESTS, amount));
                amounts.push((unit.into(), signed(number)?));
            }
            Some(("of", idem)) => line.of = Some(idem.into()),
            Some(("of_id", work)) => of_work = Some(name(work)?),
            _ => {
                let help = "behind charge stand KEY=VALUE, amount:N, amount:UNIT:N, of:IDEM, of_id:NAME, session:NAME, \
                            idem:NAME and, before another descriptor, +";
                return Err(unknown(&word, help));
            }
        }
    }
    if amounts.is_empty() {
        return Err(ValueProblem::new("a charge of 0", "write amount:3, amount:-1 or amount:tokens:812"));
    }
    line.amount = Some(Quantity::Units(amounts));
    Ok(Step::Charge(line, of_work))
}

/// Parses a word if it is about the subject or the session of a request or charge. Returns whether it was.
fn take_subject(line: &mut JsonLine<'static>, word: &TestWord) -> Result<bool, ValueProblem> {
    let JsonList(descriptors) = line.descriptors.get_or_insert_with(|| JsonList(Vec::new()));
    if let Some((key, value)) = word.text.split_once('=') {
        descriptors.last_mut().into_iter().for_each(|texts| texts.0.extend([key.into(), value.into()]));
        return Ok(true);
    }
    match word.text.split_once(':') {
        None if word.text == "+" => descriptors.push(JsonList(Vec::new())),
        Some(("session", session)) => line.session = Some(name(session)?.as_str().into()),
        Some(("idem", idem)) => line.idem = Some(idem.into()),
        _ => return Ok(false),
    }
    Ok(true)
}

impl RequestLine {
    fn read(op: Op, words: &mut VecDeque<TestWord>) -> Result<RequestLine, ValueProblem> {
        let (line, verdict) = (JsonLine::of_subject(), Verdict::Allow);
        let mut ask = RequestLine { op, line, name: None, verdict, expected: BTreeMap::new() };
        ask.verdict = loop {
            let Some(word) = words.pop_front() else {
                let help = "end it with allow, limit, shed, wait or deny";
                return Err(ValueProblem::new("no verdict on the line", help));
            };
            match word.text.parse() {
                Ok(verdict) if !word.is_quoted => break verdict,
                _ => ask.take(&word)?,
            }
        };
        words.drain(..).try_for_each(|word| ask.expect(&word.text))?;
        Ok(ask)
    }

    /// Parses a word before the verdict: a property of the request.
    fn take(&mut self, word: &TestWord) -> Result<(), ValueProblem> {
        if take_subject(&mut self.line, word)? {
            return Ok(());
        }
        match word.text.split_once(':') {
            Some(("cost", written)) => {
                let (unit, number) = written.rsplit_once(':').unwrap_or((UNIT_REQUESTS, written));
                let units = self.line.cost.get_or_insert_with(|| Quantity::Units(Vec::new()));
                if let Quantity::Units(units) = units {
                    units.push((unit.into(), cost(number)?));
                }
            }
            Some(("priority", name)) => self.line.priority = Some(name.into()),
            Some(("max_wait", span)) => self.line.max_wait_us = Some(micros(span)?.0),
            Some(("queued", span)) => self.line.queued_us = Some(micros(span)?.0),
            Some(("id", id)) if self.op == Op::Acquire => self.name = Some(name(id)?),
            _ => {
                let help = "before the verdict stand KEY=VALUE, cost:N, cost:UNIT:N, priority:NAME, max_wait:SPAN, \
                            queued:SPAN, session:NAME, idem:NAME, of an acquire id:NAME and, before another \
                            descriptor, +; a verdict is allow, limit, shed, wait or deny";
                return Err(unknown(word, help));
            }
        }
        Ok(())
    }

    /// Parses a word after the verdict: a further expectation.
    fn expect(&mut self, word: &str) -> Result<(), ValueProblem> {
        let known = word.split_once('=').and_then(|(field, text)| Some((field.parse().ok()?, text)));
        let Some((field, text)) = known else {
            let help = "behind the verdict stand retry=SPAN, left=N, rule=NAME, priority=NAME and \
                        notes=KIND:RULE; attributes stand before it";
            return Err(ValueProblem::new(format!("{} is not known behind the verdict", shown(word)), help));
        };
        let expected = match field {
            DecisionField::Retry if text != NEVER => without_spaces(micros(text)?),
            DecisionField::Left => whole(text)?.to_string(),
            DecisionField::Notes if text != NOTHING => {
                text.split(',').try_for_each(check_note)?;
                text.to_owned()
            }
            _ => text.to_owned(),
        };
        self.expected.insert(field, expected);
        Ok(())
    }
}

/// Formats a span as in a line of a test.
pub(super) fn without_spaces(span: Micros) -> String {
    span.to_string().replace(' ', "")
}

/// An absent value in a test.
pub(super) const NOTHING: &str = "-";

/// An infinite retry-after in a test.
pub(super) const NEVER: &str = "never";

const OPS: [&str; 9] = ["hit", "peek", "acquire", "release", "renew", "charge", "hello", "bye", "reload"];

const POOL: &str = "default";

#[derive(Debug, Default)]
struct TestWord {
    text: String,
    /// A part of it was quoted, so it is no keyword.
    is_quoted: bool,
}

/// Splits a line into words. A part in double quotes may contain spaces.
fn words(line: &str) -> Result<Vec<TestWord>, ValueProblem> {
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
fn time(text: &str) -> Result<u64, ValueProblem> {
    let read = if text.contains('T') { date(text) } else { clock(text) };
    let read = read.or_else(|| nanos(text).ok());
    let help = "write H:MM:SS.FRACTION, 2d9:00 for the second day after 1970-01-01, a span from there such as 90s, or \
                2026-03-29T01:00:00Z";
    read.ok_or_else(|| is_no("time", text, help))
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

/// Reports a text that is no value of a kind.
fn is_no(kind: &str, text: &str, help: impl Into<String>) -> ValueProblem {
    ValueProblem::new(format!("{} is no {kind}", shown(text)), help)
}

fn nanos(span: &str) -> Result<u64, ValueProblem> {
    let read = humantime::parse_duration(span).ok().and_then(|span| u64::try_from(span.as_nanos()).ok());
    read.ok_or_else(|| is_no("span of time", span, "write one such as 200ms, 90s or 1h30m"))
}

fn micros(span: &str) -> Result<Micros, ValueProblem> {
    match nanos(span)? {
        nanos if nanos % 1_000 == 0 => Ok(Micros(nanos / 1_000)),
        _ => Err(is_no("whole number of microseconds", span, "write one such as 5s1us")),
    }
}

fn whole(number: &str) -> Result<u32, ValueProblem> {
    let read = digits(number).and_then(|number| u32::try_from(number).ok());
    read.ok_or_else(|| is_no("number", number, format!("write a whole number, at most {}", u32::MAX)))
}

/// Parses a cost, which may exceed the costs that rules can count: those above 63 bits are clamped.
fn cost(number: &str) -> Result<i64, ValueProblem> {
    let cost = digits(number).map(|cost| i64::try_from(cost).unwrap_or(i64::MAX));
    cost.ok_or_else(|| is_no("number", number, format!("write a whole number, at most {}", u64::MAX)))
}

fn signed(number: &str) -> Result<i64, ValueProblem> {
    let magnitude = whole(number.strip_prefix('-').unwrap_or(number))?;
    Ok(if number.starts_with('-') { -i64::from(magnitude) } else { i64::from(magnitude) })
}

fn name(text: &str) -> Result<String, ValueProblem> {
    if is_name(text) {
        return Ok(text.to_owned());
    }
    let help = "write 1 to 64 bytes without control characters, `:` or `/`";
    Err(is_no("name", text, help))
}

fn check_note(text: &str) -> Result<(), ValueProblem> {
    if text.split_once(':').is_some_and(|(kind, _)| kind.parse::<NoteKind>().is_ok()) {
        return Ok(());
    }
    let help = "write KIND:RULE, the kind being shadow, candidate, over or near; - for none";
    Err(is_no("note", text, help))
}
