//! A caller with two budgets of a rule: windows that differ have a cell each, and a batch names a cell once.

use std::sync::Arc;

use tidegate::clock::Now;
use tidegate::engine::{Descriptors, Engine, EngineOptions, FleetStatus, HashKey, Mode, Op, Request};
use tidegate::fleet::sync::{Sync, SyncOptions};
use tidegate::rules::read_text;

/// A host of a fleet with these rules, before it hears of Redis.
pub(crate) fn fleet_host(rules: &str) -> (Arc<Engine>, Arc<FleetStatus>) {
    let loaded = read_text("rules.yaml", rules);
    assert!(!loaded.has_errors(), "{:?}", loaded.problems);
    let hash_key = HashKey::from_bytes([1; 16]);
    let options = EngineOptions { hash_key, mode: Mode::Enforce, memory_bytes_max: 1 << 20 };
    let engine = Arc::new(Engine::new(options));
    let status = engine.join_fleet(HashKey::from_bytes([2; 16]));
    engine.install_rules(loaded.domains);
    (engine, status)
}

/// A host whose caller has sent a request under each plan, and that has not synced yet.
fn host(rate_of_gold: &str) -> Sync {
    let (engine, status) = fleet_host(&RULES.replace("90/day", rate_of_gold));
    let options = SyncOptions { host: [1; 16], buckets: 1, seed: 1 };
    let mut sync = Sync::new(Arc::clone(&engine), options, status);
    sync.set_budgets(engine.fleet_budgets());
    sync.set_linked(true, at(0).at);
    let mut decider = engine.decider();
    for plan in ["free", "gold"] {
        let attributes = [("user", "u"), ("plan", plan)];
        let _ =
            decider.decide(&Request::new(Op::Hit, "api", Descriptors::from_attributes(&attributes)), at(0));
    }
    sync
}

fn at(millis: u64) -> Now {
    Now::at_nanos((1_000 + millis) * 1_000_000)
}

/// The cells of each batch emitted in 20 ticks without replies.
fn asked(rate_of_gold: &str) -> Vec<usize> {
    let mut sync = host(rate_of_gold);
    let (mut out, mut asked) = (Vec::new(), Vec::new());
    for turn in 0..20 {
        sync.tick(at(2 * turn), &mut out);
        for command in out.drain(..) {
            command.encode();
            asked.push(command.cells());
        }
    }
    asked
}

const RULES: &str = "domain: api\nlimits:\n- {name: r, key: [user], algorithm: fixed_window, rate: 30/day, scope: fleet, \
                     overrides: [{match: {plan: gold}, rate: 90/day}]}\n";

#[test]
fn asks_about_a_caller_by_two_budgets_in_two_batches() {
    assert_eq!(asked("90/day"), [1, 1]);
    assert_eq!(asked("100/s"), [2], "two cells: requests of one window end none of the other");
}
