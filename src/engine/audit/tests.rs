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

fn engine() -> Arc<Engine> {
    let hash_key = HashKey::from_bytes([7; 16]);
    let engine = Arc::new(Engine::new(Options { hash_key, mode: Mode::Enforce, memory_bytes_max: 1 << 22 }));
    let loaded = read_text("rules.yaml", RULES);
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
        Answer::Conflict | Answer::Quota => None,
    }
}

#[derive(Clone, Debug)]
enum Event {
    Acquire(u8),
    Release(prop::sample::Index),
    Miscount(usize, i32),
    Repair,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (0..4_u8).prop_map(Event::Acquire),
        4 => any::<prop::sample::Index>().prop_map(Event::Release),
        1 => (0..8_usize, -3..4_i32).prop_map(|(key, by)| Event::Miscount(key, by)),
        2 => Just(Event::Repair),
    ]
}

proptest! {
    #[test]
    fn after_a_repair_a_limit_admits_exactly_what_its_leases_leave(events in prop::collection::vec(event(), 0..120)) {
        let engine = engine();
        let (mut decider, session) = (engine.decider(), session(&engine, 1));
        let mut held: Vec<(u8, u64)> = Vec::new();
        let mut is_sound = true;
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
                Event::Repair => {
                    let (audit, repaired) = engine.repair(now());
                    prop_assert_eq!(audit.differing, repaired);
                    prop_assert!(!is_sound || repaired == 0);
                    prop_assert_eq!(engine.audit().differing, 0);
                    prop_assert_eq!(engine.repair_keys(&engine.counted_keys(), now()), 0);
                    is_sound = true;
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
