//! What holds over the rules, as a file.

use std::fs;

use tidegate::clock::{Now, Timestamp};
use tidegate::engine::{Blocked, By, Mode, Orders, RuleName, Switch, Target};
use tidegate::state::{Unreadable, read_orders, write_orders};

const HOUR: u64 = 3_600_000_000_000;

fn now(at: u64, utc: i64) -> Now {
    Now { at: Timestamp::from_nanos(at), utc }
}

fn orders() -> Orders {
    let rule = RuleName { domain: "api".into(), rule: "web/workers".into() };
    let switch = |target, mode, until: Option<u64>, by| Switch {
        target,
        mode,
        until: until.map(Timestamp::from_nanos),
        by,
    };
    let block = Blocked {
        rule: rule.clone(),
        key: [u64::MAX, 1],
        text: Some("user=ann".into()),
        until: Timestamp::from_nanos(7 * HOUR),
        by: By::User(1_000),
    };
    Orders {
        switches: vec![
            switch(Target::Rule(rule), Mode::Shadow, Some(5 * HOUR), By::Guard),
            switch(Target::Everything, Mode::Disabled, None, By::User(0)),
        ],
        blocks: vec![block],
    }
}

#[test]
fn what_was_written_is_read_and_ends_at_the_same_time_of_day() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("switches");
    let unix = 1_700_000_000_000_000_000;
    assert_eq!(read_orders(&path, now(0, unix)).unwrap(), Orders::default(), "no file says nothing");
    write_orders(&path, &orders(), now(HOUR, unix)).unwrap();
    assert_eq!(read_orders(&path, now(HOUR, unix)).unwrap(), orders());
    // The next daemon counts from its own start, two hours later.
    let read = read_orders(&path, now(0, unix + 2 * i64::try_from(HOUR).unwrap())).unwrap();
    let ends: Vec<_> = read.switches.iter().map(|switch| switch.until).collect();
    assert_eq!(ends, [Some(Timestamp::from_nanos(3 * HOUR)), None]);
    assert_eq!(read.blocks[0].until, Timestamp::from_nanos(5 * HOUR));
    // Ten hours later its time is long over.
    let read = read_orders(&path, now(0, unix + 10 * i64::try_from(HOUR).unwrap())).unwrap();
    assert_eq!(read.blocks[0].until, Timestamp::ORIGIN);
}

#[test]
fn a_file_that_is_cut_or_changed_anywhere_says_all_of_it_or_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("switches");
    write_orders(&path, &orders(), now(0, 0)).unwrap();
    let whole = fs::read(&path).unwrap();
    let check = |bytes: &[u8], what: &str| {
        fs::write(&path, bytes).unwrap();
        match read_orders(&path, now(0, 0)) {
            Ok(read) => assert_eq!(read, orders(), "{what}"),
            Err(Unreadable::Damaged(_)) => {}
            Err(Unreadable::Io(error)) => panic!("{what}: {error}"),
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
    let huge = vec![b' '; 5 << 20];
    fs::write(&path, huge).unwrap();
    assert!(
        matches!(read_orders(&path, now(0, 0)), Err(Unreadable::Damaged(reason)) if reason.contains("longer"))
    );
    fs::write(&path, String::from_utf8(whole).unwrap().replace("\"version\":1", "\"version\":2")).unwrap();
    assert!(
        matches!(read_orders(&path, now(0, 0)), Err(Unreadable::Damaged(reason)) if reason.contains("version"))
    );
}
