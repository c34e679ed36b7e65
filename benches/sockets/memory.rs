//! Bytes per key: resident memory before and after filling a table, divided by its keys.

use std::io;

use crate::load::{Until, in_flight};
use crate::report::{Bound, Row};
use crate::servers::Daemon;
use crate::workload::Users;

/// Fills a daemon in steps and measures each.
pub(crate) fn run(daemon: &Daemon, repetitions: usize) -> io::Result<Vec<Row>> {
    let (mut million, mut worst) = (Vec::new(), Vec::new());
    for repetition in 0..repetitions {
        eprintln!("memory: repetition {} of {repetitions}", repetition + 1);
        let curve = fill_in_steps(daemon)?;
        million.extend(curve.iter().find(|(keys, _)| *keys >= 1_000_000).map(|(_, bytes)| *bytes));
        worst.extend(curve.iter().map(|(_, bytes)| *bytes).max_by(f64::total_cmp));
        if repetition == 0 {
            for (keys, bytes) in &curve {
                eprintln!("  {keys:8} keys: {bytes:.1} bytes each");
            }
        }
    }
    let figure = "resident bytes per token-bucket key";
    Ok(vec![
        Row::alone(&format!("{figure}, a million"), "B", &million),
        Row::alone(&format!("{figure}, at worst from 0.1 to 10 million"), "B", &worst)
            .must(Bound::AtMost(36.0)),
    ])
}

/// Bytes per key at every step.
fn fill_in_steps(daemon: &Daemon) -> io::Result<Vec<(u64, f64)>> {
    let server = daemon.start(&[])?;
    // The first requests cause one-time allocations; later growth is due to keys alone.
    let mut connections = [server.connect_for(Users::InOrder(0))?];
    in_flight(&mut connections, DEPTH, Until::Requests(DEPTH))?;
    let before = server.process.resident_bytes()?;
    let mut keys = DEPTH;
    let mut curve = Vec::new();
    for step in steps() {
        in_flight(&mut connections, DEPTH, Until::Requests(step - keys))?;
        keys = step;
        let resident = server.process.resident_bytes()?;
        curve.push((keys, resident.saturating_sub(before) as f64 / keys as f64));
    }
    Ok(curve)
}

fn steps() -> impl Iterator<Item = u64> {
    std::iter::successors(Some(100_000), |keys| Some(keys + keys / 25)).take_while(|keys| *keys <= 10_000_000)
}

const DEPTH: u64 = 64;
