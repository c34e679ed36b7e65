//! In good files each node with a limit is a rule, of requests in windows aligned to Unix time.

use tidegate::limit::Quota;
use tidegate::limit::fixed_window::{FixedWindowQuota as FixedWindow, WindowAlign, WindowPeriod};
use tidegate::rules::{Rule, read_text};

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
