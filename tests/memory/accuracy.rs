//! The engine's count of its memory agrees with the allocator's.

use proptest::prelude::*;
use proptest::test_runner::{TestCaseResult, TestRunner};
use tidegate::clock::Now;
use tidegate::engine::{Descriptors, IdempotencyKey, Op, Request};

use crate::counting::held;
use crate::{ALGORITHMS, SECOND, engine, one_of_each};

/// A change of the tables.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// Keys of one algorithm, each hit `times` times, with or without an idempotency key.
    Keys { kind: usize, from: u32, many: u32, times: u32, named: bool },
    /// Seconds pass, then a sweep.
    Sweep(u64),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let keys = (0..ALGORITHMS.len(), 0..4_u32, 1..3_000_u32, 1..8_u32, prop::bool::weighted(0.2)).prop_map(
        |(kind, from, many, times, named)| Event::Keys { kind, from: from * 1_000, many, times, named },
    );
    let sweep = prop_oneof![0..120_u64, Just(7_300)].prop_map(Event::Sweep);
    prop::collection::vec(prop_oneof![3 => keys, 1 => sweep], 1..25)
}

/// Few cases, and one per 500 requested, as a trace has tens of thousands of requests. The macro would take
/// the number in `PROPTEST_CASES`, whatever its configuration.
fn config() -> ProptestConfig {
    let asked = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse::<u32>().ok());
    let cases = asked.map_or(4, |cases| (cases / 500).max(10));
    ProptestConfig { cases, source_file: Some(file!()), ..ProptestConfig::default() }
}

#[test]
fn counted_memory_matches_allocator() {
    let traces = (events(), 256_000..4_000_000_usize);
    TestRunner::new(config()).run(&traces, |(events, budget)| counts(events, budget)).unwrap();
}

fn counts(events: Vec<Event>, budget: usize) -> TestCaseResult {
    let start = held();
    let engine = engine(&one_of_each(), budget);
    let mut decider = engine.decider();
    let attributes = [("k", "token_bucket"), ("u", "warm")];
    let request = Request::new(Op::Hit, "api", Descriptors::from_attributes(&attributes));
    let _ = decider.decide(&request, Now::at_nanos(0));
    // Rules, counters and locks are not part of the budget.
    let other = held() - start - i64::try_from(engine.memory_bytes()).unwrap();
    let mut at = SECOND;
    for event in events {
        match event {
            Event::Sweep(seconds) => {
                // Several sweeps, so that tables emptied by the first one shrink.
                for _ in 0..3 {
                    at += seconds * SECOND / 3;
                    engine.sweep(Now::at_nanos(at));
                }
            }
            Event::Keys { kind, from, many, times, named } => {
                for key in from..from + many {
                    let user = key.to_string();
                    for time in 0..times {
                        at += 1_000;
                        let name = time.to_le_bytes();
                        let repeat =
                            named.then_some(IdempotencyKey { session: b"s", user: key, name: &name });
                        let attributes = [("k", ALGORITHMS[kind].0), ("u", &user)];
                        let request = Request {
                            idempotency_key: repeat,
                            ..Request::new(Op::Hit, "api", Descriptors::from_attributes(&attributes))
                        };
                        let _ = decider.decide(&request, Now::at_nanos(at));
                    }
                }
            }
        }
        let (counted, really) = (i64::try_from(engine.memory_bytes()).unwrap(), held() - start - other);
        // Tables are counted as requested: malloc adds 16 bytes to each, a page to a large one; 64 shards of
        // seven kinds, and 16 of retries. The lists of a decider take a few hundred bytes more.
        let slack = 4_096 + really / 20;
        prop_assert!(
            (really - counted).abs() <= slack,
            "{counted} counted, {really} handed out, after {event:?}"
        );
    }
    Ok(())
}
