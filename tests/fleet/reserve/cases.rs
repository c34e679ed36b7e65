//! Tests the guarantees of the reserve.

use super::{EPOCH_US, Host, TAKES_MAX, World, now};
use crate::engines::domains;
use crate::plan::{Faults, each_seed, is_short, runs, seed};
use crate::random::Random;
use crate::store::Store;
use std::collections::VecDeque;
use std::time::Duration;
use tidegate::fleet::command::ScriptCommand;
use tidegate::fleet::reply::ScriptReply;

/// Returns fewer seeds than other tests use: each run is far longer.
fn seeds() -> std::ops::Range<u64> {
    seed()..seed() + (runs() / 400).clamp(1, 250)
}

/// Four fifths of the slots, plus a margin of a twentieth.
const MOST: f64 = 0.8 * 1.05;

/// Row of the table: twice the other load that fits, a crashed host, a Redis outage of a minute and a clock
/// half a minute ahead.
#[test]
fn reserve_stays_free_under_all_faults() {
    for seed in seeds() {
        println!("SEED={seed}");
        let faults = [
            Faults::default(),
            Faults { lost: 300, ..Faults::default() },
            Faults { doubled: 100, late: 100, ..Faults::default() },
        ];
        let is_sound = seed % 3 == 0;
        let faults = faults[(seed % 3) as usize].clone();
        let round_trip_us = [500, 50_000, 200_000][(seed / 3 % 3) as usize];
        let hosts = if is_short() { 5 } else { 10 };
        let mut world = World::new(seed, round_trip_us, faults).with_hosts(&vec![100; hosts]);
        whatever_happens(&mut world, is_sound);
    }
}

/// `is_sound`: no message is lost, late or doubled.
fn whatever_happens(world: &mut World, is_sound: bool) {
    let (settles_ms, out_ms) = if is_short() { (12_000, 20_000) } else { (20_000, 60_000) };
    world.run(settles_ms, |_| 2.0);
    assert!(world.most(settles_ms) <= MOST, "{}", world.most(settles_ms));
    assert!(world.mean(10_000) >= 0.78, "{}", world.mean(10_000));

    // Claims change little: few heartbeats.
    let count = |world: &World| world.hosts.iter().flatten().map(|host| host.sent.len()).sum::<usize>();
    let before = count(world);
    world.run(5_000, |_| 2.0);
    let heartbeats = count(world) - before;
    assert!(!is_sound || heartbeats <= world.hosts.len() * 5 * 8, "{heartbeats} in five seconds");

    world.hosts[3].as_mut().unwrap().utc = 30_000_000_000;
    world.run(5_000, |_| 2.0);
    assert!(world.most(5_000) <= MOST);

    let (dead, slots) = (world.hosts.len() - 1, u64::from(world.slots()));
    assert_eq!(world.slots_known(0), slots);
    world.kill(dead);
    let (mut gone, mut unknown) = (0, 0);
    for ms in 1..=6_000 {
        world.run(1, |_| 2.0);
        let is_known = (0..dead).any(|number| world.slots_known(number) > slots - 100);
        unknown = if is_known { ms } else { unknown };
        gone = if world.answered > slots - 100 { ms } else { gone };
    }
    assert!(gone <= 4_000, "in the sums for {gone} ms after its death");
    assert!(!is_sound || unknown <= 4_000, "known for {unknown} ms after its death");
    // Without its slots, and the dead host's leases ended at once.
    assert!(world.most(6_000) <= MOST, "{}", world.most(6_000));

    world.is_out = true;
    world.run(2_000, |_| 2.0);
    let counted = world.hosts.iter().flatten().filter(|host| host.goes_by_the_fleet(world.ms)).count();
    assert_eq!(counted, dead);
    world.run(9_000, |_| 2.0);
    for host in world.hosts.iter().flatten() {
        assert!(!host.goes_by_the_fleet(world.ms), "the local rule within eleven seconds");
    }
    world.run(out_ms - 11_000, |_| 2.0);
    assert!(world.most(out_ms) <= MOST, "{}", world.most(out_ms));
    assert!(world.mean(out_ms * 2 / 3) >= 0.78, "{}", world.mean(out_ms * 2 / 3));
    world.is_out = false;
    world.run(settles_ms, |_| 2.0);
    assert!(world.hosts.iter().flatten().all(|host| host.goes_by_the_fleet(world.ms)));
    assert!(world.most(settles_ms) <= MOST, "{}", world.most(settles_ms));
    assert!(world.mean(10_000) >= 0.78, "{}", world.mean(10_000));

    let (came, served) = world.critical;
    let part = served as f64 / came as f64;
    assert!(part >= 0.999, "{part} of {came}");
}

