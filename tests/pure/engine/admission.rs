//! Who is admitted: all rules or none, in every interleaving; what a reply names; what the tables keep.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::engines::{SECOND, api, ask, at_millis, engine, hit, in_mode, matching, options, rule};
use proptest::prelude::*;
use tidegate::clock::{Now, Timestamp};
use tidegate::engine::{Cost, Descriptors, Engine, EngineAnswer, EngineOptions, Op, Request, Verdict};
use tidegate::rules::Mode;

#[test]
fn a_refusal_charges_nothing() {
    let engine = engine(vec![rule("global", &[], 10, 10), rule("per-user", &["user"], 1, 2)]);
    let mut decider = engine.decider();
    let greedy = [("user", "greedy")];
    assert!(hit(&mut decider, &greedy, at_millis(0)));
    assert!(hit(&mut decider, &greedy, at_millis(0)));
    for _ in 0..100 {
        assert!(!hit(&mut decider, &greedy, at_millis(0)));
    }
    // The hundred refusals took nothing from what all share.
    let other = ask(&mut decider, Op::Peek, &[("user", "other")], 1, at_millis(0));
    assert_eq!(other.all, [("global".into(), 8), ("per-user".into(), 2)]);
}

#[test]
fn the_reply_names_the_binding_rule() {
    let rules = vec![
        rule("wide", &[], 10, 100),
        rule("tight", &["user"], 1, 2),
        rule("tight-too", &["user"], 1, 2),
        rule("slow", &["user"], 1, 3),
    ];
    let engine = engine(rules);
    let mut decider = engine.decider();
    let user = [("user", "u1")];
    // Granted: the smallest share left, the first of two alike.
    let granted = ask(&mut decider, Op::Hit, &user, 1, at_millis(0));
    assert_eq!((granted.rule.as_deref(), granted.remaining), (Some("tight"), Some(1)));
    assert_eq!(granted.retry_us, Some(0));
    // Refused: the longest wait; never is the longest.
    let refused = ask(&mut decider, Op::Hit, &user, 2, at_millis(0));
    assert_eq!((refused.rule.as_deref(), refused.retry_us), (Some("tight"), Some(1_000_000)));
    let never = ask(&mut decider, Op::Hit, &user, 3, at_millis(0));
    assert_eq!((never.verdict, never.rule.as_deref(), never.retry_us), (Verdict::Limit, Some("tight"), None));
    // The rest as it is: a refusal shows the state before it.
    assert_eq!(never.remaining, Some(1));
}

#[test]
fn a_peek_changes_creates_and_counts_nothing() {
    let engine = engine(vec![rule("per-user", &["user"], 1, 2)]);
    let mut decider = engine.decider();
    for _ in 0..10 {
        let seen = ask(&mut decider, Op::Peek, &[("user", "u1")], 2, at_millis(0));
        assert_eq!((seen.verdict, seen.remaining), (Verdict::Allow, Some(2)));
    }
    assert_eq!(engine.keys(), 0);
    assert_eq!(engine.totals().verdicts.allow, 0);
    let too_much = ask(&mut decider, Op::Peek, &[("user", "u1")], 3, at_millis(0));
    assert_eq!(too_much.verdict, Verdict::Limit);
    assert_eq!(engine.totals().rules[0].refuse, 0);
}

#[test]
fn a_shadow_rule_moves_its_own_state_and_refuses_nobody() {
    let shadow = in_mode(rule("dark", &["user"], 1, 1), Mode::Shadow);
    let engine = engine(vec![shadow, rule("bright", &["user"], 1, 3)]);
    let mut decider = engine.decider();
    let user = [("user", "u1")];
    let first = ask(&mut decider, Op::Hit, &user, 1, at_millis(0));
    assert_eq!((first.notes.as_slice(), first.rule.as_deref()), (&[][..], Some("bright")));
    for _ in 0..2 {
        let seen = ask(&mut decider, Op::Hit, &user, 1, at_millis(0));
        assert_eq!((seen.verdict, seen.notes), (Verdict::Allow, vec!["dark".to_string()]));
    }
    assert_eq!(ask(&mut decider, Op::Hit, &user, 1, at_millis(0)).verdict, Verdict::Limit);
    let totals = engine.totals();
    let dark = totals.rules.iter().find(|rule| &*rule.rule == "dark").unwrap();
    assert_eq!((dark.pass, dark.refuse, dark.would_refuse), (1, 0, 3));
}

