//! Pending requests with remote checks, in parallel with a return of unused tokens.

use super::{SECOND, check, engine_without_rules, rules, run_concurrently};
use std::sync::Arc;
use tidegate::clock::Now;
use tidegate::engine::{
    CheckReply, Decider, Descriptors, Engine, EngineAnswer, HashKey, KeyCheckReply, Op, RemoteCheckResult,
    Request, SharedKey, Shortfalls, Verdict,
};

/// A fleet engine that makes a remote check for each request and borrows nothing ahead.
fn engine(on_redis_down: &str) -> Arc<Engine> {
    let engine = engine_without_rules(1 << 20);
    let fleet_status = engine.join_fleet(HashKey::from_bytes([9; 16]));
    fleet_status.set_hosts(2);
    fleet_status.set_redis_reachable(true);
    engine.install_rules(rules(&format!(
        "  - {{name: a, key: [x], rate: 10/h, burst: 10, scope: fleet, \
         fleet: {{mode: exact, on_redis_down: {on_redis_down}}}}}\n"
    )));
    engine
}

fn now() -> Now {
    Now::at_nanos(SECOND)
}

const ATTRIBUTES: [(&str, &str); 1] = [("x", "1")];

fn request<'r>() -> Request<'r> {
    Request { may_wait: true, ..Request::new(Op::Hit, "api", Descriptors::from_attributes(&ATTRIBUTES)) }
}

/// Makes a request that needs a remote check and returns what it lacks.
fn shortfalls(decider: &mut Decider) -> Arc<Shortfalls> {
    match decider.decide(&request(), now()) {
        EngineAnswer::RemoteCheck(shortfalls) => shortfalls,
        other => panic!("{other:?}"),
    }
}

/// Returns all borrowed tokens of a key, as the sync task does when it drops the key.
fn give_back(engine: &Engine, key: &SharedKey) -> u32 {
    let budgets = engine.fleet_budgets();
    let budget = &budgets[&key.budget()];
    let held = engine.peek_share(key, budget, now()).map_or(0, |there| there.borrowed);
    engine.report_share(key, budget, held, now()).map_or(0, |(_, back)| back)
}

/// Runs two pending requests with the given result, in parallel with a return of unused tokens. Returns the
/// number of passed requests, and the tokens returned meanwhile and afterwards.
fn judged(
    engine: &Arc<Engine>,
    result: for<'t> fn(&Arc<Engine>, &'t Shortfalls) -> RemoteCheckResult<'t>,
) -> (u32, u32, u32) {
    let mut waiting = engine.decider();
    let both = [shortfalls(&mut waiting), shortfalls(&mut waiting)];
    let key = both[0].needs[0].key;
    let mut works: Vec<Box<dyn FnOnce() -> (u32, u32) + Send>> = Vec::new();
    for shortfalls in both {
        let engine = Arc::clone(engine);
        works.push(Box::new(move || {
            let mut decider = engine.decider();
            let answer = decider.resume(&request(), result(&engine, &shortfalls), now());
            (
                u32::from(
                    matches!(answer, EngineAnswer::Decided(decision) if decision.verdict == Verdict::Allow),
                ),
                0,
            )
        }));
    }
    let giving = Arc::clone(engine);
    works.push(Box::new(move || (0, give_back(&giving, &key) + give_back(&giving, &key))));
    let (passed, back) =
        run_concurrently(works).into_iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    (passed, back, give_back(engine, &key))
}

#[test]
fn applies_reply_before_pending_request_is_judged() {
    check(|| {
        let engine = engine("refuse");
        let reply = |engine: &Arc<Engine>, shortfalls: &Shortfalls| {
            let mut reply = CheckReply::new(engine, now());
            for need in &shortfalls.needs {
                let (granted, level, sent_at) = (need.missing_units, 5_000_000, now().at);
                let of_key =
                    KeyCheckReply { granted, level, refused: None, sent_at, next_increase: None, paid_us: 0 };
                reply.add(need.key, of_key);
            }
            RemoteCheckResult::Borrowed(reply)
        };
        assert_eq!(judged(&engine, reply), (2, 0, 0));
    });
}

#[test]
fn applies_timeout_before_pending_request_is_judged() {
    check(|| {
        let engine = engine("local");
        assert_eq!(judged(&engine, |_, shortfalls| RemoteCheckResult::TimedOut(shortfalls)), (2, 0, 0));
    });
}
