//! All hosts turn to another secret, while they are asked for twice what there is: there is one budget at every moment.

mod by_hand;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use tidegate::clock::Now;
use tidegate::engine::{Answer, Descriptors, Engine, HashKey, Mode, Op, Options, Request, Ticket};
use tidegate::fleet::call::Call;
use tidegate::fleet::member::Member;
use tidegate::fleet::secrets::Mark;
use tidegate::fleet::sync;
use tidegate::limit::share::Asks;
use tidegate::rules::{RuleSet, read_text};

use crate::host::Host;
use crate::plan::{Crash, Faults, Plan, Rollout, SHAPES, Shape, draws, is_short, runs, seed};
use crate::store::Store;
use crate::table::check_bounds;
use crate::waiting::Waiting;
use crate::windows::{self, Kind};
use crate::world::{SECRET, World, run};

const OLD: u8 = SECRET;
const NEW: u8 = 77;

/// Hosts are started anew one by one with these secrets, each so long after the one before.
fn rollout(hosts: u32, from_ms: u64, apart_ms: u64, secrets: &[u8]) -> impl Iterator<Item = Rollout> {
    let one = move |host: u32| (host, from_ms + u64::from(host) * apart_ms);
    let secrets = secrets.to_vec();
    (0..hosts).map(one).map(move |(host, at_ms)| Rollout { host, at_ms, secrets: secrets.clone() })
}

/// Both secrets everywhere, the new one first, or last to begin with. Returns when the last host has it first.
fn name_first(faults: &mut Faults, hosts: u32, apart_ms: u64, is_last_first: bool) -> u64 {
    let span_ms = u64::from(hosts) * apart_ms;
    let mut at_ms = 2_000;
    if is_last_first {
        faults.rollouts.extend(rollout(hosts, at_ms, apart_ms, &[OLD, NEW]));
        at_ms += span_ms + 500;
    }
    faults.rollouts.extend(rollout(hosts, at_ms, apart_ms, &[NEW, OLD]));
    at_ms + span_ms
}

/// The old secret away, once all have turned: who is away is waited for. Returns when it is over.
fn take_away(faults: &mut Faults, hosts: u32, apart_ms: u64, all_ms: u64) -> u64 {
    let away = faults.cut_off.iter().chain(&faults.crashes).map(|away| away.to_ms);
    let at_ms = away.fold(all_ms, u64::max) + 8_000;
    faults.rollouts.extend(rollout(hosts, at_ms, apart_ms, &[NEW]));
    at_ms + u64::from(hosts) * apart_ms + 4_000
}

fn roll_out(faults: &mut Faults, hosts: u32, apart_ms: u64, is_last_first: bool) -> u64 {
    let all_ms = name_first(faults, hosts, apart_ms, is_last_first);
    take_away(faults, hosts, apart_ms, all_ms)
}

fn uses(world: &World<'_>, secret: u8) -> bool {
    let mark = Mark::of_digest([secret; 8]);
    let at = Now::default();
    world.hosts().all(|host| host.member.secrets(at).uses == Some(mark))
}

fn check(plan: &Plan) -> f64 {
    let world = run(plan);
    let seen = world.measure.seen();
    if let Some(kind) = plan.window {
        let (most, used) = windows::seen(&world, plan, kind);
        assert!(most <= u64::from(plan.rate), "{most} in a window: {plan:#?}");
        return used;
    }
    assert!(seen.excess <= 0.001, "{} tokens beyond one budget: {plan:#?}", seen.excess);
    assert!(uses(&world, NEW), "all have come to it: {plan:#?}");
    seen.used
}

#[test]
fn hosts_turn_together_and_there_is_one_budget_throughout() {
    for (hosts, is_last_first, window, period_s) in [
        (2, false, None, 1),
        (5, true, None, 1),
        // A burst that is spent long before, and hardly earned again.
        (3, false, None, 600),
        (3, false, Some(Kind::Fixed), 2),
        (3, true, Some(Kind::Sliding), 2),
        (3, false, Some(Kind::Calendar), 2),
    ] {
        let mut faults = Faults { alone_refuses: true, ..Faults::default() };
        let ms = roll_out(&mut faults, hosts, 700, is_last_first);
        let load = if period_s > 10 { 20_000 } else { 2_000 };
        let plan = Plan { ms, period_s, credit: 0, window, faults, ..Plan::cell(hosts, Shape::Even, load) };
        let used = check(&plan);
        println!("{hosts} hosts, {window:?} of {period_s} s: {used:.3} used");
        assert!(used > if window.is_some() { 0.7 } else { 0.95 }, "{used} used: {plan:#?}");
    }
}

