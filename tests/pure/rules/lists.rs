//! `exempt`, `deny`, `priorities` and `prioritize`: what they mean, in one file and in several, and what slips are told.

use std::sync::Arc;

use std::fs;

use tidegate::rules::{Domain, ListKind, Loaded, Selection, read, read_text};

use super::bad::{Told, check};

const RULE: &str = "limits:\n- {name: a, key: [], rate: 1/s}\n";

fn good(text: &str) -> Arc<Domain> {
    let loaded = read_text("rules.yaml", text);
    assert!(!loaded.has_errors(), "{text}\n{:#?}", loaded.problems);
    loaded.domains.into_iter().next().unwrap()
}

fn read_files(files: &[&str]) -> Loaded {
    let directory = tempfile::tempdir().unwrap();
    for (number, text) in files.iter().enumerate() {
        fs::write(directory.path().join(format!("{number}.yaml")), text).unwrap();
    }
    read(directory.path())
}

/// Rules by name, then entries as `-exempt` and `!deny`, of what matches.
fn matching(domain: &Domain, attributes: &[(&str, &str)]) -> String {
    let (mut selection, mut matching) = (Selection::default(), Vec::new());
    domain.select(attributes, &mut selection, &mut matching);
    let name = |number: &u32| match (domain.rules().get(*number as usize), domain.listed(*number)) {
        (Some(rule), None) => rule.name.to_string(),
        (None, Some(listed)) if listed.kind == ListKind::Exempt => format!("-{}", listed.name),
        (None, Some(listed)) => format!("!{}", listed.name),
        found => panic!("{number}: {found:?}"),
    };
    matching.iter().map(name).collect::<Vec<_>>().join(" ")
}

#[test]
fn entries_come_behind_the_rules_exempt_before_deny_each_in_the_order_of_the_files() {
    let loaded = read_files(&[
        "domain: api\ndeny:\n- {name: d1, match: {u: [x, y]}, help: no}\nexempt:\n- {name: e1, match: {u: x}}\n",
        "domain: api\nexempt: [{name: e2, match: {u: 'x*'}}]\ndeny: [{name: d2, match: {v: {present: true}}}]\nlimits: [{name: a, key: [u], rate: 1/s}]\n",
    ]);
    assert!(!loaded.has_errors(), "{:#?}", loaded.problems);
    let domain = &loaded.domains[0];
    let names: Vec<_> = domain.lists().iter().map(|listed| &*listed.name).collect();
    assert_eq!(names, ["e1", "e2", "d1", "d2"]);
    assert_eq!(domain.lists()[2].help.as_deref(), Some("no"));
    assert!(
        domain.lists()[2].position.to_string().ends_with("0.yaml:3:10"),
        "{}",
        domain.lists()[2].position
    );
    assert_eq!(matching(domain, &[("u", "x")]), "a -e1 -e2 !d1");
    assert_eq!(matching(domain, &[("u", "y"), ("v", "1")]), "a !d1 !d2");
    assert_eq!(matching(domain, &[("u", "xy")]), "a -e2");
    assert_eq!(matching(domain, &[]), "");
    assert!(domain.listed(0).is_none() && domain.listed(5).is_none());
}

/// The priority that is asked for, the attributes, the priority that counts.
type Asking<'t> = (Option<&'t str>, &'t [(&'t str, &'t str)], &'t str);

#[test]
fn the_priority_of_a_request_is_what_it_asks_for_else_the_first_that_matches_else_the_last() {
    let loaded = read_files(&[
        "domain: api\nprioritize:\n- {match: {mode: test}, priority: test}\n- {match: {path: '/v1/*'}, priority: critical}\n",
        "domain: api\npriorities: [critical, post, get, test]\n",
        "domain: api\nprioritize:\n- {match: {path: /v1/a}, priority: get}\n- {match: {method: POST}, priority: post}\n",
        "domain: web\nlimits: [{name: a, key: [], rate: 1/s}]\n",
    ]);
    assert_eq!(loaded.problems, []);
    let (api, web) = (&loaded.domains[0], &loaded.domains[1]);
    assert_eq!(api.priorities().join(" "), "critical post get test");
    let table: &[Asking<'_>] = &[
        (None, &[("mode", "test"), ("path", "/v1/a")], "test"),
        (None, &[("path", "/v1/a")], "critical"),
        (None, &[("path", "/v2/a"), ("method", "POST")], "post"),
        (None, &[("method", "GET")], "test"),
        (None, &[], "test"),
        (Some("get"), &[("mode", "test")], "get"),
        (Some("Get"), &[("path", "/v1/a")], "critical"),
        (Some(""), &[], "test"),
    ];
    for (asked, attributes, expected) in table {
        let (mut selection, mut matching) = (Selection::default(), Vec::new());
        api.select(attributes, &mut selection, &mut matching);
        assert_eq!(api.priority(*asked, &selection), Some(*expected), "{asked:?} {attributes:?}");
    }
    assert_eq!(web.priority(Some("get"), &Selection::default()), None);
    assert_eq!(web.priorities().len(), 0);
}

