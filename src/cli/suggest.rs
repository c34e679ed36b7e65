//! `tidegate suggest`: proposes limits from the callers of a trace, and evaluates them by the engine.

mod census;
mod demand;
mod proposal;

use std::fmt;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use super::{CliError, CliResult, FormatArgs, OutputFormat, failed, span, usage};
use crate::engine::{Op, Request, UNIT_REQUESTS};
use crate::state::write_whole;
use crate::terms::without_number;
use crate::trace::event::{Action, EventConsumer, TraceEvent, TraceFailure};
use crate::trace::recording::{RecordedTrace, TraceFormat, is_dash};
use crate::trace::spread::quantile;
use crate::trace::summary::PlayedCounts;
use census::Census;
use demand::{BurstNeeds, Demand};
use proposal::{SHARES, SHARES_FINER, Suggestions, TrialResult, judge, readable};

/// Proposes limits for a trace from the spread of its callers, and prints how much each would refuse
///
/// The trace is read several times: to find the callers, how much each asks for in a window, how large a burst each needs at a
/// rate, and at last by the daemon's own engine with every proposal in shadow.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// The trace, a file
    trace: PathBuf,
    /// Attributes to count by, together; repeatable for others [default: each that looks like a caller]
    #[arg(long, value_name = "ATTRIBUTE[,ATTRIBUTE]")]
    key: Vec<String>,
    /// The window in which a caller's requests are counted; repeatable [default: 1s, 1m and 1h, as the trace allows]
    #[arg(long, value_name = "TIME", value_parser = parse_window)]
    window: Vec<WholeSecondsWindow>,
    /// Of each key and window only the strictest limit that refuses at most such a share of the requests
    #[arg(long, value_name = "SHARE", value_parser = percent)]
    refuse_at_most: Option<f64>,
    /// Rules that stay in force beside the proposals
    #[arg(long, value_name = "DIR")]
    rules: Option<PathBuf>,
    /// The domain to propose limits for [default: the only one in the trace; of an access log `web`]
    #[arg(long, value_name = "NAME")]
    domain: Option<String>,
    /// The format of the trace [default: that of its first line]
    #[arg(long, value_enum)]
    trace_format: Option<TraceFormat>,
    #[command(flatten)]
    format: FormatArgs,
    /// Write the proposals as rules in shadow to a new file
    #[arg(long, value_name = "FILE.yaml")]
    write: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  tidegate suggest trace.jsonl
  tidegate suggest trace.jsonl --key user --key ip --window 1m --refuse-at-most 0.1%
  tidegate suggest access.log --key ip --write rules/suggested.yaml

Exit codes: 0 proposed; 1 nothing can be proposed, with the reason, or a bad line; 2 wrong usage.";

pub(super) fn run(args: &Args, out: &mut dyn Write) -> CliResult {
    let suggestions = suggest(args)?;
    match args.format.chosen() {
        OutputFormat::Text => writeln!(out, "{}", suggestions.text())?,
        OutputFormat::Json => writeln!(out, "{}", suggestions.json())?,
    }
    Ok(ExitCode::SUCCESS)
}

fn suggest(args: &Args) -> Result<Suggestions, CliError> {
    if is_dash(&args.trace) {
        let help = "zcat access.log.*.gz > access.log";
        return Err(usage(format_args!("the trace is read several times, so name a file: {help}")));
    }
    if let Some(path) = args.write.as_deref().filter(|path| path.exists()) {
        let message = "is there already and may hold more than was suggested: name another, or move it away";
        return Err(failed(format_args!("{}: {message}", path.display())));
    }
    let mut census = Census::default();
    let PlayedCounts { lines, span, mut remarks } = play(args, &mut census)?;
    let domain = census.domain(args.domain.as_deref()).map_err(failed)?;
    let keys = census.keys(&domain, &args.key, &mut remarks).map_err(failed)?;
    let windows = choose_windows(&args.window, span, &mut remarks).map_err(failed)?;

    let mut demand = Demand::new(&domain, &keys, &windows);
    play(args, &mut demand)?;
    let shares = if args.refuse_at_most.is_some() { SHARES_FINER } else { SHARES };
    let mut needs = BurstNeeds::new(&domain, &keys, demand.rates(shares));
    play(args, &mut needs)?;
    let proposals = needs.proposals();
    if proposals.is_empty() {
        return Err(failed("no request costs anything in the unit `requests`: there is nothing to limit"));
    }
    let proposals = readable(proposals, &mut remarks);
    if proposals.is_empty() {
        return Err(failed(remarks.join("\n")));
    }

    let judged = judge(args, &domain, proposals, &mut remarks)?;
    let shown = match args.refuse_at_most {
        Some(most) => strictest(judged, most),
        None => judged,
    };
    remarks.extend(needs.remarks());
    let suggestions = Suggestions { domain, lines, span, keys, shown, remarks };
    if let Some(path) = &args.write {
        let text = suggestions.yaml(&args.trace);
        write(path, &text)
            .map_err(|error| failed(format_args!("{}: {}", path.display(), without_number(&error))))?;
    }
    Ok(suggestions)
}

