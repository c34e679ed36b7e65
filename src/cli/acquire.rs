//! `tidegate acquire`: runs a shell command under a lease, by default also if the daemon fails.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};

use super::ask::{EX_TEMPFAIL, OTHER_REPLY, RequestArgs, Undecided, disabled, not_limited, print_text};
use super::client::{Client, ClientFailure, retry_unread};
use super::signals::CaughtSignals;
use super::{CliError, CliResult};
use crate::daemon::log;
use crate::protocol::{DescriptorList, HelloFrame, Op, RequestFrame, Verdict, WireReply, WorkOutcome};
use crate::sys;

/// Runs a command under a lease: concurrency rules count it until it ends
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

The lease is renewed as long as the command runs, and released when it ends: `ok` with exit code 0, else `error`, \
`dropped` when a signal ended it. Where a rule has work wait for its turn, the command is started then. SIGINT, SIGTERM, \
SIGHUP and SIGQUIT are passed on.

Exit codes: that of the command, 128 and the number of the signal that ended it, 126 or 127 when it cannot be \
started; 75 refused, try again later; 69 no answer, with --on-failure refuse; 2 wrong usage. Without an answer the \
command is run, and standard error says so.";

enum Leave {
    /// Run after a wait, under a lease if there is one.
    Run { lease: Option<u64>, wait: Duration },
    /// Not run; the exit code.
    Refused(u8),
}

/// Runs the command. Fails if the runtime, or waiting for the command, fails.
pub(super) fn run(args: &Args) -> CliResult {
    let descriptors = args.request.subject.descriptors()?;
    let runner = Runner::new()?;
    let mut holder = KeeperSession {
        socket: args.request.socket(),
        patience: args.request.timeout,
        pool: args.pool.clone(),
        session: sys::random_bytes()?,
        connection: 0,
        client: None,
    };
    let leave = match disabled() {
        Some(undecided) => Leave::without_decision(&undecided),
        None => args.ask(&mut holder, &descriptors)?,
    };
    let (lease, wait) = match leave {
        Leave::Run { lease, wait } => (lease, wait),
        Leave::Refused(code) => return Ok(ExitCode::from(code)),
    };
    // The end of the scope waits until the daemon has replied to the release, or failed.
    std::thread::scope(|scope| {
        let (end, ended) = channel();
        if let Some(lease) = lease {
            let thread = std::thread::Builder::new().name("lease".into());
            thread.spawn_scoped(scope, move || keep(holder, lease, &ended))?;
        }
        let command = runner.run(&args.command, wait);
        // The thread may have exited: then there is nothing to release.
        let _ = end.send(command.as_ref().map_or(WorkOutcome::Dropped, |end| end.outcome));
        Ok(u8::try_from(command?.exit_code).map_or(ExitCode::FAILURE, ExitCode::from))
    })
}

impl Args {
    fn ask(&self, holder: &mut KeeperSession, descriptors: &DescriptorList<'_>) -> Result<Leave, CliError> {
        let request = |id| RequestFrame::Check(Op::Acquire, self.request.check(id));
        let answered = retry_unread(|| holder.ask(request, descriptors, |reply| self.leave(reply)));
        match answered {
            Ok(leave) => Ok(leave),
            Err(failure) => Ok(Leave::without_decision(&self.request.undecided(failure)?)),
        }
    }

    fn leave(&self, reply: &WireReply<'_>) -> Leave {
        let WireReply::Decision(decision) = reply else {
            return Leave::without_decision(&self.request.on_failure.undecided(OTHER_REPLY.to_owned()));
        };
        let lease = decision.lease;
        match decision.verdict {
            Verdict::Allow => {
                if let Some(text) = not_limited(decision) {
                    log::plainly(&format!("tidegate: {text}"));
                }
                Leave::Run { lease, wait: Duration::ZERO }
            }
            Verdict::Wait => {
                let wait = Duration::from_micros(decision.retry_us.unwrap_or_default());
                Leave::Run { lease, wait }
            }
            Verdict::Limit | Verdict::Shed | Verdict::Deny => {
                let mut text = Vec::new();
                // Refused all the same if it cannot be printed.
                let _ = print_text(decision, &mut text);
                log::plainly(String::from_utf8_lossy(&text).trim_end());
                Leave::Refused(EX_TEMPFAIL)
            }
        }
    }
}

impl Leave {
    fn without_decision(undecided: &Undecided) -> Leave {
        log::plainly(&undecided.to_string());
        match undecided.code {
            0 => Leave::Run { lease: None, wait: Duration::ZERO },
            code => Leave::Refused(code),
        }
    }
}

struct CommandEnd {
    /// As a shell would return it.
    exit_code: i32,
    outcome: WorkOutcome,
}

impl CommandEnd {
    fn dropped(exit_code: i32) -> CommandEnd {
        CommandEnd { exit_code, outcome: WorkOutcome::Dropped }
    }
}

/// Runs one command and forwards signals to it. Create it before acquiring a lease: from then on no signal
/// ends this process, which must release the lease.
#[derive(Debug)]
struct Runner {
    runtime: Runtime,
    passed_on: CaughtSignals,
    children: Signals,
}

