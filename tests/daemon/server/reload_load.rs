//! Ten reloads per second under load: all requests succeed, unchanged rules keep state, memory is stable.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use tidegate::clock::read_boot_nanos;

use super::daemon::{Plan, RULES, SetOnDrop, eventually};
use super::msgpack::frame;
use super::wire::{Wire, hit, verdict_of};

/// Rules that differ each time, besides the unchanged one.
fn changing(lap: usize) -> String {
    let rule =
        |number: usize| format!("- {{name: r{number}, key: [other], rate: {}/s}}\n", lap % 7 + number + 1);
    let rules: String = (lap % 3..300).map(rule).collect();
    format!("domain: api\nlimits:\n{rules}")
}

/// Sends requests of its users in rounds; returns how often each was allowed, and the number of rounds.
fn load(mut wire: Wire, client: usize, done: &AtomicBool) -> (Vec<u32>, usize) {
    let mut granted = vec![0; USERS];
    let mut rounds = 0;
    while !done.load(Ordering::Relaxed) || rounds < 10 {
        let requests = (0..USERS).flat_map(|user| frame(&hit(user as u64, &format!("c{client}u{user}"))));
        wire.send_bytes(&requests.collect::<Vec<u8>>());
        for _ in 0..USERS {
            let reply = wire.hear().expect("a reply to every request");
            let user = usize::try_from(reply[1].as_u64().unwrap()).unwrap();
            assert_eq!(reply[3], "per-user", "{reply}");
            granted[user] += u32::from(verdict_of(&reply) == 0);
        }
        rounds += 1;
        thread::sleep(Duration::from_millis(2));
    }
    (granted, rounds)
}

#[test]
fn reloads_under_load_leave_unchanged_rules_alone() {
    let mut plan = Plan::new().rules("other.yaml", &changing(0));
    plan.arguments = vec!["--threads".into(), "2".into()];
    let daemon = plan.start();
    let done = AtomicBool::new(false);
    let (early, late) = thread::scope(|scope| {
        let done = &done;
        let stops = SetOnDrop(done);
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let wire = daemon.greeted();
                scope.spawn(move || load(wire, client, done))
            })
            .collect();
        let (mut early, mut late) = (0, 0);
        for lap in 1..=LAPS {
            let begin = read_boot_nanos();
            let text = if lap % 10 == 9 { "domain: api\nlimits: [".to_owned() } else { changing(lap) };
            fs::write(daemon.plan.path("rules/other.yaml"), text).unwrap();
            fs::write(daemon.plan.path("rules/api.yaml"), format!("# {lap}\n{RULES}")).unwrap();
            daemon.process.signal(libc::SIGHUP);
            eventually("it is read again", || {
                (daemon.log().matches("read again").count() >= lap).then_some(())
            });
            match lap {
                _ if lap <= LAPS / 3 => early = early.max(daemon.process.resident_kib()),
                _ => late = late.max(daemon.process.resident_kib()),
            }
            let used = Duration::from_nanos(read_boot_nanos() - begin);
            // Keep the pace, independent of the duration of the reload.
            thread::sleep(Duration::from_millis(100).saturating_sub(used));
        }
        drop(stops);
        for client in clients {
            let (granted, rounds) = client.join().unwrap();
            assert_eq!(granted, vec![5; USERS], "after {rounds} rounds");
        }
        (early, late)
    });
    assert!(late * 4 <= early * 5, "resident: {early} KiB early on, {late} KiB later");
    assert!(daemon.log().contains("it keeps its last good rules"), "some of it was broken");
}

const CLIENTS: usize = 2;
const USERS: usize = 50;
const LAPS: usize = 40;
