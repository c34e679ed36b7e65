//! `tidegate replay`: runs a trace through the daemon's rules reader and engine, in virtual time.

use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use super::{CliError, CliResult, FormatArgs, failed, usage};
use crate::daemon::log;
use crate::rules::{self, Domain, shown};
use crate::state::AtomicFile;
use crate::terms::without_number;
use crate::trace::event::TraceFailure;
use crate::trace::player::Player;
use crate::trace::recording::{RecordedTrace, TraceFormat, directory, is_dash};
use crate::trace::report::{self, ReportNames};
use crate::trace::stage::ReplayStage;
use crate::trace::summary::PlayedCounts;

/// Judges a recorded or invented trace by the rules of a directory, in virtual time
///
/// A trace is JSON lines in order of time: {"t": 0.5, "op": "hit", "domain": "api", "descriptors": [["user", "u1"]]};
/// or an access log. The summary goes to standard error, with --json to standard output.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// The trace; - for standard input
    trace: PathBuf,
    /// A directory of rules, or one file
    #[arg(long, value_name = "DIR")]
    rules: PathBuf,
    /// Other rules to judge the same trace by, to compare the decisions
    #[arg(long, value_name = "OTHER_RULES")]
    compare: Option<PathBuf>,
    /// The format of the trace [default: that of its first line]
    #[arg(long, value_enum)]
    trace_format: Option<TraceFormat>,
    #[command(flatten)]
    format: FormatArgs,
    /// The domain of the requests of an access log [default: the only one in the rules]
    #[arg(long, value_name = "NAME")]
    domain: Option<String>,
    /// Stop at the first line of an access log that cannot be read
    #[arg(long)]
    strict: bool,
    /// Write one JSON line for each hit, acquire and peek, as decided by --rules; - for standard output
    #[arg(long, value_name = "FILE")]
    decisions: Option<PathBuf>,
    /// Write a page with charts: the refusals of each rule over time, the spread of its callers, and its most refused callers;
    /// to a new file
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
    /// Another key for keyed hashes than the fixed one
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

const EXAMPLES: &str = "\
Examples:
  tidegate replay trace.jsonl --rules config/rules
  tidegate replay trace.jsonl --rules config/rules --decisions - | jq 'select(.verdict==\"shed\")'
  tidegate replay trace.jsonl --rules config/rules --compare stricter-rules
  tidegate replay trace.jsonl --rules config/rules --report replay.html
  zcat access.log.*.gz | tidegate replay - --rules config/rules

Exit codes: 0 replayed; 1 a bad line, with its number, or rules with errors; 2 wrong usage.";

pub(super) fn run(args: &Args, out: &mut dyn Write) -> CliResult {
    let Some(rules) = read_rules(&args.rules) else { return Ok(ExitCode::FAILURE) };
    let other = match args.compare.as_deref().map(read_rules) {
        None => None,
        Some(Some(other)) => Some(other),
        Some(None) => return Ok(ExitCode::FAILURE),
    };
    if is_written_over(args) {
        let message = "--decisions names the trace itself, which it would replace: name another file";
        return Err(usage(message));
    }
    if args.format.is_json() && args.decisions.as_deref().is_some_and(is_dash) {
        return Err(usage("--decisions - and --format json would mix on standard output: name a file"));
    }
    let mut recording = RecordedTrace::open(&args.trace).map_err(|error| at(&args.trace, error))?;
    let detected = args.trace_format.map_or_else(|| recording.detect(), Ok);
    let format = detected.map_err(|error| at(&args.trace, without_number(&error)))?;
    let domain = domain(args, format, &rules, other.as_deref()).map_err(usage)?;
    // Reports an unusable path before the replay.
    let begin = |path: &Path| report::begin(path).map_err(|error| at(path, without_number(&error)));
    let report = args.report.as_deref().map(begin).transpose()?;
    // A progress bar would garble decisions on the same terminal.
    let to_terminal = args.decisions.as_deref().is_some_and(is_dash) && io::stdout().is_terminal();
    let sink = args.decisions.as_deref().map(|path| create(path, out));
    let mut sink = sink.transpose()?;
    let seed = args.seed.unwrap_or_default();
    let player = |rules| Player::new(rules, seed, report.is_some());
    let decisions = sink.as_mut().map(|sink| &mut **sink as &mut dyn Write);
    let mut stage = ReplayStage::new(player(rules), other.map(player), decisions, &directory(&args.trace));
    let (played, counts) = recording.play(domain.as_deref(), args.strict, !to_terminal, &mut stage);
    let counts = stage.with_remarks(counts);
    let is_json = args.format.is_json();
    let summary = if is_json { format!("{:#}", stage.summary_json(&counts)) } else { stage.summary(&counts) };
    let written = report.map(|file| write_report(args, file, &mut stage, &counts, played.as_ref().err()));
    drop(stage);
    sink.map_or(Ok(()), |mut sink| sink.flush())?;
    // In text, without a line before a bad one, the error says all.
    if is_json {
        writeln!(out, "{summary}")?;
    } else if played.is_ok() || counts.lines > 0 {
        log::plainly(&summary);
    }
    if let (Some(Err(error)), Some(path)) = (written, &args.report) {
        return Err(at(path, without_number(&error)));
    }
    match played {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(TraceFailure::Write(error)) => Err(error.into()),
        Err(failure) => Err(at(&args.trace, failure)),
    }
}

