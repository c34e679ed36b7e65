//! `match` and `key`: what they mean, what a slip in them is told, what was perhaps not meant.

use std::sync::Arc;

use tidegate::rules::{Condition, Domain, Pattern, Selection, read_text};

use super::bad::{Told, check_rule};

/// The one domain of rules whose fields these are, in flow style from line 3, column 6 on.
fn domain(fields: &[&str]) -> Arc<Domain> {
    let rules: String = fields.iter().map(|fields| format!("  - {{{fields}}}\n")).collect();
    let text = format!("domain: api\nlimits:\n{rules}");
    let loaded = read_text("rules.yaml", &text);
    assert!(!loaded.has_errors(), "{text}\n{:#?}", loaded.problems);
    loaded.domains.into_iter().next().unwrap()
}

fn shown(pattern: &Pattern) -> String {
    match pattern {
        Pattern::Exact(text) => format!("{text:?}"),
        Pattern::Glob(_) => "<pattern>".to_owned(),
        Pattern::AnyCase(_) => "<any case>".to_owned(),
        Pattern::Network(network) => network.to_string(),
        Pattern::Not(patterns) => {
            format!("not({})", patterns.iter().map(shown).collect::<Vec<_>>().join("|"))
        }
        Pattern::Present => "<present>".to_owned(),
    }
}

fn condition(condition: &Condition) -> String {
    let mut any_of: Vec<_> = condition.any_of.iter().map(shown).collect();
    any_of.extend(condition.or_absent.then(|| "<absent>".to_owned()));
    any_of.join("|")
}

