//! What files are told that are bad as a whole, or too much.

use tidegate::rules::read_text;

use super::bad::{Told, check, check_rule};

#[test]
fn a_file_that_is_no_rules_file_is_told_so() {
    let table: &[(&str, Told<'_>)] = &[
        ("", (1, 1, "the file is empty", "`domain: NAME`")),
        ("# only\n\n  # comments\n", (1, 1, "the file is empty", "remove the file")),
        ("---\n", (1, 4, "the file is empty", "`limits:`")),
        ("just a text\n", (1, 1, "a rules file is a mapping, not a text", "`domain: …`")),
        ("- a\n- b\n", (1, 1, "a rules file is a mapping, not a list", "`domain: …`")),
        ("limits: []\n", (1, 1, "a rules file needs `domain`", "`domain: NAME`")),
        ("domain:\n", (1, 7, "`domain` has no value", "write one")),
        ("domain: [api]\n", (1, 9, "`domain` is a text, not a list", "one text")),
        ("domain: a/b\n", (1, 9, "the name of a domain may not hold '/'", "leave out")),
        ("domain: api\ndomain: web\n", (2, 1, "`domain` is written twice", "the first is on line 1")),
        ("domain: api\nlimits: {a: b}\n", (2, 9, "`limits` is a list, not a mapping", "`- name: …`")),
        ("domain: api\nlimits:\n", (2, 7, "`limits` has no value", "dash")),
        ("domain: api\ndefaults: host\n", (2, 11, "`defaults` is a mapping, not a text", "`scope: …`")),
        (
            "domain: api\ndefaults: {scop: host}\n",
            (2, 12, "unknown field `scop` in `defaults`", "did you mean `scope`?"),
        ),
        ("domain: api\nlimit: []\n", (2, 1, "unknown field `limit`", "did you mean `limits`?")),
        ("domain: api\n---\ndomain: web\n", (3, 1, "a second document", "remove the `---`")),
        ("domain: api\nlimits:\n\t- name: a\n", (3, 2, "tab", "indent with spaces")),
        ("domain: api\nlimits: [\n", (2, 9, "unclosed bracket", "brackets")),
        ("domain: api\nlimits:\n- name: a\n key: []\n", (4, 2, "did not find expected", "indentation")),
        ("domain: \"api\n", (2, 1, "multiline quoted scalar", "quotes")),
        ("domain: api\nlimits:\n- {name: *a}\n", (3, 10, "no anchor has this name", "in quotes")),
        ("domain: api\nlimits:\n- {name: a, match: {p: *}}\n", (3, 24, "alias", "in quotes")),
        ("domain: !name api\n", (1, 15, "unsupported tag `!name`", "leave the tag out")),
        ("domain: {<<: 1}\n", (1, 14, "merge", "")),
    ];
    for (text, expected) in table {
        check(text, &[*expected]);
    }
}

#[test]
fn what_is_too_much_is_refused_before_it_is_built() {
    let deep = format!("domain: {}{}\n", "[".repeat(100), "]".repeat(100));
    check(&deep, &[(1, 49, "recursion limit", "nest less")]);
    let long = "x".repeat(65);
    check_rule(&format!("name: {long}, key: [], rate: 1/s"), (3, 12, "has 65 bytes", "at most 64"));
    let help = "x".repeat(513);
    check_rule(
        &format!("name: a, key: [], rate: 1/s, help: {help}"),
        (3, 41, "`help` has 513 bytes", "at most 512"),
    );
    let value = "x".repeat(1025);
    let text =
        format!("domain: api\nlimits:\n- name: a\n  key: []\n  rate: 1/s\n  match:\n    u:\n    - {value}\n");
    let loaded = read_text("rules.yaml", &text);
    assert!(loaded.problems[0].message.contains("has 1025 bytes"), "{:?}", loaded.problems);
    let list = |what: &str, count: usize| {
        (0..count).map(|number| format!("{what}{number}")).collect::<Vec<_>>().join(", ")
    };
    let conditions = (0..33).map(|number| format!("a{number}: x")).collect::<Vec<_>>().join(", ");
    let table = [
        (format!("key: [{}]", list("a", 17)), "`key` has 17 attributes"),
        (format!("key: [], match: {{{conditions}}}"), "`match` has 33 attributes"),
        (format!("key: [], match: {{u: [{}]}}", list("v", 1001)), "`u` has 1001 values"),
    ];
    for (fields, message) in table {
        let loaded =
            read_text("rules.yaml", &format!("domain: api\nlimits:\n- {{name: a, rate: 1/s, {fields}}}\n"));
        assert!(
            loaded.problems.iter().any(|problem| problem.message.contains(message)),
            "{:?}",
            loaded.problems
        );
    }
    // A few hundred bytes that would be ten billion values.
    let mut bomb = "a: &a [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for (name, of) in ('b'..='j').zip('a'..) {
        bomb.push_str(&format!("{name}: &{name} [{}]\n", vec![format!("*{of}"); 10].join(", ")));
    }
    let loaded = read_text("rules.yaml", &bomb);
    assert!(loaded.problems[0].message.contains("too much"), "{:?}", loaded.problems);
}

#[test]
fn an_endless_line_is_cut_around_the_place() {
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
