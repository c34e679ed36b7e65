//! A server process: started on a CPU, watched from outside, killed when its guard goes.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread::sleep;
use std::time::Duration;

use rustix::process::{Signal, set_parent_process_death_signal};
use tidegate::clock::boot_nanos;

/// A process that this one started. Dropping it kills the process, so none outlives an error; one that outlives a
/// Ctrl-C or a kill of the benchmark itself is ended by the kernel (see [`launch`]).
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
}

impl Process {
    /// Starts a program by way of [`launch`]. It inherits the CPUs of the calling thread.
    pub(crate) fn start(command: &Command) -> io::Result<Process> {
        let mut launcher = Command::new(std::env::current_exe()?);
        launcher.arg("launch").arg("--").arg(command.get_program()).args(command.get_args());
        Process::start_directly(&mut launcher)
    }

    /// Starts a program without the detour, for when the start itself is measured.
    pub(crate) fn start_directly(command: &mut Command) -> io::Result<Process> {
        let program = command.get_program().to_string_lossy().into_owned();
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        Ok(Process { child: child.map_err(|error| io::Error::other(format!("{program}: {error}")))? })
    }

    /// Waits until something at `socket` takes a connection.
    pub(crate) fn wait_for(&mut self, socket: &Path) -> io::Result<()> {
        let give_up = boot_nanos() + START_NANOS_MAX;
        while std::os::unix::net::UnixStream::connect(socket).is_err() {
            if let Some(status) = self.child.try_wait()? {
                return Err(io::Error::other(format!("the server ended at its start: {status}")));
            }
            if boot_nanos() > give_up {
                return Err(io::Error::other(format!("nothing listens on {}", socket.display())));
            }
            sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Nanoseconds of CPU, user and system, that the process's living threads have used: the first number of
    /// `/proc/PID/task/*/schedstat`, the scheduler's own count. (`/proc/PID/stat` counts in steps of 10 ms.)
    pub(crate) fn cpu_nanos(&self) -> io::Result<u64> {
        let mut nanos = 0;
        for task in fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            let schedstat = fs::read_to_string(task?.path().join("schedstat"))?;
            let on_cpu = schedstat.split_whitespace().next().and_then(|first| first.parse::<u64>().ok());
            nanos += on_cpu.ok_or_else(|| io::Error::other("schedstat is not as expected"))?;
        }
        Ok(nanos)
    }

    /// Bytes of memory that the process occupies, from `/proc/PID/smaps_rollup`: exact, where `statm` is not.
    pub(crate) fn resident_bytes(&self) -> io::Result<u64> {
        let rollup = fs::read_to_string(format!("/proc/{}/smaps_rollup", self.child.id()))?;
        let kib = rollup
            .lines()
            .find_map(|line| line.strip_prefix("Rss:"))
            .and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
        kib.map(|kib| kib * 1024).ok_or_else(|| io::Error::other("smaps_rollup is not as expected"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Nothing to do if it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Becomes the program in `arguments`, which the kernel kills when the process that started this one goes.
pub(crate) fn launch(arguments: &[String]) -> ExitCode {
    let Some((program, arguments)) = arguments.split_first() else { return ExitCode::FAILURE };
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        eprintln!("launching {program}: {error}");
    }
    // Returns only when it fails.
    let error = Command::new(program).args(arguments).exec();
    eprintln!("{program}: {error}");
    ExitCode::FAILURE
}

/// Uses up a CPU, as another program on a busy host would; for a minute or two, in case nobody ends it.
pub(crate) fn be_busy() -> ExitCode {
    let end = boot_nanos() + BUSY_NANOS_MAX;
    while boot_nanos() < end {
        for round in 0..1_000_000_u32 {
            std::hint::black_box(round);
        }
    }
    ExitCode::SUCCESS
}

const START_NANOS_MAX: u64 = 10_000_000_000;
const BUSY_NANOS_MAX: u64 = 600_000_000_000;
