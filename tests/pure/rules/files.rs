//! Directories: the files that are read, how they add to domains, and the effect of a bad one.

use std::fs;
use std::path::Path;

use tidegate::rules::{Loaded, read, read_text};

use super::problems::folder;

/// Domains with the names of their rules: `api: a b; web: c`.
fn shown(loaded: &Loaded) -> String {
    let domain = |domain: &std::sync::Arc<tidegate::rules::Domain>| {
        let rules: Vec<_> = domain.rules().iter().map(|rule| &*rule.name).collect();
        format!("{}: {}", domain.name(), rules.join(" "))
    };
    loaded.domains.iter().map(domain).collect::<Vec<_>>().join("; ")
}

/// The loaded domains, the domains without their limits, and for each problem a part of its one-line form.
#[track_caller]
fn check(files: &[(&str, &[u8])], domains: &str, failed: &[&str], problems: &[&str]) {
    let directory = folder(files);
    let loaded = read(directory.path());
    assert_eq!(shown(&loaded), domains, "{:#?}", loaded.problems);
    assert_eq!(loaded.failed.iter().map(|name| &**name).collect::<Vec<_>>(), failed);
    let found: Vec<_> = loaded.problems.iter().map(ToString::to_string).collect();
    assert_eq!(found.len(), problems.len(), "{found:#?}");
    for (found, expected) in found.iter().zip(problems) {
        assert!(found.contains(expected), "{expected:?} in {found}");
    }
}

const API_A: &[u8] = b"domain: api\nlimits:\n- {name: a, key: [], rate: 1/s}\n";
const API_B: &[u8] = b"domain: api\nlimits:\n- {name: b, key: [u], rate: 1/s}\n";
const WEB_C: &[u8] = b"domain: web\nlimits:\n- {name: c, key: [], rate: 1/s}\n";
const API_BAD: &[u8] = b"domain: api\nlimits:\n- {name: x, key: [], rate: 1/sec}\n";
const API_BROKEN: &[u8] = b"domain: api\nlimits: [\n";
const NO_DOMAIN: &[u8] = b"limits:\n- {name: x, key: [], rate: 1/s}\n";

#[test]
fn reads_files_in_order_of_name() {
    check(&[("b.yaml", API_B), ("a.yaml", API_A), ("c.yaml", WEB_C)], "api: a b; web: c", &[], &[]);
    check(&[("10.yaml", API_B), ("9.yaml", API_A)], "api: b a", &[], &[]);
    check(&[("a.yaml", WEB_C), ("b.yaml", API_A)], "web: c; api: a", &[], &[]);
}

#[test]
fn reads_only_yaml_files() {
    let yml = "a file that ends in `.yml` is not read (let its name end in `.yaml`)";
    check(&[("a.yaml", API_A), ("b.yml", API_BAD)], "api: a", &[], &[yml]);
    check(&[("a.yaml", API_A), ("b.YAML", API_BAD)], "api: a", &[], &["ends in `.YAML` is not read"]);
    check(
        &[("a.yaml", API_A), (".b.yaml", API_BAD), ("a.yaml~", API_BAD), ("p.csv", b"x")],
        "api: a",
        &[],
        &[],
    );
    let name = "x\n2026-01-01 INFO all is well.yaml";
    check(
        &[(name, b"")],
        "",
        &[],
        &["x\u{fffd}2026-01-01 INFO all is well.yaml:1:1: error: the file is empty"],
    );
    check(&[(".yaml", API_BAD), ("yaml", API_BAD)], "", &[], &["no rules files in this directory"]);
}

#[test]
fn drops_domain_with_errors_and_loads_others() {
    let unit = "unknown unit `sec`";
    check(&[("a.yaml", API_A), ("b.yaml", API_BAD), ("c.yaml", WEB_C)], "web: c", &["api"], &[unit]);
    check(&[("a.yaml", API_BAD), ("b.yaml", API_A), ("c.yaml", WEB_C)], "web: c", &["api"], &[unit]);
    // Not YAML, not UTF-8: a text search finds the line that names the domain.
    check(&[("a.yaml", API_A), ("b.yaml", API_BROKEN), ("c.yaml", WEB_C)], "web: c", &["api"], &["unclosed"]);
    check(
        &[("a.yaml", API_A), ("b.yaml", b"domain: api\n\xff")],
        "",
        &["api"],
        &["b.yaml:2:1: error: not UTF-8"],
    );
    let two = b"domain: web\nlimits: []\n---\ndomain: api\n";
    check(&[("a.yaml", API_A), ("b.yaml", two)], "", &["api", "web"], &["a second document"]);
    // A bad file without a domain affects only itself.
    check(&[("a.yaml", API_A), ("b.yaml", NO_DOMAIN)], "api: a", &[], &["needs `domain`"]);
    check(&[("a.yaml", API_A), ("b.yaml", b"")], "api: a", &[], &["the file is empty"]);
    check(&[("a.yaml", API_A), ("b.yaml", b"{[")], "api: a", &[], &["b.yaml:1:"]);
    check(
        &[("a.yaml", API_A), ("b.yaml", b"\xff\xfed\0")],
        "api: a",
        &[],
        &["it looks like UTF-16: save it as UTF-8"],
    );
    check(&[("a.yaml", API_A), ("b.yaml", b"domain: a/b\n")], "api: a", &[], &["may not hold '/'"]);
}

