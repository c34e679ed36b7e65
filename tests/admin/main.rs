//! What operators see and say: the real binary, asked over its admin socket, its port of metrics and its commands.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "a test fails by panicking, and says why it was left out"
)]

mod access;
mod commands;
#[path = "../server/daemon.rs"]
#[allow(dead_code, reason = "shared with the tests of the socket")]
mod daemon;
mod dashboard;
mod documented;
mod exhausted;
mod fleet;
mod flood;
mod front;
mod harm;
mod http;
mod idle;
#[path = "../server/msgpack.rs"]
mod msgpack;
mod open_metrics;
mod pages;
mod privacy;
mod record;
#[path = "../support/redis.rs"]
mod redis_server;
mod scrape;
mod state;
mod which;
#[path = "../server/wire.rs"]
#[allow(dead_code, reason = "shared with the tests of the socket")]
mod wire;
