//! A budget that many hosts share, judged beside rules of this host: all or none, and told of once.

use std::sync::Arc;

use tidegate::engine::{
    Decider, Engine, FleetBudget, FleetStatus, HashKey, Op, ShareReply, SharedKey, Verdict,
};
use tidegate::limit::share::{self, Fallback};
use tidegate::limit::{Quota, Rate, token_bucket};
use tidegate::rules::{Limit, Mode, Rule};

use super::engines::{SECOND, api, ask, at_millis, in_mode, options, rule};

struct Host {
    engine: Arc<Engine>,
    decider: Decider,
    standing: Arc<FleetStatus>,
}

impl Host {
    fn new(own_key: u8, rules: Vec<Rule>) -> Host {
        let options =
            tidegate::engine::EngineOptions { hash_key: HashKey::from_bytes([own_key; 16]), ..options() };
        let engine = Arc::new(Engine::new(options));
        let standing = engine.join_fleet(HashKey::from_bytes([9; 16]));
        standing.set_redis_reachable(true);
        engine.install_rules(api(rules));
        Host { decider: engine.decider(), engine, standing }
    }

    fn hit(&mut self, user: &str, millis: u64) -> Verdict {
        ask(&mut self.decider, Op::Hit, &[("user", user)], 1, at_millis(millis)).verdict
    }

    fn calls(&self) -> Vec<SharedKey> {
        let mut calls = Vec::new();
        self.engine.take_due_share_keys(&mut calls);
        calls
    }

    fn budget(&self, key: &SharedKey) -> FleetBudget {
        self.engine.fleet_budgets()[&key.budget()].clone()
    }

    fn grant(&self, key: &SharedKey, granted: u32, millis: u64) {
        let (budget, now) = (self.budget(key), at_millis(millis));
        let (reported, _) = self.engine.report_share(key, &budget, 0, now).unwrap();
        let settled = ShareReply {
            paid: reported.debt,
            granted,
            level: 50_000_000,
            demand: 0,
            sent_at: now.at,
            low_mark: 0,
            next_increase: None,
        };
        self.engine.apply_share_reply(key, &budget, &settled, now);
    }
}

/// A rule of the fleet, without credit.
fn shared(name: &str, rate: u32, burst: u32) -> Rule {
    let bucket = token_bucket::TokenBucketQuota::new(Rate::new(rate, SECOND).unwrap(), burst).unwrap();
    let quota = Quota::FleetBudget(Box::new(share::ShareQuota::new(bucket, 0, Fallback::Share)));
    Rule { limit: Limit::new(quota), ..rule(name, &["user"], rate, burst) }
}

#[test]
fn a_key_calls_once_and_passes_what_it_is_granted() {
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
fn hosts_with_the_same_secret_know_a_key_by_the_same_name() {
    let (mut a, mut b) = (Host::new(1, vec![shared("all", 9, 9)]), Host::new(2, vec![shared("all", 9, 9)]));
    a.hit("u1", 0);
    b.hit("u1", 0);
    let (of_a, of_b) = (a.calls()[0], b.calls()[0]);
    assert_eq!(of_a, of_b);
    b.hit("u2", 0);
    assert_ne!(b.calls()[0].name(), of_a.name());
}

#[test]
fn a_local_rule_that_refuses_leaves_the_share_as_it_was_and_the_other_way_round() {
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
fn looking_leaves_no_trace_and_shadow_refuses_nothing() {
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
fn a_key_that_is_let_go_is_swept_and_one_in_touch_is_not() {
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
fn cut_off_it_limits_by_itself() {
    let mut host = Host::new(1, vec![shared("all", 100, 100)]);
    host.standing.set_hosts(4);
    host.standing.set_redis_reachable(false);
    let admitted = (0..200).filter(|_| host.hit("u1", 0) == Verdict::Allow).count();
    assert_eq!(admitted, 25);
    assert_eq!(host.calls().len(), 0, "there is nobody to tell");
}

#[test]
fn a_refusal_never_says_that_there_was_enough() {
    // What Redis said a moment ago is far more than is asked for: here is too little of it all the same.
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
