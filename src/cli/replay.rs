//! `tidegate replay`: a trace through the daemon's own rules reader and engine, in virtual time. Nothing sleeps.

mod access_line;
pub(super) mod bounds;
mod callers;
mod combined;
mod comparison;
mod decisions;
pub(super) mod event;
mod failure;
pub(super) mod ids;
mod jsonl;
mod lines;
mod path;
pub(super) mod player;
mod progress;
#[cfg(test)]
mod recorded_tests;
mod stage;
mod summary;
pub(super) mod table;
mod ticks;
mod trace;
mod work;

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use super::log;
use crate::rules::{self, Domain, shown};
use access_line::Unreadable;
use combined::Combined;
use decisions::Decisions;
use failure::{Failure, Wrong};
use jsonl::Jsonl;
use lines::{Lines, Next};
use player::Player;
use progress::Progress;
use stage::Stage;

/// Judges a recorded or invented trace by the rules of a directory, in virtual time
///
/// A trace is JSON lines in order of time: {"t": 0.5, "op": "hit", "domain": "api", "descriptors": [["user", "u1"]]};
/// or an access log, with --format combined. The summary goes to standard error.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The trace; - for standard input
    trace: PathBuf,
    /// A directory of rules, or one file
    #[arg(long, value_name = "DIR")]
    rules: PathBuf,
    /// Other rules to judge the same trace by: what they would change is told
    #[arg(long, value_name = "OTHER_RULES")]
    compare: Option<PathBuf>,
    /// What the trace is written in
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    /// The domain that an access log is judged in [default: the only one in the rules]
    #[arg(long, value_name = "NAME")]
    domain: Option<String>,
    /// Stop at the first line of an access log that cannot be read
    #[arg(long)]
    strict: bool,
    /// Write one JSON line for each hit, acquire and peek, as decided by --rules; - for standard output
    #[arg(long, value_name = "FILE")]
    decisions: Option<PathBuf>,
    /// Another key for keyed hashes than the fixed one
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

/// What a trace is written in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// One JSON object a line; the first bad line ends it
    #[default]
    Jsonl,
    /// An access log of Apache or nginx; lines that cannot be read are counted and passed over
    Combined,
}

const EXAMPLES: &str = "\
Examples:
  tidegate replay trace.jsonl --rules config/rules
  tidegate replay - --rules config/rules --decisions - < trace.jsonl | jq -c 'select(.verdict != \"allow\")'
  tidegate replay trace.jsonl --rules config/rules --compare stricter-rules
  zcat access.log.*.gz | tidegate replay - --format combined --rules config/rules

Exit codes: 0 replayed; 1 a bad line, with its number, or rules with errors; 2 wrong usage.";

/// Runs the command.
///
/// # Errors
/// The decisions cannot be written.
pub fn run(args: &Args, out: &mut dyn Write) -> io::Result<ExitCode> {
    let Some(rules) = read_rules(&args.rules) else { return Ok(ExitCode::FAILURE) };
    let other = match args.compare.as_deref().map(read_rules) {
        None => None,
        Some(Some(other)) => Some(other),
        Some(None) => return Ok(ExitCode::FAILURE),
    };
    let domain = match domain(args, &rules, other.as_deref()) {
        Ok(domain) => domain,
        Err(message) => {
            log::plainly(&format!("tidegate: {message}"));
            return Ok(ExitCode::from(2));
        }
    };
    let (mut input, bytes) = match open(&args.trace) {
        Ok(opened) => opened,
        Err(error) => return failed(&args.trace, &error),
    };
    // A bar between decisions on the same terminal would be in their way.
    let to_terminal = args.decisions.as_deref().is_some_and(is_dash) && io::stdout().is_terminal();
    let mut sink = match args.decisions.as_deref().map(|path| (path, create(path, out))) {
        None => None,
        Some((_, Ok(sink))) => Some(sink),
        Some((path, Err(error))) => return failed(path, &error),
    };
    let mut stage = Stage::new(
        Player::new(rules, args.seed.unwrap_or_default()),
        other.map(|rules| Player::new(rules, args.seed.unwrap_or_default())),
        sink.as_mut().map(|sink| Decisions::new(sink)),
        directory(&args.trace),
    );
    let mut progress = Progress::new(bytes, !to_terminal);
    let (played, remarks) =
        play(Lines::new(&mut *input), domain.as_deref(), args.strict, &mut stage, &mut progress);
    progress.end();
    let summary = stage.summary(remarks);
    drop(stage);
    sink.map_or(Ok(()), |mut sink| sink.flush())?;
    log::plainly(&summary);
    match played {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(Failure::Write(error)) => Err(error),
        Err(failure) => failed(&args.trace, &failure),
    }
}

