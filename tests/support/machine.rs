//! Durations without the pauses of the machine, as a virtual CPU may stop for hundreds of milliseconds; and
//! control groups.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use tidegate::clock::read_boot_nanos;

/// Runs `work`. Returns its result, and its duration without the longest total of pauses of any CPU.
pub(crate) fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let is_over = Arc::new(AtomicBool::new(false));
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    let watchers = (0..cpus).map(|cpu| {
        let is_over = Arc::clone(&is_over);
        thread::spawn(move || pauses(cpu, &is_over))
    });
    let watchers = watchers.collect::<Vec<_>>();
    let begin = read_boot_nanos();
    let result = work();
    let took = Duration::from_nanos(read_boot_nanos() - begin);
    is_over.store(true, Ordering::Relaxed);
    let paused = watchers.into_iter().map(|watcher| watcher.join().unwrap()).max();
    (result, took.saturating_sub(paused.unwrap_or_default()))
}

/// The total time in which a runnable thread on this CPU did not run.
fn pauses(cpu: usize, is_over: &AtomicBool) -> Duration {
    let mut cpus = rustix::thread::CpuSet::new();
    cpus.set(cpu);
    // Without permission for the CPU, the thread runs anywhere.
    let _ = rustix::thread::sched_setaffinity(None, &cpus);
    let mut paused = Duration::ZERO;
    while !is_over.load(Ordering::Relaxed) {
        let begin = read_boot_nanos();
        thread::sleep(PERIOD);
        let gap = Duration::from_nanos(read_boot_nanos() - begin);
        if gap > PERIOD + SHORT {
            paused += gap - PERIOD;
        }
    }
    paused
}

const PERIOD: Duration = Duration::from_millis(2);

/// A busy scheduler causes shorter waits.
const SHORT: Duration = Duration::from_millis(20);

/// Whether this is root; else prints that the test is skipped.
pub(crate) fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("SKIPPED: only root can be two users, or give a file away");
    }
    is_root
}

/// A named pipe, which blocks a reader.
pub(crate) fn make_pipe(path: &Path) {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
}

/// A control group. Removed when dropped.
pub(crate) struct Group(pub(crate) PathBuf);

impl Group {
    /// Makes a group with this controller of either version, which has one of these files; else prints that the
    /// test is skipped.
    pub(crate) fn of(controller: &str, files: [&str; 2]) -> Option<Group> {
        let name = format!("tidegate-test-{}", std::process::id());
        for root in [&format!("/sys/fs/cgroup/{controller}"), "/sys/fs/cgroup"] {
            let group = Group(PathBuf::from(root).join(&name));
            if fs::create_dir(&group.0).is_ok() && files.iter().any(|file| group.0.join(file).exists()) {
                return Some(group);
            }
        }
        eprintln!("SKIPPED: no control group with a limit of {controller} can be made here");
        None
    }

    /// Starts a daemon in the group.
    pub(crate) fn script(&self) -> String {
        format!("echo $$ >{}/cgroup.procs && exec \"$@\"", self.0.display())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}