/// Keeps, for each key and window, the strictest proposal that refuses at most this share of its requests.
fn strictest(judged: Vec<TrialResult>, most: f64) -> Vec<TrialResult> {
    let mut strictest: Vec<TrialResult> = Vec::new();
    for judged in judged.into_iter().filter(|judged| judged.share() <= most) {
        // Proposals are ordered: later ones are looser.
        if !strictest.iter().any(|known| known.proposal.is_like(&judged.proposal)) {
            strictest.push(judged);
        }
    }
    strictest
}

fn play(args: &Args, player: &mut impl EventConsumer) -> Result<PlayedCounts, CliError> {
    let of_trace = |what: &dyn std::fmt::Display| failed(format_args!("{}: {what}", args.trace.display()));
    let mut recording = RecordedTrace::open(&args.trace).map_err(|error| of_trace(&error))?;
    let format = args.trace_format.map_or_else(|| recording.detect(), Ok);
    let domain = match format.map_err(|error| of_trace(&without_number(&error)))? {
        TraceFormat::Jsonl => None,
        TraceFormat::Combined => Some(args.domain.as_deref().unwrap_or(ACCESS_LOG_DOMAIN)),
    };
    let (played, counts) = recording.play(domain, false, true, player);
    played.map(|()| counts).map_err(|failure| of_trace(&failure))
}

/// Writes a rules file that all users can read.
fn write(path: &Path, text: &str) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    write_whole(path, text.as_bytes())?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(EVERYBODY_READS))
}

/// Returns the request and its cost, if it is for the domain and charged.
fn charged_request<'e>(event: &'e TraceEvent<'_>, domain: &str) -> Option<(&'e Request<'e>, u32)> {
    let Action::Judge(request, _) = &event.action else { return None };
    let cost = request.cost.in_unit(UNIT_REQUESTS).filter(|cost| *cost > 0)?;
    (request.op != Op::Peek && request.domain == domain).then_some((request, cost))
}

/// Parses `0.1%` as a fraction.
fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').and_then(|number| number.parse::<f64>().ok());
    let share = number.filter(|number| (0.0..=100.0).contains(number));
    share
        .map(|number| number / 100.0)
        .ok_or_else(|| "write a percentage from 0% to 100%, such as 0.1%".to_owned())
}

/// The default domain of an access log.
const ACCESS_LOG_DOMAIN: &str = "web";

const EVERYBODY_READS: u32 = 0o644;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct WholeSecondsWindow {
    seconds: u64,
}

/// Units of rates, longest first.
const UNITS: [(u64, &str); 4] = [(86_400, "day"), (3_600, "h"), (60, "min"), (1, "s")];

impl WholeSecondsWindow {
    fn nanos(self) -> u64 {
        self.seconds.saturating_mul(NANOS_PER_SECOND)
    }

    fn seconds(self) -> u64 {
        self.seconds
    }

    /// Returns a span such as `15m`.
    fn length(self) -> String {
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
fn parse_window(text: &str) -> Result<WholeSecondsWindow, String> {
    let span = span(text).ok();
    let seconds = span.filter(|span| span.subsec_nanos() == 0).map(|span| span.as_secs());
    match seconds {
        Some(seconds) if (1..=WINDOW_SECONDS_MAX).contains(&seconds) => Ok(WholeSecondsWindow { seconds }),
        _ => Err("write whole seconds up to 31 days, such as 1s, 15m, 1h or 1d".to_owned()),
    }
}

/// Returns the requested windows; by default those of which the trace has enough.
fn choose_windows(
    charged_request: &[WholeSecondsWindow],
    span: Duration,
    remarks: &mut Vec<String>,
) -> Result<Vec<WholeSecondsWindow>, String> {
    // A recording of 10 s has its first and last line a little less apart.
    let span = Duration::from_secs((span + HALF_A_SECOND).as_secs());
    let long = humantime::format_duration(span);
    let times = |window: &WholeSecondsWindow| span.as_nanos() / u128::from(window.nanos());
    if let Some(longer) = charged_request.iter().find(|window| times(window) == 0) {
        return Err(format!(
            "the trace is {long} long, less than one window of {}: take a longer trace or a shorter --window",
            longer.length()
        ));
    }
    for window in charged_request.iter().filter(|window| times(window) < WINDOWS_MIN) {
        remarks.push(format!(
            "the trace is {long} long and has few windows of {}: busy ones may be chance",
            window.length()
        ));
    }
    if !charged_request.is_empty() {
        return Ok(charged_request.to_vec());
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

const HALF_A_SECOND: Duration = Duration::from_millis(500);

/// The most common windows in rules.
const USUAL_SECONDS: [u64; 3] = [1, 60, 3_600];

/// With fewer windows, the busiest may be chance.
const WINDOWS_MIN: u128 = 10;

/// The longest useful window of a token bucket, 31 days.
const WINDOW_SECONDS_MAX: u64 = 31 * 86_400;

const NANOS_PER_SECOND: u64 = 1_000_000_000;
