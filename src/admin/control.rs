//! The interface through which operators read and change the daemon outside the engine; the daemon's start code implements it.

use std::path::PathBuf;

use super::fleet::FleetRecord;
use crate::clock::Timestamp;
use crate::engine::FleetChange;

/// The rest of the daemon, as far as operators may look into it or tell it something. Called on the thread that answers
/// operators, so readers must not block; verbs may.
pub trait DaemonControl: Send + Sync {
    /// Returns the rules in force and the result of the last load.
    fn rules(&self) -> RulesRecord;

    /// The socket that applications ask on.
    fn socket(&self) -> ServedSocket;

    /// Returns the counters of the server.
    fn server(&self) -> ServerCounts;

    /// Returns the state of the snapshots.
    fn state(&self) -> StateRecord;

    /// How this host stands with those that it shares budgets with.
    fn fleet(&self) -> FleetRecord;

    /// The process itself.
    fn process(&self) -> ProcessRecord;

    /// The memory of the whole process that is resident, in bytes; 0: it cannot be read.
    fn resident_bytes(&self) -> u64;

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

/// Counters of the server; their names come from fixed lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerCounts {
    /// How many are connected.
    pub connections: u64,
    /// Rejected connections, by the limit that was reached.
    pub refused: Vec<(&'static str, u64)>,
    /// Idle surplus connections that were ended so that others could be let in.
    pub reclaimed: u64,
    /// Frames answered by an ERROR, by its code.
    pub errors: Vec<(&'static str, u64)>,
    /// Decisions that clients made without the daemon, by client language and reason.
    pub missed: Vec<(&'static str, &'static str, u64)>,
    /// Requests decided without the remote check that their rules require, by the limit that was reached.
    pub not_parked: Vec<(&'static str, u64)>,
    /// How often the wall clock was set back.
    pub clock_steps_back: u64,
    /// Domains about which several users ask, with some of them.
    pub shared_domains: Vec<(Box<str>, Vec<u32>)>,
}

impl ServerCounts {
    /// Returns the decisions that clients made without the daemon; saturates, as clients may report any number.
    pub(super) fn missed_in_all(&self) -> u64 {
        self.missed.iter().fold(0, |sum, (.., count)| sum.saturating_add(*count))
    }
}

/// The log, the helper threads, and whether the daemon has left a crash loop.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessRecord {
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

/// How keeping the tables over a restart goes. All zero where nothing is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateRecord {
    /// Files written.
    pub writes: u64,
    /// Writings that failed.
    pub failures: u64,
    /// When the last one was written, in seconds of Unix time; 0: none was.
    pub written_unix_seconds: u64,
    /// How large it is, in bytes.
    pub bytes: u64,
    /// Files that were of no use at the start, by their name.
    pub bad: [(&'static str, u64); 5],
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
