//! Keys that operators block, unblock or reset.

use tidegate::clock::Timestamp;
use tidegate::engine::{
    BlockedKey, ConnectionParams, ControlEvent, HostOverrides, Op, SwitchOrigin, WorkOutcome,
};
use tidegate::rules::Mode;

use super::bench::{Ask, Bench, S, at};
use super::switching::{name, switch};

fn until(micros: u64) -> Timestamp {
    Timestamp::from_nanos(micros * 1_000)
}

#[track_caller]
fn block(bench: &Bench, rule: &str, attributes: &[(&str, &str)], ends: u64) -> BlockedKey {
    bench.engine.block_key(&name(rule), attributes, until(ends), SwitchOrigin::User(7)).unwrap()
}

/// Rules of every algorithm, and the level of a new key.
const RULES: &[(&str, &str)] = &[
    ("rate: 10/h, burst: 10", "10/10"),
    ("rate: 10/h, algorithm: leaky_bucket, queue: 9", "10/10"),
    ("rate: 10/h, algorithm: fixed_window, align: first", "10/10"),
    ("rate: 10/h, algorithm: sliding_log", "10/10"),
    ("rate: 10/h, algorithm: sliding_window", "10/10"),
    ("rate: unlimited", "0/0"),
    ("rate: 10/h, block: 5s", "10/10"),
    ("rate: 10/h, over: {soft: 50%}", "10/10"),
    ("rate: 10/h, algorithm: fixed_window, refused: counted, align: first", "10/10"),
];

#[test]
fn refuses_blocked_key_until_deadline_for_any_algorithm() {
    for (rule, level) in RULES {
        let mut bench = Bench::new(&format!("  - {{name: a, key: [user], {rule}}}\n"));
        let blocked = block(&bench, "a", &[("user", "u")], 60 * S);
        assert_eq!((blocked.text.clone(), blocked.format_digest().len()), (None, 32));
        let level = if rule.contains("counted") { "9/10" } else { *level };
        let seen = bench.ask(0, Ask::hit("user=u", 1));
        assert_eq!(seen, format!("limit a {level} after 60000000"), "{rule}");
        assert!(bench.ask(0, Ask::hit("user=v", 1)).starts_with("allow"), "{rule}: another key");
        assert!(bench.peek(0, "user=u", 1).starts_with("limit"), "{rule}");
        // Exact to 1 µs: only the event needs a tick.
        let seen = bench.ask(60 * S - 1, Ask::hit("user=u", 1));
        assert!(seen.starts_with("limit") && seen.ends_with("after 1"), "{rule}: {seen}");
        assert!(bench.ask(60 * S, Ask::hit("user=u", 1)).starts_with("allow"), "{rule}: it has ended");
        assert_eq!(bench.engine.blocked_keys().len(), 1);
        bench.engine.tick(at(60 * S));
        assert!(bench.engine.blocked_keys().is_empty());
        assert!(
            matches!(&*bench.engine.take_control_events(), [ControlEvent::BlockEnded(ended)] if *ended == blocked)
        );
    }
}

#[test]
fn retry_after_covers_block_and_empty_bucket() {
    let mut bench = Bench::new("  - {name: a, key: [user], rate: 1/min, burst: 1}\n");
    bench.check(&[(0, "user=u", 1, "allow a 0/1")]);
    block(&bench, "a", &[("user", "u")], 20 * S);
    bench.check(&[(0, "user=u", 1, "limit a 0/1 after 60000000"), (0, "user=u", 0, "allow a 0/1")]);
}

#[test]
fn manual_block_triggers_no_block_of_the_rule() {
    let mut bench = Bench::new("  - {name: a, key: [user], rate: 10/min, burst: 10, block: 1h}\n");
    block(&bench, "a", &[("user", "u")], 10 * S);
    bench.check(&[(0, "user=u", 1, "limit a 10/10 after 10000000"), (10 * S, "user=u", 1, "allow a 9/10")]);
}

#[test]
fn blocked_key_follows_mode_of_its_rule() {
    let mut bench = Bench::new("  - {name: a, key: [user], rate: 10/min, mode: shadow}\n");
    block(&bench, "a", &[("user", "u")], 10 * S);
    bench.check(&[(0, "user=u", 1, "allow [shadow a]")]);
    switch(&bench, "a", Mode::Disabled, None);
    bench.check(&[(0, "user=u", 1, "allow")]);
    switch(&bench, "a", Mode::Enforce, None);
    bench.check(&[(0, "user=u", 1, "limit a 10/10 after 10000000")]);
}

