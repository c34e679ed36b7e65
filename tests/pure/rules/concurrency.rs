//! `concurrency`: fields that rules share, and tables of overrides.

use tidegate::limit::Quota;
use tidegate::rules::{Limit, read, read_text};

use super::problems::folder;

/// The allowances of a limit: `-` is unlimited.
fn most(limit: &Limit) -> String {
    let most = limit.allowances.iter().map(|allowance| match allowance.as_ref().map(|own| &own.quota) {
        Some(Quota::Concurrency(quota)) if !quota.is_fleet() => quota.max().to_string(),
        None => "-".to_owned(),
        Some(other) => panic!("{other:?}"),
    });
    most.collect::<Vec<_>>().join(" ")
}

#[test]
fn keeps_file_order_with_limits_and_shared_fields() {
    let text = "domain: api\nconcurrency:\n- {name: a, match: {job: export}, key: [{attribute: org, lowercase: true}], max: 2, mode: shadow, \
                help: see, advertise: false, warn_at: 50%, show_keys: [org], scope: host}\nlimits:\n- {name: b, key: [], rate: 1/s}\n";
    let loaded = read_text("rules.yaml", text);
    assert_eq!(loaded.problems, []);
    let rules = loaded.domains[0].rules();
    let names: Vec<_> = rules.iter().map(|rule| (&*rule.name, rule.expires.is_some())).collect();
    assert_eq!(names, [("a", true), ("b", false)]);
    let a = &rules[0];
    assert_eq!(
        (a.mode.name(), a.help.as_deref(), a.advertise, a.warn_at),
        ("shadow", Some("see"), false, Some(500))
    );
    assert!(a.key[0].transform.lowercase && a.conditions.len() == 1 && *a.show_keys[0] == *"org");
}

#[test]
fn table_has_column_for_max() {
    let load = |table: &str| {
        let rules = "domain: api\nconcurrency:\n- {name: a, key: [org], max: 2, overrides_file: t.csv}\n";
        read(folder(&[("rules.yaml", rules), ("t.csv", table)]).path())
    };
    let loaded = load("max,org\n5,acme\nunlimited,house\n5,other\n");
    assert!(loaded.problems.is_empty(), "{:#?}", loaded.problems);
    let rule = &loaded.domains[0].rules()[0];
    assert_eq!(most(&rule.limit), "2 5 -");
    let number = |org: &str| rule.overrides.as_ref().unwrap().rows.number_of([org].into_iter());
    assert_eq!(
        [number("acme"), number("house"), number("other"), number("x")],
        [Some(1), Some(2), Some(1), None]
    );
    let table: &[(&str, &str, &str)] = &[
        ("org,rate\nacme,5/s\n", "unknown column `rate`", "org,max"),
        ("org\nacme\n", "no column `max`", "org,max"),
        ("org,max,burst\nacme,5,5\n", "`burst` is a field of `token_bucket`", "leave it out"),
        ("org,max\nacme,0\n", "`max` is 0", "`deny`"),
        ("org,max\nacme,5/s\n", "`max`: `5/s` is not a whole number", "digits"),
        ("org,max\nacme,5\nacme,6\n", "a second row for the key `acme`", "line 2"),
        ("", "the table is empty", "org,max"),
    ];
    for (text, message, help) in table {
        let loaded = load(text);
        let found = loaded.problems.iter().find(|problem| problem.message.contains(message));
        let found = found.unwrap_or_else(|| panic!("{text}: {:#?}", loaded.problems));
        assert!(found.help.contains(help) && loaded.domains.is_empty(), "{text}: {found}");
    }
}
