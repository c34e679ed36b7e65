//! The scripts that run inside Redis: each one text, put together from the files of `scripts/`.
//!
//! In each of them time comes in at one place, `redis.call('TIME')`: that is where a test puts a clock of its own.

use std::sync::LazyLock;

use super::link::Script;

macro_rules! script {
    ($name:ident, $said:literal, $($part:literal),+) => {
        #[doc = concat!("`", $said, "`: see the head of its file.")]
        pub static $name: LazyLock<Script> =
            LazyLock::new(|| Script::new($said, concat!($(include_str!(concat!("scripts/", $part, ".lua"))),+)));
    };
}

script!(SYNC, "sync", "cell", "share", "window", "guard", "sync");
script!(EXACT, "exact", "cell", "window", "guard", "exact");
script!(PLACES, "places", "cell", "share", "guard", "places");
script!(PEEK, "peek", "cell", "window", "peek");
script!(RESET, "reset", "cell", "window", "reset");
script!(BEAT, "beat", "beat");
script!(VERSION, "version", "version");
script!(OVERRIDES, "overrides", "overrides");

/// All of them, to be loaded when a connection is made: a short one first, by which it is seen whether anything may be loaded.
#[must_use]
pub fn all() -> [&'static Script; 8] {
    [&VERSION, &SYNC, &EXACT, &PLACES, &PEEK, &RESET, &BEAT, &OVERRIDES]
}
