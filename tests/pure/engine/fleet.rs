//! A fleet budget checked beside rules of this host: all or none, and reported once.

use std::sync::Arc;

use tidegate::clock::{Micros, Now};
use tidegate::engine::{
    Amount, Decider, Descriptors, Engine, EngineAnswer, EngineOptions, FleetBudget, FleetStatus, HashKey, Op,
    Request, RuleName, ShareReply, SharedKey, Verdict,
};
use tidegate::limit::share::{self, Fallback};
use tidegate::limit::{Quota, Rate, fixed_window, token_bucket};
use tidegate::rules::{Limit, Mode, Rule};

use super::bench::{Ask, Bench, at, charge_of};
use super::engines::{SECOND, api, ask, at_millis, in_mode, options, rule};

pub(super) struct Host {
    pub(super) engine: Arc<Engine>,
    pub(super) decider: Decider,
    pub(super) fleet_status: Arc<FleetStatus>,
}

impl Host {
    pub(super) fn new(own_key: u8, rules: Vec<Rule>) -> Host {
        Host::with_memory(own_key, rules, options().memory_bytes_max)
    }

    pub(super) fn with_memory(own_key: u8, rules: Vec<Rule>, memory_bytes_max: usize) -> Host {
        let hash_key = HashKey::from_bytes([own_key; 16]);
        let options = EngineOptions { hash_key, memory_bytes_max, ..options() };
        let engine = Arc::new(Engine::new(options));
        let fleet_status = engine.join_fleet(HashKey::from_bytes([9; 16]));
        fleet_status.set_redis_reachable(true);
        engine.install_rules(api(rules));
        Host { decider: engine.decider(), engine, fleet_status }
    }

    fn hit(&mut self, user: &str, millis: u64) -> Verdict {
        ask(&mut self.decider, Op::Hit, &[("user", user)], 1, at_millis(millis)).verdict
    }

    pub(super) fn calls(&self) -> Vec<SharedKey> {
        let mut calls = Vec::new();
        self.engine.take_due_share_keys(&mut calls);
        calls
    }

    pub(super) fn budget(&self, key: &SharedKey) -> FleetBudget {
        self.engine.fleet_budgets()[&key.budget()].clone()
    }

    /// Charges user `u1` after the fact, or refunds it.
    fn charge(&mut self, amount: i64, millis: u64) {
        let charge = charge_of(&[("user", "u1")], Amount::Requests(amount));
        assert!(self.decider.charge(&charge, at_millis(millis)).unwrap());
    }

    fn grant(&self, key: &SharedKey, granted: u32, millis: u64) {
        let (budget, now) = (self.budget(key), at_millis(millis));
        let (reported, _) = self.engine.report_share(key, &budget, 0, now).unwrap();
        let settled = ShareReply { paid: reported.debt, ..granting(granted, 50_000_000, now) };
        self.engine.apply_share_reply(key, &budget, &settled, now);
    }
}

/// The reply to a report sent now.
fn granting(granted: u32, level: i64, now: Now) -> ShareReply {
    ShareReply { paid: 0, granted, level, demand: 0, sent_at: now.at, low_mark: 0, next_increase: None }
}

/// A fleet rule without credit.
pub(super) fn shared(name: &str, rate: u32, burst: u32) -> Rule {
    let bucket = token_bucket::TokenBucketQuota::new(Rate::new(rate, SECOND).unwrap(), burst).unwrap();
    let quota = Quota::FleetBudget(Box::new(share::ShareQuota::new(bucket, 0, Fallback::Share)));
    Rule { limit: Limit::new(quota), ..rule(name, &["user"], rate, burst) }
}

/// A fleet rule that counts in windows of a minute.
pub(super) fn windowed(name: &str, count: u32) -> Rule {
    let minute = fixed_window::WindowPeriod::Nanos(60 * SECOND);
    let window = fixed_window::FixedWindowQuota::new(count, minute, fixed_window::WindowAlign::Utc).unwrap();
    let quota = share::ShareQuota::for_window(Quota::FixedWindow(window), 0, Fallback::Share).unwrap();
    Rule { limit: Limit::new(Quota::FleetBudget(Box::new(quota))), ..rule(name, &["user"], count, count) }
}

#[test]
fn key_requests_sync_once_and_admits_its_grant() {
    for rules in
        [vec![shared("all", 100, 100)], vec![shared("all", 100, 100), rule("own", &["user"], 1_000, 1_000)]]
    {
        let mut host = Host::new(1, rules);
        assert_eq!([host.hit("u1", 0), host.hit("u1", 0)], [Verdict::Limit; 2]);
        let calls = host.calls();
        assert_eq!(calls.len(), 1, "two requests, one call");
        assert_eq!(&*host.budget(&calls[0]).rule, "api/all");
        host.grant(&calls[0], 2, 1);
        assert_eq!([0; 3].map(|_| host.hit("u1", 2)), [Verdict::Allow, Verdict::Allow, Verdict::Limit]);
        assert_eq!(host.hit("u2", 2), Verdict::Limit, "what is granted is granted for one key");
        assert_eq!(host.calls().len(), 2);
    }
}

