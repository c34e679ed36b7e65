//! What operators see of the daemon beside the engine, and tell it: handed in by who starts the daemon.

use std::path::PathBuf;

use super::fleet::FleetRecord;
use crate::clock::Timestamp;
use crate::engine::FleetChange;

/// The rest of the daemon, as far as operators may look into it or tell it something. Called on the thread that answers
/// operators, so what only looks must not wait; a verb may.
pub trait Control: Send + Sync {
    /// What is in force, and how the last reading went.
    fn rules(&self) -> RulesRecord;

    /// The socket that applications ask on.
    fn socket(&self) -> ServedSocket;

    /// What the server counts.
    fn server(&self) -> ServerCounts;

    /// What is kept over a restart.
    fn state(&self) -> StateRecord;

    /// How this host stands with those that it shares budgets with.
    fn fleet(&self) -> FleetRecord;

    /// The process itself.
    fn process(&self) -> ProcessRecord;

    /// The memory of the whole process that is resident, in bytes; 0: it cannot be read.
    fn resident_bytes(&self) -> u64;

    /// Has the rules read again and waits for what comes of it.
    ///
    /// # Errors
    /// Nothing came of it in time: what to say of that.
    fn reload(&self) -> Result<Reloaded, String>;

    /// Has what holds over the rules kept over a restart, on the disk before this returns.
    ///
    /// # Errors
    /// Why it is not: it holds all the same, until then.
    fn keep(&self) -> Result<(), String>;

    /// Changes the fleet overrides, and waits until the change is in Redis. Whether it changes anything.
    ///
    /// # Errors
    /// Why they are not changed, or that this is not known.
    fn change_fleet_overrides(&self, change: FleetChange) -> Result<bool, String>;

    /// Why work should not be sent here yet, beside the rules; empty: nothing is wrong. Each says what and how to mend it.
    fn unready(&self) -> Vec<String>;
}

/// The socket that this daemon serves, so that a command can tell it from another daemon's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServedSocket {
    /// Its path.
    pub path: PathBuf,
    /// Device and inode of what the daemon found or put there; `None`: nothing was there.
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

/// What the server counts, by names from fixed lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerCounts {
    /// How many are connected.
    pub connections: u64,
    /// Connections that were not let in, by what was full.
    pub refused: Vec<(&'static str, u64)>,
    /// Idle surplus connections that were ended so that others could be let in.
    pub reclaimed: u64,
    /// Frames answered by an ERROR, by its code.
    pub errors: Vec<(&'static str, u64)>,
    /// Decisions that clients made alone, by what the client is written in, and by its reason.
    pub missed: Vec<(&'static str, &'static str, u64)>,
    /// Requests that were judged without waiting for the call that their rules ask for, by what was full.
    pub not_parked: Vec<(&'static str, u64)>,
    /// How often the wall clock was set back.
    pub clock_steps_back: u64,
    /// Domains about which several users ask, with some of them.
    pub shared_domains: Vec<(Box<str>, Vec<u32>)>,
}

impl ServerCounts {
    /// Decisions that clients made alone. They may say any number: what would run over stays where it is.
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

/// What came of reading the rules again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reloaded {
    /// What changed, a line each.
    pub changes: Vec<String>,
    /// Why something had to be left out; empty: all that was written is in force.
    pub problems: Vec<String>,
}
