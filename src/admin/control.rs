//! The interface through which operators read and change the daemon outside the engine; the daemon's start code implements it.

use std::path::PathBuf;

use crate::clock::Timestamp;
use crate::engine::FleetChange;

/// The parts of the daemon that only its start code knows. Called on the thread that answers
/// operators, so readers must not block; verbs may.
pub trait DaemonControl: Send + Sync {
    /// Returns the rules in force and the result of the last load.
    fn rules(&self) -> RulesRecord;

    /// The process itself.
    fn process(&self) -> ProcessRecord;

    /// Reloads the rules and waits for the result.
    ///
    /// # Errors
    /// A message, if there is no result in time.
    fn reload(&self) -> Result<ReloadResult, String>;

    /// Saves switches and blocks for the next start; they are on disk when this returns.
    ///
    /// # Errors
    /// Why it is not: it holds all the same, until then.
    fn keep(&self) -> Result<(), String>;

    /// Changes the fleet overrides, and waits until the change is in Redis. Whether it changes anything.
    ///
    /// # Errors
    /// Why they are not changed, or that this is not known.
    fn change_fleet_overrides(&self, change: FleetChange) -> Result<bool, String>;

    /// Returns the reasons, besides the rules, why this host is not ready, each with a fix; empty if it is ready.
    fn unready(&self) -> Vec<String>;
}

/// The socket that this daemon serves, so that a command can tell it from another daemon's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServedSocket {
    /// Its path.
    pub path: PathBuf,
    /// Device and inode of the socket file; `None` if there was none.
    pub identity: Option<(u64, u64)>,
}

impl ServedSocket {
    /// The request header by which a command names the socket whose daemon it means, as [`ServedSocket::token`] has it.
    pub const HEADER: &str = "tidegate-socket";

    /// Device and inode as the header has them.
    #[must_use]
    pub fn token((device, inode): (u64, u64)) -> String {
        format!("{device}:{inode}")
    }
}

/// Memory, the log, the helper threads, and whether the daemon has left a crash loop.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessRecord {
    /// The memory of the whole process that is resident, in bytes; 0: it cannot be read.
    pub resident_bytes: u64,
    /// Lines of the log that were dropped, because standard error did not take them.
    pub log_lines_dropped: u64,
    /// The helper threads.
    pub threads: Vec<ThreadRecord>,
    /// Whether the rules are those of before a crash loop, and the state that it left is set aside.
    pub is_after_crash_loop: bool,
}

/// A helper thread: one that decisions do not need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadRecord {
    /// Its name.
    pub name: &'static str,
    /// Whether it runs.
    pub is_running: bool,
    /// How often it was run again after a panic.
    pub restarts: u64,
}

/// The rules in force and how the last reading went.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RulesRecord {
    /// Where they are read from.
    pub path: String,
    /// When everything that was written was last put in force.
    pub last_success: Option<Timestamp>,
    /// When something last had to be left out.
    pub last_failure: Option<Timestamp>,
    /// Whether the last reading was a success.
    pub is_good: bool,
    /// The domains in force.
    pub domains: Vec<DomainInForce>,
}

/// One domain in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainInForce {
    /// Its name.
    pub name: Box<str>,
    /// The fingerprint of its files, in hexadecimal digits.
    pub sha: String,
}

/// Result of a reload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReloadResult {
    /// Changes, one line each.
    pub changes: Vec<String>,
    /// Why something had to be left out; empty: all that was written is in force.
    pub problems: Vec<String>,
}
