//! Files that are no text or too large, and bounds of a file, with short errors. `diagnostics/files.txt` has directories.

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
const API_BROKEN: &[u8] = b"domain: api\nlimits: [\n";
#[test]
fn drops_domain_of_a_file_that_is_no_utf8() {
    let text = b"domain: api\n\xff";
    check(&[("a.yaml", API_A), ("b.yaml", text)], "", &["api"], &["b.yaml:2:1: error: not UTF-8"]);
    let wide = "it looks like UTF-16: save it as UTF-8";
    check(&[("a.yaml", API_A), ("b.yaml", b"\xff\xfed\0")], "api: a", &[], &[wide]);
}

#[test]
fn shows_no_control_character_of_a_name() {
    let shown = "x\u{fffd}2026-01-01 INFO all is well.yaml:1:1: error: the file is empty";
    check(&[("x\n2026-01-01 INFO all is well.yaml", b"")], "", &[], &[shown]);
}

#[test]
fn accepts_byte_order_mark_and_crlf() {
    let marked = [b"\xef\xbb\xbf", API_A].concat();
    check(&[("a.yaml", &marked)], "api: a", &[], &[]);
    let wrong = [b"\xef\xbb\xbf", API_BROKEN].concat();
    check(&[("a.yaml", &wrong)], "", &["api"], &["a.yaml:2:9"]);
    let returns = "domain: api\r\nlimits:\r\n- {name: x, key: [], rate: 1/sec}\r\n";
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
