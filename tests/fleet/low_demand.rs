//! Tests many callers far below their limits: few cells per request and no refusals.

use tidegate::fleet::command::{CELLS_MAX, ScriptCommand};

use crate::host::Host;
use crate::plan::{Plan, Shape, is_short};
use crate::store::Store;
use crate::world::run;

/// 300 callers (100 without `RUNS`), each three requests a second, on 8 hosts.
#[test]
fn allows_callers_below_their_limit() {
    let (tenants, ms) = (if is_short() { 100 } else { 300 }, 20_000);
    // A host's share of the credit is an eighth of a token, and more than one.
    for (rate, cells_most) in [(10, 1.02), (100, 0.75)] {
        let load = tenants * 3 * 1_000 / rate;
        let plan = Plan { rate, burst: rate, tenants, ms, ..Plan::cell(8, Shape::Even, load) };
        let seen = run(&plan).measure.seen();
        let cells = seen.cells * ms as f64 / 1_000.0 / seen.offered as f64;
        assert!(seen.used >= 0.99, "{seen:?} by {rate}/s");
        assert!(cells <= cells_most, "{cells} cells for each request by {rate}/s");
    }
}

#[test]
fn checks_no_waiting_key_until_capacity_frees() {
    let plan = Plan { credit: 0, ..Plan::cell(1, Shape::Even, 0) };
    let mut host = Host::new(&plan);
    let mut store = Store::default();
    let mut numbers = 0;
    let mut answer = |host: &mut Host, command: &ScriptCommand, us: u64| {
        numbers += 1;
        let reply = store.execute(command, 1_700_000_000_000_000 + us);
        host.sent(numbers, command.clone(), us);
        host.answered(numbers, command, reply, us);
    };
    let heartbeats = std::mem::take(host.tick(0));
    heartbeats.iter().for_each(|heartbeat| answer(&mut host, heartbeat, 500));
    assert!((0..20_000).all(|tenant| !host.hit(&format!("t{tenant}"), 1_000)), "nothing is granted yet");
    let full = std::mem::take(host.tick(2_000));
    assert!(
        full.iter()
            .all(|command| matches!(command, ScriptCommand::Sync(batch) if batch.asks.len() == CELLS_MAX))
    );
    let later = host.now(900_000).at;
    assert!(host.member.sync.next() > later, "nothing is to be done until a lane is free");
    assert!(host.tick(10_000).is_empty());
    answer(&mut host, &full[0], 11_000);
    let ScriptCommand::Sync(landed) = &full[0] else { panic!("a beat") };
    let next = std::mem::take(host.tick(12_000));
    let [ScriptCommand::Sync(next)] = next.as_slice() else {
        panic!("{} commands in the room of one", next.len())
    };
    assert_eq!((next.head.bucket, next.asks.len()), (landed.head.bucket, CELLS_MAX));
}
