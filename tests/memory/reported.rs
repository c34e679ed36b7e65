//! The bytes per key that `check` reports match the bytes allocated.

use tidegate::clock::Now;
use tidegate::engine::{Descriptors, HashKey, KindsInUse, Op, Request, bytes_per_rule_key, keys_within};

use crate::counting::held;
use crate::{ALGORITHMS, SECOND, engine, engines, hit, one_of_each, rules};

const KEYS: u32 = 2_000;
const BUDGET: usize = 64 << 20;

/// Rules with state besides the quota once a key is over its limit.
const BESIDE: [(&str, &str); 5] = [
    ("soft", "rate: 6/h, over: {soft: 50%}"),
    ("soft_log", "algorithm: sliding_log, rate: 6/h, over: {soft: 50%}"),
    ("elastic", "rate: 6/h, over: {elastic: 100%}"),
    ("blocks", "rate: 6/h, block: 1h"),
    // Most keys are untracked: they take less.
    ("fleet", "rate: 6/h, scope: fleet, fleet: {on_miss: refuse}"),
];

/// Bytes of each key after one and after eleven requests for each of many keys, with Redis reachable and free
/// memory.
fn bytes_per_key(limit: &str) -> (f64, f64) {
    let engine = engine(limit, BUDGET);
    engine.join_fleet(HashKey::from_bytes([9; 16])).set_redis_reachable(true);
    engine.install_rules([rules(limit), engines::domains(engines::ROOM)].concat());
    let session = engines::open(&engine, 1, 10, Now::at_nanos(SECOND));
    let mut decider = engine.decider();
    let (before, start) = (engine.memory_bytes(), held());
    let mut ask = |times: u32| {
        for user in 0..KEYS {
            let user = user.to_string();
            let attributes = [("u", user.as_str())];
            let descriptors = Descriptors::from_attributes(&attributes);
            let request = Request { session: Some(&session), ..Request::new(Op::Hit, "api", descriptors) };
            (0..times).for_each(|_| drop(decider.decide(&request, Now::at_nanos(SECOND))));
        }
        let counted = engine.memory_bytes() - before;
        let really = held() - start;
        // Buffers of the decider, malloc's overhead for each of 64 tables, and the keys queued for a sync.
        let slack = 8_192 + really / 5;
        let difference = (really - i64::try_from(counted).unwrap()).abs();
        assert!(difference <= slack, "{limit}: {counted} counted, {really} handed out");
        counted as f64 / f64::from(KEYS)
    };
    (ask(1), ask(11))
}

#[test]
fn bytes_per_key_within_reported_range() {
    for (name, limit) in ALGORITHMS.iter().chain(&BESIDE) {
        let limit = format!("  - {{name: {name}, key: [u], {limit}}}\n");
        let rules = rules(&limit);
        let rule = &rules[0].rules()[0];
        let said = bytes_per_rule_key(rule);
        let (one, many) = bytes_per_key(&limit);
        assert!(one >= said.least as f64, "{name}: {one} of {said:?}");
        assert!(many >= one && many <= said.most as f64 + SLACK, "{name}: {many} of {said:?}");
        // The reported maximum is at most twice the actual use, so that `check` does not deter for no reason.
        let fit = keys_within(BUDGET, rule, KindsInUse::of([rule])).unwrap();
        assert!(fit as f64 * many >= BUDGET as f64 / 8.0, "{name}: {fit} keys are said to fit");
    }
}

#[test]
fn a_key_takes_the_reported_bytes_at_any_number_of_keys() {
    let limit = "  - {name: bucket, key: [u], rate: 6/h}\n";
    let said = bytes_per_rule_key(&rules(limit)[0].rules()[0]);
    let engine = engine(limit, BUDGET);
    let (mut decider, before) = (engine.decider(), engine.memory_bytes());
    for keys in 1..=120_000u32 {
        let user = keys.to_string();
        let attributes = [("u", user.as_str())];
        let request = Request::new(Op::Hit, "api", Descriptors::from_attributes(&attributes));
        drop(decider.decide(&request, Now::at_nanos(SECOND)));
        let bytes = (engine.memory_bytes() - before) as f64 / f64::from(keys);
        if keys >= 20_000 {
            let is_within = bytes >= said.least as f64 && bytes <= said.most as f64;
            assert!(is_within, "{bytes} of {said:?} with {keys} keys");
        }
    }
}

/// Each other kind of table keeps its part of the memory.
#[test]
fn holds_the_reported_keys_beside_rules_of_other_algorithms() {
    const BUDGET: usize = 4 << 20;
    let domains = rules(&one_of_each());
    let in_use = KindsInUse::of(domains[0].rules());
    let alone = |rule| keys_within(BUDGET, rule, KindsInUse::of([rule])).unwrap();
    for ((kind, _), rule) in ALGORITHMS.iter().zip(domains[0].rules()) {
        let engine = engine(&one_of_each(), BUDGET);
        let mut decider = engine.decider();
        let fit = keys_within(BUDGET, rule, in_use).unwrap();
        assert!(fit < alone(rule), "{kind}: {fit}");
        (0..fit).for_each(|user| assert!(hit(&mut decider, kind, &user.to_string(), HOUR)));
        assert_eq!(engine.totals().evictions, 0, "{kind}: {fit} keys");
    }
}

/// The start of an hour: aligned windows have their full length ahead.
const HOUR: u64 = 1_000 * 3_600 * SECOND;

/// Fixed bytes of a shard's table, spread over thirty keys.
const SLACK: f64 = 4.0;
