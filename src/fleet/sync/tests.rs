//! One caller with two budgets of a rule, which share a cell: a batch names the cell once.

use std::sync::Arc;

use super::{BUCKETS, Sync, SyncOptions};
use crate::clock::Now;
use crate::engine::{Descriptors, Engine, Op, Request};
use crate::fleet::command::ScriptCommand;
use crate::fleet::key_sync;

/// A host whose caller has sent a request under each plan, and that has not synced yet.
fn host() -> (Arc<Engine>, Sync) {
    let (engine, status) = key_sync::tests::host(RULES);
    let options = SyncOptions { host: [1; 16], buckets: BUCKETS, seed: 1 };
    let mut sync = Sync::new(options, status);
    sync.set_budgets(engine.fleet_budgets());
    sync.set_linked(true, at(0).at);
    let mut decider = engine.decider();
    for plan in ["free", "gold"] {
        let attributes = [("user", "u"), ("plan", plan)];
        let _ =
            decider.decide(&Request::new(Op::Hit, "api", Descriptors::from_attributes(&attributes)), at(0));
    }
    (engine, sync)
}

fn at(millis: u64) -> Now {
    Now::at_nanos((1_000 + millis) * 1_000_000)
}

/// The cells of each batch emitted in 20 ticks without replies.
fn asked(say: impl Fn(&mut Sync, &Engine, Now, &mut Vec<ScriptCommand>)) -> Vec<usize> {
    let (engine, mut sync) = host();
    let (mut out, mut asked) = (Vec::new(), Vec::new());
    for turn in 0..20 {
        say(&mut sync, &engine, at(2 * turn), &mut out);
        for command in out.drain(..) {
            assert!(command.encode().is_ok(), "{:?}: {command:?}", command.encode());
            asked.push(command.cells());
        }
    }
    asked
}

const RULES: &str = "domain: api\nlimits:\n- {name: r, key: [user], algorithm: fixed_window, rate: 30/day, scope: fleet, \
                     overrides: [{match: {plan: gold}, rate: 90/h}]}\n";

#[test]
fn asks_about_a_caller_by_two_budgets_in_two_batches() {
    assert_eq!(asked(Sync::tick), [1, 1]);
}

#[test]
fn leaves_a_caller_by_two_budgets_in_two_batches() {
    let asked = asked(|sync, engine, now, out| {
        sync.leave(engine, now, out);
    });
    assert_eq!(asked, [1, 1]);
}
