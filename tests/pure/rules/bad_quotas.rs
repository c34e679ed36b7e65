//! What is told to whom writes numbers that cannot be, or fields that another algorithm has.

use super::bad::{Told, check_rule};

#[track_caller]
fn check(table: &[(&str, Told<'_>)]) {
    for (field, (line, column, message, mend)) in table {
        // Columns count from the start of the field.
        check_rule(&format!("name: a, key: [u], {field}"), (*line, column + 24, message, mend));
    }
}

#[test]
fn a_field_of_another_algorithm_says_of_which() {
    check(&[
        (
            "rate: 1/s, queue: 3",
            (
                3,
                12,
                "`queue` is a field of `leaky_bucket`, and this is a `token_bucket`",
                "write `algorithm: leaky_bucket`",
            ),
        ),
        ("rate: 1/s, buckets: 3", (3, 12, "`buckets` is a field of `sliding_window`", "leave `buckets` out")),
        (
            "rate: 1/s, timezone: UTC",
            (3, 12, "`timezone` is a field of `fixed_window`", "`algorithm: fixed_window`"),
        ),
        ("rate: 1/s, align: utc", (3, 12, "`align` is a field of `fixed_window`", "")),
        (
            "rate: 1/s, refused: counted",
            (
                3,
                12,
                "`refused` is a field of `fixed_window`, `sliding_log` and `sliding_window`",
                "another `algorithm`",
            ),
        ),
        (
            "rate: 1/s, algorithm: fixed_window, burst: 3",
            (
                3,
                37,
                "`burst` is a field of `token_bucket`, and this is a `fixed_window`",
                "leave `burst` out",
            ),
        ),
        ("rate: 1/s, algorithm: sliding_log, burst: 3", (3, 36, "`burst` is a field of `token_bucket`", "")),
        (
            "rate: 1/s, algorithm: sliding_log, buckets: 3",
            (3, 36, "`buckets` is a field of `sliding_window`", ""),
        ),
        (
            "rate: 1/s, algorithm: leaky_bucket, over: refuse",
            (3, 37, "`over` is a field of", "leave `over` out"),
        ),
        ("rate: 1/s, algorithm: leaky_bucket, max_debt: 1", (3, 37, "`max_debt` is a field of", "")),
        (
            "rate: 1/s, candidate: {queue: 1}",
            (3, 24, "`queue` is a field of `leaky_bucket`, and this is a `token_bucket`", ""),
        ),
        (
            "rate: 1/s, burst: 2, candidate: {algorithm: sliding_log, burst: 1}",
            (3, 58, "`burst` is a field of `token_bucket`, and this is a `sliding_log`", ""),
        ),
        (
            "rate: 1/s, algorithm: sliding_log, overrides: [{match: {p: a}, rate: 1/s, burst: 2}]",
            (3, 82, "`burst` is a field of `token_bucket`", "leave `burst` out"),
        ),
    ]);
}

#[test]
fn numbers_that_cannot_be_are_told_what_could() {
    check(&[
        ("rate: 1/s, algorithm: leaky_bucket, queue: -1", (3, 44, "`-1` is negative", "")),
        (
            "rate: 1/s, algorithm: leaky_bucket, queue: 4294967295",
            (3, 44, "a queue this long takes too long to drain", "smaller `queue`"),
        ),
        ("rate: 1/s, algorithm: sliding_window, buckets: 0", (3, 48, "`buckets` is 0", "at least 1")),
        ("rate: 1/s, algorithm: sliding_window, buckets: 61", (3, 48, "1 to 60 buckets", "from 1 to 60")),
        ("rate: 1/s, algorithm: sliding_window, buckets: 999", (3, 48, "1 to 60 buckets", "from 1 to 60")),
        (
            "algorithm: sliding_log, rate: 10001/s",
            (3, 31, "a sliding log counts to at most 10000", "sliding_window"),
        ),
        ("algorithm: sliding_log, rate: 0/s", (3, 31, "a rate of 0 refuses everything", "mode: disabled")),
        ("algorithm: leaky_bucket, rate: 1999999/s", (3, 32, "one part in 100000", "2000000/s")),
        ("algorithm: fixed_window, rate: 5/36h", (3, 32, "whole number of days", "`align: first`")),
        ("rate: 1/367day, algorithm: sliding_log", (3, 7, "at most 366 days", "366 days")),
        ("rate: 1/s, max_debt: -1", (3, 22, "`-1` is negative", "")),
        ("rate: 1/s, max_debt: lots", (3, 22, "`lots` is not a whole number", "digits")),
        ("rate: unlimited, burst: 5", (3, 25, "`burst` where the rate is unlimited", "leave it out")),
        (
            "rate: 1/s, algorithm: fixed_window, timezone: Europe/Berln",
            (3, 47, "unknown time zone `Europe/Berln`", "did you mean `Europe/Berlin`?"),
        ),
        (
            "rate: 1/s, algorithm: fixed_window, timezone: berlin",
            (3, 47, "unknown time zone `berlin`", "did you mean `Europe/Berlin`?"),
        ),
        (
            "rate: 1/s, algorithm: fixed_window, timezone: '+02:00'",
            (3, 47, "unknown time zone `+02:00`", "IANA"),
        ),
        ("rate: 1/s, algorithm: fixed_window, timezone: ''", (3, 47, "unknown time zone ``", "IANA")),
        (
            "rate: 1/s, algorithm: fixed_window, align: frist",
            (3, 44, "unknown align `frist`", "did you mean `first`?"),
        ),
        (
            "rate: 1/s, algorithm: fixed_window, align: first, timezone: UTC",
            (3, 61, "open with the first request of a key have no `timezone`", "leave"),
        ),
        (
            "rate: 1/s, algorithm: fixed_window, align: utc, timezone: Europe/Berlin",
            (3, 59, "only one of them can hold", "leave one"),
        ),
    ]);
}

#[test]
fn what_is_too_much_is_told_how_to_be_written() {
    check(&[
        ("rate: 1/s, over: soft", (3, 18, "unknown over `soft`", "`{soft: 10%, for: 60s}`")),
        ("rate: 1/s, over: [soft]", (3, 18, "`over` is a text, not a list", "")),
        ("rate: 1/s, over: {}", (3, 18, "`over` says neither `soft` nor `elastic`", "`over: {soft: 10%}`")),
        ("rate: 1/s, over: {for: 1s}", (3, 18, "neither `soft` nor `elastic`", "")),
        ("rate: 1/s, over: {soft: 10}", (3, 25, "`soft` is a percentage, not `10`", "write 10%")),
        ("rate: 1/s, over: {soft: 0%}", (3, 25, "`soft` is 0%", "leave it out")),
        ("rate: 1/s, over: {soft: 1001%}", (3, 25, "`soft: 1001%` is too much", "at most 1000%")),
        ("rate: 1/s, over: {sotf: 10%}", (3, 19, "unknown field `sotf` in `over`", "did you mean `soft`?")),
        ("rate: 1/s, over: {soft: 10%, elastic: 10%}", (3, 39, "only one of them can hold", "keep one")),
        ("rate: 1/s, over: {elastic: 10%, for: 1s}", (3, 38, "`for` belongs to `soft`", "leave `for` out")),
        ("rate: 1/s, over: {soft: 10%, for: 60}", (3, 35, "`for: 60` has no unit", "write 60s")),
        (
            "rate: 9000/s, algorithm: sliding_log, over: {soft: 100%}",
            (3, 7, "a sliding log counts to at most 10000", "smaller `soft`"),
        ),
        (
            "rate: 1/s, algorithm: sliding_log, refused: count",
            (3, 45, "unknown refused `count`", "`counted`"),
        ),
        ("rate: 1/s, block: 900", (3, 19, "`block: 900` has no unit", "write 900s")),
        ("rate: 1/s, block: 15m", (3, 19, "unknown unit `m`", "write 15min")),
        ("rate: 1/s, block: [1s]", (3, 19, "`block` is a text, not a list", "")),
        ("rate: 1/s, warn_at: 80", (3, 21, "`warn_at` is a percentage, not `80`", "write 80%")),
        ("rate: 1/s, warn_at: 101%", (3, 21, "`warn_at: 101%` is too much", "at most 100%")),
        ("rate: 1/s, warn_at: []", (3, 21, "`warn_at` is a percentage, not a list", "80%")),
        ("rate: 1/s, unit: a/b", (3, 18, "the name of a unit may not hold '/'", "")),
        ("rate: 1/s, refund_on: error", (3, 23, "unknown refund_on `error`", "ok")),
        ("rate: 1/s, show_keys: u", (3, 23, "`show_keys` is a list", "attributes of `key`")),
        ("rate: 1/s, show_keys: [v]", (3, 24, "`v` is not in `key`", "attributes of `key`")),
        ("rate: 1/s, show_keys: [u, u]", (3, 27, "`u` is written twice in `show_keys`", "keep one")),
    ]);
}

#[test]
fn overrides_and_candidates_are_told_what_they_need() {
    check(&[
        ("rate: 1/s, overrides: {p: a}", (3, 23, "`overrides` is a list, not a mapping", "`- {match:")),
        ("rate: 1/s, overrides: [x]", (3, 24, "an override is a mapping, not a text", "")),
        ("rate: 1/s, overrides: [{rate: 1/s}]", (3, 24, "an override needs `match`", "match: {plan: gold}")),
        ("rate: 1/s, overrides: [{match: {p: a}}]", (3, 24, "an override needs `rate`", "unlimited")),
        ("rate: 1/s, overrides: [{match: {p: a}, rate: 1/sec}]", (3, 46, "unknown unit `sec`", "write 1/s")),
        (
            "rate: 1/s, overrides: [{match: {p: a}, rate: 1/s, mode: shadow}]",
            (3, 51, "unknown field `mode` in an override", "known here: match, rate, burst"),
        ),
        (
            "rate: 1/s, overrides: [{match: {p: a}, rate: 1/day, burst: 4000000}]",
            (3, 60, "too long to fill", "smaller `burst`"),
        ),
        (
            "rate: 1/s, overrides: [{match: {p: a}, rate: unlimited, burst: 4}]",
            (3, 64, "`burst` where the rate is unlimited", ""),
        ),
        ("rate: 1/s, overrides: [{match: {p: a}, rate: 1999999/s}]", (3, 46, "one part in 100000", "")),
        (
            "rate: 1/s, algorithm: sliding_log, overrides: [{match: {p: a}, rate: 10001/s}]",
            (3, 70, "a sliding log counts to at most 10000", ""),
        ),
        // What the candidate cannot keep is wrong as well.
        (
            "rate: 1/s, candidate: {algorithm: sliding_log}, overrides: [{match: {p: a}, rate: 10001/s}]",
            (3, 83, "a sliding log counts", ""),
        ),
        ("rate: 10001/s, candidate: {algorithm: sliding_log}", (3, 27, "a sliding log counts", "")),
        ("rate: 1/s, candidate: 5/s", (3, 23, "a candidate is a mapping, not a text", "")),
        ("rate: 1/s, candidate: {}", (3, 23, "a candidate that says nothing", "`{rate: 10/h}`")),
        (
            "rate: 1/s, candidate: {mode: shadow}",
            (3, 24, "unknown field `mode` in a candidate", "known here: algorithm, rate"),
        ),
        ("rate: 1/s, candidate: {rate: 1}", (3, 30, "the rate `1` has no unit", "")),
        (
            "rate: 1/s, overrides_file: x.csv",
            (3, 28, "`x.csv` cannot be found: these rules lie in no directory", "file"),
        ),
        (
            "rate: 1/s, overrides_file: ../x.csv",
            (3, 28, "the name of a file beside this one, not `../x.csv`", "name alone"),
        ),
        ("rate: 1/s, overrides_file: /etc/x.csv", (3, 28, "the name of a file beside this one", "")),
        ("rate: 1/s, overrides_file: a/x.csv", (3, 28, "the name of a file beside this one", "")),
        ("rate: 1/s, overrides_file: ..", (3, 28, "the name of a file beside this one", "")),
        ("rate: 1/s, overrides_file: ''", (3, 28, "the name of a file beside this one", "")),
        ("rate: 1/s, overrides_file: x.txt", (3, 28, "ends in `.csv`", "partners.csv")),
        ("rate: 1/s, overrides_file: .x.csv", (3, 28, "does not start with a dot", "")),
    ]);
    check_rule(
        "name: a, key: [], rate: 1/s, overrides_file: x.csv",
        (3, 51, "this rule has one counter for all", "`key: [user]`"),
    );
    let many = vec!["{match: {p: a}, rate: 1/s}"; 257].join(", ");
    let text = format!("domain: api\nlimits:\n- {{name: a, key: [], rate: 1/s, overrides: [{many}]}}\n");
    let loaded = tidegate::rules::read_text("rules.yaml", &text);
    assert!(loaded.problems[0].message.contains("`overrides` has 257 entries"), "{:?}", loaded.problems);
}