#[test]
fn normalizes_blocked_key_as_in_requests() {
    let key = "key: [{attribute: account, lowercase: true}, {attribute: ip, ipv6_prefix: 64}]";
    let mut bench = Bench::new(&format!("  - {{name: a, {key}, rate: 10/min, show_keys: [account]}}\n"));
    // In any order and spelling.
    let blocked = block(&bench, "a", &[("ip", "2001:db8:0:1::99"), ("account", "ANN")], 10 * S);
    assert_eq!(blocked.text.as_deref(), Some("account=ANN"), "what may be shown is, and nothing else");
    let seen = bench.ask(0, Ask::hit("account=Ann ip=2001:DB8:0:1::1", 1));
    assert_eq!(seen, "limit a 10/10 after 10000000");
    let other = bench.ask(0, Ask::hit("account=Ann ip=2001:DB8:0:2::1", 1));
    assert_eq!(other, "allow a 9/10");
}

/// A rule, a key's attributes, and the error.
type Wrong<'a> = (&'a str, &'a [(&'a str, &'a str)], String);

#[test]
fn rejects_incomplete_key_with_expected_attributes() {
    let text = "domain: api
deny: [{name: bots, match: {agent: bot}}]
limits:
  - {name: one, key: [], rate: 1/s}
  - {name: two, key: [user, ip], rate: 1/s}
descriptors:
  - key: kind
    value: mail
    descriptors: [{key: to, rate_limit: {unit: day, requests_per_unit: 1}}]
";
    let bench = Bench::of(Mode::Enforce, text);
    let two = "api/two: its key is made of `user`, `ip`, not of";
    let write = "write exactly user=VALUE ip=VALUE";
    let table: &[Wrong<'_>] = &[
        ("two", &[("user", "u")], format!("{two} `user`: {write}")),
        ("two", &[], format!("{two} nothing: {write}")),
        ("two", &[("user", "u"), ("user", "v")], format!("{two} `user`, `user`: {write}")),
        ("two", &[("user", "u"), ("ip", "i"), ("plan", "p")], format!("{two} `user`, `ip`, `plan`: {write}")),
        (
            "two",
            &[("user", ""), ("ip", "i")],
            "api/two: `user` is empty, and an empty attribute matches no rule: write user=VALUE".into(),
        ),
        (
            "one",
            &[],
            "api/one counts all requests together and has no key to block: switch it, or write a rule with a key"
                .into(),
        ),
        ("bots", &[], "api/bots is no rule in force that counts by a key".into()),
        ("gone", &[], "api/gone is no rule in force that counts by a key".into()),
        (
            "kind_mail.to",
            &[("to", "x")],
            "api/kind_mail.to: these entries do not come to it: write those of its path in their order, `kind_mail`, then `to`"
                .into(),
        ),
    ];
    for (rule, attributes, expected) in table {
        let error =
            bench.engine.block_key(&name(rule), attributes, until(S), SwitchOrigin::User(0)).unwrap_err();
        assert_eq!(error.to_string(), *expected, "{rule} {attributes:?}");
    }
    assert!(bench.engine.blocked_keys().is_empty());
}

#[test]
fn blocks_descriptor_key_by_its_path() {
    let text = "domain: api
descriptors:
  - key: kind
    value: mail
    descriptors: [{key: to, rate_limit: {unit: day, requests_per_unit: 2}}]
";
    let mut bench = Bench::of(Mode::Enforce, text);
    let key = [("kind", "mail"), ("to", "x")];
    block(&bench, "kind_mail.to", &key, 10 * S);
    assert!(bench.ask(0, Ask::hit("kind=mail to=x", 1)).starts_with("limit kind_mail.to"));
    assert!(bench.ask(0, Ask::hit("kind=mail to=y", 1)).starts_with("allow"));
    assert!(bench.engine.reset_key(&name("kind_mail.to"), &key).unwrap());
    bench.check(&[(0, "kind=mail to=x", 1, "allow kind_mail.to 1/2")]);
}

#[test]
fn unblocks_manual_and_automatic_blocks() {
    let mut bench = Bench::new("  - {name: a, key: [user], rate: 2/min, burst: 2, block: 1h}\n");
    block(&bench, "a", &[("user", "u")], 60 * S);
    assert!(bench.engine.unblock_key(&name("a"), &[("user", "u")]).unwrap());
    assert!(!bench.engine.unblock_key(&name("a"), &[("user", "u")]).unwrap());
    bench.check(&[(0, "user=u", 2, "allow a 0/2"), (0, "user=u", 1, "limit a 0/2 after 3600000000")]);
    assert!(bench.engine.unblock_key(&name("a"), &[("user", "u")]).unwrap(), "the rule's own");
    // Spent tokens stay spent.
    bench.check(&[(S, "user=u", 0, "allow a 0/2"), (60 * S, "user=u", 1, "allow a 1/2")]);
}