/// A day's budget, of which half is used when all turn.
fn of_a_day(asks: Asks, hosts: u32, burst: u32, window: Option<Kind>) -> Plan {
    let mut faults = Faults { alone_refuses: true, ..Faults::default() };
    let all_ms = name_first(&mut faults, hosts, 700, false);
    let ms = take_away(&mut faults, hosts, 700, all_ms);
    let period_s = 86_400;
    let load = (500_000 * period_s / (all_ms + 3_000)) as u32;
    let cell = Plan::cell(hosts, Shape::Even, load);
    Plan { ms, period_s, rate: burst, burst, credit: 0, tick_ms: 1, asks, window, faults, ..cell }
}

#[test]
fn of_a_budget_that_requests_wait_for_no_more_passes_over_a_turn_than_there_is() {
    for asks in [Asks::Always, Asks::OnMiss] {
        for (hosts, burst, window) in
            [(6, 10, None), (3, 200, None), (3, 10, Some(Kind::Fixed)), (3, 200, Some(Kind::Sliding))]
        {
            let plan = of_a_day(asks, hosts, burst, window);
            let seen = run(&plan).measure.seen();
            println!("{asks:?}, {burst} over {hosts} hosts, {window:?}: {seen}");
            assert!(seen.admitted <= u64::from(burst), "{seen}: {plan:#?}");
            // What hosts hold when they are started anew is nobody's for hours: they end without a word here.
            let least = if asks == Asks::Always { u64::from(burst) } else { u64::from(burst) / 2 };
            assert!(seen.admitted >= least, "{seen}: {plan:#?}");
        }
    }
}

/// Of keys that go from one server to another, whose clocks are some milliseconds apart.
#[test]
fn over_servers_whose_clocks_are_apart_there_is_one_budget_throughout() {
    let skews_us: &[i64] = if is_short() { &[200_000] } else { &[20_000, 200_000] };
    for &skew_us in skews_us {
        for asks in [Asks::Never, Asks::OnMiss, Asks::Always] {
            let (hosts, tenants) = (4, 24);
            // Of a day: the clocks' being apart earns nothing.
            let mut plan = of_a_day(asks, hosts, 100, None);
            (plan.tenants, plan.load, plan.buckets) = (tenants, plan.load * tenants, 256);
            plan.faults.skews_us = vec![skew_us, -skew_us];
            let seen = run(&plan).measure.seen();
            println!("{asks:?}, clocks {skew_us} apart: {seen}");
            assert!(seen.excess < 0.1, "{seen}: {plan:#?}");
            assert!(seen.used > 0.5, "{seen}: {plan:#?}");
        }
    }
}

#[test]
fn what_was_admitted_on_credit_before_the_turn_is_charged_after_it() {
    let hosts = 3;
    let mut faults = Faults::default();
    let ms = roll_out(&mut faults, hosts, 700, false);
    let plan = Plan { ms, faults, ..Plan::cell(hosts, Shape::Even, 2_000) };
    let seen = run(&plan).measure.seen();
    println!("{seen}");
    check_bounds(&plan, &seen);
}

/// When this host turned, of a turn that others know of.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Turned {
    NotYet,
    /// It did so once, long ago.
    Before,
    /// Between each call and its answer.
    Meanwhile,
}

#[test]
fn what_was_answered_after_the_turn_to_who_asked_before_it_is_not_heard() {
    for (turns_us, turned, is_heard) in [
        (None, Turned::NotYet, true),
        (None, Turned::Before, true),
        (Some(START_US + 900_000), Turned::NotYet, true),
        (Some(START_US + 1), Turned::NotYet, false),
        (Some(START_US + 1), Turned::Before, false),
        (Some(START_US + 1), Turned::Meanwhile, false),
    ] {
        let plan = Plan { credit: 0, ..Plan::cell(1, Shape::Even, 1_000) };
        let (mut host, mut store) = (Host::new(&plan, 0, 1, 0, 0), Store::default());
        if turned == Turned::Before {
            host.member.turned(false, host.now(0).at);
        }
        let mut granted = 0;
        for ms in 1..200 {
            let us = ms * 1_000;
            for (number, call) in std::mem::take(host.tick(us)).into_iter().enumerate() {
                let number = us + number as u64;
                let reply = store.call(&call, START_US + us);
                host.sent(number, call.clone(), us);
                host.member.turns(turns_us);
                if turned == Turned::Meanwhile {
                    host.member.turned(true, host.now(us).at);
                }
                host.answered(number, &call, reply, us);
            }
            granted = granted.max(host.has(us).0);
            host.hit("t0", us);
        }
        assert_eq!(granted > 0, is_heard, "{granted} in hand, {turns_us:?}, turned {turned:?}");
    }
}

