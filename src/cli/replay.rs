//! `tidegate replay`: a trace through the daemon's own rules reader and engine, in virtual time. Nothing sleeps.

mod decisions;
mod player;
mod summary;
mod trace;

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use super::log;
use crate::engine::{Engine, HashKey, Options};
use crate::rules::{self, Mode, RuleSet};
use decisions::Decisions;
use player::Player;
use summary::Summary;

/// Judges a recorded or invented trace by the rules of a directory, in virtual time
///
/// A trace is JSON lines in order of time: {"t": 0.5, "op": "hit", "domain": "api", "descriptors": [["user", "u1"]]}.
/// The summary goes to standard error.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The trace; - for standard input
    trace: PathBuf,
    /// A directory of rules, or one file
    #[arg(long, value_name = "DIR")]
    rules: PathBuf,
    /// Write one JSON line for each hit, acquire and peek; - for standard output
    #[arg(long, value_name = "FILE")]
    decisions: Option<PathBuf>,
    /// Another key for keyed hashes than the fixed one
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

const EXAMPLES: &str = "\
Examples:
  tidegate replay trace.jsonl --rules config/rules
  tidegate replay - --rules config/rules --decisions - < trace.jsonl | jq -c 'select(.verdict != \"allow\")'

Exit codes: 0 replayed; 1 a bad line, with its number, or rules with errors; 2 wrong usage.";

/// Runs the command.
///
/// # Errors
/// The decisions cannot be written.
pub fn run(args: &Args, out: &mut dyn Write) -> io::Result<ExitCode> {
    let Some(engine) = engine(args) else { return Ok(ExitCode::FAILURE) };
    let input: Box<dyn BufRead> = match open(&args.trace) {
        Ok(input) => input,
        Err(error) => return failed(&format!("{}: {error}", args.trace.display())),
    };
    let mut sink: Box<dyn Write + '_> = match &args.decisions {
        None => Box::new(io::sink()),
        Some(path) if is_dash(path) => Box::new(BufWriter::new(out)),
        Some(path) => match File::create(path) {
            Ok(file) => Box::new(BufWriter::new(file)),
            Err(error) => return failed(&format!("{}: {error}", path.display())),
        },
    };
    let mut player = Player::new(engine);
    let mut decisions = Decisions::new(&mut *sink);
    let played = player.play(input, &mut decisions);
    sink.flush()?;
    log::plainly(&Summary::of(&player).to_string());
    match played {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(player::Failure::Write(error)) => Err(error),
        Err(failure) => failed(&format!("{}: {failure}", args.trace.display())),
    }
}

/// An engine with the rules in force; none if they have errors, which are then told.
fn engine(args: &Args) -> Option<Arc<Engine>> {
    let loaded = rules::read(&args.rules);
    loaded.problems.iter().for_each(|problem| log::plainly(&problem.render(false)));
    if loaded.has_errors() {
        return None;
    }
    let mut key = [0; 16];
    key.iter_mut().zip(args.seed.unwrap_or_default().to_le_bytes()).for_each(|(to, from)| *to = from);
    let hash_key = HashKey::from_bytes(key);
    let engine = Engine::new(Options { hash_key, mode: Mode::Enforce, memory_bytes_max: MEMORY_BYTES });
    engine.install(RuleSet::new(loaded.domains));
    Some(Arc::new(engine))
}

fn open(path: &Path) -> io::Result<Box<dyn BufRead>> {
    Ok(if is_dash(path) {
        Box::new(io::stdin().lock())
    } else {
        Box::new(BufReader::with_capacity(READ_BYTES, File::open(path)?))
    })
}

fn is_dash(path: &Path) -> bool {
    path.as_os_str() == "-"
}

fn failed(message: &str) -> io::Result<ExitCode> {
    log::plainly(&format!("tidegate: {message}"));
    Ok(ExitCode::FAILURE)
}

/// As the daemon has by default, so that a replay forgets what it would forget.
const MEMORY_BYTES: usize = 64 << 20;

const READ_BYTES: usize = 1 << 16;
