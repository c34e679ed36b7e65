//! Places that many hosts share, judged beside rules of this host: all or none, told of once, freed here.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use tidegate::clock::Now;
use tidegate::engine::{
    CheckReply, ConnectionParams, Decider, Descriptors, Engine, EngineAnswer, EngineOptions, HashKey,
    IdempotencyKey, Op, PermitTotals, PlacesSettled, RemoteCheckResult, Request, RuleName, Session,
    SharedKey, Shortfall, Shortfalls, Verdict, WorkOutcome,
};
use tidegate::limit::Quota;
use tidegate::limit::concurrency::ConcurrencyQuota;
use tidegate::limit::places::PermitWait;
use tidegate::limit::share::Fallback;
use tidegate::rules::{Limit, Mode, Rule};

use super::engines::{api, at_millis, in_mode, options, rule};

struct Host {
    engine: Arc<Engine>,
    decider: Decider,
    session: Session,
}

impl Host {
    fn new(rules: Vec<Rule>) -> Host {
        Host::with_memory(rules, options().memory_bytes_max)
    }

    fn with_memory(switched_rules: Vec<Rule>, memory_bytes_max: usize) -> Host {
        let engine = Arc::new(Engine::new(EngineOptions { memory_bytes_max, ..options() }));
        engine.join_fleet(HashKey::from_bytes([9; 16])).set_redis_reachable(true);
        engine.install_rules(api(switched_rules));
        let opening =
            ConnectionParams { name: None, user: 1, pool: "web", slots: 8, connection: 1, pid: None };
        let session = engine.open_session(&opening, at_millis(0)).unwrap();
        Host { decider: engine.decider(), engine, session }
    }

    fn ask(&mut self, op: Op, now: Now) -> (Verdict, Option<u64>, Option<u64>, u64) {
        self.ask_for("u1", op, now)
    }

    fn ask_for(&mut self, user: &str, op: Op, now: Now) -> (Verdict, Option<u64>, Option<u64>, u64) {
        let attributes = [("user", user)];
        let request = Request {
            session: Some(&self.session),
            ..Request::new(op, "api", Descriptors::from_attributes(&attributes))
        };
        let EngineAnswer::Decided(decision) = self.decider.decide(&request, now) else {
            panic!("a conflict")
        };
        let remaining = decision.binding.map(|binding| binding.level.remaining);
        let retry = decision.retry_after.map_or(0, |retry| retry.0);
        (decision.verdict, decision.lease, remaining, retry)
    }

    fn begin(&mut self, millis: u64) -> Option<u64> {
        self.ask(Op::Acquire, at_millis(millis)).1
    }

    fn end(&self, lease: u64, millis: u64) {
        assert!(self.engine.release_lease(&self.session, lease, WorkOutcome::Ok, at_millis(millis)));
    }

    fn calls(&self) -> Vec<SharedKey> {
        let mut calls = Vec::new();
        self.engine.take_due_permit_keys(&mut calls);
        calls
    }

    /// Held, in use, asked for.
    fn there(&self, key: &SharedKey, millis: u64) -> (u32, u32, u32) {
        let limits = self.engine.fleet_concurrency_limits();
        let there = self.engine.peek_permits(key, &limits[&key.budget()], at_millis(millis)).unwrap();
        (there.permits, there.leases, there.requested)
    }

    fn grant(&self, key: &SharedKey, granted: u32, millis: u64) {
        let (limits, now) = (self.engine.fleet_concurrency_limits(), at_millis(millis));
        let limit = &limits[&key.budget()];
        let reported = self.engine.report_permits(key, limit, u32::MAX, now).unwrap();
        let (hold, refused_for) = (reported.permits_used(), Duration::ZERO);
        let settled = PlacesSettled {
            hold,
            granted,
            free: 2,
            sent_at: now.at,
            low_mark: 0,
            refused_for,
            return_idle: false,
        };
        self.engine.apply_permit_reply(key, limit, &settled, now);
    }
}

