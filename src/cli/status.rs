//! `tidegate status`: shows the state of the daemon on one page. It changes nothing.

pub(super) mod page;

use std::io::{self, Write};
use std::process::ExitCode;

use serde_json::Value;

use super::admin_client::{AdminArgs, AdminFailure};
use crate::daemon::log;

/// Shows how the daemon is, on one page
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// The whole of it, as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    admin: AdminArgs,
}

const HELP: &str = "\
Callers are shown by digests; a rule's `show_keys` says which of its attributes may be shown as text.

Exit codes: 0 shown; 1 the daemon does not answer, with what to do; 2 wrong usage.";

/// Runs the command.
///
/// # Errors
/// The output cannot be written.
pub fn run(args: &Args, out: &mut dyn Write) -> io::Result<ExitCode> {
    let status = match look(&args.admin) {
        Ok(status) => status,
        Err(failure) => {
            log::plainly(&format!("tidegate: {failure}"));
            return Ok(ExitCode::FAILURE);
        }
    };
    if args.json {
        writeln!(out, "{status:#}")?;
    } else {
        write!(out, "{}", page::text(&status))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Fetches the status from the daemon.
pub(super) fn look(admin: &AdminArgs) -> Result<Value, AdminFailure> {
    admin.client().get_json("/status")
}
