//! Concurrency limits: admission, replies, and returned permits.

use tidegate::engine::{Op, WorkOutcome};
use tidegate::rules::Mode;

use super::fixture::{Ask, Fixture, s};

const EXPORTS: &str = "concurrency:\n- {name: exports, key: [org], max: 2, expires: 2h}\n";

#[test]
fn stays_within_maximum_and_frees_permit_once() {
    let (mut fixture, session) = Fixture::with_session(EXPORTS, 0);
    let first = fixture.acquire(&session, s(0), "org=a");
    assert_eq!(first.line, "allow exports 1/2");
    let second = fixture.acquire(&session, s(0), "org=a");
    assert_eq!(second.line, "allow exports 0/2");
    let third = fixture.acquire(&session, s(0), "org=a");
    assert_eq!(third.line, "limit exports 0/2");
    // A retry-after of half a second to one and a half, the same for the same caller.
    assert!((500_000..=1_500_000).contains(&third.retry.unwrap()), "{third:?}");
    assert_eq!(fixture.acquire(&session, s(1), "org=a"), third);
    assert_eq!(fixture.acquire(&session, s(0), "org=b").line, "allow exports 1/2");
    fixture.holds(3);
    assert!(fixture.release(&session, first.lease, s(1)));
    assert!(!fixture.release(&session, first.lease, s(1)), "a second release changes nothing");
    fixture.holds(2);
    assert_eq!(fixture.acquire(&session, s(1), "org=a").line, "allow exports 0/2");
    assert_eq!(fixture.acquire(&session, s(1), "org=a").line, "limit exports 0/2");
}

#[test]
fn request_of_any_cost_takes_one_permit() {
    let (mut fixture, session) = Fixture::with_session(EXPORTS, 0);
    for cost in [0, 500] {
        let answer = fixture.ask(&session, s(0), Ask { cost, ..Ask::acquire("org=a") });
        assert!(answer.line.starts_with("allow"), "{answer:?}");
    }
    assert_eq!(fixture.acquire(&session, s(0), "org=a").line, "limit exports 0/2");
}

#[test]
fn hit_and_peek_take_no_permit() {
    let (mut fixture, session) =
        Fixture::with_session(&format!("limits:\n- {{name: per-org, key: [org], rate: 9/h}}\n{EXPORTS}"), 0);
    let hit = fixture.ask(&session, s(0), Ask { op: Op::Hit, ..Ask::acquire("org=a") });
    assert_eq!((hit.line.as_str(), hit.lease), ("allow per-org 8/9", None));
    let peek = fixture.ask(&session, s(0), Ask { op: Op::Peek, ..Ask::acquire("org=a") });
    assert_eq!((peek.line.as_str(), peek.lease), ("allow per-org 8/9", None));
    fixture.holds(0);
    for _ in 0..2 {
        fixture.acquire(&session, s(0), "org=a");
    }
    let peek = fixture.ask(&session, s(0), Ask { op: Op::Peek, ..Ask::acquire("org=a") });
    assert_eq!(peek.line, "limit exports 0/2");
    let hit = fixture.ask(&session, s(0), Ask { op: Op::Hit, ..Ask::acquire("org=a") });
    assert!(hit.line.starts_with("allow per-org"), "{hit:?}");
}

#[test]
fn charges_rate_and_permit_together_or_neither() {
    let rules = "limits:\n- {name: per-org, key: [org], rate: 3/h}\n\
                 concurrency:\n- {name: one, key: [org], max: 1}\n- {name: all, key: [], max: 2}\n";
    let (mut fixture, session) = Fixture::with_session(rules, 0);
    let first = fixture.acquire(&session, s(0), "org=a");
    assert_eq!(first.line, "allow one 0/1");
    // Refused by concurrency: no token and no other permit is taken.
    assert_eq!(fixture.acquire(&session, s(0), "org=a").line, "limit one 0/1");
    fixture.holds(2);
    assert!(fixture.release(&session, first.lease, s(0)));
    // With equal remainders the reply names the first rule.
    for line in ["allow one 0/1", "allow per-org 0/3"] {
        let answer = fixture.acquire(&session, s(0), "org=a");
        assert_eq!(answer.line, line);
        assert!(fixture.release(&session, answer.lease, s(0)));
    }
    // Refused by the rate, which is checked first: no permit is taken.
    let refused = fixture.acquire(&session, s(0), "org=a");
    assert_eq!((refused.line.as_str(), refused.retry), ("limit per-org 0/3", Some(1_200_000_000)));
    fixture.holds(0);
}