/// A rule of the fleet.
fn at_once(name: &str, max: u32) -> Rule {
    let quota =
        Quota::Concurrency(ConcurrencyQuota::new(NonZeroU32::new(max).unwrap()).shared(Fallback::Refuse));
    Rule { limit: Limit::new(quota), expires: Some(Duration::from_secs(60)), ..rule(name, &["user"], 1, 1) }
}

#[test]
fn work_begins_on_places_that_were_granted_and_frees_them_here() {
    let mut host = Host::new(vec![at_once("work", 9)]);
    assert_eq!([host.begin(0), host.begin(0)], [None; 2]);
    let calls = host.calls();
    assert_eq!((calls.len(), host.calls().len()), (1, 0), "two requests, one call");
    host.grant(&calls[0], 2, 1);
    let (first, second) = (host.begin(2).unwrap(), host.begin(2).unwrap());
    assert_eq!(host.begin(2), None);
    assert_eq!(host.there(&calls[0], 2), (2, 2, 3));
    host.end(first, 3);
    assert_eq!(host.there(&calls[0], 3), (2, 1, 3));
    let (verdict, _, remaining, _) = host.ask(Op::Peek, at_millis(3));
    assert_eq!((verdict, remaining), (Verdict::Allow, Some(3)), "one here, and two that nobody had");
    let third = host.begin(3).unwrap();
    // What it has lapses before others may have it. What goes on goes on.
    host.end(second, 1_902);
    assert_eq!(host.begin(1_902), None);
    assert_eq!(host.there(&calls[0], 1_902).0, 0);
    host.end(third, 1_903);
    assert_eq!(host.begin(1_903), None);
    assert_eq!(host.engine.in_progress(), 0, "every lease has ended");
}

#[test]
fn a_refusal_says_when_to_come_again_as_on_one_host() {
    let mut host = Host::new(vec![at_once("work", 9)]);
    let (verdict, lease, remaining, retry) = host.ask(Op::Acquire, at_millis(0));
    assert_eq!((verdict, lease, remaining), (Verdict::Limit, None, Some(0)));
    assert!((500_000..=2_000_000).contains(&retry), "{retry}");
}

#[test]
fn a_rule_of_this_host_that_refuses_leaves_the_places_as_they_were_and_the_other_way_round() {
    let mut host = Host::new(vec![at_once("work", 9), rule("own", &["user"], 1, 1)]);
    assert_eq!(host.begin(0), None);
    let key = host.calls()[0];
    host.grant(&key, 5, 1);
    assert!(host.begin(2).is_some(), "the fleet's refusal cost nothing here");
    assert_eq!(host.begin(2), None, "this host's own rule");
    assert_eq!(host.there(&key, 2), (5, 1, 1));
}

#[test]
fn a_session_that_ends_frees_its_places_and_shadow_refuses_nothing() {
    let mut host = Host::new(vec![at_once("work", 9)]);
    host.begin(0);
    let key = host.calls()[0];
    host.grant(&key, 5, 1);
    assert!((0..5).all(|_| host.begin(2).is_some()));
    host.engine.end_session(&host.session, at_millis(3));
    assert_eq!(host.there(&key, 3), (5, 0, 5));
    let mut host = Host::new(vec![in_mode(at_once("work", 9), Mode::Shadow)]);
    assert_eq!(host.ask(Op::Acquire, at_millis(0)).0, Verdict::Allow);
    assert_eq!(host.calls().len(), 1, "it asks for places as if it enforced");
}

#[test]
fn looking_leaves_no_trace() {
    let mut host = Host::new(vec![at_once("work", 9)]);
    assert_eq!(host.ask(Op::Peek, at_millis(0)).0, Verdict::Limit);
    assert_eq!((host.calls().len(), host.engine.keys()), (0, 0));
}

