//! Access logs in the combined format of Apache and nginx: reads lines into request attributes, sorts them by time
//! within a window, counts and skips malformed ones.
//!
//! Paths are normalized like the middlewares do: decoded once, no query, dot segments or repeated slashes. Some servers
//! log the time at which a request arrived but write the line when its response ends, so a line may follow later ones
//! by the duration of its response.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Range;

use arrayvec::ArrayVec;

use super::event::{Action, EventConsumer, LeaseOwner, TraceEvent, TraceFailure, TraceText};
use crate::clock::Timestamp;
use crate::engine::{Descriptors, Op, Request};
use crate::protocol::{PAIRS_MAX, shorten_value};
use crate::rules::shown;
use crate::terms::counted;

/// Lines that wait to be sorted, and counts of lines that were malformed or late.
#[derive(Debug, Default)]
pub(super) struct CombinedLines<'a> {
    domain: &'a str,
    strict: bool,
    quotable: bool,
    /// By time, then line number.
    waiting: BTreeMap<(u64, u64), AccessLine>,
    waiting_bytes: usize,
    newest_seconds: u64,
    played_seconds: u64,
    unreadable: u64,
    first_unreadable: Option<String>,
    late: u64,
}

impl<'a> CombinedLines<'a> {
    /// Plays requests of one domain. `strict`: stop at malformed lines. `quotable`: remarks may quote them.
    pub(super) fn new(domain: &'a str, strict: bool, quotable: bool) -> CombinedLines<'a> {
        CombinedLines { domain, strict, quotable, ..CombinedLines::default() }
    }

    /// Reads a line, then plays all lines that are due.
    pub(super) fn line(
        &mut self,
        text: &[u8],
        number: u64,
        stage: &mut impl EventConsumer,
    ) -> Result<(), TraceFailure> {
        let line = match AccessLine::read(text) {
            Ok(line) => line,
            Err(wrong) => return self.pass_over(number, wrong),
        };
        let seconds = line.unix_seconds;
        self.late += u64::from(seconds < self.played_seconds);
        self.newest_seconds = self.newest_seconds.max(seconds);
        self.waiting_bytes += line.bytes();
        self.waiting.insert((seconds, number), line);
        while self.is_turn_of_first() {
            self.play_first(stage)?;
        }
        Ok(())
    }

    /// Counts a malformed line, or returns the error if `strict`.
    pub(super) fn pass_over(&mut self, number: u64, wrong: String) -> Result<(), TraceFailure> {
        let failure = TraceFailure::Line { number, wrong };
        if self.strict {
            return Err(failure);
        }
        self.unreadable += 1;
        self.first_unreadable
            .get_or_insert_with(|| if self.quotable { failure } else { failure.withheld() }.to_string());
        Ok(())
    }

    pub(super) fn end(&mut self, stage: &mut impl EventConsumer) -> Result<(), TraceFailure> {
        while !self.waiting.is_empty() {
            self.play_first(stage)?;
        }
        Ok(())
    }

    /// Remarks for the summary: malformed and late lines.
    pub(super) fn remarks(&self) -> Vec<String> {
        let unreadable = self.first_unreadable.iter().map(|first| {
            format!(
                "{} passed over that cannot be read, the first is {first}",
                counted(self.unreadable, "line")
            )
        });
        let late = (self.late > 0).then(|| {
            let late = counted(self.late, "line");
            format!(
                "{late} too late to be sorted, decided at the time of the line before: are the logs in order?"
            )
        });
        unreadable.chain(late).collect()
    }

    fn is_turn_of_first(&self) -> bool {
        let Some(((seconds, _), _)) = self.waiting.first_key_value() else { return false };
        seconds + WINDOW_SECONDS < self.newest_seconds
            || self.waiting.len() > WAITING_MAX
            || self.waiting_bytes > WAITING_BYTES_MAX
    }

    fn play_first(&mut self, stage: &mut impl EventConsumer) -> Result<(), TraceFailure> {
        let Some(((seconds, number), line)) = self.waiting.pop_first() else { return Ok(()) };
        self.waiting_bytes = self.waiting_bytes.saturating_sub(line.bytes());
        // Virtual time is monotonic: a late line is played at the time of the line before.
        self.played_seconds = self.played_seconds.max(seconds);
        let attributes: ArrayVec<(&str, &str), PAIRS_MAX> = line.attributes().collect();
        let descriptors = Descriptors::from_attributes(&attributes);
        let request = Request::new(Op::Hit, self.domain, descriptors);
        stage.play(&TraceEvent {
            line: number,
            at: Timestamp::from_nanos(self.played_seconds.saturating_mul(NANOS_PER_SECOND)),
            t: TraceText::Number(self.played_seconds),
            id: Some(TraceText::Number(number)),
            action: Action::Judge(request, LeaseOwner::default()),
        })
    }
}

#[derive(Debug)]
pub(super) struct AccessLine {
    unix_seconds: u64,
    text: String,
    attributes: ArrayVec<(&'static str, Range<usize>), ATTRIBUTES_MAX>,
}

impl AccessLine {
    /// Parses a line. An error says why it is malformed.
    pub(super) fn read(line: &[u8]) -> Result<AccessLine, String> {
        let (address, rest) = word(line.trim_ascii());
        let address = String::from_utf8_lossy(address);
        if address.parse::<IpAddr>().is_err() {
            return Err(format!("does not begin with an IP address but with {}", shown(&address)));
        }
        let (_identity, rest) = word(rest);
        let no_time = "no time in brackets, such as [10/Oct/2000:13:55:36 -0700]";
        let (user, unix_seconds, rest) = user_and_time(rest).ok_or(no_time)?;
        let (request, rest) = quoted(rest).ok_or(OPEN_QUOTE)?;
        let (method, target) = method_and_target(&request).ok_or_else(|| {
            let request = shown(&String::from_utf8_lossy(&request));
            format!("the request is not METHOD PATH PROTOCOL but {request}")
        })?;
        let (status, rest) = word(rest);
        if status.len() != 3 || !status.iter().all(u8::is_ascii_digit) {
            return Err("no status of three digits after the request".to_owned());
        }
        let text = String::with_capacity(line.len());
        let mut read = AccessLine { unix_seconds, text, attributes: ArrayVec::new() };
        read.push("ip", address.as_bytes());
        read.push("method", method);
        read.push("path", &path_of(target));
        read.push("status", status);
        let (_bytes, rest) = word(rest);
        // The common format ends here. Fields after the user agent are site-specific and ignored.
        if !rest.is_empty() {
            let (_referer, rest) = quoted(rest).ok_or(OPEN_QUOTE)?;
            let (agent, _) = quoted(rest).ok_or(OPEN_QUOTE)?;
            read.push_known("user_agent", &agent);
        }
        read.push_known("user", &unescaped(user));
        Ok(read)
    }

