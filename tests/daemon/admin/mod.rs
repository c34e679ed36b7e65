//! What operators see and say: the real binary, asked over its admin socket, its port of metrics and its commands.

use crate::{daemon, http, msgpack, redis_server, wire};
mod access;
mod commands;
mod dashboard;
mod documented;
mod exhausted;
mod fleet;
mod flood;
mod front;
mod harm;
mod idle;
mod open_metrics;
mod pages;
mod privacy;
mod record;
mod scrape;
mod state;
mod which;
