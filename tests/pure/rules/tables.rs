//! `overrides_file`: the meaning of a table of exact keys, errors of a bad one, and the size of many rows; and the
//! bounds of a difference.

use std::fs;

use tidegate::rules::{Loaded, Selection, changes, read, read_text};

use super::problems::folder;
use super::quotas::limit;

/// Rules in one file that name the table `t.csv` beside it.
fn load(fields: &str, table: &[u8]) -> Loaded {
    let rules = format!("domain: api\nlimits:\n- {{name: a, overrides_file: t.csv, {fields}}}\n");
    read(folder(&[("rules.yaml", rules.as_bytes()), ("t.csv", table)]).path())
}

const USER: &str = "key: [user], rate: 1/s";

/// The allowances, and for each request the number of its allowance.
#[track_caller]
fn check(table: &str, allowances: &str, requests: &[(&[(&str, &str)], u32)]) {
    let loaded = load(USER, table.as_bytes());
    assert!(!loaded.has_errors(), "{table}\n{:#?}", loaded.problems);
    let domain = &loaded.domains[0];
    assert_eq!(limit(&domain.rules()[0].limit), allowances, "{table}");
    let (mut selection, mut matching, mut scratch) = (Selection::default(), Vec::new(), Default::default());
    for (request, expected) in requests {
        domain.select(request, &mut selection, &mut matching);
        assert_eq!(matching, [0], "{request:?}");
        let key = domain.transformed_key(0, &selection, &mut scratch);
        assert_eq!(domain.allowance_of(0, &selection, key.values()), *expected, "{request:?}\n{table}");
    }
}

#[test]
fn table_sets_quota_of_each_key() {
    let user = [("user", "ann")];
    let other = [("user", "ben")];
    check("user,rate\nann,5/s\n", "1/s burst 1 | 5/s burst 5", &[(&user, 1), (&other, 0)]);
    // Columns in any order, a burst or none, equal terms once, no limit at all.
    check(
        "burst,rate,user\n,5/s,ann\n7,5/s,ben\n,5/s,cleo\n,unlimited,dan\n",
        "1/s burst 1 | 5/s burst 5 | 5/s burst 7 | unlimited",
        &[(&user, 1), (&other, 2), (&[("user", "cleo")], 1), (&[("user", "dan")], 3)],
    );
    // A byte order mark, other line ends, empty lines, quotes, no line end at the end.
    check(
        "\u{feff}user,rate\r\n\r\n\"Smith, \"\"J\"\"\",5/s\r\n\"two\nlines\",6/s\r\n\" ann \",7/s",
        "1/s burst 1 | 5/s burst 5 | 6/s burst 6 | 7/s burst 7",
        &[
            (&[("user", "Smith, \"J\"")], 1),
            (&[("user", "two\nlines")], 2),
            (&[("user", " ann ")], 3),
            (&user, 0),
        ],
    );
    // No rows at all.
    check("user,rate\n", "1/s burst 1", &[(&user, 0)]);
}

#[test]
fn finds_only_whole_keys_among_thousands() {
    let keys: Vec<[String; 2]> = (0..3_000)
        .map(|number: usize| [format!("org-{}", number % 50), "u".repeat(1 + number / 50)])
        .collect();
    let rows = (1..).zip(&keys).map(|(number, [org, user])| format!("{org},{user},{number}/s\n"));
    let table = format!("org,user,rate\n{}", rows.collect::<String>());
    let fields = "key: [org, user], rate: unlimited";
    let loaded = load(fields, table.as_bytes());
    let domain = &loaded.domains[0];
    let number_of = |[org, user]: [&str; 2]| {
        let (mut selection, mut scratch) = (Selection::default(), Default::default());
        let mut matching = Vec::new();
        domain.select(&[("org", org), ("user", user)], &mut selection, &mut matching);
        let key = domain.transformed_key(0, &selection, &mut scratch);
        domain.allowance_of(0, &selection, key.values())
    };
    for (number, [org, user]) in (1..).zip(&keys) {
        assert_eq!(number_of([org, user]), number, "{org} {user}");
    }
    // The same text split elsewhere.
    for other in [["org-", "1u"], ["org-1u", "u"], ["u", "org-1"]] {
        assert_eq!(number_of(other), 0, "{other:?}");
    }
    let twice = load(fields, format!("{table}org-7,u,1/s\n").as_bytes());
    assert!(twice.problems[0].help.ends_with("the first is on line 9"), "{:#?}", twice.problems);
}

#[test]
fn reports_up_to_a_hundred_bad_rows() {
    let loaded = load(USER, b"user,rate\nann,5\nben,5/s\ncleo,-5/s\n,5/s\n");
    let lines: Vec<_> = loaded.problems.iter().map(|problem| problem.position.line).collect();
    assert_eq!(lines, [2, 4, 5]);
    let long = load(USER, format!("user,rate\n{},5/s\n", "x".repeat(1_025)).as_bytes()).problems;
    assert!(long[0].message.contains("a value of `user` has 1025 bytes"), "{long:?}");
    let many = format!("user,rate\n{}", "ann,x\n".repeat(5_000));
    assert_eq!(load(USER, many.as_bytes()).problems.len(), 100);
}

