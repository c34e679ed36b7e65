//! tidegate is a per-host rate limiter and load shedder for APIs.
//!
//! This file only lists the rooms; `ARCHITECTURE.md` describes the allowed dependencies of each.

pub mod adapters;
pub mod admin;
pub mod cli;
pub mod clock;
pub mod daemon;
pub mod engine;
pub mod fleet;
pub mod host;
pub mod limit;
mod page;
pub mod protocol;
mod record;
pub mod rules;
pub mod server;
pub mod shed;
pub mod state;
pub mod sys;
pub mod terms;
mod trace;
