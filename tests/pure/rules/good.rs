//! What good files mean.

use tidegate::limit::Quota;
use tidegate::rules::{Mode, Rule, read_text};

/// A rule as the tables write it: name, conditions, key, rate, burst, mode.
fn shown(rule: &Rule) -> String {
    let conditions: Vec<_> = rule
        .conditions
        .iter()
        .map(|condition| {
            let values: Vec<_> = condition
                .any_of
                .iter()
                .map(|pattern| {
                    pattern.as_exact().map_or_else(|| "<pattern>".to_owned(), |text| format!("{text:?}"))
                })
                .collect();
            format!("{}={}", condition.attribute, values.join("|"))
        })
        .collect();
    let Some(Quota::TokenBucket(quota)) = rule.limit.quota() else { panic!("no token bucket") };
    let key: Vec<&str> = rule.key.iter().map(|part| &*part.attribute).collect();
    let key = key.join(",");
    let mode = if rule.mode == Mode::Enforce { String::new() } else { format!(" {}", rule.mode) };
    format!(
        "{} [{}] by {key} {} burst {}{mode}",
        rule.name,
        conditions.join(" "),
        quota.rate(),
        quota.burst()
    )
}

#[track_caller]
fn check(text: &str, expected: &[&str]) {
    let loaded = read_text("rules.yaml", text);
    assert!(!loaded.has_errors(), "{text}\n{:#?}", loaded.problems);
    assert_eq!(loaded.failed, Vec::<Box<str>>::new());
    let rules: Vec<_> = loaded.domains.iter().flat_map(|domain| domain.rules()).map(shown).collect();
    assert_eq!(rules, expected, "{text}");
}

/// The fields of one rule, in flow style.
#[track_caller]
fn check_rule(fields: &str, expected: &str) {
    check(&format!("domain: api\nlimits:\n  - {{{fields}}}\n"), &[expected]);
}

