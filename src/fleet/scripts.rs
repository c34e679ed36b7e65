//! The Lua scripts that run inside Redis, each concatenated from files of `scripts/`. They read time only by
//! `redis.call('TIME')`, which tests replace by a clock of their own.

use std::sync::LazyLock;

use super::link::Script;

macro_rules! script {
    ($name:ident, $script:literal, $($part:literal),+) => {
        #[doc = concat!("`", $script, "`: see the head of its file.")]
        pub static $name: LazyLock<Script> =
            LazyLock::new(|| Script::new($script, concat!($(include_str!(concat!("scripts/", $part, ".lua"))),+)));
    };
}

script!(SYNC, "sync", "cell", "share", "window", "begin", "sync");
script!(EXACT, "exact", "cell", "window", "begin", "exact");
script!(PERMITS, "permits", "cell", "begin", "permits");
script!(HEARTBEAT, "heartbeat", "heartbeat");
script!(VERSION, "version", "version");
script!(OVERRIDES, "overrides", "overrides");

/// All scripts, for loading on a new connection; a short one first, to see whether loading is permitted.
pub fn all() -> [&'static Script; 6] {
    [&VERSION, &SYNC, &EXACT, &PERMITS, &HEARTBEAT, &OVERRIDES]
}
