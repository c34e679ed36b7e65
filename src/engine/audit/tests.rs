//! Counters that went wrong are put right, and those that are right stay as they are.

use std::sync::Arc;

use proptest::prelude::*;

use crate::clock::Now;
use crate::engine::{
    Answer, Decider, Descriptors, Engine, HashKey, Mode, Op, Opening, Options, Request, Session, WorkOutcome,
};
use crate::rules::{RuleSet, read_text};

const RULES: &str = "domain: api
concurrency:
  - {name: each, key: [k], max: 3, candidate: {max: 2}}
  - {name: all, key: [], max: 7, mode: shadow}
";

/// Two of four slots are kept back.
const POOL: &str = "priorities: [critical, get]
shed:
  - {pool: web, slots: 4, fleet: {reserve: 50%}}
";

fn engine() -> Arc<Engine> {
    engine_of(RULES)
}

fn engine_of(rules: &str) -> Arc<Engine> {
    let hash_key = HashKey::from_bytes([7; 16]);
    let engine = Arc::new(Engine::new(Options { hash_key, mode: Mode::Enforce, memory_bytes_max: 1 << 22 }));
    let loaded = read_text("rules.yaml", rules);
    assert!(!loaded.has_errors(), "{:#?}", loaded.problems);
    engine.install(RuleSet::new(loaded.domains));
    engine
}

fn session(engine: &Engine, name: u8) -> Session {
    let opening =
        Opening { name: Some([name; 16]), user: 1, pool: "web", slots: 0, connection: 1, pid: None };
    engine.open(&opening, now()).unwrap()
}

fn now() -> Now {
    Now::at_nanos(1)
}

fn acquire(decider: &mut Decider, session: &Session, key: &str) -> Option<u64> {
    let attributes = [("k", key)];
    let request =
        Request { session: Some(session), ..Request::new(Op::Acquire, "api", Descriptors::one(&attributes)) };
    match decider.decide(&request, now()) {
        Answer::Decided(decision) => decision.lease,
        Answer::Conflict | Answer::Quota | Answer::Ask(_) => None,
    }
}

#[derive(Clone, Debug)]
enum Event {
    Acquire(u8),
    Release(prop::sample::Index),
    Miscount(usize, i32),
    MiscountPool(i32, i32, i32),
    Repair,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (0..4_u8).prop_map(Event::Acquire),
        4 => any::<prop::sample::Index>().prop_map(Event::Release),
        1 => (0..8_usize, -3..4_i32).prop_map(|(key, by)| Event::Miscount(key, by)),
        1 => (-3..4_i32, -3..4_i32, -3..4_i32).prop_map(|(busy, critical, others)| {
            Event::MiscountPool(busy, critical, others)
        }),
        2 => Just(Event::Repair),
    ]
}

