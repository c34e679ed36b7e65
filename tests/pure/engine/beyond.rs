//! What passes above the quota: soft for a time, elastic while there is room; and the share at which to warn.

use super::bench::{Bench, MS, S};

#[test]
fn a_soft_bucket_falls_below_empty_and_says_so() {
    let mut bench = Bench::new("  - {name: a, key: [u], rate: 1/s, burst: 10, over: {soft: 20%}}\n");
    bench.check(&[
        (0, "u=1", 10, "allow a 0/10"),
        (0, "u=1", 1, "allow a 0/10 [over a]"),
        (0, "u=1", 1, "allow a 0/10 [over a]"),
        (0, "u=1", 1, "limit a 0/10 after 1000000"),
        (S - 1, "u=1", 1, "limit a 0/10 after 1"),
        (S, "u=1", 1, "allow a 0/10 [over a]"),
        (S, "u=1", 13, "limit a 0/10 never"),
        (100 * S, "u=1", 12, "allow a 0/10 [over a]"),
    ]);
}

#[test]
fn soft_ends_and_comes_back_once_some_of_the_quota_is_left() {
    let rules =
        "  - {name: a, key: [u], algorithm: fixed_window, rate: 10/min, over: {soft: 50%, for: 10s}}\n";
    let mut bench = Bench::new(rules);
    bench.check(&[
        (0, "u=1", 10, "allow a 0/10"),
        (S, "u=1", 1, "allow a 0/10 [over a]"),
        (11 * S - 1, "u=1", 1, "allow a 0/10 [over a]"),
        // Ten seconds after the first one passed over it is spent, until the window turns.
        (11 * S, "u=1", 1, "limit a 0/10 after 49000000"),
        (60 * S, "u=1", 10, "allow a 0/10"),
        (61 * S, "u=1", 5, "allow a 0/10 [over a]"),
        (62 * S, "u=1", 1, "limit a 0/10 after 58000000"),
        // Nobody asked for an hour: what was spent is forgotten.
        (3600 * S, "u=1", 15, "allow a 0/10 [over a]"),
    ]);
}

#[test]
fn a_spent_soft_bucket_says_the_wait_until_soft_is_on_again() {
    // Below empty by 2 at most. Spent after 1 s; at 1 s one unit has come back.
    let mut bench =
        Bench::new("  - {name: a, key: [], rate: 1/s, burst: 4, over: {soft: 50%, for: 500ms}}\n");
    bench.check(&[
        (0, "", 6, "allow a 0/4 [over a]"),
        (500 * MS, "", 1, "limit a 0/4 after 2500000"),
        // At 3 s one is left: soft is on anew, and three pass.
        (3 * S - 1, "", 3, "limit a 0/4 after 1"),
        (3 * S, "", 3, "allow a 0/4 [over a]"),
    ]);
}

#[test]
fn elastic_passes_while_there_is_room_on_a_state_of_its_own() {
    let rules = "  - {name: a, key: [u], rate: 1/s, burst: 2, over: {elastic: 100%}}\n";
    let mut bench = Bench::new(rules);
    bench.check(&[(0, "u=1", 2, "allow a 0/2"), (0, "u=1", 1, "limit a 0/2 after 1000000")]);
    bench.engine.set_elastic_room(true);
    bench.check(&[
        (0, "u=1", 1, "allow a 0/2 [over a]"),
        (0, "u=1", 1, "allow a 0/2 [over a]"),
        (0, "u=1", 1, "limit a 0/2 after 1000000"),
        (0, "u=1", 3, "limit a 0/2 never"),
        // The rule was not charged: it refills as if nothing had passed over.
        (S, "u=1", 1, "allow a 0/2"),
    ]);
    bench.engine.set_elastic_room(false);
    bench.check(&[(S, "u=1", 1, "limit a 0/2 after 1000000")]);
}

#[test]
fn a_block_that_has_ended_takes_nothing_from_what_is_elastic() {
    let rules =
        "  - {name: a, key: [], algorithm: fixed_window, rate: 1/s, over: {elastic: 100%}, block: 1500ms}\n";
    let mut bench = Bench::new(rules);
    bench.check(&[(0, "", 1, "allow a 0/1"), (0, "", 1, "limit a 0/1 after 1500000")]);
    bench.engine.set_elastic_room(true);
    bench.check(&[
        (1_500 * MS - 1, "", 1, "limit a 1/1 after 1"),
        (1_500 * MS, "", 1, "allow a 0/1"),
        (1_500 * MS, "", 1, "allow a 0/1 [over a]"),
        (1_500 * MS, "", 1, "limit a 0/1 after 1500000"),
    ]);
}

#[test]
fn a_soft_log_that_counts_refusals_waits_no_longer_than_it_must() {
    let rules =
        "  - {name: a, key: [], algorithm: sliding_log, rate: 1/s, over: {soft: 100%}, refused: counted}\n";
    let mut bench = Bench::new(rules);
    bench.check(&[
        (0, "", 1, "allow a 0/1"),
        (1, "", 1, "allow a 0/1 [over a]"),
        // Of the three that count now, two may stay: those of 0 and 1 must go.
        (3, "", 1, "limit a 0/1 after 999998"),
    ]);
}

#[test]
fn near_is_past_the_share_and_not_at_it() {
    let mut bench =
        Bench::new("  - {name: a, key: [], rate: 10/day, algorithm: fixed_window, warn_at: 80%}\n");
    bench.check(&[
        (0, "", 8, "allow a 2/10"),
        (0, "", 1, "allow a 1/10 [near a]"),
        (0, "", 1, "allow a 0/10 [near a]"),
        (0, "", 1, "limit a 0/10 after 86400000000"),
    ]);
}
