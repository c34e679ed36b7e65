//! Trees of several files merge in the order of the file names. `diagnostics/files.txt` has their problems and names.

use tidegate::rules::{Domain, Loaded, read};

use super::{descriptor, file, shown};
use crate::problems::folder;

fn load(files: &[(&str, &str)]) -> (tempfile::TempDir, Loaded) {
    let directory = folder(files);
    let loaded = read(directory.path());
    (directory, loaded)
}

fn names(domain: &Domain) -> String {
    domain.rules().iter().map(|rule| &*rule.name).collect::<Vec<_>>().join(" ")
}

/// Trap: that service reads files in no fixed order.
#[test]
fn orders_patterns_by_file() {
    let [one, other] =
        [file(&["key: k, value: 'a*', !", "key: x, !"]), file(&["key: k, value: '*', !", "key: y, !"])];
    let (_directory, loaded) = load(&[("b.yaml", &other), ("a.yaml", &one)]);
    assert!(loaded.problems.is_empty(), "{:#?}", loaded.problems);
    assert_eq!(names(&loaded.domains[0]), "k_a* x k_* y");
    assert_eq!(shown(&loaded.domains[0], &descriptor("k=ab")), "k_a*: k=ab");
    let (_directory, loaded) = load(&[("a.yaml", &other), ("b.yaml", &one)]);
    assert_eq!(shown(&loaded.domains[0], &descriptor("k=ab")), "k_*: k=ab");
}

/// The entries of lists are numbered behind the nodes.
#[test]
fn numbers_nodes_between_rules_and_lists() {
    let lists = "domain: api
exempt: [{name: probes, match: {path: /healthz}}]
deny: [{name: bots, match: {agent: bot}}]
limits: [{name: a, key: [], rate: 1/s}]
";
    let (_directory, loaded) = load(&[("a.yaml", &file(&["key: x, !", "key: y, !"])), ("b.yaml", lists)]);
    assert!(!loaded.has_errors(), "{:#?}", loaded.problems);
    let domain = &loaded.domains[0];
    let (mut selection, mut matching) = Default::default();
    domain.select(&[("path", "/healthz"), ("agent", "bot"), ("x", "1")], &mut selection, &mut matching);
    assert_eq!(matching, [0, 3, 4]);
    let listed = [3, 4].map(|number| domain.listed(number).map(|listed| listed.name.to_string()));
    assert_eq!(listed, [Some("probes".to_owned()), Some("bots".to_owned())]);
    assert!(domain.listed(2).is_none() && domain.rules().len() == 3);
    assert_eq!(domain.tree().find(&[("y", "1")]).map(|hit| hit.rule), Some(2));
}
