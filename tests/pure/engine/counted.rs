//! Refused requests that count all the same.

use super::bench::{Bench, S};

#[test]
fn who_goes_on_asking_stays_refused() {
    let rules = "  - {name: a, key: [], algorithm: sliding_log, rate: 2/min, refused: counted}\n";
    let mut bench = Bench::new(rules);
    bench.check(&[
        (0, "", 1, "allow a 1/2"),
        (30 * S, "", 1, "allow a 0/2"),
        // Counted: two of the last minute must go before one passes, and the wait says so.
        (50 * S, "", 1, "limit a 0/2 after 40000000"),
        (60 * S, "", 1, "limit a 0/2 after 50000000"),
        (110 * S - 1, "", 1, "limit a 0/2 after 10000001"),
    ]);
}

#[test]
fn it_counts_also_when_another_rule_refuses() {
    let rules = "  - {name: a, key: [], algorithm: fixed_window, rate: 2/min, refused: counted}\n\
                 \x20 - {name: b, match: {x: y}, key: [], rate: 1/h}\n";
    let mut bench = Bench::new(rules);
    bench.check(&[
        (0, "x=y", 1, "allow b 0/1"),
        (0, "x=y", 1, "limit b 0/1 after 3600000000"),
        (0, "", 1, "limit a 0/2 after 60000000"),
        (60 * S, "", 3, "limit a 0/2 never"),
        (60 * S, "", 1, "limit a 0/2 after 60000000"),
    ]);
}

#[test]
fn the_wait_is_also_that_of_a_rule_which_has_counted_what_another_refused() {
    let rules = "  - {name: a, key: [], algorithm: fixed_window, rate: 2/min, refused: counted}\n\
                 \x20 - {name: b, key: [], rate: 1/s}\n";
    let mut bench = Bench::new(rules);
    bench.check(&[
        (0, "", 1, "allow b 0/1"),
        // Refused by b for a second; a has counted it, and is full until its window turns.
        (0, "", 1, "limit b 0/1 after 60000000"),
        (60 * S - 1, "", 1, "limit a 0/2 after 1"),
        (60 * S, "", 1, "allow b 0/1"),
    ]);
}

#[test]
fn passes_and_notes_what_is_over_a_quota_mode_node() {
    let file = "domain: api\ndescriptors:\n\
        - {key: plan, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 2}}\n\
        - {key: user, rate_limit: {unit: hour, requests_per_unit: 3}}\n";
    let mut bench = Bench::of(tidegate::rules::Mode::Enforce, file);
    bench.check(&[
        (0, "plan=free", 2, "allow"),
        (0, "plan=free", 1, "allow [quota plan]"),
        (0, "plan=other", 3, "allow [quota plan]"),
        (0, "user=u", 3, "allow user 0/3"),
        (0, "user=u", 1, "limit user 0/3 after 3600000000"),
    ]);
}
