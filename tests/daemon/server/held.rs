//! Memory that clients make the daemon hold besides the tables.

use serde_json::json;

use super::daemon::{Plan, eventually};
use super::msgpack::frame;
use super::wire::{Wire, verdict_of};

#[test]
fn bounds_reports_of_a_thousand_sessions() {
    let daemon = Plan::new().start();
    let bare = daemon.process.resident_kib();
    let mut sessions: Vec<Wire> = (0..1_000).map(|_| daemon.greeted()).collect();
    let calm = daemon.process.resident_kib();
    // The amount that is accounted for a connection and its session.
    assert!((calm - bare) * 1_024 < 1_000 * (16 + 3) * 1_024, "{} KiB for 1000 sessions", calm - bare);
    for first in [0, 512] {
        let abandoned: Vec<_> = (first..first + 512).map(|id| json!([1, id])).collect();
        let request = json!([3, 7, "api", [["user", "reports"]], 1, null, {"abandoned": abandoned}]);
        let request = frame(&request);
        for wire in &mut sessions {
            wire.send_bytes(&request);
            assert_eq!(wire.hear().unwrap()[0], 1);
        }
    }
    let grown = daemon.process.resident_kib().saturating_sub(calm);
    eprintln!("{} KiB for the sessions, {grown} KiB for their reports", calm - bare);
    // A quarter of the accounted amount, and as much for partly used blocks; a session may report 24 KiB.
    assert!(grown < 8 << 10, "{grown} KiB");
    // The latest reports of a session are kept within the bound; limits hold for all.
    let refused = sessions
        .iter_mut()
        .rev()
        .take(10)
        .map(|wire| verdict_of(&wire.ask(&json!([3, 9, "api", [["user", "reports"]]]))) == 1);
    assert!(refused.into_iter().all(|refused| refused));
    drop(sessions);
    eventually("their places are free", || (daemon.process.descriptors() < 100).then_some(()));
    daemon.greeted().assert_served();
}
