//! Redis in virtual time, for tests: runs Lua scripts over the keys of one server, in memory.
//!
//! It has the commands that the scripts of `src/fleet/scripts` call, and panics at any other.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "a test that cannot go on has failed, and Lua has only doubles"
)]

mod interpreter;
mod keys;
mod numbers;

pub use keys::{Entry, Value};

/// One server.
#[derive(Clone, Debug, Default)]
pub struct VirtualRedis {
    /// All keys, expired ones included until a command looks at them.
    pub keys: keys::Keys,
}

impl VirtualRedis {
    /// Runs a script at this time; returns its reply, which is a string.
    pub fn run(
        &mut self,
        script: &'static str,
        keys: &[Vec<u8>],
        arguments: &[Vec<u8>],
        now_us: u64,
    ) -> Vec<u8> {
        interpreter::run(script, [keys, arguments], &mut self.keys, now_us)
    }
}
