//! Pending requests: the tokens they lack, and each kind of reply.

use std::sync::Arc;
use std::time::Duration;

use tidegate::clock::Micros;
use tidegate::engine::{
    CheckReply, Cost, Descriptors, EngineAnswer, KeyCheckReply, Op, RemoteCheckResult, Request, SharedKey,
    Shortfall, Shortfalls, Verdict,
};
use tidegate::limit::Quota;
use tidegate::limit::share::{Fallback, REMOTE_CHECK_WAIT_DEFAULT, RemoteCheckWait, ShareQuota};
use tidegate::rules::{Limit, Rule};

use super::engines::{ask, at_millis, rule};
use super::fleet::{Host, shared, windowed};

const USER: [(&str, &str); 1] = [("user", "u1")];

/// The same rule with a remote check for each request.
fn exact(rule: Rule, change: impl FnOnce(ShareQuota) -> ShareQuota) -> Rule {
    let Some(Quota::FleetBudget(quota)) = rule.limit.quota().cloned() else { panic!("no rule of the fleet") };
    Rule {
        limit: Limit::new(Quota::FleetBudget(Box::new(change(
            quota.with_remote_checks(RemoteCheckWait::Always),
        )))),
        ..rule
    }
}

/// A bucket and a window of nine, with a rule of this host beside it.
fn each_kind() -> [Host; 2] {
    let of = |rule: Rule| vec![exact(rule, |quota| quota)];
    [of(shared("all", 9, 9)), of(windowed("all", 9))].map(|mut rules| {
        rules.push(rule("own", &["user"], 1, 3));
        Host::new(1, rules)
    })
}

fn request(cost: u32, may_wait: bool) -> Request<'static> {
    Request {
        cost: Cost::Requests(cost),
        may_wait,
        ..Request::new(Op::Hit, "api", Descriptors::from_attributes(&USER))
    }
}

fn shortfalls(host: &mut Host, cost: u32, millis: u64) -> Option<Arc<Shortfalls>> {
    match host.decider.decide(&request(cost, true), at_millis(millis)) {
        EngineAnswer::RemoteCheck(shortfalls) => Some(shortfalls),
        _ => None,
    }
}

fn resume(host: &mut Host, cost: u32, result: RemoteCheckResult<'_>, millis: u64) -> (Verdict, Option<u64>) {
    match host.decider.resume(&request(cost, false), result, at_millis(millis)) {
        EngineAnswer::Decided(decision) => (decision.verdict, decision.retry_after.map(|retry| retry.0)),
        other => panic!("{other:?}"),
    }
}

/// The reply about a need, sent and computed at zero.
fn reply(host: &Host, need: &Shortfall, change: impl FnOnce(&mut KeyCheckReply)) -> CheckReply {
    let sent_at = at_millis(0).at;
    let mut of_key =
        KeyCheckReply { granted: 0, level: 0, refused: None, sent_at, next_increase: None, paid_us: 0 };
    change(&mut of_key);
    let mut reply = CheckReply::new(&host.engine, at_millis(1));
    reply.add(need.key, of_key);
    reply
}

/// A grant at this time of Redis's clock.
fn paid(host: &Host, need: &Shortfall, paid_us: u64) -> CheckReply {
    reply(host, need, |reply| (reply.granted, reply.paid_us) = (need.missing_units, paid_us))
}

/// The tokens that a sync returns, and the time of the first payment among them.
fn returned(host: &Host, key: &SharedKey) -> (u32, Option<u64>) {
    let (reported, _) = host.engine.report_share(key, &host.budget(key), 0, at_millis(2)).unwrap();
    (reported.refund, reported.paid_us)
}

#[test]
fn granted_request_spends_all_its_tokens() {
    for mut host in each_kind() {
        let waiting = shortfalls(&mut host, 3, 0).unwrap();
        let [need] = waiting.needs.as_slice() else { panic!("{waiting:?}") };
        assert_eq!(
            (need.missing_units, need.is_permit, waiting.patience),
            (3, false, REMOTE_CHECK_WAIT_DEFAULT)
        );
        assert_eq!(host.engine.keys(), 0, "nothing is charged meanwhile");
        let reply = paid(&host, need, 5);
        assert_eq!(resume(&mut host, 3, RemoteCheckResult::Borrowed(reply), 1), (Verdict::Allow, Some(0)));
        let there = host.engine.peek_share(&need.key, &host.budget(&need.key), at_millis(1)).unwrap();
        assert_eq!((there.borrowed, there.debt, there.refund), (0, 0, 0));
    }
}

#[test]
fn refusal_by_redis_lasts_its_retry_time() {
    let mut host = each_kind().into_iter().next().unwrap();
    let waiting = shortfalls(&mut host, 3, 0).unwrap();
    let refused = reply(&host, &waiting.needs[0], |reply| reply.refused = Some((3, Some(Micros(700_000)))));
    let told = resume(&mut host, 3, RemoteCheckResult::Borrowed(refused.with_time(at_millis(1))), 1);
    assert_eq!(told, (Verdict::Limit, Some(700_000)));
    assert!(shortfalls(&mut host, 3, 700).is_none(), "no other request asks meanwhile");
    assert!(shortfalls(&mut host, 3, 701).is_some());
}