    fn attributes(&self) -> impl Iterator<Item = (&str, &str)> {
        self.attributes.iter().map(|(name, range)| (*name, self.text.get(range.clone()).unwrap_or_default()))
    }

    fn bytes(&self) -> usize {
        self.text.capacity()
    }

    /// Adds an attribute unless its value is empty or `-`.
    fn push_known(&mut self, name: &'static str, value: &[u8]) {
        if !matches!(value, b"" | b"-" | b"\"\"") {
            self.push(name, value);
        }
    }

    fn push(&mut self, name: &'static str, value: &[u8]) {
        let start = self.text.len();
        self.text.push_str(&shorten_value(&String::from_utf8_lossy(value)));
        let range = start..self.text.len();
        let is_full = self.attributes.try_push((name, range)).is_err();
        debug_assert!(!is_full, "there are {ATTRIBUTES_MAX} names");
    }
}

/// Splits off the next word; returns it and the rest.
fn word(text: &[u8]) -> (&[u8], &[u8]) {
    let text = text.trim_ascii_start();
    let end = text.iter().position(u8::is_ascii_whitespace).unwrap_or(text.len());
    text.split_at_checked(end).unwrap_or((text, b""))
}

/// Returns the user, which may contain brackets and spaces, the time in Unix seconds, and the rest.
fn user_and_time(text: &[u8]) -> Option<(&[u8], u64, &[u8])> {
    let brackets = text.iter().enumerate().filter(|(_, byte)| **byte == b'[').take(BRACKETS_MAX);
    for (bracket, _) in brackets {
        let (user, rest) = text.split_at_checked(bracket)?;
        let (written, rest) = rest.get(1..)?.split_at_checked(TIME_BYTES)?;
        if let (Some(seconds), Some(rest)) = (time(written), rest.strip_prefix(b"]")) {
            return Some((user.trim_ascii(), seconds, rest));
        }
    }
    None
}

/// Parses `10/Oct/2000:13:55:36 -0700` to Unix seconds. A leap second counts as the second before it.
fn time(text: &[u8]) -> Option<u64> {
    let parsed = jiff::fmt::strtime::parse("%d/%b/%Y:%H:%M:%S %z", text).ok()?;
    u64::try_from(parsed.to_timestamp().ok()?.as_second()).ok()
}

/// Returns the next quoted text, unescaped, and the rest.
fn quoted(text: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let text = text.trim_ascii_start().strip_prefix(b"\"")?;
    let mut escaped = false;
    let end = text.iter().position(|byte| {
        let ends = *byte == b'"' && !escaped;
        escaped = *byte == b'\\' && !escaped;
        ends
    })?;
    Some((unescaped(text.get(..end)?), text.get(end + 1..)?))
}

/// Decodes `\"`, `\\`, `\x22` and the letter escapes of Apache.
fn unescaped(text: &[u8]) -> Vec<u8> {
    replaced(text, |text| match text {
        [b'\\', b'x', high, low, rest @ ..] if let Some(byte) = hex_byte(*high, *low) => Some((byte, rest)),
        [b'\\', letter, rest @ ..] => Some((escape(*letter)?, rest)),
        _ => None,
    })
}

/// Copies a text; `escaped` returns the byte of an escape that it begins with, and the rest.
fn replaced(mut text: &[u8], escaped: impl Fn(&[u8]) -> Option<(u8, &[u8])>) -> Vec<u8> {
    let mut plain = Vec::with_capacity(text.len());
    while let [first, rest @ ..] = text {
        let (byte, rest) = escaped(text).unwrap_or((*first, rest));
        plain.push(byte);
        text = rest;
    }
    plain
}

fn escape(letter: u8) -> Option<u8> {
    Some(match letter {
        b'"' | b'\\' => letter,
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 0x08,
        b'v' => 0x0b,
        b'f' => 0x0c,
        _ => return None,
    })
}

/// Returns method and target of `METHOD TARGET PROTOCOL`. The target may contain spaces.
fn method_and_target(request: &[u8]) -> Option<(&[u8], &[u8])> {
    let space = request.iter().position(|byte| *byte == b' ')?;
    let last = request.iter().rposition(|byte| *byte == b' ')?;
    let (method, protocol) = (request.get(..space)?, request.get(last + 1..)?);
    let target = request.get(space + 1..last)?;
    let is_letter = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let is_method = (1..=METHOD_BYTES_MAX).contains(&method.len()) && method.iter().all(is_letter);
    let is_request = is_method && protocol.starts_with(b"HTTP/") && !target.trim_ascii().is_empty();
    is_request.then_some((method, target))
}

/// Returns the path of a request's target, which may be a path, a whole URL or garbage.
fn path_of(target: &[u8]) -> Vec<u8> {
    let target = target.split(|byte| matches!(byte, b'?' | b'#')).next().unwrap_or_default();
    let decoded = decoded(without_origin(target));
    let mut kept: Vec<&[u8]> = Vec::new();
    for segment in decoded.split(|byte| *byte == b'/') {
        match segment {
            b"" | b"." => {}
            b".." => drop(kept.pop()),
            segment => kept.push(segment),
        }
    }
    let is_directory = [&b"/"[..], b"/.", b"/.."].iter().any(|end| decoded.ends_with(end));
    let mut path = b"/".to_vec();
    path.extend(kept.join(&b'/'));
    if is_directory && !kept.is_empty() {
        path.push(b'/');
    }
    path
}

/// Removes scheme and authority: proxies receive `http://host/path`.
fn without_origin(target: &[u8]) -> &[u8] {
    let Some(colon) = target.windows(3).position(|three| three == b"://") else { return target };
    let is_scheme = target.iter().take(colon).all(u8::is_ascii_alphabetic) && colon > 0;
    let authority = target.get(colon + 3..).unwrap_or_default();
    let path = authority.iter().position(|byte| *byte == b'/');
    match path.and_then(|path| authority.get(path..)) {
        _ if !is_scheme => target,
        Some(path) => path,
        None => b"/",
    }
}

/// Decodes each `%` with two hexadecimal digits once; leaves others as they are.
fn decoded(text: &[u8]) -> Vec<u8> {
    replaced(text, |text| match text {
        [b'%', high, low, rest @ ..] => Some((hex_byte(*high, *low)?, rest)),
        _ => None,
    })
}

fn hex_byte(high: u8, low: u8) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    Some(digit(high)? << 4 | digit(low)?)
}

const OPEN_QUOTE: &str = "a quoted text has no end";

/// How many seconds a line may be late: longer than most servers let a request take.
const WINDOW_SECONDS: u64 = 60;

/// Bounds on waiting lines and bytes. Above about 1 000 lines per second the window gets shorter.
const WAITING_MAX: usize = 65_536;
const WAITING_BYTES_MAX: usize = 32 << 20;

const NANOS_PER_SECOND: u64 = 1_000_000_000;

const TIME_BYTES: usize = 26;

/// ip, method, path, status, user_agent, user.
const ATTRIBUTES_MAX: usize = 6;

/// Brackets tried as the beginning of the time, since the user may contain brackets too.
const BRACKETS_MAX: usize = 16;

/// The longest registered method, `UPDATEREDIRECTREF`, has 17 bytes.
const METHOD_BYTES_MAX: usize = 32;
