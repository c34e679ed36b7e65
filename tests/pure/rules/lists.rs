//! The meaning of `exempt`, `deny`, `priorities`, `prioritize`, `concurrency` and `shed`, in one file and in
//! several; and the published limiters.

use std::sync::Arc;
use std::time::Duration;

use tidegate::rules::shed::{FleetReserve, Workers};
use tidegate::rules::{Domain, ListKind, Loaded, Mode, Selection, read, read_text};

use super::problems::folder;
use super::quotas::quota;

fn good(text: &str) -> Arc<Domain> {
    let loaded = read_text("rules.yaml", text);
    assert!(!loaded.has_errors(), "{text}\n{:#?}", loaded.problems);
    loaded.domains.into_iter().next().unwrap()
}

fn read_files(files: &[&str]) -> Loaded {
    let names = ["0.yaml", "1.yaml", "2.yaml", "3.yaml"].into_iter();
    read(folder(&names.zip(files.iter().copied()).collect::<Vec<_>>()).path())
}

/// Matching rules by name, then entries as `-exempt` and `!deny`.
fn matching(domain: &Domain, attributes: &[(&str, &str)]) -> String {
    let (mut selection, mut matching) = (Selection::default(), Vec::new());
    domain.select(attributes, &mut selection, &mut matching);
    let name = |number: &u32| match (domain.rules().get(*number as usize), domain.listed(*number)) {
        (Some(rule), None) => rule.name.to_string(),
        (None, Some(listed)) if listed.kind == ListKind::Exempt => format!("-{}", listed.name),
        (None, Some(listed)) => format!("!{}", listed.name),
        found => panic!("{number}: {found:?}"),
    };
    matching.iter().map(name).collect::<Vec<_>>().join(" ")
}

#[test]
fn orders_exempt_before_deny_after_rules() {
    let loaded = read_files(&[
        "domain: api\ndeny:\n- {name: d1, match: {u: [x, y]}, help: no}\nexempt:\n- {name: e1, match: {u: x}}\n",
        "domain: api\nexempt: [{name: e2, match: {u: 'x*'}}]\ndeny: [{name: d2, match: {v: {present: true}}}]\nlimits: [{name: a, key: [u], rate: 1/s}]\n",
    ]);
    assert!(!loaded.has_errors(), "{:#?}", loaded.problems);
    let domain = &loaded.domains[0];
    let names: Vec<_> = domain.lists().iter().map(|listed| &*listed.name).collect();
    assert_eq!(names, ["e1", "e2", "d1", "d2"]);
    assert_eq!(domain.lists()[2].help.as_deref(), Some("no"));
    let position = domain.lists()[2].position.to_string();
    assert!(position.ends_with("0.yaml:3:10"), "{position}");
    assert_eq!(matching(domain, &[("u", "x")]), "a -e1 -e2 !d1");
    assert_eq!(matching(domain, &[("u", "y"), ("v", "1")]), "a !d1 !d2");
    assert_eq!(matching(domain, &[("u", "xy")]), "a -e2");
    assert_eq!(matching(domain, &[]), "");
    assert!(domain.listed(0).is_none() && domain.listed(5).is_none());
}

/// The requested priority, the attributes, the effective priority.
type Asking<'t> = (Option<&'t str>, &'t [(&'t str, &'t str)], &'t str);

#[test]
fn priority_is_requested_or_first_match_or_last() {
    let loaded = read_files(&[
        "domain: api\nprioritize:\n- {match: {mode: test}, priority: test}\n- {match: {path: '/v1/*'}, priority: critical}\n",
        "domain: api\npriorities: [critical, post, get, test]\n",
        "domain: api\nprioritize:\n- {match: {path: /v1/a}, priority: get}\n- {match: {method: POST}, priority: post}\n",
        "domain: web\nlimits: [{name: a, key: [], rate: 1/s}]\n",
    ]);
    assert_eq!(loaded.problems, []);
    let (api, web) = (&loaded.domains[0], &loaded.domains[1]);
    assert_eq!(api.priorities().join(" "), "critical post get test");
    let table: &[Asking<'_>] = &[
        (None, &[("mode", "test"), ("path", "/v1/a")], "test"),
        (None, &[("path", "/v1/a")], "critical"),
        (None, &[("path", "/v2/a"), ("method", "POST")], "post"),
        (None, &[("method", "GET")], "test"),
        (None, &[], "test"),
        (Some("get"), &[("mode", "test")], "get"),
        (Some("Get"), &[("path", "/v1/a")], "critical"),
        (Some(""), &[], "test"),
    ];
    for (asked, attributes, expected) in table {
        let (mut selection, mut matching) = (Selection::default(), Vec::new());
        api.select(attributes, &mut selection, &mut matching);
        assert_eq!(api.priority(*asked, &selection), Some(*expected), "{asked:?} {attributes:?}");
    }
    assert_eq!(web.priority(Some("get"), &Selection::default()), None);
    assert_eq!(web.priorities().len(), 0);
}

#[test]
fn entry_without_conditions_matches_every_request() {
    let domain = good("domain: api\nexempt: [{name: e}]\n");
    assert_eq!(matching(&domain, &[]), "-e");
}

#[test]
fn accepts_priorities_in_another_file() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
    write("a.yaml", "domain: api\nshed: [{pool: web, fleet: {reserve: 20%, for: low}}]\n");
    write("b.yaml", "domain: api\npriorities: [high, low, lowest]\nshed: [{pool: jobs, brake: {}}]\n");
    let loaded = read(directory.path());
    assert!(loaded.problems.is_empty(), "{:#?}", loaded.problems);
    let sheds = loaded.domains[0].sheds();
    assert_eq!(sheds.iter().map(|shed| &*shed.pool).collect::<Vec<_>>(), ["web", "jobs"]);
    assert_eq!(sheds[0].fleet.unwrap().reserved_for, 1);
    assert_eq!(sheds[1].brake.as_ref().unwrap().bands, [700, 900]);
}

#[test]
fn example_matches_four_published_limiters() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("config/rules/four-limiters.yaml");
    let loaded = read(&path);
    assert!(loaded.problems.is_empty(), "{:#?}", loaded.problems);
    let domain = &loaded.domains[0];
    let numbers: Vec<_> = domain.rules().iter().map(|rule| quota(rule.limit.quota().unwrap())).collect();
    assert_eq!(numbers, ["100/s burst 500", "20 at once"]);
    assert_eq!(domain.rules()[1].expires, Some(Duration::from_secs(60)));
    let [web] = domain.sheds() else { panic!("{:#?}", domain.sheds()) };
    assert_eq!(web.fleet, Some(FleetReserve { mode: Mode::Enforce, reserve: 200, reserved_for: 0 }));
    assert_eq!(web.workers, Some(Workers::default()));
    assert_eq!(domain.priorities().join(" "), "critical post get test");
}