#[test]
fn unreadable_table_is_an_error_of_its_rule() {
    let rules = "domain: api\nlimits:\n- {name: a, key: [user], rate: 1/s, overrides_file: t.csv}\n";
    let directory = folder(&[("rules.yaml", rules)]);
    let found = |expected: &str| {
        let loaded = read(directory.path());
        assert_eq!(loaded.failed, [Box::from("api")]);
        let found = loaded.problems[0].to_string();
        assert!(found.contains(expected), "{expected} in {found}");
    };
    found("rules.yaml:3:53: error: `overrides_file: t.csv`: cannot read the file");
    fs::create_dir(directory.path().join("t.csv")).unwrap();
    found("rules.yaml:3:53: error: `overrides_file: t.csv`: not a regular file");
    fs::remove_dir(directory.path().join("t.csv")).unwrap();
    fs::write(directory.path().join("t.csv"), b"user,rate\nann,5/s\n\xff\xfe,5/s\n").unwrap();
    found("t.csv:3:1: error: not UTF-8: the byte 0xff");
    fs::write(directory.path().join("t.csv"), "x".repeat((16 << 20) + 1)).unwrap();
    found("the file is larger than 16 MiB (split it: give each part to a rule of its own)");
}

/// A hundred thousand partners take at most 200 bytes each.
#[test]
fn bounds_memory_of_a_hundred_thousand_rows() {
    const ROWS: usize = 100_000;
    let mut table = "org,user,rate,burst\n".to_owned();
    for number in 0..ROWS {
        table.push_str(&format!(
            "organisation-{},user-{number}@example.com,{}/s,\n",
            number % 1_000,
            number % 500 + 1
        ));
    }
    let fields = "key: [org, user], rate: 1/s";
    let loaded = load(fields, table.as_bytes());
    assert!(!loaded.has_errors(), "{:?}", loaded.problems.first());
    let domain = &loaded.domains[0];
    let rule = &domain.rules()[0];
    let rows = &rule.overrides.as_ref().unwrap().rows;
    assert_eq!((rows.len(), rule.limit.allowances.len()), (ROWS, 501));
    let bytes = rows.heap_bytes() + size_of_val(rule.limit.allowances.as_slice());
    assert!(bytes <= 200 * ROWS, "{bytes}");
    let number = rows.number_of(["organisation-7", "user-99007@example.com"].into_iter()).unwrap();
    assert_eq!(limit(&rule.limit).split(" | ").nth(number as usize), Some("8/s burst 8"));
}

#[test]
fn table_has_column_for_max() {
    let rules = "domain: api\nconcurrency:\n- {name: a, key: [org], max: 2, overrides_file: t.csv}\n";
    let table = "max,org\n5,acme\nunlimited,house\n5,other\n";
    let loaded = read(folder(&[("rules.yaml", rules), ("t.csv", table)]).path());
    assert!(loaded.problems.is_empty(), "{:#?}", loaded.problems);
    let rule = &loaded.domains[0].rules()[0];
    assert_eq!(limit(&rule.limit), "2 at once | 5 at once | unlimited");
    let number = |org: &str| rule.overrides.as_ref().unwrap().rows.number_of([org].into_iter());
    assert_eq!(["acme", "house", "other", "x"].map(number), [Some(1), Some(2), Some(1), None]);
}

const BEFORE: &str = "\
- {name: a, key: [user], rate: 100/s}
- {name: b, match: {method: POST, path: \"/x*\"}, key: [], rate: 20/h, burst: 5, help: see}
";

#[test]
fn escapes_and_cuts_file_text_in_log() {
    let long = format!("[{}]", (0..200).map(|n| format!("m{n}")).collect::<Vec<_>>().join(", "));
    let lines = |value: &str| {
        let [one, other] = ["POST", value].map(|value| BEFORE.replace("POST", value));
        let read = |limits| read_text("t.yaml", &format!("domain: api\nlimits:\n{limits}")).domains;
        changes(&read(one), &read(other))
    };
    assert!(lines(r#""a\nb\e[31m""#)[0].contains(r"{method: a\nb\u{1b}[31m, path"));
    let cut = &lines(&long)[0];
    assert!(cut.contains("m10, ") && cut.ends_with('…') && cut.len() < 400, "{cut}");
    let names = (0..1_000).map(|n| format!("- {{name: n{n}, match: {{p: p{n}}}, key: [], rate: 1/s}}\n"));
    let many = read_text("t.yaml", &format!("domain: api\nlimits:\n{}", names.collect::<String>())).domains;
    let none = read_text("t.yaml", "domain: api\nlimits: []").domains;
    let lines = changes(&none, &many);
    assert_eq!((lines.len(), lines[200].as_str()), (201, "and 800 more changes"));
}
