//! Engines and rules for several test files.
#![allow(dead_code, unreachable_pub, reason = "no test file uses all of it")]
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::sync::Arc;

use tidegate::clock::{Now, Timestamp};
use tidegate::engine::{ConnectionParams, Engine, EngineOptions, HashKey, Session};
use tidegate::rules::{Domain, Mode, read_text};

pub const SECOND: u64 = 1_000_000_000;

/// The domains of a rules file without errors.
pub fn domains(text: &str) -> Vec<Arc<Domain>> {
    let loaded = read_text("rules.yaml", text);
    assert!(!loaded.has_errors(), "{text}\n{:#?}", loaded.problems);
    loaded.domains
}

/// A domain that shows the room in the pool `web`, for elastic quotas of others.
pub const ROOM: &str = "---\ndomain: room\npriorities: [more, less]\nshed: [{pool: web, workers: {}}]\n";

/// Opens a session of the pool `web` without a name.
pub fn open(engine: &Engine, user: u32, slots: u32, now: Now) -> Session {
    let opening = ConnectionParams { name: None, user, pool: "web", slots, connection: 1, pid: None };
    engine.open_session(&opening, now).unwrap()
}

pub fn options() -> EngineOptions {
    EngineOptions { hash_key: HashKey::from_bytes([7; 16]), mode: Mode::Enforce, memory_bytes_max: 64 << 20 }
}

pub fn at_millis(millis: u64) -> Now {
    Now { at: Timestamp::from_nanos(millis * 1_000_000), utc_offset_nanos: 0 }
}