#[test]
fn refusal_by_share_or_local_rule_charges_neither() {
    let mut host = Host::new(1, vec![shared("all", 100, 100), rule("own", &["user"], 1, 1)]);
    host.hit("u1", 0);
    let key = host.calls()[0];
    host.grant(&key, 5, 0);
    let budget = host.budget(&key);
    assert_eq!([host.hit("u1", 1), host.hit("u1", 1)], [Verdict::Allow, Verdict::Limit]);
    let there = host.engine.peek_share(&key, &budget, at_millis(1)).unwrap();
    assert_eq!((there.borrowed, there.requested), (4, 1), "the second was refused by this host's own rule");
    let mut host = Host::new(1, vec![shared("all", 100, 100), rule("own", &["user"], 1, 1)]);
    assert_eq!(host.hit("u1", 0), Verdict::Limit);
    host.grant(&host.calls()[0], 1, 0);
    assert_eq!(host.hit("u1", 1), Verdict::Allow, "the fleet's refusal cost nothing here");
}

#[test]
fn peek_charges_nothing_and_shadow_refuses_nothing() {
    let mut host = Host::new(1, vec![shared("all", 100, 100)]);
    let seen = ask(&mut host.decider, Op::Peek, &[("user", "u1")], 1, at_millis(0));
    assert_eq!(seen.verdict, Verdict::Limit);
    assert_eq!((host.calls().len(), host.engine.keys()), (0, 0));
    let mut host = Host::new(1, vec![in_mode(shared("all", 100, 100), Mode::Shadow)]);
    let seen = ask(&mut host.decider, Op::Hit, &[("user", "u1")], 1, at_millis(0));
    assert_eq!((seen.verdict, seen.notes), (Verdict::Allow, vec!["all".to_owned()]));
    assert_eq!(host.calls().len(), 1, "what it would refuse, it asks for");
}

#[test]
fn sweeps_untracked_keys_only() {
    let mut host = Host::new(1, vec![shared("all", 100, 100)]);
    host.hit("u1", 0);
    let key = host.calls()[0];
    host.grant(&key, 3, 0);
    let sweep =
        |host: &Host, from: u64| (from..from + 300).for_each(|at| host.engine.sweep(at_millis(at * 50)));
    sweep(&host, 0);
    assert_eq!(host.engine.keys(), 1);
    let budget = host.budget(&key);
    assert!(!host.engine.remove_share(&key, &budget, at_millis(100)), "three are in hand");
    assert!(host.engine.remove_share(&key, &budget, at_millis(15_000)), "they have lapsed");
    sweep(&host, 300);
    assert_eq!(host.engine.keys(), 0);
}

#[test]
fn refusal_never_reports_remaining_above_cost() {
    // The last level from Redis is far above the cost, but this host still has too few tokens.
    let asking = |share: share::ShareQuota| share.with_remote_checks(share::RemoteCheckWait::Always);
    for (rules, is_asking) in [
        (vec![shared("all", 100, 100)], false),
        (vec![shared("all", 100, 100), rule("own", &["user"], 1_000, 1_000)], false),
        (vec![shared("all", 100, 100)], true),
    ] {
        let mut rules = rules;
        if is_asking {
            let Some(Quota::FleetBudget(quota)) = rules[0].limit.quota().cloned() else { panic!("no share") };
            rules[0].limit = Limit::new(Quota::FleetBudget(Box::new(asking(*quota))));
        }
        let mut host = Host::new(1, rules);
        host.hit("u1", 0);
        if let Some(key) = host.calls().first() {
            host.grant(key, 2, 0);
        }
        for (op, cost) in [(Op::Peek, 5), (Op::Hit, 5), (Op::Hit, 3), (Op::Hit, 40)] {
            let seen = ask(&mut host.decider, op, &[("user", "u1")], cost, at_millis(1));
            let said = (seen.verdict, seen.remaining, &seen.all);
            let is_refused = seen.verdict == Verdict::Limit;
            assert!(is_refused || is_asking, "{said:?}");
            let all = seen.all.iter().find(|(name, _)| name == "all").unwrap();
            let is_consistent = seen.remaining < Some(cost.into()) && all.1 < cost.into();
            assert!(!is_refused || is_consistent, "{cost} were refused: {said:?}");
        }
        if !is_asking {
            let seen = ask(&mut host.decider, Op::Hit, &[("user", "u1")], 1, at_millis(1));
            assert_eq!(seen.verdict, Verdict::Allow, "one passes");
            assert!(seen.remaining > Some(1), "and is told what there is: {:?}", seen.remaining);
        }
    }
}