/// Plays a trace, an access log where a domain is given; what is to be remarked on it comes beside.
fn play(
    mut lines: Lines<'_>,
    domain: Option<&str>,
    strict: bool,
    stage: &mut Stage<'_>,
    progress: &mut Progress,
) -> (Result<(), Failure>, Vec<String>) {
    let Some(domain) = domain else {
        let mut jsonl = Jsonl::default();
        let played = play_lines(&mut lines, stage, progress, |number, text, stage| match text {
            Some(text) => jsonl.line(text, number, stage),
            None => Err(Failure::Line { number, wrong: Wrong::TooLong }),
        });
        return (played, Vec::new());
    };
    let mut log = Combined::new(domain, strict);
    let played = play_lines(&mut lines, stage, progress, |number, text, stage| match text {
        Some(text) => log.line(text, number, stage),
        None => log.pass_over(number, Unreadable::TooLong),
    });
    // What was read before a bad line is played all the same.
    let ended = log.end(stage);
    (played.and(ended), log.remarks())
}

/// Hands over every line by its number, `None` standing for one above the bound.
fn play_lines<'w>(
    lines: &mut Lines<'_>,
    stage: &mut Stage<'w>,
    progress: &mut Progress,
    mut line: impl FnMut(u64, Option<&[u8]>, &mut Stage<'w>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    loop {
        match lines.next() {
            Ok(Next::Line { number, text }) => line(number, Some(text), stage)?,
            Ok(Next::TooLong { number }) => line(number, None, stage)?,
            Ok(Next::End) => return Ok(()),
            Err(source) => return Err(Failure::Read { number: lines.number(), source }),
        }
        stage.take_news().iter().for_each(|news| progress.say(news));
        progress.moved(lines.bytes(), stage.lines());
    }
}

/// The domains of a directory of rules; none if they have errors, which are then told.
fn read_rules(path: &Path) -> Option<Vec<Arc<Domain>>> {
    let loaded = rules::read(path);
    loaded.problems.iter().for_each(|problem| log::plainly(&problem.render(false)));
    if loaded.has_errors() { None } else { Some(loaded.domains) }
}

/// The domain that an access log is judged in; none where the trace names domains itself.
fn domain(
    args: &Args,
    rules: &[Arc<Domain>],
    other: Option<&[Arc<Domain>]>,
) -> Result<Option<String>, String> {
    match (args.format, &args.domain) {
        (Format::Jsonl, None) if !args.strict => return Ok(None),
        (Format::Jsonl, None) => {
            return Err("--strict is for --format combined: any other trace is read strictly".into());
        }
        (Format::Jsonl, Some(_)) => {
            return Err("--domain is for --format combined: the lines of any other trace name theirs".into());
        }
        (Format::Combined, _) => {}
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

/// The trace, and its length if it is a file.
fn open(path: &Path) -> io::Result<(Box<dyn BufRead>, Option<u64>)> {
    if is_dash(path) {
        return Ok((Box::new(BufReader::with_capacity(READ_BYTES, io::stdin().lock())), None));
    }
    let file = File::open(path)?;
    let bytes = file.metadata().ok().filter(std::fs::Metadata::is_file).map(|metadata| metadata.len());
    Ok((Box::new(BufReader::with_capacity(READ_BYTES, file)), bytes))
}

fn create<'w>(path: &Path, out: &'w mut dyn Write) -> io::Result<Box<dyn Write + 'w>> {
    Ok(if is_dash(path) {
        Box::new(BufWriter::with_capacity(WRITE_BYTES, out))
    } else {
        Box::new(BufWriter::with_capacity(WRITE_BYTES, File::create(path)?))
    })
}

/// What paths in a trace start from: where it stands, for standard input here.
fn directory(trace: &Path) -> &Path {
    let beside = if is_dash(trace) { None } else { trace.parent() };
    beside.unwrap_or_else(|| Path::new(""))
}

fn is_dash(path: &Path) -> bool {
    path.as_os_str() == "-"
}

fn failed(path: &Path, failure: &dyn std::fmt::Display) -> io::Result<ExitCode> {
    log::plainly(&format!("tidegate: {}: {failure}", path.display()));
    Ok(ExitCode::FAILURE)
}

const READ_BYTES: usize = 1 << 16;
const WRITE_BYTES: usize = 1 << 16;
