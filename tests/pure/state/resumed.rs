//! Two engines with equal requests, one restarted midway: their answers stay equal to the microsecond.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tidegate::clock::Now;
use tidegate::engine::{Op, WorkOutcome};

use super::fixture::{Ask, Fixture, at};
use crate::bench::named;
use crate::engines::{ROOM, SECOND};
use crate::rng::Rng;

/// Rules of every algorithm and of every option with state. `{a}` and `{b}` change with a reload.
const LIMITS: &[&str] = &[
    "{name: bucket, key: [u], rate: 5/s, burst: {a}}",
    "{name: debt, key: [u], rate: 3/s, burst: 6, max_debt: {b}}",
    "{name: odd, key: [u, v], rate: 7/3s, burst: {a}}",
    "{name: soft, key: [u], rate: 4/s, burst: {a}, over: {soft: 50%, for: 3s}}",
    "{name: soft-window, key: [v], algorithm: fixed_window, rate: {a}/5s, over: {soft: 50%, for: 2s}}",
    "{name: elastic, key: [v], rate: 4/s, burst: {b}, over: {elastic: 100%}}",
    "{name: paced, key: [v], algorithm: leaky_bucket, rate: 10/s, queue: {a}}",
    "{name: window, key: [u], algorithm: fixed_window, rate: 2{a}/10s}",
    "{name: first, key: [v], algorithm: fixed_window, rate: 1{a}/7s, align: first}",
    "{name: day, key: [u], algorithm: fixed_window, rate: 15{a}/day, timezone: Europe/Berlin}",
    "{name: log, key: [u], algorithm: sliding_log, rate: 1{a}/5s}",
    "{name: fine, key: [v], algorithm: sliding_window, buckets: 60, rate: 3{a}/6s}",
    "{name: coarse, key: [u], algorithm: sliding_window, buckets: 1, rate: 2{b}/4s}",
    "{name: tried, key: [v], rate: 6/s, burst: 6, candidate: {algorithm: sliding_log, rate: 1{a}/2s}}",
    "{name: tried-bucket, key: [u], rate: 6/s, burst: 6, candidate: {rate: 4/s, burst: {b}}}",
    "{name: blocked, key: [u], rate: 5/s, burst: {a}, block: 4s}",
    "{name: refunded, key: [u], rate: 1/s, burst: 1{b}, refund_on: ok}",
    "{name: shadowed, key: [v], rate: 2/s, burst: 3, mode: shadow, warn_at: 50%}",
    "{name: counted, key: [u], algorithm: fixed_window, rate: {a}/3s, refused: counted}",
    "{name: share, key: [u], rate: 4/s, burst: {a}, scope: fleet}",
    "{name: share-of-day, key: [v], algorithm: fixed_window, rate: 9{b}/day, scope: fleet}",
    "{name: overridden, key: [v], rate: 3/s, burst: {a}, overrides: [{match: {v: b}, rate: 9/s, burst: {b}}]}",
];

const CONCURRENCY: &[&str] = &[
    "{name: each, key: [u], max: 3, expires: 20s}",
    "{name: all, key: [], max: {a}, expires: 6s, candidate: {max: 4}}",
];

/// The random requests of both engines, and their times.
struct Twins {
    rng: Rng,
    nanos: u64,
    /// Leases: the session, and the lease number in each engine.
    leases: Vec<(u8, Option<u64>, Option<u64>)>,
    /// Whether requests have idempotency keys. A reload drops the rule numbers stored for retries; a restart
    /// with other quotas of the same rules need not.
    named: bool,
    steps: u64,
    granted: u64,
    refused: u64,
}

fn written(chosen: &[&str], concurrency: bool, (a, b): (u64, u64)) -> String {
    let fill = |lines: &[&str]| {
        let lines = lines.iter().map(|line| format!("- {line}\n"));
        lines.collect::<String>().replace("{a}", &a.to_string()).replace("{b}", &b.to_string())
    };
    let more = if concurrency { format!("concurrency:\n{}", fill(CONCURRENCY)) } else { String::new() };
    let limits = if chosen.is_empty() { String::new() } else { format!("limits:\n{}", fill(chosen)) };
    limits + &more + ROOM
}

impl Twins {
    fn now(&self) -> Now {
        at(self.nanos)
    }

