//! Admission by all rules or none, in every interleaving; the checks of a decision; the keys that tables keep;
//! refunds under many names and of many units.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate::engine::{Cost, Descriptors, EngineAnswer, Op, Request, Verdict};
use tidegate::rules::Mode;

use super::bench::{Ask, Bench, at, named, shown};
use super::engines::at_millis;
use super::scenarios::Stage;
use crate::rng::Rng;

#[test]
fn allows_and_counts_unmatched_requests() {
    let mut bench = Bench::new("  - {name: posts, match: {method: POST}, key: [user], rate: 1/s}\n");
    let seen =
        ["user=u1", "user=u1 method=GET", "method=POST", ""].map(|attributes| (0, attributes, 1, "allow"));
    bench.check(&seen);
    let request = Request::new(Op::Hit, "nowhere", Descriptors::from_attributes(&[]));
    assert!(
        matches!(bench.decider.decide(&request, at(0)), EngineAnswer::Decided(found) if found.verdict == Verdict::Allow)
    );
    let totals = bench.engine.totals();
    assert_eq!((totals.unmatched_rule, totals.unmatched_domain, totals.verdicts.allow), (4, 1, 5));
}

#[test]
fn no_interleaving_exceeds_the_limit() {
    // Four threads, one shared counter and one per user, with the clock stopped: exactly the burst is
    // allowed.
    let bench = Bench::new(
        "  - {name: global, key: [], rate: 1/s, burst: 2000}\n  - {name: per-user, key: [user], rate: 1/s, burst: 300}\n",
    );
    let admitted: [AtomicU64; 8] = Default::default();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (admitted, mut bench) = (&admitted, Bench::with(Arc::clone(&bench.engine)));
            scope.spawn(move || {
                for turn in 0..4_000 {
                    let user = (turn * 7 + thread) % 8;
                    if bench.ask(0, Ask::hit(&format!("user=u{user}"), 1)).starts_with("allow") {
                        admitted[user].fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let admitted = admitted.map(AtomicU64::into_inner);
    assert!(admitted.iter().all(|count| *count <= 300), "{admitted:?}");
    assert_eq!(admitted.iter().sum::<u64>(), 2_000, "{admitted:?}");
    // One rule's refusals were not charged to the other: the shared counter holds exactly the allowed
    // requests.
    let totals = bench.engine.totals();
    assert_eq!(totals.verdicts.allow + totals.verdicts.limit, 16_000);
}

#[test]
fn sweeps_full_keys_and_shrinks_tables() {
    let mut bench = Bench::new("  - {name: per-user, key: [user], rate: 1/s, burst: 2}\n");
    let empty = bench.engine.memory_bytes();
    (0..50_000).for_each(|user| drop(bench.ask(0, Ask::hit(&format!("user=u{user}"), 1))));
    assert_eq!(bench.engine.keys(), 50_000);
    let full = bench.engine.memory_bytes();
    // A key of one hit fills in one second and is dropped within twice the two seconds that an empty one
    // takes.
    for tick in 0..=16 {
        bench.engine.sweep(at_millis(tick * 250));
        assert!(tick >= 4 || bench.engine.keys() == 50_000, "swept before it was full");
    }
    assert_eq!(bench.engine.keys(), 0);
    (17..=34).for_each(|tick| bench.engine.sweep(at_millis(tick * 250)));
    assert!(bench.engine.memory_bytes() - empty < full / 10, "{} of {full}", bench.engine.memory_bytes());
}

#[test]
fn decision_lists_the_check_of_each_rule_that_matched() {
    let (own, shadow) = (
        "  - {name: a, key: [user], rate: 1/s, burst: 4}\n",
        "  - {name: b, key: [], rate: 2/s, mode: shadow}\n",
    );
    let checks = |rules: &[&str], cost: u32| {
        let mut bench = Bench::new(&rules.concat());
        let attributes = [("user", "u")];
        let request = Request {
            cost: Cost::Requests(cost),
            ..Request::new(Op::Hit, "api", Descriptors::from_attributes(&attributes))
        };
        let EngineAnswer::Decided(decision) = bench.decider.decide(&request, at(0)) else { panic!() };
        decision.checks().map(|check| (check.rule, check.key, check.cost, check.passes)).collect::<Vec<_>>()
    };
    let [one] = checks(&[own], 3)[..] else { panic!("one rule") };
    let [first, second] = checks(&[own, shadow], 3)[..] else { panic!("two rules") };
    assert_eq!(one, first, "its key is the same beside others");
    assert_eq!((one.0, one.2, one.3), (0, 3, true));
    assert_eq!((second.0, second.2, second.3), (1, 3, false));
    assert_eq!(checks(&[own, shadow], 2), [(0, one.1, 2, true), (1, second.1, 2, true)]);
    assert!(checks(&[own, shadow], 5).iter().chain(&checks(&[own], 5)).all(|check| !check.3));
    assert_eq!(checks(&["  - {name: c, key: [other], rate: 1/s}\n"], 1), []);
}

#[test]
fn fast_path_decides_and_counts_like_the_general_path() {
    let limits = "
- {name: a, key: [user], rate: 5/s, burst: 9}
- {name: b, key: [], rate: 6/s, mode: shadow}
- {name: c, key: [path, user], match: {path: /*}, rate: 1/s, burst: 12}
- {name: d, key: [plan], rate: 1/s, burst: 9, advertise: false}";
    // Priorities take the requests of a domain to the general path; a list does not.
    let of = |more| Bench::of(Mode::Enforce, &format!("domain: api\n{more}\nlimits:{limits}\n"));
    let mut benches = ["deny: [{name: none, match: {user: nobody}}]", "priorities: [all]"].map(of);
    let mut random = Rng::new(3);
    let mut millis = 0;
    for _ in 0..20_000 {
        millis += random.below(60);
        let [user, path] = [random.pick(&["1", "2", "3"]), random.pick(&["-", "/", "/b"])];
        let given = [format!("user={user}"), format!(" path={path}"), " plan=p".to_owned()];
        let given = given[..1 + usize::try_from(random.below(3)).unwrap()].concat();
        let ask = Ask { lists_all_limits: true, ..Ask::hit(&given, u32::try_from(random.below(4)).unwrap()) };
        let line = |decision: &tidegate::engine::Decision<'_>| {
            let all: Vec<_> =
                decision.limits().map(|limit| (limit.view.rule.name.to_string(), limit.view.level)).collect();
            format!("{} {all:?}", shown(decision, true))
        };
        let [fast, general] =
            benches.each_mut().map(|bench| bench.decide(None, at_millis(millis), ask, line));
        assert_eq!(fast, general, "{given} × {} at {millis} ms", ask.cost);
        if random.below(100) == 0 {
            benches.iter().for_each(|bench| bench.engine.sweep(at_millis(millis)));
        }
    }
    let [fast, general] = benches.each_ref().map(|Bench { engine, .. }| {
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
    (1..400).for_each(|second| bench.engine.sweep(at_millis(second * 1_000)));
    assert_eq!(bench.engine.keys(), 0);
    assert!(bench.engine.memory_bytes() * 20 < full, "{} of {full}", bench.engine.memory_bytes());
}

#[test]
fn retry_of_refunded_grant_is_charged() {
    let mut stage = Stage::with("- {name: a, key: [u], rate: 10/h}\n");
    // Some of the names of refunds share a lock with that of the grant.
    for number in 0..64 {
        stage.check("2x hit u=1 cost:6 idem:g", "allow a 4/10");
        stage.check("peek u=1 cost:0", "allow a 4/10");
        stage.check(&format!("charge u=1 amount:-6 idem:r{number} of:g"), "done");
        stage.check("peek u=1 cost:0", "allow a 10/10");
    }
}

#[test]
fn refunds_at_most_sixteen_units() {
    let mut stage = Stage::with("- {name: t, key: [u], unit: u0, rate: 100/h}\n");
    let each =
        |option: &str, units: u32| (0..units).map(|unit| format!(" {option}:u{unit}:1")).collect::<String>();
    stage.check("open 1", "");
    stage.check(&format!("acquire u=1 as:a{}", each("cost", 4_000)), "allow t 99/100");
    let refund = |units: &str| format!("charge u=1 of_lease:a{}", units.replace(":1", ":-1"));
    stage.check(&refund(&each("amount", 4_000)), "nothing");
    stage.check(&refund(" amount:u0:1 amount:u3999:1"), "nothing");
    stage.check(&refund(&each("amount", 16)), "done");
}
