//! Tests random small runs with faults: the limits and the leases of all hosts together never use the
//! reserve.

use super::{TAKES_MAX, World};
use crate::plan::{Faults, each_seed, runs, seed};
use crate::random::Random;

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

/// Selected by `SEED` and `RUNS`.
#[test]
fn reserve_is_never_used_twice() {
    each_seed(seed()..seed() + (runs() / 20).max(5), |seed| seed, |seed| run_one(*seed));
}
