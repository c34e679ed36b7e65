//! Admission by all rules or none, in every interleaving; the rule that a reply names; the keys that tables
//! keep.

use std::sync::atomic::{AtomicU64, Ordering};

use super::bench::{Ask, Bench, named};
use super::engines::{ask, at_millis, engine, hit, in_mode, matching, rule};
use tidegate::engine::{Cost, Descriptors, Engine, EngineAnswer, Op, Request, Verdict};
use tidegate::rules::Mode;

use crate::rng::Rng;

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
fn remembered_grants_expire_and_are_bounded() {
    let mut bench = Bench::new("  - {name: a, key: [u], rate: 1/min, burst: 2}\n");
    for number in 0..10_000u32 {
        let (name, attributes) = (number.to_le_bytes(), format!("u={number}"));
        let ask = Ask { repeat: Some(named(&name)), ..Ask::hit(&attributes, 1) };
        assert_eq!(bench.ask(u64::from(number), ask), "allow a 1/2");
    }
    let full = bench.engine.memory_bytes();
    for second in 1..400 {
        bench.engine.sweep(at_millis(second * 1_000));
    }
    assert_eq!(bench.engine.keys(), 0);
    assert!(bench.engine.memory_bytes() * 20 < full, "{} of {full}", bench.engine.memory_bytes());
}