#[test]
fn reset_key_is_fresh() {
    for (rule, _) in RULES {
        let text = format!("  - {{name: a, key: [user], {rule}}}\n");
        let mut bench = Bench::new(&text);
        let fresh: Vec<String> = trial(&mut Bench::new(&text));
        assert_eq!(trial(&mut bench), fresh, "{rule}");
        if *rule != "rate: unlimited" {
            assert!(bench.engine.reset_key(&name("a"), &[("user", "u")]).unwrap(), "{rule}");
        }
        assert!(
            !bench.engine.reset_key(&name("a"), &[("user", "u")]).unwrap(),
            "{rule}: nothing is left of it"
        );
        assert_eq!(trial(&mut bench), fresh, "{rule}");
        block(&bench, "a", &[("user", "u")], 60 * S);
        assert!(bench.engine.reset_key(&name("a"), &[("user", "u")]).unwrap(), "{rule}");
        assert_eq!(trial(&mut bench), fresh, "{rule}");
        assert!(bench.ask(0, Ask::hit("user=v", 10)).starts_with("allow"));
    }
}

fn trial(bench: &mut Bench) -> Vec<String> {
    (0..18).map(|_| bench.ask(0, Ask::hit("user=u", 1))).collect()
}

#[test]
fn reset_clears_elastic_state() {
    let rule = "rate: 2/h, burst: 2, over: {elastic: 100%}";
    let text = format!("  - {{name: a, key: [user], {rule}}}\n");
    let mut bench = Bench::new(&text);
    bench.engine.set_elastic_room(true);
    let fresh = trial(&mut bench);
    assert!(fresh.iter().any(|seen| seen.contains("over")), "{fresh:?}");
    assert!(bench.engine.reset_key(&name("a"), &[("user", "u")]).unwrap());
    assert_eq!(trial(&mut bench), fresh);
}

#[test]
fn keeps_leases_across_block_reset_and_switch() {
    let text = "domain: api\nconcurrency: [{name: jobs, key: [user], max: 1}]\n";
    let bench = Bench::of(Mode::Enforce, text);
    let engine = &bench.engine;
    let opening = ConnectionParams { name: None, user: 1, pool: "web", slots: 4, pid: None, connection: 0 };
    let session = engine.open_session(&opening, at(0)).unwrap();
    let mut decider = engine.decider();
    let mut acquire = |micros: u64| {
        let attributes = [("user", "u")];
        let descriptors = tidegate::engine::Descriptors::from_attributes(&attributes);
        let request = tidegate::engine::Request {
            session: Some(&session),
            ..tidegate::engine::Request::new(Op::Acquire, "api", descriptors)
        };
        let tidegate::engine::EngineAnswer::Decided(decision) = decider.decide(&request, at(micros)) else {
            panic!()
        };
        (decision.lease, decision.retry_after.map(|retry| retry.0))
    };
    let (first, _) = acquire(0);
    assert_eq!(acquire(0).0, None, "the only place is taken");
    assert!(!engine.reset_key(&name("jobs"), &[("user", "u")]).unwrap(), "nothing but leases, which stay");
    assert_eq!(acquire(0).0, None);
    switch(&bench, "jobs", Mode::Disabled, None);
    let (second, _) = acquire(0);
    assert!(first.is_some() && second.is_some() && first != second, "a lease also when switched off");
    assert!(engine.clear_switch(&tidegate::engine::Target::Rule(name("jobs"))));
    assert_eq!(acquire(0).0, None, "the place was counted all the time");
    assert!(engine.release_lease(&session, first.unwrap(), WorkOutcome::Ok, at(S)));
    assert!(engine.release_lease(&session, second.unwrap(), WorkOutcome::Ok, at(S)));
    block(&bench, "jobs", &[("user", "u")], 10 * S);
    assert_eq!(acquire(S), (None, Some(9_000_000)), "exact, where another refusal is a hint");
    assert!(acquire(10 * S).0.is_some());
    assert_eq!(engine.in_progress(), 1);
}

#[test]
fn keeps_blocks_by_digest_up_to_maximum() {
    let mut bench = Bench::new("  - {name: a, key: [user], rate: 10/min}\n");
    let blocked = block(&bench, "a", &[("user", "u")], 60 * S);
    let mut after = Bench::new("  - {name: a, key: [user], rate: 10/min}\n");
    after.engine.restore_operator_overrides(bench.engine.operator_overrides());
    after.check(&[(0, "user=u", 1, "limit a 10/10 after 60000000")]);
    bench.reload("  - {name: a, key: [user], rate: 20/min, algorithm: sliding_log}\n");
    bench.check(&[(0, "user=u", 1, "limit a 20/20 after 60000000")]);
    let many = (0..4_096).map(|n| BlockedKey { key: [n, 0], ..blocked.clone() }).collect();
    bench.engine.restore_operator_overrides(HostOverrides { blocks: many, ..HostOverrides::default() });
    let error =
        bench.engine.block_key(&name("a"), &[("user", "x")], until(S), SwitchOrigin::User(0)).unwrap_err();
    assert!(error.to_string().starts_with("4096 keys are blocked by hand"), "{error}");
}