    /// One step of both, with equal results.
    fn step(&mut self, one: &mut Fixture, mut other: Option<&mut Fixture>) {
        self.steps += 1;
        let spans = [0, 999, 1_000_000, 37_000_000, 120_000_000, 400_000_001];
        self.nanos += self.rng.pick(&spans);
        let now = self.now();
        if self.rng.below(4) == 0 {
            one.engine.tick(now);
            one.engine.sweep(now);
            other.iter().for_each(|other| {
                other.engine.tick(now);
                other.engine.sweep(now);
            });
        }
        let attributes = format!("u={} v={}", self.rng.pick(&["x", "y", "z"]), self.rng.pick(&["a", "b"]));
        match self.rng.below(20) {
            0 => {
                let amount = *self.rng.pick(&[-3, 2, 9]);
                let done = one.charge(&attributes, amount, now);
                other.iter_mut().for_each(|other| assert_eq!(done, other.charge(&attributes, amount, now)));
            }
            1..5 => self.end_one(one, other.as_deref_mut(), now),
            _ => {
                let name = self.rng.below(40).to_le_bytes();
                let ask = Ask {
                    op: *self.rng.pick(&[Op::Hit, Op::Hit, Op::Acquire, Op::Acquire, Op::Peek]),
                    cost: *self.rng.pick(&[1, 1, 1, 2, 5]),
                    wait_max: *self.rng.pick(&[None, Some(0), Some(300_000)]),
                    repeat: (self.named && self.rng.below(6) == 0).then_some(named(&name)),
                    ..Ask::acquire(&attributes)
                };
                let session = u8::try_from(self.rng.below(5)).unwrap();
                self.ask((session, ask), one, other.as_deref_mut(), now);
            }
        }
        let live = one.engine.leases().live;
        other.iter().for_each(|other| assert_eq!(live, other.engine.leases().live));
        if self.steps.is_multiple_of(16) {
            let in_progress = one.engine.in_progress();
            other.iter().for_each(|other| assert_eq!(in_progress, other.engine.in_progress()));
        }
    }

