//! The cost of leases: a request under a lease beside two plain hits, eight threads on one key beside spread
//! keys, bytes per lease, and the longest delay of requests while thousands of leases end.

use std::collections::VecDeque;
use std::io;
use std::sync::Barrier;

use tidegate::clock::Now;
use tidegate::engine::{
    ConnectionParams, Descriptors, EngineAnswer, Op, Request, Session, Verdict, WorkOutcome,
};

use crate::contestant::{Limits, MEMORY_BYTES};
use crate::report::{Bound, Row};
use crate::resident::said_by;
use crate::rules;
use crate::stopwatch::{Sleeps, Times, cpu_nanos, millis, resident_bytes};
use crate::workload::{DOMAIN, UserName, Users};

/// Rows about time, then memory, then delays.
pub(crate) fn run(reps: usize) -> io::Result<Vec<Row>> {
    let mut rows = vec![under_a_lease(reps), on_one_key(reps)];
    let bytes: io::Result<Vec<f64>> =
        (0..reps.min(MEMORY_REPS_MAX)).map(|_| said_by(&["lease", &LEASES.to_string()])).collect();
    rows.push(
        Row::alone("resident bytes per live lease, one concurrency rule", "B", &bytes?)
            .must(Bound::AtMost(128.0)),
    );
    let pauses: Vec<(f64, f64)> = (0..reps.min(PAUSES_REPS_MAX)).map(|_| pauses()).collect();
    let (usual, longest): (Vec<f64>, Vec<f64>) = pauses.into_iter().unzip();
    let figure = "p99.99 of requests while 1000 sessions of 1000 leases end";
    rows.push(Row::alone(figure, "ms", &usual).must(Bound::AtMost(1.0)));
    let figure = "the slowest of these requests, a CPU taken away not counted";
    rows.push(Row::alone(figure, "ms", &longest).must(Bound::AtMost(1.0)));
    Ok(rows)
}

/// Acquire and release with shedding, beside two hits without either.
fn under_a_lease(reps: usize) -> Row {
    let mut plain = Limits::new(&rules::one(rules::TOKEN_BUCKET), MEMORY_BYTES).filled(1);
    let mut leased =
        Limits::new(&format!("{}{SHED}", rules::one(rules::TOKEN_BUCKET)), MEMORY_BYTES).filled(1);
    let session = session(&leased, 1, 1);
    let mut users = Users::uniform(1);
    let (mut hits, mut leases) = (Vec::new(), Vec::new());
    for rep in 0..=reps {
        let two_hits = cpu_nanos(|| plain.run(&mut users, 2 * REQUESTS)) / f64::from(REQUESTS);
        let lease = cpu_nanos(|| leased.work(&session, &mut users, REQUESTS)) / f64::from(REQUESTS);
        // The first repetition warms the caches.
        if rep > 0 {
            hits.push(two_hits);
            leases.push(lease);
        }
    }
    let figure = "CPU of a request under a lease, shedding on, 1 M keys";
    Row::beside(figure, "ns", &leases, "two hits", &hits).must(Bound::AtMost(1.5))
}

/// Leases per second that eight threads acquire and release at once: all for one key, beside one key for each.
fn on_one_key(reps: usize) -> Row {
    let (mut hot, mut spread) = (Vec::new(), Vec::new());
    for rep in 0..=reps {
        let (one, other) = (storm(|_| 0), storm(|thread| thread));
        // The first repetition warms the caches.
        if rep > 0 {
            hot.push(one);
            spread.push(other);
        }
    }
    let figure = "leases acquired and released by 8 threads for one key";
    Row::beside(figure, "/s", &hot, "a key for each", &spread).must(Bound::AtLeast(0.6))
}

fn storm(key: impl Fn(u32) -> u32) -> f64 {
    let limits = Limits::new(ROOM_FOR_ALL, MEMORY_BYTES);
    let start = Barrier::new(THREADS as usize + 1);
    let elapsed = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (mut limits, session) = (limits.beside(), session(&limits, thread, thread));
                let (user, start) = (UserName::new(key(thread)), &start);
                scope.spawn(move || {
                    start.wait();
                    for _ in 0..REQUESTS / THREADS {
                        let lease = limits.acquire(&session, &user);
                        limits.release(&session, Some(lease));
                    }
                })
            })
            .collect();
        start.wait();
        millis(|| threads.into_iter().for_each(|thread| thread.join().unwrap_or_default())).0
    });
    f64::from(REQUESTS) / (elapsed / 1e3)
}

impl Limits {
    /// Makes `requests` requests with 16 leases held at a time.
    fn work(&mut self, session: &Session, users: &mut Users, requests: u32) {
        let mut at_work = VecDeque::with_capacity(AT_WORK + 1);
        for _ in 0..requests {
            at_work.push_back(self.acquire(session, &UserName::new(users.draw())));
            if at_work.len() > AT_WORK {
                self.release(session, at_work.pop_front());
            }
        }
        at_work.into_iter().for_each(|lease| self.release(session, Some(lease)));
    }

