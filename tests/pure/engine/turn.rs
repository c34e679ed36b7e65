//! All hosts turn to another secret: what a host knows of a key goes along with its next request.

use std::sync::Arc;

use tidegate::clock::Micros;
use tidegate::engine::{By, Decider, Engine, FleetOverrides, HashKey, Moved, Op, RuleName, Verdict};
use tidegate::limit::share::{self, WhenDown};
use tidegate::limit::{Quota, Rate, token_bucket};
use tidegate::rules::{Limit, Rule};

use super::engines::{SECOND, api, ask, at_millis, options, rule};

const SECRETS: [u8; 2] = [8, 9];

struct Host {
    engine: Arc<Engine>,
    decider: Decider,
}

impl Host {
    /// One that hears nobody, so that it has the whole of a budget.
    fn new(rules: Vec<Rule>) -> Host {
        let engine = Arc::new(Engine::new(options()));
        engine.join_fleet_with(SECRETS.map(|secret| HashKey::from_bytes([secret; 16])).to_vec());
        engine.install(api(rules));
        Host { decider: engine.decider(), engine }
    }

    fn hit(&mut self, user: &str) -> Verdict {
        ask(&mut self.decider, Op::Hit, &[("user", user)], 1, at_millis(0)).verdict
    }

    /// How many pass of more than there can be.
    fn passing(&mut self, user: &str) -> usize {
        (0..30).filter(|_| self.hit(user) == Verdict::Allow).count()
    }

    fn moved(&self) -> Vec<Moved> {
        let mut moved = Vec::new();
        self.engine.take_moved(&mut moved);
        moved
    }
}

/// Of the fleet: ten in ten seconds.
fn shared() -> Rule {
    let bucket = token_bucket::Quota::new(Rate::new(1, SECOND).unwrap(), 10).unwrap();
    let quota = Quota::Share(share::Quota::new(bucket, 0, WhenDown::Local));
    Rule { limit: Limit::new(quota), ..rule("all", &["user"], 1, 10) }
}

/// Alone, and beside a rule of this host, which is judged in another way.
fn sets() -> [Vec<Rule>; 2] {
    [vec![shared()], vec![shared(), rule("own", &["user"], 1_000, 1_000)]]
}

fn name() -> RuleName {
    RuleName { domain: "api".into(), rule: "all".into() }
}

#[test]
fn what_was_used_before_is_used_after_it_and_is_told_of_once() {
    for rules in sets() {
        let mut host = Host::new(rules);
        assert_eq!((host.passing("u1"), host.moved().len()), (10, 0));
        host.engine.use_secret(1, Some(0));
        assert_eq!(host.passing("u1"), 0, "it goes along");
        assert_eq!(host.passing("u2"), 10, "of whom nothing was known nothing is");
        let moved = host.moved();
        assert_eq!(moved.len(), 2, "each key once");
        assert!(moved.iter().all(|Moved { key, former }| key.name() != former.name()));
        assert_eq!(moved[0].key.budget(), moved[0].former.budget(), "a budget stays what it is here");
    }
}

#[test]
fn without_a_former_secret_a_key_begins_anew() {
    for rules in sets() {
        let mut host = Host::new(rules);
        assert_eq!(host.passing("u1"), 10);
        host.engine.use_secret(1, None);
        assert_eq!((host.passing("u1"), host.moved().len()), (10, 0));
        host.engine.use_secret(0, Some(1));
        assert_eq!(host.passing("u1"), 0, "what lies there under the secret in use is what is known");
        assert_eq!(host.moved().len(), 0, "it is found, so nothing is looked for");
    }
}

#[test]
fn keys_that_are_blocked_stay_blocked_whichever_secret_it_was_said_under() {
    for (rules, is_of_rule) in [(sets()[0].clone(), true), (vec![rule("all", &["user"], 1, 10)], false)] {
        let mut host = Host::new(rules);
        let until = at_millis(3_600_000).at;
        host.engine.block(&name(), &[("user", "here")], until, By::User(0)).unwrap();
        let keys = host.engine.keys_everywhere(&name(), &[("user", "everywhere")]).unwrap();
        assert_eq!(keys.len(), 2, "under each secret");
        let block = |key: [u64; 2]| tidegate::engine::Blocked {
            rule: name(),
            key,
            text: None,
            until,
            by: By::User(0),
        };
        for key in keys {
            let overrides = FleetOverrides { blocks: vec![block(key)], ..FleetOverrides::default() };
            host.engine.take_fleet_overrides(&overrides);
            for (uses, former) in [(0, None), (1, Some(0)), (1, None), (0, Some(1))] {
                host.engine.use_secret(uses, former);
                let passing = ["here", "everywhere"].map(|user| host.passing(user));
                assert_eq!(passing, [0, 0], "of the fleet {is_of_rule}, with {uses} and {former:?}");
            }
        }
        host.engine.use_secret(1, None);
        assert_eq!(host.passing("nobody"), 10);
        assert!(host.engine.unblock(&name(), &[("user", "here")]).unwrap());
        assert!(host.passing("here") > 0);
    }
}

#[test]
fn a_rule_that_blocks_goes_on_blocking() {
    let mut rule = shared();
    rule.limit.block = Some(Micros(600_000_000).into());
    let mut host = Host::new(vec![rule]);
    assert_eq!(host.passing("u1"), 10);
    host.engine.use_secret(1, Some(0));
    let later =
        |host: &mut Host, ms| ask(&mut host.decider, Op::Hit, &[("user", "u1")], 1, at_millis(ms)).verdict;
    assert_eq!(
        later(&mut host, 60_000),
        Verdict::Limit,
        "the bucket is full again, and the block is not over"
    );
    assert_eq!(later(&mut host, 601_000), Verdict::Allow);
}
