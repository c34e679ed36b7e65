//! Why a reading cannot be had, and what would mend it. Told to people; nothing is decided by it.

use std::io;
use std::path::Path;

/// Why there is no reading. Two that are equal are told once.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unreadable {
    #[error(
        "nobody listens on TCP port {port} in this network namespace: start the application, mend `listen`, or let \
         an application in another namespace push the reading"
    )]
    NoTcpListener { port: u16 },
    #[error("there is no socket at {path}: start the application or mend `listen`")]
    NoSocketFile { path: Box<str> },
    #[error(
        "nobody in this network namespace listens on {path}: start the application, or let an application in \
         another namespace push the reading"
    )]
    NoUnixListener { path: Box<str> },
    #[error(
        "the kernel does not say what waits at sockets ({cause}): allow the daemon AF_NETLINK \
         (RestrictAddressFamilies= of its unit) and load the modules tcp_diag, inet_diag and unix_diag"
    )]
    SockDiag { cause: Box<str> },
    #[error("{path}: {cause}: boot a kernel of 4.20 or later with psi=1")]
    NoPressure { path: Box<Path>, cause: Box<str> },
    #[error(
        "no process of the pool is known: the application says HELLO from this host's space of process numbers"
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
    #[error("the CPU time of the machine is not told: mount /proc")]
    NoCpuTime,
    #[error("{path}: {cause}: let the daemon read it")]
    File { path: Box<Path>, cause: Box<str> },
    #[error("{path}: it does not say what such a file says: report it with the version of the kernel")]
    Nonsense { path: Box<Path> },
}

impl Unreadable {
    /// A file that cannot be opened or read.
    pub(super) fn file(path: &Path, error: &io::Error) -> Unreadable {
        Unreadable::File { path: path.into(), cause: error.to_string().into() }
    }

    /// What the kernel says to a question about sockets.
    pub(super) fn sock_diag(error: &io::Error) -> Unreadable {
        Unreadable::SockDiag { cause: error.to_string().into() }
    }
}
