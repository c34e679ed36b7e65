//! A server process: started on a CPU, observed from outside, killed when dropped.

use std::fs::{self, File};
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread::sleep;
use std::time::Duration;

use rustix::process::{Signal, set_parent_process_death_signal};
use tidegate::clock::read_boot_nanos;

/// The address of a server.
#[derive(Clone, Debug)]
pub(crate) enum Address {
    Unix(PathBuf),
    Tcp(SocketAddr),
}

impl Address {
    pub(crate) fn connect(&self) -> io::Result<File> {
        Ok(File::from(match self {
            Address::Unix(path) => OwnedFd::from(UnixStream::connect(path)?),
            Address::Tcp(address) => {
                let stream = TcpStream::connect(address)?;
                stream.set_nodelay(true)?;
                OwnedFd::from(stream)
            }
        }))
    }
}

/// A child process, killed when dropped, or by the kernel when this process ends (see [`launch`]).
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
}

impl Process {
    /// Starts a program through [`launch`]. It inherits the CPUs of the calling thread.
    pub(crate) fn start(command: &Command) -> io::Result<Process> {
        let mut launcher = Command::new(std::env::current_exe()?);
        launcher.arg("launch").arg("--").arg(command.get_program()).args(command.get_args());
        launcher.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        Process::start_directly(&mut launcher)
    }

    /// Starts a program directly, to measure the start itself.
    pub(crate) fn start_directly(command: &mut Command) -> io::Result<Process> {
        let program = command.get_program().to_string_lossy().into_owned();
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        Ok(Process { child: child.map_err(|error| io::Error::other(format!("{program}: {error}")))? })
    }

    /// Waits until the address accepts a connection.
    pub(crate) fn wait_for(&mut self, address: &Address) -> io::Result<()> {
        let give_up = read_boot_nanos() + START_NANOS_MAX;
        while address.connect().is_err() {
            if let Some(status) = self.child.try_wait()? {
                return Err(io::Error::other(format!("the server ended at its start: {status}")));
            }
            if read_boot_nanos() > give_up {
                return Err(io::Error::other(format!("nothing listens on {address:?}")));
            }
            sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Nanoseconds of CPU, user and system, of the process's live threads: the first number of their schedstat.
    /// (`/proc/PID/stat` counts in steps of 10 ms.)
    pub(crate) fn cpu_nanos(&self) -> io::Result<u64> {
        let nanos = |thread| schedstat_number(Path::new(&format!("/proc/{thread}/schedstat")), 0);
        self.threads()?.into_iter().map(nanos).sum()
    }

    /// How often its live threads slept, which other load of the machine does not change.
    pub(crate) fn sleeps(&self) -> io::Result<u64> {
        let sleeps = |thread| {
            let status = fs::read_to_string(format!("/proc/{thread}/status"))?;
            let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            let count = line.and_then(|count| count.trim().parse::<u64>().ok());
            count.ok_or_else(|| io::Error::other("/proc/PID/status is not as expected"))
        };
        self.threads()?.into_iter().map(sleeps).sum()
    }

    /// The ids of its threads.
    pub(crate) fn threads(&self) -> io::Result<Vec<i32>> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id()))?;
        let id =
            |task: io::Result<fs::DirEntry>| Ok(task?.file_name().to_string_lossy().parse().unwrap_or(0));
        tasks.map(id).collect()
    }

    /// The schedstat of the first thread whose name begins with `name`.
    pub(crate) fn schedstat_of(&self, name: &str) -> io::Result<PathBuf> {
        for task in fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            let task = task?.path();
            if fs::read_to_string(task.join("comm"))?.starts_with(name) {
                return Ok(task.join("schedstat"));
            }
        }
        Err(io::Error::other(format!("no thread is called {name}")))
    }

    /// Resident bytes of the process from `/proc/PID/smaps_rollup`: exact, unlike `statm`.
    pub(crate) fn resident_bytes(&self) -> io::Result<u64> {
        let rollup = fs::read_to_string(format!("/proc/{}/smaps_rollup", self.child.id()))?;
        let kib = rollup
            .lines()
            .find_map(|line| line.strip_prefix("Rss:"))
            .and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
        kib.map(|kib| kib * 1024).ok_or_else(|| io::Error::other("smaps_rollup is not as expected"))
    }
}

/// Nanoseconds that a thread was runnable without a CPU: the second number of its schedstat.
pub(crate) fn waited_nanos(schedstat: &Path) -> io::Result<u64> {
    schedstat_number(schedstat, 1)
}

fn schedstat_number(schedstat: &Path, place: usize) -> io::Result<u64> {
    let text = fs::read_to_string(schedstat)?;
    let number = text.split_whitespace().nth(place).and_then(|number| number.parse().ok());
    number.ok_or_else(|| io::Error::other("schedstat is not as expected"))
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Executes `arguments` as a program that the kernel kills when its parent exits.
pub(crate) fn launch(arguments: &[String]) -> ExitCode {
    let Some((program, arguments)) = arguments.split_first() else { return ExitCode::FAILURE };
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        eprintln!("launching {program}: {error}");
    }
    // Returns only on failure.
    let error = Command::new(program).args(arguments).exec();
    eprintln!("{program}: {error}");
    ExitCode::FAILURE
}

/// Uses up a CPU, like another program on a busy host; at most 10 min, in case it is not killed.
pub(crate) fn be_busy() -> ExitCode {
    let end = read_boot_nanos() + BUSY_NANOS_MAX;
    while read_boot_nanos() < end {
        for round in 0..1_000_000_u32 {
            std::hint::black_box(round);
        }
    }
    ExitCode::SUCCESS
}

const START_NANOS_MAX: u64 = 10_000_000_000;
const BUSY_NANOS_MAX: u64 = 600_000_000_000;
