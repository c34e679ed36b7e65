//! The nodes that limit the descriptors of a request, as `requests.txt` has them; `UPDATE_DOCS=1 cargo test --test pure
//! descriptors` writes the answers anew.
//!
//! `#` begins a tree, `|` has its lines, after `domain: api` and `descriptors:`. `//` is a comment. Other lines are
//! descriptors between bars, and behind the arrow the nodes that they hit together, without those that others replace:
//! `2×NAME@N KEY=VALUE…` for one that the descriptor N, from 0, hits first of two, and what it counts by.

use tidegate::rules::{Domain, NodeHits};

use super::{descriptor, domain};
use crate::docs::keep_each;

fn hit_nodes(domain: &Domain, request: &str, hits: &mut NodeHits) -> String {
    let descriptors: Vec<_> = request.split('|').map(descriptor).collect();
    domain.tree().select_hits(descriptors.iter().map(Vec::as_slice), hits);
    let shown = hits.iter().map(|hit| {
        let name = &domain.rules()[hit.hit.rule as usize].name;
        let times = if hit.times == 1 { String::new() } else { format!("{}×", hit.times) };
        let descriptor = &descriptors[usize::from(hit.descriptor)];
        let values: Vec<_> = domain.tree().key_values(hit.hit, descriptor).collect();
        let pairs: String = values.chunks(2).map(|pair| format!(" {}", pair.join("="))).collect();
        format!("{times}{name}@{}{pairs}", hit.descriptor)
    });
    shown.collect::<Vec<_>>().join(", ")
}

/// The text with the current answers, and the lines that differ.
fn play(text: &str) -> (String, String) {
    let (mut renewed, mut differing, mut tree, mut current) =
        (String::new(), String::new(), String::new(), None);
    // Reused for every request, as in a decision thread.
    let mut hits = NodeHits::new();
    for line in text.lines() {
        let mut now = line.to_owned();
        if let Some(node) = line.strip_prefix("| ") {
            tree += &format!("{node}\n");
        } else if line.starts_with('#') {
            (tree, current) = ("domain: api\ndescriptors:\n".to_owned(), None);
        } else if !line.is_empty() && !line.starts_with("//") {
            let domain = current.get_or_insert_with(|| domain(&tree));
            let request = line.split('→').next().unwrap().trim();
            now = format!("{request:<34} → {}", hit_nodes(domain, request, &mut hits)).trim_end().to_owned();
        }
        if now != line {
            differing += &format!("- {line}\n+ {now}\n");
        }
        renewed += &format!("{now}\n");
    }
    (renewed, differing)
}

#[test]
fn descriptors_hit_nodes_as_recorded() {
    keep_each("tests/pure/descriptors", |_, text| play(text));
}
