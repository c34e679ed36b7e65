//! Whatever the rules and the request, the index finds the rules that a look at each rule finds.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test fails by panicking"
)]

use proptest::prelude::*;
use tidegate::limit::Rate;
use tidegate::limit::token_bucket::Quota;
use tidegate::rules::{Condition, Domain, KeyPart, Mode, Pattern, Position, Rule, Selection};

/// Few names and values, so that rules and requests meet often; the empty text is a value too.
const NAMES: [&str; 5] = ["user", "method", "path", "ip", "unheard-of"];
const VALUES: [&str; 7] = ["", "a", "b", "ab", "abc", "*", "é"];
const PATTERNS: [&str; 10] = ["", "a", "b", "ab", "*", "a*", "*b", "*b*", r"\*", "é*"];

/// The rules that match, by looking at each.
fn naive(rules: &[Rule], attributes: &[(&str, &str)]) -> Vec<u32> {
    let value = |name: &str| {
        let first = attributes.iter().find(|(known, _)| *known == name);
        first.map(|(_, value)| *value).filter(|value| !value.is_empty())
    };
    let matches = |rule: &Rule| {
        rule.mode != Mode::Disabled
            && rule.key.iter().all(|part| value(&part.attribute).is_some())
            && rule.conditions.iter().all(|condition| {
                value(&condition.attribute)
                    .is_some_and(|value| condition.any_of.iter().any(|pattern| pattern.holds(value)))
            })
    };
    (0..).zip(rules).filter(|(_, rule)| matches(rule)).map(|(number, _)| number).collect()
}

fn rule_of(name: &str, conditions: Vec<Condition>, key: &[&str], mode: Mode) -> Rule {
    let position = Position { file: "rules.yaml".into(), line: 1, column: 1 };
    let quota = Quota::new(Rate::new(1, 1_000_000_000).unwrap(), 1).unwrap();
    let key = key.iter().map(|attribute| KeyPart::plain(attribute)).collect();
    Rule { conditions, key, mode, ..Rule::new(name, position, quota.into()) }
}

fn name() -> impl Strategy<Value = &'static str> {
    prop::sample::select(&NAMES[..4])
}

fn condition() -> impl Strategy<Value = Condition> {
    let patterns = prop::collection::vec(prop::sample::select(&PATTERNS[..]), 1..4);
    (name(), patterns).prop_map(|(attribute, patterns)| {
        Condition::new(attribute, patterns.into_iter().map(Pattern::parse).collect())
    })
}

fn rule() -> impl Strategy<Value = Rule> {
    let mode = prop_oneof![4 => Just(Mode::Enforce), 1 => Just(Mode::Shadow), 1 => Just(Mode::Disabled)];
    let key = prop::collection::vec(name(), 0..3);
    (prop::collection::vec(condition(), 0..4), key, mode).prop_map(|(conditions, mut key, mode)| {
        key.sort_unstable();
        key.dedup();
        rule_of("rule", conditions, &key, mode)
    })
}

fn request() -> impl Strategy<Value = Vec<(&'static str, &'static str)>> {
    prop::collection::vec((prop::sample::select(&NAMES[..]), prop::sample::select(&VALUES[..])), 0..7)
}

fn check(rules: &[Rule], requests: &[Vec<(&str, &str)>]) {
    let domain = Domain::new("api", rules.to_vec());
    // Used again for every request, as a decision thread does.
    let mut selection = Selection::default();
    let mut matching = Vec::new();
    for request in requests {
        domain.select(request, &mut selection, &mut matching);
        assert_eq!(matching, naive(rules, request), "{request:?}");
        for number in &matching {
            let values: Vec<_> = domain.key_values(*number, &selection).collect();
            let first = |name: &str| request.iter().find(|(known, _)| *known == name).unwrap().1;
            let expected: Vec<_> =
                rules[*number as usize].key.iter().map(|part| first(&part.attribute)).collect();
            assert_eq!(values, expected, "{request:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_index_finds_what_a_look_at_each_rule_finds(
        rules in prop::collection::vec(rule(), 0..12),
        requests in prop::collection::vec(request(), 1..6),
    ) {
        check(&rules, &requests);
    }
}

/// More attributes than a request can carry, and a request as long as one can be.
#[test]
fn a_request_may_name_as_many_attributes_as_it_can_carry() {
    let names: Vec<_> = (0..300).map(|number| format!("attribute-{number}")).collect();
    let rules: Vec<_> = names.iter().map(|name| rule_of(name, Vec::new(), &[name], Mode::Enforce)).collect();
    let request: Vec<_> = names.iter().step_by(2).take(128).map(|name| (name.as_str(), "x")).collect();
    assert_eq!(naive(&rules, &request).len(), 128);
    check(&rules, &[request]);
}
