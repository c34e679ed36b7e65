//! State over a restart: files, the engine's tables, the daemon.

use crate::{daemon, http, msgpack, wire};
mod aside;
mod beside;
mod clocks;
mod damage;
mod disk;
mod exhausted;
mod faketime;
mod format;
mod last_good;
mod measured;
mod office;
mod pipes;
mod pools;
mod restarts;
mod strace;
mod suspend;
mod trouble;
mod twins;
mod versions;
mod wall_clock;
mod whole;
