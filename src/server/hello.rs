//! How a connection begins.

use crate::engine::Mode;
use crate::protocol::{self, FRAME_BYTES_MAX, Hello, Reply, VERSION};
use crate::sys;

/// What every client is greeted with.
#[derive(Debug)]
pub(super) struct Greeting {
    boot: u64,
}

impl Greeting {
    pub(super) fn new() -> Greeting {
        Greeting { boot: random_boot() }
    }

    /// Answers HELLO, in the older of both versions, with the mode that the daemon is in just now.
    pub(super) fn welcome(&self, hello: &Hello<'_>, mode: Mode) -> Reply<'static> {
        let mode = match mode {
            Mode::Enforce => protocol::Mode::Enforce,
            Mode::Shadow => protocol::Mode::Shadow,
            Mode::Disabled => protocol::Mode::Disabled,
        };
        Reply::Welcome {
            id: hello.id,
            version: hello.version.min(VERSION),
            server: SERVER,
            boot: self.boot,
            connection: hello.connection,
            frame_bytes_max: FRAME_BYTES_MAX as u64,
            mode,
        }
    }
}

/// A number that is new at every start, so that a client sees a restart.
fn random_boot() -> u64 {
    // Without randomness two starts would look like one; nothing else hangs on it.
    u64::from_le_bytes(sys::drawn().unwrap_or_default()) >> 1
}

const SERVER: &str = concat!("tidegate/", env!("CARGO_PKG_VERSION"));
