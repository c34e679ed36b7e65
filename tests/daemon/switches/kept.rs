//! The file of operators' overrides.

use super::commands::{plan, restart};
use crate::prelude::*;
use std::os::unix::fs::chown;
use tidegate::clock::{Now, Timestamp};
use tidegate::engine::{BlockedKey, HostOverrides, Mode, RuleName, Switch, SwitchOrigin, Target};
use tidegate::state::{SWITCHES_VERSION, SwitchesRead, UnreadableSwitches, read_switches, write_switches};

const HOUR: u64 = 3_600_000_000_000;

fn now(at: u64, utc: i64) -> Now {
    Now { at: Timestamp::from_nanos(at), utc_offset_nanos: utc }
}

fn overrides() -> HostOverrides {
    let rule = RuleName { domain: "api".into(), rule: "web/workers".into() };
    let switch = |target, mode, until: Option<u64>, by| Switch {
        target,
        mode,
        until: until.map(Timestamp::from_nanos),
        set_at: Timestamp::from_nanos(HOUR / 4),
        by,
    };
    let block = BlockedKey {
        rule: rule.clone(),
        key: [u64::MAX, 1],
        text: Some("user=ann".into()),
        until: Timestamp::from_nanos(7 * HOUR),
        by: SwitchOrigin::User(1_000),
    };
    HostOverrides {
        switches: vec![
            switch(Target::Rule(rule), Mode::Shadow, Some(5 * HOUR), SwitchOrigin::Guard),
            switch(Target::Daemon, Mode::Disabled, None, SwitchOrigin::User(0)),
        ],
        blocks: vec![block],
    }
}

#[test]
fn reads_switches_with_same_wall_clock_end() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("switches");
    let unix = 1_700_000_000_000_000_000;
    let none = read_switches(&path, now(0, unix)).unwrap().overrides;
    assert_eq!(none, HostOverrides::default(), "without a file");
    write_switches(&path, &overrides(), now(HOUR, unix)).unwrap();
    let whole = SwitchesRead { overrides: overrides(), version: SWITCHES_VERSION, not_understood: 0 };
    assert_eq!(read_switches(&path, now(HOUR, unix)).unwrap(), whole);
    // The next daemon has a new origin, two hours later.
    let read = read_switches(&path, now(0, unix + 2 * i64::try_from(HOUR).unwrap())).unwrap().overrides;
    let ends: Vec<_> = read.switches.iter().map(|switch| switch.until).collect();
    assert_eq!(ends, [Some(Timestamp::from_nanos(3 * HOUR)), None]);
    assert_eq!(read.blocks[0].until, Timestamp::from_nanos(5 * HOUR));
    // Ten hours later it has expired.
    let read = read_switches(&path, now(0, unix + 10 * i64::try_from(HOUR).unwrap())).unwrap().overrides;
    assert_eq!(read.blocks[0].until, Timestamp::ORIGIN);
}

#[test]
fn reads_damaged_switches_whole_or_not_at_all() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("switches");
    write_switches(&path, &overrides(), now(0, 0)).unwrap();
    let whole = fs::read(&path).unwrap();
    let check = |bytes: &[u8], what: &str| {
        fs::write(&path, bytes).unwrap();
        match read_switches(&path, now(0, 0)) {
            Ok(read) => assert_eq!((read.overrides, read.not_understood), (overrides(), 0), "{what}"),
            Err(UnreadableSwitches::Damaged(_)) => {}
            Err(UnreadableSwitches::Io(error)) => panic!("{what}: {error}"),
        }
    };
    for at in 0..whole.len() {
        check(&whole[..at], &format!("cut at {at}"));
        for bit in 0..8 {
            let mut flipped = whole.clone();
            flipped[at] ^= 1 << bit;
            check(&flipped, &format!("bit {bit} of {at}"));
        }
    }
    fs::write(&path, vec![b' '; 5 << 20]).unwrap();
    let read = read_switches(&path, now(0, 0));
    assert!(matches!(read, Err(UnreadableSwitches::Damaged(reason)) if reason.contains("larger")));
}

#[test]
fn reads_no_switches_of_another_user() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("switches");
    write_switches(&path, &overrides(), now(0, 0)).unwrap();
    assert_eq!(read_switches(&path, now(0, 0)).unwrap().overrides, overrides());
    // Requires root.
    if chown(&path, Some(4711), None).is_ok() {
        let read = read_switches(&path, now(0, 0));
        assert!(matches!(read, Err(UnreadableSwitches::Damaged(reason)) if reason.contains("belongs")));
    }
}

