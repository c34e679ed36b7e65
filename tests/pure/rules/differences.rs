//! What is said about two versions of the same rules.

use tidegate::rules::{Difference, read_text};

const BEFORE: &str = "\
- {name: a, key: [user], rate: 100/s}
- {name: b, match: {method: POST, path: \"/x*\"}, key: [], rate: 20/h, burst: 5, help: see}
";

#[track_caller]
fn check(after: &str, lines: &[&str]) {
    let [before, after] = [BEFORE, after].map(|limits| {
        let loaded = read_text("t.yaml", &format!("domain: api\nlimits:\n{limits}"));
        assert!(!loaded.has_errors(), "{:#?}", loaded.problems);
        loaded.domains
    });
    let difference = Difference::between(&before, &after);
    assert_eq!(difference.lines().collect::<Vec<_>>(), lines);
    assert_eq!(difference.is_empty(), lines.is_empty());
}

#[test]
fn every_field_that_changed_is_told_with_both_values() {
    let with = |from: &str, to: &str| {
        assert!(BEFORE.contains(from));
        BEFORE.replace(from, to)
    };
    check(BEFORE, &[]);
    check(&with("100/s", "200/s"), &["api/a: rate 100/s → 200/s, burst 100 → 200"]);
    check(&with("100/s", "100/s, burst: 7"), &["api/a: burst 100 → 7"]);
    check(&with("100/s", "100/s, burst: 100"), &[]);
    check(&with("100/s", "100/s, mode: shadow"), &["api/a: mode enforce → shadow"]);
    check(&with("100/s", "100/s, help: see"), &["api/a: help none → see"]);
    check(&with(", help: see", ""), &["api/b: help see → none"]);
    check(&with("POST", "GET"), &["api/b: match {method: POST, path: /x*} → {method: GET, path: /x*}"]);
    check(
        &with("\"/x*\"", "[/x, '\\*']"),
        &["api/b: match {method: POST, path: /x*} → {method: POST, path: [/x, \\*]}"],
    );
    let fresh = "; what it has counted so far is dropped, it starts fresh";
    let shares = "fleet none → {mode: borrow, on_redis_down: share}";
    check(&with("100/s", "100/s, scope: fleet"), &[&format!("api/a: scope host → fleet, {shares}{fresh}")]);
    check(
        &with("100/s", "100/s, scope: fleet, max_over: 5%, fleet: {on_miss: admit, on_redis_down: local}"),
        &[&format!(
            "api/a: scope host → fleet, fleet none → {{mode: borrow, on_miss: admit, on_redis_down: local}}, max_over none → 5%{fresh}"
        )],
    );
    check(&with("[user]", "[user, ip]"), &[&format!("api/a: key [user] → [user, ip]{fresh}")]);
    check(
        &with("name: b", "name: c"),
        &[
            "api/c: added: match {method: POST, path: /x*}, key [], algorithm token_bucket, rate 20/h, burst 5, mode enforce, help see",
            "api/b: removed",
        ],
    );
}

#[test]
fn what_only_moved_or_is_written_otherwise_has_not_changed() {
    let (a, b) = BEFORE.split_once('\n').unwrap();
    check(&format!("# note\n\n{b}{a}\n"), &[]);
    check(&BEFORE.replace("100/s", "'100/1s'"), &[]);
    check(&BEFORE.replace("method: POST, path: \"/x*\"", "path: '/x*', method: [POST]"), &[]);
}

#[test]
fn nothing_of_a_file_does_anything_to_the_log() {
    let long = format!("[{}]", (0..200).map(|n| format!("m{n}")).collect::<Vec<_>>().join(", "));
    let lines = |value: &str| {
        let [one, other] = ["POST", value].map(|value| BEFORE.replace("POST", value));
        let read = |limits| read_text("t.yaml", &format!("domain: api\nlimits:\n{limits}")).domains;
        Difference::between(&read(one), &read(other)).lines().collect::<Vec<_>>()
    };
    assert!(lines(r#""a\nb\e[31m""#)[0].contains(r"{method: a\nb\u{1b}[31m, path"));
    let cut = &lines(&long)[0];
    assert!(cut.contains("m10, ") && cut.ends_with('…') && cut.len() < 400, "{cut}");
    let names = (0..1_000).map(|n| format!("- {{name: n{n}, match: {{p: p{n}}}, key: [], rate: 1/s}}\n"));
    let many = read_text("t.yaml", &format!("domain: api\nlimits:\n{}", names.collect::<String>())).domains;
    let none = read_text("t.yaml", "domain: api\nlimits: []").domains;
    let lines: Vec<_> = Difference::between(&none, &many).lines().collect();
    assert_eq!((lines.len(), lines[200].as_str()), (201, "and 800 more changes"));
}
