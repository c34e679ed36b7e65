//! tidegate is a per-host rate limiter and load shedder for APIs.
//!
//! This file only lists the rooms; `ARCHITECTURE.md` describes the allowed dependencies of each. The library is for the daemon,
//! its tests and benchmarks: hidden rooms need no comment where names and types say it all.

pub mod adapters;
pub mod admin;
pub mod cli;
#[doc(hidden)]
pub mod clock;
pub mod daemon;
#[doc(hidden)]
pub mod engine;
pub mod fleet;
pub mod host;
#[doc(hidden)]
pub mod limit;
#[doc(hidden)]
pub mod page;
#[doc(hidden)]
pub mod protocol;
mod record;
pub mod rules;
#[doc(hidden)]
pub mod server;
pub mod shed;
pub mod state;
pub mod sys;
#[doc(hidden)]
pub mod terms;
#[doc(hidden)]
pub mod trace;
