//! The cost of fleet budgets: the load on Redis, and the synchronization of each host.
//!
//! Options: `cargo bench --bench fleet -- --help`; measurements: `docs/performance.md`.

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

mod cells;
mod client;
mod counted;
mod hosts;
#[path = "../sockets/machine.rs"]
#[allow(dead_code, reason = "shared with the socket benchmark")]
mod machine;
#[path = "../sockets/process.rs"]
#[allow(dead_code, reason = "shared with the socket benchmark")]
mod process;
#[path = "../shared/report.rs"]
mod report;
mod server;
#[path = "../limits/stopwatch.rs"]
#[allow(dead_code, reason = "shared with the benchmark of limits")]
mod stopwatch;
#[path = "../../tests/fleet/store.rs"]
#[allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "shared with the tests of the fleet")]
mod store;
#[path = "../shared/workload.rs"]
mod workload;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};

use machine::Machine;
use report::Row;

/// Measures the load of a fleet on Redis, and its cost to a host
#[derive(Debug, Parser)]
struct Arguments {
    /// Repetitions
    #[arg(long, default_value_t = 3)]
    reps: usize,
    /// Seconds of each
    #[arg(long, default_value_t = 4)]
    seconds: u64,
    /// Only these
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Suite>,
    /// Write the rows of the table to this file as well
    #[arg(long)]
    json: Option<PathBuf>,
    /// Passed by `cargo bench`, and not by `cargo test`
    #[arg(long, hide = true)]
    bench: bool,
    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Suite {
    /// Cells a second that one Redis carries, how long a call takes, memory of a cell
    Redis,
    /// Eight hosts and a million keys in virtual time: cells a second, and the cost to each host
    Counted,
    /// The same over a real Redis: cells a second, and the cost to each host
    Hosts,
}

/// The processes that this program starts are this program.
#[derive(Debug, Subcommand)]
enum Role {
    /// Becomes another program, which ends with this one
    #[command(hide = true)]
    Launch {
        #[arg(last = true)]
        program: Vec<String>,
    },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(Role::Launch { program }) = &arguments.role {
        return process::launch(program);
    }
    // `cargo test --all-targets` also runs benchmarks; there is nothing to test here.
    report::ended(if arguments.bench { measure(&arguments) } else { Ok(()) })
}

fn measure(arguments: &Arguments) -> io::Result<()> {
    let machine = Machine::look()?;
    println!("{}; {} repetitions", machine.describe(), arguments.reps);
    let wanted = |suite: &Suite| arguments.only.is_empty() || arguments.only.contains(suite);
    let mut rows = Vec::new();
    for suite in Suite::value_variants().iter().filter(|suite| wanted(suite)) {
        let name = suite.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
        eprintln!("fleet: {name}");
        let measured = match suite {
            Suite::Redis => cells::run(&machine, arguments.reps, arguments.seconds),
            Suite::Counted => counted::run(arguments.seconds),
            Suite::Hosts => hosts::run(&machine, arguments.reps, arguments.seconds),
        };
        // A suite that fails becomes a row with the error; the others continue.
        rows.extend(measured.unwrap_or_else(|error| vec![Row::skipped(&name, &error.to_string())]));
    }
    report::print(&rows);
    arguments.json.as_ref().map_or(Ok(()), |path| report::save(&rows, path))
}
