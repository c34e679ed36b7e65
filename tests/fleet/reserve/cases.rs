//! Tests the guarantees of the reserve.

use super::{Pool, TAKES_MAX, Worker, goes_by_the_fleet, plan};
use crate::engines::domains;
use crate::host::{Birth, Host};
use crate::plan::{Faults, each_seed, is_short, runs, seed};
use crate::random::Random;
use crate::store::Store;
use std::collections::VecDeque;
use std::sync::Arc;
use virtual_redis::{Entry, Value};

/// Four fifths of the slots, plus a margin of a twentieth.
const MOST: f64 = 0.8 * 1.05;

/// Row of the table: twice the other load that fits, a crashed host, a Redis outage of a minute and a clock
/// half a minute ahead.
#[test]
fn reserve_stays_free_under_all_faults() {
    // Each run is far longer than those of other tests.
    for seed in seed()..seed() + (runs() / 400).clamp(1, 250) {
        println!("SEED={seed}");
        let lost = [0, 300][(seed % 2) as usize];
        let round_trip_us = [500, 50_000, 200_000][(seed / 2 % 3) as usize];
        let (faults, hosts) = (Faults { lost, ..Faults::default() }, if is_short() { 5 } else { 10 });
        whatever_happens(&mut Pool::new(seed, round_trip_us, faults, &vec![100; hosts]), lost == 0);
    }
}

/// `is_sound`: no message is lost.
fn whatever_happens(pool: &mut Pool, is_sound: bool) {
    let (settles_ms, out_ms) = if is_short() { (12_000, 20_000) } else { (20_000, 60_000) };
    pool.run(settles_ms, |_| 2.0);
    assert!(pool.most(settles_ms) <= MOST, "{}", pool.most(settles_ms));
    assert!(pool.mean(10_000) >= 0.78, "{}", pool.mean(10_000));

    // Claims change little: few heartbeats.
    let before = pool.world.measure.commands;
    pool.run(5_000, |_| 2.0);
    let heartbeats = pool.world.measure.commands - before;
    assert!(!is_sound || heartbeats <= pool.workers.len() as u64 * 5 * 8, "{heartbeats} in five seconds");

    pool.world.host(3).utc = 30_000_000_000;
    pool.run(5_000, |_| 2.0);
    assert!(pool.most(5_000) <= MOST);

    let (dead, slots) = (pool.workers.len() - 1, u64::from(pool.slots()));
    assert_eq!(pool.slots_known(0), slots);
    pool.kill(dead);
    let mut unknown = 0;
    for ms in 1..=6_000 {
        pool.run(1, |_| 2.0);
        let is_known = (0..dead).any(|number| pool.slots_known(number) > slots - 100);
        unknown = if is_known { ms } else { unknown };
    }
    assert!(!is_sound || unknown <= 4_000, "known for {unknown} ms after its death");
    // Without its slots, and the dead host's leases ended at once.
    assert!(pool.most(6_000) <= MOST, "{}", pool.most(6_000));

    pool.world.is_out = true;
    pool.run(2_000, |_| 2.0);
    assert_eq!(pool.count_by_the_fleet(), dead);
    pool.run(9_000, |_| 2.0);
    assert_eq!(pool.count_by_the_fleet(), 0, "the local rule within eleven seconds");
    pool.run(out_ms - 11_000, |_| 2.0);
    assert!(pool.most(out_ms) <= MOST, "{}", pool.most(out_ms));
    assert!(pool.mean(out_ms * 2 / 3) >= 0.78, "{}", pool.mean(out_ms * 2 / 3));
    pool.world.is_out = false;
    pool.run(settles_ms, |_| 2.0);
    assert_eq!(pool.count_by_the_fleet(), dead);
    assert!(pool.most(settles_ms) <= MOST, "{}", pool.most(settles_ms));
    assert!(pool.mean(10_000) >= 0.78, "{}", pool.mean(10_000));

    let (came, served) = pool.critical;
    let part = served as f64 / came as f64;
    assert!(part >= 0.999, "{part} of {came}");
}

