//! In good files each node with a limit is a rule, of requests in windows aligned to Unix time.

use tidegate::limit::Quota;
use tidegate::limit::fixed_window::{FixedWindowQuota as FixedWindow, WindowAlign, WindowPeriod};
use tidegate::rules::{RefusedCost, Rule, read_text};

use super::{check, domain};

/// Requests and seconds of a rule's window; `None` is unlimited.
fn windows(rule: &Rule) -> Option<(u32, u64)> {
    let Quota::FixedWindow(quota) = rule.limit.quota()? else { panic!("{rule:?}") };
    let seconds = quota.window().0 / 1_000_000;
    let aligned =
        FixedWindow::new(quota.count(), WindowPeriod::Nanos(seconds * 1_000_000_000), WindowAlign::Epoch);
    assert_eq!(aligned.as_ref(), Ok(quota));
    Some((quota.count(), seconds))
}

fn limited(rate_limit: &str) -> String {
    format!("domain: api\ndescriptors:\n- {{key: k, rate_limit: {rate_limit}}}\n")
}

#[test]
fn units_have_fixed_lengths() {
    let table = [
        ("{unit: second, requests_per_unit: 1}", Some((1, 1))),
        ("{unit: minute, requests_per_unit: 20}", Some((20, 60))),
        ("{unit: hour, requests_per_unit: 4294967295}", Some((u32::MAX, 3_600))),
        ("{unit: day, requests_per_unit: 5}", Some((5, 86_400))),
        ("{unit: week, requests_per_unit: 5}", Some((5, 604_800))),
        // Trap: not a calendar month or year.
        ("{unit: month, requests_per_unit: 5}", Some((5, 2_592_000))),
        ("{unit: year, requests_per_unit: 5}", Some((5, 31_536_000))),
        // Trap: units ignore case.
        ("{unit: SECOND, requests_per_unit: 1}", Some((1, 1))),
        ("{unit: Minute, requests_per_unit: 1}", Some((1, 60))),
        ("{unit: 'hOuR', requests_per_unit: 1}", Some((1, 3_600))),
        // Trap: a missing number refuses all requests.
        ("{unit: day}", Some((0, 86_400))),
        ("{unit: day, requests_per_unit: }", Some((0, 86_400))),
        ("{unit: day, requests_per_unit: 0}", Some((0, 86_400))),
        ("{unlimited: true}", None),
        ("{unlimited: true, requests_per_unit: 3}", None),
        // Trap: `unlimited` ignores an unknown unit.
        ("{unlimited: true, unit: unknown}", None),
        ("{unlimited: true, unit: }", None),
        ("{unlimited: false, unit: day, requests_per_unit: 5}", Some((5, 86_400))),
        ("{unlimited: , unit: day, requests_per_unit: 5}", Some((5, 86_400))),
    ];
    for (text, expected) in table {
        let domain = domain(&limited(text));
        let [rule] = domain.rules() else { panic!("{text}") };
        assert_eq!(windows(rule), expected, "{text}");
        assert_eq!(rule.limit.refused, RefusedCost::Counted);
        assert_eq!((rule.unit.as_deref(), &*rule.mode.to_string()), (None, "enforce"));
        let allowances = [rule.limit.allowance(0), rule.limit.allowance(1)];
        assert_eq!(allowances[0].map(|allowance| allowance.max_debt), expected.map(|(count, _)| count));
        assert_eq!(allowances[1], None);
    }
}

/// Trap: `shadow_mode` is a field beside `rate_limit`, and is not inherited.
#[test]
fn shadow_mode_is_not_inherited() {
    let domain = domain(
        "
domain: api
descriptors:
  - key: a
    shadow_mode: true
    rate_limit: {unit: second, requests_per_unit: 1}
    descriptors:
      - {key: b, rate_limit: {unit: second, requests_per_unit: 1}}
      - {key: c, shadow_mode: true, rate_limit: {unlimited: true}}
  - {key: d, shadow_mode: false, rate_limit: {unit: second, requests_per_unit: 1}}
  - {key: e, shadow_mode: , rate_limit: {unit: second, requests_per_unit: 1}}
",
    );
    let modes: Vec<_> = domain.rules().iter().map(|rule| format!("{} {}", rule.name, rule.mode)).collect();
    assert_eq!(modes, ["a shadow", "a.b enforce", "a.c shadow", "d enforce", "e enforce"]);
}

#[test]
fn node_without_limit_is_no_rule() {
    let domain = domain(
        "
domain: api
descriptors:
  - {key: a}
  - {key: b, rate_limit: }
  - {key: c, rate_limit: null, descriptors: }
  - {key: d, descriptors: []}
  - {key: e, descriptors: [{key: f, rate_limit: {unlimited: true}}], metadata: , value: null}
",
    );
    let [rule] = domain.rules() else { panic!("{domain:?}") };
    assert_eq!((&*rule.name, &*rule.position.to_string()), ("e.f", "tree.yaml:8:34"));
    assert!(!domain.tree().is_empty());
}

