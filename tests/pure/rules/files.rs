//! Directories: the files that are read, how they add to domains, and the effect of a bad one. Oversized files are
//! refused before they are built, with short errors.

use std::fs;
use std::path::Path;

use tidegate::rules::{read, read_text};

use super::problems::folder;
use super::shown;

/// The loaded domains, the domains without their limits, and for each problem a part of its one-line form.
#[track_caller]
fn check(files: &[(&str, &[u8])], domains: &str, failed: &[&str], problems: &[&str]) {
    let directory = folder(files);
    let loaded = read(directory.path());
    assert_eq!(shown(&loaded.domains), domains, "{:#?}", loaded.problems);
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
        &["b.yaml:4:10: warning: `d` refuses nothing"],
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
    assert_eq!(shown(&loaded.domains), "api: a");
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

/// A list of `count` items.
fn items(count: usize, item: impl Fn(usize) -> String) -> String {
    (0..count).map(item).collect::<Vec<_>>().join(", ")
}

#[test]
fn rejects_excess_entries_of_a_file() {
    let named = |name: &str, fields: &str| format!("domain: api\nlimits:\n- {{name: {name}, {fields}}}\n");
    let rule = |fields: &str| named("a", &format!("key: [], rate: 1/s, {fields}"));
    let numbered = |count, rest: &str| items(count, |n| format!("a{n}{rest}"));
    let tree = |fields: &str| format!("domain: api\ndescriptors:\n- {{{fields}}}\n");
    let priorities = |rest: &str| format!("domain: api\npriorities: {rest}\n");
    let nested = format!("[{{not: [{}]}}, {{glob: [{}]}}, x]", numbered(600, ""), numbered(400, "b"));
    let overrides = items(257, |_| "{match: {p: a}, rate: 1/s}".to_owned());
    let entries = items(300, |_| "{match: {u: x}, priority: a}".to_owned());
    let below = |depth: usize| {
        format!("{0}- key: k\n{0}  {1}\n", "  ".repeat(depth), if depth < 17 { "descriptors:" } else { "" })
    };
    let deep = format!("domain: api\ndescriptors:\n{}", (0..18).map(below).collect::<String>());
    let table = [
        (named(&"x".repeat(65), "key: [], rate: 1/s"), "the name of a rule has 65 bytes"),
        (rule(&format!("help: {}", "x".repeat(513))), "`help` has 513 bytes"),
        (rule(&format!("match: {{u: [{}]}}", "x".repeat(1_025))), "has 1025 bytes"),
        (named("a", &format!("rate: 1/s, key: [{}]", numbered(17, ""))), "`key` has 17 attributes"),
        (rule(&format!("match: {{{}}}", numbered(33, ": x"))), "`match` has 33 attributes"),
        (rule(&format!("match: {{u: [{}]}}", numbered(1_001, ""))), "`u` has 1001 values"),
        (rule(&format!("match: {{u: {nested}}}")), "`u` has 1001 values"),
        (rule(&format!("overrides: [{overrides}]")), "`overrides` has 257 entries"),
        (priorities(&format!("[{}]", numbered(65, ""))), "`priorities` has 65 names"),
        (priorities(&format!("[a]\nprioritize: [{entries}]")), "more than 256 entries"),
        (
            tree(&format!("key: a, value: {}", "x".repeat(1_025))),
            "no request has this value: it has 1025 bytes",
        ),
        (deep, "no request reaches this: a descriptor has at most 16 entries"),
    ];
    for (text, message) in table {
        let problems = read_text("rules.yaml", &text).problems;
        assert!(problems.iter().any(|problem| problem.message.contains(message)), "{message}: {problems:?}");
    }
    let empty = read_text("rules.yaml", "").problems;
    assert!(empty[0].to_string().starts_with("rules.yaml:1:1: error: the file is empty"), "{empty:?}");
    // A few hundred bytes that expand to ten billion values.
    let mut bomb = "a: &a [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for (name, of) in ('b'..='j').zip('a'..) {
        bomb.push_str(&format!("{name}: &{name} [{}]\n", vec![format!("*{of}"); 10].join(", ")));
    }
    let loaded = read_text("rules.yaml", &bomb);
    assert!(loaded.problems[0].message.contains("too much"), "{:?}", loaded.problems);
}

#[test]
fn cuts_long_line_around_the_span() {
    let many =
        (0..2_000).map(|number| format!("{{name: r{number}, key: [], rate: {number}}}")).collect::<Vec<_>>();
    let text = format!("{{domain: api, limits: [{}]}}", many.join(", "));
    let loaded = read_text("rules.yaml", &text);
    assert_eq!(loaded.problems.len(), 2_000);
    for problem in &loaded.problems {
        let excerpt = problem.line_text.as_ref().unwrap();
        let characters = excerpt.text.chars().count();
        assert!(characters <= 300 && excerpt.text.contains("rate:"), "{problem}");
        let page = problem.render(false);
        assert!(page.contains(&format!("rules.yaml:1:{}", problem.position.column)), "{page}");
    }
}

#[test]
fn warns_of_many_rules_that_each_request_is_compared_with() {
    let rules = |count: usize, condition: &str| {
        let rules = (0..count).map(|n| format!("- {{name: r{n}, key: [], rate: 1/s, match: {condition}}}\n"));
        format!("domain: api\nlimits:\n{}", rules.collect::<String>())
    };
    for (count, condition, is_warned) in [
        (1_001, "{path: ['*x*', {not: x}]}", true),
        (1_001, "{path: '*x*', method: GET}", false),
        (1_000, "{path: '*x*'}", false),
    ] {
        let problems = read_text("rules.yaml", &rules(count, condition)).problems;
        let warned =
            problems.iter().any(|problem| problem.message.contains("1001 rules have no exact value"));
        assert_eq!(warned, is_warned, "{count} {condition}");
    }
}