/// Two small hosts, one of them idle: in any order of heartbeats, the other borrows all but the idle host's
/// minimum within seconds, and keeps it.
#[test]
fn borrows_idle_slots_within_seconds() {
    for seed in 0..if is_short() { 6 } else { 20 } {
        let mut pool = Pool::new(seed, 2_000, Faults::default(), &[20, 4]);
        let busy = |number: usize| if number == 0 { 3.0 } else { 0.0 };
        pool.run_strictly(8_000, busy);
        let most = |pool: &Pool| pool.hosts().next().map(|(host, worker)| worker.reach(host, pool.world.us));
        assert_eq!(
            most(&pool),
            Some(18),
            "of 19 for both, 16 of them its own; an idle host keeps one: seed {seed}"
        );
        for _ in 0..6 {
            pool.run_strictly(1_000, busy);
            assert_eq!(most(&pool), Some(18), "seed {seed}");
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
            let mut pool = Pool::new(seed, 2_000, Faults::default(), slots);
            let load = |lent: f64| move |number: usize| if number < borrowers { above } else { lent };
            pool.run_strictly(6_000 + 100 * seed, load(0.0));
            // The free slots in each of the last milliseconds in which the lenders refuse requests.
            let mut lately = VecDeque::new();
            for _ in 0..2_000 {
                pool.run_strictly(1, load(3.0));
                let hosts: Vec<_> = pool.hosts().collect();
                let own = |worker: &Worker| worker.slots * 4 / 5;
                let (there, here) = hosts.split_at(borrowers);
                let kept: u32 = there.iter().map(|(_, worker)| own(worker).max(worker.at_work[1])).sum();
                let own: u32 = here.iter().map(|(_, worker)| own(worker)).sum();
                let reach: u32 = here.iter().map(|(host, worker)| worker.reach(host, pool.world.us)).sum();
                if here.iter().any(|(_, worker)| pool.ms() > worker.refused_at + 20) {
                    lately.clear();
                }
                lately.truncate(99);
                lately.push_front(own.min(pool.allowed(0).saturating_sub(kept)));
                let free = lately.iter().copied().min().filter(|_| lately.len() == 100).unwrap_or(0);
                let at = pool.ms();
                assert!(20 * reach >= 19 * free, "{reach} of {free} at {at} ms, seed {seed}, {slots:?}");
            }
        }
    }
}

/// No other host needs the slots of a host that is alone, and unknown slots cannot be lent.
#[test]
fn frequent_heartbeats_need_other_hosts_and_slots() {
    for slots in [&[100][..], &[0, 100]] {
        let mut pool = Pool::new(1, 2_000, Faults::default(), slots);
        let us = pool.world.us;
        let (host, worker) = (pool.world.host(0), pool.workers[0].as_mut().unwrap());
        (0..3).for_each(|_| assert!(worker.acquire(host, false, 1_500, us)));
        pool.run(1_400, |number| if number == 0 { 3.0 } else { 0.0 });
        let sent = pool.sent(0).count();
        assert!(sent <= 6, "{sent} heartbeats of a host with {} slots", slots[0]);
    }
}

/// A replica that lacks the last second takes over: double use ends once all hosts have sent heartbeats and
/// leases have ended.
#[test]
fn recovers_after_failover_to_stale_replica() {
    for seed in 0..if is_short() { 2 } else { 10 } {
        let mut pool = Pool::new(seed, 2_000, Faults::default(), &[100; 4]);
        let half = |busy: usize| move |number: usize| if (number < 2) == (busy == 0) { 2.0 } else { 0.02 };
        pool.run_strictly(5_000 + 100 * seed, half(0));
        let replica = pool.world.store.clone();
        pool.run_strictly(1_000, half(1));
        pool.world.store = replica;
        pool.run(3_000, half(1));
        pool.run_strictly(8_000, half(1));
    }
}

