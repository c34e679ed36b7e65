//! Runs a command to its end and forwards signals to it. It asks no daemon.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};

use super::signals::CaughtSignals;
use crate::daemon::log;
use crate::protocol::WorkOutcome;

#[derive(Clone, Copy, Debug)]
pub(super) enum CommandEnd {
    /// It ran, and ended with this status.
    With(ExitStatus),
    /// This signal arrived before the start.
    Before(i32),
    /// It could not be started; the exit code is that of a shell.
    Never(u8),
}

impl CommandEnd {
    /// Returns the exit code that a shell would return.
    pub(super) fn exit_code(self) -> ExitCode {
        let number = match self {
            CommandEnd::With(status) => status.code().or(status.signal().map(|signal| SIGNALLED + signal)),
            CommandEnd::Before(signal) => Some(SIGNALLED + signal),
            CommandEnd::Never(code) => return ExitCode::from(code),
        };
        number.and_then(|number| u8::try_from(number).ok()).map_or(ExitCode::FAILURE, ExitCode::from)
    }

    /// Returns the outcome to report to the daemon.
    pub(super) fn outcome(&self) -> WorkOutcome {
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
pub(super) struct Runner {
    runtime: Runtime,
    passed_on: CaughtSignals,
    children: Signals,
}

impl Runner {
    /// Starts to catch signals. Fails if the signal handlers cannot be installed.
    pub(super) fn new() -> io::Result<Runner> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (passed_on, children) = {
            let _entered = runtime.enter();
            (CaughtSignals::new(&PASSED_ON)?, signal(SignalKind::child())?)
        };
        Ok(Runner { runtime, passed_on, children })
    }

    /// Runs a command after a wait, and waits for its end.
    pub(super) fn run(self, command: &[OsString], wait: Duration) -> io::Result<CommandEnd> {
        let Runner { runtime, passed_on, children } = self;
        runtime.block_on(run(command, wait, passed_on, children))
    }
}

async fn run(
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
