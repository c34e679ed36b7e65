//! `tidegate reload`: makes the daemon read its rules again, and prints the changes.

use std::io::Write;
use std::process::ExitCode;

use serde_json::{Value, json};

use super::CliResult;
use super::admin_client::AdminArgs;

/// Has the daemon read its rules again, as SIGHUP does, and prints the result
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = HELP)]
pub(super) struct Args {
    #[command(flatten)]
    admin: AdminArgs,
}

const HELP: &str = "\
Exit codes: 0 all that is written is in force; 1 something is not, with the reason; 2 wrong usage.";

pub(super) fn run(args: &Args, out: &mut dyn Write) -> CliResult {
    let done: Value = args.admin.client().post("/reload", &json!({}))?;
    let changes = done.get("changes").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    if changes.is_empty() {
        writeln!(out, "all that is written is in force: nothing changed since the files were last read")?;
    }
    for change in changes.iter().filter_map(Value::as_str) {
        writeln!(out, "{change}")?;
    }
    Ok(ExitCode::SUCCESS)
}
