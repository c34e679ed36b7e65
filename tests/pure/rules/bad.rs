//! What bad files are told: line, column, a part of the message, a part of the mend, for every error in them.

pub(super) use super::problems::Told;
use super::problems::errors;

#[track_caller]
pub(super) fn check(text: &str, expected: &[Told<'_>]) {
    for error in errors("rules.yaml", text, expected) {
        let (line, column) = (error.position.line, error.position.column);
        let written = text.lines().nth(line as usize - 1).unwrap_or_default();
        let excerpt = &error.line_text.as_ref().unwrap().text;
        let is_part = written.len() > 100 && written.contains(&**excerpt);
        assert!(**excerpt == *written || is_part, "{excerpt:?}\n{error}");
        let page = error.render(false);
        assert!(page.contains(&format!("rules.yaml:{line}:{column}")), "{page}");
    }
}

/// The fields of one rule, in flow style: they start at line 3, column 6.
#[track_caller]
pub(super) fn check_rule(fields: &str, expected: Told<'_>) {
    check(&format!("domain: api\nlimits:\n  - {{{fields}}}\n"), &[expected]);
}

#[test]
fn a_wrong_field_is_told_where_and_how() {
    let table: &[(&str, Told<'_>)] = &[
        (
            "name: a, key: [], rate: 1/s, brust: 2",
            (3, 35, "unknown field `brust` in a rule", "did you mean `burst`?"),
        ),
        (
            "name: a, key: [], rate: 1/s, Mode: shadow",
            (3, 35, "unknown field `Mode`", "did you mean `mode`?"),
        ),
        ("name: a, keys: [], key: [], rate: 1/s", (3, 15, "unknown field `keys`", "did you mean `key`?")),
        (
            "name: a, key: [], rate: 1/s, refund-on: x",
            (3, 35, "unknown field `refund-on`", "did you mean `refund_on`?"),
        ),
        (
            "name: a, key: [], rate: 1/s, colour: red",
            (3, 35, "unknown field `colour`", "known here: name, match, key"),
        ),
        ("name: a, key: [], rate: 1/s, '': red", (3, 35, "unknown field ``", "known here")),
        (
            "name: a, key: [], rate: 1/s, [x]: red",
            (3, 35, "the name of a field is a text, not a list", "quotes"),
        ),
        (
            "name: a, key: [], rate: 1/s, rate: 2/s",
            (3, 35, "`rate` is written twice in a rule", "the first is on line 3"),
        ),
        ("key: [], rate: 1/s", (3, 5, "a rule needs `name`", "write `name: …`")),
        ("name: a, rate: 1/s", (3, 5, "a rule needs `key`", "`key: []` for one counter")),
        ("name: a, key: []", (3, 5, "a rule needs `rate`", "write `rate: 100/s`")),
        ("name: , key: [], rate: 1/s", (3, 10, "`name` has no value", "quotes")),
        ("name: null, key: [], rate: 1/s", (3, 12, "`name` has no value", "\"null\"")),
        ("name: ~, key: [], rate: 1/s", (3, 12, "`name` has no value", "leave the field out")),
        ("name: [a], key: [], rate: 1/s", (3, 12, "`name` is a text, not a list", "one text")),
        ("name: '', key: [], rate: 1/s", (3, 12, "the name of a rule is empty", "1 to 64")),
        ("name: a/b, key: [], rate: 1/s", (3, 12, "may not hold '/': `a/b`", "leave out")),
        ("name: 'a:b', key: [], rate: 1/s", (3, 12, "may not hold ':'", "leave out")),
        ("name: \"a\\tb\", key: [], rate: 1/s", (3, 12, r"may not hold '\t': `a\tb`", "control")),
    ];
    for (fields, expected) in table {
        check_rule(fields, *expected);
    }
}

#[test]
fn a_wrong_value_is_told_where_and_how() {
    let table: &[(&str, Told<'_>)] = &[
        ("name: a, key: user, rate: 1/s", (3, 20, "`key` is a list, not a text", "write `key: [user]`")),
        ("name: a, key: null, rate: 1/s", (3, 20, "`key` has no value", "`key: []`")),
        ("name: a, key: [user, user], rate: 1/s", (3, 27, "`user` is written twice in `key`", "keep one")),
        ("name: a, key: [a/b], rate: 1/s", (3, 21, "the name of an attribute may not hold '/'", "leave out")),
        (
            "name: a, key: [null], rate: 1/s",
            (3, 21, "an attribute of `key` is a name, not nothing", "`user`"),
        ),
        ("name: a, key: [[a]], rate: 1/s", (3, 21, "a name, not a list", "`user`")),
        ("name: a, key: [{}], rate: 1/s", (3, 21, "an entry of `key` needs `attribute`", "NAME")),
        (
            "name: a, key: [], rate: 1/s, match: x",
            (3, 42, "`match` is a mapping, not a text", "{attribute: value}"),
        ),
        (
            "name: a, key: [], rate: 1/s, match: ",
            (3, 40, "`match` is a mapping, not nothing", "leave it out"),
        ),
        ("name: a, key: [], rate: 1/s, match: {u: null}", (3, 46, "`u` has no value", "quotes")),
        ("name: a, key: [], rate: 1/s, match: {u: [x, ~]}", (3, 50, "`u` has no value", "quotes")),
        ("name: a, key: [], rate: 1/s, match: {u: []}", (3, 46, "`u` has an empty list", "at least one")),
        ("name: a, key: [], rate: 1/s, match: {u: [[x]]}", (3, 47, "`u` is a text, not a list", "one text")),
        ("name: a, key: [], rate: 1/s, match: {u: {}}", (3, 46, "`u` has no value", "a text, a list")),
        (
            "name: a, key: [], rate: 1/s, match: {u: x, u: y}",
            (3, 49, "`u` is written twice in `match`", "one list"),
        ),
        ("name: a, key: [], rate: 1/s, match: {'u:v': x}", (3, 43, "may not hold ':'", "leave out")),
        (
            "name: a, key: [], rate: 1/s, mode: off",
            (3, 41, "unknown mode `off`", "enforce, shadow, disabled"),
        ),
        (
            "name: a, key: [], rate: 1/s, mode: shadwo",
            (3, 41, "unknown mode `shadwo`", "did you mean `shadow`?"),
        ),
        (
            "name: a, key: [], rate: 1/s, help: ''",
            (3, 41, "`help` is one line of text", "leave the field out"),
        ),
        ("name: a, key: [], rate: 1/s, help: \"a\\nb\"", (3, 41, r"not `a\nb`", "a link")),
        (
            "name: a, key: [], rate: 1/s, advertise: yes",
            (3, 46, "`advertise` is true or false, not `yes`", "`true`"),
        ),
        ("name: a, key: [], rate: 1/s, scope: hots", (3, 42, "unknown scope `hots`", "did you mean `host`?")),
        ("name: a, key: [x], rate: 1/s, guard: dark", (3, 43, "unknown guard `dark`", "tell, shadow")),
    ];
    for (fields, expected) in table {
        check_rule(fields, *expected);
    }
}

#[test]
fn what_is_not_built_yet_is_no_unknown_field() {
    let table: &[(&str, Told<'_>)] = &[
        (
            "algorithm: tokenbucket",
            (3, 46, "unknown algorithm `tokenbucket`", "did you mean `token_bucket`?"),
        ),
        ("scope: fleet, fleet: {mode: borrows}", (3, 63, "unknown mode `borrows`", "did you mean `borrow`?")),
        ("match: {ip: {cdir: 10.0.0.0/8}}", (3, 48, "unknown field `cdir`", "did you mean `cidr`?")),
    ];
    for (field, expected) in table {
        check_rule(&format!("name: a, key: [], rate: 1/s, {field}"), *expected);
    }
}

#[test]
fn a_wrong_number_is_told_the_right_one() {
    let table: &[(&str, Told<'_>)] = &[
        ("burst: 0", (3, 43, "`burst` is 0", "at least 1")),
        ("burst: -5", (3, 43, "`-5` is negative", "at least 1")),
        ("burst: 1.5", (3, 43, "`1.5` is not a whole number", "digits")),
        ("burst: 1e3", (3, 43, "`1e3` is not a whole number", "write 1000")),
        ("burst: 1_000", (3, 43, "`1_000` is not a whole number", "write 1000")),
        ("burst: 5k", (3, 43, "`5k` is not a whole number", "write 5000")),
        ("burst: 0x10", (3, 43, "`0x10` is not a whole number", "write 16")),
        ("burst: 010", (3, 43, "`010` is not a whole number", "write 10")),
        ("burst: '5'", (3, 43, "a number, not the text `5`", "without quotes")),
        ("burst: 5/s", (3, 43, "`5/s` is not a whole number", "digits")),
        ("burst: true", (3, 43, "`true` is not a whole number", "digits")),
        ("burst: [5]", (3, 43, "`burst` is a number, not a list", "whole number")),
        ("burst: ", (3, 41, "`burst` is a number, not nothing", "whole number")),
        ("burst: 4294967296", (3, 43, "`4294967296` is too large", "at most 4294967295")),
        ("burst: .inf", (3, 43, "`.inf` is not a whole number", "digits")),
    ];
    for (field, expected) in table {
        check_rule(&format!("name: a, key: [], rate: 10/s, {field}"), *expected);
    }
    let table: &[(&str, Told<'_>)] = &[
        ("rate: 100", (3, 30, "the rate `100` has no unit", "write 100/s, 100/min")),
        ("rate: 100/sec", (3, 30, "unknown unit `sec` in the rate `100/sec`", "write 100/s")),
        ("rate: 0/s", (3, 30, "a rate of 0 refuses everything", "mode: disabled")),
        ("rate: -1/s", (3, 30, "`-1` is negative in the rate `-1/s`", "at least 1")),
        ("rate: 0.5/s", (3, 30, "`0.5` is not a whole number", "write 1/2s")),
        ("rate: null", (3, 30, "`rate` has no value", "write one")),
        ("rate: [1/s]", (3, 30, "`rate` is a text, not a list", "one text")),
        ("rate: Unlimited", (3, 30, "not `Unlimited`", "write unlimited")),
        ("rate: 1999999/s", (3, 30, "cannot be kept to within one part in 100000", "1000000/s")),
        ("rate: 1/367day", (3, 30, "at most 366 days", "366 days")),
    ];
    for (field, expected) in table {
        check_rule(&format!("name: a, key: [], {field}"), *expected);
    }
    check_rule(
        "name: a, key: [], rate: 1/day, burst: 4000000",
        (3, 44, "too long to fill", "smaller `burst`"),
    );
}

#[test]
fn one_error_hides_no_other() {
    check(
        "domain: api\nlimits:\n\
         - {name: a, rate: 1/sec, key: x, brust: 1}\n\
         - just a text\n\
         - {name: b, key: [], rate: 1/s}\n\
         - {name: a, key: [], rate: 1/s}\n\
         - {name: c, key: [], rate: 5, mode: on}\n\
         -\n\
         exmpt: []\n",
        &[
            (3, 19, "unknown unit `sec`", "write 1/s"),
            (3, 31, "`key` is a list", "write `key: [x]`"),
            (3, 34, "unknown field `brust`", "burst"),
            (4, 3, "a rule is a mapping, not a text", "`name: …`"),
            (6, 10, "a second rule named `a` in the domain `api`", "the first is at rules.yaml:3:10"),
            (7, 28, "the rate `5` has no unit", "5/s"),
            (7, 37, "unknown mode `on`", "enforce"),
            (8, 2, "a rule is a mapping, not nothing", "name"),
            (9, 1, "unknown field `exmpt` in a rules file", "did you mean `exempt`?"),
        ],
    );
}
