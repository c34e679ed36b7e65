//! Neither keys crafted to collide nor keys that expire together slow a decision.

use std::fs;
use std::hint::black_box;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::thread;

use rustix::thread::gettid;
use rustix::time::{ClockId, clock_gettime};
use tidegate::clock::Now;

use crate::{SECOND, engine, hit};

/// CPU time of this thread, without that of other threads.
fn cpu_nanos() -> u64 {
    #[allow(clippy::disallowed_methods, reason = "the engine has no clock of CPU time")]
    let time = clock_gettime(ClockId::ThreadCPUTime);
    u64::try_from(time.tv_sec).unwrap() * SECOND + u64::try_from(time.tv_nsec).unwrap()
}

/// The hash of two words in tables that trust their keys: multiplied, with no secret.
fn trusting(words: [u64; 2]) -> u64 {
    words.into_iter().fold(0_u64, |hash, word| (hash.rotate_left(5) ^ word).wrapping_mul(FACTOR))
}

const FACTOR: u64 = 0x517c_c1b7_2722_0a95;

/// Texts of sixteen characters that collide under that hash.
fn crafted(count: usize) -> Vec<String> {
    let mut texts = Vec::new();
    let mut number = 1_u64;
    while texts.len() < count {
        number = number.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        let first = number & ASCII;
        let second = first.wrapping_mul(FACTOR).rotate_left(5) ^ 0x0123_4567_89ab_cdef;
        if second & !ASCII == 0 {
            let bytes = [first.to_le_bytes(), second.to_le_bytes()].concat();
            texts.push(String::from_utf8(bytes).unwrap());
            assert_eq!(trusting([first, second]), 0x0123_4567_89ab_cdef_u64.wrapping_mul(FACTOR));
        }
    }
    texts
}

const ASCII: u64 = 0x7f7f_7f7f_7f7f_7f7f;

#[test]
fn crafted_keys_cost_no_more_than_others() {
    let crafted = crafted(10_000);
    let others: Vec<String> = (0..crafted.len()).map(|number| format!("{number:016}")).collect();
    let nanos = |users: &[String]| {
        let engine = engine("  - {name: all, key: [u], rate: 6/h}\n", 64 << 20);
        let mut decider = engine.decider();
        let begin = cpu_nanos();
        for user in users {
            assert!(black_box(hit(&mut decider, "k", user, SECOND)));
        }
        cpu_nanos() - begin
    };
    // The minimum of three: other load on the machine only adds time.
    let least = |users: &[String]| (0..3).map(|_| nanos(users)).min().unwrap();
    let (crafted, others) = (least(&crafted), least(&others));
    println!("{crafted} ns for 10 000 keys that collide elsewhere, {others} ns for others");
    assert!(crafted < others * 2, "{crafted} ns beside {others} ns");
}

/// CPU time of a thread of this process, and its wait for a CPU.
fn statistics(thread: i32) -> [u64; 2] {
    let text = fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).unwrap();
    let mut fields = text.split_whitespace().map(|field| field.parse().unwrap());
    [fields.next().unwrap(), fields.next().unwrap()]
}

/// Keys of one engine; fewer in unoptimised builds.
const KEYS: usize = if cfg!(debug_assertions) { 100_000 } else { 500_000 };

#[test]
fn decides_while_half_a_million_keys_expire_together() {
    if !Path::new("/proc/self/schedstat").exists() {
        println!("SKIPPED: this kernel does not count the CPU time of threads");
        return;
    }
    // A host can preempt a decision without counting it, which looks like a stall; a sweep that blocks
    // decisions stalls every run.
    let stalls = (0..3).map(|_| longest_stall_percent()).collect::<Vec<_>>();
    let stalled = stalls.iter().min().unwrap();
    assert!(*stalled < 12, "a decision waits for {stalls:?} % of a sweep");
}

/// The longest wait of a decision while keys expire, in percent of the sweep's CPU time, which is independent
/// of other load.
fn longest_stall_percent() -> u64 {
    let engine = engine("  - {name: all, key: [u], rate: 1/s, burst: 1}\n", 64 << 20);
    let mut decider = engine.decider();
    (0..KEYS).for_each(|user| assert!(hit(&mut decider, "k", &user.to_string(), SECOND)));
    engine.sweep(Now::at_nanos(SECOND));
    assert_eq!(engine.keys(), KEYS);
    let (sweeper, is_over) = (AtomicI32::new(0), AtomicBool::new(false));
    let (stalled, swept) = thread::scope(|threads| {
        let sweep = threads.spawn(|| {
            let own = gettid().as_raw_nonzero().get();
            sweeper.store(own, Ordering::SeqCst);
            let before = statistics(own)[0];
            engine.sweep(Now::at_nanos(10 * SECOND));
            let swept = statistics(own)[0] - before;
            is_over.store(true, Ordering::SeqCst);
            // The other thread reads its statistics until then.
            while is_over.load(Ordering::SeqCst) {
                thread::yield_now();
            }
            swept
        });
        while sweeper.load(Ordering::SeqCst) == 0 {}
        let (own, sweeper) = (gettid().as_raw_nonzero().get(), sweeper.load(Ordering::SeqCst));
        let (mut stalled, mut user) = (0, 0_u64);
        while !is_over.load(Ordering::SeqCst) {
            user += 1;
            let ([_, waited], [swept, _]) = (statistics(own), statistics(sweeper));
            black_box(hit(&mut decider, "k", &format!("w{}", user % 1_000), 50 * SECOND));
            let ([_, waited_then], [swept_then, _]) = (statistics(own), statistics(sweeper));
            // A decision that waited for a CPU did not wait for a lock.
            if waited_then - waited < SECOND / 1_000 {
                stalled = stalled.max(swept_then - swept);
            }
        }
        is_over.store(false, Ordering::SeqCst);
        (stalled, sweep.join().unwrap())
    });
    assert!(engine.keys() <= 1_000, "{} keys are left", engine.keys());
    println!("of {swept} ns of a sweep of {KEYS} keys a decision waits for {stalled} ns at most");
    stalled * 100 / swept
}