#[test]
fn rate_is_checked_before_concurrency() {
    let rules = "concurrency:\n- {name: one, key: [org], max: 1}\n\
                 limits:\n- {name: per-org, key: [org], rate: 1/h}\n";
    let (mut fixture, session) = Fixture::with_session(rules, 0);
    fixture.acquire(&session, s(0), "org=a");
    assert_eq!(fixture.acquire(&session, s(0), "org=a").line, "limit per-org 0/1");
    let totals = fixture.engine.totals();
    let one = totals.rules.iter().find(|rule| &*rule.rule == "one").unwrap();
    assert_eq!((one.pass, one.refuse), (1, 0), "a place was not asked for once the rate refused");
}

#[test]
fn shadow_rules_count_permits_of_granted_requests_only() {
    let rules = "concurrency:\n- {name: dark, key: [org], max: 1, mode: shadow}\n\
                 - {name: lit, key: [org], max: 3, candidate: {max: 2}}\n";
    let (mut fixture, session) = Fixture::with_session(rules, 0);
    let lines =
        ["allow lit 2/3", "allow lit 1/3 [shadow dark]", "allow lit 0/3 [shadow dark] [candidate lit]"];
    let mut leases = Vec::new();
    for line in lines {
        let answer = fixture.acquire(&session, s(0), "org=a");
        assert_eq!(answer.line, line);
        leases.push(answer.lease);
    }
    // The shadow rules count the leases that would fit them: one and two.
    fixture.holds(3 + 1 + 2);
    assert_eq!(fixture.acquire(&session, s(0), "org=a").line, "limit lit 0/3 [shadow dark] [candidate lit]");
    fixture.holds(6);
    leases.iter().for_each(|lease| assert!(fixture.release(&session, *lease, s(1))));
    fixture.holds(0);
}

#[test]
fn overrides_change_max() {
    let rules = "concurrency:\n- name: exports\n  key: [org]\n  max: 1\n  overrides:\n  \
                 - {match: {plan: big}, max: 2}\n  - {match: {plan: own}, max: unlimited}\n";
    let (mut fixture, session) = Fixture::with_session(rules, 0);
    assert_eq!(fixture.acquire(&session, s(0), "org=a").line, "allow exports 0/1");
    assert_eq!(fixture.acquire(&session, s(0), "org=a").line, "limit exports 0/1");
    assert_eq!(fixture.acquire(&session, s(0), "org=a plan=big").line, "allow exports 0/2");
    assert_eq!(fixture.acquire(&session, s(0), "org=a plan=big").line, "limit exports 0/2");
    for _ in 0..5 {
        let answer = fixture.acquire(&session, s(0), "org=a plan=own");
        assert_eq!((answer.line.as_str(), answer.lease.is_some()), ("allow", true));
    }
}

#[test]
fn reload_keeps_leases_and_refuses_until_below_maximum() {
    let (mut fixture, session) =
        Fixture::with_session("concurrency:\n- {name: exports, key: [org], max: 3}\n", 0);
    let leases: Vec<_> = (0..3).map(|_| fixture.acquire(&session, s(0), "org=a").lease).collect();
    fixture.install("concurrency:\n- {name: exports, key: [org], max: 2}\n");
    fixture.holds(3);
    assert_eq!(fixture.acquire(&session, s(1), "org=a").line, "limit exports 0/2");
    assert!(fixture.release(&session, leases[0], s(1)));
    assert_eq!(fixture.acquire(&session, s(1), "org=a").line, "limit exports 0/2");
    assert!(fixture.release(&session, leases[1], s(1)));
    assert_eq!(fixture.acquire(&session, s(1), "org=a").line, "allow exports 0/2");
    // Removed and added again: leases in progress still count.
    fixture.install("limits: []\n");
    fixture.install("concurrency:\n- {name: exports, key: [org], max: 2}\n");
    assert_eq!(fixture.acquire(&session, s(1), "org=a").line, "limit exports 0/2");
    fixture.holds(2);
}

