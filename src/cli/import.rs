//! `tidegate import`: rules that were written for another limiter, as rules of this one. It asks no daemon.

mod files;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;

use crate::daemon::log;
use crate::rules::native::{Native, native};
use crate::rules::words::counted;
use crate::rules::{Problem, read_text};
use files::Files;

/// Makes rules of what was written for another limiter
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    from: From,
}

#[derive(Clone, Debug, Subcommand)]
enum From {
    Ratelimit(Ratelimit),
}

/// Makes rules of the descriptor files of envoyproxy/ratelimit that decide the same
///
/// The files also load as they stand. What has no exact form among rules is told with its reason and stays a descriptor
/// file, which is written beside the rules. Without --out the files are printed.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = RATELIMIT_EXAMPLES)]
struct Ratelimit {
    /// A directory of descriptor files, or one file
    #[arg(value_name = "DIR")]
    from: PathBuf,
    /// Where to write: made if it is not there; another directory than the first
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Replace files that are there
    #[arg(long, requires = "out")]
    force: bool,
}

const EXAMPLES: &str = "\
Examples:
  tidegate import ratelimit /data/ratelimit/config
  tidegate import ratelimit /data/ratelimit/config --out rules

Exit codes: 0 made; 1 files with errors, or files that cannot be written: then none is; 2 wrong usage.";

const RATELIMIT_EXAMPLES: &str = "\
Examples:
  tidegate import ratelimit /data/ratelimit/config                look at what would be written
  tidegate import ratelimit /data/ratelimit/config --out rules
  tidegate check rules
  tidegate replay trace.jsonl --rules /data/ratelimit/config --compare rules

Exit codes: 0 made; 1 files with errors, or files that cannot be written: then none is; 2 wrong usage.";

/// Runs the command.
///
/// # Errors
/// What was made cannot be told.
pub fn run(args: &Args, out: &mut dyn Write) -> io::Result<ExitCode> {
    let From::Ratelimit(args) = &args.from;
    let (domains, problems) = match native(&args.from) {
        Ok(made) => made,
        Err(problems) => {
            tell(&problems);
            return Ok(ExitCode::FAILURE);
        }
    };
    tell(&problems);
    let files = Files::of(&domains);
    if let Some(problem) = files.texts().find_map(|(name, text)| first_error(name, text)) {
        log::plainly(&problem.render(false));
        log::plainly(
            "tidegate: nothing is written: this is a fault of `import`, and the tree loads as it stands",
        );
        return Ok(ExitCode::FAILURE);
    }
    if let Some(into) = &args.out {
        if let Err(failure) = files.write(into, &args.from, &domains, args.force) {
            log::plainly(&format!("tidegate: {failure}"));
            return Ok(ExitCode::FAILURE);
        }
    } else {
        for (name, text) in files.texts() {
            writeln!(out, "# ---- {name}\n{text}")?;
        }
    }
    domains.iter().for_each(|domain| log::plainly(&summary(domain)));
    Ok(ExitCode::SUCCESS)
}

fn tell(problems: &[Problem]) {
    problems.iter().for_each(|problem| log::plainly(&problem.render(false)));
}

/// What is written is read back before anybody else reads it.
fn first_error(name: &str, text: &str) -> Option<Problem> {
    read_text(name, text).problems.into_iter().find(Problem::is_error)
}

/// What became of a domain: its rules, what stays a tree and why, and what requests must send.
fn summary(native: &Native) -> String {
    let Native { domain, rules_count, left, lists, .. } = native;
    let mut lines = vec![format!(
        "{domain}: {}, {}",
        counted(*rules_count, "rule"),
        match left.len() {
            0 => "nothing stays a tree".to_owned(),
            1 => "1 limit stays a tree".to_owned(),
            more => format!("{more} limits stay a tree"),
        }
    )];
    lines.extend(left.iter().map(|left| format!("  {}: {} stays: {}", left.position, left.name, left.why)));
    if *rules_count > 0 {
        lines.push("  the same is decided of requests that send a descriptor of each list that they have all attributes of,".to_owned());
        lines.push(
            "  each attribute with one value that is not empty, and no other descriptor with a limit:"
                .to_owned(),
        );
        lines.extend(lists.iter().map(|list| format!("    {list}")));
    }
    lines.join("\n")
}
