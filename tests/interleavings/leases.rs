//! Leases in many schedules: permits are released once, whichever thread ends the lease.

use std::sync::Arc;

use super::{check, engine_without_rules, run_concurrently};
use tidegate::clock::Now;
use tidegate::engine::{
    ConnectionParams, Descriptors, Engine, EngineAnswer, Op, Request, Session, WorkOutcome,
};
use tidegate::rules::read_text;

const RULES: &str = "domain: api
priorities: [critical, other]
limits:
  - {name: rate, key: [x], rate: 1/h, burst: 3}
concurrency:
  - {name: one, key: [], max: 1, expires: 10s}
shed:
  - {pool: web, slots: 2, fleet: {reserve: 50%}}
";

fn engine(rules: &str) -> Arc<Engine> {
    let engine = engine_without_rules(1 << 20);
    let loaded = read_text("rules.yaml", rules);
    assert!(!loaded.has_errors(), "{:#?}", loaded.problems);
    engine.install_rules(loaded.domains);
    engine
}

fn session(engine: &Engine, name: u8) -> Session {
    let opening =
        ConnectionParams { name: Some([name; 16]), user: 1, pool: "web", slots: 0, connection: 1, pid: None };
    engine.open_session(&opening, at(0)).unwrap()
}

fn at(second: u64) -> Now {
    Now::at_nanos(second * 1_000_000_000)
}

fn acquire(engine: &Arc<Engine>, session: &Session, x: &str) -> Option<u64> {
    let attributes = [("x", x)];
    let request = Request {
        session: Some(session),
        id: 1,
        priority: Some("other"),
        ..Request::new(Op::Acquire, "api", Descriptors::from_attributes(&attributes))
    };
    match engine.decider().decide(&request, at(0)) {
        EngineAnswer::Decided(decision) => decision.lease,
        EngineAnswer::Conflict | EngineAnswer::TooManyLeases | EngineAnswer::RemoteCheck(_) => None,
    }
}

/// Asserts that no permit is held and nothing is counted.
fn assert_all_is_back(engine: &Engine) {
    assert_eq!(engine.in_progress(), 0);
    assert_eq!(engine.leases().live, 0);
    let pools = engine.pools(at(60));
    assert!(pools.iter().all(|pool| (pool.busy, pool.critical, pool.noncritical) == (0, 0, 0)), "{pools:?}");
}

#[test]
fn grants_one_permit_once_with_its_rate_charge() {
    check(|| {
        let engine = engine(RULES);
        let works = [(1, "a"), (2, "a"), (3, "b")].map(|(name, x)| {
            let (engine, session) = (Arc::clone(&engine), session(&engine, name));
            move || {
                let lease = acquire(&engine, &session, x);
                assert!(engine.in_progress() <= 1);
                lease.is_none_or(|lease| engine.release_lease(&session, lease, WorkOutcome::Error, at(0)))
            }
        });
        let seen = run_concurrently(works);
        assert!(seen.iter().all(|released| *released), "each granted lease could be released");
        assert_all_is_back(&engine);
    });
}

#[test]
fn ends_lease_once_under_races() {
    check(|| {
        let engine = engine(RULES);
        let session = session(&engine, 1);
        let lease = acquire(&engine, &session, "a").unwrap();
        let ends: [fn(&Engine, &Session, u64); 4] = [
            |engine, session, lease| {
                engine.release_lease(session, lease, WorkOutcome::Ok, at(1));
            },
            |engine, _, _| engine.end_expired_leases(at(11)),
            |engine, session, _| {
                drop(engine.abandon_requests(session, &mut std::iter::once((1, 1)), at(1)));
            },
            |engine, session, _| engine.end_session(session, at(1)),
        ];
        run_concurrently(ends.map(|end| {
            let (engine, session) = (Arc::clone(&engine), session.clone());
            move || end(&engine, &session, lease)
        }));
        assert_all_is_back(&engine);
        let totals = engine.leases();
        assert_eq!(totals.released + totals.expired + totals.session + totals.abandoned, 1, "{totals:?}");
        assert_eq!(totals.sessions, 0);
    });
}

#[test]
fn returns_grant_when_session_ends() {
    check(|| {
        let engine = engine(RULES);
        let session = session(&engine, 1);
        let (acquiring, ending) = ((Arc::clone(&engine), session.clone()), (Arc::clone(&engine), session));
        let works: [Box<dyn FnOnce() + Send>; 2] = [
            Box::new(move || {
                acquire(&acquiring.0, &acquiring.1, "a");
            }),
            Box::new(move || ending.0.end_session(&ending.1, at(0))),
        ];
        run_concurrently(works);
        assert_all_is_back(&engine);
    });
}

#[test]
fn noncritical_requests_never_use_the_reserve() {
    check(|| {
        let engine = engine(&RULES.replace("max: 1,", "max: 9,"));
        let works = [1, 2, 3].map(|name| {
            let (engine, session) = (Arc::clone(&engine), session(&engine, name));
            move || acquire(&engine, &session, "a").is_some()
        });
        let granted = run_concurrently(works).into_iter().filter(|granted| *granted).count();
        assert_eq!(granted, 1);
        let pools = engine.pools(at(0));
        assert_eq!(pools.iter().map(|pool| pool.noncritical).collect::<Vec<_>>(), [1]);
    });
}
