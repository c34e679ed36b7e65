//! Permits of a fleet concurrency limit, checked beside rules of this host.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use tidegate::clock::Now;
use tidegate::engine::{
    CheckReply, Decider, Descriptors, Engine, EngineAnswer, IdempotencyKey, Op, PermitReply, PermitTotals,
    RemoteCheckResult, Request, RuleName, Session, SharedKey, Shortfall, Shortfalls, Verdict, WorkOutcome,
    bytes_per_rule_key,
};
use tidegate::limit::Quota;
use tidegate::limit::concurrency::ConcurrencyQuota;
use tidegate::limit::share::Fallback;
use tidegate::rules::{Limit, Mode, Rule};

use super::engines::{api, at_millis, in_mode, open, options, rule};
use super::fleet;

struct Host {
    engine: Arc<Engine>,
    decider: Decider,
    session: Session,
}

/// Verdict, lease, remaining, and retry time in µs.
type Seen = (Verdict, Option<u64>, Option<u64>, u64);

impl Host {
    fn new(rules: Vec<Rule>) -> Host {
        Host::with_memory(rules, options().memory_bytes_max)
    }

    fn with_memory(rules: Vec<Rule>, memory_bytes_max: usize) -> Host {
        let fleet::Host { engine, decider, .. } = fleet::Host::with_memory(7, rules, memory_bytes_max);
        let session = open(&engine, 1, 8, at_millis(0));
        Host { engine, decider, session }
    }

    /// Decides or resumes a request that may wait if it is new and `may_wait`; the permits it waits for.
    fn decide(
        &mut self,
        (user, op): (&str, Op),
        may_wait: bool,
        idempotency_key: Option<IdempotencyKey<'_>>,
        result: Option<RemoteCheckResult<'_>>,
        now: Now,
    ) -> Result<Seen, Arc<Shortfalls>> {
        let attributes = [("user", user)];
        let request = Request {
            session: Some(&self.session),
            may_wait,
            idempotency_key,
            ..Request::new(op, "api", Descriptors::from_attributes(&attributes))
        };
        let answer = match result {
            None => self.decider.decide(&request, now),
            Some(result) => self.decider.resume(&request, result, now),
        };
        match answer {
            EngineAnswer::Decided(decision) => {
                let remaining = decision.binding.map(|binding| binding.level.remaining);
                let retry = decision.retry_after.map_or(0, |retry| retry.0);
                Ok((decision.verdict, decision.lease, remaining, retry))
            }
            EngineAnswer::RemoteCheck(shortfalls) => Err(shortfalls),
            other => panic!("{other:?}"),
        }
    }

    fn ask(&mut self, op: Op, now: Now) -> Seen {
        self.ask_for("u1", op, now)
    }

    fn ask_for(&mut self, user: &str, op: Op, now: Now) -> Seen {
        self.decide((user, op), false, None, None, now).unwrap()
    }

    /// The permits a request waits for.
    fn shortfalls(
        &mut self,
        op: Op,
        repeat: Option<IdempotencyKey<'_>>,
        millis: u64,
    ) -> Option<Arc<Shortfalls>> {
        self.decide(("u1", op), true, repeat, None, at_millis(millis)).err()
    }

    fn key_of(&mut self, user: &str, millis: u64) -> SharedKey {
        let seen = self.decide((user, Op::Acquire), true, None, None, at_millis(millis));
        seen.expect_err("it may wait").needs[0].key
    }

    /// The verdict and lease of a pending request after this reply.
    fn resume(
        &mut self,
        result: RemoteCheckResult<'_>,
        repeat: Option<IdempotencyKey<'_>>,
        millis: u64,
    ) -> (Verdict, Option<u64>) {
        let seen = self.decide(("u1", Op::Acquire), false, repeat, Some(result), at_millis(millis)).unwrap();
        (seen.0, seen.1)
    }

