//! A reserve over all hosts: the report of this host, and how long it follows a reply.

use std::time::Duration;

use tidegate::engine::{OtherHostsSums, OtherHostsView, PoolLoad, Session};

use crate::bench::{Ask, Bench, s};
use crate::engines::at_millis as ms;

const RULES: &str = "priorities: [critical, post, get]
shed:
- {pool: web, fleet: {reserve: 20%, for: critical}}
";

fn fill(bench: &mut Bench, session: &Session, millis: u64) -> u32 {
    let get = Ask { priority: Some("get"), ..Ask::acquire("user=u") };
    let leases: Vec<_> =
        std::iter::from_fn(|| bench.ask_by(session, ms(millis), get).lease).take(99).collect();
    leases.iter().for_each(|lease| assert!(bench.release(session, Some(*lease), ms(millis))));
    u32::try_from(leases.len()).unwrap()
}

#[test]
fn reports_slots_leases_and_refusals_since_the_last_report() {
    let mut bench = Bench::new(RULES);
    assert!(bench.engine.has_fleet_reserve());
    let session = bench.session(1, 10, s(0));
    let report = |bench: &Bench| {
        let reserves = bench.engine.take_pool_reserves();
        let [web] = reserves.as_slice() else { panic!("{reserves:?}") };
        assert_eq!((&*web.pool, web.here.slots, web.here.reserve), ("web", 10, 200));
        (web.here.noncritical, web.critical, web.here.refused_since_publish)
    };
    assert_eq!(report(&bench), (0, 0, false));
    for priority in ["critical", "get", "post", "get"] {
        bench.ask_by(&session, s(0), Ask { priority: Some(priority), ..Ask::acquire("user=u") });
    }
    assert_eq!(report(&bench), (3, 1, false));
    assert_eq!(fill(&mut bench, &session, 0), 5);
    assert_eq!([report(&bench), report(&bench)], [(3, 1, true), (3, 1, false)]);
    bench.install("priorities: [critical, get]\nshed:\n- {pool: web, queue_age: {}}\n");
    assert!(!bench.engine.has_fleet_reserve() && bench.engine.take_pool_reserves().is_empty());
}

#[test]
fn follows_reply_until_expiry_and_returns_borrowed_slots_first() {
    let sums = PoolLoad { slots: 20, critical: 1, noncritical: 3 };
    // The maximum in the reply; then leases of lower priorities at each time, where this host alone has
    // eight.
    for (most, early, late, alone) in [(3, 3, 3, 8), (9, 9, 8, 8), (99, 10, 8, 8), (0, 0, 0, 8)] {
        let (mut bench, session) = Bench::with_session(RULES, 10);
        assert_eq!(fill(&mut bench, &session, 0), alone);
        bench.engine.set_other_hosts_sums(
            "web",
            OtherHostsSums { sums, noncritical_max: most, local_max: 8, reported_at: s(1).at },
        );
        bench.engine.set_other_hosts_sums(
            "unknown",
            OtherHostsSums { sums, noncritical_max: 1, local_max: 8, reported_at: s(1).at },
        );
        for (millis, expected) in
            [(1_000, early), (2_899, early), (2_900, late), (10_999, late), (11_000, alone), (99_000, alone)]
        {
            assert_eq!(fill(&mut bench, &session, millis), expected, "{most} at {millis} ms");
            let view = bench.engine.pools(ms(millis)).remove(0).reserve.unwrap();
            let stale_s = Duration::from_millis(millis - 1_000).as_secs_f64();
            let elsewhere = OtherHostsView { slots: 20, critical: 1, noncritical: 3, stale_s };
            let elsewhere = (millis < 11_000).then_some(elsewhere);
            assert_eq!((view.noncritical_max, view.elsewhere), (Some(expected), elsewhere));
            assert_eq!(view.shared, elsewhere.is_some());
        }
    }
}

#[test]
fn slots_added_since_reply_stay_local() {
    let (mut bench, session) = Bench::with_session(RULES, 10);
    let sums = PoolLoad { slots: 20, critical: 0, noncritical: 0 };
    bench.engine.set_other_hosts_sums(
        "web",
        OtherHostsSums { sums, noncritical_max: 5, local_max: 8, reported_at: s(0).at },
    );
    let other = bench.session(2, 20, s(0));
    assert_eq!(fill(&mut bench, &session, 0), 21, "five, and the sixteen of the new slots");
    bench.engine.end_session(&other, s(1));
    assert_eq!(fill(&mut bench, &session, 1_000), 5);
}
