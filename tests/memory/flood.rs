//! A flood of new keys stays within the budget; limited keys stay limited.

use tidegate::clock::Now;
use tidegate::engine::{Decider, Engine, EngineOptions, Op, Verdict};

use crate::counting::{held, most};
use crate::{ALGORITHMS, SECOND, ask, engine, engines, hit, one_of_each, rules};

/// Keys that were refused before the flood.
const WATCHED: u32 = 1_000;

const MIB: i64 = 1 << 20;

/// The size of a flood.
#[derive(Clone, Copy, Debug)]
struct Flood {
    keys: u64,
    budget: i64,
    /// The number of sweeps during the flood, each followed by peeks at an eighth of the watched keys.
    sweeps: u64,
}

/// Floods these algorithms.
fn flood(kinds: &[&str], Flood { keys, budget, sweeps }: Flood) {
    let limits = one_of_each() + "  - {name: blocked, match: {k: blocked}, key: [u], rate: 1/s, block: 6h}\n";
    let engine = engine(&limits, usize::try_from(budget).unwrap());
    let mut decider = engine.decider();
    let start = held();
    // A quiet day: a tenth of the keys that fit.
    let quiet = |decider: &mut Decider, at: u64| {
        for user in 0..u64::try_from(budget).unwrap() / 1_000 {
            let kind = kinds[usize::try_from(user).unwrap() % kinds.len()];
            hit(decider, kind, &format!("quiet{user}"), at);
        }
    };
    // Start of an hour: aligned windows have their full length ahead.
    let mut at = 1_000 * 3_600 * SECOND;
    quiet(&mut decider, at);
    let before = engine.memory_bytes();
    let watched: Vec<(&str, String)> = (0..WATCHED)
        .map(|user| (kinds[usize::try_from(user).unwrap() % kinds.len()], format!("watched{user}")))
        .collect();
    for (kind, user) in &watched {
        assert_eq!((0..7).filter(|_| hit(&mut decider, kind, user, at)).count(), 6, "{kind}");
    }
    for user in 0..200 {
        let user = format!("blocked{user}");
        assert!(hit(&mut decider, "blocked", &user, at) && !hit(&mut decider, "blocked", &user, at));
    }
    let (mut asked, mut limited) = (0_u64, 0_u64);
    most();
    // Five of the ten minutes until a refill: limited keys stay limited.
    let step = 300 * SECOND / keys;
    for key in 0..keys {
        at += step;
        let kind = kinds[usize::try_from(key).unwrap() % kinds.len()];
        assert!(hit(&mut decider, kind, &key.to_string(), at), "no request is refused for lack of room");
        if key % (keys / sweeps) == 0 {
            engine.sweep(Now::at_nanos(at));
            let bytes = i64::try_from(engine.memory_bytes()).unwrap();
            assert!(bytes <= budget, "{bytes} bytes");
            let first = usize::try_from(key / (keys / sweeps)).unwrap() % 8;
            for (kind, user) in watched.iter().skip(first).step_by(8) {
                asked += 1;
                limited += u64::from(ask(&mut decider, Op::Peek, kind, user, at).0 == Verdict::Limit);
            }
        }
    }
    let most = most() - start;
    assert!(most <= budget + 8 * MIB, "{kinds:?}: {most} bytes were held");
    assert!(limited * 100 >= asked * 99, "{kinds:?}: {limited} of {asked}");
    for user in 0..200 {
        let blocked = ask(&mut decider, Op::Peek, "blocked", &format!("blocked{user}"), at).0;
        assert_eq!(blocked, Verdict::Limit, "a block is never let go");
    }
    // The next day is as quiet as the previous one.
    for quarter in 0..24 * 4 {
        engine.sweep(Now::at_nanos(at + quarter * 900 * SECOND));
    }
    at += 24 * 3_600 * SECOND;
    quiet(&mut decider, at);
    let after = engine.memory_bytes();
    assert!(after * 4 <= before * 5, "{kinds:?}: {before} bytes before, {after} after");
}

#[test]
fn later_algorithms_get_room_within_the_budget() {
    let budget = 2 << 20;
    let (kind, quota) = ALGORITHMS[0];
    let engine = engine(&format!("  - {{name: {kind}, match: {{k: {kind}}}, key: [u], {quota}}}\n"), budget);
    let mut decider = engine.decider();
    let at = 1_000 * 3_600 * SECOND;
    (0..100_000).for_each(|user| assert!(hit(&mut decider, kind, &user.to_string(), at)));
    let mut most = 0;
    // The budget is used up when other kinds of table are created.
    engine.install_rules(rules(&one_of_each()));
    for (kind, _) in &ALGORITHMS[1..] {
        let users = (0..100).map(|user| format!("watched{user}"));
        let users: Vec<String> = users.collect();
        for user in &users {
            assert_eq!((0..7).filter(|_| hit(&mut decider, kind, user, at)).count(), 6, "{kind}");
        }
        for user in 0..10_000 {
            assert!(hit(&mut decider, kind, &user.to_string(), at));
            // Tables only grow meanwhile.
            if user % 20 == 19 {
                most = most.max(engine.memory_bytes());
            }
        }
        let limited = users.iter().filter(|user| !hit(&mut decider, kind, user, at)).count();
        assert!(limited >= 99, "{kind}: {limited} of 100");
    }
    // Tables of a few keys, one for each kind and shard, are never refused.
    assert!(most <= budget + (256 << 10), "{most} bytes of {budget}");
}

const SMALL: Flood = Flood { keys: 25_000, budget: MIB, sweeps: 50 };

const LARGE: Flood = Flood { keys: 10_000_000, budget: 64 * MIB, sweeps: 200 };

#[test]
fn flood_of_each_algorithm_stays_within_budget() {
    for (kind, _) in ALGORITHMS {
        flood(&[kind], SMALL);
    }
}

#[test]
fn flood_of_all_algorithms_stays_within_budget() {
    flood(&ALGORITHMS.map(|(kind, _)| kind), Flood { keys: 50_000, budget: 2 * MIB, ..SMALL });
}

#[test]
#[ignore = "ten million keys of each algorithm: minutes, in a release build"]
fn holds_ten_million_keys_of_each_algorithm() {
    for (kind, _) in ALGORITHMS {
        flood(&[kind], LARGE);
    }
    flood(&ALGORITHMS.map(|(kind, _)| kind), LARGE);
}

#[test]
fn restart_keeps_full_tables() {
    let budget = 2 << 20;
    let (kind, quota) = ALGORITHMS[0];
    let limits = format!("  - {{name: {kind}, match: {{k: {kind}}}, key: [u], {quota}}}\n");
    let before = engine(&limits, budget);
    let mut decider = before.decider();
    let at = 1_000 * 3_600 * SECOND;
    (0..100_000).for_each(|user| assert!(hit(&mut decider, kind, &user.to_string(), at)));
    assert!(before.totals().evictions > 0);
    let after = Engine::new(EngineOptions { memory_bytes_max: budget, ..engines::options() });
    let (keys, now) = (before.keys(), Now::at_nanos(at));
    let mut putting = after.putting_back(now);
    before.copy_out(now, &mut |entry| putting.put(entry).unwrap());
    drop(putting);
    let kept = after.keys();
    assert!(kept * 500 >= keys * 499 && kept <= keys, "{kept} of {keys}");
}
