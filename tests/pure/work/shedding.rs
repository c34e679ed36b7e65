//! The limiters before a pool, each part alone and in their order.

use tidegate::engine::{Descriptors, EngineAnswer, HashKey, Op, Request, Session, Verdict};
use tidegate::rules::Mode;

use super::fixture::{Ask, Fixture, ms, s};

fn rules(parts: &str) -> String {
    format!("priorities: [critical, post, get, test]\nshed:\n- {{pool: web, {parts}}}\n")
}

fn ask<'a>(attributes: &'a str, priority: &'a str) -> Ask<'a> {
    Ask { priority: Some(priority), ..Ask::acquire(attributes) }
}

#[test]
fn noncritical_requests_never_use_the_reserve() {
    let (mut fixture, session) = Fixture::with_session(&rules("fleet: {reserve: 20%, for: critical}"), 100);
    for number in 0..80 {
        let answer = fixture.ask(&session, s(0), ask("user=a", ["post", "get", "test"][number % 3]));
        assert_eq!(answer.line, "allow", "{number}");
    }
    // The 81st is refused while twenty slots are free, whatever its priority.
    for priority in ["post", "get", "test"] {
        let answer = fixture.ask(&session, s(0), ask("user=a", priority));
        assert_eq!(answer.line, "shed web/fleet");
        assert!((1_000_000..=3_000_000).contains(&answer.retry.unwrap()), "{answer:?}");
    }
    for number in 0..40 {
        assert_eq!(fixture.ask(&session, s(0), ask("user=a", "critical")).line, "allow", "{number}");
    }
    let pool = fixture.engine.pools(s(0)).remove(0);
    assert_eq!((pool.critical, pool.noncritical, pool.busy, pool.slots), (40, 80, 100, Some(100)));
    let totals = fixture.engine.totals();
    let fleet = totals.rules.iter().find(|rule| &*rule.rule == "web/fleet").unwrap();
    assert_eq!((fleet.pass, fleet.refuse, totals.verdicts.shed, totals.verdicts.limit), (120, 3, 3, 0));
}

#[test]
fn exempt_requests_count_by_priority_and_are_never_shed() {
    let exempt = "exempt:\n- {name: probes, match: {path: /healthz}}\n";
    let (mut fixture, session) =
        Fixture::with_session(&format!("{exempt}{}", rules("fleet: {reserve: 50%}")), 4);
    let probe = |fixture: &mut Fixture, priority| {
        let answer = fixture.ask(&session, s(0), ask("path=/healthz", priority));
        assert_eq!(answer.line, "allow probes");
        answer.lease
    };
    let counted = |fixture: &Fixture| {
        let pool = fixture.engine.pools(s(0)).remove(0);
        (pool.critical, pool.noncritical)
    };
    // A critical request takes nothing from the others.
    let important = probe(&mut fixture, "critical");
    assert_eq!(counted(&fixture), (1, 0));
    assert!(fixture.release(&session, important, s(0)));
    // Exempt requests hold three of two slots; others wait until they leave the reserve.
    let others: Vec<_> = (0..3).map(|_| probe(&mut fixture, "test")).collect();
    assert_eq!(counted(&fixture), (0, 3));
    for lease in &others[..2] {
        assert_eq!(fixture.ask(&session, s(0), ask("user=a", "get")).line, "shed web/fleet");
        assert!(fixture.release(&session, *lease, s(0)));
    }
    assert_eq!(fixture.ask(&session, s(0), ask("user=a", "get")).line, "allow");
    assert_eq!(counted(&fixture), (0, 2));
}

#[test]
fn peek_and_hit_take_no_slot_but_need_a_free_one() {
    let (mut fixture, session) = Fixture::with_session(&rules("fleet: {reserve: 50%}"), 2);
    for op in [Op::Hit, Op::Peek, Op::Hit] {
        assert_eq!(fixture.ask(&session, s(0), Ask { op, ..ask("user=a", "get") }).line, "allow");
    }
    fixture.ask(&session, s(0), ask("user=a", "get"));
    for op in [Op::Hit, Op::Peek] {
        assert_eq!(fixture.ask(&session, s(0), Ask { op, ..ask("user=a", "get") }).line, "shed web/fleet");
    }
}

