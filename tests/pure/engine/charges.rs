//! What is charged after the fact, and what is given back.

use super::bench::{Bench, S};

#[test]
fn a_charge_goes_into_debt_as_far_as_it_may() {
    for (algorithm, window) in [("token_bucket", 10), ("fixed_window", 10), ("sliding_log", 10)] {
        let rules =
            format!("  - {{name: a, key: [u], algorithm: {algorithm}, rate: {window}/min, max_debt: 5}}\n");
        let mut bench = Bench::new(&rules);
        bench.check(&[(0, "u=1", 8, "allow a 2/10")]);
        assert!(bench.charge(0, "u=1", 4));
        bench.check(&[(0, "u=1", 0, "allow a 0/10")]);
        assert!(bench.charge(0, "u=1", 1_000_000));
        // Fifteen are used, ten may be: one passes once six have gone.
        let after = if algorithm == "token_bucket" { 36 } else { 60 };
        bench.check(&[(0, "u=1", 1, &format!("limit a 0/10 after {}", after * S))]);
        assert!(bench.charge(0, "u=1", -6));
        bench.check(&[(0, "u=1", 1, "allow a 0/10")]);
        assert!(bench.charge(0, "u=1", -1_000));
        bench.check(&[(0, "u=1", 10, "allow a 0/10")]);
    }
}

#[test]
fn a_charge_says_whether_a_rule_was_there() {
    let mut bench = Bench::new("  - {name: a, key: [u], rate: 10/min}\n");
    assert!(bench.charge(0, "u=1", 1));
    assert!(!bench.charge(0, "v=1", 1));
    assert_eq!(bench.engine.keys(), 1);
    assert!(bench.charge(0, "u=2", -1));
    assert!(bench.charge(0, "u=3", 0));
    assert_eq!(bench.engine.keys(), 1, "neither giving back to a full key nor charging nothing keeps one");
}

#[test]
fn a_leaky_bucket_is_not_charged() {
    let mut bench = Bench::new("  - {name: a, key: [], algorithm: leaky_bucket, rate: 1/s, queue: 3}\n");
    assert!(bench.charge(0, "", 3));
    bench.check(&[(0, "", 1, "allow a 3/4")]);
}

#[test]
fn giving_back_ends_a_soft_time() {
    let mut bench = Bench::new("  - {name: a, key: [], rate: 10/h, over: {soft: 50%, for: 1s}}\n");
    bench.check(&[(0, "", 11, "allow a 0/10 [over a]"), (2 * S, "", 1, "limit a 0/10 after 718000000")]);
    assert!(bench.charge(2 * S, "", -3));
    bench.check(&[(2 * S, "", 3, "allow a 0/10 [over a]")]);
}