#[test]
fn uncharged_check_updates_known_level() {
    for (level, verdict) in [(0, Verdict::Limit), (3_000_000, Verdict::Allow)] {
        let mut host = each_kind().into_iter().next().unwrap();
        let waiting = shortfalls(&mut host, 3, 0).unwrap();
        let told = reply(&host, &waiting.needs[0], |reply| reply.level = level);
        assert_eq!(resume(&mut host, 3, RemoteCheckResult::Borrowed(told), 1).0, Verdict::Limit);
        assert!(shortfalls(&mut host, 3, 1).is_some(), "the next request may ask");
        assert_eq!(ask(&mut host.decider, Op::Peek, &USER, 3, at_millis(1)).verdict, verdict);
    }
}

#[test]
fn refund_carries_time_of_its_charge() {
    for (mut host, of_window) in each_kind().into_iter().zip([false, true]) {
        let both = [shortfalls(&mut host, 3, 0).unwrap(), shortfalls(&mut host, 3, 0).unwrap()];
        let key = both[0].needs[0].key;
        // The first request takes all of the local rule, so the second one refunds its tokens.
        for (shortfalls, paid_us, verdict) in [(&both[0], 5, Verdict::Allow), (&both[1], 7, Verdict::Limit)] {
            let reply = paid(&host, &shortfalls.needs[0], paid_us);
            assert_eq!(resume(&mut host, 3, RemoteCheckResult::Borrowed(reply), 1).0, verdict);
        }
        assert_eq!(host.calls(), [key]);
        assert_eq!(returned(&host, &key), (3, of_window.then_some(7)));
        // Replies to closed clients; a refusal among them has no tokens and no payment.
        drop(reply(&host, &both[0].needs[0], |reply| (reply.refused, reply.paid_us) = (Some((3, None)), 4)));
        [9, 8].into_iter().for_each(|paid_us| drop(paid(&host, &both[0].needs[0], paid_us)));
        assert_eq!(returned(&host, &key), (6, of_window.then_some(8)));
        assert_eq!(returned(&host, &key), (0, None), "once");
    }
}

#[test]
fn missed_reply_uses_configured_fallback() {
    for (when_down, first, second) in [
        (Fallback::Allow, Verdict::Allow, Verdict::Allow),
        (Fallback::Local, Verdict::Allow, Verdict::Allow),
        // Half of nine for each of two hosts.
        (Fallback::Share, Verdict::Allow, Verdict::Limit),
        (Fallback::Refuse, Verdict::Limit, Verdict::Limit),
    ] {
        let quota = |quota: ShareQuota| ShareQuota::new(*quota.bucket(), 0, when_down);
        let rule =
            exact(shared("all", 9, 9), |share| quota(share).with_remote_checks(RemoteCheckWait::Always));
        let mut host = Host::new(1, vec![rule]);
        host.fleet_status.set_hosts(2);
        let waiting = shortfalls(&mut host, 3, 0).unwrap();
        for verdict in [first, second] {
            assert_eq!(
                resume(&mut host, 3, RemoteCheckResult::TimedOut(&waiting), 5).0,
                verdict,
                "{when_down:?}"
            );
        }
        let key = waiting.needs[0].key;
        let owed = host.engine.peek_share(&key, &host.budget(&key), at_millis(5)).unwrap().debt;
        let passed = [first, second].into_iter().filter(|verdict| *verdict == Verdict::Allow).count();
        assert_eq!(owed, 3 * u32::try_from(passed).unwrap(), "{when_down:?} is charged afterwards");
    }
}

#[test]
fn refusal_by_another_rule_frees_fallback_tokens() {
    let mut host = each_kind().into_iter().next().unwrap();
    let waiting = shortfalls(&mut host, 3, 0).unwrap();
    assert_eq!(resume(&mut host, 3, RemoteCheckResult::TimedOut(&waiting), 1).0, Verdict::Allow);
    assert_eq!(
        resume(&mut host, 3, RemoteCheckResult::TimedOut(&waiting), 1).0,
        Verdict::Limit,
        "the rule of this host"
    );
    let key = waiting.needs[0].key;
    let (_, back) = host.engine.report_share(&key, &host.budget(&key), 9, at_millis(2)).unwrap();
    assert_eq!(back, 3);
}

#[test]
fn request_waits_for_eight_keys_at_most_and_no_longer_than_the_shortest() {
    let rules = |count: u64| {
        let of = |number: u64| {
            let patience = Duration::from_millis(4 + (number + 3) % count);
            exact(shared(&format!("r{number}"), 9, 9), |quota| quota.with_wait_max(patience))
        };
        (0..count).map(of).collect()
    };
    let waiting = shortfalls(&mut Host::new(1, rules(8)), 1, 0).unwrap();
    assert_eq!((waiting.needs.len(), waiting.patience), (8, Duration::from_millis(4)));
    let mut host = Host::new(1, rules(9));
    assert!(shortfalls(&mut host, 1, 0).is_none());
    assert_eq!(ask(&mut host.decider, Op::Hit, &USER, 1, at_millis(0)).verdict, Verdict::Limit);
}