#[test]
fn sheds_aged_requests_by_priority() {
    let (mut fixture, session) =
        Fixture::with_session(&rules("queue_age: {others: 500ms, critical: 2500ms}"), 0);
    let table = [
        ("get", 500_000, "allow"),
        ("get", 500_001, "shed web/queue_age"),
        ("critical", 2_500_000, "allow"),
        ("critical", 2_500_001, "shed web/queue_age"),
        // Such a wait means a wrong clock, so it is ignored.
        ("get", 60_000_001, "allow"),
        ("nobody-knows-it", 500_001, "shed web/queue_age"),
    ];
    for (priority, queued, line) in table {
        let answer = fixture.ask(&session, s(0), Ask { queued: Some(queued), ..ask("user=a", priority) });
        assert_eq!(answer.line, line, "{priority} {queued}");
    }
}

/// Keeps `busy` slots busy from `from` to `to`, in seconds, with a tick every 250 ms.
fn run(fixture: &mut Fixture, session: &Session, from: u64, to: u64, busy: u32) {
    let mut leases = Vec::new();
    for quarter in from * 4..to * 4 {
        // Replaced before they expire.
        if leases.is_empty() || quarter % 160 == 0 {
            leases
                .drain(..)
                .for_each(|lease| assert!(fixture.release(session, Some(lease), ms(quarter * 250))));
            for _ in 0..busy {
                let answer = fixture.ask(session, ms(quarter * 250), ask("job=worker", "critical"));
                leases.push(answer.lease.unwrap());
            }
        }
        fixture.engine.tick(ms(quarter * 250));
    }
    leases.drain(..).for_each(|lease| assert!(fixture.release(session, Some(lease), s(to))));
}

#[test]
fn counts_slot_time_of_live_sessions_or_else_of_configured_slots() {
    // A session without known slots holds one lease.
    let (mut fixture, session) = Fixture::with_session(&rules("slots: 4, workers: {}"), 0);
    assert!(fixture.ask(&session, s(0), ask("job=worker", "critical")).lease.is_some());
    fixture.engine.tick(s(0));
    let mut live = None;
    // The slot seconds by each second: two live slots from 1.0 s to 3.5 s, else four configured ones.
    for (second, slot_seconds) in (1..).zip([4.0, 6.0, 8.0, 9.0, 13.0]) {
        if second == 4 {
            live.take().into_iter().for_each(|live| fixture.engine.end_session(&live, ms(3_500)));
        }
        fixture.engine.tick(s(second));
        let utilization = fixture.engine.pools(s(second)).remove(0).utilization.unwrap();
        let expected = f64::from(u32::try_from(second).unwrap()) / slot_seconds;
        assert!((utilization - expected).abs() < 1e-9, "second {second}: {utilization}");
        if second == 1 {
            live = Some(fixture.session(2, 2, s(1)));
        }
    }
}

