//! Engines and rules for several test files.
#![allow(dead_code, unreachable_pub, reason = "no test file uses all of it")]
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::sync::Arc;

use tidegate::clock::{Now, Timestamp};
use tidegate::engine::{
    ConnectionParams, Cost, Decider, Descriptors, Engine, EngineAnswer, EngineOptions, HashKey, Op, Request,
    Session, Verdict,
};
use tidegate::limit::Rate;
use tidegate::limit::token_bucket::TokenBucketQuota;
use tidegate::rules::{Condition, Domain, KeyPart, Mode, Pattern, Position, Rule, read_text};

pub const SECOND: u64 = 1_000_000_000;

/// A rule of `count` per second with this burst and key.
pub fn rule(name: &str, key: &[&str], count: u32, burst: u32) -> Rule {
    let quota = TokenBucketQuota::new(Rate::new(count, SECOND).unwrap(), burst).unwrap();
    let position = Position { file: "test".into(), line: 1, column: 1 };
    let key = key.iter().map(|attribute| KeyPart::plain(attribute)).collect();
    Rule { key, ..Rule::new(name, position, quota.into()) }
}

/// Adds a condition: the attribute has one of these values.
pub fn matching(mut rule: Rule, attribute: &str, values: &[&str]) -> Rule {
    let any_of = values.iter().map(|value| Pattern::parse(value)).collect();
    rule.conditions.push(Condition::new(attribute, any_of));
    rule
}

/// Sets the rule's mode.
pub fn in_mode(mut rule: Rule, mode: Mode) -> Rule {
    rule.mode = mode;
    rule
}

pub fn api(rules: Vec<Rule>) -> Vec<Domain> {
    vec![Domain::new("api", rules)]
}

/// The domains of a rules file without errors.
pub fn domains(text: &str) -> Vec<Arc<Domain>> {
    let loaded = read_text("rules.yaml", text);
    assert!(!loaded.has_errors(), "{text}\n{:#?}", loaded.problems);
    loaded.domains
}

/// Opens a session of the pool `web` without a name.
pub fn open(engine: &Engine, user: u32, slots: u32, now: Now) -> Session {
    let opening = ConnectionParams { name: None, user, pool: "web", slots, connection: 1, pid: None };
    engine.open_session(&opening, now).unwrap()
}

pub fn options() -> EngineOptions {
    EngineOptions { hash_key: HashKey::from_bytes([7; 16]), mode: Mode::Enforce, memory_bytes_max: 64 << 20 }
}

pub fn engine(rules: Vec<Rule>) -> Arc<Engine> {
    let engine = Arc::new(Engine::new(options()));
    engine.install_rules(api(rules));
    engine
}

pub fn at_millis(millis: u64) -> Now {
    Now { at: Timestamp::from_nanos(millis * 1_000_000), utc_offset_nanos: 0 }
}

/// The fields of a decision that tests compare, owned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub verdict: Verdict,
    pub rule: Option<String>,
    pub remaining: Option<u64>,
    pub retry_us: Option<u64>,
    pub notes: Vec<String>,
    pub all: Vec<(String, u64)>,
}

/// Decides a request in `api`.
pub fn ask(decider: &mut Decider, op: Op, attributes: &[(&str, &str)], cost: u32, now: Now) -> Seen {
    let descriptors = Descriptors::from_attributes(attributes);
    let request = Request {
        cost: Cost::Requests(cost),
        lists_all_limits: true,
        ..Request::new(op, "api", descriptors)
    };
    let EngineAnswer::Decided(decision) = decider.decide(&request, now) else { panic!("a conflict") };
    Seen {
        verdict: decision.verdict,
        rule: decision.binding.map(|binding| binding.rule.name.to_string()),
        remaining: decision.binding.map(|binding| binding.level.remaining),
        retry_us: decision.retry_after.map(|retry| retry.0),
        notes: decision.notes().map(|(_, rule)| rule.to_string()).collect(),
        all: decision.limits().map(|view| (view.rule.name.to_string(), view.level.remaining)).collect(),
    }
}

/// Whether one hit is allowed.
pub fn hit(decider: &mut Decider, attributes: &[(&str, &str)], now: Now) -> bool {
    ask(decider, Op::Hit, attributes, 1, now).verdict == Verdict::Allow
}
