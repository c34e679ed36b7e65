//! Whatever the tree and the descriptor, the node that is found is the one that the service's own description gives:
//! texts put together, maps looked up, patterns tried one after the other.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{domain, shown};

/// A node as it is written.
#[derive(Clone, Debug)]
struct Node {
    key: &'static str,
    value: &'static str,
    limited: bool,
    share: bool,
    children: Vec<Node>,
}

/// Few of each, with underscores and stars where they matter, so that texts meet often.
const KEYS: [&str; 8] = ["a", "b", "a_b", "a*", "*b", "a_", "_", "*"];
const VALUES: [&str; 12] = ["", "a", "b", "b_a", "a*", "*", "*b", "a*b", "*a*", "a*a", "_", "aba"];
const SENT_KEYS: [&str; 8] = ["a", "b", "a_b", "a*", "*b", "a_", "ab", "_"];
const SENT_VALUES: [&str; 12] = ["", "a", "b", "ab", "aba", "b_a", "a*", "*", "_", "baab", "aa", "b_"];

impl Node {
    fn text(&self) -> String {
        if self.value.is_empty() { self.key.to_owned() } else { format!("{}_{}", self.key, self.value) }
    }
}

/// As the description says it, level by level; a path of texts names the node, and what counts follows it.
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
    prop::collection::vec(node(below), 0..7)
        .prop_map(|nodes| {
            let mut known = Vec::new();
            nodes
                .into_iter()
                .filter(|node| {
                    !known.contains(&node.text()) && {
                        known.push(node.text());
                        true
                    }
                })
                .collect()
        })
        .boxed()
}

fn sent() -> impl Strategy<Value = Vec<(&'static str, &'static str)>> {
    let pair = (prop::sample::select(&SENT_KEYS[..]), prop::sample::select(&SENT_VALUES[..]));
    prop::collection::vec(pair, 0..5)
}

/// The nodes as a file. Each limit has a number of its own in its name, by which rules are told apart.
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
    #![proptest_config(crate::cases(150))]

    #[test]
    fn the_tree_finds_what_the_description_gives(
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
