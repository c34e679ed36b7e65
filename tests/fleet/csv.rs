//! Writes runs as tables in steps of 0.1 s for the figures of the documentation.

use std::fmt::Write;
use std::path::Path;

use crate::plan::{Faults, Plan, Shape};
use crate::world::run;

#[test]
#[ignore = "it leaves tables for the pictures of docs/"]
fn writes_csv_by_tenth_of_a_second() {
    let ms = 24_000;
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fleet");
    std::fs::create_dir_all(&directory).unwrap();
    let moving = |round_trip_us| Plan { ms, round_trip_us, ..Plan::cell(10, Shape::Moving, 2_000) };
    let faults = |empty| Faults::outage(8_000, 16_000, empty);
    let outage = |empty| Plan { ms, faults: faults(empty), ..Plan::cell(10, Shape::Zipf, 2_000) };
    let runs = [
        ("moving_near", moving(500)),
        ("moving_far", moving(50_000)),
        ("moving_farther", moving(500_000)),
        ("outage_kept", outage(false)),
        ("outage_empty", outage(true)),
    ];
    for (name, plan) in runs {
        let measure = run(&Plan { seed: 1, tick_us: 2_000, ..plan }).measure;
        let mut table = "offered,admitted,perfect\n".to_owned();
        for at in (0..ms as usize).step_by(100) {
            let sum = |counts: &[u32]| counts[at..at + 100].iter().sum::<u32>();
            let (offered, admitted) = (sum(&measure.offered), sum(&measure.admitted));
            writeln!(table, "{offered},{admitted},{}", sum(&measure.ideal)).unwrap();
        }
        std::fs::write(directory.join(format!("{name}.csv")), table).unwrap();
    }
}
