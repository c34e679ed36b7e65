//! tidegate decides, on each host, whether a piece of work may start.
//!
//! This file is a map of the rooms and holds nothing else; `ARCHITECTURE.md` says what each may touch.

pub mod admin;
pub mod cli;
pub mod clock;
pub mod daemon;
pub mod engine;
pub mod fleet;
pub mod host;
pub mod limit;
pub mod page;
pub mod protocol;
pub mod record;
pub mod rules;
pub mod server;
pub mod shed;
pub mod state;
pub mod sys;
pub mod trace;
