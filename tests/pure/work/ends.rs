//! Leases end by release, by their time, with their session or when abandoned, each once.

use std::ops::Range;

use tidegate::clock::Now;
use tidegate::engine::{AccountUse, ConnectionParams, Session, SessionError};

use crate::bench::named;

use super::fixture::{Ask, Fixture, ms, s};

const TWO: &str = "concurrency:\n- {name: two, key: [], max: 2, expires: 60s}\n";

#[test]
fn lease_past_its_time_can_be_renewed_until_it_is_ended() {
    let (mut fixture, session) = Fixture::with_session(TWO, 0);
    let lease = fixture.acquire(&session, s(0), "a=b").lease;
    // The daemon stood still until 100 s.
    fixture.engine.defer_lease_ends(s(120).at);
    fixture.engine.end_expired_leases(s(100));
    assert!(fixture.engine.renew_lease(&session, lease.unwrap(), s(101)));
    for (seconds, held) in [(120, 1), (160, 1), (161, 0)] {
        fixture.engine.end_expired_leases(s(seconds));
        fixture.holds(held);
    }
    assert!(!fixture.engine.renew_lease(&session, lease.unwrap(), s(161)));
}

#[test]
fn longest_matching_expiry_applies_or_one_minute() {
    let rules = "concurrency:\n- {name: short, match: {a: b}, key: [], max: 9, expires: 5s}\n\
                 - {name: long, match: {c: d}, key: [], max: 9, expires: 3h}\n";
    let (mut fixture, session) = Fixture::with_session(rules, 0);
    for (attributes, seconds) in [("a=b", 5), ("a=b c=d", 10_800), ("e=f", 60)] {
        let before = fixture.engine.leases().expired;
        let start = before * 1_000_000;
        fixture.acquire(&session, s(start), attributes);
        fixture.engine.end_expired_leases(ms((start + seconds) * 1_000 - 1));
        assert_eq!(fixture.engine.leases().expired, before, "{attributes}");
        fixture.engine.end_expired_leases(s(start + seconds));
        assert_eq!(fixture.engine.leases().expired, before + 1, "{attributes}");
    }
}

#[test]
fn waits_for_session_without_connection() {
    let mut fixture = Fixture::new(TWO);
    let first = fixture.connection(1, 0, 1, s(0));
    let lease = fixture.acquire(&first, s(0), "a=b").lease;
    let second = fixture.connection(1, 0, 2, s(0));
    fixture.engine.close_connection(&first, s(1));
    fixture.engine.end_expired_leases(s(10));
    fixture.holds(1);
    fixture.engine.close_connection(&second, s(10));
    fixture.engine.end_expired_leases(ms(14_999));
    fixture.holds(1);
    // It returned in time: no effect.
    let third = fixture.connection(1, 0, 3, ms(14_999));
    fixture.engine.end_expired_leases(s(20));
    assert!(fixture.release(&third, lease, s(20)), "any connection of the session may release");
    fixture.acquire(&third, s(20), "a=b");
    fixture.engine.close_connection(&third, s(21));
    fixture.engine.end_expired_leases(s(26));
    fixture.holds(0);
    assert_eq!(fixture.engine.leases().sessions, 0);
}

#[test]
fn session_keeps_user_pool_and_slots() {
    let fixture = Fixture::new(TWO);
    fixture.session(1, 4, s(0));
    let opening =
        ConnectionParams { name: Some([1; 16]), user: 1, pool: "web", slots: 4, connection: 2, pid: None };
    let open = |opening: ConnectionParams<'_>| fixture.engine.open_session(&opening, s(0)).map(|_| ());
    assert_eq!(open(ConnectionParams { user: 2, ..opening }), Err(SessionError::OtherUser));
    assert_eq!(open(ConnectionParams { pool: "other", ..opening }), Err(SessionError::OtherPoolOrSlots));
    assert_eq!(open(ConnectionParams { slots: 5, ..opening }), Err(SessionError::OtherPoolOrSlots));
    assert_eq!(open(opening), Ok(()));
    assert_eq!(fixture.engine.leases().sessions, 1);
}

