//! The nodes that the descriptors of one request hit together, without those that others replace.

use tidegate::rules::NodeHits;

use super::{descriptor, domain};

/// For each request, its descriptors between bars, and its hits: `name` or `2×name`, with `@` and the number
/// of the first descriptor.
#[track_caller]
fn check(text: &str, requests: &[(&str, &str)]) {
    let domain = domain(text);
    // Reused for every request, as in a decision thread.
    let mut hits = NodeHits::new();
    for (request, expected) in requests {
        let descriptors: Vec<_> = request.split('|').map(descriptor).collect();
        domain.tree().select_hits(descriptors.iter().map(Vec::as_slice), &mut hits);
        let shown = hits.iter().map(|hit| {
            let name = &domain.rules()[hit.hit.rule as usize].name;
            let times = if hit.times == 1 { String::new() } else { format!("{}×", hit.times) };
            format!("{times}{name}@{}", hit.descriptor)
        });
        assert_eq!(shown.collect::<Vec<_>>().join(" "), *expected, "{request:?} in\n{text}");
    }
}

#[test]
fn each_descriptor_matches_its_node() {
    let tree = "
domain: api
limits:
  - {name: first, key: [], rate: 1/s}
descriptors:
  - {key: a, rate_limit: {unit: second, requests_per_unit: 1}}
  - {key: b, value: '*', share_threshold: true, rate_limit: {unit: second, requests_per_unit: 1}}
  - {key: c, rate_limit: {unlimited: true}}
  - {key: d}
  - {key: e, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 0}}
";
    check(
        tree,
        &[
            ("a=1", "a@0"),
            ("d=1", ""),
            ("", ""),
            ("|", ""),
            ("|a=1", "a@1"),
            ("d=1|x=1|a=1", "a@2"),
            // In the order of the rules, not of the request.
            ("c=1|b=1|a=1", "a@2 b_*@1 c@0"),
            ("e=1|a=1", "a@1 e@0"),
            // Equal ones hit it twice.
            ("a=1|a=1", "2×a@0"),
            ("a=1|a=2", "a@0 a@1"),
            ("a=1|a=2|a=1|a=1", "3×a@0 a@1"),
            ("b=1|b=2", "2×b_*@0"),
            ("b=1|a=1|b=*", "a@1 2×b_*@0"),
            ("c=1|c=1", "2×c@0"),
            ("a=1|a=1|a=1|a=1|a=1|a=1|a=1|a=1", "8×a@0"),
            ("a=1|a=2|a=3|a=4|a=5|a=6|a=7|a=8", "a@0 a@1 a@2 a@3 a@4 a@5 a@6 a@7"),
            // A request has at most eight.
            ("x=1|x=1|x=1|x=1|x=1|x=1|x=1|x=1|a=1", ""),
            ("a=1|a=1|a=1|a=1|a=1|a=1|a=1|a=1|a=1", "8×a@0"),
        ],
    );
}

const REPLACES: &str = "
domain: api
descriptors:
  - {key: ip, rate_limit: {unit: second, requests_per_unit: 1, name: per_ip}}
  - {key: user, rate_limit: {unit: second, requests_per_unit: 1, name: per_user, replaces: [{name: per_ip}]}}
  - {key: vip, rate_limit: {unlimited: true, replaces: [{name: per_user}, {name: per_ip}]}}
  - {key: free, rate_limit: {unlimited: true, name: free}}
  - {key: strict, rate_limit: {unit: second, requests_per_unit: 1, replaces: [{name: free}, {name: per_ip}]}}
  - {key: one, rate_limit: {unit: second, requests_per_unit: 1, name: one, replaces: [{name: other}]}}
  - {key: other, rate_limit: {unit: second, requests_per_unit: 1, name: other, replaces: [{name: one}]}}
  - {key: same, rate_limit: {unit: second, requests_per_unit: 1, name: per_ip}}
  - {key: trial, shadow_mode: true, rate_limit: {unit: second, requests_per_unit: 1, replaces: [{name: per_ip}]}}
  - {key: unnamed, rate_limit: {unit: second, requests_per_unit: 1}}
  - key: deep
    rate_limit: {unit: second, requests_per_unit: 1, name: top, replaces: [{name: per_user}]}
    descriptors:
      - {key: deeper, rate_limit: {unit: second, requests_per_unit: 1, name: per_ip}}
";

#[test]
fn limit_replaces_others_of_its_request() {
    check(
        REPLACES,
        &[
            ("ip=1", "ip@0"),
            ("user=1", "user@0"),
            ("ip=1|user=1", "user@1"),
            ("user=1|ip=1", "user@0"),
            // All nodes with that name, at any level.
            ("ip=1|user=1|same=1|deep=1 deeper=1", "user@1"),
            ("ip=1|ip=2|user=1", "user@2"),
            ("ip=1|unnamed=1|user=1", "user@2 unnamed@1"),
            // Only a node that was hit replaces, not one on the way to it.
            ("user=1|deep=1 deeper=1", "user@0"),
            ("user=1|deep=1", "deep@1"),
            // A node in shadow replaces others too.
            ("ip=1|trial=1", "trial@1"),
            // Trap: replacement has no order. `vip` replaces `user`, and `user` the address all the same.
            ("ip=1|user=1|deep=1", "deep@2"),
            ("ip=1|user=1|vip=1", "vip@2"),
            // Mutual: both are removed.
            ("one=1|other=1", ""),
            ("one=1|other=1|ip=1", "ip@2"),
            ("one=1", "one@0"),
            // Trap: an unlimited node replaces others and is never replaced.
            ("vip=1|ip=1", "vip@0"),
            ("free=1|strict=1", "free@0 strict@1"),
            ("free=1|strict=1|ip=1", "free@0 strict@1"),
            ("free=1|ip=1", "ip@1 free@0"),
        ],
    );
}

/// An empty name is no name: no node refers to it.
#[test]
fn unnamed_limits_are_never_replaced() {
    let tree = "
domain: api
descriptors:
  - {key: a, rate_limit: {unit: second, requests_per_unit: 1, name: ''}}
  - {key: b, rate_limit: {unit: second, requests_per_unit: 1, replaces: [{name: x}]}}
  - {key: c, rate_limit: {unit: second, requests_per_unit: 1, name: x, replaces: }}
  - {key: d, rate_limit: {unit: second, requests_per_unit: 1, name: , replaces: []}}
";
    check(tree, &[("a=1|b=1|c=1|d=1", "a@0 b@1 d@3"), ("a=1|c=1|d=1", "a@0 c@1 d@2")]);
}