#[test]
fn a_request_whose_key_has_moved_waits_until_its_cell_is_carried() {
    let plan = Plan {
        credit: 0,
        rate: 1,
        burst: 3,
        period_s: 86_400,
        asks: Asks::Always,
        ..Plan::cell(1, Shape::Even, 1_000)
    };
    let (mut host, mut store) = (Host::with_secrets(&[OLD, NEW], &plan, (0, 1), 0, 0), Store::default());
    let tenants = ["t0".to_owned()];
    let (mut passed, mut is_carried) = (0, false);
    for ms in 1..200 {
        let us = ms * 1_000;
        let waits = match ms {
            100 => 1,
            150 => {
                host.engine.use_secret(1, Some(0));
                host.member.take_budgets();
                // Both before anybody but them knows that the key has moved.
                4
            }
            _ => 0,
        };
        for _ in 0..waits {
            assert_eq!(host.ask(0, &tenants, us), None, "each waits");
        }
        for (number, call) in std::mem::take(host.tick(us)).into_iter().enumerate() {
            let number = us + number as u64;
            is_carried |= matches!(call, Call::Plant(_));
            assert!(
                ms < 150 || is_carried || !matches!(call, Call::Exact(_)),
                "asked about before its cell is there"
            );
            let reply = store.call(&call, START_US + us);
            host.sent(number, call.clone(), us);
            host.answered(number, &call, reply, us);
        }
        passed += host.answers(&tenants, us).iter().filter(|(_, passed)| *passed).count();
    }
    assert_eq!(passed, 3);
}

/// Two requests of one caller, each by another budget of the rule, once what Redis knows of him is to be carried.
#[test]
fn two_budgets_with_one_key_are_carried_one_after_the_other() {
    let rules = "domain: api\nlimits:\n- {name: r, key: [user], algorithm: fixed_window, rate: 3/day, scope: fleet, fleet: {mode: exact}, \
                 overrides: [{match: {plan: gold}, rate: 9/h}]}\n";
    let loaded = read_text("rules.yaml", rules);
    assert!(!loaded.has_errors(), "{:?}", loaded.problems);
    let hash_key = HashKey::from_bytes([1; 16]);
    let engine = Arc::new(Engine::new(Options { hash_key, mode: Mode::Enforce, memory_bytes_max: 1 << 20 }));
    let standing =
        engine.join_fleet_with([OLD, NEW].map(|secret| HashKey::from_bytes([secret; 16])).to_vec());
    engine.install(RuleSet::new(loaded.domains));
    let options = sync::Options { host: [1; 16], epoch: 1, buckets: sync::BUCKETS, seed: 1 };
    let mut member = Member::new(Arc::clone(&engine), standing, options, []);
    member.expect(2, at(0).at);
    member.set_heard(true, at(0));
    let (mut store, mut waiting, mut decider) = (Store::default(), Waiting::new(), engine.decider());
    let mut passed = Vec::new();
    for ms in 0..200 {
        let (now, mut out) = (at(ms), Vec::new());
        if ms == 100 {
            engine.use_secret(1, Some(0));
            member.take_budgets();
        }
        for plan in ["free", "gold"].into_iter().filter(|_| [0, 100].contains(&ms)) {
            let attributes = [("user", "u"), ("plan", plan)];
            let request =
                Request { may_wait: true, ..Request::new(Op::Hit, "api", Descriptors::one(&attributes)) };
            let Answer::Ask(ticket) = decider.decide(&request, now) else { panic!("each waits") };
            // Nobody is in a hurry here.
            let ticket = Ticket { patience: Duration::from_millis(50), ..(*ticket).clone() };
            waiting.park((Arc::new(ticket), plan, false), &mut member, now, &mut out);
        }
        member.tick(now, &mut out);
        while let Some(call) = out.pop() {
            let reply = store.call(&call, START_US + ms * 1_000);
            member.answered(&call, reply, now, &mut out);
        }
        let ready = waiting.take_ready(now).into_iter();
        passed.extend(ready.map(|(parked, brought)| (ms < 100, parked.what, brought.is_some())));
    }
    passed.sort_unstable();
    let all = [(false, "free", true), (false, "gold", true), (true, "free", true), (true, "gold", true)];
    assert_eq!(passed, all, "each is answered");
}

fn at(ms: u64) -> Now {
    Now::at_nanos((1_000 + ms) * 1_000_000)
}

const START_US: u64 = 1_700_000_000_000_000;

