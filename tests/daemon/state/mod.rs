//! State over a restart: files, the engine's tables, the daemon.

use crate::{daemon, http, msgpack, wire};
mod aside;
mod disk;
mod exhausted;
mod faketime;
mod format;
mod last_good;
mod measured;
#[path = "../../pure/state/office.rs"]
#[allow(dead_code, reason = "shared by the test programs")]
mod office;
mod pipes;
mod restarts;
pub(crate) mod strace;
mod suspend;
mod trouble;
mod versions;
mod wall_clock;
