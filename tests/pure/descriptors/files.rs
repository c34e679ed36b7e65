//! Trees of several files merge in the order of the file names.

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

#[test]
fn numbers_limits_and_nodes_of_all_files_separately() {
    let limits = "domain: api\nlimits: [{name: a, key: [], rate: 1/s}]\n";
    let both = format!("{}limits: [{{name: b, key: [], rate: 2/s, burst: 1}}]\n", file(&["key: y, !"]));
    let (_directory, loaded) =
        load(&[("a.yaml", &file(&["key: x, !"])), ("b.yaml", limits), ("c.yaml", &both)]);
    assert!(!loaded.has_errors(), "{:#?}", loaded.problems);
    let domain = &loaded.domains[0];
    assert_eq!(names(domain), "a b x y");
    assert_eq!(shown(domain, &descriptor("y=1")), "y: y=1");
    // No attribute leads to a node.
    let (mut selection, mut matching) = Default::default();
    domain.select(&[("x", "1"), ("y", "1")], &mut selection, &mut matching);
    assert_eq!(matching, [0, 1]);
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

/// Descriptors merge only at the top level: the same text in two files is an error.
#[test]
fn rejects_top_level_node_in_two_files() {
    let [one, other] = [
        file(&["key: x, value: y, descriptors: [{key: a, !}]"]),
        file(&["key: z, !", "key: x_y, descriptors: [{key: b, !}]"]),
    ];
    let (directory, loaded) = load(&[("a.yaml", &one), ("b.yaml", &other)]);
    assert!(loaded.domains.is_empty());
    assert_eq!(loaded.failed, [Box::from("api")]);
    let found: Vec<_> = loaded.problems.iter().map(ToString::to_string).collect();
    let found = found.join("\n").replace(&*directory.path().to_string_lossy(), ".");
    let expected = "./b.yaml:4:11: error: a second descriptor `x_y` at the top of the domain `api` \
                    (put both into one file; the first is at ./a.yaml:3:11)";
    assert_eq!(found, expected);
    // On another level, or in another domain, it is a different node.
    let web = one.replace("api", "web");
    let below = file(&["key: k, descriptors: [{key: x, value: y, !}]"]);
    let (_directory, loaded) = load(&[("a.yaml", &one), ("b.yaml", &web), ("c.yaml", &below)]);
    assert!(loaded.problems.is_empty(), "{:#?}", loaded.problems);
    assert_eq!(loaded.domains.len(), 2);
}

#[test]
fn replaces_limit_named_in_another_file() {
    let one = "domain: api\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1, replaces: [{name: b}]}}]\n";
    let other =
        "domain: api\ndescriptors: [{key: b, rate_limit: {unit: day, requests_per_unit: 1, name: b}}]\n";
    let (_directory, loaded) = load(&[("a.yaml", one), ("b.yaml", other)]);
    assert!(loaded.problems.is_empty(), "{:#?}", loaded.problems);
    let (_directory, loaded) = load(&[("a.yaml", one)]);
    let found = loaded.problems[0].to_string();
    assert!(found.contains("a.yaml:2:88: warning: no limit is named `b` in this domain"), "{found}");
}

#[test]
fn rejects_rule_and_node_of_one_name() {
    let limits = "domain: api\nlimits:\n- {name: x.y, key: [], rate: 1/s}\n";
    let tree = file(&["key: x, descriptors: [{key: y, !}]"]);
    let (_directory, loaded) = load(&[("a.yaml", limits), ("b.yaml", &tree)]);
    let found = loaded.problems[0].to_string();
    assert!(found.contains("b.yaml:3:34: error: a rule named `x.y` stands in the domain `api`"), "{found}");
    assert!(found.contains("give the rule at") && found.contains("a.yaml:3:10 another name"), "{found}");
    let (_directory, loaded) = load(&[("a.yaml", &tree), ("b.yaml", limits)]);
    let found = loaded.problems[0].to_string();
    assert!(found.contains("b.yaml:3:10: error: a second rule named `x.y` in the domain `api`"), "{found}");
}

/// Generated names: equal ones get a digest of their path.
#[test]
fn gives_nodes_distinct_names() {
    let tree = file(&[
        "key: x, descriptors: [{key: y, !}]",
        "key: x.y, !",
        "key: p, value: /v1, !",
        "key: p, value: _v1, !",
        "key: p, value: ':v1', !",
    ]);
    let (_directory, loaded) = load(&[("a.yaml", &tree)]);
    assert!(loaded.problems.is_empty(), "{:#?}", loaded.problems);
    let names = names(&loaded.domains[0]);
    let names: Vec<_> = names.split(' ').collect();
    assert_eq!((names[0], names[2]), ("x.y", "p__v1"));
    for (place, start) in [(1, "x.y~"), (3, "p__v1~"), (4, "p__v1~")] {
        assert!(names[place].starts_with(start) && names[place].len() == start.len() + 8, "{names:?}");
    }
    assert_ne!(names[3], names[4]);
    // Reports and dashboards use these names, so they never change.
    assert_eq!(names[1], "x.y~53ce3587");
}