#[test]
fn a_slip_in_a_list_is_told_what_to_write() {
    let table: &[(&str, Told<'_>)] = &[
        ("exempt: {a: b}\n", (2, 9, "`exempt` is a list, not a mapping", "`- {name: …, match: {…}}`")),
        ("deny:\n", (2, 5, "`deny` has no value", "- {name: …")),
        ("exempt: [x]\n", (2, 10, "an entry of `exempt` is a mapping, not a text", "`name: …`")),
        ("deny: [{match: {u: x}}]\n", (2, 8, "an entry of `deny` needs `name`", "metrics")),
        ("deny: [{name: a/b}]\n", (2, 15, "the name of a rule may not hold '/'", "leave out")),
        (
            "deny: [{name: b, key: [u]}]\n",
            (2, 18, "unknown field `key` in an entry of `deny`", "name, match, mode, help"),
        ),
        (
            "exempt: [{name: b, match: {u: x}, help: y}]\n",
            (2, 35, "`help` in an entry of `exempt`", "leave it out"),
        ),
        (
            "exempt: [{name: b, match: {u: x}, mode: shadow}]\n",
            (2, 35, "`mode` in an entry of `exempt`", "leave it out"),
        ),
        ("deny: [{name: b, mode: dark}]\n", (2, 24, "unknown mode `dark`", "enforce, shadow")),
        ("deny: [{name: b, match: {u: {cidr: 1}}}]\n", (2, 36, "`1` is no network", "192.0.2.0/24")),
        ("deny: [{name: b, match: {u: x}, help: ''}]\n", (2, 39, "`help` is one line of text", "a link")),
        (
            "deny: [{name: b, match: {u: x}}, {name: b, match: {u: y}}]\n",
            (
                2,
                41,
                "a second rule or entry named `b` in the domain `api`",
                "the first is at rules.yaml:2:15",
            ),
        ),
    ];
    for (text, expected) in table {
        check(&format!("domain: api\n{text}{RULE}"), &[*expected]);
    }
    // Whatever comes first in the file has the name.
    check(
        &format!("domain: api\ndeny: [{{name: a, match: {{u: x}}}}]\n{RULE}"),
        &[(4, 10, "a second rule named `a`", "the first is at rules.yaml:2:15")],
    );
    check(
        &format!("domain: api\n{RULE}exempt: [{{name: a, match: {{u: x}}}}]\n"),
        &[(4, 17, "a second rule or entry named `a`", "the first is at rules.yaml:3:10")],
    );
}

#[test]
fn a_slip_in_the_priorities_is_told_what_to_write() {
    let table: &[(&str, Told<'_>)] = &[
        ("priorities: high\n", (2, 13, "`priorities` is a list, not a text", "[MOST IMPORTANT, …, LEAST]")),
        ("priorities: []\n", (2, 13, "`priorities` has an empty list", "MOST")),
        ("priorities: [a, b, a]\n", (2, 20, "`a` is written twice in `priorities`", "keep one")),
        ("priorities: [a, [b]]\n", (2, 17, "`priorities` is a text, not a list", "one text")),
        ("priorities: [a, 'b:c']\n", (2, 17, "the name of a priority may not hold ':'", "leave out")),
        ("priorities: [a, '']\n", (2, 17, "the name of a priority is empty", "1 to 64")),
        ("prioritize: [{priority: a}]\n", (2, 14, "`prioritize` without `priorities`", "once in the domain")),
        (
            "priorities: [post, get]\nprioritize: [{priority: pots}]\n",
            (3, 25, "unknown priority `pots`", "did you mean `post`?"),
        ),
        (
            "priorities: [post, get]\nprioritize: [{priority: Post}]\n",
            (3, 25, "unknown priority `Post`", "did you mean `post`?"),
        ),
        (
            "priorities: [post, get]\nprioritize: [{priority: background}]\n",
            (3, 25, "unknown priority `background`", "`priorities` has `post`, `get`"),
        ),
        ("priorities: [a]\nprioritize: [{match: {u: x}}]\n", (3, 14, "needs `priority`", "`priority: NAME`")),
        (
            "priorities: [a]\nprioritize: [a]\n",
            (3, 14, "an entry of `prioritize` is a mapping", "`match: …`"),
        ),
        (
            "priorities: [a]\nprioritize: {}\n",
            (3, 13, "`prioritize` is a list, not a mapping", "priority: …}"),
        ),
        (
            "priorities: [a]\nprioritize: [{match: {u: {nto: x}}, priority: a}]\n",
            (3, 27, "unknown field `nto`", "did you mean `not`?"),
        ),
        (
            "priorities: [a]\nprioritize: [{priority: a, name: x}]\n",
            (3, 28, "unknown field `name` in an entry of `prioritize`", "match, priority"),
        ),
    ];
    for (text, expected) in table {
        check(&format!("domain: api\n{text}"), &[*expected]);
    }
    let many = |count: usize, of: &str| vec![of; count].join(", ");
    let names = (0..65).map(|number| format!("p{number}")).collect::<Vec<_>>().join(", ");
    check(
        &format!("domain: api\npriorities: [{names}]\n"),
        &[(2, 13, "`priorities` has 65 names", "at most 64")],
    );
    let text = format!(
        "domain: api\npriorities: [a]\nprioritize: [{}]\n",
        many(300, "{match: {u: x}, priority: a}")
    );
    let loaded = read_text("rules.yaml", &text);
    let [problem] = loaded.problems.as_slice() else { panic!("{:#?}", loaded.problems) };
    assert!(problem.message.contains("more than 256 entries"), "{problem}");
    // All of them are told, those that are known only at the end too.
    check(
        "domain: api\npriorities: [post]\nprioritize: [{priority: pots}, {priority: pst}]\nlimits: [{name: a}]\n",
        &[
            (3, 25, "unknown priority `pots`", "`post`"),
            (3, 43, "unknown priority `pst`", "`post`"),
            (4, 10, "a rule needs `key`", ""),
        ],
    );
}

#[test]
fn priorities_stand_once_in_a_domain() {
    let loaded = read_files(&[
        "domain: api\npriorities: [a, b]\n",
        "domain: web\npriorities: [c]\n",
        "domain: api\n\npriorities: [a]\nprioritize: [{priority: b}]\n",
    ]);
    let [problem] = loaded.problems.as_slice() else { panic!("{:#?}", loaded.problems) };
    assert!(problem.message.contains("a second `priorities` in the domain"), "{problem}");
    assert!(
        problem.to_string().contains("2.yaml:3:13") && problem.to_string().contains("0.yaml:2:13"),
        "{problem}"
    );
    assert_eq!(loaded.failed, [Box::from("api")]);
    // They may stand in the file that cannot be read: only what is wrong with that is told.
    let loaded = read_files(&["domain: api\npriorities: [a\n", "domain: api\nprioritize: [{priority: b}]\n"]);
    assert_eq!(loaded.problems.len(), 1, "{:#?}", loaded.problems);
}

#[test]
fn what_is_never_reached_is_told_so() {
    let exempt = "`e` exempts every request: no limit of this domain is reached";
    let by_e = "is never reached: all it matches is exempt by `e`";
    let table: &[(&str, &[(u32, &str)])] = &[
        ("exempt: [{name: e}]", &[(2, exempt)]),
        ("exempt: [{name: e, match: {}}]", &[(2, exempt)]),
        ("deny: [{name: e}]", &[(2, "`e` denies every request that is not exempt")]),
        ("exempt: [{name: e, match: {m: GET}}]", &[(4, by_e)]),
        ("exempt: [{name: e, match: {m: [PUT, GET]}}]", &[(4, by_e)]),
        ("exempt: [{name: e, match: {m: 'G*', u: {present: true}}}]", &[(4, by_e)]),
        ("exempt: [{name: e, match: {m: {not: POST}}}]", &[(4, by_e)]),
        ("deny: [{name: e, match: {u: '*'}}]", &[(4, "all it matches is denied by `e`")]),
        ("deny: [{name: e, match: {u: '*'}, mode: shadow}]", &[]),
        ("deny: [{name: e, mode: disabled}]", &[]),
        ("exempt: [{name: e, match: {m: POST}}]", &[]),
        ("exempt: [{name: e, match: {m: GET, u: x}}]", &[]),
        ("exempt: [{name: e, match: {m: GET, v: '*'}}]", &[]),
        ("exempt: [{name: e, match: {v: {present: false}}}]", &[]),
        (
            "{priorities: [a], prioritize: [{match: {v: x}, priority: a}, {priority: a}, {match: {v: y}, priority: a}]}",
            &[(2, "no request comes this far in `prioritize`")],
        ),
    ];
    for (lists, expected) in table {
        let lists = lists.strip_prefix('{').and_then(|lists| lists.strip_suffix('}')).unwrap_or(lists);
        let text = format!(
            "{{domain: api,\n{lists},\nlimits: [\n{{name: a, match: {{m: GET}}, key: [u], rate: 1/s}}]}}\n"
        );
        let loaded = read_text("rules.yaml", &text);
        assert!(!loaded.has_errors(), "{text}\n{:#?}", loaded.problems);
        assert_eq!(loaded.problems.len(), expected.len(), "{text}\n{:#?}", loaded.problems);
        for (problem, (line, message)) in loaded.problems.iter().zip(*expected) {
            assert_eq!(problem.position.line, *line, "{problem}");
            assert!(problem.message.contains(message), "{problem}");
        }
    }
    let domain = good("domain: api\nexempt: [{name: e}]\n");
    assert_eq!(matching(&domain, &[]), "-e");
}

#[test]
fn a_file_may_hold_lists_alone() {
    for text in ["exempt: [{name: e, match: {u: x}}]", "priorities: [a]", "deny: [{name: e, match: {u: x}}]"]
    {
        let loaded = read_text("rules.yaml", &format!("domain: api\n{text}\n"));
        assert_eq!(loaded.problems, [], "{text}");
    }
}
