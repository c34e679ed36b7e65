//! Counters of removed rules, of durations, and the priority of a decision. `engine/scenarios/totals.txt` has the rest.

use tidegate::engine::{Descriptors, EngineAnswer, IdempotencyKey, Op, Request, RuleTotals};

use crate::bench::{Ask, Bench, s};

const RULES: &str = "priorities: [critical, get]
deny: [{name: bots, match: {agent: bot}}]
limits:
- {name: limited, match: {k: limit}, key: [], rate: 2/h, burst: 2}
- {name: paced, match: {k: wait}, key: [], rate: 1/s, algorithm: leaky_bucket, queue: 3}
- {name: soft, match: {k: soft}, key: [], rate: 10/h, over: {soft: 20%}, warn_at: 80%}
- {name: tried, match: {k: tried}, key: [], rate: 1/h, burst: 1, mode: shadow}
shed:
- {pool: web, queue_age: {others: 100ms, critical: 1s}}
";

/// Requests of each kind.
fn play(bench: &mut Bench) {
    let session = bench.session(1, 0, s(0));
    for (attributes, priority, times, queued) in [
        ("k=limit", "critical", 5, None),
        ("k=wait", "get", 4, None),
        ("k=soft", "get", 13, None),
        ("k=tried", "get", 7, None),
        ("agent=bot", "critical", 6, None),
        ("k=none", "get", 8, Some(100_001)),
    ] {
        let ask = Ask { priority: Some(priority), queued, ..Ask::hit(attributes, 1) };
        (0..times).for_each(|_| drop(bench.ask_by(&session, s(0), ask)));
    }
}

fn rule(bench: &Bench, name: &str) -> RuleTotals {
    bench.engine.totals().rules.into_iter().find(|rule| *rule.rule == *name).unwrap_or_default()
}

#[test]
fn totals_of_removed_rules_stay_in_the_sum() {
    let mut bench = Bench::new(RULES);
    play(&mut bench);
    let before: Vec<RuleTotals> = bench.engine.totals().rules;
    // More names than counter slots.
    for number in 0..3 {
        let rule = |rule: u32| format!("- {{name: r{number}-{rule}, key: [], rate: 1/s}}\n");
        bench.install(&format!("limits:\n{}", (0..400).map(rule).collect::<String>()));
        // A slot is not reused while a thread has rules that count there.
        let session = bench.session(1, 0, s(0));
        bench.ask_by(&session, s(0), Ask { op: Op::Peek, ..Ask::acquire("") });
    }
    assert_eq!(rule(&bench, "limited"), RuleTotals::default(), "its counters went to another rule");
    let sum = |rules: &[RuleTotals], of: fn(&RuleTotals) -> u64| rules.iter().map(of).sum::<u64>();
    let after = bench.engine.totals().rules;
    for of in [
        |rule: &RuleTotals| rule.verdicts.allow,
        |rule: &RuleTotals| rule.verdicts.limit,
        |rule: &RuleTotals| rule.verdicts.wait,
        |rule: &RuleTotals| rule.verdicts.deny,
        |rule: &RuleTotals| rule.verdicts.shed,
        |rule: &RuleTotals| rule.pass,
        |rule: &RuleTotals| rule.near,
        |rule: &RuleTotals| rule.over,
        |rule: &RuleTotals| rule.refuse,
        |rule: &RuleTotals| rule.would_refuse,
    ] {
        assert!(sum(&before, of) > 0);
        assert_eq!(sum(&after, of), sum(&before, of));
    }
}

#[test]
fn times_one_batch_of_sixty_four_by_its_decisions() {
    let mut bench = Bench::new(RULES);
    assert_eq!((0..640).filter(|_| bench.decider.should_time_decision()).count(), 10);
    // Four decisions of 5 000 ns each, one longer than any bound, and one of the shortest.
    [(5_000, 4), (100_000_001, 1), (1_000, 1)]
        .into_iter()
        .for_each(|(nanos, of)| bench.decider.record_duration(nanos, of));
    let spans = bench.engine.totals().spans;
    assert_eq!(spans.nanos, 4 * 5_000 + 100_000_001 + 1_000);
    let counted: Vec<_> = spans.counts.into_iter().filter(|(_, count)| *count > 0).collect();
    assert_eq!(counted, [(Some(1_000), 1), (Some(5_000), 4), (None, 1)]);
    bench.decider.count_panic();
    assert_eq!(bench.engine.totals().panics, 1);
}

#[test]
fn decision_names_the_priority_of_its_request() {
    let mut bench = Bench::new(RULES);
    for (attribute, asked, expected) in [
        (("k", "soft"), Some("critical"), "critical"),
        (("k", "soft"), Some("get"), "get"),
        // The lowest priority, if none is known.
        (("k", "soft"), None, "get"),
        (("k", "soft"), Some("unknown"), "get"),
        (("agent", "bot"), Some("critical"), "critical"),
    ] {
        let attributes = [attribute];
        let name = format!("{attribute:?} {asked:?}");
        let repeat = Some(IdempotencyKey { session: b"s", user: 1, name: name.as_bytes() });
        let request = Request {
            priority: asked,
            idempotency_key: repeat,
            ..Request::new(Op::Hit, "api", Descriptors::from_attributes(&attributes))
        };
        for _ in ["first", "retry"] {
            let EngineAnswer::Decided(decision) = bench.decider.decide(&request, s(0)) else {
                panic!("{name}")
            };
            assert_eq!(decision.priority, Some(expected), "{name}");
        }
    }
}