#[test]
fn a_mode_for_all_is_milder_than_any_rule() {
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
fn what_no_rule_is_about_passes_and_is_counted() {
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
fn a_rule_is_judged_in_its_own_unit_only() {
    let engine = engine(vec![rule("per-user", &["user"], 1, 5)]);
    let mut decider = engine.decider();
    let mut ask = |units: &[(&str, u32)]| {
        let units = units.to_vec();
        let attributes = [("user", "u1")];
        let descriptors = Descriptors::from_attributes(&attributes);
        let request = Request { cost: Cost::Units(&units), ..Request::new(Op::Hit, "api", descriptors) };
        let EngineAnswer::Decided(decision) = decider.decide(&request, at_millis(0)) else {
            panic!("a conflict")
        };
        (decision.verdict, decision.binding.map(|binding| binding.level.remaining))
    };
    assert_eq!(ask(&[("tokens", 800)]), (Verdict::Allow, None));
    assert_eq!(ask(&[("tokens", 800), ("requests", 2)]), (Verdict::Allow, Some(3)));
    assert_eq!(ask(&[("requests", 4)]), (Verdict::Limit, Some(3)));
}

#[test]
fn keys_are_apart_by_rule_and_by_every_value() {
    let engine = engine(vec![rule("a", &["x", "y"], 1, 1), rule("b", &["x"], 1, 100)]);
    let mut decider = engine.decider();
    // The same letters, cut elsewhere, are another key.
    for attributes in [[("x", "ab"), ("y", "c")], [("x", "a"), ("y", "bc")], [("x", "abc"), ("y", "d")]] {
        assert!(hit(&mut decider, &attributes, at_millis(0)), "{attributes:?}");
        assert!(!hit(&mut decider, &attributes, at_millis(0)), "{attributes:?}");
    }
    assert_eq!(engine.keys(), 6);
}

#[test]
fn a_new_rule_set_keeps_the_state_of_rules_that_stay() {
    let engine = engine(vec![rule("stays", &["user"], 1, 2), rule("goes", &["user"], 1, 9)]);
    let mut decider = engine.decider();
    let user = [("user", "u1")];
    assert!(hit(&mut decider, &user, at_millis(0)));
    engine.install_rules(api(vec![rule("comes", &["user"], 1, 9), rule("stays", &["user"], 1, 2)]));
    let seen = ask(&mut decider, Op::Peek, &user, 1, at_millis(0));
    assert_eq!(seen.all, [("comes".into(), 9), ("stays".into(), 1)]);
}

#[test]
fn a_panic_while_judging_hurts_nobody_else() {
    if !cfg!(debug_assertions) {
        eprintln!("skipped: only a debug build can be made to panic");
        return;
    }
    let engine = engine(vec![rule("per-user", &["user"], 1, 2)]);
    let mut decider = engine.decider();
    let user = [("user", "u1")];
    assert!(hit(&mut decider, &user, at_millis(0)));
    let asked = [("user", "u1"), ("debug-panic", "now")];
    let panicked =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| hit(&mut decider, &asked, at_millis(0))));
    assert!(panicked.is_err());
    decider.count_panic();
    // Nothing was charged, and the same thread goes on with the same state.
    assert!(hit(&mut decider, &user, at_millis(0)));
    assert!(!hit(&mut decider, &user, at_millis(0)));
    assert_eq!(engine.totals().panics, 1);
}

#[test]
fn no_interleaving_admits_too_much() {
    // Four threads, one shared counter and one for each user, time standing still: exactly the burst passes.
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
    // What was refused by one rule was not charged to the other: the shared counter holds exactly what passed.
    let totals = engine.totals();
    assert_eq!(totals.verdicts.allow + totals.verdicts.limit, 16_000);
}

