//! Oversized files are refused before they are built, with short errors.

use tidegate::rules::read_text;

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