#[test]
fn abandoned_request_ends_before_and_after_grant() {
    let rules = format!("limits:\n- {{name: rate, key: [], rate: 9/h}}\n{TWO}");
    let mut fixture = Fixture::new(&rules);
    let session = fixture.connection(1, 0, 7, s(0));
    let ask = |id| Ask { id, repeat: Some(named(b"x")), ..Ask::acquire("a=b") };
    fixture.ask(&session, s(0), ask(1));
    fixture.holds(1);
    fixture.engine.abandon_requests(&session, &mut [(8, 1), (7, 2)].into_iter(), s(0));
    fixture.holds(1);
    fixture.engine.abandon_requests(&session, &mut [(7, 1)].into_iter(), s(0));
    fixture.holds(0);
    // Its idempotency key is dropped, so it is charged anew; and this one was abandoned before its grant.
    let answer = fixture.ask(&session, s(0), ask(2));
    assert_eq!((answer.line.as_str(), answer.lease), ("allow two 1/2", None));
    fixture.holds(0);
    let answer = fixture.ask(&session, s(0), ask(3));
    assert!(answer.lease.is_some(), "neither is this a repeat of it: {answer:?}");
    fixture.holds(1);
    // A report that ended a lease is used up: another request with that id is new.
    fixture.engine.abandon_requests(&session, &mut [(7, 3)].into_iter(), s(1));
    fixture.holds(0);
    let answer = fixture.ask(&session, s(1), Ask { id: 3, ..Ask::acquire("c=d") });
    assert!(answer.lease.is_some(), "{answer:?}");
    // Reports are kept for a minute.
    fixture.engine.abandon_requests(&session, &mut [(7, 4)].into_iter(), s(1));
    assert!(fixture.ask(&session, s(61), Ask { id: 4, ..Ask::acquire("c=d") }).lease.is_some());
}

/// Abandons requests of a session on its connection, in frames of as many reports as are taken from one.
fn abandon(fixture: &Fixture, session: &Session, requests: Range<u64>, at: Now) {
    for first in requests.clone().step_by(1_024) {
        let frame = first..requests.end.min(first + 1_024);
        fixture.engine.abandon_requests(session, &mut frame.map(|id| (1, id)), at);
    }
}

#[test]
fn keeps_latest_reports_and_frees_expired_ones() {
    let (mut fixture, session) = Fixture::with_session(TWO, 0);
    let without = fixture.engine.held_bytes().total;
    abandon(&fixture, &session, 0..5_000, s(0));
    let mut is_granted = |id| fixture.ask(&session, s(0), Ask { id, ..Ask::acquire("a=b") }).lease.is_some();
    assert!(!is_granted(4_999) && is_granted(4_999));
    assert!(is_granted(3), "the oldest gave way");
    fixture.engine.end_session(&session, s(0));
    let session = fixture.session(2, 0, s(0));
    abandon(&fixture, &session, 0..9, s(0));
    let sweep = |at| (0..64).for_each(|_| fixture.engine.sweep(at));
    sweep(ms(59_999));
    assert!(fixture.engine.held_bytes().total > without);
    sweep(s(60));
    assert_eq!(fixture.engine.held_bytes().total, without);
}

#[test]
fn full_account_bounds_reports_of_all_sessions() {
    const USER_BYTES_MAX: usize = 16 << 20;
    let mut fixture = Fixture::new(TWO);
    let sessions: Vec<_> = (1..=250).map(|name| fixture.session(name, 0, s(0))).collect();
    let without = fixture.engine.held_bytes().total;
    sessions.iter().for_each(|session| abandon(&fixture, session, 0..1_024, s(0)));
    let reports = fixture.engine.held_bytes().total - without;
    let quarter = USER_BYTES_MAX as u64 / 4;
    assert!((quarter * 9 / 10..=quarter).contains(&reports), "{reports}");
    let account = fixture.engine.account(1);
    assert!(account.grow(AccountUse::Buffers, USER_BYTES_MAX / 2));
    // A session with reports keeps replacing its oldest.
    let last = Ask { id: 1_023, ..Ask::acquire("a=b") };
    assert_eq!(fixture.ask(&sessions[0], s(0), last).lease, None);
    account.shrink(USER_BYTES_MAX / 2);
    sessions.iter().for_each(|session| fixture.engine.end_session(session, s(0)));
    assert_eq!(fixture.engine.held_bytes().total, 0);
}

