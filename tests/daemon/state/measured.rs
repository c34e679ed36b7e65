//! Measures the figures of `docs/performance.md`: run with `cargo test --release --test daemon state:: --
//! --ignored measured --nocapture`.

use super::fixture::{ANY_SIZE, Fixture, KEY, engine};
use super::restarts::{plan, state};
use crate::prelude::*;
use tidegate::clock::Clock;
use tidegate::state::{BOOT_ID_FILE, Moment, read_tables, write_tables};

const KEYS: u32 = 1_000_000;

const RULES: &str = "limits:\n- {name: per-user, key: [user], rate: 1/h, burst: 5}\n";

fn millis(nanos: u64) -> f64 {
    nanos as f64 / 1e6
}

fn full(clock: &Clock) -> Fixture {
    let mut fixture = Fixture::new(RULES);
    (0..KEYS).for_each(|user| drop(fixture.hit(&format!("user={user}"), clock.now())));
    assert_eq!(fixture.engine.keys(), KEYS as usize);
    fixture
}

#[test]
#[ignore = "a measurement"]
fn measures_write_and_restore_of_a_million_keys() {
    let clock = Clock::start();
    let fixture = full(&clock);
    let plan = plan();
    let path = state(&plan).join("tables");
    let here = Moment::here(BOOT_ID_FILE.as_ref());
    for _ in 0..3 {
        let begin = read_boot_nanos();
        let bytes = write_tables(&path, KEY, &fixture.engine, clock.now(), &here, true).unwrap();
        let wrote = read_boot_nanos() - begin;
        let (begin, other) = (read_boot_nanos(), engine());
        let back = read_tables(&path, KEY, &other, &Moment::here(BOOT_ID_FILE.as_ref()), ANY_SIZE).unwrap();
        let read = read_boot_nanos() - begin;
        assert!(back.entries >= u64::from(KEYS));
        println!("{bytes} bytes written in {:.0} ms, read in {:.0} ms", millis(wrote), millis(read));
    }
    fs::write(state(&plan).join("hash-key"), KEY.0).unwrap();
    let begin = read_boot_nanos();
    let process = Process::start(&mut plan.command("log"));
    let mut daemon = Daemon { process, plan };
    let mut wire = eventually("it answers", || UnixStream::connect(daemon.socket()).ok().map(Wire::over));
    assert_eq!(wire.ask(&hello())[0], 0);
    println!("serving {:.0} ms after its start", millis(read_boot_nanos() - begin));
    daemon.await_log(&["restored the state"]);
    sleep(Duration::from_secs(1));
    println!("{} KiB resident", daemon.process.resident_kib());
    let begin = read_boot_nanos();
    daemon.stop();
    println!("ended {:.0} ms after TERM", millis(read_boot_nanos() - begin));
}