    fn acquire(&mut self, session: &Session, user: &UserName) -> u64 {
        let now = self.later();
        let attributes = [("user", user.as_str()), ("path", "/v1/charges")];
        let request = Request::new(Op::Acquire, DOMAIN, Descriptors::from_attributes(&attributes));
        let answer = self.decider().decide(&Request { session: Some(session), ..request }, now);
        let EngineAnswer::Decided(decision) = answer else { panic!("not decided") };
        assert_eq!(decision.verdict, Verdict::Allow, "what is measured is one kind of answer");
        decision.lease.unwrap_or_else(|| panic!("a grant without a lease"))
    }

    fn release(&mut self, session: &Session, lease: Option<u64>) {
        let now = self.later();
        assert!(self.engine.release_lease(session, lease.unwrap_or_default(), WorkOutcome::Ok, now));
    }
}

/// In a process of its own: holds leases and prints the bytes of each.
pub(crate) fn hold(leases: u32) -> io::Result<()> {
    tidegate::sys::return_freed_memory(tidegate::limit::MAPPED_BYTES_MIN);
    let mut limits = Limits::new(ONE_RULE, MEMORY_BYTES);
    let sessions: Vec<Session> =
        (0..leases.div_ceil(1_000)).map(|number| session(&limits, number, number)).collect();
    let before = resident_bytes()?;
    for number in 0..leases {
        limits.acquire(&sessions[number as usize / 1_000], &UserName::new(number));
    }
    let bytes = resident_bytes()? - before;
    println!("{}", bytes as f64 / f64::from(leases));
    Ok(())
}

/// Milliseconds of requests on this thread, p99.99 and the longest, while another thread ends a thousand
/// sessions of a thousand leases each.
///
/// The longest counts only its own running and waiting: a request that never slept was not delayed by a lock,
/// and the difference between its CPU time and the elapsed time is a CPU taken away by other processes.
fn pauses() -> (f64, f64) {
    let mut limits = Limits::new(ONE_RULE, MEMORY_BYTES);
    let sessions: Vec<Session> = (0..1_000).map(|number| session(&limits, number, number)).collect();
    for (number, session) in sessions.iter().enumerate() {
        for lease in 0..1_000 {
            limits
                .acquire(session, &UserName::new(u32::try_from(number * 1_000 + lease).unwrap_or_default()));
        }
    }
    let asking = session(&limits, 2_000, 2_000);
    let engine = std::sync::Arc::clone(&limits.engine);
    let mut times = Times::new();
    let now = limits.later();
    let mut sleeps = Sleeps::of_this_thread();
    let slowest = std::thread::scope(|scope| {
        let ending = scope.spawn(move || {
            let (half, rest) = sessions.split_at(sessions.len() / 2);
            half.iter().for_each(|session| engine.end_session(session, now));
            engine.end_expired_leases(Now::at_nanos(now.at.as_nanos() + 60_000_000_000));
            rest.iter().for_each(|session| engine.end_session(session, now));
        });
        let (mut turn, mut slowest) = (0, 0.0_f64);
        while !ending.is_finished() {
            turn += 1;
            let user = UserName::new(turn);
            let slept = sleeps.so_far();
            let cpu = cpu_nanos(|| {
                times.of(|| {
                    let lease = limits.acquire(&asking, &user);
                    limits.release(&asking, Some(lease));
                });
            });
            slowest = slowest.max(if sleeps.so_far() == slept { cpu } else { times.last() });
        }
        slowest
    });
    (times.at(0.9999) / 1e6, slowest / 1e6)
}

fn session(limits: &Limits, number: u32, user: u32) -> Session {
    let mut name = [0; 16];
    name[..4].copy_from_slice(&number.to_le_bytes());
    // More slots than requests in progress under shedding, so that the pool is never full.
    let opening =
        ConnectionParams { name: Some(name), user, pool: "web", slots: 64, connection: 1, pid: None };
    limits.engine.open_session(&opening, Now::at_nanos(0)).unwrap_or_else(|error| panic!("{error}"))
}

const SHED: &str = "priorities: [critical, other]\nshed:\n- pool: web\n  queue_age: {}\n  workers: {}\n  brake: {}\n  \
                    fleet: {reserve: 20%}\n";

const ONE_RULE: &str = "domain: api\nconcurrency:\n- {name: each, key: [user], max: 5}\n";

/// So many at once that none is refused.
const ROOM_FOR_ALL: &str = "domain: api\nconcurrency:\n- {name: each, key: [user], max: 1000}\n";

const THREADS: u32 = 8;

const REQUESTS: u32 = 200_000;

/// Requests in progress in a process.
const AT_WORK: usize = 16;

const LEASES: u32 = 100_000;

/// Each takes seconds, and varies little.
const MEMORY_REPS_MAX: usize = 3;

/// Enough that one or two disturbances do not move the median.
const PAUSES_REPS_MAX: usize = 7;