#[test]
fn bounds_leases_of_a_user() {
    let mut fixture = Fixture::new("limits: []\n");
    for number in 1..=16 {
        let session = fixture.session(number, 0, s(0));
        for _ in 0..1_024 {
            assert!(fixture.acquire(&session, s(0), "a=b").lease.is_some());
        }
    }
    let session = fixture.session(17, 0, s(0));
    assert_eq!(fixture.acquire(&session, s(0), "a=b").line, "quota");
    fixture.engine.end_expired_leases(s(60));
    assert_eq!(fixture.engine.leases().live, 0);
    assert!(fixture.acquire(&session, s(60), "a=b").lease.is_some());
}

#[test]
fn lease_numbers_are_unpredictable() {
    let (mut fixture, session) = Fixture::with_session("limits: []\n", 0);
    let numbers: Vec<u64> = (0..500).map(|_| fixture.acquire(&session, s(0), "a=b").lease.unwrap()).collect();
    assert!(numbers.iter().all(|number| *number > 0 && *number < 1 << 63));
    // All 499 differences differ, and each bit is set in about half of all numbers.
    let mut steps: Vec<_> = numbers.windows(2).map(|pair| pair[1].wrapping_sub(pair[0])).collect();
    steps.sort_unstable();
    steps.dedup();
    assert_eq!(steps.len(), 499);
    for bit in 0..63 {
        let set = numbers.iter().filter(|number| **number >> bit & 1 == 1).count();
        assert!((150..350).contains(&set), "bit {bit} is set {set} times");
    }
}

#[test]
fn counts_unknown_leases_by_cause() {
    let mut fixture = Fixture::new(TWO);
    let (session, other) = (fixture.session(1, 0, s(0)), fixture.session(2, 0, s(0)));
    let counted = |fixture: &Fixture| {
        let counts = fixture.engine.leases().not_held;
        (counts.ended, counts.foreign, counts.unknown)
    };
    let lease = fixture.acquire(&session, s(0), "a=b").lease;
    assert!(fixture.engine.renew_lease(&session, lease.unwrap(), s(1)));
    assert_eq!(counted(&fixture), (0, 0, 0), "what is held is not counted");
    // The lease of another session, for release and renewal.
    assert!(!fixture.release(&other, lease, s(1)));
    assert!(!fixture.engine.renew_lease(&other, lease.unwrap(), s(1)));
    assert_eq!(counted(&fixture), (0, 2, 0));
    fixture.holds(1);
    assert!(fixture.release(&session, lease, s(1)));
    assert_eq!(counted(&fixture), (0, 2, 0));
    // Released twice, renewed after its end, released after its time and after its session.
    assert!(!fixture.release(&session, lease, s(1)));
    assert!(!fixture.engine.renew_lease(&session, lease.unwrap(), s(1)));
    let late = fixture.acquire(&session, s(1), "a=b").lease;
    assert!(!fixture.release(&session, late, s(61)));
    let ended = fixture.acquire(&session, s(61), "a=b").lease;
    fixture.engine.end_session(&session, s(61));
    assert!(!fixture.release(&session, ended, s(61)));
    assert_eq!(counted(&fixture), (4, 2, 0));
    // Invented numbers. One in 16 384 of them looks like a former lease.
    let made_up = (1..=10).filter(|number| {
        !fixture.release(&other, Some(u64::wrapping_mul(*number, 0x9E37_79B9_7F4A_7C15)), s(61))
    });
    assert_eq!(made_up.count(), 10);
    assert_eq!(counted(&fixture), (4, 2, 10));
    // A revoked grant that was not delivered counts as no error.
    let untold = fixture.acquire(&other, s(61), "a=b").lease;
    fixture.engine.revoke_lease(&other, untold.unwrap(), s(61));
    fixture.engine.revoke_lease(&other, untold.unwrap(), s(61));
    assert_eq!(counted(&fixture), (4, 2, 10));
}
