//! Admission by all rules or none, in every interleaving; the rule that a reply names; the keys that tables
//! keep.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::bench::{Bench, S};
use super::engines::{api, ask, at_millis, engine, hit, in_mode, matching, options, rule};
use tidegate::engine::{Cost, Descriptors, Engine, EngineAnswer, EngineOptions, Op, Request, Verdict};
use tidegate::rules::Mode;

use crate::rng::Rng;

#[test]
fn daemon_mode_overrides_stricter_rule_mode() {
    for (mode, allowed) in [(Mode::Enforce, 1), (Mode::Shadow, 5), (Mode::Disabled, 5)] {
        let engine = Arc::new(Engine::new(EngineOptions { mode, ..options() }));
        engine.install_rules(api(vec![rule("per-user", &["user"], 1, 1)]));
        let mut decider = engine.decider();
        let passed = (0..5).filter(|_| hit(&mut decider, &[("user", "u1")], at_millis(0))).count();
        assert_eq!(passed, allowed, "{mode}");
        assert_eq!(engine.keys(), usize::from(mode != Mode::Disabled), "{mode}");
    }
}

#[test]
fn allows_and_counts_unmatched_requests() {
    let engine = engine(vec![matching(rule("posts", &["user"], 1, 1), "method", &["POST"])]);
    let mut decider = engine.decider();
    for attributes in
        [&[("user", "u1")][..], &[("user", "u1"), ("method", "GET")], &[("method", "POST")], &[]]
    {
        let seen = ask(&mut decider, Op::Hit, attributes, 1, at_millis(0));
        assert_eq!((seen.verdict, seen.rule), (Verdict::Allow, None));
    }
    let request = Request::new(Op::Hit, "nowhere", Descriptors::from_attributes(&[]));
    let EngineAnswer::Decided(decision) = decider.decide(&request, at_millis(0)) else {
        panic!("a conflict")
    };
    assert_eq!(decision.verdict, Verdict::Allow);
    drop(decision);
    let totals = engine.totals();
    assert_eq!((totals.unmatched_rule, totals.unmatched_domain, totals.verdicts.allow), (4, 1, 5));
}

#[test]
fn separates_keys_by_rule_and_values() {
    let engine = engine(vec![rule("a", &["x", "y"], 1, 1), rule("b", &["x"], 1, 100)]);
    let mut decider = engine.decider();
    // The same letters, split differently, are another key.
    for attributes in [[("x", "ab"), ("y", "c")], [("x", "a"), ("y", "bc")], [("x", "abc"), ("y", "d")]] {
        assert!(hit(&mut decider, &attributes, at_millis(0)), "{attributes:?}");
        assert!(!hit(&mut decider, &attributes, at_millis(0)), "{attributes:?}");
    }
    assert_eq!(engine.keys(), 6);
}

