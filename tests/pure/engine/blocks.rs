//! Once refused, refused for a time.

use super::bench::{Bench, S};

const LOGIN: &str = "  - {name: login, key: [account], rate: 2/min, burst: 2, block: 10min}\n";

#[test]
fn a_block_starts_with_a_refusal_and_is_not_extended() {
    let mut bench = Bench::new(LOGIN);
    bench.check(&[
        (0, "account=a", 2, "allow login 0/2"),
        // The refusal starts the block, so the wait is the block's.
        (S, "account=a", 1, "limit login 0/2 after 600000000"),
        (300 * S, "account=a", 1, "limit login 2/2 after 301000000"),
        (300 * S, "account=b", 1, "allow login 1/2"),
        (601 * S - 1, "account=a", 1, "limit login 2/2 after 1"),
        (601 * S, "account=a", 1, "allow login 1/2"),
    ]);
}

#[test]
fn what_can_never_pass_blocks_nobody_and_neither_does_a_look() {
    let mut bench = Bench::new(LOGIN);
    bench.check(&[(0, "account=a", 3, "limit login 2/2 never"), (0, "account=a", 2, "allow login 0/2")]);
    assert_eq!(bench.peek(0, "account=a", 1), "limit login 0/2 after 30000000");
    bench.check(&[(30 * S, "account=a", 1, "allow login 0/2")]);
    assert!(bench.charge(30 * S, "account=a", 5));
    bench.check(&[(120 * S, "account=a", 0, "allow login 1/2")]);
}

#[test]
fn a_block_is_neither_swept_nor_evicted() {
    let mut bench = Bench::new(LOGIN);
    bench.check(&[
        (0, "account=a", 2, "allow login 0/2"),
        (0, "account=a", 1, "limit login 0/2 after 600000000"),
    ]);
    // The bucket is full again after a minute and swept away; the block stays.
    for second in 1..400 {
        bench.engine.sweep(super::bench::at(second * S));
    }
    bench.check(&[(400 * S, "account=a", 1, "limit login 2/2 after 200000000")]);
}

#[test]
fn a_shadow_block_is_noted_and_refuses_nothing() {
    let mut bench = Bench::new("  - {name: a, key: [], rate: 1/s, block: 10s, mode: shadow}\n");
    bench.check(&[
        (0, "", 1, "allow"),
        (0, "", 1, "allow [shadow a]"),
        (5 * S, "", 1, "allow [shadow a]"),
        (10 * S, "", 1, "allow"),
    ]);
}
