//! `tidegate status`: shows the state of the daemon on one page. It changes nothing.

pub(super) mod page;

use std::io::Write;
use std::process::ExitCode;

use serde_json::Value;

use super::CliResult;
use super::admin_client::AdminArgs;

/// Shows how the daemon is, on one page
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = HELP)]
pub(super) struct Args {
    /// The whole of it, as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    admin: AdminArgs,
}

const HELP: &str = "\
Callers are shown by digests; a rule's `show_keys` says which of its attributes may be shown as text.

Exit codes: 0 shown; 1 the daemon does not answer, with what to do; 2 wrong usage.";

pub(super) fn run(args: &Args, out: &mut dyn Write) -> CliResult {
    let client = args.admin.client();
    match args.json {
        true => writeln!(out, "{:#}", client.get_json::<Value>("/status")?)?,
        false => write!(out, "{}", page::text(&client.get_json("/status")?))?,
    }
    Ok(ExitCode::SUCCESS)
}