#[test]
fn keys_as_good_as_new_are_swept_away_and_tables_shrink() {
    let engine = engine(vec![rule("per-user", &["user"], 1, 2)]);
    let mut decider = engine.decider();
    let empty = engine.memory_bytes();
    for user in 0..50_000 {
        hit(&mut decider, &[("user", &format!("u{user}"))], at_millis(0));
    }
    assert_eq!(engine.keys(), 50_000);
    let full = engine.memory_bytes();
    // A key of one hit fills in one second and is gone within twice the two seconds that an empty one takes.
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
    let refused: Vec<bool> = checks(rules(vec![shadow()]), 5).into_iter().map(|check| check.3).collect();
    assert_eq!((refused, checks(rules(vec![]), 5)[0].3), (vec![false, false], false));
    assert_eq!(checks(vec![], 1), []);
}

#[test]
fn a_sweep_forgives_nobody() {
    let engine = engine(vec![rule("per-user", &["user"], 1, 10)]);
    let mut decider = engine.decider();
    let users: Vec<String> = (0..1_000).map(|user| format!("u{user}")).collect();
    for user in &users {
        assert_eq!(ask(&mut decider, Op::Hit, &[("user", user)], 10, at_millis(0)).verdict, Verdict::Allow);
    }
    for tick in 1..=36 {
        engine.sweep(at_millis(tick * 250));
    }
    for user in &users {
        assert_eq!(ask(&mut decider, Op::Peek, &[("user", user)], 1, at_millis(9_000)).remaining, Some(9));
    }
}

#[test]
fn tables_keep_to_their_budget_and_let_the_freshest_go() {
    let bytes_max = 1 << 20;
    let engine = Arc::new(Engine::new(EngineOptions { memory_bytes_max: bytes_max, ..options() }));
    engine.install_rules(api(vec![rule("per-user", &["user"], 1, 1_000)]));
    let mut decider = engine.decider();
    // A few that are deep in debt, then a flood of ten times what fits.
    let spent: Vec<String> = (0..1_000).map(|user| format!("spent{user}")).collect();
    for user in &spent {
        assert_eq!(
            ask(&mut decider, Op::Hit, &[("user", user)], 1_000, at_millis(0)).verdict,
            Verdict::Allow
        );
    }
    for user in 0..400_000 {
        assert!(hit(&mut decider, &[("user", &user.to_string())], at_millis(1)));
        if user % 10_000 == 0 {
            assert!(engine.memory_bytes() <= bytes_max, "{} bytes", engine.memory_bytes());
        }
    }
    assert!(engine.totals().evictions > 0);
    let still_limited =
        spent.iter().filter(|user| !hit(&mut decider, &[("user", user)], at_millis(2))).count();
    assert!(still_limited >= 990, "{still_limited} of 1000 still limited");
}

proptest! {
    #![proptest_config(crate::cases(50))]

    /// Two rules over one trace decide as two exact counters do that are charged together or not at all.
    #[test]
    fn all_or_nothing(steps in proptest::collection::vec((0_u64..400, 0_usize..3, 0_u32..4), 1..200)) {
        let engine = engine(vec![rule("global", &[], 5, 6), rule("per-user", &["user"], 2, 3)]);
        let mut decider = engine.decider();
        let users = ["u0", "u1", "u2"];
        let mut now = 0;
        // Theoretical arrival times in nanoseconds: one for all, one for each user.
        let (mut global, mut of_user) = (0_u64, [0_u64; 3]);
        for (step, user, cost) in steps {
            now += step * 1_000_000;
            let cost_of = |interval: u64| u64::from(cost) * interval;
            let next_global = global.max(now) + cost_of(SECOND / 5);
            let next_user = of_user[user].max(now) + cost_of(SECOND / 2);
            let passes = cost == 0
                || (next_global - now <= 6 * SECOND / 5 && next_user - now <= 3 * SECOND / 2);
            if passes && cost > 0 {
                (global, of_user[user]) = (next_global, next_user);
            }
            let at = Now { at: Timestamp::from_nanos(now), utc_offset_nanos: 0 };
            let seen = ask(&mut decider, Op::Hit, &[("user", users[user])], cost, at);
            prop_assert_eq!(seen.verdict == Verdict::Allow, passes);
        }
    }
}