proptest! {
    #[test]
    fn after_a_repair_a_limit_admits_exactly_what_its_leases_leave(events in prop::collection::vec(event(), 0..120)) {
        let engine = engine();
        let (mut decider, session) = (engine.decider(), session(&engine, 1));
        let mut held: Vec<(u8, u64)> = Vec::new();
        let (mut is_sound, mut is_pool_sound) = (true, true);
        for event in events {
            match event {
                Event::Acquire(key) => {
                    let lease = acquire(&mut decider, &session, &key.to_string());
                    let of_key = held.iter().filter(|(of, _)| *of == key).count();
                    prop_assert!(!is_sound || lease.is_some() == (of_key < 3), "{of_key} held, {lease:?}");
                    held.extend(lease.map(|lease| (key, lease)));
                }
                Event::Release(index) if !held.is_empty() => {
                    let (_, lease) = held.swap_remove(index.index(held.len()));
                    prop_assert!(engine.release(&session, lease, WorkOutcome::Ok, now()));
                }
                Event::Release(_) => {}
                Event::Miscount(key, by) => is_sound &= !engine.miscount(key, by, now()),
                Event::MiscountPool(busy, critical, others) => {
                    engine.pools.of("web").miscount(busy, critical, others, now().at);
                    is_pool_sound = false;
                }
                Event::Repair => {
                    let (audit, repaired) = engine.repair(now());
                    prop_assert_eq!(audit.differing + audit.pools, repaired);
                    prop_assert!(!is_sound || audit.differing == 0);
                    prop_assert!(!is_pool_sound || audit.pools == 0);
                    let again = engine.audit();
                    prop_assert_eq!((again.differing, again.pools), (0, 0));
                    prop_assert_eq!(engine.repair_all_pools(now()), 0);
                    let pools = engine.pools(now());
                    let work = |pool: &crate::engine::PoolView| (pool.busy, pool.critical + pool.others);
                    let leases = u32::try_from(held.len()).unwrap();
                    prop_assert_eq!(pools.iter().map(work).collect::<Vec<_>>(), [(leases, leases)]);
                    prop_assert_eq!(engine.repair_keys(&engine.counted_keys(), now()), 0);
                    (is_sound, is_pool_sound) = (true, true);
                }
            }
        }
    }
}

#[test]
fn a_place_that_nobody_holds_is_found_and_given_back() {
    let engine = engine();
    let (mut decider, session) = (engine.decider(), session(&engine, 1));
    assert!(acquire(&mut decider, &session, "a").is_some());
    assert!(engine.miscount(0, 2, now()));
    let (audit, repaired) = engine.repair(now());
    assert_eq!((audit.differing, repaired), (1, 1));
    assert_eq!(engine.repair(now()).0.differing, 0);
}

#[test]
fn a_pool_that_counts_work_that_nobody_does_admits_as_before_once_it_is_repaired() {
    // Too many other pieces, or so few that the count has passed zero: both refuse other work for ever.
    for drift in [2, -2] {
        let engine = engine_of(&format!("{RULES}{POOL}"));
        let (mut decider, session) = (engine.decider(), session(&engine, 1));
        assert!(acquire(&mut decider, &session, "a").is_some());
        assert_eq!(engine.repair(now()).1, 0, "nothing is wrong");
        engine.pools.of("web").miscount(3, 1, drift, now().at);
        assert!(acquire(&mut decider, &session, "b").is_none());
        let view = &engine.pools(now())[0];
        assert_eq!((view.busy, view.critical), (4, 1));
        let (audit, repaired) = engine.repair(now());
        assert_eq!((audit.differing, audit.pools, repaired), (0, 1, 1));
        let view = &engine.pools(now())[0];
        assert_eq!((view.busy, view.critical, view.others), (1, 0, 1));
        let (audit, repaired) = engine.repair(now());
        assert_eq!((audit.differing, audit.pools, repaired), (0, 0, 0));
        assert!(acquire(&mut decider, &session, "b").is_some());
        assert!(acquire(&mut decider, &session, "c").is_none(), "the other half is kept back");
    }
}

#[test]
fn slots_that_were_counted_busy_wrongly_are_free_for_the_slow_law_once_repaired() {
    let engine = engine_of(&format!("{RULES}{POOL}"));
    let _session = session(&engine, 1);
    let at = |seconds: u64| Now::at_nanos(seconds * 1_000_000_000);
    let u = |second: u64| engine.pools(at(second))[0].utilization;
    engine.tick(at(1));
    engine.pools.of("web").miscount(4, 0, 0, at(1).at);
    (2..=10).for_each(|second| engine.tick(at(second)));
    assert_eq!(u(10), Some(1.0));
    assert_eq!(engine.repair(at(10)).1, 1);
    (11..=14).for_each(|second| engine.tick(at(second)));
    assert_eq!(u(14), Some(0.5), "four of eight seconds");
    (15..=19).for_each(|second| engine.tick(at(second)));
    assert_eq!(u(19), Some(0.0));
}
