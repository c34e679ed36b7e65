//! The daemon from outside: the cost of a decision over its socket, beside an echo server and other limiters.
//!
//! Options: `cargo bench --bench sockets -- --help`; measurements: `docs/performance.md`. Every process
//! started here is stopped by its own process id and uses sockets in a temporary directory.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::indexing_slicing,
    clippy::expect_used,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "a benchmark prints, may stop where it stands, and divides counts that fit"
)]

mod batching;
#[path = "../shared/build.rs"]
mod build;
mod death;
mod dialect;
mod echo;
mod fairness;
mod grpc;
mod idle;
mod load;
mod machine;
mod measure;
mod memory;
mod operated;
mod peers;
mod process;
mod race;
#[path = "../shared/report.rs"]
mod report;
mod servers;
mod slice;
mod start;
#[path = "../shared/workload.rs"]
mod workload;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};

use machine::Machine;
use race::Race;
use report::Row;
use servers::Daemon;

/// Measures the daemon over its socket, beside a bare echo server and other limiters.
#[derive(Debug, Parser)]
struct Arguments {
    /// Repetitions, in each of which everything is measured once
    #[arg(long, default_value_t = 5)]
    reps: usize,
    /// Seconds for each measurement
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Only these
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Suite>,
    /// Write the rows of the table to this file as well
    #[arg(long)]
    json: Option<PathBuf>,
    /// Write the result of the race to this file, for its chart
    #[arg(long)]
    race: Option<PathBuf>,
    /// Rows that another benchmark wrote, to be printed with ours
    #[arg(long)]
    include: Vec<PathBuf>,
    /// The daemon to measure, by default a release build of this source
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
    /// Beside other servers in turn: one request at a time, many in flight, blocking workers
    Race,
    /// The saving by 64 requests in flight, and the cost of a large table
    Batching,
    /// Memory, wake-ups and size of a daemon without requests
    Idle,
    /// The slowest answers on a busy host
    Slice,
    /// Start to first answer
    Start,
    /// Resident bytes per key
    Memory,
    /// State kept and metrics scraped, beside neither
    Operated,
    /// How soon the places of a killed process are free
    Death,
    /// How long one user waits while another floods
    Fairness,
}

/// The processes that this program starts are this program.
#[derive(Debug, Subcommand)]
enum Role {
    #[command(hide = true)]
    HoldPlaces { socket: PathBuf },
    #[command(hide = true)]
    Launch { arguments: Vec<String> },
    #[command(hide = true)]
    Echo { socket: PathBuf, request_bytes: usize, reply_hex: String },
    #[command(hide = true)]
    Busy,
    #[command(hide = true)]
    Flood { socket: PathBuf, connections: usize, frame_bytes: usize },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match &arguments.role {
        Some(Role::HoldPlaces { socket }) => death::hold(socket),
        Some(Role::Launch { arguments }) => return process::launch(arguments),
        Some(Role::Flood { socket, connections, frame_bytes }) => {
            fairness::flood(socket, *connections, *frame_bytes)
        }
        Some(Role::Busy) => return process::be_busy(),
        Some(Role::Echo { socket, request_bytes, reply_hex }) => {
            echo::serve(socket, *request_bytes, &dialect::unhex(reply_hex))
        }
        // `cargo test --all-targets` also runs benchmarks; there is nothing to test here.
        None if !arguments.bench => Ok(()),
        None => measure(&arguments),
    };
    report::ended(done)
}

fn measure(arguments: &Arguments) -> io::Result<()> {
    let machine = Machine::look()?;
    println!("{}; {} repetitions of {} s", machine.describe(), arguments.reps, arguments.seconds);
    let directory = tempfile::Builder::new().prefix("tidegate-bench-").tempdir()?;
    let program = arguments.daemon.clone().map_or_else(build::daemon, Ok)?;
    let daemon = Daemon::prepare(&program, directory.path())?;
    let nanos = (arguments.seconds * 1e9) as u64;
    let reps = arguments.reps;

    let wanted = |suite| arguments.only.is_empty() || arguments.only.contains(&suite);
    let mut rows = Vec::new();
    if wanted(Suite::Race) {
        let race = Race::run(&machine, &daemon, directory.path(), reps, nanos)?;
        race.print();
        arguments.race.as_ref().map_or(Ok(()), |path| race.save(path))?;
        rows.extend(race.into_rows());
    }
    if wanted(Suite::Batching) {
        rows.extend(or_skipped("batching", batching::run(&machine, &daemon, reps, nanos)));
        machine.unpin()?;
    }
    if wanted(Suite::Idle) {
        rows.extend(or_skipped("idle", idle::run(&daemon, &program, reps, nanos)));
    }
    for included in &arguments.include {
        rows.extend(or_skipped(&included.to_string_lossy(), report::load(included)));
    }
    if wanted(Suite::Memory) {
        rows.extend(or_skipped("resident bytes per key", memory::run(&daemon, reps)));
    }
    if wanted(Suite::Slice) {
        rows.extend(or_skipped("scheduler slice", slice::run(&machine, &daemon, reps, nanos)));
        machine.unpin()?;
    }
    if wanted(Suite::Start) {
        rows.extend(or_skipped("start to first answer", start::run(&daemon, reps)));
    }
    if wanted(Suite::Operated) {
        let measured = operated::run(&machine, &program, directory.path(), reps, nanos);
        rows.extend(or_skipped("as it is run", measured));
        machine.unpin()?;
    }
    if wanted(Suite::Death) {
        let measured = death::run(&daemon, directory.path(), reps);
        rows.extend(or_skipped("places of a killed process", measured));
    }
    if wanted(Suite::Fairness) {
        let measured = fairness::run(&program, directory.path(), reps, nanos);
        rows.extend(or_skipped("two users", measured));
    }
    report::print(&rows);
    arguments.json.as_ref().map_or(Ok(()), |path| report::save(&rows, path))
}

/// A suite that fails becomes a row with the error; the others continue.
fn or_skipped(figure: &str, rows: io::Result<Vec<Row>>) -> Vec<Row> {
    rows.unwrap_or_else(|error| vec![Row::skipped(figure, &error.to_string())])
}
