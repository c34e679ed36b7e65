//! `tidegate healthcheck`: whether the daemon is ready, as an exit code for containers.

use std::io::Write;
use std::process::ExitCode;

use super::CliResult;
use super::admin_client::AdminArgs;

/// Asks whether the daemon is ready for work, for the health check of a container
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = HELP)]
pub(super) struct Args {
    /// Ask only whether it lives, whatever its rules say
    #[arg(long)]
    live: bool,
    #[command(flatten)]
    admin: AdminArgs,
}

const HELP: &str = "\
Example:
  HEALTHCHECK CMD [\"tidegate\", \"healthcheck\"]

Exit codes: 0 it is; 1 it is not, with the reasons; 2 wrong usage.";

pub(super) fn run(args: &Args, out: &mut dyn Write) -> CliResult {
    let path = if args.live { "/healthz" } else { "/readyz" };
    let answered = args.admin.client().get(path)?;
    out.write_all(answered.body.as_bytes())?;
    Ok(if answered.status == 200 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