/// Two small hosts, one of them idle: in any order of heartbeats, the other borrows all but the idle host's
/// minimum within seconds, and keeps it.
#[test]
fn borrows_idle_slots_within_seconds() {
    for seed in 0..if is_short() { 6 } else { 20 } {
        let mut world = World::new(seed, 2_000, Faults::default()).with_hosts(&[20, 4]);
        let busy = |number: usize| if number == 0 { 3.0 } else { 0.0 };
        world.run_strictly(8_000, busy);
        let most = |world: &World| world.hosts[0].as_ref().unwrap().reach(world.ms);
        assert_eq!(
            most(&world),
            18,
            "of 19 for both, 16 of them its own; an idle host keeps one: seed {seed}"
        );
        for _ in 0..6 {
            world.run_strictly(1_000, busy);
            assert_eq!(most(&world), 18, "seed {seed}");
        }
    }
}

/// Idle hosts lend their slots. Under load they refuse for at most 100 ms while slots are free, which includes those of
/// requests elsewhere that end: all of ten, a twentieth less of many.
#[test]
fn lent_slots_return_within_100_ms() {
    let cases =
        [(&[10, 10][..], 1, 3.0), (&[100; 5], 4, 3.0), (&[100, 20, 50, 50], 2, 3.0), (&[100; 5], 4, 0.95)];
    for (slots, borrowers, above) in cases {
        for seed in 0..if is_short() { 2 } else { 40 } {
            let mut world = World::new(seed, 2_000, Faults::default()).with_hosts(slots);
            let load = |lent: f64| move |number: usize| if number < borrowers { above } else { lent };
            world.run_strictly(6_000 + 100 * seed, load(0.0));
            // The free slots in each of the last milliseconds in which the lenders refuse requests.
            let mut lately = VecDeque::new();
            for _ in 0..2_000 {
                world.run_strictly(1, load(3.0));
                let hosts: Vec<&Host> = world.hosts.iter().flatten().collect();
                let own = |host: &Host| host.slots * 4 / 5;
                let (there, here) = hosts.split_at(borrowers);
                let kept: u32 = there.iter().map(|host| own(host).max(host.at_work[1])).sum();
                let own: u32 = here.iter().map(|host| own(host)).sum();
                let reach: u32 = here.iter().map(|host| host.reach(world.ms)).sum();
                if here.iter().any(|host| world.ms >= host.refused_at + 20) {
                    lately.clear();
                }
                lately.truncate(99);
                lately.push_front(own.min(world.allowed(0).saturating_sub(kept)));
                let free = lately.iter().copied().min().filter(|_| lately.len() == 100).unwrap_or(0);
                let at = world.ms;
                assert!(20 * reach >= 19 * free, "{reach} of {free} at {at} ms, seed {seed}, {slots:?}");
            }
        }
    }
}

/// No other host needs the slots of a host that is alone, and unknown slots cannot be lent.
#[test]
fn frequent_heartbeats_need_other_hosts_and_slots() {
    for slots in [&[100][..], &[0, 100]] {
        let mut world = World::new(1, 2_000, Faults::default()).with_hosts(slots);
        let host = world.hosts[0].as_mut().unwrap();
        (0..3).for_each(|_| assert!(host.acquire(false, 1_500, world.ms)));
        world.run(1_400, |number| if number == 0 { 3.0 } else { 0.0 });
        let sent = world.hosts[0].as_ref().unwrap().sent.len();
        assert!(sent <= 6, "{sent} heartbeats of a host with {} slots", slots[0]);
    }
}

/// A replica that lacks the last second takes over: double use ends once all hosts have sent heartbeats and
/// leases have ended.
#[test]
fn recovers_after_failover_to_stale_replica() {
    for seed in 0..if is_short() { 2 } else { 10 } {
        let mut world = World::new(seed, 2_000, Faults::default()).with_hosts(&[100; 4]);
        let half = |busy: usize| move |number: usize| if (number < 2) == (busy == 0) { 2.0 } else { 0.02 };
        world.run_strictly(5_000 + 100 * seed, half(0));
        let replica = world.store.clone();
        world.run_strictly(1_000, half(1));
        world.store = replica;
        world.run(3_000, half(1));
        world.run_strictly(8_000, half(1));
    }
}

