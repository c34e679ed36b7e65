//! Instruments: CPU time of a thread, time of one decision, memory of this process.

use std::fs;
use std::io;
use std::os::unix::fs::FileExt;

use hdrhistogram::Histogram;
use rustix::time::{ClockId, clock_gettime};
use tidegate::clock::read_boot_nanos;

/// CPU nanoseconds of `work` on this thread, without waits for a CPU.
pub(crate) fn cpu_nanos(work: impl FnOnce()) -> f64 {
    let start = thread_cpu_nanos();
    work();
    (thread_cpu_nanos() - start) as f64
}

/// Elapsed milliseconds of `work`, and its result.
pub(crate) fn millis<T>(work: impl FnOnce() -> T) -> (f64, T) {
    let start = read_boot_nanos();
    let done = work();
    ((read_boot_nanos() - start) as f64 / 1e6, done)
}

/// CPU nanoseconds of this process so far, over all threads.
pub(crate) fn process_cpu_nanos() -> u64 {
    #[allow(clippy::disallowed_methods, reason = "what is measured is the CPU time of this process")]
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn thread_cpu_nanos() -> u64 {
    #[allow(clippy::disallowed_methods, reason = "what is measured is the CPU time of this thread")]
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Times of single decisions, including the clock readings.
pub(crate) struct Times {
    histogram: Histogram<u64>,
    last: u64,
}

impl Times {
    pub(crate) fn new() -> Times {
        let histogram = Histogram::new_with_bounds(1, 60_000_000_000, 3);
        Times { histogram: histogram.unwrap_or_else(|error| panic!("{error}")), last: 0 }
    }

    #[inline]
    pub(crate) fn of(&mut self, decision: impl FnOnce()) {
        let start = read_boot_nanos();
        decision();
        self.last = read_boot_nanos() - start;
        self.histogram.saturating_record(self.last);
    }

    pub(crate) fn at(&self, quantile: f64) -> f64 {
        self.histogram.value_at_quantile(quantile) as f64
    }

    pub(crate) fn last(&self) -> f64 {
        self.last as f64
    }

    pub(crate) fn max(&self) -> f64 {
        self.histogram.max() as f64
    }
}

/// Resident bytes of this process: exact, unlike `statm`.
pub(crate) fn resident_bytes() -> io::Result<u64> {
    let rollup = fs::read_to_string("/proc/self/smaps_rollup")?;
    let kib = rollup
        .lines()
        .find_map(|line| line.strip_prefix("Rss:"))
        .and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.map(|kib| kib * 1_024).ok_or_else(|| io::Error::other("smaps_rollup is not as expected"))
}

/// Counts how often this thread slept: a contended lock makes it sleep, a CPU that is taken away does not.
pub(crate) struct Sleeps {
    status: fs::File,
    text: Vec<u8>,
}

impl Sleeps {
    pub(crate) fn of_this_thread() -> Sleeps {
        let status = fs::File::open("/proc/thread-self/status").unwrap_or_else(|error| panic!("{error}"));
        Sleeps { status, text: vec![0; 8_192] }
    }

    pub(crate) fn so_far(&mut self) -> u64 {
        let length = self.status.read_at(&mut self.text, 0).unwrap_or_else(|error| panic!("{error}"));
        let text = std::str::from_utf8(&self.text[..length]).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.and_then(|count| count.trim().parse().ok()).unwrap_or_else(|| panic!("no count of sleeps"))
    }
}
