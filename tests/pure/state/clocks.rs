//! The elapsed time by the right clock, also over a reboot and into another time namespace.

use std::time::Duration;

use tidegate::state::{Moment, SnapshotError, read_tables};

use super::fixture::{ANY_SIZE, Fixture, KEY, UTC, at, engine, here, s};

const SECOND: u64 = 1_000_000_000;

/// A time on the machine of this boot, with its two clocks in seconds.
fn moment(boot: u128, boot_seconds: u64, wall_seconds: i64) -> Moment {
    Moment {
        clock: (boot > 0).then_some(boot),
        boot_nanos: boot_seconds * SECOND,
        unix_nanos: UTC + wall_seconds * 1_000_000_000,
    }
}

#[test]
fn measures_elapsed_time_by_trusted_clock() {
    let earlier = moment(1, 1_000, 0);
    let table = [
        ("the same boot", moment(1, 1_010, 10), Some(10)),
        ("the wall clock moved a little", moment(1, 1_010, 14), Some(10)),
        ("back a little", moment(1, 1_010, 6), Some(10)),
        ("the wall clock stepped", moment(1, 1_010, 3_610), Some(10)),
        ("it stepped back", moment(1, 1_010, -3_590), Some(10)),
        ("a reboot", moment(2, 5, 40), Some(40)),
        ("a reboot, and it has been up for longer", moment(2, 9_000, 40), Some(40)),
        ("the same boot, and another time namespace", moment(3, 4_600, 10), Some(10)),
        ("which boot it is cannot be told", moment(0, 1_010, 12), Some(12)),
        ("a boot clock that went back", moment(1, 900, 10), Some(10)),
        ("a reboot, and the wall clock is wrong", moment(2, 5, -1), None),
        ("both went back", moment(1, 900, -1), None),
        ("at once", moment(1, 1_000, 0), Some(0)),
    ];
    for (what, later, expected) in table {
        assert_eq!(later.since(&earlier), expected.map(Duration::from_secs), "{what}");
    }
}

const RULES: &str = "limits:\n- {name: slow, key: [], rate: 1/min, burst: 3}\n";

#[test]
fn bounds_refusal_by_window_whatever_the_clocks() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tables");
    for (later, left) in [
        (here(s(100)), 0),
        (Moment { clock: Some(9), boot_nanos: 3, ..here(s(100)) }, 0),
        (Moment { clock: Some(9), boot_nanos: 3, ..here(s(225)) }, 2),
        (Moment { clock: Some(9), boot_nanos: u64::MAX / 2, ..here(s(100_000)) }, 3),
        (Moment { clock: Some(9), boot_nanos: u64::MAX / 2, ..here(s(90)) }, 3),
    ] {
        let mut fixture = Fixture::new(RULES);
        (0..3).for_each(|_| drop(fixture.hit("", s(99))));
        fixture.write(&path, s(100));
        let engine = engine();
        let back = read_tables(&path, KEY, &engine, &later, ANY_SIZE);
        let passed = later.unix_nanos - here(s(100)).unix_nanos;
        let now = at(100 * SECOND).at.after(Duration::from_nanos(passed.unsigned_abs()));
        if passed < 0 {
            assert!(matches!(back, Err(SnapshotError::NoTime)));
            continue;
        }
        assert_eq!(back.unwrap().at, now);
        let mut fixture = Fixture::of(engine);
        fixture.install(RULES);
        let now = at(now.as_nanos());
        let allowed = (0..4).filter(|_| fixture.hit("", now).starts_with("Allow")).count();
        assert_eq!(allowed, left, "{passed} ns later");
    }
}
