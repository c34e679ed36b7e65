//! A negative charge names the grant or charge of the same user that it refunds, once, up to that cost.

use tidegate::engine::{
    Amount, ChargeError, Cost, IdempotencyKey, Op, RefundBy, RefundReference, WorkOutcome,
};
use tidegate::rules::Mode;

use super::bench::{Ask, Bench, S, at};

const RULES: &str = "  - {name: a, key: [u], rate: 10/h}\n";

fn by(user: u32, name: &'static str) -> Option<IdempotencyKey<'static>> {
    Some(IdempotencyKey { session: b"s", user, name: name.as_bytes() })
}

fn of(user: u32, name: &'static str) -> Option<RefundBy<'static>> {
    Some(RefundBy { user, reference: RefundReference::IdempotencyKey(name.as_bytes()) })
}

fn of_lease(user: u32, lease: u64) -> Option<RefundBy<'static>> {
    Some(RefundBy { user, reference: RefundReference::Lease(lease) })
}

fn left(bench: &mut Bench, micros: u64, attributes: &str) -> String {
    bench.peek(micros, attributes, 0)
}

#[test]
fn rejects_bare_negative_amount_unless_trusted() {
    let mut bench = Bench::new(RULES);
    bench.check(&[(0, "u=1", 10, "allow a 0/10")]);
    for amount in [Amount::Requests(-1), Amount::Units(&vec![("requests", -1), ("tokens", 3)])] {
        assert_eq!(bench.charge_as(0, "u=1", amount, None, None), Err(ChargeError::NoRefundReference));
    }
    assert_eq!(left(&mut bench, 0, "u=1"), "allow a 0/10");
    assert!(bench.charge(0, "u=1", -1));
    assert_eq!(left(&mut bench, 0, "u=1"), "allow a 1/10");
}

#[test]
fn refunds_grant_and_charge_once_by_idempotency_key() {
    let mut bench = Bench::new(RULES);
    assert_eq!(bench.ask(0, Ask { repeat: by(7, "g"), ..Ask::hit("u=1", 6) }), "allow a 4/10");
    assert_eq!(bench.charge_as(0, "u=1", Amount::Requests(4), by(7, "c"), None), Ok(true));
    assert_eq!(left(&mut bench, 0, "u=1"), "allow a 0/10");
    let refund =
        |bench: &mut Bench, amount, of| bench.charge_as(S, "u=1", Amount::Requests(amount), None, of);
    for (amount, named, why) in [
        (-7, of(7, "g"), "more than it cost"),
        (-1, of(8, "g"), "another user's"),
        (-1, of(7, "x"), "unknown"),
        (-5, of(7, "c"), "more than was charged"),
        (-1, of_lease(7, 5), "no such lease"),
    ] {
        assert_eq!(refund(&mut bench, amount, named), Ok(false), "{why}");
    }
    assert_eq!(bench.charge_as(S, "u=2", Amount::Requests(-1), None, of(7, "g")), Ok(false), "another key's");
    assert_eq!(left(&mut bench, S, "u=1"), "allow a 0/10");
    assert_eq!(refund(&mut bench, -3, of(7, "g")), Ok(true));
    assert_eq!(left(&mut bench, S, "u=1"), "allow a 3/10");
    assert_eq!(refund(&mut bench, -3, of(7, "g")), Ok(false), "once");
    assert_eq!(refund(&mut bench, -4, of(7, "c")), Ok(true));
    assert_eq!(left(&mut bench, S, "u=1"), "allow a 7/10");
}

#[test]
fn retry_of_refunded_grant_or_charge_is_charged() {
    let mut bench = Bench::new(RULES);
    let refund =
        |bench: &mut Bench, own, name| bench.charge_as(0, "u=1", Amount::Requests(-1), own, of(7, name));
    // Some of the names of refunds share a lock with that of the grant.
    for number in 0..64 {
        let own = by(7, format!("r{number}").leak());
        assert_eq!(bench.ask(0, Ask { repeat: by(7, "g"), ..Ask::hit("u=1", 6) }), "allow a 4/10");
        assert_eq!(bench.ask(0, Ask { repeat: by(7, "g"), ..Ask::hit("u=1", 6) }), "allow a 4/10");
        assert_eq!(left(&mut bench, 0, "u=1"), "allow a 4/10", "a retry before the refund is not charged");
        assert_eq!(bench.charge_as(0, "u=1", Amount::Requests(-6), own, of(7, "g")), Ok(true));
        assert_eq!(left(&mut bench, 0, "u=1"), "allow a 10/10");
    }
    for _ in 0..2 {
        assert_eq!(bench.charge_as(0, "u=1", Amount::Requests(1), by(7, "c"), None), Ok(true));
        assert_eq!(left(&mut bench, 0, "u=1"), "allow a 9/10");
        assert_eq!(refund(&mut bench, None, "c"), Ok(true));
    }
}

#[test]
fn retried_refund_applies_once_with_same_reply() {
    let mut bench = Bench::new(RULES);
    assert_eq!(bench.ask(0, Ask { repeat: by(7, "g"), ..Ask::hit("u=1", 6) }), "allow a 4/10");
    for _ in 0..3 {
        let done = bench.charge_as(0, "u=1", Amount::Requests(-2), by(7, "r"), of(7, "g"));
        assert_eq!(done, Ok(true));
    }
    assert_eq!(left(&mut bench, 0, "u=1"), "allow a 6/10");
    let other = bench.charge_as(0, "u=1", Amount::Requests(-2), by(7, "r"), of(7, "h"));
    assert!(matches!(other, Err(ChargeError::Conflict(_))), "{other:?}");
}

#[test]
fn idempotency_key_lasts_sixty_seconds_and_refund_stops_at_full() {
    let mut bench = Bench::new("  - {name: a, key: [u], rate: 1/s, burst: 10}\n");
    for user in ["u=1", "u=2"] {
        let name = if user == "u=1" { "one" } else { "two" };
        assert_eq!(bench.ask(0, Ask { repeat: by(7, name), ..Ask::hit(user, 5) }), "allow a 5/10");
    }
    assert_eq!(bench.charge_as(59 * S, "u=1", Amount::Requests(-5), None, of(7, "one")), Ok(true));
    assert_eq!(left(&mut bench, 59 * S, "u=1"), "allow a 10/10");
    assert_eq!(bench.charge_as(60 * S, "u=2", Amount::Requests(-5), None, of(7, "two")), Ok(false));
}

#[test]
fn refunds_by_lease_while_it_lasts() {
    let rules = "  - {name: a, key: [u], rate: 10/h}\n  - {name: t, key: [u], unit: tokens, rate: 100/h}\n";
    let mut bench = Bench::new(rules);
    let (mine, other) = (bench.session(7), bench.session(7));
    let plain = bench.acquire(0, "u=1", Cost::Requests(4), &mine, None).unwrap();
    let units = vec![("requests", 1), ("tokens", 80)];
    let in_units = bench.acquire(0, "u=1", Cost::Units(&units), &mine, None).unwrap();
    let mut refund = |amount: Amount<'_>, of| bench.charge_as(0, "u=1", amount, None, of);
    assert_eq!(refund(Amount::Requests(-4), of_lease(8, plain)), Ok(false), "another user's");
    assert_eq!(refund(Amount::Requests(-5), of_lease(7, plain)), Ok(false), "too much");
    let tokens = |amount| Amount::Units(Box::leak(Box::new(vec![("tokens", amount)])));
    assert_eq!(refund(tokens(-1), of_lease(7, plain)), Ok(false), "another unit");
    assert_eq!(refund(Amount::Requests(-4), of_lease(7, plain)), Ok(true), "of any session of the user");
    assert_eq!(refund(Amount::Requests(-4), of_lease(7, plain)), Ok(false), "once");
    assert_eq!(refund(tokens(-81), of_lease(7, in_units)), Ok(false), "too much of a unit");
    assert_eq!(refund(tokens(-30), of_lease(7, in_units)), Ok(true));
    assert_eq!(refund(tokens(-30), of_lease(7, in_units)), Ok(false), "once");
    assert_eq!(left(&mut bench, 0, "u=1"), "allow a 9/10");
    // A released lease is unknown; its idempotency key is known, and the lease leads to it.
    let released = bench.acquire(0, "u=1", Cost::Requests(1), &other, None).unwrap();
    assert!(bench.engine.release_lease(&other, released, WorkOutcome::Ok, at(0)));
    let mut refund = |amount: Amount<'_>, of| bench.charge_as(0, "u=1", amount, None, of);
    assert_eq!(refund(Amount::Requests(-1), of_lease(7, released)), Ok(false));
    let named = bench.acquire(0, "u=1", Cost::Requests(2), &other, by(7, "n")).unwrap();
    let mut refund = |amount: Amount<'_>, of| bench.charge_as(0, "u=1", amount, None, of);
    assert_eq!(refund(Amount::Requests(-2), of_lease(7, named)), Ok(true));
    assert_eq!(refund(Amount::Requests(-2), of(7, "n")), Ok(false), "by the one or the other");
    let named = bench.acquire(0, "u=1", Cost::Requests(2), &other, by(7, "m")).unwrap();
    assert!(bench.engine.release_lease(&other, named, WorkOutcome::Ok, at(0)));
    assert_eq!(bench.charge_as(0, "u=1", Amount::Requests(-2), None, of(7, "m")), Ok(true), "after its end");
}

#[test]
fn refund_on_release_applies_once() {
    let rules = "  - {name: a, key: [u], rate: 10/h, refund_on: ok}\n  - {name: b, key: [u], rate: 20/h}\n";
    let mut bench = Bench::new(rules);
    let mine = bench.session(7);
    bench.check(&[(0, "u=1", 5, "allow a 5/10")]);
    let lease = bench.acquire(0, "u=1", Cost::Requests(4), &mine, None).unwrap();
    assert_eq!(bench.charge_as(0, "u=1", Amount::Requests(-4), None, of_lease(7, lease)), Ok(true));
    assert_eq!(left(&mut bench, 0, "u=1"), "allow a 1/10");
    assert!(bench.engine.release_lease(&mine, lease, WorkOutcome::Ok, at(0)));
    assert_eq!(left(&mut bench, 0, "u=1"), "allow a 5/10");
}

#[test]
fn refunds_no_uncharged_request() {
    let mut bench = Bench::new(RULES);
    bench.check(&[(0, "u=1", 8, "allow a 2/10")]);
    let refused = bench.ask(0, Ask { repeat: by(7, "g"), ..Ask::hit("u=1", 6) });
    assert!(refused.starts_with("limit"), "{refused}");
    assert_eq!(bench.charge_as(0, "u=1", Amount::Requests(-1), None, of(7, "g")), Ok(false));
    let peeked = bench.ask(0, Ask { op: Op::Peek, repeat: by(7, "p"), ..Ask::hit("u=1", 1) });
    assert_eq!(peeked, "allow a 2/10");
    assert_eq!(bench.charge_as(0, "u=1", Amount::Requests(-1), None, of(7, "p")), Ok(false));
}

#[test]
fn refunds_at_most_sixteen_units() {
    let mut bench = Bench::new("  - {name: t, key: [u], unit: u0, rate: 100/h}\n");
    let mine = bench.session(7);
    let names: Vec<String> = (0..4_000).map(|number| format!("u{number}")).collect();
    let costs: Vec<(&str, u32)> = names.iter().map(|name| (name.as_str(), 2)).collect();
    let lease = bench.acquire(0, "u=1", Cost::Units(&costs), &mine, None).unwrap();
    let all: Vec<(&str, i64)> = names.iter().map(|name| (name.as_str(), -1)).collect();
    let mut refund = |amounts: Vec<(&str, i64)>| {
        bench.charge_as(0, "u=1", Amount::Units(&amounts), None, of_lease(7, lease))
    };
    assert_eq!(refund(all.clone()), Ok(false));
    assert_eq!(refund(vec![("u0", -1), ("u3999", -1)]), Ok(false));
    assert_eq!(refund(all[..16].to_vec()), Ok(true));
}

#[test]
fn refunds_no_counted_refusal() {
    let rules = "  - {name: a, key: [u], algorithm: fixed_window, rate: 10/h, refused: counted}\n";
    let mut bench = Bench::new(rules);
    bench.check(&[(0, "u=1", 8, "allow a 2/10")]);
    let refused = bench.ask(0, Ask { repeat: by(7, "g"), ..Ask::hit("u=1", 6) });
    assert!(refused.starts_with("limit a 0/10"), "{refused}");
    assert_eq!(bench.charge_as(0, "u=1", Amount::Requests(-1), None, of(7, "g")), Ok(false));
    assert_eq!(left(&mut bench, 0, "u=1"), "allow a 0/10");
}

#[test]
fn later_rule_refunds_no_earlier_request() {
    let mut bench = Bench::of(Mode::Enforce, "domain: api\nconcurrency:\n  - {name: w, key: [u], max: 9}\n");
    let mine = bench.session(7);
    bench.acquire(0, "u=1", Cost::Requests(6), &mine, by(7, "g")).unwrap();
    let lease = bench.acquire(0, "u=1", Cost::Requests(6), &mine, None).unwrap();
    bench.reload(RULES);
    bench.check(&[(0, "u=1", 10, "allow a 0/10")]);
    for named in [of(7, "g"), of_lease(7, lease)] {
        assert_eq!(bench.charge_as(0, "u=1", Amount::Requests(-1), None, named), Ok(false));
    }
}

#[test]
fn expired_lease_is_not_refunded_before_sweep() {
    let rules =
        "  - {name: a, key: [u], rate: 10/h}\nconcurrency:\n  - {name: w, key: [u], max: 9, expires: 5s}\n";
    let mut bench = Bench::new(rules);
    let mine = bench.session(7);
    let leases = [(); 2].map(|()| bench.acquire(0, "u=1", Cost::Requests(4), &mine, None).unwrap());
    let mut refund =
        |micros, lease| bench.charge_as(micros, "u=1", Amount::Requests(-4), None, of_lease(7, lease));
    assert_eq!(refund(5 * S - 1, leases[0]), Ok(true));
    assert_eq!(refund(5 * S, leases[1]), Ok(false));
}

#[test]
fn charge_reports_whether_a_rule_matched() {
    let mut bench = Bench::new("  - {name: a, key: [u], rate: 10/min}\n");
    assert!(bench.charge(0, "u=1", 1));
    assert!(!bench.charge(0, "v=1", 1));
    assert_eq!(bench.engine.keys(), 1);
    assert!(bench.charge(0, "u=2", -1));
    assert!(bench.charge(0, "u=3", 0));
    assert_eq!(bench.engine.keys(), 1, "neither giving back to a full key nor charging nothing keeps one");
}
