//! Bounds, numbers and counts of leases. `engine/scenarios/` has when they end.

use std::ops::Range;

use tidegate::clock::Now;
use tidegate::engine::{AccountUse, Session};

use crate::bench::{Ask, Bench, s};
use crate::engines::at_millis as ms;

const EXPORTS: &str = "concurrency:\n- {name: exports, key: [org], max: 2, expires: 2h}\n";

const TWO: &str = "concurrency:\n- {name: two, key: [], max: 2, expires: 60s}\n";

/// Abandons requests of a session on its connection, in frames of as many reports as are taken from one.
fn abandon(bench: &Bench, session: &Session, requests: Range<u64>, at: Now) {
    for first in requests.clone().step_by(1_024) {
        let frame = first..requests.end.min(first + 1_024);
        bench.engine.abandon_requests(session, &mut frame.map(|id| (1, id)), at);
    }
}

#[test]
fn keeps_latest_reports_and_frees_expired_ones() {
    let (mut bench, session) = Bench::with_session(TWO, 0);
    let without = bench.engine.held_bytes().total;
    abandon(&bench, &session, 0..5_000, s(0));
    let mut is_granted = |id| bench.ask_by(&session, s(0), Ask { id, ..Ask::acquire("a=b") }).lease.is_some();
    assert!(!is_granted(4_999) && is_granted(4_999));
    assert!(is_granted(3), "the oldest gave way");
    bench.engine.end_session(&session, s(0));
    let session = bench.session(2, 0, s(0));
    abandon(&bench, &session, 0..9, s(0));
    let sweep = |at| (0..64).for_each(|_| bench.engine.sweep(at));
    sweep(ms(59_999));
    assert!(bench.engine.held_bytes().total > without);
    sweep(s(60));
    assert_eq!(bench.engine.held_bytes().total, without);
}

#[test]
fn full_account_bounds_reports_of_all_sessions() {
    const USER_BYTES_MAX: usize = 16 << 20;
    let mut bench = Bench::new(TWO);
    let sessions: Vec<_> = (1..=250).map(|name| bench.session(name, 0, s(0))).collect();
    let without = bench.engine.held_bytes().total;
    sessions.iter().for_each(|session| abandon(&bench, session, 0..1_024, s(0)));
    let reports = bench.engine.held_bytes().total - without;
    let quarter = USER_BYTES_MAX as u64 / 4;
    assert!((quarter * 9 / 10..=quarter).contains(&reports), "{reports}");
    let account = bench.engine.account(1);
    assert!(account.grow(AccountUse::Buffers, USER_BYTES_MAX / 2));
    // A session with reports keeps replacing its oldest.
    let last = Ask { id: 1_023, ..Ask::acquire("a=b") };
    assert_eq!(bench.ask_by(&sessions[0], s(0), last).lease, None);
    account.shrink(USER_BYTES_MAX / 2);
    sessions.iter().for_each(|session| bench.engine.end_session(session, s(0)));
    assert_eq!(bench.engine.held_bytes().total, 0);
}

#[test]
fn bounds_leases_of_a_user() {
    let mut bench = Bench::new("limits: []\n");
    for number in 1..=16 {
        let session = bench.session(number, 0, s(0));
        for _ in 0..1_024 {
            assert!(bench.acquire(&session, s(0), "a=b").lease.is_some());
        }
    }
    let session = bench.session(17, 0, s(0));
    assert_eq!(bench.acquire(&session, s(0), "a=b").line, "quota");
    bench.engine.end_expired_leases(s(60));
    assert_eq!(bench.engine.leases().live, 0);
    assert!(bench.acquire(&session, s(60), "a=b").lease.is_some());
}

#[test]
fn lease_numbers_are_unpredictable() {
    let (mut bench, session) = Bench::with_session("limits: []\n", 0);
    let numbers: Vec<u64> = (0..500).map(|_| bench.acquire(&session, s(0), "a=b").lease.unwrap()).collect();
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
fn counts_invented_and_revoked_leases() {
    let (mut bench, session) = Bench::with_session(EXPORTS, 0);
    // One in 16 384 invented numbers looks like a former lease.
    for number in 1..=10_u64 {
        let made_up = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        assert!(!bench.release(&session, Some(made_up), s(0)));
    }
    // A revoked grant that was not delivered counts as no error.
    let untold = bench.acquire(&session, s(0), "org=a").lease.unwrap();
    (0..2).for_each(|_| bench.engine.revoke_lease(&session, untold, s(0)));
    let counts = bench.engine.leases().not_held;
    assert_eq!((counts.ended, counts.foreign, counts.unknown), (0, 0, 10));
}

#[test]
fn refusal_has_the_same_hint_for_the_same_caller() {
    let (mut bench, session) = Bench::with_session(EXPORTS, 0);
    let [.., third] = [(); 3].map(|()| bench.acquire(&session, s(0), "org=a"));
    assert!(third.lease.is_none() && (500_000..=1_500_000).contains(&third.retry.unwrap()), "{third:?}");
    assert_eq!(bench.acquire(&session, s(1), "org=a"), third);
}
