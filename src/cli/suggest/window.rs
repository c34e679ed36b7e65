//! The windows in which requests of a caller are counted, chosen by the length of the trace.

use std::fmt;
use std::time::Duration;

/// A window of whole seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WholeSecondsWindow {
    seconds: u64,
}

/// Units of rates, longest first.
const UNITS: [(u64, &str); 4] = [(86_400, "day"), (3_600, "h"), (60, "min"), (1, "s")];

impl WholeSecondsWindow {
    pub(super) fn nanos(self) -> u64 {
        self.seconds.saturating_mul(NANOS_PER_SECOND)
    }

    pub(super) fn seconds(self) -> u64 {
        self.seconds
    }

    /// Returns a span such as `15m`.
    pub(super) fn length(self) -> String {
        humantime::format_duration(Duration::from_secs(self.seconds)).to_string()
    }
}

/// As in a rate: `s`, `15min`.
impl fmt::Display for WholeSecondsWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = UNITS.iter().find(|(seconds, _)| self.seconds.is_multiple_of(*seconds));
        let (seconds, name) = unit.copied().unwrap_or((1, "s"));
        match self.seconds / seconds {
            1 => f.write_str(name),
            times => write!(f, "{times}{name}"),
        }
    }
}

/// Parses `1s`, `15m` or `15min`, `1h`, `1d` or `1day`.
pub(super) fn parse(text: &str) -> Result<WholeSecondsWindow, String> {
    let span = humantime::parse_duration(text).ok();
    let seconds = span.filter(|span| span.subsec_nanos() == 0).map(|span| span.as_secs());
    match seconds {
        Some(seconds) if (1..=WINDOW_SECONDS_MAX).contains(&seconds) => Ok(WholeSecondsWindow { seconds }),
        _ => Err("write whole seconds up to 31 days, such as 1s, 15m, 1h or 1d".to_owned()),
    }
}

/// Returns the requested windows; by default those of which the trace has enough.
pub(super) fn choose(
    asked: &[WholeSecondsWindow],
    span: Duration,
    remarks: &mut Vec<String>,
) -> Result<Vec<WholeSecondsWindow>, String> {
    let long = humantime::format_duration(Duration::from_secs(span.as_secs()));
    let times = |window: &WholeSecondsWindow| span.as_nanos() / u128::from(window.nanos());
    if let Some(longer) = asked.iter().find(|window| times(window) == 0) {
        return Err(format!(
            "the trace is {long} long, less than one window of {}: take a longer trace or a shorter --window",
            longer.length()
        ));
    }
    for window in asked.iter().filter(|window| times(window) < WINDOWS_MIN) {
        remarks.push(format!(
            "the trace is {long} long and has few windows of {}: what is busy in them may be chance",
            window.length()
        ));
    }
    if !asked.is_empty() {
        return Ok(asked.to_vec());
    }
    let (enough, few): (Vec<WholeSecondsWindow>, Vec<WholeSecondsWindow>) = USUAL_SECONDS
        .map(|seconds| WholeSecondsWindow { seconds })
        .into_iter()
        .partition(|window| times(window) >= WINDOWS_MIN);
    if enough.is_empty() {
        return Err(format!(
            "the trace is {long} long, and nothing can be said from less than {WINDOWS_MIN} s: take a longer trace, or \
             name a --window that is shorter than it"
        ));
    }
    for window in few {
        remarks.push(format!("no limit by windows of {}: the trace is only {long} long", window.length()));
    }
    Ok(enough)
}

/// The most common windows in rules.
const USUAL_SECONDS: [u64; 3] = [1, 60, 3_600];

/// With fewer windows, the busiest may be chance.
const WINDOWS_MIN: u128 = 10;

/// The longest useful window of a token bucket, 31 days.
const WINDOW_SECONDS_MAX: u64 = 31 * 86_400;

const NANOS_PER_SECOND: u64 = 1_000_000_000;
