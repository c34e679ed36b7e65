//! The limits in process: time and memory of each algorithm beside `governor` and the others, and the cost of
//! many rules, a reload, a flood of new keys, a table of overrides and a replay.
//!
//! Options: `cargo bench --bench limits -- --help`; measurements: `docs/performance.md`.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "a benchmark prints, may stop where it stands, and divides counts that fit"
)]

mod beside;
#[path = "../shared/build.rs"]
mod build;
mod contestant;
mod files;
mod leases;
#[path = "../shared/lender.rs"]
mod lender;
#[path = "../sockets/machine.rs"]
#[allow(dead_code, reason = "shared with the socket benchmark")]
mod machine;
#[path = "../shared/report.rs"]
mod report;
mod resident;
mod rules;
mod sampler;
mod scrape;
mod shares;
mod speed;
mod stopwatch;
mod tails;
#[path = "../shared/workload.rs"]
mod workload;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};

use machine::Machine;
use report::Row;
use resident::Held;

/// Measures limits in process: time, memory, reload, flood, tables, replay
#[derive(Debug, Parser)]
struct Arguments {
    /// Repetitions, in each of which everything is measured once
    #[arg(long, default_value_t = 9)]
    reps: usize,
    /// Only these
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Suite>,
    /// Write the rows of the table to this file as well
    #[arg(long)]
    json: Option<PathBuf>,
    /// The daemon whose `replay` is measured, by default a release build of this source
    #[arg(long)]
    daemon: Option<PathBuf>,
    /// Passed by `cargo bench`, and not by `cargo test`
    #[arg(long, hide = true)]
    bench: bool,
    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Suite {
    /// Time per decision: algorithms, three rules, 10 000 rules
    Speed,
    /// Rules of the fleet beside those of this host
    Shares,
    /// The slowest decisions during a reload
    Reload,
    /// The slowest decisions during a flood of new keys
    Flood,
    /// Resident bytes per key
    Resident,
    /// A table of 100 000 overrides
    Overrides,
    /// Work in progress: time, bytes, pauses
    Leases,
    /// The cost of sampling the machine
    Sampler,
    /// The cost of a scrape
    Scrape,
    /// A replay of 1 000 000 lines
    Replay,
}

/// The processes that this program starts are this program.
#[derive(Debug, Subcommand)]
enum Role {
    /// Fills a table and prints its memory
    #[command(hide = true)]
    Hold { held: Held, keys: u32, hits: u32 },
    /// Holds leases and prints the memory of each
    #[command(hide = true)]
    Lease { leases: u32 },
    /// Reads a table of overrides and prints its memory
    #[command(hide = true)]
    Read { directory: PathBuf },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match &arguments.role {
        Some(Role::Hold { held, keys, hits }) => resident::hold(*held, *keys, *hits),
        Some(Role::Lease { leases }) => leases::hold(*leases),
        Some(Role::Read { directory }) => files::hold(directory),
        // `cargo test --all-targets` also runs benchmarks; there is nothing to test here.
        None if !arguments.bench => Ok(()),
        None => measure(&arguments),
    };
    report::ended(done)
}

fn measure(arguments: &Arguments) -> io::Result<()> {
    let machine = Machine::look()?;
    println!("{}; {} repetitions", machine.describe(), arguments.reps);
    let reps = arguments.reps;
    let directory = tempfile::Builder::new().prefix("tidegate-limits-").tempdir()?;
    let wanted = |suite: &Suite| arguments.only.is_empty() || arguments.only.contains(suite);
    let mut rows = Vec::new();
    for suite in Suite::value_variants().iter().filter(|suite| wanted(suite)) {
        let name = suite.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
        eprintln!("limits: {name}");
        let measured = match suite {
            Suite::Speed => Ok(speed::run(reps)),
            Suite::Shares => shares::run(reps),
            Suite::Reload => tails::reload(&machine, directory.path(), reps),
            Suite::Flood => Ok(tails::flood(reps)),
            Suite::Resident => resident::run(reps.min(RESIDENT_REPS_MAX)),
            Suite::Overrides => files::overrides(directory.path(), reps),
            Suite::Leases => leases::run(reps),
            Suite::Sampler => sampler::run(reps),
            Suite::Scrape => scrape::run(directory.path(), reps),
            Suite::Replay => {
                let daemon = arguments.daemon.clone().map_or_else(build::daemon, Ok);
                daemon.and_then(|daemon| files::replay(&daemon, directory.path(), reps.min(REPLAY_REPS_MAX)))
            }
        };
        // A suite that fails becomes a row with the error; the others continue.
        rows.extend(measured.unwrap_or_else(|error| vec![Row::skipped(&name, &error.to_string())]));
    }
    report::print(&rows);
    arguments.json.as_ref().map_or(Ok(()), |path| report::save(&rows, path))
}

/// Memory does not vary with the load of the machine.
const RESIDENT_REPS_MAX: usize = 3;

/// Each takes seconds.
const REPLAY_REPS_MAX: usize = 5;
