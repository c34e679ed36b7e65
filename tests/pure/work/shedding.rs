//! The limiters before a pool, each part alone and in their order; and a reserve over all hosts: the report of this
//! host, and how long it follows a reply.

use std::time::Duration;

use tidegate::clock::Now;
use tidegate::engine::{Op, OtherHostsSums, OtherHostsView, PoolLoad, Session};

use crate::bench::{Ask, Bench, s};
use crate::engines::at_millis as ms;

fn rules(parts: &str) -> String {
    format!("priorities: [critical, post, get, test]\nshed:\n- {{pool: web, {parts}}}\n")
}

fn ask<'a>(attributes: &'a str, priority: &'a str) -> Ask<'a> {
    Ask { priority: Some(priority), ..Ask::acquire(attributes) }
}

/// A host whose ten slots were busy for this number of seconds, with a tick every 250 ms.
fn busy(parts: &str, seconds: u64) -> (Bench, Session) {
    let (mut bench, session) = Bench::with_session(&rules(parts), 10);
    let leases = [(); 10].map(|()| bench.ask_by(&session, s(0), ask("job=worker", "critical")).lease);
    (0..=seconds * 4).for_each(|quarter| bench.engine.tick(ms(quarter * 250)));
    leases.into_iter().for_each(|lease| assert!(bench.release(&session, lease, s(seconds))));
    (bench, session)
}

#[test]
fn counts_slot_time_of_live_sessions_or_else_of_configured_slots() {
    // A session without known slots holds one lease.
    let (mut bench, session) = Bench::with_session(&rules("slots: 4, workers: {}"), 0);
    assert!(bench.ask_by(&session, s(0), ask("job=worker", "critical")).lease.is_some());
    bench.engine.tick(s(0));
    let mut live = None;
    // The busy and the slot seconds by each second: two live slots from 1.0 s to 3.5 s, of which it occupies none, else four
    // configured ones.
    let seconds = [(1.0, 4.0), (1.0, 6.0), (1.0, 8.0), (1.0, 9.0), (2.0, 13.0)];
    for (second, (busy_seconds, slot_seconds)) in (1..).zip(seconds) {
        if second == 4 {
            live.take().into_iter().for_each(|live| bench.engine.end_session(&live, ms(3_500)));
        }
        bench.engine.tick(s(second));
        let utilization = bench.engine.pools(s(second)).remove(0).utilization.unwrap();
        let expected = busy_seconds / slot_seconds;
        assert!((utilization - expected).abs() < 1e-9, "second {second}: {utilization}");
        if second == 1 {
            live = Some(bench.session(2, 2, s(1)));
        }
    }
}

#[test]
fn peek_does_not_affect_workers_controller() {
    for exact in ["{leak: 0}", "{stripe_exact: true}"] {
        let answer = |looks: bool| {
            let (mut bench, session) = busy(&format!("workers: {exact}"), 46);
            let mut lines = Vec::new();
            for number in 0..2_000_u64 {
                let caller = format!("user={}", number % 40);
                let hit = Ask { op: Op::Hit, ..ask(&caller, "test") };
                // Peeks by one caller over and over, which would make it heavy; then by the caller of the
                // hit.
                let lookers = if looks { &["user=7", "user=7", "user=7", &caller][..] } else { &[] };
                let seen = lookers.iter().map(|caller| {
                    bench.ask_by(&session, s(46), Ask { op: Op::Peek, attributes: caller, ..hit }).line
                });
                let seen = seen.last();
                let line = bench.ask_by(&session, s(46), hit).line;
                // Drawn by caller, the verdict of a peek holds.
                assert!(exact.contains("true") || seen.is_none_or(|seen| seen == line), "{exact} {number}");
                lines.push(line);
            }
            assert!(lines.iter().any(|line| line == "shed web/workers"));
            lines
        };
        assert!(answer(false) == answer(true), "{exact}: who looks changes nothing");
    }
}

#[test]
fn shed_caller_is_shed_again() {
    // s = 0.2: of three sheddable priorities the lowest is shed with probability 0.6.
    let (mut bench, session) = busy("workers: {}", 52);
    let chance = bench.engine.pools(s(52)).remove(0).shed_probabilities[0].1;
    assert!((chance - 0.6).abs() < 0.01, "{chance}");
    let shed = |bench: &mut Bench, caller: &str, user: usize, at: u64| {
        let attributes = caller.replace('#', &user.to_string());
        let answer = bench.ask_by(&session, s(at), Ask { op: Op::Peek, ..ask(&attributes, "test") });
        (answer.line == "shed web/workers", answer.retry)
    };
    // By the first attribute that is present.
    for caller in ["user=u# ip=i", "ip=i#", "user= ip=i#"] {
        let mut all = |at: u64| (0..1_000).map(|user| shed(&mut bench, caller, user, at)).collect::<Vec<_>>();
        let first = all(52);
        let count = first.iter().filter(|(shed, _)| *shed).count();
        assert!((550..650).contains(&count), "{count} of a thousand callers");
        for _ in 0..5 {
            assert_eq!(all(52), first);
        }
        // Ten minutes later other callers are shed.
        let later = all(652);
        let still = first.iter().zip(&later).filter(|(first, later)| first.0 && later.0).count();
        assert!((280..440).contains(&still), "{still} of {count} again");
    }
}

