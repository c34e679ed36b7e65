//! Tests that the scripts in a real Redis and their Rust model, which simulations use, agree.

pub(crate) mod commands;
mod comparison;
#[path = "../fleet/store/mod.rs"]
#[allow(unreachable_pub, reason = "shared with the simulation")]
mod store;

use std::cell::RefCell;

use proptest::collection::vec;
use proptest::prelude::any;
use proptest::strategy::Strategy;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use proptest::{prop_assert, prop_assert_eq, prop_oneof, proptest};
use tidegate::fleet::cell::{AMOUNT_MAX, BURST_MAX, CellQuota, CellRate, CellRequest, DEMAND_MAX, TOKEN};
use tidegate::fleet::reply::ScriptReply;
use tidegate::fleet::scripts;

use commands::{Act, Asking, Birth, Step, Time, any_heartbeat_step, any_step, ask_of, cost_of, key_of};
use comparison::{Twins, load, start};

#[test]
fn scripts_match_rust_model_bit_for_bit() {
    let twins = RefCell::new(Twins::new());
    let cases = std::env::var("PROPTEST_CASES").map_or(100, |cases| cases.parse().unwrap());
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 2_000, ..Config::default() };
    let steps =
        prop_oneof![3 => vec(any_step(), 1..60).boxed(), 1 => vec(any_heartbeat_step(), 1..60).boxed()];
    // A failure prints the minimal failing steps.
    let run = TestRunner::new(config).run(&steps, |steps| {
        let mut twins = twins.borrow_mut();
        twins.forget_all();
        steps.iter().try_for_each(|step| twins.step(step).map_err(TestCaseError::fail))
    });
    run.unwrap_or_else(|why| panic!("{why}"));
    let twins = twins.borrow();
    println!("{:?}", twins.seen);
    for (what, seen) in &twins.seen {
        assert!(cases < 100 || *seen > 0, "{what} came to pass");
    }
}

/// The remainder of a refill is dropped by the second look at a full cell: both look once at a key of two checks.
#[test]
fn moves_a_key_of_two_checks_once_after_the_clock_was_set_back() {
    let quota =
        |version, num, den| CellQuota { version, rate: CellRate::new(num, den).unwrap(), burst: TOKEN };
    let (slow, fast) = (quota(3, 999_983, 4_000_000_000), quota(1, 1_000, 1));
    let ask = |key, cell_quota, hold, owed| {
        let ask = CellRequest { hold, owed, ..ask_of(key_of(key), cell_quota) };
        Act::Sync { host: 0, birth: Birth::Last, asks: vec![Asking { ask, honest: false }] }
    };
    let cost = |key| cost_of(key_of(key), fast, 0);
    let mut twins = Twins::new();
    for (time, act) in [
        (Time::On(0), ask(3, slow, 0, 0)),
        (Time::On(9_000_000), ask(3, fast, 0, 68)),
        (Time::On(1), ask(3, fast, 6_730_151, 0)),
        (Time::Back(2_000_001), ask(0, fast, 0, 0)),
        (Time::On(0), Act::Exact { birth: Birth::Last, costs: vec![cost(1), cost(3)] }),
    ] {
        twins.step(&Step { time, act }).unwrap();
    }
}

#[test]
fn script_digests_match_redis() {
    let (_server, mut redis) = start();
    for script in scripts::all() {
        assert_eq!(load(&mut redis, script.text), script.sha, "{script:?}");
    }
}

proptest! {
    #![proptest_config(Config { cases: 2_000, failure_persistence: None, ..Config::default() })]

    /// The number of reads does not affect the refill.
    #[test]
    fn refill_is_independent_of_step_size(
        level in -5_000_000_000_i64..2_000_000_000,
        held in (0_u64..2_000_000_000, 0_u64..2_000_000_000),
        rate in (1_u64..5_000_000, 1_u64..5_000),
        moments in vec(0_u64..9_000_000, 1..8),
    ) {
        let (num, den) = rate;
        let common = (1..=num.min(den)).rev().find(|by| num % by == 0 && den % by == 0).unwrap();
        let rate = CellRate::new(num / common, den / common).unwrap();
        let cell_quota = CellQuota { version: 1, rate, burst: 2_000_000_000 };
        let sums = |held| store::Sums { held, demand: 7, hosts: 1 };
        let at = 2_000_000_000;
        let reports = store::Reports { now: sums(held.0), before: sums(held.1) };
        let cell = store::Cell { cell_quota, level, rem: 0, at, reports };
        let mut moments = moments;
        moments.sort_unstable();
        let (mut once, mut often) = (cell, cell);
        once.forward(at + moments[moments.len() - 1]);
        moments.iter().for_each(|moment| often.forward(at + moment));
        prop_assert_eq!(once, often);
    }

    /// Any reply is clamped to valid values.
    #[test]
    fn clamps_absurd_replies(bytes in vec(any::<u8>(), 70), ask in commands::any_ask(), length in 0_usize..72) {
        let command = commands::sync_of(ask);
        let length = length.min(bytes.len());
        let received = ScriptReply::decode(&command, &bytes[..length]);
        prop_assert_eq!(received.is_ok(), length == if ask.window.is_some() { 70 } else { 61 });
        let Ok(received) = received else { return Ok(()) };
        let (ScriptReply::Sync(answer), _) = received else { panic!("a sync") };
        let reply = &answer.results;
        prop_assert!(reply[0].level <= BURST_MAX.cast_signed() && reply[0].level > -AMOUNT_MAX.cast_signed());
        prop_assert!(reply[0].demand <= 2 * DEMAND_MAX && reply[0].grant <= AMOUNT_MAX + TOKEN);
        prop_assert!(reply[0].grant % TOKEN == 0 && reply[0].hosts <= 1_000_000_000);
        prop_assert!(reply[0].generation.abs_diff(answer.now_us / 2_000_000) <= 1);
    }
}
