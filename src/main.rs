//! Runs the command line.

use std::process::ExitCode;

fn main() -> ExitCode {
    tidegate::cli::run()
}
