//! Views, bounds and bytes of budgets and permits that a fleet shares. `scenarios/budgets.txt`, `remote_checks.txt` and
//! `fleet_permits.txt` have the decisions.

use std::sync::Arc;

use tidegate::clock::Micros;
use tidegate::engine::{
    Descriptors, EngineAnswer, Op, PermitTotals, Request, RuleName, ShareReply, SharedKey, Verdict,
    bytes_per_rule_key,
};
use tidegate::limit::share::NextIncrease;
use tidegate::rules::Mode;

use super::bench::{Ask, at};
use super::engines::{at_millis, domains, options};
use super::scenarios::Stage;

const BUDGET: &str = "- {name: all, key: [user], rate: 100/s, scope: fleet, fleet: {on_miss: refuse}}\n";
const PERMITS: &str =
    "concurrency: [{name: work, key: [user], max: 9, scope: fleet, fleet: {on_redis_down: refuse}}]\n";

fn member(rules: &str, memory_bytes_max: usize) -> Stage {
    let mut stage = Stage::with_memory(Mode::Enforce, memory_bytes_max);
    stage.check("fleet", "");
    stage.install(rules);
    stage
}

fn due_key(stage: &Stage) -> SharedKey {
    let mut calls = Vec::new();
    stage.bench.engine.take_due_share_keys(&mut calls);
    calls[0]
}

/// Redis grants tokens of this key at a time.
fn grant(stage: &Stage, key: &SharedKey, granted: u32, micros: u64, next_increase: Option<NextIncrease>) {
    let (engine, now) = (&stage.bench.engine, at(micros));
    let budget = &engine.fleet_budgets()[&key.budget()];
    assert!(engine.report_share(key, budget, 0, now).is_some());
    let (level, sent_at) = (1_000_000, now.at);
    let reply = ShareReply { paid: 0, granted, level, demand: 0, sent_at, low_mark: 0, next_increase };
    engine.apply_share_reply(key, budget, &reply, now);
}

#[test]
fn window_reset_is_local_until_redis_reports() {
    let rule = BUDGET.replace("rate: 100/s", "algorithm: fixed_window, rate: 9/min");
    let mut stage = member(&rule, options().memory_bytes_max);
    let reset = |stage: &mut Stage| {
        let attributes = [("user", "u1")];
        let request = Request::new(Op::Hit, "api", Descriptors::from_attributes(&attributes));
        let EngineAnswer::Decided(decision) = stage.bench.decider.decide(&request, at_millis(10_000)) else {
            panic!("a rule without remote checks")
        };
        decision.binding.map(|view| (decision.verdict, view.level.reset))
    };
    reset(&mut stage);
    let key = due_key(&stage);
    let more = NextIncrease { at: at_millis(30_000).at, is_exhausted: false };
    for (next_increase, seconds) in [(None, 50), (Some(more), 20)] {
        grant(&stage, &key, 3, 10_000_000, next_increase);
        assert_eq!(reset(&mut stage), Some((Verdict::Allow, Micros(seconds * 1_000_000))));
    }
}

#[test]
fn reports_share_of_a_key() {
    let rules = "- {name: own, key: [u], rate: 6/h}
- name: all
  key: [u]
  rate: 6/h
  scope: fleet
  fleet: {on_miss: refuse}
  overrides: [{match: {plan: pro}, rate: 60/h}]
";
    let mut stage = member(rules, options().memory_bytes_max);
    let engine = Arc::clone(&stage.bench.engine);
    let of = |rule: &str, attributes: &[(&str, &str)]| {
        engine.find_share(&RuleName { domain: "api".into(), rule: rule.into() }, attributes, at(0))
    };
    assert_eq!(of("own", &[("u", "1")]), Ok(None));
    assert!(of("all", &[("user", "1")]).is_err());
    let unused = of("all", &[("u", "1")]).unwrap().unwrap();
    assert_eq!((unused.limit, unused.report, unused.is_tracked, unused.redis_level), (60, None, false, None));
    stage.bench.ask(0, Ask::hit("u=1 plan=pro", 2));
    let key = due_key(&stage);
    grant(&stage, &key, 2, 0, None);
    let here = of("all", &[("u", "1")]).unwrap().unwrap();
    assert_eq!((here.name, here.limit, here.is_tracked), (key.name(), 60, true));
    assert_eq!((here.report.unwrap().borrowed, here.redis_level.unwrap().level), (2, 1_000_000));
}

#[test]
fn flood_of_new_keys_keeps_borrowed_tokens() {
    let mut stage = member(BUDGET, 256 << 10);
    (0..100).for_each(|user| drop(stage.bench.ask(0, Ask::hit(&format!("user=u{user}"), 1))));
    stage.check("calls", "100");
    (0..100).for_each(|key| stage.check(&format!("grant 2 key:{key}"), ""));
    stage.check("down", "");
    (0..20_000).for_each(|user| drop(stage.bench.ask(1_000, Ask::hit(&format!("user=new{user}"), 1))));
    assert!(stage.bench.engine.totals().evictions > 0, "the table is full");
    for key in 0..100 {
        stage.check(&format!("1ms share key:{key}"), "borrowed 2 requested 0 debt 0 refund 0");
    }
}

#[test]
fn keeps_permits_and_leases_when_memory_is_full() {
    let mut stage = member(PERMITS, 64 << 10);
    stage.check("open 1", "");
    for user in 0..1_024 {
        stage.check(&format!("0s acquire user=u{user} waits"), "waits 5ms for 1 permit");
        stage.check(&format!("grant 2 key:{user}"), "");
        stage.check(&format!("acquire user=u{user}"), "allow work 3/9");
    }
    let engine = &stage.bench.engine;
    let totals: Vec<PermitTotals> = engine.sum_permits(at_millis(1)).into_values().collect();
    assert_eq!(totals, [PermitTotals { held: 2_048, in_use: 1_024 }]);
    assert_eq!((engine.in_progress(), engine.totals().evictions), (1_024, 0));
    assert!(engine.memory_bytes() > 64 << 10, "there was no room for all");
    stage.check("2ms end 1", "");
    stage.check("count permits", "0");
}

#[test]
fn refusal_of_a_permit_has_a_retry_after_as_on_one_host() {
    let mut stage = member(PERMITS, options().memory_bytes_max);
    let answer = stage.bench.decide(None, at(0), Ask::acquire("user=u1"), |_| String::new());
    assert!((500_000..=2_000_000).contains(&answer.retry.unwrap()), "{answer:?}");
}

#[test]
fn fleet_key_uses_more_bytes_than_host_key() {
    let [fleet, host] =
        [PERMITS.to_owned(), PERMITS.replace(", scope: fleet, fleet: {on_redis_down: refuse}", "")]
            .map(|rules| bytes_per_rule_key(&domains(&format!("domain: api\n{rules}"))[0].rules()[0]));
    assert!(fleet.least > host.least && fleet.most > host.most, "{fleet:?} {host:?}");
}

#[test]
fn lease_numbers_of_two_processes_differ() {
    let number = |random| {
        let mut stage = Stage::with("- {name: host, key: [user], rate: 1/s}\n");
        stage.bench.engine.number_leases_from(random);
        stage.check("open 1", "");
        stage.check("acquire user=u as:a", "allow host 0/1");
        stage.leases["a"]
    };
    assert_ne!(number(1 << 40), number(2 << 40));
}
