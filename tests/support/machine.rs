//! Times without the moments in which the machine ran nothing: a virtual CPU is taken away for hundreds of milliseconds.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use tidegate::clock::boot_nanos;

/// Runs the work. Returns its result, and its time without the longest sum of pauses of any CPU.
pub(crate) fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let is_over = Arc::new(AtomicBool::new(false));
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    let watchers = (0..cpus).map(|cpu| {
        let is_over = Arc::clone(&is_over);
        thread::spawn(move || pauses(cpu, &is_over))
    });
    let watchers = watchers.collect::<Vec<_>>();
    let begin = boot_nanos();
    let result = work();
    let took = Duration::from_nanos(boot_nanos() - begin);
    is_over.store(true, Ordering::Relaxed);
    let paused = watchers.into_iter().map(|watcher| watcher.join().unwrap()).max();
    (result, took.saturating_sub(paused.unwrap_or_default()))
}

/// How long a thread of this CPU that was ready to run did not.
fn pauses(cpu: usize, is_over: &AtomicBool) -> Duration {
    let mut cpus = rustix::thread::CpuSet::new();
    cpus.set(cpu);
    // Where the CPU is not ours, the thread runs anywhere.
    let _ = rustix::thread::sched_setaffinity(None, &cpus);
    let mut paused = Duration::ZERO;
    while !is_over.load(Ordering::Relaxed) {
        let begin = boot_nanos();
        thread::sleep(PERIOD);
        let gap = Duration::from_nanos(boot_nanos() - begin);
        if gap > PERIOD + SHORT {
            paused += gap - PERIOD;
        }
    }
    paused
}

const PERIOD: Duration = Duration::from_millis(2);

/// Waits of a scheduler that is merely busy.
const SHORT: Duration = Duration::from_millis(20);
