//! A limit applies only to a descriptor with as many entries as the node is deep.

use super::check;

/// Two levels, with and without limits on the way.
const TREE: &str = "
domain: api
descriptors:
  - key: message_type
    value: marketing
    rate_limit: {unit: day, requests_per_unit: 5}
    descriptors:
      - key: to_number
        rate_limit: {unit: day, requests_per_unit: 2}
        descriptors:
          - {key: hour, value: 3, rate_limit: {unit: hour, requests_per_unit: 1}}
  - key: message_type
    descriptors:
      - {key: to_number, value: 112}
      - {key: to_number, rate_limit: {unit: day, requests_per_unit: 9}}
  - key: to_number
    rate_limit: {unit: day, requests_per_unit: 100}
  - key: allowed
  - key: parent
    descriptors:
      - {key: child}
";

#[test]
fn depth_is_exact() {
    check(
        TREE,
        &[
            ("message_type=marketing", "message_type_marketing"),
            ("message_type=marketing to_number=1", "message_type_marketing.to_number"),
            ("message_type=marketing to_number=1 hour=3", "message_type_marketing.to_number.hour_3"),
            // Not last: the limit of a node on the way is none.
            ("message_type=marketing to_number=1 hour=4", "-"),
            ("message_type=marketing other=1", "-"),
            // Deeper than the tree: no children, no limit.
            ("message_type=marketing to_number=1 hour=3 minute=1", "-"),
            ("to_number=1 to_number=1", "-"),
            ("to_number=1 message_type=marketing", "-"),
            ("to_number=1", "to_number"),
            // Shallower than a limit: a parent without one.
            ("message_type=login", "-"),
            ("message_type=login to_number=1", "message_type.to_number"),
            // An entry of an allow list: the node is there and limits nothing.
            ("message_type=login to_number=112", "-"),
            ("allowed=x", "-"),
            ("allowed=x y=z", "-"),
            ("parent=x", "-"),
            ("parent=x child=y", "-"),
            ("parent=x child=y z=1", "-"),
        ],
    );
}

#[test]
fn entries_are_taken_in_their_order_and_under_their_names() {
    check(
        TREE,
        &[
            ("", "-"),
            ("unheard-of=1", "-"),
            ("to_number=1 unheard-of=1", "-"),
            ("unheard-of=1 to_number=1", "-"),
            ("Message_type=marketing", "-"),
            ("message_type=Marketing to_number=1", "message_type.to_number"),
            ("hour=3 to_number=1 message_type=marketing", "-"),
            ("to_number=", "to_number"),
            ("to_number=1 =", "-"),
            ("=1", "-"),
        ],
    );
}

/// A name may come twice in one descriptor, and the tree sees both.
#[test]
fn a_name_may_come_twice() {
    let tree = "
domain: api
descriptors:
  - key: id
    descriptors:
      - {key: id, value: b, rate_limit: {unit: second, requests_per_unit: 1}}
      - {key: id, rate_limit: {unit: second, requests_per_unit: 2}}
";
    check(tree, &[("id=a id=b", "id.id_b"), ("id=b id=a", "id.id"), ("id=a", "-"), ("id=a id=b id=c", "-")]);
}

/// As deep as a request can be.
#[test]
fn sixteen_entries() {
    let mut text = "domain: api\ndescriptors:\n".to_owned();
    for depth in 0..16 {
        let indent = "  ".repeat(depth);
        let more = if depth < 15 { format!("{indent}  descriptors:\n") } else { String::new() };
        let limit = "rate_limit: {unit: second, requests_per_unit: 1, replaces: [{name: x}]}";
        text.push_str(&format!("{indent}- key: k{depth}\n{indent}  {limit}\n{more}"));
    }
    let path = |depth: usize, end: &str| (0..depth).map(|at| format!("k{at}{end}")).collect::<Vec<_>>();
    for depth in [1, 2, 15, 16] {
        check(&text, &[(&path(depth, "=v").join(" "), &path(depth, "").join("."))]);
    }
    check(&text, &[(&format!("{} more=1", path(16, "=v").join(" ")), "-")]);
    // Longer than any descriptor, and than the bits that note what is shared.
    check(&text, &[(&vec!["k0=v"; 100].join(" "), "-")]);
}