/// A daemon whose identity a later daemon took over detects it and ignores the reply.
#[test]
fn detects_takeover_of_its_identity() {
    let mut store = Store::default();
    let mut daemons = [1, 2].map(|epoch| Host::new(0, epoch, 100, 0));
    let mut heartbeat = |daemon: &mut Host, ms: u64| {
        let heartbeat = daemon.speak(Duration::from_millis(250), now(ms, 0).at).unwrap();
        let ScriptReply::Heartbeat(reply) =
            store.execute(&ScriptCommand::Heartbeat(heartbeat.clone()), EPOCH_US + ms * 1_000)
        else {
            panic!()
        };
        daemon.link.record_reply(now(ms, 0).at);
        let is_taken = daemon.reserves.apply_reply(&heartbeat, &reply, &daemon.engine);
        (is_taken, reply.pools[0].load.slots)
    };
    let [one, other] = &mut daemons;
    assert_eq!(heartbeat(one, 0), (false, 100));
    assert_eq!(heartbeat(other, 500), (false, 100), "it takes the place of the first");
    assert_eq!(heartbeat(one, 1_500), (true, 100));
    assert_eq!(heartbeat(other, 2_000), (false, 100));
    assert!(other.goes_by_the_fleet(10_500) && !one.goes_by_the_fleet(10_500), "it was not heard since 0 s");
}

/// The clock of Redis steps forward and back.
#[test]
fn clock_step_of_redis_creates_no_slots() {
    let mut world = World::new(5, 2_000, Faults::default()).with_hosts(&[100; 4]);
    let half = |number: usize| if number < 2 { 2.0 } else { 0.02 };
    for ahead in [30_000_000, -30_000_000, 0] {
        world.run_strictly(10_000, half);
        world.store_ahead_us = ahead;
        world.run_strictly(5_000, |_| 2.0);
        assert_eq!(world.slots_known(0), 400);
    }
    world.kill(3);
    world.run(4_000, |_| 2.0);
    assert_eq!(world.slots_known(0), 300);
}

/// A pool without rules no longer counts on any host.
#[test]
fn reports_removed_pool_until_acknowledged() {
    let mut world = World::new(4, 2_000, Faults::default()).with_hosts(&[100; 2]);
    world.run(3_000, |_| 0.0);
    assert_eq!(world.slots_known(0), 200);
    world.hosts[1].as_ref().unwrap().engine.install_rules(domains("domain: api\nlimits: []\n"));
    world.run(2_100, |_| 0.0);
    assert_eq!(world.slots_known(0), 100);
    let sent = &world.hosts[1].as_ref().unwrap().sent;
    let zeros =
        sent.iter().flat_map(|heartbeat| &heartbeat.pools).filter(|report| report.load.slots == 0).count();
    assert_eq!(zeros, 1);
    assert!(sent.last().unwrap().pools.is_empty());
}

/// A random small run with faults.
fn run_one(seed: u64) {
    let mut random = Random::new(seed, 6);
    let faults = Faults {
        lost: [0, 100, 300][random.below(3) as usize],
        doubled: [0, 100][random.below(2) as usize],
        late: [0, 50][random.below(2) as usize],
        ..Faults::default()
    };
    let round_trip_us = [500, 20_000, 300_000][random.below(3) as usize];
    let slots: Vec<u32> = (0..2 + random.below(5)).map(|_| [1, 4, 9, 32][random.below(4) as usize]).collect();
    let mut world = World::new(seed, round_trip_us, faults).with_hosts(&slots);
    let mut loads = vec![0.0; slots.len()];
    for _ in 0..12 {
        loads.iter_mut().for_each(|load| *load = [0.0, 0.3, 1.0, 3.0][random.below(4) as usize]);
        match random.below(12) {
            0 => world.store.flush(),
            1 => world.is_out = true,
            2 => world.kill(random.below(slots.len() as u32) as usize),
            _ => world.is_out = false,
        }
        for _ in 0..200 + random.below(3_000) {
            world.run(1, |number| loads[number]);
            // Slots lent by a crashed host stay borrowed until the borrowers learn of the crash.
            let (reach, most) = (world.reach(), world.allowed(4_000 + TAKES_MAX));
            assert!(reach <= most, "{reach} of {most} after {} ms: {slots:?}", world.ms);
        }
    }
}

/// The limits and the leases of all hosts together. Selected by `SEED` and `RUNS`.
#[test]
fn reserve_is_never_used_twice() {
    each_seed(seed()..seed() + (runs() / 20).max(5), |seed| seed, |seed| run_one(*seed));
}
