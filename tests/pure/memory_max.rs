//! The sum of all bounds fits the unit's `MemoryMax=` with the default settings.

use std::path::Path;

use tidegate::daemon::settings::Settings;
use tidegate::engine::{Engine, EngineOptions};

use crate::engines::options;

/// Memory bounded elsewhere, and the program itself.
const BESIDE: [(&str, usize); 5] = [
    ("the program, its threads and rules", 32 << 20),
    ("a recording (src/record/recorder.rs, writer.rs)", 32 << 20),
    ("keys that Redis is asked about (src/fleet/sync.rs: 2^18 of them)", 64 << 20),
    ("what is queued for Redis (src/fleet/link/connection.rs)", 16 << 20),
    ("three HTTP listeners of 16 connections each", 16 << 20),
];

#[test]
fn sum_of_all_bounds_fits_the_unit() {
    let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("systemd/tidegate.service");
    let unit = std::fs::read_to_string(unit).unwrap();
    let max = unit.lines().find_map(|line| line.strip_prefix("MemoryMax=")).unwrap();
    let max = max.strip_suffix('M').unwrap().parse::<usize>().unwrap() << 20;
    let (settings, _) = Settings::load(None).unwrap();
    let memory_bytes_max = usize::try_from(settings.memory_max_bytes).unwrap();
    let engine = Engine::new(EngineOptions { memory_bytes_max, ..options() });
    let held = engine.held_bytes_max(settings.connections.max as usize);
    let beside: usize = BESIDE.iter().map(|(_, bytes)| bytes).sum();
    println!("{} MiB for callers, {} MiB beside, of {} MiB", held >> 20, beside >> 20, max >> 20);
    assert!(held + beside <= max, "{held} and {beside} of {max} bytes");
}