impl Runner {
    /// Starts to catch signals. Fails if the signal handlers cannot be installed.
    fn new() -> io::Result<Runner> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (passed_on, children) = {
            let _entered = runtime.enter();
            (CaughtSignals::new(&PASSED_ON)?, signal(SignalKind::child())?)
        };
        Ok(Runner { runtime, passed_on, children })
    }

    fn run(self, command: &[OsString], wait: Duration) -> io::Result<CommandEnd> {
        let Runner { runtime, mut passed_on, mut children } = self;
        runtime.block_on(async {
            tokio::select! {
                biased;
                number = passed_on.next() => return Ok(CommandEnd::dropped(SIGNALLED + number)),
                () = tokio::time::sleep(wait) => {}
            }
            let mut child = match start(command) {
                Ok(child) => child,
                Err(error) => {
                    let name = command.first().map(|name| name.to_string_lossy()).unwrap_or_default();
                    log::plainly(&format!("tidegate: {name}: {error}"));
                    let is_missing = error.kind() == io::ErrorKind::NotFound;
                    return Ok(CommandEnd::dropped(if is_missing { NOT_FOUND } else { NOT_EXECUTABLE }));
                }
            };
            let status = loop {
                if let Some(status) = child.try_wait()? {
                    break status;
                }
                tokio::select! {
                    _ = children.recv() => {}
                    number = passed_on.next() => pass_on(&child, number),
                }
            };
            Ok(match status.code() {
                Some(0) => CommandEnd { exit_code: 0, outcome: WorkOutcome::Ok },
                Some(exit_code) => CommandEnd { exit_code, outcome: WorkOutcome::Error },
                None => CommandEnd::dropped(SIGNALLED + status.signal().unwrap_or_default()),
            })
        })
    }
}

fn start(command: &[OsString]) -> io::Result<Child> {
    let (name, arguments) = command.split_first().ok_or(io::ErrorKind::NotFound)?;
    Command::new(name).args(arguments).spawn()
}

/// Forwards a signal to a command that was not reaped, so its PID was not reused.
fn pass_on(child: &Child, number: i32) {
    if of_terminal(number) {
        return;
    }
    if let Some(signal) = Signal::from_named_raw(number) {
        // It may have exited just now.
        let _ = kill_process(Pid::from_child(child), signal);
    }
}

/// Whether the terminal sent a signal: then the whole foreground process group already has it.
fn of_terminal(number: i32) -> bool {
    let is_key = [libc::SIGINT, libc::SIGQUIT].contains(&number);
    let in_foreground = || {
        let terminal = std::fs::File::open("/dev/tty").ok()?;
        let foreground = rustix::termios::tcgetpgrp(terminal).ok()?;
        Some(foreground == rustix::process::getpgrp())
    };
    is_key && in_foreground() == Some(true)
}

const PASSED_ON: [i32; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];

/// Shells add this to the number of a signal.
const SIGNALLED: i32 = 128;

/// Exit code of shells for a file that cannot be executed.
const NOT_EXECUTABLE: i32 = 126;

/// Exit code of shells for a missing command.
const NOT_FOUND: i32 = 127;

/// A session of this process over successive connections.
#[derive(Debug)]
struct KeeperSession {
    socket: PathBuf,
    patience: Duration,
    pool: String,
    session: [u8; 16],
    connection: u64,
    /// `None`: the next request connects.
    client: Option<Client>,
}

impl KeeperSession {
    /// Sends a request. A connection that failed is not used again; after an ERROR the daemon may close it.
    fn ask<'r, T>(
        &mut self,
        request: impl FnOnce(u64) -> RequestFrame<'r>,
        descriptors: &DescriptorList<'_>,
        look: impl FnOnce(&WireReply<'_>) -> T,
    ) -> Result<T, ClientFailure> {
        let client = self.client()?;
        let request = request(client.next_id());
        let answered = client.ask(&request, descriptors, look);
        if answered.is_err() {
            self.client = None;
        }
        answered
    }

    /// Returns the connection, and connects if there is none.
    fn client(&mut self) -> Result<&mut Client, ClientFailure> {
        let client = match self.client.take() {
            Some(client) => client,
            None => {
                self.connection += 1;
                let hello = HelloFrame {
                    session: Some(self.session),
                    pid: Some(std::process::id()),
                    pool: &self.pool,
                    connection: self.connection,
                    ..HelloFrame::new(0)
                };
                Client::connect_as(&self.socket, self.patience, hello)?
            }
        };
        Ok(self.client.insert(client))
    }

    /// Sends a request that returns DONE. Returns whether it was done.
    fn done(&mut self, request: impl Fn(u64) -> RequestFrame<'static>) -> Result<bool, ClientFailure> {
        retry_unread(|| {
            self.ask(&request, &DescriptorList::new(), |reply| {
                matches!(reply, WireReply::Done { ok: true, .. })
            })
        })
    }
}

fn keep(mut holder: KeeperSession, lease: u64, ended: &Receiver<WorkOutcome>) {
    let mut failing = false;
    loop {
        match ended.recv_timeout(RENEW_EVERY) {
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
            Ok(outcome) => {
                let release = move |id| RequestFrame::Release { id: Some(id), lease, outcome };
                // After a second failure, the lease ends with this process.
                if holder.done(release).is_err() {
                    let _ = holder.done(release);
                }
                return;
            }
        }
        match holder.done(move |id| RequestFrame::Renew { id, lease }) {
            Ok(true) => failing = false,
            Ok(false) => {
                log::plainly("tidegate: the lease has ended at the daemon; the command runs on without it");
                return;
            }
            Err(failure) => {
                if !std::mem::replace(&mut failing, true) {
                    log::plainly(&format!(
                        "tidegate: the lease cannot be renewed, the command runs on: {failure}"
                    ));
                }
            }
        }
    }
}

/// A third of the shortest `expires` of a rule, 1 s: a decision does not contain the duration of its lease.
const RENEW_EVERY: Duration = Duration::from_millis(333);
