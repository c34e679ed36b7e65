//! `shed`: what bad entries are told.

use super::bad::{Told, check};
use super::problems::warnings;

const HEAD: &str = "domain: api\npriorities: [critical, post, get, test]\nshed:\n";

/// The fields of one entry behind its pool: they start at line 4, column 17.
#[track_caller]
fn check_entry(fields: &str, expected: Told<'_>) {
    check(&format!("{HEAD}  - {{pool: web, {fields}}}\n"), &[expected]);
}

/// Columns count from the start of the fields.
#[track_caller]
fn check_all(table: &[(&str, Told<'_>)]) {
    for (fields, (line, column, message, mend)) in table {
        check_entry(fields, (*line, column + 16, message, mend));
    }
}

#[test]
fn an_entry_is_told_what_is_wrong_with_it() {
    check(
        &format!("{HEAD}- {{workers: {{}}}}\n"),
        &[(4, 3, "an entry of `shed` needs `pool`", "`pool: NAME`")],
    );
    check(
        &format!("{HEAD}- {{pool: a/b, workers: {{}}}}\n"),
        &[(4, 10, "the name of a pool may not hold '/'", "")],
    );
    check(&format!("{HEAD}- web\n"), &[(4, 3, "an entry of `shed` is a mapping, not a text", "")]);
    check("domain: api\nshed: {pool: web}\n", &[(2, 7, "`shed` is a list, not a mapping", "`- pool: …`")]);
    check_all(&[
        ("worker: {}", (4, 1, "unknown field `worker` in an entry of `shed`", "did you mean `workers`?")),
        ("slots: 0", (4, 8, "`slots` is 0", "at least 1")),
        ("slots: many", (4, 8, "`slots`: `many` is not a whole number", "digits")),
        ("callers: [user]", (4, 10, "`callers` is a mapping, not a list", "`by: …`")),
        ("callers: {by: user}", (4, 15, "`by` is a list, not a text", "`by: [user, ip]`")),
        ("callers: {by: []}", (4, 15, "`by` has an empty list", "[user, ip]")),
        ("callers: {by: [ip, ip]}", (4, 20, "`ip` is written twice in `by`", "keep one")),
        ("callers: {by: [a/b]}", (4, 16, "the name of an attribute may not hold '/'", "")),
        ("callers: {rotate: 500ms}", (4, 19, "`rotate: 500ms` is too short", "1s to 7day")),
        ("callers: {rotate: 10}", (4, 19, "`rotate: 10` has no unit", "10min")),
        ("queue_age: {others: 2min}", (4, 21, "`others: 2min` is too long", "1ms to 60s")),
        ("queue_age: {other: 2s}", (4, 13, "unknown field `other` in `queue_age`", "`others`?")),
        ("queue_age: {mode: off}", (4, 19, "unknown mode `off`", "enforce, shadow, disabled")),
        ("queue_age: ", (4, 10, "`queue_age` is a mapping, not nothing", "`others: …`")),
    ]);
}

#[test]
fn numbers_of_workers_that_cannot_be() {
    check_all(&[
        ("workers: {good: 80%}", (4, 17, "`good: 80%` is not below `bad: 80%`", "leave room in between")),
        ("workers: {good: 75%, bad: 70%}", (4, 27, "`good: 75%` is not below `bad: 70%`", "")),
        ("workers: {bad: 100.1%}", (4, 16, "`bad: 100.1%` is too much", "at most 100%")),
        ("workers: {good: 0%}", (4, 17, "`good` is 0%", "")),
        ("workers: {good: 0.7}", (4, 17, "`good` is a percentage, not `0.7`", "write 70%")),
        ("workers: {full: 29s}", (4, 17, "`full: 29s` is too short", "30s to 1day")),
        ("workers: {full: 2day}", (4, 17, "`full: 2day` is too long", "30s to 1day")),
        ("workers: {after: 999ms}", (4, 18, "`after: 999ms` is too short", "1s to 1day")),
        ("workers: {leak: 0.1}", (4, 17, "`leak` is a fraction, not `0.1`", "1/1800")),
        ("workers: {leak: 1/0}", (4, 17, "`leak: 1/0` divides by 0", "1/1800")),
        ("workers: {leak: 2/1}", (4, 17, "`leak: 2/1` is more than all of it", "1/1800")),
        ("workers: {leak: -1/5}", (4, 17, "`leak` is a fraction, not `-1/5`", "")),
        ("workers: {leak: [1, 2]}", (4, 17, "`leak` is a text, not a list", "")),
        (
            "workers: {stripe_exact: true, leak: 1/1800}",
            (4, 37, "`stripe_exact: true` and a `leak`: only one of them can hold", "leave one"),
        ),
        ("workers: {stripe_exact: true, leak: 0}", (4, 37, "only one of them can hold", "leave one")),
        ("workers: {shed_critical: 1}", (4, 26, "`shed_critical` is true or false, not `1`", "`true`")),
    ]);
}

#[test]
fn a_brake_and_a_reserve_know_the_priorities() {
    let order = "write one for each of `test`, `get`, `post`, in this order";
    check_all(&[
        ("brake: {bands: [70%, 80%]}", (4, 16, "`bands` has 2, and 3 priorities can be refused", order)),
        ("brake: {bands: []}", (4, 16, "`bands` has 0", order)),
        ("brake: {bands: [70%, 80%, 90%, 95%]}", (4, 16, "`bands` has 4", order)),
        ("brake: {bands: [90%, 80%, 70%]}", (4, 22, "`bands` go down", "the least important")),
        ("brake: {bands: [70%, 80%, 101%]}", (4, 27, "`bands: 101%` is too much", "at most 100%")),
        ("brake: {bands: 70%}", (4, 16, "`bands` is a list, not a text", "`bands: [70%, 80%, 90%]`")),
        ("brake: {band: [70%]}", (4, 9, "unknown field `band` in `brake`", "`bands`?")),
        ("fleet: {}", (4, 8, "`fleet` in `shed` needs `reserve`", "`reserve: 20%`")),
        ("fleet: {reserve: 100%}", (4, 18, "`reserve: 100%` is too much", "at most 99.9%")),
        ("fleet: {reserve: 0%}", (4, 18, "`reserve` is 0%", "leave it out")),
        (
            "fleet: {reserve: 20%, for: critcal}",
            (4, 28, "unknown priority `critcal` in `for`", "did you mean `critical`?"),
        ),
        (
            "fleet: {reserve: 20%, for: gold}",
            (4, 28, "unknown priority `gold`", "`priorities` has `critical`"),
        ),
        ("fleet: {reserve: 20%, for: test}", (4, 28, "the reserve is for every priority", "more important")),
    ]);
}

#[test]
fn without_priorities_only_the_age_in_the_queue_counts() {
    let text = |fields: &str| format!("domain: api\nshed: [{{pool: web, {fields}}}]\n");
    warnings("rules.yaml", &text("queue_age: {}"), &[]);
    let mend = "write `priorities: [MOST IMPORTANT, …, LEAST]` once in the domain";
    for (part, fields) in
        [("workers", "workers: {}"), ("brake", "brake: {}"), ("fleet", "fleet: {reserve: 20%}")]
    {
        let message = format!("`{part}` refuses by importance, and the domain has no `priorities`");
        check(&text(fields), &[(2, 20, &message, mend)]);
    }
    check(&text("brake: {}, workers: {}"), &[(2, 20, "`brake` refuses by importance", mend)]);
    let one = |fields: &str| format!("domain: api\npriorities: [all]\nshed: [{{pool: web, {fields}}}]\n");
    let behind = "write a less important priority behind it";
    check(
        &one("workers: {}"),
        &[(3, 20, "`workers` never refuses the most important, and there is nothing but `all`", behind)],
    );
    check(&one("brake: {}"), &[(3, 20, "`brake` never refuses the most important", behind)]);
    check(&one("fleet: {reserve: 20%}"), &[(3, 20, "the reserve is for every priority", "")]);
    warnings("rules.yaml", &one("workers: {shed_critical: true}"), &[]);
    // Whoever mends the priorities hears no second complaint before.
    check("domain: api\npriorities: []\nshed: [{pool: web, brake: {}}]\n", &[(2, 13, "an empty list", "")]);
}

#[test]
fn a_pool_is_shed_once() {
    check(
        &format!("{HEAD}- {{pool: web, queue_age: {{}}}}\n- {{pool: web, workers: {{}}}}\n"),
        &[(5, 10, "a second entry of `shed` for the pool `web`", "the first is at rules.yaml:4:10")],
    );
    let directory = tempfile::tempdir().unwrap();
    for domain in ["a", "b"] {
        let text = format!(
            "domain: {domain}\nshed: [{{pool: web, queue_age: {{}}}}, {{pool: {domain}, queue_age: {{}}}}]\n"
        );
        std::fs::write(directory.path().join(format!("{domain}.yaml")), text).unwrap();
    }
    let loaded = tidegate::rules::read(directory.path());
    let [told] = loaded.problems.as_slice() else { panic!("{:#?}", loaded.problems) };
    assert!(
        told.position.file.ends_with("b.yaml") && told.mend.as_ref().unwrap().contains("a.yaml:2:15"),
        "{told}"
    );
    assert_eq!((loaded.domains.len(), &*loaded.failed[0]), (1, "b"));
}

#[test]
fn signals_are_told_what_is_wrong_with_them() {
    check_all(&[
        ("signals: [cpu]", (4, 10, "`signals` is a mapping, not a list", "{NAME: {use: false}}")),
        ("signals: {cpu: yes}", (4, 16, "a signal is a mapping, not a text", "`listen: …`")),
        ("signals: {cpu: {}, cpu: {}}", (4, 20, "`cpu` is written twice in `signals`", "keep one")),
        ("signals: {a/b: {}}", (4, 11, "the name of a signal may not hold '/'", "")),
        ("signals: {accept_queue: {}}", (4, 25, "a signal needs `listen`", "`listen: \":8000\"`")),
        ("signals: {cpu: {listen: 80}}", (4, 25, "`listen` belongs to the signal `accept_queue`", "leave")),
        ("signals: {cpu: {used: true}}", (4, 17, "unknown field `used` in a signal", "`use`?")),
        ("signals: {cpu: {use: 1}}", (4, 22, "`use` is true or false", "")),
    ]);
    for (listen, mend) in [
        ("localhost:8000", "write \":8000\": the address plays no part"),
        ("'[::]:8000'", "write \":8000\""),
        ("unix:/run/app.sock", "write /run/app.sock"),
        ("unix:///run/app.sock", "write /run/app.sock"),
        ("run/app.sock", "the whole path"),
        ("0", "write a port"),
        ("65536", "write a port"),
        ("''", "write a port"),
    ] {
        check_entry(
            &format!("signals: {{accept_queue: {{listen: {listen}}}}}"),
            (4, 50, "`listen` is a port or a path, not", mend),
        );
    }
    let queue = "signals: {accept_queue: {listen: 80, map: ";
    for (map, column, message, mend) in [
        ("[[0, 0%]]", 0, "`map` has 1 point", "2 to 16"),
        ("[]", 0, "`map` has 0 points", "2 to 16"),
        ("5", 0, "`map` is a list, not a number", "[32, 100%]"),
        ("[[0, 0%], 5]", 10, "a point of `map` is a list, not a number", ""),
        ("[[0, 0%], [5]]", 10, "a point of `map` has 1 values, not 2", ""),
        ("[[0, 0%], [0, 5%]]", 11, "the readings of `map` do not rise", "each once"),
        ("[[0, 5%], [9, 4%]]", 14, "the utilizations of `map` fall", "at least as much"),
        ("[[0, 0%], [9, 101%]]", 14, "`map: 101%` is too much", "at most 100%"),
        ("[[0, 0%], [9%, 50%]]", 11, "`9%` is not a whole number", ""),
        ("[[0, 0], [9, 50%]]", 5, "`map` is a percentage, not `0`", "write 0%"),
    ] {
        check_entry(&format!("{queue}{map}}}}}"), (4, 59 + column, message, mend));
    }
    check_entry(
        "signals: {lag: {map: [[0, 0%], [50%, 100%]]}}",
        (4, 40, "`map` is a percentage, not `0`", "write 0%"),
    );
}

#[test]
fn what_was_perhaps_not_meant() {
    let check = |fields: &str, expected: &[(u32, &str, &str)]| {
        warnings("rules.yaml", &format!("{HEAD}- {{pool: web, {fields}}}\n"), expected);
    };
    check("slots: 5", &[(4, "nothing is refused in the pool `web`", "`workers: {}`")]);
    check("workers: {full: 59s}", &[(4, "in less than 60s may swing", "at least 60s")]);
    check("workers: {full: 60s}", &[]);
    check("workers: {bad: 100%}", &[(4, "no pool is busier than that", "80%")]);
    check("queue_age: {critical: 499ms}", &[(4, "refused sooner than the others", "longer")]);
    check("queue_age: {critical: 500ms}", &[]);
    let near = |name: &str| format!("signals: {{{name}: {{}}}}");
    for (name, meant) in [
        ("cpu_presure", "cpu_pressure"),
        ("CPU", "cpu"),
        ("cpu-quota", "cpu_quota"),
        ("accept_que", "accept_queue"),
    ] {
        check(&near(name), &[(4, "is what the application pushes", &format!("did you mean `{meant}`?"))]);
    }
    for name in ["gpu", "loop_lag", "pressure", "queue"] {
        check(&near(name), &[]);
    }
}
