//! Tests real daemons, or parts of them, with a real redis-server.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    clippy::cast_possible_wrap,
    clippy::cast_lossless,
    reason = "a test fails by panicking, prints its figures, and counts what fits"
)]

#[path = "../support/certificates.rs"]
#[allow(dead_code, reason = "shared by the test programs")]
mod certificates;
#[path = "../support/daemon.rs"]
#[allow(dead_code, reason = "shared by the test programs")]
mod daemon;
#[path = "../support/http.rs"]
#[allow(dead_code, reason = "shared by the test programs")]
mod http;
#[path = "../support/liar.rs"]
mod liar;
#[path = "../support/msgpack.rs"]
#[allow(dead_code, reason = "shared by the test programs")]
mod msgpack;
#[path = "../support/redis_cluster.rs"]
#[allow(dead_code, reason = "shared by the test programs")]
mod redis_cluster;
#[path = "../support/redis_server.rs"]
mod redis_server;
#[path = "../support/script_commands.rs"]
mod script_commands;
#[path = "../support/wire.rs"]
#[allow(dead_code, reason = "shared by the test programs")]
mod wire;

/// Names that most tests of whole daemons use.
mod prelude {
    pub(crate) use std::fs;
    pub(crate) use std::io::{Read, Write};
    pub(crate) use std::os::unix::net::UnixStream;
    pub(crate) use std::path::{Path, PathBuf};
    pub(crate) use std::thread::sleep;
    pub(crate) use std::time::Duration;

    pub(crate) use serde_json::{Value, json};
    pub(crate) use tidegate::clock::read_boot_nanos;

    pub(crate) use crate::daemon::*;
    pub(crate) use crate::http::*;
    pub(crate) use crate::msgpack::*;
    pub(crate) use crate::redis_server::*;
    pub(crate) use crate::wire::*;
}

mod fleet_link;
mod fleet_real;
mod fleet_store;
mod redis_acl;
