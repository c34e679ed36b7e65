//! A host with more work than CPUs: the effect of the short scheduler slice on the slowest answers.

use std::io;
use std::process::Command;

use crate::load::now_and_then;
use crate::machine::Machine;
use crate::process::{Process, waited_nanos};
use crate::report::{Bound, Row};
use crate::servers::{Daemon, NEEDS_HOOKS, Server, fill};
use crate::workload::USERS;

pub(crate) fn run(
    machine: &Machine,
    daemon: &Daemon,
    repetitions: usize,
    nanos: u64,
) -> io::Result<Vec<Row>> {
    if !machine.honours_slice() {
        return Ok(vec![Row::skipped(FIGURE, "needs Linux 6.12")]);
    }
    if !daemon.takes("--scheduler-slice", "off")? {
        return Ok(vec![Row::skipped(FIGURE, NEEDS_HOOKS)]);
    }
    let (mut on, mut off) = (Answers::default(), Answers::default());
    for repetition in 0..repetitions {
        eprintln!("scheduler slice: repetition {} of {repetitions}", repetition + 1);
        let mut turns = [("on", &mut on), ("off", &mut off)];
        turns.rotate_left(repetition % 2);
        for (setting, answers) in turns {
            let server = daemon.start(&["--scheduler-slice", setting])?;
            fill(&server, u64::from(USERS))?;
            answers.measure(machine, &server, nanos.max(NANOS_MIN))?;
        }
    }
    let waits = "  of it the daemon's wait for a CPU, p99";
    Ok(vec![
        Row::beside(FIGURE, "µs", &on.p99_us, "slice off", &off.p99_us).must(Bound::AtMost(0.2)),
        Row::beside(waits, "µs", &on.waited_p99_us, "slice off", &off.waited_p99_us),
        Row::beside("p50 on a busy host, slice on", "µs", &on.p50_us, "slice off", &off.p50_us),
    ])
}

#[derive(Debug, Default)]
struct Answers {
    p50_us: Vec<f64>,
    p99_us: Vec<f64>,
    waited_p99_us: Vec<f64>,
}

impl Answers {
    /// Measures the daemon's own wait for a CPU apart, as the client waits too.
    fn measure(&mut self, machine: &Machine, server: &Server, nanos: u64) -> io::Result<()> {
        let schedstat = server.process.schedstat_of("decide")?;
        let mut connection = server.connect(1)?;
        let _load = busy_loops(machine)?;
        let waited = || waited_nanos(&schedstat);
        let (times, waits) = now_and_then(&mut connection, INTERVAL_NANOS, nanos, waited)?;
        let micros = |nanos: u64| nanos as f64 / 1e3;
        self.p50_us.push(micros(times.value_at_quantile(0.5)));
        self.p99_us.push(micros(times.value_at_quantile(0.99)));
        // At least the resolution of the clock, since a ratio to zero is meaningless.
        self.waited_p99_us.push(micros(waits.value_at_quantile(0.99).max(1_000)));
        Ok(())
    }
}

/// Starts two busy loops on every CPU.
fn busy_loops(machine: &Machine) -> io::Result<Vec<Process>> {
    let mut loops = Vec::new();
    for cpu in machine.cpus().iter().flat_map(|cpu| [cpu, cpu]) {
        machine.pin(*cpu)?;
        let mut busy = Command::new(std::env::current_exe()?);
        busy.arg("busy");
        loops.push(Process::start(&busy)?);
    }
    machine.unpin()?;
    Ok(loops)
}

const FIGURE: &str = "p99 on a busy host, slice on";

/// 100 requests per second.
const INTERVAL_NANOS: u32 = 10_000_000;

/// 500 requests: with fewer, the p99 would be a single request.
const NANOS_MIN: u64 = 5_000_000_000;
