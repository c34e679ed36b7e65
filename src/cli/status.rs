//! `tidegate status`: shows the state of the daemon on one page. It changes nothing.

pub(super) mod page;

use std::io::{self, Write};
use std::process::ExitCode;

use serde_json::Value;

use super::admin_client::AdminArgs;
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
    let client = args.admin.client();
    let shown = match args.json {
        true => client.get_json("/status").map(|status: Value| format!("{status:#}\n")),
        false => client.get_json("/status").map(|status| page::text(&status)),
    };
    match shown {
        Ok(text) => write!(out, "{text}").map(|()| ExitCode::SUCCESS),
        Err(failure) => {
            log::plainly(&format!("tidegate: {failure}"));
            Ok(ExitCode::FAILURE)
        }
    }
}