#[test]
fn share_follows_charges_and_refunds_after_the_fact() {
    // Amounts, then the borrowed tokens, the debt, and what is refunded to Redis. Tokens of a window stay on the host, as the
    // charge may be of an earlier one.
    let bucket = [(2, 2, 0, 0), (5, 0, 3, 0), (-1, 0, 2, 0), (-4, 0, 0, 2), (-99, 0, 0, 11), (99, 0, 9, 11)];
    let window = [(2, 2, 0, 0), (5, 0, 3, 0), (-1, 0, 2, 0), (-4, 2, 0, 0), (-9, 5, 0, 0), (99, 0, 9, 0)];
    for (rule, rows) in [(shared("all", 9, 9), bucket), (windowed("all", 9), window)] {
        let mut host = Host::new(1, vec![rule]);
        host.hit("u1", 0);
        let key = host.calls()[0];
        host.grant(&key, 5, 0);
        assert_eq!(host.hit("u1", 1), Verdict::Allow);
        host.calls();
        for (amount, held, owed, refunded) in rows {
            host.charge(amount, 1);
            let there = host.engine.peek_share(&key, &host.budget(&key), at_millis(1)).unwrap();
            assert_eq!((there.borrowed, there.debt, there.refund), (held, owed, refunded), "after {amount}");
        }
        assert_eq!(host.calls(), [key], "Redis is told of the debt");
        host.fleet_status.set_redis_reachable(false);
        host.charge(9, 2);
        assert_eq!(host.hit("u1", 2), Verdict::Limit, "the local rule counts it too");
    }
}

#[test]
fn window_reset_is_local_until_redis_reports() {
    let mut host = Host::new(1, vec![windowed("all", 9)]);
    let reset = |host: &mut Host, millis: u64| {
        let attributes = [("user", "u1")];
        let request = Request::new(Op::Hit, "api", Descriptors::from_attributes(&attributes));
        let EngineAnswer::Decided(decision) = host.decider.decide(&request, at(millis * 1_000)) else {
            panic!("a rule without remote checks")
        };
        decision.binding.map(|view| (decision.verdict, view.level.reset))
    };
    reset(&mut host, 10_000);
    let key = host.calls()[0];
    let (budget, now) = (host.budget(&key), at(10_000_000));
    assert!(host.engine.report_share(&key, &budget, 0, now).is_some());
    let more = share::NextIncrease { at: at_millis(30_000).at, is_exhausted: false };
    for (next_increase, seconds) in [(None, 50), (Some(more), 20)] {
        let reply = ShareReply { next_increase, ..granting(3, 1_000_000, now) };
        host.engine.apply_share_reply(&key, &budget, &reply, now);
        assert_eq!(reset(&mut host, 10_000), Some((Verdict::Allow, Micros(seconds * 1_000_000))));
    }
}

#[test]
fn reports_share_of_a_key() {
    let mut bench = Bench::new("  - {name: own, key: [u], rate: 1/s}\n");
    bench.engine.join_fleet(HashKey::from_bytes([9; 16])).set_redis_reachable(true);
    bench.reload(
        "  - {name: own, key: [u], rate: 6/h}
  - name: all
    key: [u]
    rate: 6/h
    scope: fleet
    fleet: {on_miss: refuse}
    overrides: [{match: {plan: pro}, rate: 60/h}]
",
    );
    let engine = Arc::clone(&bench.engine);
    let of = |rule: &str, attributes: &[(&str, &str)]| {
        engine.find_share(&RuleName { domain: "api".into(), rule: rule.into() }, attributes, at(0))
    };
    assert_eq!(of("own", &[("u", "1")]), Ok(None));
    assert!(of("all", &[("user", "1")]).is_err());
    let unused = of("all", &[("u", "1")]).unwrap().unwrap();
    assert_eq!((unused.limit, unused.report, unused.is_tracked, unused.redis_level), (60, None, false, None));
    bench.ask(0, Ask::hit("u=1 plan=pro", 2));
    let mut calls = Vec::new();
    engine.take_due_share_keys(&mut calls);
    let budget = engine.fleet_budgets()[&calls[0].budget()].clone();
    assert!(engine.report_share(&calls[0], &budget, 0, at(0)).is_some());
    engine.apply_share_reply(&calls[0], &budget, &granting(2, 1_000_000, at(0)), at(0));
    let here = of("all", &[("u", "1")]).unwrap().unwrap();
    assert_eq!((here.name, here.limit, here.is_tracked), (calls[0].name(), 60, true));
    assert_eq!((here.report.unwrap().borrowed, here.redis_level.unwrap().level), (2, 1_000_000));
}

#[test]
fn flood_of_new_keys_keeps_borrowed_tokens() {
    let mut host = Host::with_memory(1, vec![shared("all", 100, 100)], 256 << 10);
    for user in 0..100 {
        host.hit(&format!("u{user}"), 0);
    }
    let keys = host.calls();
    keys.iter().for_each(|key| host.grant(key, 2, 0));
    host.fleet_status.set_redis_reachable(false);
    for user in 0..20_000 {
        host.hit(&format!("new{user}"), 1);
    }
    assert!(host.engine.totals().evictions > 0, "the table is full");
    let held = |key| host.engine.peek_share(key, &host.budget(key), at_millis(1)).map(|there| there.borrowed);
    assert!(keys.len() == 100 && keys.iter().all(|key| held(key) == Some(2)));
}
