//! `tidegate acquire`: runs a shell command under a lease, by default also if the daemon fails.

use std::ffi::OsString;
use std::io;
use std::process::ExitCode;
use std::time::Duration;

use super::ask::{EX_TEMPFAIL, EX_UNAVAILABLE, OnFailure, RequestArgs, is_disabled, print_text};
use super::client::{ClientFailure, heard};
use super::command::{CommandEnd, Runner};
use super::lease_keeper::{KeeperSession, LeaseKeeper};
use super::{CliError, CliResult, usage};
use crate::daemon::log;
use crate::protocol::{Code, DescriptorList, HelloFrame, RequestFrame, Verdict, WireReply, WorkOutcome};

/// Runs a command under a lease: as long as it runs it is one of the pieces of work that the rules count
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    request: RequestArgs,
    /// The command to run, and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
    /// The pool whose work it is
    #[arg(long, value_name = "NAME", default_value = HelloFrame::POOL)]
    pool: String,
}

const EXAMPLES: &str = "\
Examples:
  tidegate acquire jobs user=\"$USER\" -- make -j4 all
  tidegate acquire mail to=\"$TO\" --pool mailers -- sendmail \"$TO\"

The lease is renewed as long as the command runs, and released when it ends: `ok` with exit code 0, else `error`,
`dropped` when a signal ended it. Where a rule has work wait for its turn, the command is started then. SIGINT, SIGTERM,
SIGHUP and SIGQUIT are passed on.

Exit codes: that of the command, 128 and the number of the signal that ended it, 126 or 127 when it cannot be
started; 75 refused, try again later; 69 no answer, with --on-failure refuse; 2 wrong usage. Without an answer the
command is run, and standard error says so.";

/// Whether the command runs.
enum Leave {
    /// Run after a wait, under a lease if there is one.
    Run { lease: Option<u64>, wait: Duration },
    /// Not run.
    Refused(ExitCode),
}

/// Runs the command. Fails if the runtime, or waiting for the command, fails.
pub(super) fn run(args: &Args) -> CliResult {
    let descriptors = args.request.descriptors()?;
    let runner = Runner::new()?;
    if is_disabled() {
        log::plainly("tidegate: allow, without an answer: TIDEGATE_DISABLE=1");
        return Ok(runner.run(&args.command, Duration::ZERO)?.exit_code());
    }
    let mut holder = KeeperSession::new(args.request.socket(), args.request.timeout, &args.pool)?;
    let leave = match args.ask(&mut holder, &descriptors) {
        Ok(leave) => leave?,
        Err(ClientFailure::TooLarge(error)) => return Err(usage(error)),
        Err(ClientFailure::Refused { code: Code::Invalid, message }) => return Err(usage(message)),
        Err(failure) => args.without_answer(&failure.to_string()),
    };
    let (lease, wait) = match leave {
        Leave::Run { lease, wait } => (lease, wait),
        Leave::Refused(code) => return Ok(code),
    };
    let keeper = lease.map(|lease| LeaseKeeper::start(holder, lease)).transpose()?;
    let ended = runner.run(&args.command, wait);
    if let Some(keeper) = keeper {
        keeper.release(ended.as_ref().map_or(WorkOutcome::Dropped, CommandEnd::outcome));
    }
    Ok(ended?.exit_code())
}

impl Args {
    fn ask(
        &self,
        holder: &mut KeeperSession,
        descriptors: &DescriptorList<'_>,
    ) -> Result<Result<Leave, CliError>, ClientFailure> {
        let request = |id| RequestFrame::Acquire(self.request.check(id));
        heard(|| holder.ask(request, descriptors, |reply| self.leave(reply)))
    }

    fn leave(&self, reply: &WireReply<'_>) -> Result<Leave, CliError> {
        match reply {
            WireReply::Decision(decision) => match decision.verdict {
                Verdict::Allow => Ok(Leave::Run { lease: decision.lease, wait: Duration::ZERO }),
                Verdict::Wait => {
                    let wait = Duration::from_micros(decision.retry_us.unwrap_or_default());
                    Ok(Leave::Run { lease: decision.lease, wait })
                }
                Verdict::Limit | Verdict::Shed | Verdict::Deny => {
                    print_text(decision, &mut io::stderr())?;
                    Ok(Leave::Refused(ExitCode::from(EX_TEMPFAIL)))
                }
            },
            WireReply::Error { code: Code::Invalid, message, .. } => Err(usage(message)),
            WireReply::Error { code, message, .. } => Ok(self.without_answer(&format!("{code}: {message}"))),
            _ => Ok(self.without_answer("an answer to another question")),
        }
    }

    /// Returns the outcome without an answer from the daemon, as `--on-failure` chooses.
    fn without_answer(&self, reason: &str) -> Leave {
        let (verdict, leave) = match self.request.on_failure {
            OnFailure::Allow => ("allow", Leave::Run { lease: None, wait: Duration::ZERO }),
            OnFailure::Refuse => ("refuse", Leave::Refused(ExitCode::from(EX_UNAVAILABLE))),
        };
        log::plainly(&format!("tidegate: {verdict}, without an answer: {reason}"));
        leave
    }
}
