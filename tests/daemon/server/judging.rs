//! Decisions of rules of every kind, over the socket.

use crate::prelude::*;

fn rules() -> Daemon {
    let rules = "\
domain: all
limits:
  - {name: secret, match: {path: /login}, key: [user], rate: 1/h, advertise: false}
  - {name: tokens, key: [org], unit: tokens, rate: 100/h, max_debt: 50}
  - {name: tried, match: {path: /try}, key: [user], rate: 5/h}
";
    Plan::new().rules("all.yaml", rules).settings("domains: {all: {refunds: trusted}}").start()
}

#[allow(clippy::needless_pass_by_value, reason = "it is said where it is asked")]
fn ask(wire: &mut Wire, descriptors: Value, cost: Value, options: Value) -> Value {
    wire.ask(&json!([3, 7, "all", descriptors, cost, null, options]))
}

#[test]
fn hides_rules_that_are_not_advertised() {
    let daemon = rules();
    let mut wire = daemon.greeted();
    let login = json!([["path", "/login", "user", "u"], ["org", "o"]]);
    let cost = json!({"requests": 1, "tokens": 1});
    let reply = ask(&mut wire, login.clone(), cost, json!({"all": true}));
    assert_eq!(reply[3], "tokens", "{reply}");
    let [tokens] = reply[11].as_array().unwrap().as_slice() else { panic!("{reply}") };
    assert_eq!([&tokens[0], &tokens[1], &tokens[3]], [&json!("tokens"), &json!(100), &json!(99)], "{reply}");
    let refused = ask(&mut wire, login, json!(1), json!({}));
    assert_eq!((verdict_of(&refused), &refused[3], &refused[11]), (1, &json!("secret"), &json!(null)));
    assert_eq!(refused[12], json!({"hide": true}));
}

#[test]
fn checks_and_charges_rule_in_its_unit() {
    let daemon = rules();
    let mut wire = daemon.greeted();
    let org = json!([["org", "o"]]);
    // The unit is found among many.
    let mut many: serde_json::Map<_, _> = (0..40).map(|unit| (format!("a{unit:02}"), json!(1))).collect();
    many.extend([("requests".into(), json!(1)), ("tokens".into(), json!(60))]);
    let reply = ask(&mut wire, org.clone(), many.into(), json!({}));
    assert_eq!(json!([reply[3], reply[6], reply[12]]), json!(["tokens", 40, {"unit": "tokens"}]));
    assert_eq!(wire.ask(&json!([5, 8, "all", org, {"tokens": 1_000}])), json!([2, 8, true]));
    // A debt of 50: 51 tokens must refill at 36 s each, less the time since.
    let reply = ask(&mut wire, org.clone(), json!({"tokens": 1}), json!({}));
    let retry = reply[8].as_u64().unwrap();
    assert_eq!((verdict_of(&reply), &reply[6]), (1, &json!(0)));
    assert!(retry > 50 * 36_000_000 && retry <= 51 * 36_000_000, "{reply}");
    wire.send(&json!([5, null, "all", org, {"tokens": -1_000}]));
    let reply = ask(&mut wire, org, json!({"tokens": 100}), json!({}));
    assert_eq!((verdict_of(&reply), &reply[6]), (0, &json!(0)));
    let unmatched = json!([["nothing", "o"]]);
    assert_eq!(wire.ask(&json!([5, 9, "all", unmatched, 1])), json!([2, 9, false]), "no rule matched");
}

#[test]
fn idempotency_key_repeats_grant_across_connections() {
    let daemon = rules();
    let [mut one, mut other] = [7, 7].map(|session| daemon.session(session, json!({})));
    // Without a name a connection is its own session.
    let mut stranger = daemon.greeted();
    let work = json!([["path", "/try", "user", "u"]]);
    let idem = json!({"idem": "x"});
    for turn in 0..4 {
        let wire = if turn % 2 == 0 { &mut one } else { &mut other };
        let reply = ask(wire, work.clone(), json!(1), idem.clone());
        assert_eq!((verdict_of(&reply), &reply[6]), (0, &json!(4)), "{reply}");
    }
    // The limits that the first request did not ask for are not remembered.
    let reply = ask(&mut one, work.clone(), json!(1), json!({"idem": "x", "all": true}));
    assert_eq!((&reply[6], &reply[11]), (&json!(4), &json!(null)), "{reply}");
    let reply = ask(&mut stranger, work.clone(), json!(1), idem.clone());
    assert_eq!(reply[6], json!(3), "another session's is another request: {reply}");
    let reply = ask(&mut one, work, json!(2), idem);
    assert_eq!(error_of(&reply), (Some(7), 6), "{reply}");
    assert!(reply[3].as_str().unwrap().contains("idem"), "{reply}");
    one.assert_served();
}
