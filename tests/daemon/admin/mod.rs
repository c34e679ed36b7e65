//! The operators' interface of the real binary: its admin socket, metrics port and commands.

use crate::{completions, docs, redis_server};
mod access;
mod commands;
mod dashboard;
mod documented;
mod exhausted;
mod fleet;
mod front;
mod idle;
mod open_metrics;
mod pages;
mod record;
pub(crate) mod scrape;
mod state;
mod which;
mod why;
