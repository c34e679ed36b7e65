//! A cost above the range of a rule is refused for good, whatever the rules do for a smaller one.

use tidegate::engine::Op;
use tidegate::rules::Mode;

use super::bench::Bench;

const FILE: &str = "\
domain: api
exempt: [{name: probes, match: {path: /healthz}}]
deny: [{name: bots, match: {agent: bot}}]
limits:
  - {name: large, key: [a], algorithm: fixed_window, rate: 4294967295/h}
  - {name: tried, key: [s], rate: 10/s, mode: shadow}
  - {name: open, key: [o], rate: 10/s, overrides: [{match: {o: x}, rate: unlimited}]}
concurrency:
  - {name: work, key: [w], max: 2}
";

const OPS: [Op; 3] = [Op::Hit, Op::Peek, Op::Acquire];

fn asked(mode: Mode, domain: &str, attributes: &str) -> [String; 3] {
    let mut bench = Bench::of(mode, FILE);
    let session = bench.session(7);
    OPS.map(|op| bench.oversized(op, domain, attributes, Some(&session)))
}

#[test]
fn refuses_cost_above_any_quota() {
    for (attributes, expected) in [
        ("a=1", "limit large 4294967295/4294967295 never"),
        ("a=1 s=1", "limit large 4294967295/4294967295 never [shadow tried]"),
        ("s=1", "allow [shadow tried]"),
        ("o=x", "limit never"),
        ("other=1", "limit never"),
        ("w=1", "limit never"),
        ("path=/healthz a=1", "allow probes"),
        ("agent=bot a=1", "deny bots never"),
    ] {
        assert_eq!(asked(Mode::Enforce, "api", attributes), [expected; 3], "{attributes}");
    }
    assert_eq!(asked(Mode::Enforce, "elsewhere", "a=1"), ["limit never"; 3]);
}

/// A single rule has a code path of its own.
#[test]
fn single_rule_refuses_cost_above_its_quota() {
    for algorithm in ["fixed_window", "token_bucket"] {
        let file = format!(
            "domain: api\nlimits: [{{name: all, key: [a], algorithm: {algorithm}, rate: 4294967295/h}}]\n"
        );
        for op in [Op::Hit, Op::Peek] {
            let told = Bench::of(Mode::Enforce, &file).oversized(op, "api", "a=1", None);
            assert_eq!(told, "limit all 4294967295/4294967295 never", "{algorithm}");
        }
    }
}

#[test]
fn allows_oversized_cost_in_shadow_or_disabled() {
    for (mode, expected) in [(Mode::Shadow, "allow [shadow large]"), (Mode::Disabled, "allow")] {
        assert_eq!(asked(mode, "api", "a=1"), [expected; 3]);
        assert_eq!(asked(mode, "api", "other=1"), ["allow"; 3]);
        assert_eq!(asked(mode, "elsewhere", "a=1"), ["allow"; 3]);
    }
}
