//! RESTARTS: keeps the daemon's state on disk across restarts. This room decides nothing, and no error here prevents a
//! start.

mod directory;
mod files;
mod keeper;
mod snapshot;
mod switches;

pub(crate) use directory::{
    ASIDE, CRASH_LOOP_ENDS, CRASH_LOOP_SPAN, Crashes, Directory, EVIDENCE, StateFile, keep_evidence,
    set_aside,
};
pub use directory::{SnapshotStats, SnapshotStatus};
pub use files::{AtomicFile, write_whole};
pub(crate) use files::{open_regular, read_small};
pub(crate) use keeper::{SnapshotKeeper, WRITE_EVERY};
pub(crate) use snapshot::file_bytes_max;
pub use snapshot::{
    BOOT_ID_FILE, Moment, RestoreResult, SnapshotError, SnapshotKey, VERSION, read_tables, write_tables,
};
pub use switches::{SWITCHES_VERSION, SwitchesRead, UnreadableSwitches, read_switches, write_switches};
