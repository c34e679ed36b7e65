//! Snapshots that are damaged or from another host: set aside as a whole, never restored in part. And their file,
//! which is written as a whole or not at all.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use tidegate::engine::Engine;
use tidegate::engine::snapshot::SnapshotEntry;
use tidegate::state::{
    AtomicFile, Moment, SnapshotError, SnapshotKey, VERSION, read_tables, write_tables, write_whole,
};

use super::fixture::{ANY_SIZE, Ask, Fixture, KEY, engine, here, s};
use crate::bench::named;
use crate::rng::Rng;

const RULES: &str = "limits:
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

/// An engine with state of every kind.
fn full() -> Fixture {
    let mut fixture = Fixture::new(RULES);
    fixture.open(2, 4, s(1));
    fixture.open(4, 4, s(1));
    for user in ["x", "y"] {
        for number in 0..5_u8 {
            let name = [number, user.as_bytes()[0]];
            let attributes = format!("u={user}");
            let ask = Ask { repeat: Some(named(&name)), ..Ask::acquire(&attributes) };
            fixture.ask(2 + number % 2 * 2, ask, s(2));
        }
    }
    (4..24).for_each(|quarter| fixture.engine.tick(super::fixture::at(quarter * 500_000_000)));
    fixture
}

fn written(directory: &Path) -> (PathBuf, Vec<u8>) {
    written_of(&full(), directory)
}

/// An engine with state of many keys.
fn large(keys: u32) -> Fixture {
    let mut fixture = Fixture::new("limits:\n- {name: bucket, key: [u], rate: 1/h, burst: 5}\n");
    (0..keys).for_each(|user| drop(fixture.hit(&format!("u={user}"), s(2))));
    fixture
}

fn written_of(fixture: &Fixture, directory: &Path) -> (PathBuf, Vec<u8>) {
    let path = directory.join("tables");
    fixture.write(&path, s(12));
    let bytes = fs::read(&path).unwrap();
    (path, bytes)
}

/// The result of reading these bytes.
fn read(path: &Path, bytes: &[u8]) -> Result<u64, SnapshotError> {
    read_into(&engine(), path, bytes)
}

/// The result of reading these bytes into an engine: a rejected snapshot leaves it empty, ready for the next.
fn read_into(engine: &Engine, path: &Path, bytes: &[u8]) -> Result<u64, SnapshotError> {
    fs::write(path, bytes).unwrap();
    let read = read_tables(path, KEY, engine, &here(s(13)), ANY_SIZE);
    engine.end_expired_leases(s(3_600));
    assert_eq!(engine.in_progress(), 0, "each lease ends what it counts");
    read.map(|back| back.entries)
}

#[test]
fn reads_snapshot_as_written() {
    let directory = tempfile::tempdir().unwrap();
    let (path, bytes) = written(directory.path());
    // Rules, a pool, keys of all kinds, idempotency keys, sessions and leases.
    let entries = read(&path, &bytes).unwrap();
    assert!(entries >= 30, "{entries} entries");
    let (fixture, back) = Fixture::try_restart(&path, s(13)).unwrap();
    assert_eq!((back.entries, back.is_final, back.passed.as_secs()), (entries, false, 1));
    assert_eq!(fixture.engine.leases().sessions, 2);
    assert!(fixture.engine.leases().live >= 6);
}

#[test]
fn rejects_snapshot_damaged_at_any_byte() {
    let directory = tempfile::tempdir().unwrap();
    let (path, bytes) = written(directory.path());
    let (engine, mut rng) = (engine(), Rng::seeded(3));
    for place in 0..bytes.len() {
        let read = read_into(&engine, &path, &bytes[..place]);
        assert!(read.is_err(), "the first {place} of {} bytes: {read:?}", bytes.len());
        let mut flipped = bytes.clone();
        flipped[place] ^= 1 << rng.below(8);
        let read = read_into(&engine, &path, &flipped);
        assert!(read.is_err(), "a bit of byte {place} of {}: {read:?}", bytes.len());
    }
    let longer = [&bytes[..], &[0]].concat();
    assert!(matches!(read(&path, &longer), Err(SnapshotError::Damaged(_))));
}