/// A daemon whose identity a later daemon took over detects it and ignores the reply.
#[test]
fn detects_takeover_of_its_identity() {
    let (mut store, plan) = (Store::default(), Arc::new(plan(1, 1, 2_000, Faults::default())));
    let tenants = Arc::from(Vec::new());
    let mut daemons = [1, 2].map(|epoch| {
        let birth = Birth { number: 0, epoch, secret: 9, drift_ppm: 0, us: 0 };
        let host = Host::new(&plan, &tenants, birth);
        (Worker::new(&host, 100, 0), host)
    });
    let mut heartbeat = |host: &mut Host, us: u64| {
        host.tick(us);
        let [heartbeat] = &host.take_commands()[..] else { panic!("one command") };
        host.sent(us, heartbeat.clone(), us);
        let reply = store.execute(heartbeat, 1_700_000_000_000_000 + us);
        host.answered(us, heartbeat, reply, us);
        host.is_name_taken
    };
    let [(_, one), (_, other)] = &mut daemons;
    assert!(!heartbeat(one, 0));
    assert!(!heartbeat(other, 500_000), "it takes the place of the first");
    assert!(heartbeat(one, 1_500_000));
    assert!(!heartbeat(other, 2_000_000));
    let [one, other] = [one, other].map(|host| goes_by_the_fleet(host, 10_500_000));
    assert!(other && !one, "it was not heard since 0 s");
    let mut pools = store.0.keys.iter().filter(|(name, _)| name.starts_with(b"tg:{tm}:p:"));
    let Some((_, Entry { value: Value::Hash(fields), .. })) = pools.next() else { panic!("a pool") };
    assert_eq!(fields.len(), 2, "the sums, and the report of one host");
}

/// The clock of Redis steps forward and back.
#[test]
fn clock_step_of_redis_creates_no_slots() {
    let mut pool = Pool::new(5, 2_000, Faults::default(), &[100; 4]);
    let half = |number: usize| if number < 2 { 2.0 } else { 0.02 };
    let store_us = pool.world.store_us;
    for ahead in [30_000_000, -30_000_000, 0] {
        pool.run_strictly(10_000, half);
        pool.world.store_us = store_us.checked_add_signed(ahead).unwrap();
        pool.run_strictly(5_000, |_| 2.0);
        assert_eq!(pool.slots_known(0), 400);
    }
    pool.kill(3);
    pool.run(4_000, |_| 2.0);
    assert_eq!(pool.slots_known(0), 300);
}

/// A pool without rules no longer counts on any host.
#[test]
fn reports_removed_pool_until_acknowledged() {
    let mut pool = Pool::new(4, 2_000, Faults::default(), &[100; 2]);
    pool.run(3_000, |_| 0.0);
    assert_eq!(pool.slots_known(0), 200);
    pool.world.host(1).engine.install_rules(domains("domain: api\nlimits: []\n"));
    pool.run(2_100, |_| 0.0);
    assert_eq!(pool.slots_known(0), 100);
    let reports = pool.sent(1).flat_map(|heartbeat| &heartbeat.pools);
    assert_eq!(reports.filter(|report| report.load.slots == 0).count(), 1);
    assert!(pool.sent(1).last().unwrap().pools.is_empty());
}

/// A random small run with faults.
fn run_one(seed: u64) {
    let mut random = Random::new(seed, 6);
    let faults = Faults {
        lost: [0, 100, 300][random.below(3) as usize],
        late: [0, 50][random.below(2) as usize],
        ..Faults::default()
    };
    let round_trip_us = [500, 20_000, 300_000][random.below(3) as usize];
    let slots: Vec<u32> = (0..2 + random.below(5)).map(|_| [1, 4, 9, 32][random.below(4) as usize]).collect();
    let mut pool = Pool::new(seed, round_trip_us, faults, &slots);
    let mut loads = vec![0.0; slots.len()];
    for _ in 0..12 {
        loads.iter_mut().for_each(|load| *load = [0.0, 0.3, 1.0, 3.0][random.below(4) as usize]);
        match random.below(12) {
            0 => pool.world.store.flush(),
            1 => pool.world.is_out = true,
            2 => pool.kill(random.below(slots.len() as u32) as usize),
            _ => pool.world.is_out = false,
        }
        for _ in 0..200 + random.below(3_000) {
            pool.run(1, |number| loads[number]);
            // Slots lent by a crashed host stay borrowed until the borrowers learn of the crash.
            let (reach, most) = (pool.reach(), pool.allowed(4_000 + TAKES_MAX));
            assert!(reach <= most, "{reach} of {most} after {} ms: {slots:?}", pool.ms());
        }
    }
}

/// The limits and the leases of all hosts together. Selected by `SEED` and `RUNS`.
#[test]
fn reserve_is_never_used_twice() {
    each_seed(seed()..seed() + (runs() / 20).max(5), |seed| seed, |seed| run_one(*seed));
}