/// A document of another version, with a valid checksum.
fn document(version: u32, content: &str) -> String {
    use std::hash::Hasher;
    let mut hasher = siphasher::sip128::SipHasher13::new();
    hasher.write(content.as_bytes());
    let sum = siphasher::sip128::Hasher128::finish128(&hasher).as_u128();
    format!(r#"{{"version":{version},"new":[1],"sum":"{sum:032x}","orders":{content}}}"#)
}

#[test]
fn reads_other_version_without_becoming_stricter() {
    let switch = |target: &str, mode: Mode| Switch {
        target: match target {
            "" => Target::Daemon,
            rule => Target::Rule(RuleName { domain: "api".into(), rule: rule.into() }),
        },
        mode,
        until: None,
        set_at: Timestamp::ORIGIN,
        by: SwitchOrigin::User(0),
    };
    let block = r#"{"rule":["api","r"],"key":[1,2],"text":null,"until":9,"by":0}"#;
    let narrow_block = block.replace(r#""by""#, r#""only":"posts","by""#);
    let (disabled, all) = (vec![switch("r", Mode::Disabled)], vec![switch("", Mode::Shadow)]);
    let table: [(&str, Vec<Switch>, usize, usize); 10] = [
        (
            r#"{"switches":[{"rule":["api","r"],"mode":"disabled","until":null,"by":0}]}"#,
            disabled.clone(),
            0,
            0,
        ),
        // Unknown fields of a switch that only allows more are ignored.
        (r#"{"switches":[{"rule":null,"mode":"shadow","by":0,"why":"storm"}],"blocks":[]}"#, all, 0, 1),
        (r#"{"switches":[{"rule":["api","r"],"mode":"enforce","by":0,"share":0.1}]}"#, vec![], 0, 1),
        // The first entry is invalid.
        (r#"{"switches":[{"mode":"halved"},{"rule":["api","r"],"mode":"disabled","by":0}]}"#, disabled, 0, 1),
        // An unknown target does not mean everything.
        (r#"{"switches":[{"group":"web","mode":"disabled","by":0}]}"#, vec![], 0, 1),
        (r#"{"switches":{"api":{}},"blocks":[BLOCK],"quotas":[1,2]}"#, vec![], 1, 2),
        (r#"{"blocks":[BLOCK]}"#, vec![], 1, 0),
        (r#"{"blocks":[NARROW,BLOCK,5]}"#, vec![], 1, 2),
        (r#"{"switches":[[]],"blocks":3}"#, vec![], 0, 2),
        ("{}", vec![], 0, 0),
    ];
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("switches");
    for (content, switches, blocks, not_understood) in table {
        let content = content.replace("BLOCK", block).replace("NARROW", &narrow_block);
        fs::write(&path, document(7, &content)).unwrap();
        let read = read_switches(&path, now(0, 0)).unwrap();
        let found = (read.overrides.switches, read.overrides.blocks.len(), read.not_understood, read.version);
        assert_eq!(found, (switches, blocks, not_understood, 7), "{content}");
    }
}

#[test]
fn keeps_switches_of_another_version() {
    let daemon = plan().start();
    daemon.run("switch per-user disabled");
    let plan = daemon.killed();
    // A later version, with an unknown field.
    let path = plan.path("state/switches");
    let ours = fs::read_to_string(&path).unwrap();
    let content = ours.split_once("\"orders\":").unwrap().1.strip_suffix('}').unwrap();
    let later = content.replace("\"switches\":[", "\"quotas\":[7],\"switches\":[");
    let later = document(2, &later);
    fs::write(&path, &later).unwrap();
    let daemon = plan.start();
    daemon.await_log(&["INFO", "another version of tidegate", "version=2"]);
    daemon.await_log(&["ERROR", "does not know", "entries=1", "switches.bad", "is_kept=true"]);
    assert_eq!(daemon.greeted().allowed("u1", 10), 10);
    // The next write drops the field.
    daemon.run("switch --all shadow");
    assert!(!fs::read_to_string(&path).unwrap().contains("quotas"));
    assert_eq!(fs::read_to_string(daemon.plan.path("state/switches.bad")).unwrap(), later);
    let daemon = restart(daemon, libc::SIGTERM);
    assert!(!daemon.log().contains("another version"), "{}", daemon.log());
    assert!(daemon.run("switch").contains("api/per-user: disabled"));
}