#[test]
fn a_smaller_number_holds_at_once_and_ends_nothing() {
    let mut host = Host::new(vec![at_once("work", 9)]);
    host.begin(0);
    let key = host.calls()[0];
    host.grant(&key, 5, 1);
    assert!((0..4).all(|_| host.begin(2).is_some()));
    host.engine.install_rules(api(vec![at_once("work", 3)]));
    assert_eq!(host.begin(3), None);
    assert_eq!(host.there(&key, 3), (5, 4, 5), "leases stay, and what was borrowed is known");
}

/// The same, whose work waits for a call where its host has no place.
fn asking(name: &str, max: u32, when_down: Fallback) -> Rule {
    let quota = ConcurrencyQuota::new(NonZeroU32::new(max).unwrap())
        .shared(when_down)
        .with_remote_checks(PermitWait::OnMiss);
    Rule { limit: Limit::new(Quota::Concurrency(quota)), ..at_once(name, max) }
}

impl Host {
    /// What a request is to wait for.
    fn ticket(&mut self, op: Op, repeat: Option<IdempotencyKey<'_>>, millis: u64) -> Option<Arc<Shortfalls>> {
        let attributes = [("user", "u1")];
        let request = Request {
            session: Some(&self.session),
            may_wait: true,
            idempotency_key: repeat,
            ..Request::new(op, "api", Descriptors::from_attributes(&attributes))
        };
        match self.decider.decide(&request, at_millis(millis)) {
            EngineAnswer::RemoteCheck(ticket) => Some(ticket),
            _ => None,
        }
    }

    /// What comes of a request for whose call this came.
    fn resume(
        &mut self,
        result: RemoteCheckResult<'_>,
        repeat: Option<IdempotencyKey<'_>>,
        millis: u64,
    ) -> Came {
        let attributes = [("user", "u1")];
        let request = Request {
            session: Some(&self.session),
            idempotency_key: repeat,
            ..Request::new(Op::Acquire, "api", Descriptors::from_attributes(&attributes))
        };
        match self.decider.resume(&request, result, at_millis(millis)) {
            EngineAnswer::Decided(decision) => (decision.verdict, decision.lease),
            other => panic!("{other:?}"),
        }
    }

    /// A place that is kept for who waits for this need.
    fn brought(&self, need: &Shortfall, millis: u64) -> CheckReply {
        let (limits, now) = (self.engine.fleet_concurrency_limits(), at_millis(millis));
        let mut brought = CheckReply::new(&self.engine, now);
        brought.add_permit(self.engine.claim_permit(&need.key, &limits[&need.key.budget()], now).unwrap());
        brought
    }

    fn know(&self, need: &Shortfall, millis: u64) {
        let limits = self.engine.fleet_concurrency_limits();
        self.engine.create_permits(&need.key, &limits[&need.key.budget()], at_millis(millis));
    }
}

type Came = (Verdict, Option<u64>);

#[test]
fn work_without_a_place_waits_for_a_call_and_takes_what_it_brings() {
    let mut host = Host::new(vec![asking("work", 9, Fallback::Refuse), rule("own", &["user"], 2, 2)]);
    let ticket = host.ticket(Op::Acquire, None, 0).unwrap();
    let [need] = ticket.needs.as_slice() else { panic!("{ticket:?}") };
    assert!(need.is_permit && need.missing_units == 1);
    assert_eq!(host.engine.keys(), 0, "nothing was charged");
    host.know(need, 0);
    host.grant(&need.key, 1, 1);
    let brought = host.brought(need, 1);
    assert_eq!(host.begin(1), None, "it is kept for who waited");
    let (verdict, lease) = host.resume(RemoteCheckResult::Borrowed(brought), None, 2);
    assert_eq!(verdict, Verdict::Allow);
    host.end(lease.unwrap(), 3);
    assert!(host.begin(3).is_some(), "then it is anybody's");
    assert!(host.ticket(Op::Acquire, None, 4).is_none(), "this host's own rule refuses: nobody is asked");
    // What is brought for somebody who has gone is anybody's too.
    let mut host = Host::new(vec![asking("work", 9, Fallback::Refuse)]);
    let ticket = host.ticket(Op::Acquire, None, 0).unwrap();
    host.know(&ticket.needs[0], 0);
    host.grant(&ticket.needs[0].key, 1, 1);
    drop(host.brought(&ticket.needs[0], 1));
    assert!(host.begin(2).is_some());
}

