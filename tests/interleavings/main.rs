//! Admission under a checker that chooses at every lock which thread runs next. Time stands still unless a
//! test advances it, so the expected result is independent of the order.
//!
//! A failing schedule is printed with its seed (`INTERLEAVINGS_SEED` runs it again).
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test fails by panicking, and prints its seed"
)]

mod leases;
mod remote_checks;

use std::sync::{Arc, OnceLock};

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner, thread};

use tidegate::clock::Now;
use tidegate::engine::snapshot::SnapshotEntry;
use tidegate::engine::{
    Amount, Charge, Decider, Descriptors, Engine, EngineAnswer, EngineOptions, HashKey, IdempotencyKey, Mode,
    Op, Request, Verdict,
};
use tidegate::rules::{Domain, read_text};

const SECOND: u64 = 1_000_000_000;

/// Runs a test in many schedules: half random at every step, half with few, adversarial preemptions.
fn check(test: fn()) {
    check_in(1, test);
}

/// As `check`, for a test that takes `times` as long as others.
fn check_in(times: u64, test: fn()) {
    let from_env = |name: &str| std::env::var(name).ok().and_then(|number| number.parse().ok());
    let seed = from_env("INTERLEAVINGS_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    let schedules = from_env("INTERLEAVINGS").unwrap_or(400);
    println!("INTERLEAVINGS_SEED={seed} INTERLEAVINGS={schedules}");
    let each = usize::try_from(schedules / times / 2).unwrap().max(1);
    let mut config = Config::default();
    // An engine of a debug build needs more than the default stack of the checker.
    config.stack_size = 512 * 1_024;
    config.silence_warnings = true;
    Runner::new(RandomScheduler::new_from_seed(seed, each), config.clone()).run(test);
    Runner::new(PctScheduler::new_from_seed(seed, 3, each), config).run(test);
}

fn rules(limits: &str) -> Vec<Arc<Domain>> {
    let loaded = read_text("rules.yaml", &format!("domain: api\nlimits:\n{limits}"));
    assert!(!loaded.has_errors(), "{:#?}", loaded.problems);
    loaded.domains
}

fn engine_without_rules(memory_bytes_max: usize) -> Arc<Engine> {
    let hash_key = HashKey::from_bytes([7; 16]);
    Arc::new(Engine::new(EngineOptions { hash_key, mode: Mode::Enforce, memory_bytes_max }))
}

fn engine_of(limits: &str, memory_bytes_max: usize) -> Arc<Engine> {
    let engine = engine_without_rules(memory_bytes_max);
    engine.install_rules(rules(limits));
    engine
}

fn engine(limits: &str) -> Arc<Engine> {
    engine_of(limits, 1 << 20)
}

type Observed = (Verdict, Vec<(String, u64)>);

fn ask(
    decider: &mut Decider,
    op: Op,
    attributes: &[(&str, &str)],
    name: Option<&[u8]>,
    at: u64,
) -> Option<Observed> {
    let repeat = name.map(|name| IdempotencyKey { session: b"s", user: 1, name });
    let request = Request {
        idempotency_key: repeat,
        lists_all_limits: true,
        ..Request::new(op, "api", Descriptors::from_attributes(attributes))
    };
    match decider.decide(&request, Now::at_nanos(at)) {
        EngineAnswer::Conflict | EngineAnswer::TooManyLeases | EngineAnswer::RemoteCheck(_) => None,
        EngineAnswer::Decided(decision) => {
            let left =
                decision.limits().map(|limit| (limit.view.rule.name.to_string(), limit.view.level.remaining));
            Some((decision.verdict, left.collect()))
        }
    }
}

fn hit(decider: &mut Decider, attributes: &[(&str, &str)]) -> bool {
    ask(decider, Op::Hit, attributes, None, 0).unwrap().0 == Verdict::Allow
}

/// Returns the remaining units of one rule for these attributes.
fn left(engine: &Arc<Engine>, rule: &str, attributes: &[(&str, &str)], at: u64) -> u64 {
    let (_, all) = ask(&mut engine.decider(), Op::Peek, attributes, None, at).unwrap();
    all.into_iter().find(|(name, _)| name == rule).unwrap().1
}

/// Runs the functions in parallel and returns their results.
fn run_concurrently<T: Send + 'static>(
    works: impl IntoIterator<Item = impl FnOnce() -> T + Send + 'static>,
) -> Vec<T> {
    let threads: Vec<_> = works.into_iter().map(thread::spawn).collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

/// Rules whose keys overlap across shards: a request charges the key of all requests, and those by `x`, by
/// `y` and by both.
const CROSSING: &str = "  - {name: all, key: [], rate: 1/h, burst: 4}
  - {name: by-x, key: [x], rate: 1/h, burst: 2}
  - {name: by-y, key: [y], algorithm: fixed_window, rate: 2/h}
  - {name: by-both, key: [x, y], algorithm: sliding_log, rate: 2/h}
";

#[test]
fn charges_all_rules_or_none() {
    check(|| {
        let engine = engine(CROSSING);
        let hits = |pairs: [(&'static str, &'static str); 2]| {
            let engine = Arc::clone(&engine);
            move || {
                let mut decider = engine.decider();
                let hits = pairs.into_iter().map(|(x, y)| (x, y, hit(&mut decider, &[("x", x), ("y", y)])));
                hits.collect::<Vec<_>>()
            }
        };
        // Some two of these requests lock their shards in opposite rule order.
        let seen = run_concurrently(vec![
            hits([("1", "2"), ("3", "4")]),
            hits([("3", "2"), ("1", "2")]),
            hits([("1", "4"), ("3", "2")]),
        ]);
        let seen: Vec<_> = seen.into_iter().flatten().collect();
        let admitted = |about: &dyn Fn(&str, &str) -> bool| {
            u64::try_from(seen.iter().filter(|(x, y, passed)| *passed && about(x, y)).count()).unwrap()
        };
        for (x, y, passed) in &seen {
            let attributes = [("x", *x), ("y", *y)];
            let rest = |rule| left(&engine, rule, &attributes, 0);
            assert_eq!(rest("all"), 4 - admitted(&|_, _| true), "{seen:?}");
            assert_eq!(rest("by-x"), 2 - admitted(&|other, _| other == *x), "{seen:?}");
            assert_eq!(rest("by-y"), 2 - admitted(&|_, other| other == *y), "{seen:?}");
            assert_eq!(rest("by-both"), 2 - admitted(&|a, b| (a, b) == (*x, *y)), "{seen:?}");
            // Nothing is refunded, so a refused request is still refused.
            let still = ask(&mut engine.decider(), Op::Peek, &attributes, None, 0).unwrap().0;
            assert!(*passed || still == Verdict::Limit, "{seen:?}");
        }
    });
}

const TWO_KEYS: &str =
    "  - {name: a, key: [x], rate: 1/h, burst: 9}\n  - {name: b, key: [y], rate: 1/h, burst: 9}\n";

/// Returns a value of `y` in the shard of a value of `x`: a copy lists the keys of a shard together.
fn sharing_shard(x: &str) -> String {
    let shares = |y: &String| {
        let engine = engine(TWO_KEYS);
        let mut decider = engine.decider();
        assert!(hit(&mut decider, &[("x", x)]) && hit(&mut decider, &[("y", y)]));
        let mut lists = 0;
        engine.copy_out(Now::at_nanos(0), &mut |entry| {
            lists += usize::from(matches!(entry, SnapshotEntry::Buckets(_)));
        });
        lists == 1
    };
    (0..).map(|value: u32| value.to_string()).find(shares).unwrap()
}

#[test]
fn crossing_locks_never_deadlock() {
    check(|| {
        static IN_SHARDS: OnceLock<[String; 3]> = OnceLock::new();
        let in_shards = IN_SHARDS.get_or_init(|| ["1", "2", "3"].map(sharing_shard));
        let engine = engine(TWO_KEYS);
        // Three shards; each thread locks two of them in rule order, forming a circle.
        let works = [("1", 1), ("2", 2), ("3", 0)].map(|(x, shard)| {
            let (engine, y) = (Arc::clone(&engine), &in_shards[shard]);
            move || {
                let mut decider = engine.decider();
                for _ in 0..2 {
                    assert!(hit(&mut decider, &[("x", x), ("y", y)]));
                }
            }
        });
        run_concurrently(works);
    });
}

#[test]
fn charges_one_of_two_retries() {
    check(|| {
        let engine = engine(
            "  - {name: a, key: [x], rate: 1/h, burst: 5}\n  - {name: b, key: [], rate: 1/h, burst: 5}\n",
        );
        let works = (0..3).map(|_| {
            let engine = Arc::clone(&engine);
            move || ask(&mut engine.decider(), Op::Hit, &[("x", "1")], Some(b"once"), 0)
        });
        let seen = run_concurrently(works);
        // All get the first grant, with its remaining units.
        for one in seen {
            assert_eq!(one, Some((Verdict::Allow, vec![("a".into(), 4), ("b".into(), 4)])));
        }
        assert_eq!(left(&engine, "a", &[("x", "1")], 0), 4);
    });
}

#[test]
fn judges_one_of_two_requests_with_same_key() {
    check(|| {
        let engine = engine("  - {name: a, key: [x], rate: 1/h, burst: 5}\n");
        let works = ["1", "2", "1"].map(|x| {
            let engine = Arc::clone(&engine);
            move || ask(&mut engine.decider(), Op::Hit, &[("x", x)], Some(b"once"), 0).is_some()
        });
        let granted = run_concurrently(works);
        let used = |x| 5 - left(&engine, "a", &[("x", x)], 0);
        assert_eq!(used("1") + used("2"), 1);
        assert_eq!(granted, [used("1") == 1, used("2") == 1, used("1") == 1]);
    });
}

#[test]
fn reload_loses_no_charge() {
    check(|| {
        let (before, after) = (
            "  - {name: a, key: [x], rate: 1/h, burst: 4}\n  - {name: w, key: [x], algorithm: fixed_window, rate: 6/h}\n",
            // A finer scale, another generation of quotas, one more rule, and shifted rule numbers.
            "  - {name: new, key: [], rate: 1/h, burst: 100}\n  - {name: a, key: [x], rate: 1/h, burst: 4, \
             overrides: [{match: {x: '9'}, rate: 7/s}]}\n  - {name: w, key: [x], algorithm: fixed_window, rate: 6/h}\n",
        );
        let engine = engine(before);
        let mut works: Vec<Box<dyn FnOnce() -> u64 + Send>> = Vec::new();
        for _ in 0..2 {
            let engine = Arc::clone(&engine);
            works.push(Box::new(move || {
                let mut decider = engine.decider();
                (0..3).map(|_| u64::from(hit(&mut decider, &[("x", "1")]))).sum()
            }));
        }
        let reloaded = Arc::clone(&engine);
        works.push(Box::new(move || {
            reloaded.install_rules(rules(after));
            reloaded.install_rules(rules(before));
            reloaded.install_rules(rules(after));
            0
        }));
        let admitted: u64 = run_concurrently(works).into_iter().sum();
        assert_eq!(admitted, 4);
        assert_eq!(left(&engine, "a", &[("x", "1")], 0), 0);
        assert_eq!(left(&engine, "w", &[("x", "1")], 0), 2);
    });
}

#[test]
fn sweep_removes_only_fresh_states() {
    check(|| {
        let engine = engine(
            "  - {name: short, key: [x], rate: 2/s, burst: 2}\n  - {name: long, key: [x], rate: 1/h, burst: 3, block: 1h}\n",
        );
        let mut decider = engine.decider();
        for _ in 0..2 {
            assert!(hit(&mut decider, &[("x", "1")]));
        }
        engine.sweep(Now::at_nanos(0));
        let sweeping = Arc::clone(&engine);
        let shared = Arc::clone(&engine);
        let works: Vec<Box<dyn FnOnce() + Send>> = vec![
            Box::new(move || {
                for second in 1..3 {
                    sweeping.sweep(Now::at_nanos(second * SECOND));
                }
            }),
            Box::new(move || {
                let mut decider = shared.decider();
                let seen = [1, 2].map(|second| {
                    ask(&mut decider, Op::Hit, &[("x", "1")], None, second * SECOND).unwrap().0
                });
                assert_eq!(seen, [Verdict::Allow, Verdict::Limit]);
            }),
        ];
        run_concurrently(works);
        // The first rule is full again; the other keeps its three charges and the block.
        assert_eq!(left(&engine, "short", &[("x", "1")], 3 * SECOND), 2);
        assert_eq!(left(&engine, "long", &[("x", "1")], 3 * SECOND), 0);
        let blocked = ask(&mut engine.decider(), Op::Peek, &[("x", "1")], None, 3_601 * SECOND).unwrap();
        assert_eq!(blocked.0, Verdict::Limit);
    });
}

#[test]
fn removing_keys_keeps_others_intact() {
    check_in(20, || {
        // Room for fewer keys than are used.
        let engine = engine_of("  - {name: a, key: [x], rate: 1/h, burst: 50}\n", 64 << 10);
        let mut decider = engine.decider();
        let names: Vec<String> = (0..1_900).map(|name| name.to_string()).collect();
        for name in names.iter().take(1_850) {
            hit(&mut decider, &[("x", name)]);
        }
        let works = (0..2_usize).map(|thread| {
            let engine = Arc::clone(&engine);
            let names = names.clone();
            move || {
                let mut decider = engine.decider();
                // Other keys may evict this thread's own key, never corrupt it.
                for step in 0..20_usize {
                    let own = &names[thread];
                    let request = ask(&mut decider, Op::Hit, &[("x", own)], None, 0).unwrap();
                    assert_eq!(request.0, Verdict::Allow);
                    hit(&mut decider, &[("x", &names[1_850 + thread * 20 + step])]);
                }
            }
        });
        run_concurrently(works);
        let used = 50 - left(&engine, "a", &[("x", "0")], 0);
        assert!((1..=21).contains(&used), "{used}");
        // The tables keep to the limit; the caller sketch of one rule adds about 5 KiB.
        assert!(engine.memory_bytes() <= (64 << 10) + (6 << 10), "{}", engine.memory_bytes());
    });
}

#[test]
fn adds_up_concurrent_charges() {
    check(|| {
        let engine = engine(
            "  - {name: a, key: [], rate: 1/h, burst: 20}\n  - {name: b, key: [x], rate: 1/h, burst: 20}\n",
        );
        let works = [3_i64, 4, -2].map(|amount| {
            let engine = Arc::clone(&engine);
            move || {
                let mut decider = engine.decider();
                let attributes = [("x", "1")];
                hit(&mut decider, &attributes);
                hit(&mut decider, &attributes);
                let descriptors = Descriptors::from_attributes(&attributes);
                let amount = Amount::Requests(amount);
                let charge = Charge {
                    domain: "api",
                    descriptors,
                    amount,
                    idempotency_key: None,
                    refund_of: None,
                    trusted: true,
                };
                assert_eq!(decider.charge(&charge, Now::at_nanos(0)), Ok(true));
            }
        });
        run_concurrently(works);
        for rule in ["a", "b"] {
            assert_eq!(left(&engine, rule, &[("x", "1")], 0), 20 - 6 - 5);
        }
    });
}