#[test]
fn heavy_caller_is_shed_per_request() {
    let (mut bench, session) = busy("workers: {}", 52);
    let mut shed = 0;
    for _ in 0..2_000 {
        let answer = bench.ask_by(&session, s(52), Ask { op: Op::Hit, ..ask("user=big", "test") });
        shed += u32::from(answer.line == "shed web/workers");
    }
    assert!((1_000..1_400).contains(&shed), "{shed} of 2000 by a chance of 0.6");
    let looks = (0..200).filter(|_| {
        let answer = bench.ask_by(&session, s(52), Ask { op: Op::Peek, ..ask("user=big", "test") });
        answer.line == "shed web/workers"
    });
    let seen = looks.count();
    assert!((80..160).contains(&seen), "{seen} of 200 looks");
}

const RULES: &str = "priorities: [critical, post, get]
shed:
- {pool: web, fleet: {reserve: 20%, for: critical}}
";

/// Tells of other hosts with twenty slots.
fn tell(bench: &Bench, pool: &str, critical: u64, noncritical: u64, noncritical_max: u32, at: Now) {
    let sums = PoolLoad { slots: 20, critical, noncritical };
    let sums = OtherHostsSums { sums, noncritical_max, local_max: 8, reported_at: at.at };
    bench.engine.set_other_hosts_sums(pool, sums);
}

fn fill(bench: &mut Bench, session: &Session, millis: u64) -> u32 {
    let get = Ask { priority: Some("get"), ..Ask::acquire("user=u") };
    let acquire = || {
        let answer = bench.ask_by(session, ms(millis), get);
        let is_hint = |retry: u64| (1_000_000..=3_000_000).contains(&retry);
        assert!(answer.lease.is_some() || answer.retry.is_some_and(is_hint), "{answer:?}");
        answer.lease
    };
    let leases: Vec<_> = std::iter::from_fn(acquire).take(99).collect();
    leases.iter().for_each(|lease| assert!(bench.release(session, Some(*lease), ms(millis))));
    u32::try_from(leases.len()).unwrap()
}

#[test]
fn reports_slots_leases_and_refusals_since_the_last_report() {
    let mut bench = Bench::new(RULES);
    assert!(bench.engine.has_fleet_reserve());
    let session = bench.session(1, 10, s(0));
    let report = |bench: &Bench| {
        let reserves = bench.engine.take_pool_reserves();
        let [web] = reserves.as_slice() else { panic!("{reserves:?}") };
        assert_eq!((&*web.pool, web.here.slots, web.here.reserve), ("web", 10, 200));
        (web.here.noncritical, web.critical, web.here.refused_since_publish)
    };
    assert_eq!(report(&bench), (0, 0, false));
    for priority in ["critical", "get", "post", "get"] {
        bench.ask_by(&session, s(0), Ask { priority: Some(priority), ..Ask::acquire("user=u") });
    }
    assert_eq!(report(&bench), (3, 1, false));
    assert_eq!(fill(&mut bench, &session, 0), 5);
    assert_eq!([report(&bench), report(&bench)], [(3, 1, true), (3, 1, false)]);
    bench.install("priorities: [critical, get]\nshed:\n- {pool: web, queue_age: {}}\n");
    assert!(!bench.engine.has_fleet_reserve() && bench.engine.take_pool_reserves().is_empty());
}

#[test]
fn follows_reply_until_expiry_and_returns_borrowed_slots_first() {
    // The maximum in the reply; then leases of lower priorities at each time, where this host alone has
    // eight.
    for (most, early, late, alone) in [(3, 3, 3, 8), (9, 9, 8, 8), (99, 10, 8, 8), (0, 0, 0, 8)] {
        let (mut bench, session) = Bench::with_session(RULES, 10);
        assert_eq!(fill(&mut bench, &session, 0), alone);
        tell(&bench, "web", 1, 3, most, s(1));
        tell(&bench, "unknown", 1, 3, 1, s(1));
        for (millis, expected) in
            [(1_000, early), (2_899, early), (2_900, late), (10_999, late), (11_000, alone), (99_000, alone)]
        {
            assert_eq!(fill(&mut bench, &session, millis), expected, "{most} at {millis} ms");
            let view = bench.engine.pools(ms(millis)).remove(0).reserve.unwrap();
            let stale_s = Duration::from_millis(millis - 1_000).as_secs_f64();
            let elsewhere = OtherHostsView { slots: 20, critical: 1, noncritical: 3, stale_s };
            let elsewhere = (millis < 11_000).then_some(elsewhere);
            assert_eq!((view.noncritical_max, view.elsewhere), (Some(expected), elsewhere));
            assert_eq!(view.shared, elsewhere.is_some());
        }
    }
}

#[test]
fn slots_added_since_reply_stay_local() {
    let (mut bench, session) = Bench::with_session(RULES, 10);
    tell(&bench, "web", 0, 0, 5, s(0));
    let other = bench.session(2, 20, s(0));
    assert_eq!(fill(&mut bench, &session, 0), 21, "five, and the sixteen of the new slots");
    bench.engine.end_session(&other, s(1));
    assert_eq!(fill(&mut bench, &session, 1_000), 5);
}
