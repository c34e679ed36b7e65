//! The shedding controller resumes after a restart, and decays over time without data.

use tidegate::state::{Moment, read_tables};

use super::fixture::{ANY_SIZE, Fixture, KEY, UTC, at, engine, here, s};

const RULES: &str = "priorities: [critical, other]\nshed:\n\
                     - {pool: web, slots: 4, workers: {after: 28s, full: 120s}}\n";

fn severity(fixture: &Fixture, seconds: u64) -> f64 {
    let pools = fixture.engine.pools(s(seconds));
    pools.iter().find(|pool| &*pool.pool == "web").unwrap().severity
}

/// Ticks every 250 ms, as the daemon does.
fn run(fixture: &Fixture, from: u64, to: u64) {
    (from * 4..to * 4).for_each(|quarter| fixture.engine.tick(at(quarter * 250_000_000)));
}

/// A pool with all slots busy for `seconds`.
fn busy_for(seconds: u64) -> Fixture {
    let mut fixture = Fixture::new(RULES);
    fixture.open(2, 4, s(1));
    let leases: Vec<u64> = (0..4).map(|_| fixture.acquire(2, "", s(1)).unwrap()).collect();
    for from in (1..seconds).step_by(20) {
        // Leases expire after 60 s.
        run(&fixture, from, from + 20);
        let session = &fixture.sessions[&2];
        leases.iter().for_each(|lease| assert!(fixture.engine.renew_lease(session, *lease, s(from + 20))));
    }
    fixture
}

#[test]
fn controller_resumes_restored_severity() {
    let fixture = busy_for(100);
    let stood = severity(&fixture, 101);
    assert!(stood > 0.4, "it sheds: {stood}");
    for (later, expected) in [
        // At first it holds, without data.
        (102, stood),
        (120, stood),
        // Then it decays as at half of `good`.
        (101 + 30 + 60, stood - 60.0 * 0.5 / 120.0),
        (101 + 3_600, -28.0 / 120.0),
    ] {
        let mut again = fixture.restarted(s(101), s(later));
        again.install(RULES);
        again.open(2, 4, s(later));
        run(&again, later, later + 1);
        let stands = severity(&again, later + 1);
        assert!((stands - expected).abs() < 0.02, "after {} s: {stands}, not {expected}", later - 101);
    }
}

#[test]
fn changed_controller_keeps_severity_in_its_range() {
    let fixture = busy_for(100);
    let stood = severity(&fixture, 101);
    let again = fixture.restarted(s(101), s(102));
    again.install(&RULES.replace("full: 120s", "full: 240s"));
    run(&again, 102, 103);
    assert!((severity(&again, 103) - stood).abs() < 0.02);
    // While it runs, too. Without a controller it is at rest.
    again.install(&RULES.replace("full: 120s", "full: 360s"));
    run(&again, 103, 104);
    assert!((severity(&again, 104) - stood).abs() < 0.02);
    again.install(&RULES.replace("workers: {after: 28s, full: 120s}", "queue_age: {}"));
    run(&again, 104, 105);
    again.install(RULES);
    run(&again, 105, 106);
    assert!(severity(&again, 106) < 0.0);
}

#[test]
fn keeps_controller_state_while_rules_unreadable() {
    let fixture = busy_for(100);
    let stood = severity(&fixture, 101);
    // A restart without rules, and another with them.
    let again = fixture.restarted(s(101), s(102)).restarted(s(103), s(104));
    again.install(RULES);
    run(&again, 104, 105);
    assert!((severity(&again, 105) - stood).abs() < 0.02);
}

#[test]
fn restores_slots_and_leases_of_sessions() {
    let mut fixture = Fixture::new(RULES);
    for number in [2, 4] {
        fixture.open(number, 6, s(1));
        fixture.acquire(number, "", s(1)).unwrap();
    }
    let mut again = fixture.restarted(s(2), s(3));
    again.install(RULES);
    let web = |fixture: &Fixture, seconds| {
        let pools = fixture.engine.pools(s(seconds));
        let web = pools.iter().find(|pool| &*pool.pool == "web").unwrap().clone();
        (web.slots, web.busy, web.critical + web.noncritical)
    };
    assert_eq!(web(&again, 3), (Some(12), 2, 2));
    again.open(2, 6, s(4));
    // A session that does not return ends after 5 s.
    again.engine.tick(at(7_999_999_999));
    assert_eq!(web(&again, 7), (Some(12), 2, 2));
    again.engine.tick(s(8));
    assert_eq!(web(&again, 8), (Some(6), 1, 1));
    // Leases that would have expired are not restored.
    let later = fixture.restarted(s(2), s(62));
    assert_eq!(later.engine.leases().live, 0);
    assert_eq!(later.engine.leases().sessions, 2);
}

#[test]
fn leases_expire_on_time_after_reboot() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tables");
    let mut fixture = Fixture::new("concurrency:\n- {name: c, key: [], max: 2, expires: 100s}\n");
    fixture.open(2, 6, s(1));
    let lease = fixture.acquire(2, "", s(1)).unwrap();
    fixture.write(&path, s(2));
    let reboot = Moment { clock: Some(77), boot_nanos: 4, unix_nanos: UTC + 60_000_000_000 };
    let engine = engine();
    let back = read_tables(&path, KEY, &engine, &reboot, ANY_SIZE).unwrap();
    assert_eq!((back.at, back.passed.as_secs()), (s(60).at, 58));
    assert_eq!(here(s(60)).unix_nanos, reboot.unix_nanos);
    let mut fixture = Fixture::of(engine);
    fixture.open(2, 6, s(61));
    fixture.engine.tick(at(100_999_999_999));
    assert!(fixture.engine.holds_lease(&fixture.sessions[&2], lease, at(100_999_999_999)));
    fixture.engine.tick(s(101));
    assert_eq!(fixture.engine.leases().live, 0);
    assert_eq!(fixture.engine.in_progress(), 0);
}

#[test]
fn restores_sessions_up_to_maximum_per_user() {
    use tidegate::engine::snapshot::{OpenSession, SnapshotEntry};
    let fixture = busy_for(1);
    let other = engine();
    let mut putting = other.putting_back(s(2));
    let mut copied = Vec::new();
    fixture.engine.copy_out(s(2), &mut |kept| copied.push(kept));
    // A user has at most 4 096 sessions; the snapshot may hold more, as ended ones were copied too.
    for number in 0..5_000_u16 {
        let mut name = [9; 16];
        name[..2].copy_from_slice(&number.to_le_bytes());
        let session = OpenSession { name, user: 2, pid: None, pool: "web".into(), slots: 1, ends_at: None };
        putting.put(SnapshotEntry::Session(Box::new(session))).unwrap();
    }
    copied.into_iter().for_each(|kept| putting.put(kept).unwrap());
    drop(putting);
    assert_eq!((other.leases().sessions, other.leases().live), (4_096, 0));
    assert_eq!(other.in_progress(), 0);
}