/// A file of that service may be empty, or nearly so.
#[test]
fn accepts_empty_tree() {
    for text in [
        "domain: api\n",
        "domain: api\ndescriptors:\n",
        "domain: api\ndescriptors: []\n",
        "domain: api\ndescriptors: ~\n",
    ] {
        let loaded = read_text("tree.yaml", text);
        assert!(!loaded.has_errors() && loaded.problems.len() == 1, "{:#?}", loaded.problems);
        assert!(loaded.problems[0].message.contains("no rules in this file"), "{:#?}", loaded.problems);
        assert!(loaded.domains[0].tree().is_empty());
    }
}

/// Every field of that service; anchors and merges are YAML.
#[test]
fn reads_every_field() {
    let text = "
domain: api
descriptors:
  - key: a
    value: b*
    quota_mode: true
    detailed_metric: true
    value_to_metric: true
    share_threshold: true
    shadow_mode: true
    metadata: {anything: [1, two, {three: 3.0}], at: {any: depth, unit: x}}
    rate_limit: &limit
      unit: minute
      requests_per_unit: 3
      name: one
      replaces: [{name: two}, {name: three}]
    descriptors:
      - key: c
        rate_limit: {<<: *limit, name: two, requests_per_unit: 4, replaces: []}
      - key: d
        rate_limit: {name: three, unlimited: true}
";
    let domain = domain(text);
    let rules: Vec<_> = domain.rules().iter().map(|rule| (&*rule.name, windows(rule))).collect();
    assert_eq!(rules, [("a_b*", Some((3, 60))), ("a_b*.c", Some((4, 60))), ("a_b*.d", None)]);
    check(text, &[("a=bx", "a_b*"), ("a=bx c=1", "a_b*.c"), ("a=b d=", "a_b*.d")]);
}

/// Long names are cut, and still differ.
#[test]
fn cuts_long_names_to_distinct_ones() {
    let long = "é".repeat(200);
    let node = |value: &str| format!("  - {{key: k, value: {value}, rate_limit: {{unlimited: true}}}}\n");
    let domain = domain(&format!(
        "domain: api\ndescriptors:\n{}{}{}",
        node(&long),
        node(&format!("{long}1")),
        node(&"x".repeat(253))
    ));
    let names: Vec<_> = domain.rules().iter().map(|rule| &*rule.name).collect();
    assert!(names[0] != names[1] && names.iter().all(|name| name.len() <= 255), "{names:?}");
    assert!(names[0].len() >= 254 && names[2] == format!("k_{}", "x".repeat(253)), "{names:?}");
}

/// The example in `config/rules` behaves as its comments describe.
#[test]
fn example_tree_behaves_as_documented() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/config/rules/messaging.yaml");
    let text = std::fs::read_to_string(path).unwrap();
    assert_eq!(read_text(path, &text).problems, []);
    let domain = domain(&text);
    let rules: Vec<_> = domain.rules().iter().map(|rule| (&*rule.name, windows(rule).unwrap())).collect();
    let expected = [
        ("message_type_marketing.to_number", (5, 86_400)),
        ("to_number", (100, 86_400)),
        ("auth_type_login.user", (5, 60)),
        ("sender_retired", (0, 1)),
    ];
    assert_eq!(rules, expected);
    check(
        &text,
        &[
            ("message_type=marketing", "-"),
            ("message_type=marketing to_number=+4930", "message_type_marketing.to_number"),
            ("message_type=marketing to_number=+15550100", "-"),
            ("message_type=invoice to_number=+4930", "-"),
            ("to_number=+4930", "to_number"),
            ("to_number=+15550100", "to_number"),
            ("auth_type=login user=a", "auth_type_login.user"),
            ("auth_type=logout user=a", "-"),
            ("sender=retired", "sender_retired"),
            ("sender=desk", "-"),
        ],
    );
}

#[test]
fn rule_key_has_the_counted_entries() {
    let tree = "
domain: api
limits:
  - {name: all, key: [], rate: 1/s}
descriptors:
  - key: tier
    value: free
    descriptors:
      - {key: user, rate_limit: {unit: second, requests_per_unit: 1}}
  - key: tier
    descriptors:
      - {key: path, value: '/a*', rate_limit: {unit: second, requests_per_unit: 1}}
      - {key: path, value: '/b*', share_threshold: true, rate_limit: {unit: second, requests_per_unit: 1}}
  - {key: all, value: of_them, rate_limit: {unit: second, requests_per_unit: 1}}
";
    let domain = domain(tree);
    let rules = domain.rules().iter().map(|rule| {
        let key: Vec<_> = rule.key.iter().map(|part| &*part.attribute).collect();
        format!("{}: {}", rule.name, key.join(" "))
    });
    let expected =
        ["all: ", "tier_free.user: user", "tier.path__a*: tier path", "tier.path__b*: tier", "all_of_them: "];
    assert_eq!(rules.collect::<Vec<_>>(), expected);
}
