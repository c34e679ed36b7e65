//! State that a key keeps when its rule changes.

use std::sync::Arc;

use super::bench::{Ask, Bench, S, at};
use super::engines::domains;
use tidegate::engine::{Descriptors, EngineAnswer, KnownSelection, Op, Request};

/// Rules before and after; usage of one key before; the reply for that key one second later.
#[test]
fn keeps_comparable_state_across_reload() {
    let table = [
        // A bucket keeps its time until full, cut to the new burst.
        ("token_bucket, rate: 1/s, burst: 10", "token_bucket, rate: 1/s, burst: 10", 10, "allow a 1/10"),
        ("token_bucket, rate: 1/s, burst: 10", "token_bucket, rate: 1/s, burst: 5", 10, "allow a 0/5"),
        ("token_bucket, rate: 1/s, burst: 10", "token_bucket, rate: 2/s, burst: 10", 5, "allow a 2/10"),
        ("token_bucket, rate: 1/s, burst: 10", "token_bucket, rate: 3/s, burst: 10", 5, "allow a 0/10"),
        ("token_bucket, rate: 3/s, burst: 10", "token_bucket, rate: 7/s, burst: 10", 9, "allow a 0/10"),
        ("token_bucket, rate: 1/s, burst: 10", "token_bucket, rate: 1/s, burst: 20", 10, "allow a 11/20"),
        // Windows and logs keep their counts.
        ("fixed_window, rate: 10/min", "fixed_window, rate: 20/min", 10, "allow a 10/20"),
        ("fixed_window, rate: 10/min", "fixed_window, rate: 5/min", 10, "allow a 0/5"),
        ("sliding_log, rate: 10/min", "sliding_log, rate: 12/min", 10, "allow a 2/12"),
        ("sliding_window, rate: 10/min", "sliding_window, rate: 12/min", 10, "allow a 2/12"),
        // Another algorithm or window length starts fresh.
        ("fixed_window, rate: 10/min", "fixed_window, rate: 10/h", 10, "allow a 10/10"),
        ("sliding_log, rate: 10/min", "sliding_log, rate: 10/h", 10, "allow a 10/10"),
        ("fixed_window, rate: 10/min", "fixed_window, align: first, rate: 10/min", 10, "allow a 10/10"),
        ("token_bucket, rate: 1/s, burst: 10", "leaky_bucket, rate: 1/s, queue: 9", 10, "allow a 10/10"),
    ];
    for (before, after, used, expected) in table {
        let rules = |quota: &str| format!("  - {{name: a, key: [u], algorithm: {quota}}}\n");
        let mut bench = Bench::new(&rules(before));
        assert!(bench.ask(0, Ask::hit("u=1", used)).starts_with("allow"));
        bench.install_at(&rules(after), at(S));
        assert_eq!(bench.peek(S, "u=1", 0), expected, "{before} → {after}");
        // Another reload of the same rules changes nothing.
        bench.install_at(&rules(after), at(S));
        assert_eq!(bench.peek(S, "u=1", 0), expected, "{before} → {after}, twice");
        // Nor does a time without the rule, whatever changed before.
        for changes in [&[before][..], &["token_bucket, rate: 1/s, burst: 99", before]] {
            let mut bench = Bench::new(&rules(changes[0]));
            changes.iter().for_each(|quota| bench.install(&rules(quota)));
            assert!(bench.ask(0, Ask::hit("u=1", used)).starts_with("allow"));
            bench.install("  - {name: b, key: [v], rate: 1/s}\n");
            bench.install_at(&rules(after), at(S));
            assert_eq!(bench.peek(S, "u=1", 0), expected, "{before} → none → {after}");
        }
    }
}

#[test]
fn idle_key_keeps_its_level_over_many_reloads() {
    let rules = |burst: u32| format!("  - {{name: a, key: [], rate: 1/min, burst: {burst}}}\n");
    let mut bench = Bench::new(&rules(100));
    bench.check(&[(0, "", 7, "allow a 93/100")]);
    // More changes than a byte counts.
    for burst in 101..=400 {
        bench.install(&rules(burst));
    }
    bench.check(&[(0, "", 0, "allow a 393/400")]);
}

#[test]
fn replaced_rules_stay_until_each_thread_uses_new_ones() {
    let bench = Bench::new("  - {name: a, key: [], rate: 1/s}\n");
    let mut threads = [(); 2].map(|()| Bench::with(Arc::clone(&bench.engine)));
    drop(bench.decider);
    let replaced =
        bench.engine.install_rules(domains("domain: api\nlimits: [{name: b, key: [], rate: 1/s}]\n"));
    for thread in &mut threads {
        assert!(replaced.is_in_use());
        thread.ask(0, Ask::hit("", 1));
    }
    assert!(!replaced.is_in_use());
}

#[test]
fn known_selection_is_replaced_by_each_reload() {
    let known = KnownSelection::default();
    let rule_of = |bench: &mut Bench, user: &str| {
        let attributes = [("u", user)];
        let request = Request {
            known_selection: Some(&known),
            ..Request::new(Op::Hit, "api", Descriptors::from_attributes(&attributes))
        };
        let EngineAnswer::Decided(decision) = bench.decider.decide(&request, at(0)) else {
            panic!("a conflict")
        };
        decision.rule_name().map(str::to_owned)
    };
    let mut bench = Bench::new("  - {name: a, key: [u], rate: 9/s}\n");
    for (user, rule) in [("1", Some("a")), ("2", Some("a")), ("", None), ("1", Some("a"))] {
        assert_eq!(rule_of(&mut bench, user).as_deref(), rule, "{user}");
    }
    bench.install("  - {name: b, key: [u], rate: 9/s}\n");
    assert_eq!(rule_of(&mut bench, "1").as_deref(), Some("b"));
    bench.install("  - {name: c, match: {u: x}, key: [u], rate: 9/s}\n");
    for (user, rule) in [("1", None), ("x", Some("c")), ("yy", None)] {
        assert_eq!(rule_of(&mut bench, user).as_deref(), rule, "{user}");
    }
    bench.install("  - {name: c, mode: disabled, key: [u], rate: 9/s}\n");
    assert_eq!(rule_of(&mut bench, "1"), None);
}
