//! What the sync asks, and what it learns from replies and their absence: counters and the level of each budget, and the
//! timeout of commands.

use std::sync::Arc;

use tidegate::clock::Now;
use tidegate::engine::{
    Descriptors, Engine, EngineOptions, FleetStatus, HashKey, Mode, Op, Request, RuleName,
};
use tidegate::fleet::cell::{CellReply, TOKEN};
use tidegate::fleet::command::{ScriptCommand, SyncBatch};
use tidegate::fleet::reply::CommandReply;
use tidegate::fleet::sync::{BUCKETS, Sync, SyncOptions};
use tidegate::fleet::tally::BudgetCounters;
use tidegate::rules::read_text;

/// A host of a fleet, and one caller.
struct Host {
    engine: Arc<Engine>,
    status: Arc<FleetStatus>,
    sync: Sync,
}

impl Host {
    /// Has one budget of 100 tokens.
    fn new(on_miss: &str) -> Host {
        let rule = format!("rate: 1/day, burst: 100, scope: fleet, fleet: {{on_miss: {on_miss}}}");
        Host::of_rule(&rule, BUCKETS)
    }

    fn of_rule(rule: &str, buckets: u16) -> Host {
        let loaded =
            read_text("a.yaml", &format!("domain: api\nlimits: [{{name: r, key: [user], {rule}}}]\n"));
        assert!(!loaded.has_errors(), "{:?}", loaded.problems);
        let hash_key = HashKey::from_bytes([1; 16]);
        let options = EngineOptions { hash_key, mode: Mode::Enforce, memory_bytes_max: 1 << 20 };
        let engine = Arc::new(Engine::new(options));
        let status = engine.join_fleet(HashKey::from_bytes([2; 16]));
        engine.install_rules(loaded.domains);
        let options = SyncOptions { host: [1; 16], buckets, seed: 1 };
        let mut sync = Sync::new(Arc::clone(&engine), options, Arc::clone(&status));
        sync.set_budgets(engine.fleet_budgets());
        sync.set_linked(true, at(0).at);
        Host { engine, status, sync }
    }

    fn judge(&self, attributes: &[(&str, &str)], now: Now) {
        let request = Request::new(Op::Hit, "api", Descriptors::from_attributes(attributes));
        let _ = self.engine.decider().decide(&request, now);
    }

    /// Judges requests, which leave some credit, and returns the command that follows.
    fn ask(&mut self, now: Now) -> SyncBatch {
        (0..8).for_each(|_| self.judge(&[("user", "u")], now));
        let mut out = Vec::new();
        self.sync.tick(now, &mut out);
        match out.pop() {
            Some(ScriptCommand::Sync(batch)) if out.is_empty() => batch,
            other => panic!("{other:?} {out:?}"),
        }
    }

    fn answer(&mut self, batch: &SyncBatch, (level, grant): (i64, u64), now: Now) {
        let (level, grant) = (level * TOKEN.cast_signed(), grant * TOKEN);
        let (demand, hosts, lost, version, generation, window) = (0, 1, false, 3, 0, None);
        let reply = CellReply { level, demand, grant, hosts, lost, version, generation, window };
        let reply = CommandReply { born_us: 1, now_us: 1, results: vec![reply] };
        self.sync.answered(batch, &reply, now);
    }

    fn counters(&self, now: Now) -> Vec<BudgetCounters> {
        self.sync.tallies(now.at).map(|(_, counters)| counters).collect()
    }
}

fn at(millis: u64) -> Now {
    Now::at_nanos((1_000 + millis) * 1_000_000)
}

#[test]
fn what_is_charged_below_zero_is_excess_and_nothing_else_is() {
    for (owed, level, excess) in [(5, 10, 0), (5, 0, 0), (5, -3, 3), (5, -20, 5), (0, -20, 0)] {
        let mut host = Host::new("admit");
        let mut batch = host.ask(at(0));
        batch.asks[0].owed = owed * TOKEN;
        host.answer(&batch, (level, 0), at(1));
        let [counters] = host.counters(at(1))[..] else { panic!("one budget") };
        assert_eq!(counters.excess, excess * TOKEN, "{owed} owed, {level} left");
        assert_eq!((counters.cells, counters.version, counters.replied_at), (1, 3, Some(at(1).at)));
    }
}

#[test]
fn a_refusal_was_false_where_a_tenth_was_there() {
    for (on_miss, level, grant, is_false) in [
        ("refuse", 10, 0, true),
        ("refuse", 9, 0, false),
        ("refuse", 4, 6, true),
        ("refuse", -1, 0, false),
        ("admit", 100, 0, false),
    ] {
        let mut host = Host::new(on_miss);
        let batch = host.ask(at(0));
        host.answer(&batch, (level, grant), at(1));
        let [counters] = host.counters(at(1))[..] else { panic!("one budget") };
        assert_eq!(counters.false_refusals, u64::from(is_false), "{level} left, {grant} granted");
        assert_eq!(host.sync.counts.false_refusals, counters.false_refusals);
    }
}

