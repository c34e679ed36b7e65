//! A host with more to do than CPUs: what the short scheduler slice does to the slowest answers.

use std::io;
use std::process::Command;

use crate::load::now_and_then;
use crate::machine::Machine;
use crate::process::Process;
use crate::report::{Bound, Row};
use crate::servers::{Daemon, fill};
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
        return Ok(vec![Row::skipped(FIGURE, "this daemon has no --scheduler-slice")]);
    }
    let (mut p50_on, mut p50_off) = (Vec::new(), Vec::new());
    let (mut p99_on, mut p99_off) = (Vec::new(), Vec::new());
    for repetition in 0..repetitions {
        eprintln!("scheduler slice: repetition {} of {repetitions}", repetition + 1);
        let mut turns = [("on", &mut p50_on, &mut p99_on), ("off", &mut p50_off, &mut p99_off)];
        turns.rotate_left(repetition % 2);
        for (setting, p50, p99) in turns {
            let server = daemon.start(&["--scheduler-slice", setting])?;
            fill(&server, u64::from(USERS))?;
            let _load = busy_loops(machine)?;
            let mut connection = server.connect(repetition as u64 + 1)?;
            let times = now_and_then(&mut connection, INTERVAL_NANOS, nanos.max(NANOS_MIN))?;
            p50.push(times.value_at_quantile(0.5) as f64 / 1e3);
            p99.push(times.value_at_quantile(0.99) as f64 / 1e3);
        }
    }
    Ok(vec![
        Row::beside(FIGURE, "µs", &p99_on, "slice off", &p99_off)
            .must(Bound::AtMost(0.2))
            .aim(Bound::AtMost(0.05)),
        Row::beside("p50 on a busy host, slice on", "µs", &p50_on, "slice off", &p50_off),
    ])
}

/// Two on every CPU.
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

/// 100 requests a second.
const INTERVAL_NANOS: u64 = 10_000_000;

/// 500 requests: fewer would make the p99 one request's luck.
const NANOS_MIN: u64 = 5_000_000_000;
