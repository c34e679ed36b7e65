//! Bytes per key: resident memory before and after filling a table, divided by its keys.

use std::hint::black_box;
use std::io;
use std::process::Command;

use clap::ValueEnum;
use tidegate::sys::return_freed_memory;

use crate::beside::Governor;
use crate::contestant::{Limits, MEMORY_BYTES};
use crate::report::{Bound, Row};
use crate::stopwatch::resident_bytes;
use crate::{lender, rules, shares};

/// The table to fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Held {
    TokenBucket,
    LeakyBucket,
    FixedWindow,
    SlidingLog,
    OneBucket,
    TenBuckets,
    SixtyBuckets,
    FleetShare,
    Governor,
}

/// One process for each figure, so that freed memory is not reused.
pub(crate) fn run(reps: usize) -> io::Result<Vec<Row>> {
    let full = |held, hits| repeated(reps, || in_process(held, KEYS, hits));
    let buckets = full(Held::TokenBucket, 1)?;
    let mut rows = vec![
        Row::beside(&of("token bucket"), "B", &buckets, "governor", &full(Held::Governor, 1)?)
            .must(Bound::AtMost(0.6)),
        Row::beside(
            &of("fleet share, on credit"),
            "B",
            &full(Held::FleetShare, 1)?,
            "token bucket",
            &buckets,
        )
        .must(Bound::AtMost(2.5)),
    ];
    // Bounds from the literature: fixed window 36 B, 60 counters 1.6 KB, log 88 B at 3/min, 12 KB at 500/h.
    for (name, held, keys, hits, most) in [
        ("leaky bucket", Held::LeakyBucket, KEYS, 1, None),
        ("fixed window", Held::FixedWindow, KEYS, 1, Some(36.0)),
        ("sliding window, 1 bucket", Held::OneBucket, KEYS, 1, None),
        ("sliding window, 10 buckets", Held::TenBuckets, KEYS / 4, 20, None),
        ("sliding window, 60 buckets", Held::SixtyBuckets, KEYS / 4, 20, Some(1_600.0)),
        ("sliding log, 3 a minute", Held::SlidingLog, KEYS, 3, Some(88.0)),
        ("sliding log, 500 an hour", Held::SlidingLog, KEYS / 64, 500, Some(12_000.0)),
    ] {
        let measured = repeated(reps, || in_process(held, keys, hits))?;
        let row = Row::alone(&of(name), "B", &measured);
        rows.push(most.map_or(row.clone(), |most| row.must(Bound::AtMost(most))));
    }
    Ok(rows)
}

fn of(name: &str) -> String {
    format!("resident bytes per key: {name}")
}

fn repeated(reps: usize, measure: impl Fn() -> io::Result<f64>) -> io::Result<Vec<f64>> {
    (0..reps).map(|_| measure()).collect()
}

fn in_process(held: Held, keys: u32, hits: u32) -> io::Result<f64> {
    let name = held.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
    let bytes = said_by(&["hold", &name, &keys.to_string(), &hits.to_string()])?;
    Ok(bytes / f64::from(keys))
}

/// Runs this program with these arguments and returns the number that it prints.
pub(crate) fn said_by(arguments: &[&str]) -> io::Result<f64> {
    let output = Command::new(std::env::current_exe()?).args(arguments).output()?;
    let said = String::from_utf8_lossy(&output.stdout).trim().parse();
    said.map_err(|_| io::Error::other(format!("{arguments:?}: {}", String::from_utf8_lossy(&output.stderr))))
}

/// In a process of its own: fills a table and prints the bytes that it takes.
pub(crate) fn hold(held: Held, keys: u32, hits: u32) -> io::Result<()> {
    // As the daemon does at its start; governor benefits too.
    return_freed_memory(tidegate::limit::MAPPED_BYTES_MIN);
    let before;
    let after;
    if held == Held::Governor {
        let empty = Governor::new();
        before = resident_bytes()?;
        let filled = empty.filled(keys);
        after = resident_bytes()?;
        black_box(&filled);
    } else {
        let empty = match held {
            Held::FleetShare => Limits::in_fleet(&shares::of_fleet(lender::ON_CREDIT), MEMORY_BYTES).0,
            _ => Limits::new(&rules::one(&fields(held, hits)), MEMORY_BYTES),
        };
        before = resident_bytes()?;
        let filled = empty.filled_in_rounds(keys, hits);
        filled.assert_few_refused();
        after = resident_bytes()?;
        assert_eq!(filled.engine.keys(), keys as usize, "every key is there");
    }
    println!("{}", after.saturating_sub(before));
    Ok(())
}

fn fields(held: Held, hits: u32) -> String {
    match held {
        Held::TokenBucket | Held::FleetShare | Held::Governor => rules::TOKEN_BUCKET.to_owned(),
        Held::LeakyBucket => rules::LEAKY_BUCKET.to_owned(),
        Held::FixedWindow => rules::FIXED_WINDOW.to_owned(),
        // As many as it admits: the log is full.
        Held::SlidingLog => format!("algorithm: sliding_log, rate: {hits}/h"),
        Held::OneBucket => rules::sliding_window(1),
        Held::TenBuckets => rules::sliding_window(10),
        Held::SixtyBuckets => rules::sliding_window(60),
    }
}

/// Shards double one after the other, so that any large number gives about the same.
const KEYS: u32 = 3_600_000;