#[test]
fn no_interleaving_exceeds_the_limit() {
    // Four threads, one shared counter and one per user, with the clock stopped: exactly the burst is
    // allowed.
    let (global, of_user, users) = (2_000_u32, 300_u32, 8);
    let engine = engine(vec![rule("global", &[], 1, global), rule("per-user", &["user"], 1, of_user)]);
    let admitted: Vec<AtomicU64> = (0..users).map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (engine, admitted) = (&engine, &admitted);
            scope.spawn(move || {
                let mut decider = engine.decider();
                for turn in 0..4_000 {
                    let user = (turn * 7 + thread) % users;
                    if hit(&mut decider, &[("user", &format!("u{user}"))], at_millis(0)) {
                        admitted[user].fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let admitted: Vec<_> = admitted.iter().map(|count| count.load(Ordering::Relaxed)).collect();
    assert!(admitted.iter().all(|count| *count <= u64::from(of_user)), "{admitted:?}");
    assert_eq!(admitted.iter().sum::<u64>(), u64::from(global), "{admitted:?}");
    // One rule's refusals were not charged to the other: the shared counter holds exactly the allowed
    // requests.
    let totals = engine.totals();
    assert_eq!(totals.verdicts.allow + totals.verdicts.limit, 16_000);
}

#[test]
fn sweeps_full_keys_and_shrinks_tables() {
    let engine = engine(vec![rule("per-user", &["user"], 1, 2)]);
    let mut decider = engine.decider();
    let empty = engine.memory_bytes();
    for user in 0..50_000 {
        hit(&mut decider, &[("user", &format!("u{user}"))], at_millis(0));
    }
    assert_eq!(engine.keys(), 50_000);
    let full = engine.memory_bytes();
    // A key of one hit fills in one second and is dropped within twice the two seconds that an empty one
    // takes.
    for tick in 0..=16 {
        let now = at_millis(tick * 250);
        engine.sweep(now);
        if tick * 250 < 1_000 {
            assert_eq!(engine.keys(), 50_000, "swept before it was full");
        }
    }
    assert_eq!(engine.keys(), 0);
    for tick in 17..=34 {
        engine.sweep(at_millis(tick * 250));
    }
    assert!(engine.memory_bytes() - empty < full / 10, "{} of {full}", engine.memory_bytes());
}

#[test]
fn decision_lists_the_check_of_each_rule_that_matched() {
    let rules = |more: Vec<tidegate::rules::Rule>| [vec![rule("a", &["user"], 1, 4)], more].concat();
    let shadow = || in_mode(rule("b", &[], 1, 2), Mode::Shadow);
    let checks = |rules: Vec<tidegate::rules::Rule>, cost: u32| {
        let engine = engine(rules);
        let mut decider = engine.decider();
        let attributes = [("user", "u")];
        let request = Request {
            cost: Cost::Requests(cost),
            ..Request::new(Op::Hit, "api", Descriptors::from_attributes(&attributes))
        };
        let EngineAnswer::Decided(decision) = decider.decide(&request, at_millis(0)) else { panic!() };
        decision.checks().map(|check| (check.rule, check.key, check.cost, check.passes)).collect::<Vec<_>>()
    };
    let [one] = checks(rules(vec![]), 3)[..] else { panic!("one rule") };
    let [first, second] = checks(rules(vec![shadow()]), 3)[..] else { panic!("two rules") };
    assert_eq!(one, first, "its key is the same beside others");
    assert_eq!((one.0, one.2, one.3), (0, 3, true));
    assert_eq!((second.0, second.2, second.3), (1, 3, false));
    assert_eq!(checks(rules(vec![shadow()]), 2), [(0, one.1, 2, true), (1, second.1, 2, true)]);
    let refused: Vec<bool> = checks(rules(vec![shadow()]), 5).into_iter().map(|check| check.3).collect();
    assert_eq!((refused, checks(rules(vec![]), 5)[0].3), (vec![false, false], false));
    assert_eq!(checks(vec![], 1), []);
}

#[test]
fn sweep_keeps_blocks() {
    let mut bench = Bench::new("  - {name: login, key: [account], rate: 2/min, burst: 2, block: 10min}\n");
    bench.check(&[
        (0, "account=a", 2, "allow login 0/2"),
        (0, "account=a", 1, "limit login 0/2 after 600000000"),
    ]);
    // The bucket is full again after a minute and swept; the block stays.
    for second in 1..400 {
        bench.engine.sweep(at_millis(second * 1_000));
    }
    bench.check(&[(400 * S, "account=a", 1, "limit login 2/2 after 200000000")]);
}

#[test]
fn fast_path_decides_and_counts_like_the_general_path() {
    let limits = "
- {name: a, key: [user], rate: 5/s, burst: 9}
- {name: b, key: [], rate: 6/s, mode: shadow}
- {name: c, key: [path, user], match: {path: /*}, rate: 1/s, burst: 12}
- {name: d, key: [plan], rate: 1/s, burst: 9, advertise: false}";
    // Priorities take the requests of a domain to the general path; a list does not.
    let of = |more| Bench::of(Mode::Enforce, &format!("domain: api\n{more}\nlimits:{limits}\n")).engine;
    let engines = ["deny: [{name: none, match: {user: nobody}}]", "priorities: [all]"].map(of);
    let mut deciders = engines.each_ref().map(Engine::decider);
    let mut random = Rng::new(3);
    let mut millis = 0;
    for _ in 0..20_000 {
        millis += random.below(60);
        let attributes = [
            ("user", random.pick(&["1", "2", "3"])),
            ("path", random.pick(&["-", "/", "/b"])),
            ("plan", &"p"),
        ];
        let attributes = attributes.map(|(name, value)| (name, *value));
        let given = &attributes[..1 + usize::try_from(random.below(3)).unwrap()];
        let cost = u32::try_from(random.below(4)).unwrap();
        let [fast, general] =
            deciders.each_mut().map(|decider| ask(decider, Op::Hit, given, cost, at_millis(millis)));
        assert_eq!(fast, general, "{given:?} × {cost} at {millis} ms");
        if random.below(100) == 0 {
            engines.iter().for_each(|engine| engine.sweep(at_millis(millis)));
        }
    }
    let [fast, general] = engines.each_ref().map(|engine| {
        let callers = ["a", "b", "c", "d"].map(|rule| engine.top_callers("api", rule));
        let totals = engine.totals();
        (callers, totals.verdicts, totals.rules[..4].to_vec(), totals.unnamed, engine.keys())
    });
    assert_eq!(fast, general);
    let counts = fast.2.iter().map(|rule| rule.outcomes().map(|count| count.min(200)));
    assert_eq!(counts.collect::<Vec<_>>(), [[200, 200, 0], [200, 0, 200], [200, 200, 0], [200, 200, 0]]);
}

#[test]
fn retry_outlasts_soft_part_that_ends_before_another_rule_passes() {
    let day = "name: day, key: [u], algorithm: fixed_window, rate: 1/day";
    let mut bench = Bench::new(&format!(
        "  - {{name: short, key: [u], rate: 2/4s}}\n  - {{{day}, over: {{soft: 400%, for: 1s}}}}\n"
    ));
    let next_day = 86_400 * S;
    bench.check(&[
        (0, "u=1", 1, "allow day 0/1"),
        (0, "u=1", 1, "allow short 0/2 [over day]"),
        // The bucket has a token in 2 s, a second after the end of the soft part.
        (0, "u=1", 1, "limit short 0/2 after 86400000000"),
        (next_day - 1, "u=1", 1, "limit day 0/1 after 1"),
        (next_day, "u=1", 1, "allow day 0/1"),
    ]);
}
