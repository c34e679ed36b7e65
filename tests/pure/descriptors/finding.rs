//! Descriptor matching agrees with a naive reading of the service's description: `key_value` before patterns
//! in file order before the bare key, no backtracking, the limit of the last node alone; a star matches any
//! characters and has no escape; only values under a shared pattern count together.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::{check, domain, file, shown};

/// A node as written.
#[derive(Clone, Debug)]
struct Node {
    key: &'static str,
    value: &'static str,
    limited: bool,
    share: bool,
    children: Vec<Node>,
}

/// Few of each, with underscores and stars, so that texts often collide.
const KEYS: [&str; 8] = ["a", "b", "a_b", "a*", "*b", "a_", "_", "*"];
const VALUES: [&str; 16] =
    ["", "a", "b", "b_a", "a*", "*", "*b", "a*b", "*a*", "a*a", "_", "aba", "a*b*a", "*ab*ab*", r"a\*", "a?"];
const SENT_KEYS: [&str; 8] = ["a", "b", "a_b", "a*", "*b", "a_", "ab", "_"];
const SENT_VALUES: [&str; 16] =
    ["", "a", "b", "ab", "aba", "b_a", "a*", "*", "_", "baab", "aa", "b_", "abab", "abba", r"a\b", "é"];

impl Node {
    fn text(&self) -> String {
        if self.value.is_empty() { self.key.to_owned() } else { format!("{}_{}", self.key, self.value) }
    }
}

/// A level-by-level reading of the description; returns the path of the node and the values that key its
/// state.
fn naive(nodes: &[Node], descriptor: &[(&str, &str)]) -> Option<(Vec<String>, Vec<String>)> {
    let mut level = nodes;
    let (mut path, mut values, mut limited) = (Vec::new(), Vec::new(), false);
    for (key, value) in descriptor {
        let map: BTreeMap<String, &Node> = level.iter().map(|node| (node.text(), node)).collect();
        let text = format!("{key}_{value}");
        let mut counted = (*value).to_owned();
        let mut found = map.get(&text).copied();
        if found.is_none() {
            let mut wild = level.iter().filter(|node| node.text().contains('*'));
            found = wild.find(|node| fits(&node.text(), &text));
            if let Some(node) = found.filter(|node| node.share) {
                let pattern = node.text();
                counted = pattern.strip_prefix(&format!("{key}_")).unwrap_or(&pattern).to_owned();
            }
        }
        let node = found.or_else(|| map.get(*key).copied())?;
        path.push(node.text());
        values.extend([(*key).to_owned(), counted]);
        limited = node.limited;
        level = &node.children;
    }
    limited.then_some((path, values))
}

/// Every way to read each star.
fn fits(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((piece, rest)) => text.strip_prefix(piece).is_some_and(|text| {
            (0..=text.len()).any(|skipped| text.is_char_boundary(skipped) && fits(rest, &text[skipped..]))
        }),
    }
}

fn node(below: Option<BoxedStrategy<Vec<Node>>>) -> impl Strategy<Value = Node> {
    let text = (prop::sample::select(&KEYS[..]), prop::sample::select(&VALUES[..]));
    let children = below.unwrap_or_else(|| Just(Vec::new()).boxed());
    (text, any::<bool>(), any::<bool>(), children).prop_map(|((key, value), limited, share, children)| {
        let share = share && (key.contains('*') || value.contains('*'));
        Node { key, value, limited, share, children }
    })
}

/// Siblings, no two of one text.
fn level(depth: u32) -> BoxedStrategy<Vec<Node>> {
    let below = (depth > 1).then(|| level(depth - 1));
    let distinct = |nodes: Vec<Node>| {
        let mut known = BTreeSet::new();
        nodes.into_iter().filter(|node| known.insert(node.text())).collect()
    };
    prop::collection::vec(node(below), 0..7).prop_map(distinct).boxed()
}

fn sent() -> impl Strategy<Value = Vec<(&'static str, &'static str)>> {
    let pair = (prop::sample::select(&SENT_KEYS[..]), prop::sample::select(&SENT_VALUES[..]));
    prop::collection::vec(pair, 0..5)
}

/// The nodes as a file. Each limit has a number in its name to identify its rule.
fn written(nodes: &[Node], depth: usize, out: &mut String) {
    for node in nodes {
        let indent = " ".repeat(2 * depth);
        out.push_str(&format!("{indent}- key: '{}'\n", node.key));
        if !node.value.is_empty() {
            out.push_str(&format!("{indent}  value: '{}'\n", node.value));
        }
        if node.share {
            out.push_str(&format!("{indent}  share_threshold: true\n"));
        }
        if node.limited {
            out.push_str(&format!("{indent}  rate_limit: {{unit: hour, requests_per_unit: 1}}\n"));
        }
        if !node.children.is_empty() {
            out.push_str(&format!("{indent}  descriptors:\n"));
            written(&node.children, depth + 1, out);
        }
    }
}

proptest! {
    #![proptest_config(crate::rng::cases(100))]

    #[test]
    fn tree_matches_reference_lookup(
        nodes in level(3),
        descriptors in prop::collection::vec(sent(), 1..12),
    ) {
        prop_assume!(!nodes.is_empty());
        let mut text = "domain: api\ndescriptors:\n".to_owned();
        written(&nodes, 0, &mut text);
        let domain = domain(&text);
        for descriptor in descriptors {
            let expected = naive(&nodes, &descriptor).map_or("-".to_owned(), |(path, values)| {
                let pairs: Vec<_> = values.chunks(2).map(|pair| pair.join("=")).collect();
                format!("{}: {}", path.join("."), pairs.join(" "))
            });
            prop_assert_eq!(shown(&domain, &descriptor), expected, "{:?} in\n{}", descriptor, text);
        }
    }
}

/// Matches a value longer than a request can carry, without a panic.
#[test]
fn matches_value_longer_than_a_request() {
    let long = "x".repeat(3_000);
    let nodes = file(&[&format!("key: k, value: {long}, !"), "key: k, value: 'y*z', !", "key: k, !"]);
    let name = format!("k_{}~", "x".repeat(244));
    let domain = domain(&nodes);
    assert!(shown(&domain, &[("k", &long)]).starts_with(&name));
    assert!(domain.rules()[0].name.len() == 255);
    check(
        &nodes,
        &[(&format!("k=y{long}z"), "k_y*z"), (&format!("k=z{long}"), "k"), (&format!("k{long}=1"), "-")],
    );
}

/// The maximum depth of a request.
#[test]
fn matches_sixteen_entries() {
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
    // Longer than any descriptor, and than the bits that record shared patterns.
    check(&text, &[(&vec!["k0=v"; 100].join(" "), "-")]);
}

#[test]
fn first_matching_pattern_wins() {
    let node = |pattern: &str| {
        format!("- {{key: k, value: '{pattern}', rate_limit: {{unit: day, requests_per_unit: 1}}}}\n")
    };
    let nodes: String = (0..2_000).map(|number| node(&format!("/{number}/*"))).collect();
    let text = format!("domain: api\ndescriptors:\n{}{nodes}{}", node("*.png"), node("/*"));
    check(
        &text,
        &[
            ("k=/7/x", "k__7_*"),
            ("k=/77/x", "k__77_*"),
            ("k=/1999/", "k__1999_*"),
            ("k=/2000/", "k__*"),
            ("k=/7", "k__*"),
            ("k=/7/x.png", "k_*.png"),
            ("k=7/x", "-"),
        ],
    );
}