#[test]
fn rejects_duplicate_names_in_a_domain() {
    let second = "b.yaml:3:10: error: a second rule named `a` in the domain `api` (give it another name; the first is at";
    check(&[("a.yaml", API_A), ("b.yaml", API_A), ("c.yaml", WEB_C)], "web: c", &["api"], &[second]);
    let web_a = b"domain: web\nlimits:\n- {name: a, key: [], rate: 1/s}\n";
    check(&[("a.yaml", API_A), ("b.yaml", web_a)], "api: a; web: a", &[], &[]);
}

#[test]
fn warning_across_files_shows_the_line() {
    let api_d = b"domain: api\nlimits:\n\n- {name: d, key: [], rate: 2/s}\n";
    check(
        &[("a.yaml", API_A), ("b.yaml", api_d)],
        "api: a d",
        &[],
        &["b.yaml:4:10: warning: `d` never refuses"],
    );
}

#[test]
fn accepts_byte_order_mark_and_crlf() {
    let marked = [b"\xef\xbb\xbf", API_A].concat();
    check(&[("a.yaml", &marked)], "api: a", &[], &[]);
    let wrong = [b"\xef\xbb\xbf", API_BROKEN].concat();
    check(&[("a.yaml", &wrong)], "", &["api"], &["a.yaml:2:9"]);
    let returns = String::from_utf8_lossy(API_BAD).replace('\n', "\r\n");
    check(&[("a.yaml", returns.as_bytes())], "", &["api"], &["a.yaml:3:28"]);
}

#[test]
fn reports_unreadable_files_without_panic() {
    let loaded = read(Path::new("/nowhere/at/all"));
    let found = loaded.problems[0].to_string();
    assert!(found.starts_with("/nowhere/at/all: error: cannot read the rules"), "{found}");
    assert!(found.ends_with("(create the directory, or say where the rules are)"), "{found}");
    assert!(loaded.problems[0].render(false).contains("--> /nowhere/at/all\n"));

    let directory = folder(&[("a.yaml", API_A)]);
    fs::create_dir(directory.path().join("b.yaml")).unwrap();
    std::os::unix::fs::symlink("nowhere", directory.path().join("c.yaml")).unwrap();
    std::os::unix::fs::symlink("a.yaml", directory.path().join("d.txt")).unwrap();
    let loaded = read(directory.path());
    let found: Vec<_> = loaded.problems.iter().map(ToString::to_string).collect();
    assert_eq!(shown(&loaded), "api: a");
    assert!(found[0].contains("b.yaml: error: not a regular file"), "{found:#?}");
    assert!(found[1].contains("c.yaml: error: cannot read the file"), "{found:#?}");

    let large = directory.path().join("large.txt");
    let bytes = [API_A, &vec![b'#'; 16 << 20]].concat();
    fs::write(&large, bytes).unwrap();
    let loaded = read(&large);
    assert!(loaded.problems[0].message.contains("larger than 16 MiB"), "{:?}", loaded.problems);
    assert_eq!(loaded.failed, [Box::from("api")], "it may not be half a domain with the other files");
}

#[test]
fn no_warning_when_another_domain_uses_it() {
    let folder = tempfile::tempdir().unwrap();
    let put = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    let found = || {
        let loaded = read(folder.path());
        let warnings = loaded.problems.iter().filter(|problem| !problem.is_error());
        warnings.map(|problem| problem.message.clone()).collect::<Vec<_>>()
    };
    put("a.yaml", "domain: a\nlimits: [{name: a, key: [], rate: 9/s, over: {elastic: 9%}}]\n");
    assert!(found()[0].starts_with("the elastic part of `a` is never used"), "{:?}", found());
    put("b.yaml", "domain: b\nshed: [{pool: web, queue_age: {}, signals: {cpu: {use: true}}}]\n");
    assert_eq!(found(), Vec::<String>::new());
    // An unreadable entry may hold the missing one.
    put("b.yaml", "domain: b\nshed: [{pool: web, queue_age: {}, signals: {cpu: {use: maybe}}}]\n");
    assert_eq!(found(), Vec::<String>::new());
}

#[test]
fn rejects_pool_shed_in_two_domains() {
    let of = |domain: &str| {
        format!(
            "domain: {domain}\nshed: [{{pool: web, queue_age: {{}}}}, {{pool: {domain}, queue_age: {{}}}}]\n"
        )
    };
    let directory = folder(&[("a.yaml", of("a")), ("b.yaml", of("b"))]);
    let loaded = read(directory.path());
    let [found] = loaded.problems.as_slice() else { panic!("{:#?}", loaded.problems) };
    assert!(found.position.file.ends_with("b.yaml") && found.help.contains("a.yaml:2:15"), "{found}");
    assert_eq!((loaded.domains.len(), &*loaded.failed[0]), (1, "b"));
}

#[test]
fn conditions_differing_in_line_only_are_equal() {
    let rule = |gap: &str| {
        let text = format!(
            "domain: api\nlimits:\n- name: a\n{gap}  match:\n    m: x\n    n:\n    - y\n  key: []\n  rate: 1/s\n"
        );
        read_text("rules.yaml", &text).domains[0].rules()[0].conditions.clone()
    };
    let (one, other) = (rule(""), rule("\n\n"));
    assert_eq!(one.iter().map(|condition| condition.line).collect::<Vec<_>>(), [5, 6]);
    assert_eq!(other.iter().map(|condition| condition.line).collect::<Vec<_>>(), [7, 8]);
    assert_eq!(one, other);
}
