//! State over a restart: files, the engine's tables, the daemon.

use crate::machine;
mod disk;
mod exhausted;
mod faketime;
#[path = "../../pure/state/fixture.rs"]
#[allow(dead_code, reason = "shared by the test programs")]
mod fixture;
mod last_good;
mod measured;
mod pipes;
mod restarts;
mod set_aside;
pub(crate) mod strace;
mod suspend;
mod trouble;
mod versions;
mod wall_clock;