/// Plays a trace in memory, as an access log if a domain is given. Returns the summary.
///
/// # Errors
/// The first line that cannot be played, with its number.
pub fn play(
    trace: Vec<u8>,
    rules: Vec<Arc<Domain>>,
    domain: Option<&str>,
    strict: bool,
) -> Result<String, String> {
    let mut stage = ReplayStage::of_rules_that_stay(Player::new(rules, 0, false), Path::new(""));
    let (played, counts) = RecordedTrace::of_bytes(trace).play(domain, strict, false, &mut stage);
    played.map_err(|failure| failure.to_string())?;
    Ok(stage.summary(&stage.with_remarks(counts)))
}

/// Whether the decisions would replace the trace.
fn is_written_over(args: &Args) -> bool {
    let trace = fs::canonicalize(&args.trace).ok().filter(|_| !is_dash(&args.trace));
    let decisions = args.decisions.as_deref().and_then(|path| fs::canonicalize(path).ok());
    trace.is_some() && trace == decisions
}

/// Writes the report, up to a bad line if there was one.
fn write_report(
    args: &Args,
    mut file: AtomicFile,
    stage: &mut ReplayStage<'_>,
    counts: &PlayedCounts,
    failure: Option<&TraceFailure>,
) -> io::Result<()> {
    let shown = |path: &PathBuf| path.display().to_string();
    let about = ReportNames {
        trace: shown(&args.trace),
        rules: shown(&args.rules),
        other: args.compare.as_ref().map(shown),
        failure: failure.map(ToString::to_string),
    };
    if let Some(page) = stage.report(counts, &about) {
        file.write_all(page.as_bytes())?;
    }
    file.finish()
}

/// Reads the domains of a rules directory. Prints their problems; `None` if there are errors.
fn read_rules(path: &Path) -> Option<Vec<Arc<Domain>>> {
    let loaded = rules::read(path);
    loaded.problems.iter().for_each(|problem| log::plainly(&problem.render(false)));
    if loaded.has_errors() { None } else { Some(loaded.domains) }
}

/// Returns the domain for an access log; `None` if the trace names domains itself.
fn domain(
    args: &Args,
    format: TraceFormat,
    rules: &[Arc<Domain>],
    other: Option<&[Arc<Domain>]>,
) -> Result<Option<String>, String> {
    match (format, &args.domain) {
        (TraceFormat::Jsonl, None) if !args.strict => return Ok(None),
        (TraceFormat::Jsonl, None) => {
            return Err("--strict is for an access log: any other trace is read strictly".into());
        }
        (TraceFormat::Jsonl, Some(_)) => {
            return Err("--domain is for an access log: the lines of any other trace name theirs".into());
        }
        (TraceFormat::Combined, _) => {}
    }
    let mut names: Vec<&str> =
        rules.iter().chain(other.unwrap_or_default()).map(|domain| domain.name()).collect();
    names.sort_unstable();
    names.dedup();
    let all = names.iter().map(|name| shown(name)).collect::<Vec<_>>().join(", ");
    match (&args.domain, names.as_slice()) {
        (Some(domain), names) if names.contains(&domain.as_str()) => Ok(Some(domain.clone())),
        (None, [only]) => Ok(Some((*only).to_owned())),
        (_, []) => Err("there is no domain in the rules, so nothing is limited".into()),
        (Some(domain), _) => Err(format!("no domain {} in the rules: there is {all}", shown(domain))),
        (None, _) => Err(format!("several domains in the rules: say which by --domain: {all}")),
    }
}

fn create<'w>(path: &Path, out: &'w mut dyn Write) -> Result<Box<dyn Write + 'w>, CliError> {
    Ok(if is_dash(path) {
        Box::new(BufWriter::with_capacity(WRITE_BYTES, out))
    } else {
        let file = File::create(path).map_err(|error| at(path, without_number(&error)))?;
        Box::new(BufWriter::with_capacity(WRITE_BYTES, file))
    })
}

fn at(path: &Path, failure: impl Display) -> CliError {
    failed(format_args!("{}: {failure}", path.display()))
}

const WRITE_BYTES: usize = 1 << 16;