/// A host that takes the budget for spent refuses requests whose remote checks are late, and names a day as the time until a
/// retry.
#[test]
fn budget_is_not_taken_for_spent_after_outage_unless_it_gives_credit() {
    // With credit it is: the other host, which is not back yet, may spend its share.
    for (on_miss, known) in [("refuse", 90), ("admit", 0)] {
        let mut host = Host::new(on_miss);
        host.status.set_hosts(2);
        [false, true].into_iter().for_each(|is_linked| host.sync.set_linked(is_linked, at(0).at));
        let batch = host.ask(at(0));
        host.answer(&batch, (90, 0), at(1));
        let rule = RuleName { domain: "api".into(), rule: "r".into() };
        let share = host.engine.find_share(&rule, &[("user", "u")], at(1)).unwrap().unwrap();
        assert_eq!(share.redis_level.unwrap().level, known * TOKEN.cast_signed(), "{on_miss}");
    }
}

#[test]
fn forgets_removed_budget_with_its_last_key() {
    let mut host = Host::new("refuse");
    let batch = host.ask(at(0));
    host.answer(&batch, (0, 0), at(1));
    let keys = |host: &Host| host.counters(at(1)).iter().map(|counters| counters.keys).collect::<Vec<_>>();
    host.sync.set_budgets(Arc::default());
    assert_eq!(keys(&host), [1], "its key is still there");
    host.sync.tick(at(60_000), &mut Vec::new());
    assert_eq!(keys(&host), [0]);
    host.sync.set_budgets(host.engine.fleet_budgets());
    assert_eq!(keys(&host), [0], "in force, without a caller");
    host.sync.set_budgets(Arc::default());
    assert!(keys(&host).is_empty());
}

#[test]
fn counts_cells_of_the_last_second() {
    let mut host = Host::new("refuse");
    for millis in (10_000..12_000).step_by(100) {
        let batch = host.ask(at(millis));
        host.answer(&batch, (1, 0), at(millis));
    }
    assert_eq!(host.counters(at(12_000))[0].cells_per_second, 10);
    assert_eq!(host.counters(at(60_000))[0].cells_per_second, 0, "and none since");
}

#[test]
fn the_timeout_is_four_round_trips_within_bounds_and_doubles_until_a_reply() {
    let mut host = Host::new("refuse");
    let mut batch = host.ask(at(0));
    let mut answer_after = |host: &mut Host, took: u64, now: u64| {
        batch.head.sent_at = at(now - took).at;
        host.answer(&batch, (0, 0), at(now));
    };
    assert_eq!(host.sync.timeout().as_millis(), 250, "before the first reply");
    for (took, timeout) in [(100, 400), (1_000, 2_000), (86_400_000, 2_000), (0, 250)] {
        (0..200).for_each(|_| answer_after(&mut host, took, 100_000_000));
        // The smoothed round trip comes close to it.
        assert_eq!(host.sync.timeout().as_micros().div_ceil(1_000), timeout, "{took} ms");
    }
    // Of several commands one is lost.
    host.sync.failed(&batch, at(100_000_100).at);
    assert_eq!(host.sync.timeout().as_millis(), 250);
    let timeouts = [1, 2, 3, 4, 5].map(|number| {
        host.sync.failed(&batch, at(100_000_000 + 10_000 * number).at);
        host.sync.timeout().as_millis()
    });
    assert_eq!(timeouts, [500, 1000, 2000, 2000, 2000]);
    batch.head.sent_at = at(100_100_000).at;
    host.answer(&batch, (0, 0), at(100_100_000));
    assert_eq!(host.sync.timeout().as_millis(), 250);
}

/// Windows that differ have a cell each, and a batch names a cell once.
#[test]
fn asks_about_a_caller_by_two_budgets_in_two_batches() {
    // Requests of one window of two end none of the other.
    for (rate_of_gold, batches) in [("90/day", &[1, 1][..]), ("100/s", &[2])] {
        let overrides = format!("overrides: [{{match: {{plan: gold}}, rate: {rate_of_gold}}}]");
        let rule = format!("algorithm: fixed_window, rate: 30/day, scope: fleet, {overrides}");
        let mut host = Host::of_rule(&rule, 1);
        ["free", "gold"].iter().for_each(|plan| host.judge(&[("user", "u"), ("plan", plan)], at(0)));
        let mut out = Vec::new();
        (0..20).for_each(|turn| host.sync.tick(at(2 * turn), &mut out));
        out.iter().for_each(|command| drop(command.encode()));
        let cells: Vec<_> = out.iter().map(ScriptCommand::cells).collect();
        assert_eq!(cells, batches, "{rate_of_gold}");
    }
}