#[test]
fn only_work_waits_and_who_looks_is_told_what_is_known() {
    let mut host = Host::new(vec![asking("work", 9, Fallback::Refuse)]);
    assert!(host.ticket(Op::Hit, None, 0).is_none(), "it holds no place");
    assert_eq!(host.ask(Op::Peek, at_millis(0)).0, Verdict::Allow, "nobody knows better");
    let ticket = host.ticket(Op::Acquire, None, 0).unwrap();
    host.know(&ticket.needs[0], 0);
    host.grant(&ticket.needs[0].key, 0, 1);
    let (verdict, _, remaining, _) = host.ask(Op::Peek, at_millis(1));
    assert_eq!((verdict, remaining), (Verdict::Allow, Some(2)), "as many as nobody had");
    // In shadow it asks for places ahead, and makes nobody wait.
    let mut host = Host::new(vec![in_mode(asking("work", 9, Fallback::Refuse), Mode::Shadow)]);
    assert!(host.ticket(Op::Acquire, None, 0).is_none());
    assert_eq!(host.calls().len(), 1);
}

#[test]
fn what_was_not_answered_in_time_begins_nothing_while_redis_is_heard() {
    for when_down in [Fallback::Refuse, Fallback::Share, Fallback::Local, Fallback::Allow] {
        let mut host = Host::new(vec![asking("work", 9, when_down)]);
        let ticket = host.ticket(Op::Acquire, None, 0).unwrap();
        let (verdict, lease) = host.resume(RemoteCheckResult::TimedOut(&ticket), None, 5);
        assert_eq!((verdict, lease), (Verdict::Limit, None), "{when_down:?}");
        // Another one asks.
        assert!(host.ticket(Op::Acquire, None, 6).is_some());
    }
}

#[test]
fn a_repeat_of_what_waits_is_granted_once() {
    let mut host = Host::new(vec![asking("work", 9, Fallback::Refuse)]);
    let repeat = Some(IdempotencyKey { session: b"s", user: 1, name: b"n" });
    let ticket = host.ticket(Op::Acquire, repeat, 0).unwrap();
    assert!(host.ticket(Op::Acquire, repeat, 0).is_some(), "nobody has been granted it yet");
    host.know(&ticket.needs[0], 0);
    host.grant(&ticket.needs[0].key, 2, 1);
    let [first, second] = [2, 3].map(|millis| {
        let brought = host.brought(&ticket.needs[0], millis);
        host.resume(RemoteCheckResult::Borrowed(brought), repeat, millis)
    });
    assert_eq!((first, first.1.is_some()), (second, true));
    assert_eq!(host.there(&ticket.needs[0].key, 3), (2, 1, 1));
}

#[test]
fn operators_see_the_permits_of_a_key_and_of_a_rule() {
    let mut host = Host::new(vec![at_once("work", 9), rule("own", &["user"], 9, 9)]);
    let engine = Arc::clone(&host.engine);
    let of = |rule: &str, attributes: &[(&str, &str)], millis: u64| {
        let rule = RuleName { domain: "api".into(), rule: rule.into() };
        engine.find_permits(&rule, attributes, at_millis(millis))
    };
    let user = [("user", "u1")];
    assert_eq!(of("own", &user, 0), Ok(None));
    assert!(of("work", &[("u", "u1")], 0).is_err());
    let unused = of("work", &user, 0).unwrap().unwrap();
    assert_eq!((unused.max, unused.held, unused.in_use, unused.is_tracked), (9, 0, 0, false));
    assert_eq!(engine.sum_permits(at_millis(0)).len(), 0);
    host.begin(0);
    host.ask_for("u2", Op::Acquire, at_millis(0));
    let calls = host.calls();
    calls.iter().for_each(|key| host.grant(key, 3, 0));
    assert!(host.begin(1).is_some() && host.begin(1).is_some());
    assert!(host.ask_for("u2", Op::Acquire, at_millis(1)).1.is_some());
    let here = of("work", &user, 1).unwrap().unwrap();
    assert_eq!((here.max, here.held, here.in_use, here.is_tracked), (9, 3, 2, true));
    assert!(calls.iter().any(|key| key.name() == here.name) && unused.name == here.name);
    let sums = engine.sum_permits(at_millis(1));
    assert_eq!(sums.get(&calls[0].budget()), Some(&PermitTotals { held: 6, in_use: 3 }));
    // Permits of this host expire; its leases go on.
    let here = of("work", &user, 1_900).unwrap().unwrap();
    assert_eq!((here.held, here.in_use), (0, 2));
}