/// Drawn from a seed alone.
fn plan(seed: u64) -> Plan {
    let mut draw = draws(seed, 12);
    let hosts = draw(2, 6);
    let mut faults = Faults { alone_refuses: true, ..Faults::drawn(&mut draw, 200) };
    let apart_ms = u64::from(draw(0, 1_500));
    let all_ms = name_first(&mut faults, hosts, apart_ms, draw(0, 1) == 1);
    let mut gone = |most_ms| Crash::drawn(&mut draw, hosts, all_ms - 1_000..all_ms + 5_001, most_ms);
    let (cut_off, crash) = (gone(5_000), gone(2_000));
    if draw(0, 1) == 0 {
        faults.cut_off.push(cut_off);
    }
    if draw(0, 2) == 0 {
        faults.crashes.push(crash);
    }
    let ms = take_away(&mut faults, hosts, apart_ms, all_ms);
    let window = [None, None, Some(Kind::Fixed), Some(Kind::Sliding)][draw(0, 3) as usize];
    let (rate, burst) = (draw(50, 1_000), draw(20, 1_000));
    let period_s = [1, 10, 600][draw(0, if window.is_some() { 1 } else { 2 }) as usize];
    let shape = SHAPES[draw(0, 6) as usize];
    if shape == Shape::Cold {
        // Of a key that nobody asks for after the turn the old cell is all there is: the old secret stays, as the pages say.
        faults.rollouts.retain(|rollout| rollout.secrets.len() > 1);
    }
    Plan {
        seed,
        ms,
        rate,
        burst,
        period_s,
        credit: 0,
        shape,
        round_trip_us: [500, 500, 50_000, 300_000][draw(0, 3) as usize],
        tenants: [1, 5][draw(0, 1) as usize].min(if window.is_some() { 1 } else { 5 }),
        window,
        faults,
        ..Plan::cell(hosts, Shape::Even, [1_000, 2_000, 10_000][draw(0, 2) as usize])
    }
}

/// The same, by rules whose requests wait for a call.
fn asking(seed: u64) -> Plan {
    let plan = plan(seed);
    let mut draw = draws(seed, 13);
    let window = [None, Some(Kind::Fixed), Some(Kind::Sliding)][draw(0, 2) as usize];
    // Of a window that ends meanwhile, what was paid for at its end begins in the next.
    let period_s = if window.is_some() { 86_400 } else { [10, 600, 86_400][draw(0, 2) as usize] };
    let rate = if period_s == 10 { plan.rate } else { plan.burst };
    // Once, twice or ten times what there is while the plan lasts.
    let budget = (u64::from(plan.burst) * 1_000 / plan.ms).max(u64::from(rate) / period_s) + 1;
    let load = budget * [1, 2, 10][draw(0, 2) as usize] * 1_000 * period_s / u64::from(rate);
    Plan {
        window,
        period_s,
        rate,
        load: load as u32,
        asks: [Asks::OnMiss, Asks::Always][draw(0, 1) as usize],
        round_trip_us: [500, 2_000, 4_000, 50_000][draw(0, 3) as usize],
        tick_ms: 1,
        ..plan
    }
}

/// Nothing passes that was not paid for; but it passes a call later, and where another call brings it, when a batch would.
fn check_asking(plan: &Plan) {
    let seen = run(plan).measure.seen();
    let slack = f64::from(plan.rate) / plan.period_s as f64 * 2.0;
    let most = if plan.period_s == 86_400 { 0.001 } else { slack + 0.001 };
    assert!(seen.excess <= most, "{seen}: {plan:#?}");
    if plan.period_s == 86_400 {
        let all = u64::from(plan.burst * plan.tenants);
        assert!(seen.admitted <= all, "{seen}: {plan:#?}");
    }
}

/// `SEED` and `RUNS` choose others; of the latter a part.
fn in_random_runs(part: u64, plan: fn(u64) -> Plan, check: fn(&Plan)) {
    let (next, end) = (AtomicU64::new(seed()), seed() + runs().div_ceil(part));
    let run_some = || {
        while let Some(seed) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|seed| *seed < end) {
            let plan = plan(seed);
            let held = std::panic::catch_unwind(|| check(&plan));
            assert!(held.is_ok(), "SEED={seed} RUNS=1 does it again: {plan:#?}");
        }
    };
    thread::scope(|scope| (0..2).for_each(|_| drop(scope.spawn(run_some))));
}

#[test]
fn no_order_of_steps_and_no_fault_makes_two_budgets() {
    in_random_runs(4, plan, |plan| {
        check(plan);
    });
}

#[test]
fn no_order_of_steps_and_no_fault_lets_what_waits_pass_twice() {
    in_random_runs(40, asking, check_asking);
}
