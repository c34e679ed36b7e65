//! Snapshots under load: every unchanged key is copied exactly, and permits agree with leases.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use tidegate::engine::WorkOutcome;

use super::fixture::{Fixture, s};
use crate::rng::Rng;

const RULES: &str = "limits:\n- {name: each, key: [u], rate: 1/h, burst: 5}\n\
                     concurrency:\n- {name: at-once, match: {job: '*'}, key: [job], max: 3}\n";

#[test]
fn snapshot_of_growing_table_loses_no_key() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tables");
    let mut moved_on = 0;
    let mut fixture = Fixture::new(RULES);
    for user in 0..3_000 {
        (0..2).for_each(|_| drop(fixture.hit(&format!("u=old{user}"), s(1))));
    }
    let (stop, added) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let (engine, stopped, adding) = (Arc::clone(&fixture.engine), Arc::clone(&stop), Arc::clone(&added));
    let other = std::thread::spawn(move || {
        let mut fixture = Fixture::of(engine);
        while !stopped.load(Ordering::Relaxed) {
            let user = adding.fetch_add(1, Ordering::Relaxed);
            drop(fixture.hit(&format!("u=new{user}"), s(1)));
        }
    });
    // The tables grow during each copy.
    for _ in 0..3 {
        let before = added.load(Ordering::Relaxed);
        while added.load(Ordering::Relaxed) < before + 5_000 {
            std::thread::yield_now();
        }
        fixture.write(&path, s(2));
        moved_on += added.load(Ordering::Relaxed) - before;
        let mut again = Fixture::restart(&path, s(2));
        again.install(RULES);
        for user in 0..3_000 {
            let seen = again.hit(&format!("u=old{user}"), s(2));
            assert!(seen.contains("remaining: 2"), "old{user}: {seen}");
        }
    }
    stop.store(true, Ordering::Relaxed);
    other.join().unwrap();
    assert!(moved_on > 15_000, "{moved_on}");
}

#[test]
fn snapshot_keeps_leases_and_permits_consistent() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tables");
    let fixture = Fixture::new(RULES);
    let stop = Arc::new(AtomicBool::new(false));
    let workers: Vec<_> = (1..3_u8)
        .map(|number| {
            let (engine, stopped) = (Arc::clone(&fixture.engine), Arc::clone(&stop));
            std::thread::spawn(move || {
                let mut fixture = Fixture::of(engine);
                let (mut rng, mut held) = (Rng::new(u64::from(number)), Vec::new());
                fixture.open(number, 4, s(1));
                while !stopped.load(Ordering::Relaxed) {
                    let job = rng.below(20);
                    held.extend(fixture.acquire(number, &format!("job={job} u=x"), s(1)));
                    if held.len() > 12 {
                        let lease = held.swap_remove(usize::try_from(rng.below(12)).unwrap());
                        assert!(fixture.release(number, lease, WorkOutcome::Ok, s(1)));
                    }
                }
            })
        })
        .collect();
    for _ in 0..200 {
        fixture.write(&path, s(1));
        let again = Fixture::restart(&path, s(1));
        assert!(again.engine.leases().sessions <= 2 && again.engine.in_progress() <= 26);
        again.engine.end_expired_leases(s(3_600));
        assert_eq!(again.engine.in_progress(), 0, "each lease ends what it counts");
    }
    stop.store(true, Ordering::Relaxed);
    workers.into_iter().for_each(|worker| worker.join().unwrap());
    assert!(fs::metadata(&path).unwrap().len() > 100);
}
