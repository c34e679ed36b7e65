//! THE MACHINE: samples accept queues, pressure and CPU time as signals. This room decides nothing, and no decision waits
//! for it.

mod accept_queue;
mod control_group;
mod cpu_quota;
mod machine;
pub mod netlink;
mod pressure;
mod sensors;
mod usage_window;

pub use machine::{read_machine_marks, read_resident_bytes};
pub use sensors::{SignalSampler, SignalSensors};

pub use crate::engine::{HostSignals, Listen, SignalSource};

use std::io;
use std::path::Path;

use crate::clock::Now;
use crate::engine::Engine;

/// The receiver of samples, which also selects the signals to sample.
pub trait SignalSink: Send + Sync {
    /// Returns the signals to sample now.
    fn wanted_signals(&self) -> Vec<HostSignals>;

    /// Takes a sample: waiting connections for an accept queue, else thousandths; `None` if it cannot be read.
    fn add_sample(&self, pool: &str, signal: &str, reading: Option<u32>, now: Now);
}

impl SignalSink for Engine {
    fn wanted_signals(&self) -> Vec<HostSignals> {
        self.required_host_signals()
    }

    fn add_sample(&self, pool: &str, signal: &str, reading: Option<u32>, now: Now) {
        Engine::record_host_signal(self, pool, signal, reading, now);
    }
}

/// Why a signal cannot be sampled. Repeated equal errors are logged once.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum SignalError {
    #[error(
        "no process listens on TCP port {port} in this network namespace: start the application, correct `listen`, \
         or let an application in another namespace push the signal"
    )]
    NoTcpListener { port: u16 },
    #[error("there is no socket at {path}: start the application or correct `listen`")]
    NoSocketFile { path: Box<str> },
    #[error(
        "no process in this network namespace listens on {path}: start the application, or let an application in \
         another namespace push the signal"
    )]
    NoUnixListener { path: Box<str> },
    #[error(
        "the kernel does not report the accept queues of sockets ({cause}): allow the daemon AF_NETLINK \
         (RestrictAddressFamilies= of its unit) and load the modules tcp_diag, inet_diag and unix_diag"
    )]
    SockDiag { cause: Box<str> },
    #[error("{path}: {cause}: boot a kernel of 4.20 or later with psi=1")]
    NoPressure { path: Box<Path>, cause: Box<str> },
    #[error(
        "no process of the pool is known: the application must send HELLO from the PID namespace of this host"
    )]
    NoProcess,
    #[error(
        "the control group of process {pid} ({group}) is not among those mounted here: run the daemon on the host"
    )]
    GroupElsewhere { pid: u32, group: Box<str> },
    #[error(
        "no hierarchy of control groups that counts CPU time is mounted: mount cgroup2 at /sys/fs/cgroup"
    )]
    NoCpuGroups,
    #[error("the CPU time of the machine cannot be read: mount /proc")]
    NoCpuTime,
    #[error("{path}: {cause}: let the daemon read it")]
    File { path: Box<Path>, cause: Box<str> },
    #[error("{path}: unexpected content: report it with the version of the kernel")]
    Malformed { path: Box<Path> },
}

impl SignalError {
    /// Wraps the error of a file that cannot be opened or read.
    pub(super) fn from_file(path: &Path, error: &io::Error) -> SignalError {
        SignalError::File { path: path.into(), cause: error.to_string().into() }
    }
}
