//! A retry with the same idempotency key gets the same lease, under any rule, list or mode.

use tidegate::rules::{Domain, Mode};

use super::fixture::{Ask, Fixture, ms, s};

const EXPORTS: &str = "concurrency:\n- {name: exports, key: [org], max: 2, expires: 2h}\n";

fn named<'a>(name: &'a [u8], attributes: &'a str) -> Ask<'a> {
    Ask { repeat: Some(crate::bench::named(name)), ..Ask::acquire(attributes) }
}

#[test]
fn retried_acquire_gets_same_lease_while_alive() {
    let (mut fixture, session) = Fixture::with_session(EXPORTS, 0);
    let ask = named(b"x", "org=a");
    let first = fixture.ask(&session, s(0), ask);
    assert!(first.lease.is_some());
    assert_eq!(fixture.ask(&session, s(1), ask).lease, first.lease);
    fixture.holds(1);
    assert!(fixture.release(&session, first.lease, s(2)));
    let anew = fixture.ask(&session, s(3), ask);
    assert!(anew.lease.is_some() && anew.lease != first.lease, "{anew:?}");
    fixture.holds(1);
    // The release of an earlier lease does not concern the next grant of the name.
    let later = fixture.ask(&session, s(63), ask);
    assert!(later.lease.is_some() && later.lease != anew.lease, "{later:?}");
    assert!(fixture.release(&session, anew.lease, s(64)));
    assert_eq!(fixture.ask(&session, s(65), ask).lease, later.lease);
    fixture.holds(1);
}

#[test]
fn retry_of_released_lease_takes_no_permit_of_another() {
    let (mut fixture, session) =
        Fixture::with_session("concurrency:\n- {name: one, key: [org], max: 1}\n", 0);
    let ask = named(b"x", "org=a");
    let first = fixture.ask(&session, s(0), ask);
    assert!(fixture.release(&session, first.lease, s(1)));
    assert!(fixture.acquire(&session, s(1), "org=a").lease.is_some());
    let again = fixture.ask(&session, s(1), ask);
    assert!(again.line.starts_with("limit one 0/1") && again.lease.is_none(), "{again:?}");
}

#[test]
fn retry_gets_same_lease_without_matching_rule() {
    let rules = "exempt:\n- {name: probes, match: {path: /healthz}}\ndeny:\n- {name: bots, match: {bot: yes}}\n\
                 limits:\n- {name: per-user, key: [user], rate: 1/min}\n";
    for (mode, attributes, line) in [
        (Mode::Enforce, "path=/healthz", "allow probes"),
        (Mode::Enforce, "nothing=known", "allow"),
        (Mode::Enforce, "user=a", "allow per-user 0/1"),
        (Mode::Shadow, "path=/healthz", "allow probes"),
        (Mode::Shadow, "bot=yes", "allow [shadow bots]"),
        (Mode::Disabled, "path=/healthz", "allow"),
        (Mode::Disabled, "user=a", "allow"),
    ] {
        let mut fixture = Fixture::of(mode, rules);
        let session = fixture.session(1, 0, s(0));
        let first = fixture.ask(&session, s(0), named(b"x", attributes));
        let again = fixture.ask(&session, s(59), named(b"x", attributes));
        assert_eq!((first.line.as_str(), again.line.as_str()), (line, line), "{mode} {attributes}");
        assert_eq!((first.lease.is_some(), again.lease), (true, first.lease), "{mode} {attributes}");
        assert_eq!(fixture.engine.leases().live, 1, "{mode} {attributes}");
        assert_eq!(
            fixture.ask(&session, s(59), named(b"x", "other=one")).line,
            "conflict",
            "{mode} {attributes}"
        );
        assert!(fixture.release(&session, first.lease, s(59)));
        let anew = fixture.ask(&session, s(59), named(b"x", attributes)).lease;
        assert_ne!(anew, first.lease, "{mode} {attributes}");
        assert_eq!(anew.is_none(), line.starts_with("allow per-user"), "{mode} {attributes}");
        assert!(fixture.ask(&session, s(60), named(b"x", attributes)).lease.is_some(), "{mode} {attributes}");
        // An abandoned request is dropped with its idempotency key.
        let second = fixture.ask(&session, s(60), Ask { id: 7, ..named(b"y", "path=/healthz") });
        fixture.engine.abandon_requests(&session, &mut [(1, 7)].into_iter(), s(60));
        let third = fixture.ask(&session, s(60), Ask { id: 8, ..named(b"y", "path=/healthz") });
        assert!(third.lease.is_some() && third.lease != second.lease, "{mode} {attributes}");
    }
}

#[test]
fn domain_without_rules_recognizes_retries() {
    let mut fixture = Fixture::new(EXPORTS);
    fixture.engine.install_rules(Vec::<Domain>::new());
    let session = fixture.session(1, 0, s(0));
    let first = fixture.ask(&session, s(0), named(b"x", "org=a"));
    // A reload in between does not make it another request.
    fixture.install(EXPORTS);
    assert_eq!(fixture.ask(&session, s(1), named(b"x", "org=a")), first);
    assert_eq!(fixture.engine.leases().live, 1);
}

#[test]
fn expired_lease_is_not_reused_before_sweep() {
    let (mut fixture, session) =
        Fixture::with_session("concurrency:\n- {name: short, key: [org], max: 2, expires: 5s}\n", 0);
    let first = fixture.ask(&session, s(0), named(b"x", "org=a"));
    assert_eq!(fixture.ask(&session, ms(4_999), named(b"x", "org=a")).lease, first.lease);
    assert_eq!(fixture.ask(&session, s(5), named(b"x", "org=a")).lease, None);
    assert!(!fixture.engine.holds_lease(&session, first.lease.unwrap(), s(5)));
}

#[test]
fn retry_is_granted_at_lease_maximum() {
    let (mut fixture, session) = Fixture::with_session(EXPORTS, 0);
    let first = fixture.ask(&session, s(0), named(b"x", "org=a"));
    let last = (0..1_023).map(|_| fixture.acquire(&session, s(0), "no=rule")).last();
    assert!(last.is_some_and(|answer| answer.lease.is_some()));
    assert_eq!(fixture.acquire(&session, s(1), "no=rule").line, "quota");
    assert_eq!(fixture.ask(&session, s(1), named(b"x", "org=a")).lease, first.lease);
}