#[test]
fn a_value_means_what_it_says() {
    let table: &[(&str, &str)] = &[
        ("{not: a}", r#"not("a")"#),
        ("{not: [a, 'b*']}", r#"not("a"|<pattern>)"#),
        ("{not: 429}", r#"not("429")"#),
        ("{not: {cidr: 10.0.0.0/8}}", "not(10.0.0.0/8)"),
        ("{not: [a, {glob: b, ignore_case: true}]}", r#"not("a"|<any case>)"#),
        ("{not: {cidr: [10.0.0.0/8, 127.0.0.0/8]}}", "not(10.0.0.0/8|127.0.0.0/8)"),
        ("{cidr: 192.0.2.0/24}", "192.0.2.0/24"),
        ("{cidr: [192.0.2.0/24, '2001:db8::/32', '::1/128']}", "192.0.2.0/24|2001:db8::/32|::1/128"),
        ("{cidr: '::ffff:192.0.2.0/120'}", "192.0.2.0/24"),
        ("{cidr: 0.0.0.0/0}", "0.0.0.0/0"),
        ("{glob: 'a*'}", "<pattern>"),
        ("{glob: ['a*', b]}", r#"<pattern>|"b""#),
        ("{glob: 'a*', ignore_case: false}", "<pattern>"),
        ("{glob: ['*GPTBot*', x], ignore_case: true}", "<any case>|<any case>"),
        ("{present: true}", "<present>"),
        ("{present: false}", "<absent>"),
        ("[free, {present: false}]", r#""free"|<absent>"#),
        ("[{cidr: 10.0.0.0/8}, localhost, {not: 'x*'}]", r#"10.0.0.0/8|"localhost"|not(<pattern>)"#),
        ("[{not: a}, {not: b}]", r#"not("a")|not("b")"#),
    ];
    for (value, expected) in table {
        let domain = domain(&[&format!("name: a, match: {{u: {value}}}, key: [], rate: 1/s")]);
        let conditions = &domain.rules()[0].conditions;
        assert_eq!(conditions.iter().map(condition).collect::<Vec<_>>(), [*expected], "{value}");
        assert_eq!(conditions[0].line, 3);
    }
}

#[test]
fn a_condition_knows_its_line_and_is_the_same_on_another() {
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

#[test]
fn a_part_of_a_key_means_what_it_says() {
    let table: &[(&str, &str)] = &[
        ("user", "user plain"),
        ("{attribute: user}", "user plain"),
        ("{attribute: user, lowercase: false}", "user plain"),
        ("{attribute: account, lowercase: true}", "account lowercase"),
        ("{attribute: ip, ipv6_prefix: 64}", "ip /64"),
        ("{attribute: ip, ipv6_prefix: 128, lowercase: true}", "ip lowercase /128"),
    ];
    for (part, expected) in table {
        let domain = domain(&[&format!("name: a, key: [{part}], rate: 1/s")]);
        let part = &domain.rules()[0].key[0];
        let mut shown = part.attribute.to_string();
        shown.push_str(if part.transform.lowercase { " lowercase" } else { "" });
        shown.extend(part.transform.ipv6_prefix.map(|bits| format!(" /{bits}")));
        shown.push_str(if part.is_plain() { " plain" } else { "" });
        assert_eq!(shown, *expected);
        assert_eq!(domain.key_is_plain(0), part.is_plain());
    }
}

#[test]
fn a_slip_in_a_value_is_told_what_to_write() {
    let table: &[(&str, Told<'_>)] = &[
        (
            "{not: a, cidr: 10.0.0.0/8}",
            (3, 55, "`cidr` beside `not` in one value of `u`", "[{not: …}, {cidr: …}]"),
        ),
        ("{present: true, not: a}", (3, 62, "`not` beside `present`", "if either will do")),
        ("{glob: a, glob: b}", (3, 56, "`glob` is written twice", "keep one")),
        ("{ignore_case: true}", (3, 46, "`u` has no value", "`glob`")),
        (
            "{cidr: 10.0.0.0/8, ignore_case: true}",
            (3, 65, "`ignore_case` beside `cidr`", "{glob: …, ignore_case: true}"),
        ),
        ("{not: a, ignore_case: true}", (3, 55, "`ignore_case` beside `not`", "{glob: …")),
        ("{glob: a, ignore_case: yes}", (3, 69, "`ignore_case` is true or false, not `yes`", "`true`")),
        ("{glob: a, ignore_case: }", (3, 67, "`ignore_case` is true or false, not nothing", "`true`")),
        ("{present: 1}", (3, 56, "`present` is true or false, not `1`", "`true`")),
        ("{present: [true]}", (3, 56, "`present` is true or false, not a list", "`false`")),
        ("{present: 'true'}", (3, 56, "`present` is true or false", "without quotes")),
        ("{not: {not: a}}", (3, 53, "`not` within `not`", "the values themselves")),
        ("{not: [a, {present: true}]}", (3, 57, "`present` within `not`", "{present: false}")),
        ("{not: []}", (3, 52, "`u` has an empty list", "at least one")),
        ("{cidr: []}", (3, 53, "`u` has an empty list", "at least one")),
        ("{not: }", (3, 50, "`not` has no value", "quotes")),
        ("{not: [[a]]}", (3, 53, "`not` is a text, not a list", "one text")),
        ("{glob: {cidr: a}}", (3, 53, "`glob` is a text, not a mapping", "one text")),
        ("{cidr: {not: 10.0.0.0/8}}", (3, 53, "`cidr` is a text, not a mapping", "one text")),
        ("{cidr: 10.1.2.3/8}", (3, 53, "bits set past its first 8", "write 10.0.0.0/8 for the network")),
        ("{cidr: [10.0.0.0/8, 10.0.0.1]}", (3, 66, "has no prefix length", "write 10.0.0.1/32")),
        ("{cidr: office}", (3, 53, "`office` is no network", "192.0.2.0/24")),
        ("{cidr: 10.0.0.0/40}", (3, 53, "`40` is no prefix length", "from 0 to 32")),
        ("{not: {cidr: 10/8}}", (3, 59, "`10` is no address", "write 10.0.0.0/8")),
        ("{nto: a}", (3, 47, "unknown field `nto` in a value of `match`", "did you mean `not`?")),
        ("{Present: true}", (3, 47, "unknown field `Present`", "did you mean `present`?")),
        ("{regex: a}", (3, 47, "unknown field `regex`", "known here: not, cidr, glob, ignore_case, present")),
    ];
    for (value, expected) in table {
        check_rule(&format!("name: a, key: [], rate: 1/s, match: {{u: {value}}}"), *expected);
    }
    let many = |count: usize| (0..count).map(|number| format!("v{number}")).collect::<Vec<_>>().join(", ");
    let within = format!("[{{not: [{}]}}, {{glob: [{}]}}, x]", many(600), many(400));
    let loaded = read_text(
        "rules.yaml",
        &format!("domain: api\nlimits:\n- {{name: a, key: [], rate: 1/s, match: {{u: {within}}}}}\n"),
    );
    let [problem] = loaded.problems.as_slice() else { panic!("{:#?}", loaded.problems) };
    assert!(problem.message.contains("`u` has 1001 values"), "{problem}");
}

#[test]
fn a_slip_in_a_part_of_a_key_is_told_what_to_write() {
    let table: &[(&str, Told<'_>)] = &[
        ("{lowercase: true}", (3, 21, "an entry of `key` needs `attribute`", "{attribute: NAME, …}")),
        ("{attribute: [u]}", (3, 33, "an attribute of `key` is a name, not a list", "`user`")),
        ("{attribute: a/b}", (3, 33, "may not hold '/'", "leave out")),
        (
            "{attribut: u}",
            (3, 22, "unknown field `attribut` in an entry of `key`", "did you mean `attribute`?"),
        ),
        ("{attribute: u, lowercase: 1}", (3, 47, "`lowercase` is true or false, not `1`", "`true`")),
        ("{attribute: u, ipv6_prefix: 0}", (3, 49, "`ipv6_prefix` is 0", "at least 1")),
        ("{attribute: u, ipv6_prefix: 129}", (3, 49, "an IPv6 address has no 129 bits", "from 1 to 128")),
        ("{attribute: u, ipv6_prefix: /64}", (3, 49, "`/64` is not a whole number", "digits")),
        ("{attribute: u, ipv6_prefix: '64'}", (3, 49, "a number, not the text `64`", "without quotes")),
        ("u, {attribute: u, lowercase: true}", (3, 36, "`u` is written twice in `key`", "keep one")),
        (
            "{attribute: u, ipv6_prefix: 64}, {attribute: u}",
            (3, 66, "`u` is written twice in `key`", "keep one"),
        ),
    ];
    for (part, expected) in table {
        // `attribute: u` of `{lowercase: …}` is what the first row lacks.
        if part.starts_with("{lowercase") || part.starts_with("{attribut:") {
            let loaded = read_text(
                "rules.yaml",
                &format!("domain: api\nlimits:\n  - {{name: a, key: [{part}], rate: 1/s}}\n"),
            );
            let (line, column, message, mend) = *expected;
            let found = loaded.problems.iter().find(|problem| problem.message.contains(message));
            let found = found.unwrap_or_else(|| panic!("{:#?}", loaded.problems));
            assert_eq!((found.position.line, found.position.column), (line, column), "{found}");
            assert!(found.mend.as_deref().unwrap().contains(mend), "{found}");
            continue;
        }
        check_rule(&format!("name: a, key: [{part}], rate: 1/s"), *expected);
    }
}

#[test]
fn what_was_perhaps_not_meant() {
    let table: &[(&str, &str, &str)] = &[
        (
            "match: {u: {not: '*'}}, key: []",
            "`not` with a pattern for any value never holds for `u`",
            "{present: false}",
        ),
        ("match: {u: {not: [a, '**']}}, key: []", "never holds for `u`", "{present: false}"),
        (
            "match: {u: [{present: true}, {present: false}]}, key: []",
            "this holds whatever `u` is",
            "leave it out",
        ),
        ("match: {u: ['*', {present: false}]}, key: []", "this holds whatever `u` is", "leave it out"),
        ("match: {u: {not: ''}}, key: []", "an empty value of `u` never matches", "{present: false}"),
        ("key: [{attribute: ip, ipv6_prefix: 16}]", "counts the customers of whole providers", "56 or 48"),
    ];
    for (fields, message, mend) in table {
        let text = format!("domain: api\nlimits:\n  - {{name: a, {fields}, rate: 1/s}}\n");
        let loaded = read_text("rules.yaml", &text);
        let [problem] = loaded.problems.as_slice() else { panic!("{text}\n{:#?}", loaded.problems) };
        assert!(!problem.is_error() && problem.message.contains(message), "{problem}");
        assert!(problem.mend.as_deref().unwrap().contains(mend), "{problem}");
    }
    for fields in [
        "match: {u: {not: a}}, key: [u]",
        "match: {u: [a, b, {present: false}]}, key: [u]",
        "match: {u: {present: true}}, key: [u]",
        "key: [{attribute: ip, ipv6_prefix: 32}]",
    ] {
        let loaded =
            read_text("rules.yaml", &format!("domain: api\nlimits:\n  - {{name: a, {fields}, rate: 1/s}}\n"));
        assert_eq!(loaded.problems, [], "{fields}");
    }
}

#[test]
fn rules_that_match_or_count_differently_are_not_redundant() {
    let of = |one: &str, other: &str| {
        let text = format!(
            "domain: api\nlimits:\n- {{name: a, {one}, rate: 1/s}}\n- {{name: b, {other}, rate: 2/s, burst: 9}}\n"
        );
        read_text("rules.yaml", &text).problems.len()
    };
    assert_eq!(of("key: [{attribute: ip, ipv6_prefix: 64}]", "key: [{attribute: ip, ipv6_prefix: 64}]"), 1);
    assert_eq!(of("key: [ip]", "key: [{attribute: ip, ipv6_prefix: 64}]"), 0);
    assert_eq!(of("key: [{attribute: u, lowercase: true}]", "key: [u]"), 0);
    let (some, any) = ("key: [], match: {u: [x, y]}", "key: [], match: {u: [x, y, {present: false}]}");
    assert_eq!((of(some, some), of(some, any), of(any, any)), (1, 0, 1));
    let (x, not_x) = ("key: [], match: {u: {not: x}}", "key: [], match: {u: {glob: x, ignore_case: true}}");
    assert_eq!((of(x, x), of(x, not_x), of(not_x, not_x)), (1, 0, 1));
}

/// The rules of an attribute that match a value, each written as its condition alone.
#[test]
fn of_nested_starts_ends_and_networks_all_are_found() {
    let starts = ["'/*'", "'/v1/*'", "'/v1/charges*'", "/v1/charges", "'/v1/charges/*'", "'/v1/*/refunds'"];
    let ends = ["'*.com'", "'*example.com'", "'*.example.com'", "'*.EXAMPLE.com'", "'*.example.org'"];
    let networks =
        ["0.0.0.0/0", "10.0.0.0/8", "10.0.0.0/24", "10.0.0.7/32", "'::/0'", "'::ffff:10.0.0.0/104'"];
    let networks = networks.map(|network| format!("{{cidr: {network}}}"));
    let any_case = ["'B*'", "bot*", "'*BOT'", "b", "'*o*'"];
    let any_case = any_case.map(|text| format!("{{glob: {text}, ignore_case: true}}"));
    let table: [(&[String], &str, &[u32]); 8] = [
        (&starts.map(str::to_owned), "/v1/charges", &[0, 1, 2, 3]),
        (&starts.map(str::to_owned), "/v1/charges/ch_1/refunds", &[0, 1, 2, 4, 5]),
        (&starts.map(str::to_owned), "/v2", &[0]),
        (&ends.map(str::to_owned), "www.example.com", &[0, 1, 2]),
        (&ends.map(str::to_owned), "example.com", &[0, 1]),
        (&networks, "::ffff:10.0.0.7", &[0, 1, 2, 3, 5]),
        (&networks, "2001:db8::", &[4]),
        (&any_case, "BoT", &[0, 1, 2, 4]),
    ];
    for (values, value, expected) in table {
        let rule =
            |(number, written)| format!("name: r{number}, match: {{u: {written}}}, key: [], rate: 1/s");
        let rules: Vec<String> = values.iter().enumerate().map(rule).collect();
        let domain = domain(&rules.iter().map(String::as_str).collect::<Vec<_>>());
        let (mut selection, mut matching) = (Selection::default(), Vec::new());
        domain.select(&[("u", value)], &mut selection, &mut matching);
        assert_eq!(matching, expected, "{value}");
    }
}
