//! Memory use of the engine and of request parsing, counted by an allocator: the engine's own count is right,
//! a flood of new keys stays within the budget, keeps limited keys limited and is forgotten afterwards, and
//! reading a request, however hostile, allocates nothing.
#![allow(unsafe_code, reason = "counting what the allocator has handed out needs an allocator")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test that cannot go on has failed"
)]

mod accuracy;
mod counting;
#[path = "../support/engines.rs"]
mod engines;
mod flood;
#[path = "../support/golden.rs"]
mod golden;
mod keys;
mod protocol;
mod reloads;
mod reported;
mod stack;
mod turns;

use std::sync::Arc;

use tidegate::clock::{Micros, Now};
use tidegate::engine::{Decider, Descriptors, Engine, EngineAnswer, EngineOptions, Op, Request, Verdict};
use tidegate::rules::Domain;

pub(crate) const SECOND: u64 = 1_000_000_000;

/// One rule of each algorithm, each for requests with its name: `k=token_bucket` and so on.
pub(crate) fn one_of_each() -> String {
    ALGORITHMS
        .iter()
        .map(|(name, quota)| format!("  - {{name: {name}, match: {{k: {name}}}, key: [u], {quota}}}\n"))
        .collect()
}

/// Every algorithm, with a limit of six.
pub(crate) const ALGORITHMS: [(&str, &str); 6] = [
    ("token_bucket", "rate: 6/h"),
    ("fixed_window", "algorithm: fixed_window, rate: 6/h"),
    ("first_window", "algorithm: fixed_window, align: first, rate: 6/h"),
    ("sliding_log", "algorithm: sliding_log, rate: 6/h"),
    ("sliding_window", "algorithm: sliding_window, rate: 6/h"),
    ("two_windows", "algorithm: sliding_window, rate: 6/h, buckets: 1"),
];

pub(crate) fn rules(limits: &str) -> Vec<Arc<Domain>> {
    engines::domains(&format!("domain: api\nlimits:\n{limits}"))
}

pub(crate) fn engine(limits: &str, memory_bytes_max: usize) -> Arc<Engine> {
    let engine = Arc::new(Engine::new(EngineOptions { memory_bytes_max, ..engines::options() }));
    engine.install_rules(rules(limits));
    engine
}

/// Requests one unit; returns verdict and retry-after.
pub(crate) fn ask(decider: &mut Decider, op: Op, k: &str, u: &str, now: u64) -> (Verdict, Option<Micros>) {
    let attributes = [("k", k), ("u", u)];
    let request = Request::new(op, "api", Descriptors::from_attributes(&attributes));
    let EngineAnswer::Decided(decision) = decider.decide(&request, Now::at_nanos(now)) else {
        panic!("a conflict")
    };
    (decision.verdict, decision.retry_after)
}

pub(crate) fn hit(decider: &mut Decider, k: &str, u: &str, now: u64) -> bool {
    ask(decider, Op::Hit, k, u, now).0 == Verdict::Allow
}
