//! Refunds and costs above the maximum, over the socket.

use super::access::other_user;
use crate::prelude::*;

const RULES: &str = "domain: pay\nlimits: [{name: all, key: [user], rate: 1/h, burst: 10}]\n";

/// A daemon to which every user may connect.
fn daemon(settings: &str) -> Daemon {
    Plan::new().rules("pay.yaml", RULES).settings(settings).open_to_all().start()
}

fn charge(id: u64, amount: i64, options: &Value) -> Value {
    json!([5, id, "pay", [["user", "victim"]], amount, options])
}

fn left(wire: &mut Wire) -> u64 {
    wire.ask(&json!([4, 1, "pay", [["user", "victim"]]]))[6].as_u64().unwrap()
}

#[test]
fn refunds_own_grant_once_and_no_other() {
    let daemon = daemon("");
    let mut wire = daemon.greeted();
    let victim = json!([["user", "victim"]]);
    let granted = wire.ask(&json!([3, 2, "pay", victim, 9, null, {"idem": "order"}]));
    assert_eq!(verdict_of(&granted), 0);
    let work = wire.ask(&json!([1, 3, "pay", victim, 1]));
    assert_eq!(left(&mut wire), 0);
    let attacks =
        [json!({}), json!({"of": "order"}), json!({"of": work[9]}), json!({"idem": "x", "of": "order"})];
    let attacks: Vec<_> = (10..).zip(&attacks).map(|(id, options)| charge(id, -1, options)).collect();
    let replies = other_user(&daemon, &attacks);
    assert_eq!(error_of(&replies[0]), (Some(10), 11), "{replies:?}");
    assert_eq!(replies[1..], [json!([2, 11, false]), json!([2, 12, false]), json!([2, 13, false])]);
    assert_eq!(left(&mut wire), 0, "nothing was given back");
    assert_eq!(
        error_of(&wire.ask(&charge(4, -1, &json!({})))),
        (Some(4), 11),
        "its own user, without a name"
    );
    // A session for each.
    for (options, amount, ok) in [
        (json!({"of": "order"}), -10, false),
        (json!({"of": "order"}), -4, true),
        (json!({"of": "order"}), -4, false),
        (json!({"of": work[9]}), -1, true),
        (json!({"of": work[9]}), -1, false),
    ] {
        let reply = daemon.greeted().ask(&charge(5, amount, &options));
        assert_eq!(reply, json!([2, 5, ok]), "{options} {amount}");
    }
    assert_eq!(left(&mut wire), 5);
    // Without an id, and so without a reply.
    wire.send(&json!([5, null, "pay", victim, -1]));
    wire.assert_served();
    assert_eq!(left(&mut wire), 5);
}

#[test]
fn odd_costs_and_priorities_bypass_no_limit() {
    let daemon = daemon("");
    let mut wire = daemon.greeted();
    let mut ask = |op: u64, domain: &str, cost: Value, priority: Value| {
        wire.ask(&json!([op, 7, domain, [["user", "u"]], cost, priority]))
    };
    let many = u64::MAX;
    let costs = json!([1u64 << 32, many, {"requests": 1u64 << 40}, {"requests": 1, "tokens": many}]);
    for cost in costs.as_array().unwrap() {
        for (op, domain) in [1, 3, 4].into_iter().flat_map(|op| [(op, "pay"), (op, "elsewhere")]) {
            let reply = ask(op, domain, cost.clone(), Value::Null);
            assert_eq!((verdict_of(&reply), &reply[8]), (1, &Value::Null), "{op} {domain} {cost}: {reply}");
        }
    }
    assert_eq!(ask(3, "pay", json!(u64::MAX), Value::Null)[3], "all");
    let priorities = json!(["", "a:b", "p".repeat(65), 5, true, [["x"]], {"a": 1}]);
    for (number, priority) in (1..).zip(priorities.as_array().unwrap()) {
        let reply = ask(3, "pay", json!(1), priority.clone());
        assert_eq!((verdict_of(&reply), &reply[6]), (0, &json!(10 - number)), "{priority}: {reply}");
    }
}

#[test]
fn doctor_reports_open_domain_used_by_several_users() {
    let rules = "domain: closed\nlimits: [{name: all, key: [user], rate: 1/h, burst: 10}]\n";
    let mine = rustix::process::geteuid().as_raw();
    let plan = Plan::new().rules("pay.yaml", RULES).rules("closed.yaml", rules);
    let plan = plan.settings(&format!("domains: {{closed: {{uids: [{mine}, 65534]}}}}"));
    let daemon = plan.open_to_all().start();
    let doctor = || outcome_of(&daemon.doctor(&[])).1;
    let requests = [json!([3, 1, "pay", [["user", "u"]]]), json!([3, 1, "closed", [["user", "u"]]])];
    requests.iter().for_each(|ask| drop(daemon.greeted().ask(ask)));
    let alone = doctor();
    assert!(alone.contains("it answers") && !alone.contains("several ask"), "{alone}");
    other_user(
        &daemon,
        &[requests[0].clone(), requests[1].clone(), json!([3, 1, "no-such", [["user", "u"]]])],
    );
    let printed = doctor();
    let expected = format!("`pay` is open to every user, and several ask about it: {mine}, 65534");
    assert!(printed.contains(&expected), "{printed}");
    assert!(!printed.contains("`closed` is open") && !printed.contains("`no-such` is open"), "{printed}");
}
