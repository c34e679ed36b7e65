//! Whether the machine had time for a test. What daemons must never do they must not do on a busy machine either; how much they
//! get done there tells nothing of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, sleep};
use std::time::Duration;

use tidegate::clock::read_boot_nanos;

/// Somebody who sleeps for a moment, again and again, and sees how late it is.
pub(crate) struct Calm {
    stop: Arc<AtomicBool>,
    late: JoinHandle<Vec<u64>>,
}

impl Calm {
    pub(crate) fn watch() -> Calm {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let late = std::thread::spawn(move || {
            let mut late = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                let began = read_boot_nanos();
                sleep(NAP);
                late.push((read_boot_nanos() - began).saturating_sub(u64::try_from(NAP.as_nanos()).unwrap()));
            }
            late
        });
        Calm { stop, late }
    }

    /// Whether it was hardly ever late since then.
    pub(crate) fn was_kept(self) -> bool {
        self.stop.store(true, Ordering::Relaxed);
        let mut late = self.late.join().unwrap();
        late.sort_unstable();
        let most = late.get(late.len() * 99 / 100).copied().unwrap_or(0);
        let longest = late.last().copied().unwrap_or(0);
        let was_kept = most <= LATE_MAX && longest <= LONGEST_MAX;
        if !was_kept {
            eprintln!(
                "too busy to tell how much was done: late by {} ms, and {} ms once",
                most / 1_000_000,
                longest / 1_000_000
            );
        }
        was_kept
    }
}

const NAP: Duration = Duration::from_millis(2);

/// One nap of a hundred may be as late as this: syncs of hosts are some ten milliseconds apart.
const LATE_MAX: u64 = 5_000_000;

/// A longer pause of the whole machine changes how much passes in a second.
const LONGEST_MAX: u64 = 50_000_000;
