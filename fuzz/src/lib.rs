//! Fuzz targets. Each takes any bytes and panics if an invariant is broken.
//!
//! libFuzzer runs them (`fuzz_targets/`, `make nightly-fuzz`); the test `fuzz` replays `tests/corpora`
//! through the same functions and mutates it.

pub mod conversations;
pub mod fleet_overrides;
pub mod fleet_sync;
pub mod frames;
mod input;
pub mod override_rows;
pub mod redis_replies;
pub mod rules;
pub mod settings;
pub mod snapshots;
pub mod traces;

/// A fuzz target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The name of its corpus in `tests/corpora`.
    pub name: &'static str,
    /// Panics if an invariant is broken.
    pub check: fn(&[u8]),
    /// Random mutations per `make test`: less than 1 s without optimization.
    pub mutations: u32,
}

/// All targets.
pub const TARGETS: [Target; 11] = [
    Target { name: "access_logs", check: traces::check_access_log, mutations: 100 },
    Target { name: "conversations", check: conversations::check, mutations: 200 },
    Target { name: "fleet_overrides", check: fleet_overrides::check, mutations: 200 },
    Target { name: "fleet_sync", check: fleet_sync::check, mutations: 80 },
    Target { name: "frames", check: frames::check, mutations: 5_000 },
    Target { name: "override_rows", check: override_rows::check, mutations: 100 },
    Target { name: "redis_replies", check: redis_replies::check, mutations: 5_000 },
    Target { name: "rules", check: rules::check, mutations: 250 },
    Target { name: "settings", check: settings::check, mutations: 500 },
    Target { name: "snapshots", check: snapshots::check, mutations: 300 },
    Target { name: "traces", check: traces::check, mutations: 200 },
];
