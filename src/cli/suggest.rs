//! `tidegate suggest`: proposes limits from the callers of a trace, and evaluates them by the engine.

mod census;
mod demand;
mod proposal;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use humantime::format_duration;

use super::{CliError, CliResult, FormatArgs, failed, span, usage};
use crate::engine::{Op, Request, UNIT_REQUESTS};
use crate::state::write_whole;
use crate::terms::without_number;
use crate::trace::event::{Action, EventConsumer, TraceEvent, TraceFailure};
use crate::trace::recording::{RecordedTrace, TraceFormat, is_dash};
use crate::trace::spread::quantile;
use crate::trace::summary::PlayedCounts;
use census::Census;
use demand::{BurstNeeds, Demand};
use proposal::{SHARES, SHARES_FINER, Suggestions, judge, readable};

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
    window: Vec<Duration>,
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
    let mut needs = BurstNeeds::new(&domain, demand.rates(shares));
    play(args, &mut needs)?;
    let remark = needs.remark();
    let proposals = needs.proposals();
    if proposals.is_empty() {
        return Err(failed("no request costs anything in the unit `requests`: there is nothing to limit"));
    }
    let proposals = readable(proposals, &mut remarks);
    if proposals.is_empty() {
        return Err(failed(remarks.join("\n")));
    }

    let mut proposals = judge(args, &domain, proposals, &mut remarks)?;
    if let Some(most) = args.refuse_at_most {
        proposals.retain(|proposal| proposal.share_refused() <= most);
        // Proposals are ordered: later ones are looser.
        proposals.dedup_by(|looser, strictest| looser.is_like(strictest));
    }
    remarks.extend(remark);
    let suggestions =
        Suggestions { domain: &domain, lines, span, keys: &keys, proposals: &proposals, remarks: &remarks };
    if let Some(path) = &args.write {
        let text = suggestions.yaml(&args.trace);
        write(path, &text)
            .map_err(|error| failed(format_args!("{}: {}", path.display(), without_number(&error))))?;
    }
    if args.format.is_json() {
        writeln!(out, "{}", suggestions.json())?;
    } else {
        writeln!(out, "{}", suggestions.text())?;
    }
    Ok(ExitCode::SUCCESS)
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

/// Parses `1s`, `15m` or `15min`, `1h`, `1d` or `1day`.
fn parse_window(text: &str) -> Result<Duration, String> {
    let window = span(text).ok().filter(|span| span.subsec_nanos() == 0);
    window
        .filter(|window| (1..=WINDOW_SECONDS_MAX).contains(&window.as_secs()))
        .ok_or_else(|| "write whole seconds up to 31 days, such as 1s, 15m, 1h or 1d".to_owned())
}

/// Returns the requested windows; by default those of which the trace has enough.
fn choose_windows(
    named: &[Duration],
    span: Duration,
    remarks: &mut Vec<String>,
) -> Result<Vec<Duration>, String> {
    // A recording of 10 s has its first and last line a little less apart.
    let span = Duration::from_secs((span + HALF_A_SECOND).as_secs());
    let long = format_duration(span);
    let times = |window: &Duration| span.as_secs() / window.as_secs();
    if let Some(longer) = named.iter().find(|window| times(window) == 0) {
        return Err(format!(
            "the trace is {long} long, less than one window of {}: take a longer trace or a shorter --window",
            format_duration(*longer)
        ));
    }
    for window in named.iter().filter(|window| times(window) < WINDOWS_MIN) {
        remarks.push(format!(
            "the trace is {long} long and has few windows of {}: busy ones may be chance",
            format_duration(*window)
        ));
    }
    if !named.is_empty() {
        return Ok(named.to_vec());
    }
    let usual = USUAL_SECONDS.map(Duration::from_secs).into_iter();
    let (enough, few): (Vec<_>, Vec<_>) = usual.partition(|window| times(window) >= WINDOWS_MIN);
    if enough.is_empty() {
        return Err(format!(
            "the trace is {long} long, and nothing can be said from less than {WINDOWS_MIN} s: take a longer trace, or \
             name a --window that is shorter than it"
        ));
    }
    for window in few {
        remarks.push(format!(
            "no limit by windows of {}: the trace is only {long} long",
            format_duration(window)
        ));
    }
    Ok(enough)
}

const HALF_A_SECOND: Duration = Duration::from_millis(500);

/// The most common windows in rules.
const USUAL_SECONDS: [u64; 3] = [1, 60, 3_600];

/// With fewer windows, the busiest may be chance.
const WINDOWS_MIN: u64 = 10;

/// The longest useful window of a token bucket, 31 days.
const WINDOW_SECONDS_MAX: u64 = 31 * 86_400;