    /// A permit reserved for this pending request.
    fn reply(&self, need: &Shortfall, millis: u64) -> CheckReply {
        let now = at_millis(millis);
        let mut reply = CheckReply::new(&self.engine, now);
        reply.add_permit(self.engine.claim_permit(&need.key, now).unwrap());
        reply
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

    /// The permits held and the leases in progress of `u1`.
    fn there(&self, millis: u64) -> (u32, u32) {
        let rule = RuleName { domain: "api".into(), rule: "work".into() };
        let here = self.engine.find_permits(&rule, &[("user", "u1")], at_millis(millis)).unwrap().unwrap();
        (here.held, here.in_use)
    }

    /// Redis grants further permits, beside two free ones.
    fn grant(&self, key: &SharedKey, granted: u32, millis: u64) {
        let now = at_millis(millis);
        self.engine.create_permits(key, now);
        let (needed, _) = self.engine.report_permits(key, now).unwrap();
        let reply =
            PermitReply { held: needed + granted, free: 2, reported_at: now.at, refused_for: Duration::ZERO };
        self.engine.apply_permit_reply(key, &reply, now);
    }
}

/// With permits for `u1` under a rule of nine.
fn granted(permits: u32) -> Host {
    let mut host = Host::new(vec![at_once("work", 9)]);
    let key = host.key_of("u1", 0);
    host.grant(&key, permits, 1);
    host
}

/// A fleet rule, and the same with another fallback.
fn at_once(name: &str, max: u32) -> Rule {
    asking(name, max, Fallback::Refuse)
}

fn asking(name: &str, max: u32, when_down: Fallback) -> Rule {
    let quota = ConcurrencyQuota::new(NonZeroU32::new(max).unwrap()).shared(when_down);
    let limit = Limit::new(Quota::Concurrency(quota));
    Rule { limit, expires: Some(Duration::from_secs(60)), ..rule(name, &["user"], 1, 1) }
}

#[test]
fn leases_use_and_free_granted_permits() {
    let mut host = Host::new(vec![at_once("work", 9)]);
    assert_eq!([host.begin(0), host.begin(0)], [None; 2]);
    let key = host.key_of("u1", 0);
    host.grant(&key, 2, 1);
    let (first, second) = (host.begin(2).unwrap(), host.begin(2).unwrap());
    assert_eq!((host.begin(2), host.there(2)), (None, (2, 2)));
    host.calls();
    host.end(first, 3);
    assert_eq!((host.there(3), host.calls().len()), ((2, 1), 1), "the idle permit is to be returned");
    let (verdict, _, remaining, _) = host.ask(Op::Peek, at_millis(3));
    assert_eq!((verdict, remaining), (Verdict::Allow, Some(3)), "one here, and two free ones");
    let third = host.begin(3).unwrap();
    // Permits expire before other hosts may get them. Leases continue.
    host.end(second, 1_902);
    assert_eq!((host.begin(1_902), host.there(1_902).0), (None, 0));
    host.end(third, 1_903);
    assert_eq!(host.begin(1_903), None);
    assert_eq!(host.engine.in_progress(), 0, "every lease has ended");
}

#[test]
fn refusal_has_a_retry_after_as_on_one_host() {
    let mut host = Host::new(vec![at_once("work", 9)]);
    let (verdict, lease, _, retry) = host.ask(Op::Acquire, at_millis(0));
    assert_eq!((verdict, lease), (Verdict::Limit, None));
    assert!((500_000..=2_000_000).contains(&retry), "{retry}");
}

#[test]
fn refusal_by_one_rule_charges_no_other() {
    let mut host = Host::new(vec![at_once("work", 9), rule("own", &["user"], 1, 1)]);
    assert_eq!(host.begin(0), None);
    let key = host.key_of("u1", 0);
    host.grant(&key, 5, 1);
    assert!(host.begin(2).is_some(), "the refusal cost nothing here");
    assert_eq!((host.begin(2), host.there(2)), (None, (5, 1)), "this host's own rule refuses");
}

#[test]
fn ended_session_frees_its_permits() {
    let mut host = granted(5);
    assert!((0..5).all(|_| host.begin(2).is_some()));
    host.engine.end_session(&host.session, at_millis(3));
    assert_eq!(host.there(3), (5, 0));
}

#[test]
fn shadow_uses_last_reply_and_reports_leases() {
    let mut host = Host::new(vec![in_mode(at_once("work", 9), Mode::Shadow)]);
    assert!(host.shortfalls(Op::Acquire, None, 0).is_none(), "it delays no request");
    assert_eq!(host.ask(Op::Acquire, at_millis(0)).0, Verdict::Allow);
    let calls = host.calls();
    assert_eq!(calls.len(), 1, "a lease without a permit is reported");
    let would_refuse = |host: &Host| {
        host.engine.totals().rules.iter().find(|rule| &*rule.rule == "work").map(|rule| rule.would_refuse)
    };
    host.grant(&calls[0], 0, 1);
    let before = would_refuse(&host);
    assert!((0..2).all(|_| host.begin(2).is_some()));
    assert_eq!(would_refuse(&host), before, "two permits were free");
    assert!(host.begin(2).is_some());
    assert_ne!(would_refuse(&host), before);
}

#[test]
fn peek_charges_no_permit() {
    let mut host = Host::new(vec![at_once("work", 9)]);
    assert_eq!(host.ask(Op::Peek, at_millis(0)).0, Verdict::Allow, "nothing is known yet");
    assert_eq!((host.calls().len(), host.engine.keys()), (0, 0));
}

#[test]
fn lowered_maximum_applies_at_once_and_ends_no_lease() {
    let mut host = granted(5);
    assert!((0..4).all(|_| host.begin(2).is_some()));
    host.engine.install_rules(api(vec![at_once("work", 3)]));
    assert_eq!((host.begin(3), host.there(3)), (None, (5, 4)));
}

#[test]
fn pending_request_uses_granted_permit() {
    let mut host = Host::new(vec![asking("work", 9, Fallback::Refuse), rule("own", &["user"], 2, 2)]);
    let shortfalls = host.shortfalls(Op::Acquire, None, 0).unwrap();
    let [need] = shortfalls.needs.as_slice() else { panic!("{shortfalls:?}") };
    assert!(need.is_permit && need.missing_units == 1);
    assert_eq!(host.engine.keys(), 0, "nothing was charged");
    host.grant(&need.key, 1, 1);
    let reply = host.reply(need, 1);
    assert_eq!(host.begin(1), None, "it is kept for who waited");
    let (verdict, lease) = host.resume(RemoteCheckResult::Borrowed(reply), None, 2);
    assert_eq!(verdict, Verdict::Allow);
    host.end(lease.unwrap(), 3);
    assert!(host.begin(3).is_some(), "then it is anybody's");
    assert!(host.shortfalls(Op::Acquire, None, 4).is_none(), "this host's own rule refuses: nobody is asked");
    // A permit reserved for a dropped request becomes free.
    let mut host = Host::new(vec![asking("work", 9, Fallback::Refuse)]);
    let shortfalls = host.shortfalls(Op::Acquire, None, 0).unwrap();
    host.grant(&shortfalls.needs[0].key, 1, 1);
    drop(host.reply(&shortfalls.needs[0], 1));
    assert!(host.begin(2).is_some());
}

#[test]
fn timed_out_request_uses_fallback() {
    for (when_down, allowed) in
        [(Fallback::Refuse, 0), (Fallback::Share, 9), (Fallback::Local, 9), (Fallback::Allow, 10)]
    {
        let mut host = Host::new(vec![asking("work", 9, when_down)]);
        let begun = (0..10).filter(|_| {
            let shortfalls = host.shortfalls(Op::Acquire, None, 0).expect("each request asks");
            host.resume(RemoteCheckResult::TimedOut(&shortfalls), None, 5).1.is_some()
        });
        assert_eq!(begun.count(), allowed, "{when_down:?}");
        assert_eq!(host.calls().is_empty(), allowed == 0, "these leases are reported");
    }
}

#[test]
fn retried_request_is_granted_once() {
    let mut host = Host::new(vec![asking("work", 9, Fallback::Refuse)]);
    let repeat = Some(IdempotencyKey { session: b"s", user: 1, name: b"n" });
    let shortfalls = host.shortfalls(Op::Acquire, repeat, 0).unwrap();
    assert!(host.shortfalls(Op::Acquire, repeat, 0).is_some(), "nobody has been granted it yet");
    host.grant(&shortfalls.needs[0].key, 2, 1);
    let [first, second] = [2, 3].map(|millis| {
        let reply = host.reply(&shortfalls.needs[0], millis);
        host.resume(RemoteCheckResult::Borrowed(reply), repeat, millis)
    });
    assert_eq!((first, first.1.is_some()), (second, true));
    assert_eq!(host.there(3), (2, 1));
}

#[test]
fn reports_permits_of_key_and_rule() {
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
    let keys = [host.key_of("u1", 0), host.key_of("u2", 0)];
    keys.iter().for_each(|key| host.grant(key, 3, 0));
    assert!(host.begin(1).is_some() && host.begin(1).is_some());
    assert!(host.ask_for("u2", Op::Acquire, at_millis(1)).1.is_some());
    let here = of("work", &user, 1).unwrap().unwrap();
    assert_eq!((here.max, here.held, here.in_use, here.is_tracked), (9, 3, 2, true));
    assert!(keys[0].name() == here.name && unused.name == here.name);
    let sums = engine.sum_permits(at_millis(1));
    assert_eq!(sums.get(&keys[0].budget()), Some(&PermitTotals { held: 6, in_use: 3 }));
    // Permits of this host expire; its leases continue.
    let here = of("work", &user, 1_900).unwrap().unwrap();
    assert_eq!((here.held, here.in_use), (0, 2));
}

#[test]
fn tracks_key_while_it_has_permits_or_leases() {
    let mut host = Host::new(vec![at_once("work", 9)]);
    let key = host.key_of("u1", 0);
    let let_go = |host: &Host, millis: u64| host.engine.remove_permits(&key, at_millis(millis));
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
fn keeps_permits_and_leases_when_memory_is_full() {
    let mut host = Host::with_memory(vec![at_once("work", 9)], 64 << 10);
    for user in 0..1_024 {
        let user = format!("u{user}");
        let key = host.key_of(&user, 0);
        host.grant(&key, 2, 0);
        assert!(host.ask_for(&user, Op::Acquire, at_millis(0)).1.is_some(), "{user}");
    }
    assert_eq!(host.there(1), (2, 1));
    let totals: Vec<PermitTotals> = host.engine.sum_permits(at_millis(1)).into_values().collect();
    assert_eq!(totals, [PermitTotals { held: 2_048, in_use: 1_024 }]);
    assert_eq!((host.engine.in_progress(), host.engine.totals().evictions), (1_024, 0));
    assert!(host.engine.memory_bytes() > 64 << 10, "there was no room for all");
    host.engine.end_session(&host.session, at_millis(2));
    assert_eq!(host.engine.in_progress(), 0);
}

#[test]
fn fleet_key_uses_more_bytes_than_host_key() {
    let fleet = at_once("fleet", 3);
    let quota = Quota::Concurrency(ConcurrencyQuota::new(NonZeroU32::new(3).unwrap()));
    let host = Rule { limit: Limit::new(quota), ..rule("host", &["user"], 1, 1) };
    let (fleet, host) = (bytes_per_rule_key(&fleet), bytes_per_rule_key(&host));
    assert!(fleet.least > host.least && fleet.most > host.most, "{fleet:?} {host:?}");
}

#[test]
fn lease_numbers_of_two_processes_differ() {
    let number = |random| {
        let mut host = Host::new(vec![rule("host", &["user"], 1, 1)]);
        host.engine.number_leases_from(random);
        host.begin(0).unwrap()
    };
    assert_ne!(number(1 << 40), number(2 << 40));
}
