//! One example as it stands in `examples.yaml`, and its lines taken apart. A line that cannot be read ends the test
//! with that line.

use std::fmt;
use std::iter::Peekable;
use std::str::SplitWhitespace;

use serde::Deserialize;

/// Rules, and what becomes of requests under them.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Example {
    pub(crate) name: String,
    pub(crate) source: String,
    /// For readers alone.
    #[serde(default, rename = "differs")]
    _differs: Option<String>,
    pub(crate) rules: String,
    requests: String,
}

/// One request and what is expected of it.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    line: String,
    /// Since 1970.
    pub(crate) nanos: u64,
    pub(crate) attributes: Vec<(String, String)>,
    pub(crate) verdict: String,
    pub(crate) retry_us: Option<u64>,
    pub(crate) left: Option<u64>,
    /// Inside, `None` is that no limit matched.
    pub(crate) rule: Option<Option<String>>,
}

impl Example {
    pub(crate) fn all() -> Vec<Example> {
        serde_saphyr::from_str(include_str!("examples.yaml")).unwrap_or_else(|error| panic!("{error}"))
    }

    pub(crate) fn domain(&self) -> &str {
        let domain = self.rules.lines().find_map(|line| line.strip_prefix("domain: "));
        domain.unwrap_or_else(|| panic!("“{}” has no line `domain: …`", self.name))
    }

    /// In order of time; those of one moment as they are written.
    pub(crate) fn requests(&self) -> Vec<Request> {
        let lines = self.requests.lines().map(str::trim);
        let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        let mut requests: Vec<Request> = lines.flat_map(requests_of).collect();
        requests.sort_by_key(|request| request.nanos);
        requests
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` at {}.{:09} s", self.line, self.nanos / 1_000_000_000, self.nanos % 1_000_000_000)
    }
}

fn requests_of(line: &str) -> Vec<Request> {
    let read = || {
        let mut words = line.split_whitespace().peekable();
        let first = time(words.next()?)?;
        let times = match words.next_if(|word| word.strip_prefix('x').is_some_and(is_number)) {
            Some(word) => word.get(1..)?.parse().ok()?,
            None => 1_u64,
        };
        let apart = match words.next_if_eq(&"every") {
            Some(_) => nanos(words.next()?)?,
            None => 0,
        };
        let request = the_rest(line, first, &mut words)?;
        Some((0..times).map(|n| Request { nanos: first + n * apart, ..request.clone() }).collect())
    };
    read().unwrap_or_else(|| panic!("this line of examples.yaml cannot be read: {line}"))
}

/// Attributes, the verdict, and what else is expected.
fn the_rest(line: &str, nanos_of_first: u64, words: &mut Peekable<SplitWhitespace<'_>>) -> Option<Request> {
    let mut attributes = Vec::new();
    while let Some(word) = words.next_if(|word| word.contains('=')) {
        let (key, value) = word.split_once('=')?;
        attributes.push((key.to_owned(), value.to_owned()));
    }
    let verdict = words.next().filter(|word| ["allow", "limit"].contains(word))?;
    let (mut retry_us, mut left, mut rule) = (None, None, None);
    for word in words {
        match word.split_once('=')? {
            ("retry", span) => retry_us = Some(nanos(span)? / 1_000),
            ("left", number) => left = Some(number.parse().ok()?),
            ("rule", "-") => rule = Some(None),
            ("rule", name) => rule = Some(Some(name.to_owned())),
            _ => return None,
        }
    }
    // Only a refusal has a wait, and every refusal says it.
    if attributes.is_empty() || (verdict == "limit") != retry_us.is_some() {
        return None;
    }
    let (line, verdict) = (line.to_owned(), verdict.to_owned());
    Some(Request { line, nanos: nanos_of_first, attributes, verdict, retry_us, left, rule })
}

/// `[DAYSd]H:MM[:SS[.FRACTION]]`, in nanoseconds.
fn time(text: &str) -> Option<u64> {
    let (days, text) = text.split_once('d').unwrap_or(("0", text));
    let (text, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let parts: Option<Vec<u64>> = text.split(':').map(|part| part.parse().ok()).collect();
    let (hours, minutes, seconds) = match *parts? {
        [hours, minutes] => (hours, minutes, 0),
        [hours, minutes, seconds] => (hours, minutes, seconds),
        _ => return None,
    };
    let seconds = ((days.parse::<u64>().ok()? * 24 + hours) * 60 + minutes) * 60 + seconds;
    let fraction: u64 = format!("{fraction:0<9}").get(..9)?.parse().ok()?;
    Some(seconds * 1_000_000_000 + fraction)
}

fn nanos(span: &str) -> Option<u64> {
    u64::try_from(humantime::parse_duration(span).ok()?.as_nanos()).ok()
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}
