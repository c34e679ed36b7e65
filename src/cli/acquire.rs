//! `tidegate acquire`: runs a shell command under a lease, by default also if the daemon fails.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};

use super::ask::{
    EX_TEMPFAIL, EX_UNAVAILABLE, OnFailure, RequestArgs, is_disabled, not_limited, print_text, refused,
};
use super::client::{Client, ClientFailure, retry_unread};
use super::signals::CaughtSignals;
use super::{CliError, CliResult, usage};
use crate::daemon::log;
use crate::protocol::{Code, DescriptorList, HelloFrame, RequestFrame, Verdict, WireReply, WorkOutcome};
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
        Err(ClientFailure::Refused { code, message }) => args.error(code, &message)?,
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
        retry_unread(|| holder.ask(request, descriptors, |reply| self.leave(reply)))
    }

    fn leave(&self, reply: &WireReply<'_>) -> Result<Leave, CliError> {
        match reply {
            WireReply::Decision(decision) => match decision.verdict {
                Verdict::Allow => {
                    if let Some(text) = not_limited(decision) {
                        log::plainly(&format!("tidegate: {text}"));
                    }
                    Ok(Leave::Run { lease: decision.lease, wait: Duration::ZERO })
                }
                Verdict::Wait => {
                    let wait = Duration::from_micros(decision.retry_us.unwrap_or_default());
                    Ok(Leave::Run { lease: decision.lease, wait })
                }
                Verdict::Limit | Verdict::Shed | Verdict::Deny => {
                    print_text(decision, &mut io::stderr())?;
                    Ok(Leave::Refused(ExitCode::from(EX_TEMPFAIL)))
                }
            },
            WireReply::Error { code, message, .. } => self.error(*code, message),
            _ => Ok(self.without_answer("a reply to another request")),
        }
    }

    /// Returns the outcome of an ERROR, as clients decide.
    fn error(&self, code: Code, message: &str) -> Result<Leave, CliError> {
        match code {
            Code::Invalid => Err(usage(message)),
            code if code.refuses() => {
                log::plainly(&refused(code, message));
                Ok(Leave::Refused(ExitCode::from(EX_TEMPFAIL)))
            }
            code => Ok(self.without_answer(&format!("{code}: {message}"))),
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

#[derive(Clone, Copy, Debug)]
enum CommandEnd {
    /// It ran, and ended with this status.
    With(ExitStatus),
    /// This signal arrived before the start.
    Before(i32),
    /// It could not be started; the exit code is that of a shell.
    Never(u8),
}

impl CommandEnd {
    /// Returns the exit code that a shell would return.
    fn exit_code(self) -> ExitCode {
        let number = match self {
            CommandEnd::With(status) => status.code().or(status.signal().map(|signal| SIGNALLED + signal)),
            CommandEnd::Before(signal) => Some(SIGNALLED + signal),
            CommandEnd::Never(code) => return ExitCode::from(code),
        };
        number.and_then(|number| u8::try_from(number).ok()).map_or(ExitCode::FAILURE, ExitCode::from)
    }

    fn outcome(&self) -> WorkOutcome {
        match self {
            CommandEnd::With(status) if status.success() => WorkOutcome::Ok,
            CommandEnd::With(status) if status.code().is_some() => WorkOutcome::Error,
            CommandEnd::With(_) | CommandEnd::Before(_) | CommandEnd::Never(_) => WorkOutcome::Dropped,
        }
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
        let Runner { runtime, passed_on, children } = self;
        runtime.block_on(run_command(command, wait, passed_on, children))
    }
}

async fn run_command(
    command: &[OsString],
    wait: Duration,
    mut passed_on: CaughtSignals,
    mut children: Signals,
) -> io::Result<CommandEnd> {
    tokio::select! {
        biased;
        number = passed_on.next() => return Ok(CommandEnd::Before(number)),
        () = tokio::time::sleep(wait) => {}
    }
    let mut child = match start(command) {
        Ok(child) => child,
        Err(error) => {
            let name = command.first().map(|name| name.to_string_lossy()).unwrap_or_default();
            log::plainly(&format!("tidegate: {name}: {error}"));
            let is_missing = error.kind() == io::ErrorKind::NotFound;
            return Ok(CommandEnd::Never(if is_missing { NOT_FOUND } else { NOT_EXECUTABLE }));
        }
    };
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(CommandEnd::With(status));
        }
        tokio::select! {
            _ = children.recv() => {}
            number = passed_on.next() => pass_on(&child, number),
        }
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
const NOT_EXECUTABLE: u8 = 126;

/// Exit code of shells for a missing command.
const NOT_FOUND: u8 = 127;

/// A session of this process over successive connections.
#[derive(Debug)]
struct KeeperSession {
    socket: PathBuf,
    patience: Duration,
    pool: String,
    session: [u8; 16],
    connection: u64,
    client: Option<Client>,
}

impl KeeperSession {
    /// Makes a session; the first request connects it. Fails if the kernel has no random bytes for its id.
    fn new(socket: PathBuf, patience: Duration, pool: &str) -> io::Result<KeeperSession> {
        let session = sys::random_bytes()?;
        Ok(KeeperSession { socket, patience, pool: pool.to_owned(), session, connection: 0, client: None })
    }

    /// Sends a request. A connection that failed is not used again.
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
        let ask = || {
            self.ask(&request, &DescriptorList::new(), |reply| match reply {
                WireReply::Done { ok, .. } => Ok(*ok),
                WireReply::Error { code, message, .. } => {
                    Err(ClientFailure::Refused { code: *code, message: (*message).to_owned() })
                }
                _ => Ok(false),
            })
        };
        let done = retry_unread(ask)?;
        if done.is_err() {
            // After an error reply, the daemon may close the connection.
            self.client = None;
        }
        done
    }
}

#[derive(Debug)]
struct LeaseKeeper {
    end: Sender<WorkOutcome>,
    thread: JoinHandle<()>,
}

impl LeaseKeeper {
    fn start(holder: KeeperSession, lease: u64) -> io::Result<LeaseKeeper> {
        let (end, ended) = channel();
        let thread =
            std::thread::Builder::new().name("lease".into()).spawn(move || keep(holder, lease, &ended))?;
        Ok(LeaseKeeper { end, thread })
    }

    /// Releases the lease and waits until the daemon has replied or failed.
    fn release(self, outcome: WorkOutcome) {
        // The thread may have exited: then there is nothing to release.
        let _ = self.end.send(outcome);
        let _ = self.thread.join();
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
