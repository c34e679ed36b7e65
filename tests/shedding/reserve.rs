//! The reserve: on one host, with a hundred slots and a fifth of them kept back.

use tidegate::clock::{Now, Timestamp};
use tidegate::engine::{
    Decider, Descriptors, EngineAnswer, Op, OtherHostsSums, Request, Session, Verdict, WorkOutcome,
};
use tidegate::shed::FleetSums;

use crate::real::{engine, open, web};

const RULES: &str = "domain: api\npriorities: [critical, other]\n\
    shed: [{pool: web, fleet: {reserve: 20%, for: critical}}]\n";

fn ask(decider: &mut Decider, session: &Session, priority: &str, at: u64) -> (Verdict, Option<u64>) {
    let attributes = [("user", "u1")];
    let request = Request {
        priority: Some(priority),
        session: Some(session),
        id: at,
        ..Request::new(Op::Acquire, "api", Descriptors::from_attributes(&attributes))
    };
    let EngineAnswer::Decided(decision) = decider.decide(&request, Now::at_nanos(at)) else {
        panic!("too many leases")
    };
    if decision.verdict == Verdict::Shed {
        assert_eq!(decision.rule_name(), Some("web/fleet"));
        assert!(decision.retry_after.is_some_and(|retry| retry.0 > 0));
    }
    (decision.verdict, decision.lease)
}

#[test]
fn other_work_never_has_more_than_its_part_and_critical_work_may_have_all() {
    let engine = engine(RULES, 7);
    let session = open(&engine, 100);
    let mut decider = engine.decider();
    let mut at = 0;
    let mut ask = |priority: &str| {
        at += 1_000;
        ask(&mut decider, &session, priority, at)
    };
    let mut others: Vec<u64> = (0..80).map(|_| ask("other").1.unwrap()).collect();
    assert_eq!(ask("other"), (Verdict::Shed, None), "the 81st, with 20 slots free");
    let critical: Vec<u64> = (0..20).map(|_| ask("critical").1.unwrap()).collect();
    let pool = web(&engine, 0);
    assert_eq!((pool.critical, pool.noncritical, pool.busy), (20, 80, 100), "critical work is counted");
    assert_eq!(ask("other").0, Verdict::Shed);

    // One goes, one comes; critical work that goes makes no room for other.
    let now = Now::at_nanos(1_000_000);
    assert!(engine.release_lease(&session, critical[0], WorkOutcome::Ok, now));
    assert_eq!(ask("other").0, Verdict::Shed);
    assert!(engine.release_lease(&session, others.pop().unwrap(), WorkOutcome::Error, now));
    assert_eq!(ask("other").0, Verdict::Allow);
    assert_eq!(ask("other").0, Verdict::Shed);
    others
        .iter()
        .for_each(|lease| assert!(engine.release_lease(&session, *lease, WorkOutcome::Dropped, now)));
    let pool = web(&engine, 0);
    assert_eq!((pool.critical, pool.noncritical), (19, 1));

    // Alone, critical work has every slot.
    let room: Vec<_> = (0..80).map(|_| ask("critical").0).collect();
    assert_eq!(room, [Verdict::Allow; 80]);
    assert_eq!(web(&engine, 0).critical, 99);
}

#[test]
fn other_hosts_count_as_they_said_last() {
    let engine = engine(RULES, 7);
    let session = open(&engine, 100);
    let mut decider = engine.decider();
    let mut at = 0;
    let mut allowed_until_shed = || {
        (0..)
            .find(|_| {
                at += 1_000;
                ask(&mut decider, &session, "other", at).0 == Verdict::Shed
            })
            .unwrap_or(0)
    };
    assert_eq!(allowed_until_shed(), 80);
    // An idle host joins: the reserve is a part of both, wherever the work is.
    let most = |others| {
        let sums = FleetSums { slots: 100, critical: 0, noncritical: others };
        let most = sums.noncritical_max_here(100, 200);
        engine.set_other_hosts_sums(
            "web",
            OtherHostsSums { sums, noncritical_max: most, local_max: 80, reported_at: Timestamp::ORIGIN },
        );
    };
    most(60);
    assert_eq!(allowed_until_shed(), 20, "100 here and 60 there");
    most(59);
    assert_eq!(allowed_until_shed(), 0, "what is not in these slots is not lent to them");
    most(80);
    assert_eq!(allowed_until_shed(), 0, "the others have their part again, with 100 at work here");
}
