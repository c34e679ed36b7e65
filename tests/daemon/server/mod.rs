//! The daemon at its socket: the real binary, raw bytes.
//!
//! Frames are encoded and decoded by a separate codec of the tests, which detects errors in the daemon's.

use crate::golden;
mod abuse;
mod access;
mod acquire;
mod caps;
mod faults;
mod frames;
mod hello;
mod idle_connections;
mod judging;
mod leases;
mod path;
mod privacy;
mod refunds;
mod reload;
mod session_ends;
mod sessions;
mod shell;
mod stop;
mod timeouts;
mod work;
