//! Tests a bucket with more keys to sync than fit in flight: each key is synced in turn.

use foldhash::{HashMap, HashSet};

use tidegate::fleet::command::ScriptCommand;

use crate::host::Host;
use crate::plan::{Plan, Shape, runs, seed};
use crate::random::Random;
use crate::world::World;

/// A host with one bucket for all keys.
fn world(seed: u64) -> World {
    let plan = Plan { seed, rate: 10, burst: 10, credit: 0, buckets: 1, ..Plan::cell(1, Shape::Even, 0) };
    let mut world = World::started(&Plan { tenants: KEYS, round_trip_us: 1_000, step_us: 2_000, ..plan });
    world.log = Some(Vec::new());
    go_on(&mut world, 20, |_, _| {});
    world
}

/// Runs for `ms`; `requests` issues requests before each tick.
fn go_on(world: &mut World, ms: u64, mut requests: impl FnMut(&mut Host, u64)) {
    let mut seen = None;
    world.advance(ms, |world| {
        let us = world.us;
        requests(world.host(0), us);
        let commands = world.log.as_ref().map(Vec::len);
        if seen.replace(commands) != Some(commands) {
            let mut on_way = HashSet::with_capacity_and_hasher(KEYS as usize, Default::default());
            let mut all = world.host(0).pending().flat_map(|(_, command)| keys(command));
            assert!(all.all(|key| on_way.insert(key)), "a key in two commands at once");
        }
    });
}

fn keys(command: &ScriptCommand) -> impl Iterator<Item = [u8; 16]> + '_ {
    let batch = if let ScriptCommand::Sync(batch) = command { Some(batch) } else { None };
    batch.into_iter().flat_map(|batch| batch.asks.iter().map(|ask| ask.key))
}

/// All keys are in demand for longer than one round of syncs: each is synced about equally often.
#[test]
fn syncs_excess_keys_equally_often() {
    let mut world = world(seed());
    // The limit of commands in flight is too low to sync each key as often as it is due.
    world.network.slow_us = 100_000;
    let demand = |host: &mut Host, us: u64| {
        for tenant in (0..KEYS).filter(|tenant| us / 2_000 % 25 == u64::from(tenant % 25)) {
            host.hit(tenant, us);
        }
    };
    go_on(&mut world, 1_000, demand);
    world.log = Some(Vec::new());
    go_on(&mut world, 3_000, demand);
    let mut synced: HashMap<[u8; 16], u64> = HashMap::default();
    let all = world.log.iter().flatten().flat_map(|(_, command)| keys(command));
    all.for_each(|key| *synced.entry(key).or_default() += 1);
    let (least, most) = (synced.values().min().unwrap(), synced.values().max().unwrap());
    assert!(synced.len() == KEYS as usize && *least >= 9, "synced {least} to {most} times each");
    assert!(*most <= 4 * least, "synced {least} to {most} times each");
}

/// After lost and late replies every key is synced again.
#[test]
fn syncs_every_key_after_lost_and_late_replies() {
    for seed in seed()..seed() + runs().div_ceil(100) {
        let mut world = world(seed);
        let mut random = Random::new(seed, 42);
        for _ in 0..6 {
            world.network.lost = [0, 30, 300][random.below(3) as usize];
            world.network.slow_us = [0, 20_000, 900_000][random.below(3) as usize];
            let of_thousand = [0, 1, 20, 1_000][random.below(4) as usize];
            let every_us = [2_000, 100_000, 700_000][random.below(3) as usize];
            // All keys at each tick would only take time: a key that waits does not wait more.
            let every_us = if of_thousand == 1_000 { every_us.max(20_000) } else { every_us };
            go_on(&mut world, 700, |host, us| {
                if us.is_multiple_of(every_us) {
                    (0..KEYS).filter(|_| random.below(1_000) < of_thousand).for_each(|tenant| {
                        host.hit(tenant, us);
                    });
                }
            });
        }
        (world.network.lost, world.network.slow_us) = (0, 0);
        go_on(&mut world, 2_000, |_, _| {});
        let mut passed = [false; KEYS as usize];
        go_on(&mut world, 3_000, |host, us| {
            if us.is_multiple_of(100_000) {
                for (tenant, passed) in (0..).zip(&mut passed).filter(|(_, passed)| !**passed) {
                    *passed = host.hit(tenant, us);
                }
            }
        });
        let forgotten = passed.iter().filter(|passed| !**passed).count();
        assert_eq!(forgotten, 0, "SEED={seed} RUNS=1: keys that are never spoken of again");
    }
}

/// Three times what fits in flight.
const KEYS: u32 = 1_500;
