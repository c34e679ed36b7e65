//! One budget over many hosts, through a shared Redis.
//!
//! No request waits for this module unless its rule asks for remote checks.

// Public for the simulation and for tests alone.
#![doc(hidden)]

pub mod cell;
pub mod command;
pub mod counters;
pub mod heartbeat;
pub mod host_count;
pub mod identity;
mod key_sync;
mod key_table;
pub mod link;
pub mod link_state;
pub mod member;
pub mod overrides;
pub mod permits;
pub mod remote_checks;
pub mod reply;
pub mod reserve;
pub mod rights;
mod rng;
mod round_trip;
pub mod scripts;
pub mod secrets;
pub mod sync;
pub mod tally;
pub mod task;
pub mod version;
pub mod window;
mod wire;

/// The target of log lines of this module, and the prefix of those of its submodules.
pub const LOG_TARGET: &str = module_path!();