#[test]
fn peek_does_not_affect_workers_controller() {
    for exact in ["{leak: 0}", "{stripe_exact: true}"] {
        let answer = |looks: bool| {
            let (mut fixture, session) = Fixture::with_session(&rules(&format!("workers: {exact}")), 10);
            fixture.engine.tick(s(0));
            run(&mut fixture, &session, 0, 46, 10);
            fixture.engine.tick(s(46));
            let mut lines = Vec::new();
            for number in 0..2_000_u64 {
                let caller = format!("user={}", number % 40);
                let hit = Ask { op: Op::Hit, ..ask(&caller, "test") };
                // Peeks by one caller over and over, which would make it heavy; then by the caller of the
                // hit.
                let lookers = if looks { &["user=7", "user=7", "user=7", &caller][..] } else { &[] };
                let seen = lookers.iter().map(|caller| {
                    fixture.ask(&session, s(46), Ask { op: Op::Peek, attributes: caller, ..hit }).line
                });
                let seen = seen.last();
                let line = fixture.ask(&session, s(46), hit).line;
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
    let (mut fixture, session) = Fixture::with_session(&rules("workers: {}"), 10);
    fixture.engine.tick(s(0));
    // s = 0.2: of three sheddable priorities the lowest is shed with probability 0.6.
    run(&mut fixture, &session, 0, 52, 10);
    fixture.engine.tick(s(52));
    let chance = fixture.engine.pools(s(52)).remove(0).shed_probabilities[0].1;
    assert!((chance - 0.6).abs() < 0.01, "{chance}");
    let shed = |fixture: &mut Fixture, caller: &str, user: usize, at: u64| {
        let attributes = caller.replace('#', &user.to_string());
        let answer = fixture.ask(&session, s(at), Ask { op: Op::Peek, ..ask(&attributes, "test") });
        (answer.line == "shed web/workers", answer.retry)
    };
    // By the first attribute that is present.
    for caller in ["user=u# ip=i", "ip=i#", "user= ip=i#"] {
        let mut all =
            |at: u64| (0..1_000).map(|user| shed(&mut fixture, caller, user, at)).collect::<Vec<_>>();
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
fn controller_follows_its_configured_numbers() {
    const NUMBERS: &str = "good: 30%, bad: 50%, after: 10s, full: 40s, leak: 1/4";
    // Busy slots of ten; then the severity after ten seconds and after thirty.
    for (busy, ten, thirty) in [(10, 0.0, 0.5), (6, -0.2, -0.1), (4, -0.25, -0.25)] {
        for (critical, chances) in [("false", [1.0, 0.5, 0.0, 0.0]), ("true", [1.0, 1.0, 0.0, 0.0])] {
            let (mut fixture, session) = Fixture::with_session(
                &rules(&format!("workers: {{{NUMBERS}, shed_critical: {critical}}}")),
                10,
            );
            fixture.engine.tick(s(0));
            for (from, to, severity) in [(0, 10, ten), (10, 30, thirty)] {
                run(&mut fixture, &session, from, to, busy);
                fixture.engine.tick(s(to));
                let seen = fixture.engine.pools(s(to)).remove(0);
                assert!((seen.severity - severity).abs() < 0.000_1, "{busy} busy: {seen:?}");
            }
            let seen = fixture.engine.pools(s(30)).remove(0);
            let seen: Vec<f64> = seen
                .shed_probabilities
                .iter()
                .map(|(_, chance)| (chance * 1_000.0).round() / 1_000.0)
                .collect();
            assert_eq!(seen, if busy == 10 { chances } else { [0.0; 4] }, "shed_critical: {critical}");
        }
    }
}

#[test]
fn heavy_caller_is_shed_per_request() {
    let (mut fixture, session) = Fixture::with_session(&rules("workers: {}"), 10);
    fixture.engine.tick(s(0));
    run(&mut fixture, &session, 0, 52, 10);
    fixture.engine.tick(s(52));
    let mut shed = 0;
    for _ in 0..2_000 {
        let answer = fixture.ask(&session, s(52), Ask { op: Op::Hit, ..ask("user=big", "test") });
        shed += u32::from(answer.line == "shed web/workers");
    }
    assert!((1_000..1_400).contains(&shed), "{shed} of 2000 by a chance of 0.6");
    let looks = (0..200).filter(|_| {
        let answer = fixture.ask(&session, s(52), Ask { op: Op::Peek, ..ask("user=big", "test") });
        answer.line == "shed web/workers"
    });
    let seen = looks.count();
    assert!((80..160).contains(&seen), "{seen} of 200 looks");
}

#[test]
fn shadow_controller_notes_and_allows() {
    let (mut fixture, session) =
        Fixture::with_session(&rules("fleet: {reserve: 50%, mode: shadow}, queue_age: {mode: shadow}"), 2);
    fixture.ask(&session, s(0), ask("user=a", "get"));
    let answer = fixture.ask(&session, s(0), Ask { queued: Some(600_000), ..ask("user=a", "get") });
    assert_eq!(answer.line, "allow [shadow web/fleet] [shadow web/queue_age]");
    assert!(answer.lease.is_some());
    let mut fixture = Fixture::of(Mode::Shadow, &rules("queue_age: {}"));
    let session = fixture.session(1, 2, s(0));
    let answer = fixture.ask(&session, s(0), Ask { queued: Some(600_000), ..ask("user=a", "get") });
    assert_eq!(answer.line, "allow [shadow web/queue_age]");
}

#[test]
fn rule_limit_precedes_full_host() {
    let text =
        format!("limits:\n- {{name: per-user, key: [user], rate: 1/h}}\n{}", rules("fleet: {reserve: 90%}"));
    let (mut fixture, session) = Fixture::with_session(&text, 2);
    // A shed request is not charged.
    assert_eq!(fixture.ask(&session, s(0), ask("user=a", "get")).line, "shed web/fleet");
    assert_eq!(fixture.ask(&session, s(0), ask("user=a", "critical")).line, "allow per-user 0/1");
    let answer = fixture.ask(&session, s(0), ask("user=a", "get"));
    assert_eq!((answer.line.as_str(), answer.retry), ("limit per-user 0/1", Some(3_600_000_000)));
    let totals = fixture.engine.totals();
    assert_eq!((totals.verdicts.shed, totals.verdicts.limit, totals.verdicts.allow), (1, 1, 1));
}

#[test]
fn brake_sheds_noncritical_requests_on_standing_queue() {
    let (mut fixture, session) = Fixture::with_session(
        &rules("brake: {bands: [70%, 80%, 90%]}, signals: {accept_queue: {listen: ':8000'}}"),
        10,
    );
    for quarter in 0..=8 {
        fixture.engine.record_host_signal("web", "accept_queue", Some(10), ms(quarter * 250));
        fixture.engine.tick(ms(quarter * 250));
    }
    assert!(fixture.engine.pools(s(2)).remove(0).braking);
    let mut granted = |priority: &str| {
        let mut count = 0;
        while fixture.ask(&session, s(2), ask("user=a", priority)).line == "allow" {
            count += 1;
            if count > 20 {
                break;
            }
        }
        count
    };
    assert_eq!([granted("test"), granted("get"), granted("post")], [7, 1, 1]);
    assert_eq!(granted("critical"), 21);
}

#[test]
fn ignores_other_pools_and_unknown_slots() {
    let mut fixture =
        Fixture::new(&rules("fleet: {reserve: 90%}, workers: {}, brake: {bands: [1%, 1%, 1%]}"));
    let unknown = fixture.session(1, 0, s(0));
    for _ in 0..20 {
        assert_eq!(fixture.ask(&unknown, s(0), ask("user=a", "test")).line, "allow");
    }
    assert_eq!(fixture.engine.pools(s(0)).remove(0).slots, None);
    fixture.install(&rules("slots: 4, fleet: {reserve: 90%}"));
    assert_eq!(fixture.ask(&unknown, s(0), ask("user=a", "test")).line, "shed web/fleet");
}

#[test]
fn elastic_requests_pass_while_pool_has_room() {
    let limits = "limits:\n- {name: per-user, key: [user], rate: 1/h, over: {elastic: 200%}}\n";
    let (mut fixture, session) = Fixture::with_session(&format!("{limits}{}", rules("workers: {}")), 10);
    let ask = ask("user=a", "get");
    (0..=40).for_each(|quarter| fixture.engine.tick(ms(quarter * 250)));
    assert_eq!(fixture.ask(&session, s(10), ask).line, "allow per-user 0/1");
    assert_eq!(fixture.ask(&session, s(10), ask).line, "allow per-user 0/1 [over per-user]");
    run(&mut fixture, &session, 10, 20, 10);
    fixture.engine.tick(s(20));
    assert!(fixture.ask(&session, s(20), ask).line.starts_with("limit per-user"));
}

#[test]
fn busy_slots_decide_on_elastic_requests_before_a_measurement() {
    let limits = "limits:\n- {name: per-user, key: [user], rate: 1/h, over: {elastic: 200%}}\n";
    let shed = rules("workers: {}");
    let (mut fixture, session) = Fixture::with_session(&format!("{limits}{shed}"), 10);
    let ask = |user| ask(user, "get");
    for line in ["allow per-user 0/1", "allow per-user 0/1 [over per-user]"] {
        assert_eq!(fixture.ask(&session, s(0), ask("user=a")).line, line, "before the first tick");
    }
    // With these, seven of ten slots are busy: not below `good`.
    for _ in 0..5 {
        assert_eq!(fixture.ask(&session, s(0), ask("job=worker")).line, "allow");
    }
    assert_eq!(fixture.ask(&session, s(0), ask("user=a")).line, "limit per-user 0/1");

    // No process was there within the measured time.
    let mut fixture = Fixture::new(&format!("{limits}{shed}"));
    (0..=40).for_each(|quarter| fixture.engine.tick(ms(quarter * 250)));
    let session = fixture.session(1, 10, s(10));
    for line in ["allow per-user 0/1", "allow per-user 0/1 [over per-user]"] {
        assert_eq!(fixture.ask(&session, s(10), ask("user=a")).line, line, "after an idle time");
    }
    // Where no process reports its slots, no share of them can be below `good`.
    let (mut fixture, session) = Fixture::with_session(&format!("{limits}{shed}"), 0);
    for line in ["allow per-user 0/1", "limit per-user 0/1"] {
        assert_eq!(fixture.ask(&session, s(0), ask("user=a")).line, line, "without slots");
    }
}

#[test]
fn full_signal_stops_elastic_requests() {
    let limits = "limits:\n- {name: per-user, key: [user], rate: 1/h, over: {elastic: 200%}}\n";
    for (counts, permille, line) in [
        ("true", 950, "limit per-user 0/1"),
        ("true", 650, "allow per-user 0/1 [over per-user]"),
        ("false", 950, "allow per-user 0/1 [over per-user]"),
    ] {
        let shed = rules(&format!("workers: {{}}, signals: {{lag: {{use: {counts}}}}}"));
        let (mut fixture, session) = Fixture::with_session(&format!("{limits}{shed}"), 10);
        (0..=40).for_each(|quarter| fixture.engine.tick(ms(quarter * 250)));
        fixture.engine.record_pushed_signal(&session, "web", "lag", permille, s(10)).unwrap();
        fixture.engine.tick(ms(10_250));
        let ask = ask("user=a", "get");
        assert_eq!(fixture.ask(&session, ms(10_250), ask).line, "allow per-user 0/1");
        assert_eq!(fixture.ask(&session, ms(10_250), ask).line, line, "use: {counts}, {permille}");
    }
}

#[test]
fn workers_controller_sheds_none_without_slots() {
    for counts in ["false", "true"] {
        let (mut fixture, session) =
            Fixture::with_session(&rules(&format!("workers: {{}}, signals: {{lag: {{use: {counts}}}}}")), 10);
        fixture.engine.tick(s(0));
        run(&mut fixture, &session, 0, 148, 10);
        // Only a session without known slots remains.
        let unknown = fixture.session(2, 0, s(148));
        fixture.engine.end_session(&session, s(148));
        fixture.engine.record_pushed_signal(&unknown, "web", "lag", 1_000, s(148)).unwrap();
        fixture.engine.tick(s(149));
        let answer = fixture.ask(&unknown, s(149), ask("user=a", "test"));
        assert_eq!(answer.line, "allow", "use: {counts}");
    }
}

#[test]
fn pending_request_takes_no_slot_and_is_shed_before_remote_check() {
    let limits = "limits:\n- {name: all, key: [user], rate: 9/h, scope: fleet, fleet: {mode: exact}}\n";
    let mut fixture = Fixture::new("");
    fixture.engine.join_fleet(HashKey::from_bytes([9; 16])).set_redis_reachable(true);
    fixture.install(&format!("{limits}{}", rules("fleet: {reserve: 50%}")));
    let session = fixture.session(1, 4, s(0));
    let attributes = [("user", "u")];
    let request = Request {
        session: Some(&session),
        may_wait: true,
        priority: Some("get"),
        ..Request::new(Op::Acquire, "api", Descriptors::from_attributes(&attributes))
    };
    for _ in 0..9 {
        assert!(matches!(fixture.decider.decide(&request, s(0)), EngineAnswer::RemoteCheck(_)));
    }
    let pool = fixture.engine.pools(s(0)).remove(0);
    assert_eq!((pool.critical, pool.noncritical, pool.busy), (0, 0, 0));
    let totals = fixture.engine.totals();
    assert!(totals.rules.iter().all(|rule| rule.pass + rule.refuse == 0), "{totals:?}");
    // Requests that the rule does not match take half of the slots.
    for _ in 0..2 {
        assert_eq!(fixture.ask(&session, s(0), ask("job=worker", "get")).line, "allow");
    }
    let EngineAnswer::Decided(decision) = fixture.decider.decide(&request, s(0)) else { panic!("it asks") };
    assert_eq!((decision.verdict, decision.rule_name()), (Verdict::Shed, Some("web/fleet")));
    assert_eq!(fixture.engine.pools(s(0)).remove(0).noncritical, 2);
}
