//! Work that waits for its place.

use super::bench::{Ask, Bench, MS, S};

#[test]
fn up_to_the_queue_waits_and_the_rest_is_refused() {
    let mut bench = Bench::new("  - {name: a, key: [], algorithm: leaky_bucket, rate: 5/s, queue: 2}\n");
    bench.check(&[
        (0, "", 1, "allow a 2/3"),
        (0, "", 1, "wait a 1/3 after 200000"),
        (0, "", 1, "wait a 0/3 after 400000"),
        (0, "", 1, "limit a 0/3 after 200000"),
        (200 * MS - 1, "", 1, "limit a 0/3 after 1"),
        (200 * MS, "", 1, "wait a 0/3 after 400000"),
    ]);
}

#[test]
fn impatience_alone_is_told_as_the_wait_until_it_would_be_granted() {
    let mut bench = Bench::new("  - {name: a, key: [], algorithm: leaky_bucket, rate: 1/s, queue: 9}\n");
    bench.check(&[(0, "", 3, "allow a 7/10")]);
    let mut ask = |micros, wait_max| bench.ask(micros, Ask { wait_max: Some(wait_max), ..Ask::hit("", 1) });
    assert_eq!(ask(0, 0), "limit a 7/10 after 3000000");
    assert_eq!(ask(0, 2 * S), "limit a 7/10 after 1000000");
    assert_eq!(ask(S - 1, 2 * S), "limit a 7/10 after 1");
    assert_eq!(ask(S, 2 * S), "wait a 7/10 after 2000000");
}

#[test]
fn work_is_placed_at_its_start_in_every_leaky_rule_and_charged_to_the_others_now() {
    let rules = "  - {name: slow, match: {x: y}, key: [], algorithm: leaky_bucket, rate: 1/s, queue: 9}\n\
                 \x20 - {name: fast, key: [], algorithm: leaky_bucket, rate: 10/s, queue: 99}\n\
                 \x20 - {name: bucket, key: [], rate: 1/h, burst: 3}\n";
    let mut bench = Bench::new(rules);
    bench.check(&[
        (0, "x=y", 1, "allow bucket 2/3"),
        (0, "x=y", 1, "wait bucket 1/3 after 1000000"),
        // Behind it in the fast one, which alone would have been free after 100 ms.
        (0, "", 1, "wait bucket 0/3 after 1100000"),
    ]);
}

#[test]
fn a_shadow_wait_delays_nothing_and_is_not_noted() {
    let rules = "  - {name: a, key: [], algorithm: leaky_bucket, rate: 1/s, queue: 1, mode: shadow}\n";
    let mut bench = Bench::new(rules);
    bench.check(&[(0, "", 1, "allow"), (0, "", 1, "allow"), (0, "", 1, "allow [shadow a]")]);
}
