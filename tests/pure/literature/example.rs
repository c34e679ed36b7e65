//! One example as it stands in `examples.yaml`, and of its lines when each request comes and whether it is refused. What
//! else they say is read by the program. A line that cannot be read ends the test with that line.

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

/// One request: when it comes, and what becomes of it.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// Since 1970.
    pub(crate) nanos: u64,
    pub(crate) verdict: String,
}

impl Example {
    pub(crate) fn all() -> Vec<Example> {
        serde_saphyr::from_str(include_str!("examples.yaml")).unwrap_or_else(|error| panic!("{error}"))
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
        let verdict = words.find(|word| ["allow", "limit"].contains(word))?;
        // Every refusal says when it ends.
        let waits = words.any(|word| word.starts_with("retry="));
        let request = |n| Request { nanos: first + n * apart, verdict: verdict.to_owned() };
        (waits == (verdict == "limit")).then(|| (0..times).map(request).collect())
    };
    read().unwrap_or_else(|| panic!("this line of examples.yaml cannot be read: {line}"))
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
