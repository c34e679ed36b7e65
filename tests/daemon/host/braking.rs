//! From a connection in an accept queue to a pool that brakes: rules, host and engine together.

use std::net::{TcpListener, TcpStream};

use crate::prelude::*;
use tidegate::clock::Now;
use tidegate::engine::{ConnectionParams, Engine, EngineOptions, HashKey, Mode, PoolView};
use tidegate::host::SignalSensors;
use tidegate::rules::read_text;

fn engine(port: u16) -> Engine {
    let rules = format!(
        "domain: api\ndefaults: {{scope: host}}\npriorities: [critical, other]\nshed:\n  - pool: web\n    \
         brake: {{bands: [80%]}}\n    signals: {{accept_queue: {{listen: \":{port}\"}}, cpu: {{use: false}}}}\n"
    );
    let loaded = read_text("web.yaml", &rules);
    assert_eq!(loaded.problems, []);
    let hash_key = HashKey::from_bytes([7; 16]);
    let engine = Engine::new(EngineOptions { hash_key, mode: Mode::Enforce, memory_bytes_max: 64 << 20 });
    engine.install_rules(loaded.domains);
    engine
}

/// The pool after these ticks of 250 ms.
fn after(engine: &Engine, sensors: &mut SignalSensors, ticks: std::ops::Range<u64>) -> PoolView {
    let mut now = Now::default();
    for tick in ticks {
        now = Now::at_nanos(tick * 250_000_000);
        sensors.sample(engine, now);
        engine.tick(now);
    }
    engine.pools(now).into_iter().find(|pool| &*pool.pool == "web").unwrap()
}

#[test]
fn brakes_pool_until_accept_queue_empties() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let engine = engine(address.port());
    let opening = ConnectionParams {
        name: None,
        user: 0,
        pool: "web",
        slots: 8,
        connection: 1,
        pid: Some(std::process::id()),
    };
    let _session = engine.open_session(&opening, Now::at_nanos(0)).unwrap();
    let mut sensors = SignalSensors::new(Path::new("/"));
    assert!(!after(&engine, &mut sensors, 0..40).braking);
    let connections: Vec<_> = (0..8).map(|_| TcpStream::connect(address).unwrap()).collect();
    let pool = after(&engine, &mut sensors, 40..80);
    assert!(pool.braking, "{pool:?}");
    let of_queue = pool.signals.iter().find(|signal| &*signal.name == "accept_queue").unwrap();
    assert_eq!(of_queue.utilization, Some(0.25), "8 of the 32 that the map calls full: {pool:?}");
    let accepted: Vec<_> = (0..8).map(|_| listener.accept().unwrap()).collect();
    let pool = after(&engine, &mut sensors, 80..120);
    assert!(!pool.braking, "{pool:?}");
    drop((connections, accepted));
}
