//! One decision thread on one CPU, the load on another: the saving by many requests in flight, and the cost of
//! a large table.

use std::io;

use crate::machine::Machine;
use crate::measure::Streams;
use crate::report::{Bound, Row};
use crate::servers::{Daemon, fill};
use crate::workload::{USERS, Users};

pub(crate) fn run(machine: &Machine, daemon: &Daemon, reps: usize, nanos: u64) -> io::Result<Vec<Row>> {
    let [mut batched, mut unbatched, mut cached] = <[Streams; 3]>::default();
    for repetition in 0..reps {
        eprintln!("batching: repetition {} of {reps}", repetition + 1);
        machine.pin(machine.server_cpu())?;
        let server = daemon.start(&[])?;
        fill(&server, u64::from(USERS))?;
        machine.pin(machine.generator_cpu()?)?;
        unbatched.measure(&server, 1, nanos)?;
        batched.measure(&server, 64, nanos)?;
        cached.measure_of(&server, 64, nanos, |seed| Users::below(CACHED, seed))?;
        machine.unpin()?;
    }
    let figure = "server CPU per decision, 8 × 64 in flight, 1 M keys";
    let beside = |name, other: &Streams| Row::beside(figure, "µs", &batched.cpu_us, name, &other.cpu_us);
    Ok(vec![
        beside("8 × 1", &unbatched).must(Bound::AtMost(0.09)),
        beside("10 000 keys", &cached).must(Bound::AtMost(2.0)),
    ])
}

/// Few enough keys to stay in the L2 cache.
const CACHED: u32 = 10_000;
