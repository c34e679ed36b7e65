//! Bytes per key: resident memory before and after filling a table, divided by its keys.

use std::io;

use crate::load::{Until, in_flight};
use crate::report::{Bound, Row};
use crate::servers::Daemon;
use crate::workload::Users;

/// Fills a daemon in steps and measures each. The two named steps have bounds: just below the fill of 7/8 at
/// which tables double, and just after the last has doubled. Keys spread over the 64 shards at random and a
/// shard's count varies by its square root, so not all tables reach 7/8 together; the more keys, the closer
/// they come.
pub(crate) fn run(daemon: &Daemon, repetitions: usize) -> io::Result<Vec<Row>> {
    let (mut full, mut doubled, mut worst) = (Vec::new(), Vec::new(), Vec::new());
    for repetition in 0..repetitions {
        eprintln!("memory: repetition {} of {repetitions}", repetition + 1);
        let curve = fill_in_steps(daemon)?;
        full.extend(at(&curve, KEYS_FULL));
        doubled.extend(at(&curve, KEYS_DOUBLED));
        worst.extend(curve.iter().map(|(_, bytes)| *bytes).max_by(f64::total_cmp));
        if repetition == 0 {
            for (keys, bytes) in &curve {
                eprintln!("  {keys:7} keys: {bytes:.1} bytes each");
            }
        }
    }
    let figure = "resident bytes per token-bucket key";
    Ok(vec![
        Row::alone(&format!("{figure}, tables 0.86 full"), "B", &full).must(Bound::AtMost(30.0)),
        Row::alone(&format!("{figure}, just doubled"), "B", &doubled),
        Row::alone(&format!("{figure}, at worst from 100 000 keys on"), "B", &worst)
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

fn steps() -> Vec<u64> {
    let mut steps: Vec<u64> = (4..=40).map(|step| step * 25_000).collect();
    steps.extend([KEYS_FULL, KEYS_DOUBLED]);
    steps.sort_unstable();
    steps.dedup();
    steps
}

fn at(curve: &[(u64, f64)], keys: u64) -> Option<f64> {
    curve.iter().find(|(step, _)| *step == keys).map(|(_, bytes)| *bytes)
}

/// 64 shards of 65 536 buckets, 0.86 full: 4 standard deviations below the 57 344 at which a shard doubles.
const KEYS_FULL: u64 = 64 * 65_536 * 86 / 100;

/// 5 standard deviations above: every shard has doubled.
const KEYS_DOUBLED: u64 = 64 * 14_936;

const DEPTH: u64 = 64;