#[test]
fn every_granted_acquire_has_a_lease() {
    let rules = "exempt:\n- {name: probes, match: {path: /healthz}}\ndeny:\n- {name: bots, match: {bot: yes}}\n\
                 limits:\n- {name: dark, key: [user], rate: 1/h, mode: shadow}\n\
                 - {name: paced, key: [host], algorithm: leaky_bucket, rate: 1/s, queue: 3}\n";
    for (mode, attributes, line) in [
        (Mode::Enforce, "path=/healthz", "allow probes"),
        (Mode::Enforce, "nothing=known", "allow"),
        (Mode::Enforce, "user=a", "allow [shadow dark]"),
        (Mode::Enforce, "host=a", "wait paced 2/4"),
        (Mode::Shadow, "bot=yes", "allow [shadow bots]"),
        (Mode::Disabled, "user=a", "allow"),
    ] {
        let mut fixture = Fixture::of(mode, rules);
        let session = fixture.session(1, 0, s(0));
        fixture.acquire(&session, s(0), attributes);
        let answer = fixture.acquire(&session, s(0), attributes);
        assert_eq!(answer.line, line, "{mode} {attributes}");
        assert!(fixture.release(&session, answer.lease, s(0)), "{mode} {attributes}");
    }
    let (mut fixture, session) = Fixture::with_session(rules, 0);
    assert_eq!(fixture.acquire(&session, s(0), "bot=yes").lease, None);
}

#[test]
fn refunds_successful_requests_if_configured() {
    let rules = "limits:\n- {name: failures, key: [account], rate: 3/h, refund_on: ok, candidate: {rate: 1/h}}\n\
                 - {name: all, key: [account], rate: 100/h}\n";
    let (mut fixture, session) = Fixture::with_session(rules, 0);
    for _ in 0..10 {
        let answer = fixture.acquire(&session, s(0), "account=a");
        assert_eq!(answer.line, "allow failures 2/3");
        assert!(fixture.release(&session, answer.lease, s(0)));
    }
    for remaining in [2, 1, 0] {
        let answer = fixture.acquire(&session, s(0), "account=a");
        assert!(answer.line.starts_with(&format!("allow failures {remaining}/3")), "{answer:?}");
        assert!(fixture.engine.release_lease(&session, answer.lease.unwrap(), WorkOutcome::Error, s(0)));
    }
    assert!(fixture.acquire(&session, s(0), "account=a").line.starts_with("limit failures 0/3"));
    // Requests without a refund still count against the other rule.
    let totals = fixture.engine.totals();
    assert_eq!(totals.rules.iter().find(|rule| &*rule.rule == "all").unwrap().pass, 14);
}

#[test]
fn refund_after_reload_applies_to_comparable_rules_only() {
    let rules = |window: &str| {
        format!(
            "limits:\n- {{name: w, key: [a], algorithm: fixed_window, rate: 2/{window}, refund_on: ok}}\n"
        )
    };
    let (mut fixture, session) = Fixture::with_session(&rules("h"), 0);
    let answer = fixture.acquire(&session, s(0), "a=a");
    fixture.install(&format!("{}- {{name: other, key: [b], rate: 1/s}}\n", rules("h")));
    assert!(fixture.release(&session, answer.lease, s(0)));
    let answer = fixture.acquire(&session, s(0), "a=a");
    assert_eq!(answer.line, "allow w 1/2");
    fixture.install(&rules("day"));
    let other = fixture.acquire(&session, s(0), "a=a");
    assert_eq!(other.line, "allow w 1/2");
    assert!(fixture.release(&session, answer.lease, s(0)));
    assert_eq!(fixture.acquire(&session, s(0), "a=a").line, "allow w 0/2");
}
