//! A caller with two budgets of a rule: windows that differ have a cell each, and a batch names a cell once. And the level after
//! an outage.

use std::sync::Arc;

use tidegate::clock::Now;
use tidegate::engine::{
    Descriptors, Engine, EngineOptions, FleetStatus, HashKey, Mode, Op, Request, RuleName,
};
use tidegate::fleet::cell::{CellReply, TOKEN};
use tidegate::fleet::command::ScriptCommand;
use tidegate::fleet::reply::CommandReply;
use tidegate::fleet::sync::{BUCKETS, Sync, SyncOptions};
use tidegate::rules::read_text;

/// A host of a fleet with these rules, before it hears of Redis.
pub(crate) fn fleet_host(rules: &str) -> (Arc<Engine>, Arc<FleetStatus>) {
    let loaded = read_text("rules.yaml", rules);
    assert!(!loaded.has_errors(), "{:?}", loaded.problems);
    let hash_key = HashKey::from_bytes([1; 16]);
    let options = EngineOptions { hash_key, mode: Mode::Enforce, memory_bytes_max: 1 << 20 };
    let engine = Arc::new(Engine::new(options));
    let status = engine.join_fleet(HashKey::from_bytes([2; 16]));
    engine.install_rules(loaded.domains);
    (engine, status)
}

/// A host whose caller has sent a request under each plan, and that has not synced yet.
fn host(rate_of_gold: &str) -> Sync {
    let (engine, status) = fleet_host(&RULES.replace("90/day", rate_of_gold));
    let options = SyncOptions { host: [1; 16], buckets: 1, seed: 1 };
    let mut sync = Sync::new(Arc::clone(&engine), options, status);
    sync.set_budgets(engine.fleet_budgets());
    sync.set_linked(true, at(0).at);
    let mut decider = engine.decider();
    for plan in ["free", "gold"] {
        let attributes = [("user", "u"), ("plan", plan)];
        let _ =
            decider.decide(&Request::new(Op::Hit, "api", Descriptors::from_attributes(&attributes)), at(0));
    }
    sync
}

fn at(millis: u64) -> Now {
    Now::at_nanos((1_000 + millis) * 1_000_000)
}

/// The cells of each batch emitted in 20 ticks without replies.
fn asked(rate_of_gold: &str, say: impl Fn(&mut Sync, Now, &mut Vec<ScriptCommand>)) -> Vec<usize> {
    let mut sync = host(rate_of_gold);
    let (mut out, mut asked) = (Vec::new(), Vec::new());
    for turn in 0..20 {
        say(&mut sync, at(2 * turn), &mut out);
        for command in out.drain(..) {
            command.encode();
            asked.push(command.cells());
        }
    }
    asked
}

const RULES: &str = "domain: api\nlimits:\n- {name: r, key: [user], algorithm: fixed_window, rate: 30/day, scope: fleet, \
                     overrides: [{match: {plan: gold}, rate: 90/day}]}\n";

/// The tokens in Redis as a host knows them whose sync found 2 700 just after an outage, before the other host is back.
fn known_after_outage(on_miss: &str) -> i64 {
    let rule = format!("rate: 1/day, burst: 3000, scope: fleet, fleet: {{on_miss: {on_miss}}}");
    let rules = format!("domain: api\nlimits: [{{name: r, key: [user], {rule}}}]\n");
    let (engine, status) = fleet_host(&rules);
    status.set_hosts(2);
    let mut sync =
        Sync::new(Arc::clone(&engine), SyncOptions { host: [1; 16], buckets: BUCKETS, seed: 1 }, status);
    sync.set_budgets(engine.fleet_budgets());
    [true, false, true].into_iter().for_each(|linked| sync.set_linked(linked, at(0).at));
    let user = [("user", "u")];
    for _ in 0..100 {
        let request = Request::new(Op::Hit, "api", Descriptors::from_attributes(&user));
        let _ = engine.decider().decide(&request, at(0));
    }
    let mut out = Vec::new();
    sync.tick(at(2), &mut out);
    let [ScriptCommand::Sync(batch)] = &out[..] else { panic!("{out:?}") };
    let level = 2_700 * TOKEN.cast_signed();
    let (demand, grant, hosts, lost, version, generation, window) = (0, 0, 1, false, 1, 1, None);
    let reply = CellReply { level, demand, grant, hosts, lost, version, generation, window };
    sync.answered(batch, &CommandReply { born_us: 1, now_us: 1, results: vec![reply] }, at(4));
    let rule = RuleName { domain: "api".into(), rule: "r".into() };
    let share = engine.find_share(&rule, &user, at(4)).unwrap().unwrap();
    share.redis_level.unwrap().level / TOKEN.cast_signed()
}

/// A host that takes the budget for spent refuses requests whose remote checks are late, and names a day as the time until a
/// retry.
#[test]
fn budget_is_not_taken_for_spent_after_outage_unless_it_gives_credit() {
    assert_eq!(known_after_outage("refuse"), 2_700);
    assert_eq!(known_after_outage("admit"), 0, "no credit while the other host may spend its share");
}

#[test]
fn asks_about_a_caller_by_two_budgets_in_two_batches() {
    assert_eq!(asked("90/day", Sync::tick), [1, 1]);
    assert_eq!(asked("100/s", Sync::tick), [2], "two cells: requests of one window end none of the other");
}

#[test]
fn leaves_a_caller_by_two_budgets_in_two_batches() {
    let asked = asked("90/day", |sync, now, out| {
        sync.leave(now, out);
    });
    assert_eq!(asked, [1, 1]);
}
