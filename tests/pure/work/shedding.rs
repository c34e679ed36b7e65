//! The limiters before a pool, each part alone and in their order; and a reserve over all hosts: the report of this
//! host, and how long it follows a reply.

use std::time::Duration;

use tidegate::engine::{
    Descriptors, EngineAnswer, HashKey, Op, OtherHostsSums, OtherHostsView, PoolLoad, Request, Session,
    Verdict,
};

use crate::bench::{Ask, Bench, s};
use crate::engines::at_millis as ms;

fn rules(parts: &str) -> String {
    format!("priorities: [critical, post, get, test]\nshed:\n- {{pool: web, {parts}}}\n")
}

fn ask<'a>(attributes: &'a str, priority: &'a str) -> Ask<'a> {
    Ask { priority: Some(priority), ..Ask::acquire(attributes) }
}

/// Keeps `busy` slots busy from `from` to `to`, in seconds, with a tick every 250 ms.
fn run(bench: &mut Bench, session: &Session, from: u64, to: u64, busy: u32) {
    let mut leases = Vec::new();
    for quarter in from * 4..to * 4 {
        // Replaced before they expire.
        if leases.is_empty() || quarter % 160 == 0 {
            leases
                .drain(..)
                .for_each(|lease| assert!(bench.release(session, Some(lease), ms(quarter * 250))));
            for _ in 0..busy {
                let answer = bench.ask_by(session, ms(quarter * 250), ask("job=worker", "critical"));
                leases.push(answer.lease.unwrap());
            }
        }
        bench.engine.tick(ms(quarter * 250));
    }
    leases.drain(..).for_each(|lease| assert!(bench.release(session, Some(lease), s(to))));
}

#[test]
fn peek_does_not_affect_workers_controller() {
    for exact in ["{leak: 0}", "{stripe_exact: true}"] {
        let answer = |looks: bool| {
            let (mut bench, session) = Bench::with_session(&rules(&format!("workers: {exact}")), 10);
            bench.engine.tick(s(0));
            run(&mut bench, &session, 0, 46, 10);
            bench.engine.tick(s(46));
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
    let (mut bench, session) = Bench::with_session(&rules("workers: {}"), 10);
    bench.engine.tick(s(0));
    // s = 0.2: of three sheddable priorities the lowest is shed with probability 0.6.
    run(&mut bench, &session, 0, 52, 10);
    bench.engine.tick(s(52));
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
    let (mut bench, session) = Bench::with_session(&rules("workers: {}"), 10);
    bench.engine.tick(s(0));
    run(&mut bench, &session, 0, 52, 10);
    bench.engine.tick(s(52));
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

#[test]
fn pending_request_takes_no_slot_and_is_shed_before_remote_check() {
    let limits = "limits:\n- {name: all, key: [user], rate: 9/h, scope: fleet, fleet: {mode: exact}}\n";
    let mut bench = Bench::new("");
    bench.engine.join_fleet(HashKey::from_bytes([9; 16])).set_redis_reachable(true);
    bench.install(&format!("{limits}{}", rules("fleet: {reserve: 50%}")));
    let session = bench.session(1, 4, s(0));
    let attributes = [("user", "u")];
    let request = Request {
        session: Some(&session),
        may_wait: true,
        priority: Some("get"),
        ..Request::new(Op::Acquire, "api", Descriptors::from_attributes(&attributes))
    };
    for _ in 0..9 {
        assert!(matches!(bench.decider.decide(&request, s(0)), EngineAnswer::RemoteCheck(_)));
    }
    let pool = bench.engine.pools(s(0)).remove(0);
    assert_eq!((pool.critical, pool.noncritical, pool.busy), (0, 0, 0));
    let totals = bench.engine.totals();
    assert!(totals.rules.iter().all(|rule| rule.pass + rule.refuse == 0), "{totals:?}");
    // Requests that the rule does not match take half of the slots.
    for _ in 0..2 {
        assert_eq!(bench.ask_by(&session, s(0), ask("job=worker", "get")).line, "allow");
    }
    let EngineAnswer::Decided(decision) = bench.decider.decide(&request, s(0)) else { panic!("it asks") };
    assert_eq!((decision.verdict, decision.rule_name()), (Verdict::Shed, Some("web/fleet")));
    assert!((1_000_000..=3_000_000).contains(&decision.retry_after.unwrap().0), "{decision:?}");
    assert_eq!(bench.engine.pools(s(0)).remove(0).noncritical, 2);
}

const RULES: &str = "priorities: [critical, post, get]
shed:
- {pool: web, fleet: {reserve: 20%, for: critical}}
";

fn fill(bench: &mut Bench, session: &Session, millis: u64) -> u32 {
    let get = Ask { priority: Some("get"), ..Ask::acquire("user=u") };
    let leases: Vec<_> =
        std::iter::from_fn(|| bench.ask_by(session, ms(millis), get).lease).take(99).collect();
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
    let sums = PoolLoad { slots: 20, critical: 1, noncritical: 3 };
    // The maximum in the reply; then leases of lower priorities at each time, where this host alone has
    // eight.
    for (most, early, late, alone) in [(3, 3, 3, 8), (9, 9, 8, 8), (99, 10, 8, 8), (0, 0, 0, 8)] {
        let (mut bench, session) = Bench::with_session(RULES, 10);
        assert_eq!(fill(&mut bench, &session, 0), alone);
        bench.engine.set_other_hosts_sums(
            "web",
            OtherHostsSums { sums, noncritical_max: most, local_max: 8, reported_at: s(1).at },
        );
        bench.engine.set_other_hosts_sums(
            "unknown",
            OtherHostsSums { sums, noncritical_max: 1, local_max: 8, reported_at: s(1).at },
        );
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
    let sums = PoolLoad { slots: 20, critical: 0, noncritical: 0 };
    bench.engine.set_other_hosts_sums(
        "web",
        OtherHostsSums { sums, noncritical_max: 5, local_max: 8, reported_at: s(0).at },
    );
    let other = bench.session(2, 20, s(0));
    assert_eq!(fill(&mut bench, &session, 0), 21, "five, and the sixteen of the new slots");
    bench.engine.end_session(&other, s(1));
    assert_eq!(fill(&mut bench, &session, 1_000), 5);
}
