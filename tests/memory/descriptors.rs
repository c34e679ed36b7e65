//! Matching a request to nodes allocates nothing, for any number of nodes and any length of texts.

use tidegate::rules::{NodeHits, read_text};

use crate::counting::asked_bytes;

#[test]
fn node_lookup_allocates_nothing() {
    let node = |value: &str| {
        let limit = "rate_limit: {unit: hour, requests_per_unit: 1, name: a, replaces: [{name: b}]}";
        format!("- {{key: k, value: '{value}', {limit}}}\n")
    };
    let nodes: String =
        (0..300).map(|number| node(&number.to_string()) + &node(&format!("/{number}*"))).collect();
    let shared = "- {key: '*y*', share_threshold: true, rate_limit: {unit: hour, requests_per_unit: 1}}\n";
    let loaded = read_text("tree.yaml", &format!("domain: api\ndescriptors:\n{nodes}{shared}"));
    let tree = loaded.domains.first().unwrap().tree();
    // The longest texts that the socket carries.
    let (key, value) = ("y".repeat(64), "z".repeat(1_024));
    let descriptors = [
        &[("k", "7")][..],
        &[("k", "/299/x")],
        &[("k", &value)],
        &[(&key, &value)],
        &[(&key, "other")],
        &[("k", "7"), ("k", "8")],
        &[],
    ];
    let mut hits = NodeHits::new();
    let mut bytes = 0;
    let asked = asked_bytes(|| {
        tree.select_hits(descriptors.into_iter(), &mut hits);
        for hit in &hits {
            let descriptor = descriptors.get(usize::from(hit.descriptor)).unwrap();
            bytes += tree.key_values(hit.hit, descriptor).map(str::len).sum::<usize>();
        }
    });
    assert_eq!(asked, 0);
    assert_eq!(hits.len(), 3, "{hits:?}");
    assert!(bytes > 64, "what it counts by was read: {bytes}");
}