#[test]
fn a_rule_means_what_it_says() {
    let table: &[(&str, &str)] = &[
        ("name: a, key: [user], rate: 100/s", "a [] by user 100/s burst 100"),
        ("name: a, key: [user], rate: 100/s, burst: 500", "a [] by user 100/s burst 500"),
        ("name: a, key: [], rate: 5/15min", "a [] by  5/15min burst 5"),
        ("name: a, key: [org, user], rate: 1/h", "a [] by org,user 1/h burst 1"),
        ("name: a, key: [], rate: 1/s, mode: shadow", "a [] by  1/s burst 1 shadow"),
        ("name: a, key: [], rate: 1/s, mode: disabled", "a [] by  1/s burst 1 disabled"),
        ("name: a, key: [], rate: 1/s, mode: enforce", "a [] by  1/s burst 1"),
        ("name: a, key: [], rate: \"1/s\"", "a [] by  1/s burst 1"),
        // What can only be said as it is anyway.
        ("name: a, key: [], rate: 1/s, algorithm: token_bucket", "a [] by  1/s burst 1"),
        ("name: a, key: [], rate: 1/s, scope: host, unit: requests, advertise: true", "a [] by  1/s burst 1"),
        // Conditions: one value, a list, patterns, an escaped star.
        ("name: a, match: {m: POST}, key: [], rate: 1/s", r#"a [m="POST"] by  1/s burst 1"#),
        ("name: a, match: {m: [GET, PUT]}, key: [], rate: 1/s", r#"a [m="GET"|"PUT"] by  1/s burst 1"#),
        ("name: a, match: {p: '/v1/*'}, key: [], rate: 1/s", "a [p=<pattern>] by  1/s burst 1"),
        (r"name: a, match: {p: '\*'}, key: [], rate: 1/s", r#"a [p="*"] by  1/s burst 1"#),
        ("name: a, match: {m: X, n: Y}, key: [m2], rate: 1/s", r#"a [m="X" n="Y"] by m2 1/s burst 1"#),
        ("name: a, match: {}, key: [], rate: 1/s", "a [] by  1/s burst 1"),
        // Numbers and booleans are the text that was written.
        ("name: a, match: {s: 429}, key: [], rate: 1/s", r#"a [s="429"] by  1/s burst 1"#),
        ("name: a, match: {s: [true, 1.50]}, key: [], rate: 1/s", r#"a [s="true"|"1.50"] by  1/s burst 1"#),
        ("name: a, match: {s: 0x1F}, key: [], rate: 1/s", r#"a [s="0x1F"] by  1/s burst 1"#),
        (
            "name: a, match: {s: [no, yes, on, off]}, key: [], rate: 1/s",
            r#"a [s="no"|"yes"|"on"|"off"] by  1/s burst 1"#,
        ),
        ("name: a, match: {s: '429'}, key: [], rate: 1/s", r#"a [s="429"] by  1/s burst 1"#),
        ("name: a, match: {s: \"null\"}, key: [], rate: 1/s", r#"a [s="null"] by  1/s burst 1"#),
        ("name: 42, match: {7: 8}, key: [9], rate: 1/s", r#"42 [7="8"] by 9 1/s burst 1"#),
        ("name: é, key: [], rate: 1/s", "é [] by  1/s burst 1"),
        ("name: 'a name', key: ['an attribute'], rate: 1/s", "a name [] by an attribute 1/s burst 1"),
    ];
    for (fields, expected) in table {
        check_rule(fields, expected);
    }
}

#[test]
fn a_file_may_be_written_in_many_ways() {
    let table: &[(&str, &[&str])] = &[
        ("domain: api\n", &[]),
        ("domain: api\nlimits: []\n", &[]),
        ("{domain: api, limits: [{name: a, key: [], rate: 1/s}]}", &["a [] by  1/s burst 1"]),
        (
            r#"{"domain": "api", "limits": [{"name": "a", "key": [], "rate": "1/s", "burst": 3}]}"#,
            &["a [] by  1/s burst 3"],
        ),
        ("---\ndomain: api\nlimits:\n- name: a\n  key: []\n  rate: 1/s\n...\n", &["a [] by  1/s burst 1"]),
        ("domain: api\r\nlimits:\r\n- name: a\r\n  key: []\r\n  rate: 1/s\r\n", &["a [] by  1/s burst 1"]),
        (
            "# all\ndomain: api # of them\nlimits: # are\n# comments\n- {name: a, key: [], rate: 1/s}\n",
            &["a [] by  1/s burst 1"],
        ),
        ("limits:\n- {rate: 1/s, key: [], name: a}\ndomain: api\n", &["a [] by  1/s burst 1"]),
        (
            "domain: api\ndefaults: {scope: host}\nlimits:\n- {name: a, key: [], rate: 1/s}\n",
            &["a [] by  1/s burst 1"],
        ),
        (
            "domain: api\nlimits:\n- {name: a, match: &post {m: POST}, key: &by [u], rate: 1/s}\n- {name: b, match: *post, key: *by, rate: 1/h}\n",
            &[r#"a [m="POST"] by u 1/s burst 1"#, r#"b [m="POST"] by u 1/h burst 1"#],
        ),
        (
            "domain: api\nlimits:\n- &a {name: a, key: [u], rate: 1/s}\n- {<<: *a, name: b, rate: 2/s, burst: 1}\n",
            &["a [] by u 1/s burst 1", "b [] by u 2/s burst 1"],
        ),
    ];
    for (text, expected) in table {
        check(text, expected);
    }
}

#[test]
fn a_rule_knows_where_it_stands_and_keeps_its_help() {
    let loaded = read_text(
        "api.yaml",
        "domain: api\nlimits:\n  - key: []\n    name: a\n    rate: 1/s\n    help: https://example.com/limits\n",
    );
    let rule = &loaded.domains[0].rules()[0];
    assert_eq!(rule.position.to_string(), "api.yaml:4:11");
    assert_eq!(rule.help.as_deref(), Some("https://example.com/limits"));
}

#[test]
fn ten_thousand_rules_load() {
    let mut text = "domain: api\nlimits:\n".to_owned();
    for number in 0..10_000 {
        text.push_str(&format!("  - name: rule-{number}\n    match: {{path: /v1/{number}, method: [GET, POST]}}\n    key: [user]\n    rate: {}/s\n", number + 1));
    }
    let loaded = read_text("api.yaml", &text);
    assert!(!loaded.has_errors(), "{:?}", loaded.problems.first());
    assert_eq!(loaded.domains[0].rules().len(), 10_000);
}
