//! Snapshots with valid checksums: restored within bounds or rejected, then written and restored again.

use std::fs;
use std::hash::Hasher;
use std::path::Path;
use std::sync::Arc;

use tempfile::TempDir;
use tidegate::clock::{Now, Timestamp};
use tidegate::engine::{Descriptors, Engine, Op, Request};
use tidegate::rules::read_text;
use tidegate::state::{Moment, SnapshotKey, read_tables, write_tables};

use super::rules::new_engine;

const KEY: SnapshotKey = SnapshotKey([7; 16]);
const UTC: i64 = 1_772_539_200_000_000_000;
const SECOND: u64 = 1_000_000_000;
/// Magic, version and fingerprint of the key.
const PREAMBLE_BYTES: usize = 24;
const CHECKSUM_BYTES: usize = 8;

pub const RULES: &str = "\
domain: api
limits:
- {name: bucket, key: [u], rate: 1/h, burst: 5, candidate: {rate: 1/h, burst: 2}}
- {name: window, key: [u], algorithm: fixed_window, rate: 9/day}
- {name: sliding, key: [u], algorithm: sliding_window, buckets: 6, rate: 9/h}
- {name: log, key: [u], algorithm: sliding_log, rate: 3/h, over: {soft: 50%}}
- {name: blocked, key: [u], rate: 1/h, burst: 4, block: 1h}
- {name: refunded, key: [u], rate: 1/h, burst: 9, refund_on: ok}
concurrency:
- {name: each, key: [u], max: 3}
shed:
- {pool: web, slots: 4, workers: {after: 1s, full: 30s}}
priorities: [critical, other]
";

thread_local! {
    static DIRECTORY: (TempDir, Vec<u8>) = {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("empty");
        write_tables(&path, KEY, &new_engine(), at(1), &here(at(1)), true).unwrap();
        let preamble = fs::read(&path).unwrap()[..PREAMBLE_BYTES].to_vec();
        (directory, preamble)
    };
}

/// Reads the bytes as sections of a snapshot with valid preamble and checksums.
pub fn check(bytes: &[u8]) {
    DIRECTORY.with(|(directory, preamble)| {
        let mut snapshot = [preamble, bytes].concat();
        sign(&mut snapshot);
        check_snapshot(&directory.path().join("tables"), &snapshot);
    });
}

fn check_snapshot(path: &Path, snapshot: &[u8]) {
    fs::write(path, snapshot).unwrap();
    let engine = new_engine();
    let Ok(restored) = read_tables(path, KEY, &engine, &here(at(13)), 1 << 30) else { return };
    assert!(restored.entries <= snapshot.len() as u64);
    let now = Now { at: restored.at, utc_offset_nanos: UTC };
    judge_some(&engine, now);
    write_tables(path, KEY, &engine, now, &here(now), true).unwrap();
    let again = new_engine();
    let read = read_tables(path, KEY, &again, &here(now), 1 << 30);
    assert!(read.is_ok(), "a snapshot of a restored engine: {read:?}");
    for engine in [engine, again] {
        engine.end_expired_leases(Now::at_nanos(u64::MAX));
        assert_eq!(engine.in_progress(), 0, "each lease ends what it counts");
    }
}

fn judge_some(engine: &Arc<Engine>, now: Now) {
    let loaded = read_text("rules.yaml", RULES);
    assert!(!loaded.has_errors(), "{:#?}", loaded.problems);
    drop(engine.install_rules(loaded.domains));
    let mut decider = engine.decider();
    for user in ["x", "y", "z"] {
        let attributes = [("u", user)];
        for op in [Op::Hit, Op::Acquire, Op::Peek] {
            let request = Request {
                lists_all_limits: true,
                ..Request::new(op, "api", Descriptors::from_attributes(&attributes))
            };
            drop(decider.decide(&request, now));
        }
    }
    engine.tick(now);
    engine.sweep(now);
}

/// Writes valid checksums.
fn sign(bytes: &mut [u8]) {
    let (mut before, mut begin) = (0, PREAMBLE_BYTES);
    while let Some(length) = bytes[begin..].first_chunk() {
        let end = begin + length.len() + u32::from_le_bytes(*length) as usize;
        if end + CHECKSUM_BYTES > bytes.len() {
            return;
        }
        let mut hasher = siphasher::sip::SipHasher13::new_with_key(&KEY.0);
        hasher.write_u64(before);
        hasher.write(&bytes[begin..end]);
        before = hasher.finish();
        bytes[end..end + CHECKSUM_BYTES].copy_from_slice(&before.to_le_bytes());
        begin = end + CHECKSUM_BYTES;
    }
}

fn at(seconds: u64) -> Now {
    Now { at: Timestamp::from_nanos(seconds * SECOND), utc_offset_nanos: UTC }
}

/// The clocks of one machine, which run at the rate of the engine's.
fn here(now: Now) -> Moment {
    let nanos = now.at.as_nanos();
    let unix_nanos = UTC.saturating_add_unsigned(nanos);
    Moment { clock: Some(1), boot_nanos: nanos.saturating_add(5 * SECOND), unix_nanos }
}
