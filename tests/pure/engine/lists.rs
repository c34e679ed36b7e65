//! Exempt requests, denied requests, and nodes that refuse nothing.

use tidegate::rules::Mode;

use super::bench::Bench;

const RULES: &str = "\
domain: api
exempt: [{name: probes, match: {path: /healthz}}]
deny: [{name: bots, match: {agent: '*Bot*'}}]
limits:
  - {name: all, key: [], rate: 1/h}
";

#[test]
fn exempt_request_skips_rules_and_precedes_deny() {
    let mut bench = Bench::of(Mode::Enforce, RULES);
    bench.check(&[
        (0, "path=/healthz agent=Bot", 1, "allow probes"),
        (0, "path=/ agent=Bot", 1, "deny bots never"),
        (0, "path=/", 1, "allow all 0/1"),
        (0, "path=/healthz", 1, "allow probes"),
    ]);
    assert!(!bench.charge(0, "path=/healthz", 1), "and not charged");
    assert_eq!(bench.peek(0, "agent=Bot", 1), "deny bots never");
    let totals = bench.engine.totals();
    assert_eq!((totals.verdicts.allow, totals.verdicts.deny), (3, 1));
    let counted = |name: &str| totals.rules.iter().find(|rule| &*rule.rule == name).cloned().unwrap();
    assert_eq!((counted("probes").pass, counted("bots").refuse), (2, 1));
}

#[test]
fn daemon_in_shadow_denies_nothing() {
    let mut bench = Bench::of(Mode::Shadow, RULES);
    bench.check(&[
        (0, "agent=Bot", 1, "allow [shadow bots]"),
        (0, "agent=Bot", 1, "allow [shadow bots] [shadow all]"),
        (0, "path=/healthz", 1, "allow probes"),
    ]);
}

#[test]
fn shadow_denial_is_noted_and_later_rules_decide() {
    let mut bench = Bench::of(
        Mode::Enforce,
        "\
domain: api
deny:
  - {name: bots, match: {agent: '*Bot*'}, mode: shadow}
  - {name: gone, match: {agent: '*Bot*'}, mode: disabled}
  - {name: worse, match: {path: /admin}}
limits:
  - {name: all, key: [], rate: 1/h}
",
    );
    bench.check(&[
        (0, "agent=Bot", 1, "allow all 0/1 [shadow bots]"),
        (0, "agent=Bot path=/admin", 1, "deny worse never"),
        (0, "agent=Bot", 1, "limit all 0/1 after 3600000000 [shadow bots]"),
    ]);
}

#[test]
fn quota_mode_node_allows_and_notes_excess() {
    let file = "domain: api\ndescriptors:\n\
        - {key: plan, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 2}}\n\
        - {key: user, rate_limit: {unit: hour, requests_per_unit: 3}}\n";
    let mut bench = Bench::of(Mode::Enforce, file);
    bench.check(&[
        (0, "plan=free", 2, "allow"),
        (0, "plan=free", 1, "allow [quota plan]"),
        (0, "plan=other", 3, "allow [quota plan]"),
        (0, "user=u", 3, "allow user 0/3"),
        (0, "user=u", 1, "limit user 0/3 after 3600000000"),
    ]);
}