#[test]
fn rejects_moved_repeated_or_missing_sections() {
    let directory = tempfile::tempdir().unwrap();
    let (path, bytes) = written_of(&large(8_000), directory.path());
    let sections = sections(&bytes);
    assert!(sections.len() > 4, "{}", sections.len());
    let put = |order: &[usize]| {
        let parts = order.iter().flat_map(|number| &bytes[sections[*number].clone()]);
        bytes[..24].iter().chain(parts).copied().collect::<Vec<u8>>()
    };
    let all: Vec<usize> = (0..sections.len()).collect();
    assert_eq!(put(&all), bytes);
    for number in all.iter().copied() {
        let without: Vec<_> = all.iter().copied().filter(|other| *other != number).collect();
        assert!(read(&path, &put(&without)).is_err(), "without section {number}");
        let doubled: Vec<_> =
            all.iter().flat_map(|other| vec![*other; 1 + usize::from(*other == number)]).collect();
        assert!(read(&path, &put(&doubled)).is_err(), "section {number} twice");
    }
    for number in 1..sections.len() {
        let mut swapped = all.clone();
        swapped.swap(number - 1, number);
        assert!(read(&path, &put(&swapped)).is_err(), "section {number} before the one before it");
    }
}

fn sections(bytes: &[u8]) -> Vec<std::ops::Range<usize>> {
    let (mut found, mut begin) = (Vec::new(), 24);
    while let Some(length) = bytes[begin..].first_chunk() {
        let end = begin + 4 + u32::from_le_bytes(*length) as usize + 8;
        found.push(begin..end);
        begin = end;
    }
    found
}

#[test]
fn distinguishes_other_version_key_and_file_type() {
    let directory = tempfile::tempdir().unwrap();
    let (path, bytes) = written(directory.path());
    let mut newer = bytes.clone();
    newer[8] += 1;
    let version = VERSION + 1;
    assert!(matches!(read(&path, &newer), Err(SnapshotError::Version { found, .. }) if found == version));
    assert!(matches!(read(&path, b""), Err(SnapshotError::Strange)));
    assert!(matches!(read(&path, b"tables:\n  - of another kind\n"), Err(SnapshotError::Strange)));
    fs::write(&path, &bytes).unwrap();
    let of = |key, max| read_tables(&path, key, &engine(), &here(s(13)), max);
    assert!(matches!(of(SnapshotKey([8; 16]), ANY_SIZE), Err(SnapshotError::OtherKey)));
    let size = bytes.len() as u64;
    assert!(of(KEY, size).is_ok());
    assert!(matches!(of(KEY, size - 1), Err(SnapshotError::TooLarge(found)) if found == size));
    // A directory is not a regular file.
    let of_directory = read_tables(directory.path(), KEY, &engine(), &here(s(13)), ANY_SIZE);
    assert!(matches!(of_directory, Err(SnapshotError::Unreadable(_))), "{of_directory:?}");
}

/// Writes valid checksums.
fn sign(bytes: &mut [u8]) {
    use std::hash::Hasher;
    let (mut before, mut begin) = (0, 24);
    while let Some(length) = bytes[begin..].first_chunk() {
        let end = begin + 4 + u32::from_le_bytes(*length) as usize;
        if end + 8 > bytes.len() {
            return;
        }
        let mut hasher = siphasher::sip::SipHasher13::new_with_key(&KEY.0);
        hasher.write_u64(before);
        hasher.write(&bytes[begin..end]);
        before = hasher.finish();
        bytes[end..end + 8].copy_from_slice(&before.to_le_bytes());
        begin = end + 8;
    }
}

/// What an engine keeps that has read these tables.
fn kept(bytes: &[u8]) -> Vec<String> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tables");
    fs::write(&path, bytes).unwrap();
    let engine = engine();
    read_tables(&path, KEY, &engine, &here(s(13)), ANY_SIZE).unwrap();
    let mut entries = Vec::new();
    engine.copy_out(s(13), &mut |entry| match entry {
        SnapshotEntry::Buckets(buckets) => entries.extend(buckets.iter().map(|bucket| format!("{bucket:?}"))),
        // The leases in that file are of requests with the id 0, and do not say when their costs were charged.
        entry => {
            let text = format!("{entry:?}").replace("request: 1,", "request: 0,");
            entries.push(text.replace("at: Some(Timestamp(2000000000))", "at: None"));
        }
    });
    entries.sort();
    entries
}

