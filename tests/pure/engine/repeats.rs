//! Retries with an idempotency key.

use tidegate::engine::{IdempotencyKey, Op};

use super::bench::{Ask, Bench, S};

const RULES: &str = "  - {name: a, key: [u], rate: 1/min, burst: 2}\n";

fn named(attributes: &'static str, cost: u32, session: &'static [u8], name: &'static [u8]) -> Ask<'static> {
    Ask { repeat: Some(IdempotencyKey { session, user: 7, name }), ..Ask::hit(attributes, cost) }
}

#[test]
fn retry_gets_same_grant_without_charge() {
    let mut bench = Bench::new(RULES);
    let first = named("u=1", 1, b"s", b"x");
    for micros in [0, S, 59 * S] {
        assert_eq!(bench.ask(micros, first), "allow a 1/2", "at {micros}");
    }
    assert_eq!(bench.peek(59 * S, "u=1", 1), "allow a 1/2");
    // Sixty seconds after the first grant, despite retries, it is a new request.
    assert_eq!(bench.ask(60 * S, first), "allow a 1/2");
    assert_eq!(bench.peek(60 * S, "u=1", 2), "limit a 1/2 after 60000000");
}

#[test]
fn separates_idempotency_keys_by_session_user_and_op() {
    let mut bench = Bench::new(RULES);
    let first = named("u=1", 1, b"s", b"x");
    assert_eq!(bench.ask(0, first), "allow a 1/2");
    assert_eq!(bench.ask(0, Ask { op: Op::Acquire, ..first }), "allow a 0/2");
    for other in [
        named("u=1", 1, b"s", b"y"),
        named("u=1", 1, b"t", b"x"),
        Ask { repeat: Some(IdempotencyKey { session: b"s", user: 8, name: b"x" }), ..first },
    ] {
        assert_eq!(bench.ask(0, other), "limit a 0/2 after 60000000");
    }
}

#[test]
fn same_key_for_another_request_conflicts() {
    let mut bench = Bench::new(RULES);
    assert_eq!(bench.ask(0, named("u=1", 1, b"s", b"x")), "allow a 1/2");
    assert_eq!(bench.ask(0, named("u=1", 2, b"s", b"x")), "conflict");
    assert_eq!(bench.ask(0, named("u=2", 1, b"s", b"x")), "conflict");
    assert_eq!(bench.peek(0, "u=1", 1), "allow a 1/2");
}

#[test]
fn remembers_no_refusal() {
    let mut bench = Bench::new(RULES);
    bench.check(&[(0, "u=1", 2, "allow a 0/2")]);
    let late = named("u=1", 1, b"s", b"x");
    assert_eq!(bench.ask(0, late), "limit a 0/2 after 60000000");
    assert_eq!(bench.ask(60 * S, late), "allow a 0/2");
    assert_eq!(bench.ask(61 * S, late), "allow a 0/2");
}

#[test]
fn retry_gets_remaining_wait() {
    let mut bench = Bench::new("  - {name: a, key: [u], algorithm: leaky_bucket, rate: 1/s, queue: 5}\n");
    bench.check(&[(0, "u=1", 3, "allow a 3/6")]);
    let waiting = named("u=1", 1, b"s", b"x");
    assert_eq!(bench.ask(0, waiting), "wait a 2/6 after 3000000");
    assert_eq!(bench.ask(S, waiting), "wait a 2/6 after 2000000");
    assert_eq!(bench.ask(10 * S, waiting), "wait a 2/6 after 0");
}

#[test]
fn remembered_grants_expire_and_are_bounded() {
    let mut bench = Bench::new(RULES);
    for number in 0..10_000u32 {
        let name = format!("n{number}");
        let attributes = format!("u={number}");
        let ask = Ask {
            repeat: Some(IdempotencyKey { session: b"s", user: 7, name: name.as_bytes() }),
            ..Ask::hit(&attributes, 1)
        };
        assert_eq!(bench.ask(u64::from(number), ask), "allow a 1/2");
    }
    let full = bench.engine.memory_bytes();
    for second in 1..400 {
        bench.engine.sweep(super::bench::at(second * S));
    }
    assert_eq!(bench.engine.keys(), 0);
    assert!(bench.engine.memory_bytes() * 20 < full, "{} of {full}", bench.engine.memory_bytes());
}
