//! One real daemon on its sockets: clients, operators, files, faults of the machine.
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
#![cfg_attr(
    not(debug_assertions),
    allow(dead_code, unused_imports, reason = "only a debug build can be made to panic")
)]

#[path = "../support/bench.rs"]
#[allow(dead_code, reason = "shared by the test programs")]
mod bench;
#[path = "../support/completions.rs"]
mod completions;
#[path = "../support/daemon.rs"]
#[allow(dead_code, reason = "shared by the test programs")]
mod daemon;
#[path = "../support/docs.rs"]
#[allow(dead_code, reason = "shared by the test programs")]
mod docs;
#[path = "../support/engines.rs"]
mod engines;
#[path = "../support/golden.rs"]
mod golden;
#[path = "../support/http.rs"]
#[allow(dead_code, reason = "shared by the test programs")]
mod http;
#[path = "../support/machine.rs"]
mod machine;
#[path = "../support/msgpack.rs"]
#[allow(dead_code, reason = "shared by the test programs")]
mod msgpack;
#[path = "../support/redis_server.rs"]
mod redis_server;
#[path = "../support/wire.rs"]
#[allow(dead_code, reason = "shared by the test programs")]
mod wire;

/// Leaves out a test that this machine does not permit; the condition says so.
macro_rules! needs {
    ($may:expr) => {
        if !$may {
            return;
        }
    };
}

/// Names that most tests use.
mod prelude {
    pub(crate) use std::fs;
    pub(crate) use std::io::{Read, Write};
    pub(crate) use std::os::unix::net::UnixStream;
    pub(crate) use std::path::{Path, PathBuf};
    pub(crate) use std::process::{Command, Stdio};
    pub(crate) use std::thread::{self, sleep};
    pub(crate) use std::time::Duration;

    pub(crate) use serde_json::{Value, json};
    pub(crate) use tidegate::clock::read_boot_nanos;

    pub(crate) use crate::daemon::*;
    pub(crate) use crate::http::*;
    pub(crate) use crate::machine::{is_root, make_pipe};
    pub(crate) use crate::msgpack::*;
    pub(crate) use crate::wire::*;
}

mod adapters;
mod admin;
mod foreign_files;
mod host;
mod process;
mod server;
mod state;
mod switches;
mod systemd;
mod timing;