#[test]
fn reads_tables_of_a_version_with_longer_digests() {
    let golden = fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/pure/state/tables-2")).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let (_, bytes) = written(directory.path());
    assert_ne!(golden, bytes);
    assert_eq!(kept(&golden), kept(&bytes));
}

#[test]
fn forged_length_reserves_no_memory() {
    let directory = tempfile::tempdir().unwrap();
    let (path, bytes) = written(directory.path());
    // The first section has two numbers of keys, for which nothing is reserved.
    let Moment { clock, boot_nanos, unix_nanos } = here(s(12));
    let keys = (u64::MAX, u64::MAX);
    let head = rmp_serde::to_vec(&((clock, boot_nanos, unix_nanos), s(12).at, false, keys)).unwrap();
    let length = u32::try_from(head.len()).unwrap().to_le_bytes();
    let mut forged = [&bytes[..24], &length, &head, &[0; 8], &bytes[sections(&bytes)[0].end..]].concat();
    sign(&mut forged);
    fs::write(&path, &forged).unwrap();
    let engine = engine();
    read_tables(&path, KEY, &engine, &here(s(13)), ANY_SIZE).unwrap();
    assert!(engine.memory_bytes() < 1 << 20, "{} bytes", engine.memory_bytes());
    // A section of 1 GiB.
    let mut forged = bytes;
    forged[24..24 + 4].copy_from_slice(&(1_u32 << 30).to_le_bytes());
    assert!(matches!(read(&path, &forged), Err(SnapshotError::Damaged(_))));
}

#[test]
fn keeps_old_snapshot_after_failed_write() {
    let directory = tempfile::tempdir().unwrap();
    let (path, bytes) = written(directory.path());
    // A directory at the path of the new file.
    fs::create_dir(directory.path().join("tables.new")).unwrap();
    let fixture = full();
    assert!(write_tables(&path, KEY, &fixture.engine, s(20), &here(s(20)), true).is_err());
    assert_eq!(fs::read(&path).unwrap(), bytes);
}

#[test]
#[ignore = "writes the seeds of the fuzz target `snapshots`, after a change of the format"]
fn writes_fuzz_seeds() {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpora/snapshots");
    let directory = tempfile::tempdir().unwrap();
    let mut leases = full();
    leases.close(4, s(9));
    let mut hits = Fixture::new(RULES);
    (0..9).for_each(|_| drop(hits.hit("u=x", s(2))));
    let later = Fixture::restart(&written(directory.path()).0, s(3_000));
    for (name, fixture) in [
        ("rules", Fixture::new(RULES)),
        ("hits", hits),
        ("leases", leases),
        ("pool", full()),
        ("later", later),
    ] {
        let (_, bytes) = written_of(&fixture, directory.path());
        fs::write(seeds.join(name), &bytes[24..]).unwrap();
    }
}

#[test]
fn replaces_file_readable_by_owner_only() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tables");
    write_whole(&path, b"one").unwrap();
    write_whole(&path, b"two, which is longer").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"two, which is longer");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[test]
fn dropped_write_keeps_old_file_and_no_other() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tables");
    write_whole(&path, b"old").unwrap();
    let mut whole = AtomicFile::begin(&path).unwrap();
    whole.write_all(&[7; 200_000]).unwrap();
    drop(whole);
    assert_eq!(fs::read(&path).unwrap(), b"old");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[test]
fn removes_new_file_when_rename_fails() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tables");
    fs::create_dir(&path).unwrap();
    assert!(write_whole(&path, b"new").is_err());
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    assert!(write_whole(&directory.path().join("missing").join("tables"), b"new").is_err());
}

#[test]
fn never_writes_through_planted_link() {
    let directory = tempfile::tempdir().unwrap();
    let (path, victim) = (directory.path().join("tables"), directory.path().join("victim"));
    fs::write(&victim, b"untouched").unwrap();
    symlink(&victim, directory.path().join("tables.new")).unwrap();
    write_whole(&path, b"new").unwrap();
    assert_eq!(fs::read(&victim).unwrap(), b"untouched");
    assert_eq!(fs::read(&path).unwrap(), b"new");
    assert!(!fs::symlink_metadata(&path).unwrap().is_symlink());
}
