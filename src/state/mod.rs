//! RESTARTS: keeps the daemon's state on disk across restarts. This room decides nothing, and no error here prevents a
//! start.

mod crashes;
mod directory;
mod files;
mod keeper;
mod moment;
mod snapshot;
mod switches;

pub use crashes::{CRASH_LOOP_ENDS, CRASH_LOOP_SPAN, Crashes};
pub use directory::{
    ASIDE, Directory, EVIDENCE, LOCK_WAIT, SnapshotStats, SnapshotStatus, StateFile, keep_evidence, set_aside,
};
pub use files::{AtomicFile, SmallFile, open_regular, write_whole};
pub use keeper::{KeeperSettings, LAST_WRITE_MAX, SnapshotKeeper, WRITE_EVERY};
pub use moment::{BOOT_ID_FILE, Moment};
pub use snapshot::{
    RestoreResult, SnapshotError, SnapshotKey, VERSION, file_bytes_max, read_tables, write_tables,
};
pub use switches::{SWITCHES_VERSION, SwitchesRead, UnreadableSwitches, read_switches, write_switches};