    fn ask(
        &mut self,
        (session, ask): (u8, Ask<'_>),
        one: &mut Fixture,
        other: Option<&mut Fixture>,
        now: Now,
    ) {
        let (line, lease) = one.ask(session, ask, now);
        let mut pair = (session, lease, None);
        if let Some(other) = other {
            let (its, lease) = other.ask(session, ask, now);
            assert_eq!(line, its, "step {}: {} at {} ns", self.steps, ask.attributes, self.nanos);
            pair.2 = lease;
        }
        self.granted += u64::from(line.starts_with("Allow"));
        self.refused += u64::from(line.starts_with("Limit"));
        // A retry returns its existing lease.
        if lease.is_some() && self.leases.iter().all(|(_, known, _)| *known != lease) {
            self.leases.push(pair);
        }
    }

    fn end_one(&mut self, one: &mut Fixture, other: Option<&mut Fixture>, now: Now) {
        if self.leases.is_empty() {
            return;
        }
        let at = usize::try_from(self.rng.below(self.leases.len() as u64)).unwrap();
        let (session, lease, its) = self.leases[at];
        let outcome = *self.rng.pick(&[WorkOutcome::Ok, WorkOutcome::Error]);
        let ended = one.release(session, lease.unwrap(), outcome, now);
        if let Some(other) = other {
            assert_eq!(ended, other.release(session, its.unwrap(), outcome, now), "step {}", self.steps);
        }
        self.leases.swap_remove(at);
    }
}

#[test]
fn restarted_engine_decides_as_one_that_kept_running() {
    let mut rng = Rng::seeded(11);
    let cases = u64::from((crate::rng::cases(0).cases / 100).max(20));
    let (mut granted, mut refused, mut rules_seen) = (0, 0, HashMap::new());
    for case in 0..cases {
        let chosen: Vec<&str> = LIMITS.iter().filter(|_| rng.below(4) == 0).copied().collect();
        chosen.iter().for_each(|rule| *rules_seen.entry(*rule).or_insert(0) += 1);
        let concurrency = chosen.is_empty() || rng.below(2) == 0;
        let seed = rng.word();
        println!("case {case}: {chosen:?} {concurrency} {seed}");
        let mut twins = Twins {
            rng: Rng::new(seed),
            nanos: 1_000_000,
            leases: Vec::new(),
            named: true,
            steps: 0,
            granted: 0,
            refused: 0,
        };
        restart_once(&mut twins, &chosen, concurrency);
        granted += twins.granted;
        refused += twins.refused;
    }
    assert!(granted > 50 * cases && refused > 50 * cases, "both were seen: {granted}, {refused}");
    assert_eq!(rules_seen.len(), LIMITS.len());
}

fn restart_once(twins: &mut Twins, chosen: &[&str], concurrency: bool) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tables");
    let mut numbers = (6, 5);
    let mut one = Fixture::new(&written(chosen, concurrency, numbers));
    (0..5).for_each(|number| one.open(number, SLOTS, twins.now()));
    for _ in 0..200 {
        if twins.rng.below(60) == 0 {
            numbers = (3 + twins.rng.below(6), 3 + twins.rng.below(6));
            one.install_at(&written(chosen, concurrency, numbers), twins.now());
        }
        twins.step(&mut one, None);
    }
    // All connections close and the daemon is down for a while; rules may have changed meanwhile.
    one.write(&path, twins.now());
    twins.nanos += twins.rng.pick(&[0, 250_000_000, 4_100_000_000]);
    let now = twins.now();
    one.engine.tick(now);
    let mut other = Fixture::restart(&path, now);
    if twins.rng.below(3) == 0 {
        numbers = (3 + twins.rng.below(6), 3 + twins.rng.below(6));
        one.install_at(&written(chosen, concurrency, numbers), twins.now());
        twins.named = false;
    }
    other.install_at(&written(chosen, concurrency, numbers), twins.now());
    (0..5).for_each(|number| one.close(number, now));
    twins.leases.iter_mut().for_each(|(_, lease, its)| *its = *lease);
    // One session does not return, and ends with its leases.
    let back = [0, 1, 2, 3];
    back.iter().for_each(|number| {
        one.open(*number, SLOTS, now);
        other.open(*number, SLOTS, now);
    });
    for _ in 0..200 {
        if twins.rng.below(80) == 0 {
            numbers = (3 + twins.rng.below(6), 3 + twins.rng.below(6));
            one.install_at(&written(chosen, concurrency, numbers), twins.now());
            other.install_at(&written(chosen, concurrency, numbers), twins.now());
        }
        twins.step(&mut one, Some(&mut other));
    }
}

/// So many that each pool has room, also in an engine that has measured nothing since its restart.
const SLOTS: u32 = 1_000;

const UNDER_LOAD: &str = "limits:\n- {name: each, key: [u], rate: 1/h, burst: 5}\n\
                          concurrency:\n- {name: at-once, match: {job: '*'}, key: [job], max: 3}\n";

#[test]
fn snapshot_keeps_leases_and_permits_consistent() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tables");
    let fixture = Fixture::new(UNDER_LOAD);
    let stop = Arc::new(AtomicBool::new(false));
    let workers: Vec<_> = (1..3_u8)
        .map(|number| {
            let (engine, stopped) = (Arc::clone(&fixture.engine), Arc::clone(&stop));
            std::thread::spawn(move || {
                let mut fixture = Fixture::of(engine);
                let (mut rng, mut held) = (Rng::new(u64::from(number)), Vec::new());
                fixture.open(number, 4, at(SECOND));
                while !stopped.load(Ordering::Relaxed) {
                    let job = rng.below(20);
                    held.extend(fixture.acquire(number, &format!("job={job} u=x"), at(SECOND)));
                    if held.len() > 12 {
                        let lease = held.swap_remove(usize::try_from(rng.below(12)).unwrap());
                        assert!(fixture.release(number, lease, WorkOutcome::Ok, at(SECOND)));
                    }
                }
            })
        })
        .collect();
    for _ in 0..200 {
        fixture.write(&path, at(SECOND));
        let again = Fixture::restart(&path, at(SECOND));
        assert!(again.engine.leases().sessions <= 2 && again.engine.in_progress() <= 26);
        again.engine.end_expired_leases(at(3_600 * SECOND));
        assert_eq!(again.engine.in_progress(), 0, "each lease ends what it counts");
    }
    stop.store(true, Ordering::Relaxed);
    workers.into_iter().for_each(|worker| worker.join().unwrap());
}
