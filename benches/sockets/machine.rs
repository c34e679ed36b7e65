//! The machine: its CPUs, pinning, and its description in a report.

use std::fs;
use std::io;

use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The CPUs that this process may use, and the two that the benchmark pins to.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    cpus: Vec<usize>,
}

impl Machine {
    pub(crate) fn look() -> io::Result<Machine> {
        let allowed = sched_getaffinity(None)?;
        let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect();
        if cpus.is_empty() { Err(io::Error::other("no CPU to run on")) } else { Ok(Machine { cpus }) }
    }

    pub(crate) fn cpus(&self) -> &[usize] {
        &self.cpus
    }

    pub(crate) fn server_cpu(&self) -> usize {
        self.cpus[0]
    }

    /// The CPU of the load, where it must not share the servers' CPU.
    pub(crate) fn generator_cpu(&self) -> io::Result<usize> {
        self.cpus.get(1).copied().ok_or_else(|| io::Error::other("needs two CPUs"))
    }

    /// Pins this thread, and all threads and processes that it starts later, to one CPU.
    pub(crate) fn pin(&self, cpu: usize) -> io::Result<()> {
        let mut set = CpuSet::new();
        set.set(cpu);
        Ok(sched_setaffinity(None, &set)?)
    }

    /// Undoes [`Machine::pin`].
    pub(crate) fn unpin(&self) -> io::Result<()> {
        let mut set = CpuSet::new();
        self.cpus.iter().for_each(|cpu| set.set(*cpu));
        Ok(sched_setaffinity(None, &set)?)
    }

    /// Pins threads that run already; threads that they start later inherit it.
    pub(crate) fn pin_threads(&self, threads: &[i32], cpus: &[usize]) -> io::Result<()> {
        let mut set = CpuSet::new();
        cpus.iter().for_each(|cpu| set.set(*cpu));
        for thread in threads {
            match sched_setaffinity(Pid::from_raw(*thread), &set) {
                // It has ended.
                Err(Errno::SRCH) => {}
                done => done?,
            }
        }
        Ok(())
    }

    /// Whether the scheduler supports custom slices.
    pub(crate) fn honours_slice(&self) -> bool {
        kernel_version() >= SLICE_KERNEL
    }

    /// One line for the report, without names of the machine.
    pub(crate) fn describe(&self) -> String {
        let model = fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| {
            let line = text.lines().find(|line| line.starts_with("model name"))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        });
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let load = load.split_whitespace().next().unwrap_or("?").to_owned();
        let (major, minor) = kernel_version();
        format!(
            "{} CPUs ({}), Linux {major}.{minor}, load average at the start {load}",
            self.cpus.len(),
            model.as_deref().unwrap_or("unknown model"),
        )
    }
}

fn kernel_version() -> (u32, u32) {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|part| part.parse().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// The first kernel whose `sched_setattr` takes a slice for ordinary threads.
const SLICE_KERNEL: (u32, u32) = (6, 12);
