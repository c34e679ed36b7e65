//! A candidate stands in for its rule and is measured; it decides nothing.

use super::bench::{Bench, S};

#[test]
fn a_candidate_is_charged_for_what_it_passes() {
    let mut bench = Bench::new("  - {name: a, key: [u], rate: 4/min, candidate: {rate: 2/min}}\n");
    bench.check(&[
        (0, "u=1", 1, "allow a 3/4"),
        (0, "u=1", 1, "allow a 2/4"),
        (0, "u=1", 1, "allow a 1/4 [candidate a]"),
        (0, "u=1", 1, "allow a 0/4 [candidate a]"),
        (0, "u=1", 1, "limit a 0/4 after 15000000 [candidate a]"),
        // One has come back to the rule, none to the candidate.
        (15 * S, "u=1", 1, "allow a 0/4 [candidate a]"),
        (30 * S, "u=1", 1, "allow a 0/4"),
    ]);
}

#[test]
fn it_is_charged_also_where_its_rule_refuses_but_not_where_another_does() {
    let rules = "  - {name: a, key: [], rate: 1/min, candidate: {rate: 3/min}}\n\
                 \x20 - {name: b, match: {x: y}, key: [], rate: 1/h}\n";
    let mut bench = Bench::new(rules);
    bench.check(&[
        (0, "", 1, "allow a 0/1"),
        // Refused by the rule, passed and charged by the candidate: two of three are used.
        (0, "", 1, "limit a 0/1 after 60000000"),
    ]);
    bench.check(&[
        (60 * S, "x=y", 1, "allow a 0/1"),
        // Refused by b: the candidate is not charged.
        (120 * S, "x=y", 1, "limit b 0/1 after 3540000000"),
        (120 * S, "x=y", 1, "limit b 0/1 after 3540000000"),
        (120 * S, "x=y", 1, "limit b 0/1 after 3540000000"),
        (120 * S, "x=y", 1, "limit b 0/1 after 3540000000"),
    ]);
}

#[test]
fn a_candidate_may_be_of_another_algorithm() {
    let rules = "  - {name: a, key: [], rate: 2/min, candidate: {algorithm: sliding_log}}\n";
    let mut bench = Bench::new(rules);
    bench.check(&[
        (0, "", 2, "allow a 0/2"),
        (30 * S, "", 1, "allow a 0/2 [candidate a]"),
        (60 * S, "", 1, "allow a 0/2"),
    ]);
}
