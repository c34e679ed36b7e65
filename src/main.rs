//! Reads arguments and runs the command: `cli` wires the rooms.

use std::process::ExitCode;

fn main() -> ExitCode {
    tidegate::cli::run()
}
