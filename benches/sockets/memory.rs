//! What a key costs: resident memory before and after a table was filled, divided by its keys.

use std::io;

use crate::load::{Until, in_flight};
use crate::report::{Bound, Row};
use crate::servers::Daemon;
use crate::workload::Users;

/// Fills a daemon step by step and looks at each. The two steps with a name are those of the promise: just below the
/// fill of 7/8 at which tables double, and just after the last has doubled. Keys spread over the 64 shards at random
/// and a shard's count strays by its square root, so no table is exactly 7/8 full with all others: the more keys, the
/// nearer all of them can come.
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
        Row::alone(&format!("{figure}, just doubled"), "B", &doubled).must(Bound::AtMost(58.0)),
        Row::alone(&format!("{figure}, at worst from 100 000 keys on"), "B", &worst).aim(Bound::AtMost(36.0)),
    ])
}

/// Bytes per key at every step.
fn fill_in_steps(daemon: &Daemon) -> io::Result<Vec<(u64, f64)>> {
    let server = daemon.start(&[])?;
    // The first request makes what is made once; from then on memory grows by keys alone.
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

/// 64 shards of 65 536 buckets, 0.86 of them taken: 4 standard deviations below the 57 344 that a shard takes before
/// it doubles.
const KEYS_FULL: u64 = 64 * 65_536 * 86 / 100;

/// 5 standard deviations above: every shard has doubled.
const KEYS_DOUBLED: u64 = 64 * 14_936;

const DEPTH: u64 = 64;
