//! The reply to HELLO.

use crate::engine::Mode;
use crate::protocol::{self, FRAME_BYTES_MAX, HelloFrame, VERSION, WireReply};
use crate::sys;

/// The part of the reply that is the same for all clients.
#[derive(Debug)]
pub(super) struct Greeting {
    boot: u64,
}

impl Greeting {
    pub(super) fn new() -> Greeting {
        Greeting { boot: random_boot() }
    }

    /// Makes the reply to HELLO, in the older of both protocol versions, with the current mode.
    pub(super) fn welcome(&self, hello: &HelloFrame<'_>, mode: Mode) -> WireReply<'static> {
        let mode = match mode {
            Mode::Enforce => protocol::DaemonMode::Enforce,
            Mode::Shadow => protocol::DaemonMode::Shadow,
            Mode::Disabled => protocol::DaemonMode::Disabled,
        };
        WireReply::Welcome {
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

/// Returns a number that differs at every start, so that a client detects a restart.
fn random_boot() -> u64 {
    // Without randomness a client misses a restart; nothing else depends on this number.
    u64::from_le_bytes(sys::random_bytes().unwrap_or_default()) >> 1
}

const SERVER: &str = concat!("tidegate/", env!("CARGO_PKG_VERSION"));
