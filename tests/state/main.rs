//! What is kept over a restart: files, the engine's tables, the daemon.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::cast_precision_loss,
    clippy::indexing_slicing,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says on which seed or why it did not run"
)]

mod beside;
mod clocks;
#[path = "../server/daemon.rs"]
#[allow(dead_code, reason = "not all of it is used here")]
mod daemon;
mod damage;
mod disk;
mod faketime;
#[path = "../admin/http.rs"]
#[allow(dead_code, reason = "not all of it is used here")]
mod http;
mod last_good;
mod measured;
#[path = "../server/msgpack.rs"]
#[allow(dead_code, reason = "not all of it is used here")]
mod msgpack;
mod office;
mod pools;
mod restarts;
mod strace;
mod trouble;
mod twins;
mod versions;
mod wall_clock;
mod whole;
#[path = "../server/wire.rs"]
#[allow(dead_code, reason = "not all of it is used here")]
mod wire;
