//! One budget over many hosts, through a shared Redis.
//!
//! No request waits for this module unless its rule asks for remote checks.

pub mod asking;
pub mod beat;
mod book;
pub mod call;
pub mod cell;
pub mod counters;
pub mod crowd;
mod dice;
pub mod identity;
pub mod link;
pub mod link_state;
pub mod look;
pub mod member;
pub mod overrides;
mod page;
pub mod permits;
pub mod questions;
mod redis_clock;
pub mod reply;
pub mod reserve;
pub mod rights;
mod round_trip;
pub mod scripts;
pub mod secrets;
pub mod sync;
pub mod tally;
pub mod task;
pub mod version;
mod versions;
pub mod window;
mod wire;