#[test]
fn key_is_tracked_while_it_has_permits_or_leases() {
    let mut host = Host::new(vec![at_once("work", 9)]);
    host.begin(0);
    let key = host.calls()[0];
    let limits = host.engine.fleet_concurrency_limits();
    let let_go = |host: &Host, millis: u64| {
        host.engine.remove_permits(&key, &limits[&key.budget()], at_millis(millis))
    };
    host.grant(&key, 1, 0);
    assert!(!let_go(&host, 1), "a permit is held");
    let lease = host.begin(1).unwrap();
    assert!(!let_go(&host, 1_901), "a lease is in progress");
    host.end(lease, 1_902);
    assert!(let_go(&host, 1_903));
    let sweep =
        |host: &Host, from: u64| (from..from + 300).for_each(|at| host.engine.sweep(at_millis(at * 50)));
    sweep(&host, 40);
    assert_eq!(host.engine.keys(), 0);
    assert!(let_go(&host, 9_999), "of an unknown key too");
}

#[test]
fn few_permits_call_when_one_is_idle() {
    let mut host = Host::new(vec![at_once("work", 9)]);
    host.begin(0);
    let key = host.calls()[0];
    let limits = host.engine.fleet_concurrency_limits();
    let limit = &limits[&key.budget()];
    let settle = |host: &Host, is_few: bool| {
        let reported = host.engine.report_permits(&key, limit, u32::MAX, at_millis(1)).unwrap();
        let settled = PlacesSettled {
            hold: reported.permits_used(),
            granted: 1,
            free: 0,
            sent_at: at_millis(1).at,
            low_mark: 0,
            refused_for: Duration::ZERO,
            return_idle: is_few,
        };
        host.engine.apply_permit_reply(&key, limit, &settled, at_millis(1));
    };
    for is_few in [false, true] {
        settle(&host, is_few);
        host.calls();
        let lease = host.begin(2).unwrap();
        assert!(host.calls().is_empty());
        let visited = host.engine.read_permits_for_sync(&key, limit, at_millis(2)).unwrap();
        assert_eq!((visited.permits, visited.leases), (1 + u32::from(is_few), 1));
        host.end(lease, 3);
        assert_eq!(host.calls().len(), usize::from(is_few), "few: {is_few}");
    }
}

#[test]
fn permits_and_leases_of_other_hosts_stay_known_where_memory_is_full() {
    let mut host = Host::with_memory(vec![at_once("work", 9)], 64 << 10);
    let mut keys = Vec::new();
    for user in 0..1_024 {
        let user = format!("u{user}");
        host.ask_for(&user, Op::Acquire, at_millis(0));
        keys.extend(host.calls());
        host.grant(keys.last().unwrap(), 2, 0);
        assert!(host.ask_for(&user, Op::Acquire, at_millis(0)).1.is_some(), "{user}");
    }
    keys.iter().for_each(|key| assert_eq!(host.there(key, 1), (2, 1, 1)));
    assert_eq!((host.engine.in_progress(), host.engine.totals().evictions), (1_024, 0));
    assert!(host.engine.memory_bytes() > 64 << 10, "there was no room for all");
    host.engine.end_session(&host.session, at_millis(2));
    assert_eq!(host.engine.in_progress(), 0);
}
