//! A cost above the range of a rule is refused for good, whatever the rules do for a smaller one.

use tidegate::rules::Mode;

use super::scenarios::Stage;

const FILE: &str = "\
exempt: [{name: probes, match: {path: /healthz}}]
deny: [{name: bots, match: {agent: bot}}]
limits:
  - {name: large, key: [a], algorithm: fixed_window, rate: 4294967295/h}
  - {name: tried, key: [s], rate: 10/s, mode: shadow}
  - {name: open, key: [o], rate: 10/s, overrides: [{match: {o: x}, rate: unlimited}]}
concurrency:
  - {name: work, key: [w], max: 2}
";

fn check(mode: Mode, rules: &str, request: &str, expected: &str) {
    for op in ["hit", "peek", "acquire"] {
        let mut stage = Stage::new(mode);
        stage.install(rules);
        stage.check("open 1", "");
        stage.check(&format!("{op} oversized {request}"), expected);
    }
}

#[test]
fn refuses_cost_above_any_quota() {
    for (request, expected) in [
        ("a=1", "limit large 4294967295/4294967295 never"),
        ("a=1 s=1", "limit large 4294967295/4294967295 never [shadow tried]"),
        ("s=1", "allow [shadow tried]"),
        ("o=x", "limit never"),
        ("other=1", "limit never"),
        ("w=1", "limit never"),
        ("path=/healthz a=1", "allow probes"),
        ("agent=bot a=1", "deny bots never"),
        ("domain:elsewhere a=1", "limit never"),
    ] {
        check(Mode::Enforce, FILE, request, expected);
    }
}

/// A single rule has a code path of its own.
#[test]
fn single_rule_refuses_cost_above_its_quota() {
    for algorithm in ["fixed_window", "token_bucket"] {
        let rule = format!("- {{name: all, key: [a], algorithm: {algorithm}, rate: 4294967295/h}}\n");
        check(Mode::Enforce, &rule, "a=1", "limit all 4294967295/4294967295 never");
    }
}

#[test]
fn allows_oversized_cost_in_shadow_or_disabled() {
    for (mode, expected) in [(Mode::Shadow, "allow [shadow large]"), (Mode::Disabled, "allow")] {
        check(mode, FILE, "a=1", expected);
        check(mode, FILE, "other=1", "allow");
        check(mode, FILE, "domain:elsewhere a=1", "allow");
    }
}
