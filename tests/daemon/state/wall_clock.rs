//! Steps of the wall clock by an hour, with the daemon running or down, leave intervals unaffected.

use super::faketime::{WallClock, may_fake};
use super::restarts::{of_session, plan};
use crate::prelude::*;

const RULES: &str = "\
domain: api
limits:
  - {name: bucket, match: {k: bucket}, key: [u], rate: 5/h}
  - {name: pace, match: {k: pace}, key: [u], algorithm: leaky_bucket, rate: 5/h}
  - {name: log, match: {k: log}, key: [u], algorithm: sliding_log, rate: 5/h}
  - {name: first, match: {k: first}, key: [u], algorithm: fixed_window, align: first, rate: 5/h}
  - {name: blocked, match: {k: blocked}, key: [u], rate: 5/h, block: 30min}
  - {name: by-hand, match: {k: by-hand}, key: [u], rate: 5/h}
  - {name: aligned, match: {k: aligned}, key: [u], algorithm: fixed_window, rate: 5/h}
  - {name: slides, match: {k: slides}, key: [u], algorithm: sliding_window, rate: 5/h}
  - {name: switched, match: {k: switched}, key: [u], rate: 5/h}
  - {name: soon, match: {k: soon}, key: [u], rate: 5/h}
concurrency:
  - {name: at-once, match: {k: at-once}, key: [u], max: 1, expires: 6s}
";

/// Keys whose waits must not change; for an aligned window, as the clock moves by a whole hour.
const STILL: [&str; 8] = ["bucket", "pace", "log", "first", "blocked", "by-hand", "aligned", "slides"];

const HOUR: i64 = 3_600;

fn request(op: u8, k: &str) -> Value {
    json!([op, 1, "api", [["k", k, "u", "x"]]])
}

fn hit(wire: &mut Wire, k: &str) -> bool {
    verdict_of(&wire.ask(&request(3, k))) == 0
}

/// The decision of a refused key, and the bounds of the end of its wait on the boot-time clock.
#[derive(Clone, Debug)]
struct Refusal {
    k: &'static str,
    /// The verdict, the rule, its limit and its remaining units.
    words: Vec<Value>,
    ends: (u64, u64),
}

impl Refusal {
    fn of_key(wire: &mut Wire, k: &'static str) -> Refusal {
        let begun = read_boot_nanos();
        let reply = wire.ask(&request(4, k));
        let answered = read_boot_nanos();
        assert_eq!(verdict_of(&reply), 1, "{k} is refused: {reply}");
        let words = [2, 3, 4, 6].map(|at| reply[at].clone()).to_vec();
        let wait = reply[8].as_u64().unwrap() * 1_000;
        // A wait is rounded up to 1 µs.
        Refusal { k, words, ends: (begun + wait - 1_000, answered + wait) }
    }

    fn assert_same(&self, later: &Refusal) {
        assert_eq!(self.words, later.words, "{}", self.k);
        // Overrides by operators are stored in Unix time, which is sampled four times per second; on a busy
        // machine the wall clock is known to within some milliseconds.
        let slack = if ["by-hand", "aligned", "slides"].contains(&self.k) { 50_000_000 } else { 0 };
        let meet = self.ends.0 <= later.ends.1 + slack && later.ends.0 <= self.ends.1 + slack;
        assert!(meet, "{}: its wait ended at {:?} and ends at {:?}", self.k, self.ends, later.ends);
    }
}

fn all_refusals(wire: &mut Wire) -> [Refusal; 8] {
    STILL.map(|k| Refusal::of_key(wire, k))
}

fn assert_unmoved(before: &[Refusal], wire: &mut Wire) {
    before.iter().for_each(|refusal| refusal.assert_same(&Refusal::of_key(wire, refusal.k)));
}

fn exhaust(daemon: &Daemon) {
    let mut wire = daemon.greeted();
    for k in ["bucket", "log", "first", "blocked", "aligned", "slides", "switched", "soon"] {
        assert_eq!((0..6).filter(|_| hit(&mut wire, k)).count(), 5, "{k}");
    }
    assert!(hit(&mut wire, "pace") && !hit(&mut wire, "pace"));
    verb(daemon, "/block", &json!({"rule": "api/by-hand", "key": {"u": "x"}, "for_s": 1_200}));
}

fn verb(daemon: &Daemon, path: &str, fields: &Value) {
    let answer = post(daemon, path, &fields.to_string());
    assert_eq!((answer.status, &answer.json()["warning"]), (200, &Value::Null), "{}", answer.body);
}

fn status(daemon: &Daemon) -> Value {
    get(daemon, "/status").json()
}

/// Sets the clock of a running daemon and waits until its Unix times have moved.
fn step(daemon: &Daemon, clock: &mut WallClock, seconds: i64) {
    let read = || status(daemon)["rules"]["last_success"].as_f64().unwrap();
    let before = read();
    clock.step(seconds);
    let moved = |now: f64| (now - before - seconds as f64).abs() < 60.0;
    wait_until("the daemon sees the step", || moved(read()));
}

fn set_while_it_runs(seconds: i64) {
    needs!(may_fake());
    let (plan, mut clock) = plan().rules("api.yaml", RULES).with_wall_clock();
    let daemon = plan.start();
    let mut wire = daemon.greeted();
    exhaust(&daemon);
    let (before, started) = (all_refusals(&mut wire), status(&daemon)["started"].clone());
    verb(&daemon, "/switch", &json!({"rule": "api/switched", "mode": "shadow", "for_s": 1_800}));
    let begun = read_boot_nanos();
    assert!(verdict_of(&wire.ask(&request(1, "at-once"))) == 0, "a lease of six seconds");
    verb(&daemon, "/switch", &json!({"rule": "api/soon", "mode": "shadow", "for_s": 6}));
    step(&daemon, &mut clock, seconds);
    assert_unmoved(&before, &mut wire);
    let status = status(&daemon);
    assert!(status["uptime_s"].as_u64().unwrap() < 600, "{}", status["uptime_s"]);
    assert_eq!(status["started"], started);
    let early = Duration::from_nanos(read_boot_nanos() - begun) < Duration::from_secs(3);
    assert!(!early || verdict_of(&wire.ask(&request(4, "at-once"))) == 1, "the lease is still there");
    assert!(hit(&mut wire, "switched"), "the switch is still there");
    let steps_back = get(&daemon, "/metrics").body.contains("\ntidegate_clock_steps_back_total 1\n");
    assert_eq!(steps_back, seconds < 0);
    if seconds < 0 {
        daemon.await_log(&["the wall clock was set back", "by_seconds=3"]);
    }
    // A lease and a switch end with a tick, never before their time.
    let assert_due =
        |what: &str| assert!(read_boot_nanos() - begun > 5_990_000_000, "{what} before its time");
    wait_until("the lease ends", || verdict_of(&wire.ask(&request(4, "at-once"))) == 0);
    assert_due("the lease");
    wait_until("the switch ends", || !hit(&mut wire, "soon"));
    assert_due("the switch");
    daemon.stopped();
}

#[test]
fn ignores_wall_clock_forward_step_while_running() {
    set_while_it_runs(HOUR);
}

#[test]
fn ignores_wall_clock_backward_step_while_running() {
    set_while_it_runs(-HOUR);
}

/// Sets the clock while a daemon runs, then while none does.
fn set_while_it_is_away(seconds: i64) {
    needs!(may_fake());
    let (plan, mut clock) = plan().rules("api.yaml", RULES).with_wall_clock();
    let daemon = plan.start();
    exhaust(&daemon);
    let before = all_refusals(&mut daemon.greeted());
    let held = of_session(&daemon, 1).ask(&request(1, "at-once"));
    assert_eq!(verdict_of(&held), 0);
    verb(&daemon, "/switch", &json!({"rule": "api/switched", "mode": "shadow", "for_s": 1_800}));
    let begun = read_boot_nanos();
    // Stored overrides have wall-clock ends: the daemon writes them again for the new clock.
    let kept = || fs::read_to_string(daemon.plan.path("state/switches")).unwrap();
    let first = kept();
    step(&daemon, &mut clock, seconds);
    wait_until("orders are written again", || kept() != first);
    let daemon = daemon.stopped().start();
    daemon.await_log(&["restored the state"]);
    assert_unmoved(&before, &mut daemon.greeted());
    assert!(hit(&mut daemon.greeted(), "switched"), "the switch is still there");
    let plan = daemon.stopped();
    clock.step(seconds);
    let daemon = plan.start();
    daemon.await_log(&["restored the state"]);
    let mut wire = of_session(&daemon, 1);
    // Operators' overrides end by the wall clock: the step decides whether they have expired.
    for refusal in before.iter().filter(|refusal| refusal.k != "by-hand") {
        refusal.assert_same(&Refusal::of_key(&mut wire, refusal.k));
    }
    let early = Duration::from_nanos(read_boot_nanos() - begun) < Duration::from_secs(3);
    assert!(!early || verdict_of(&wire.ask(&request(4, "at-once"))) == 1, "the lease is still there");
    wait_until("the lease ends", || verdict_of(&wire.ask(&request(4, "at-once"))) == 0);
    let status = status(&daemon);
    assert!(status["uptime_s"].as_u64().unwrap() < 600, "{}", status["uptime_s"]);
    daemon.stopped();
}

#[test]
fn ignores_wall_clock_forward_step_while_down() {
    set_while_it_is_away(HOUR);
}

#[test]
fn ignores_wall_clock_backward_step_while_down() {
    set_while_it_is_away(-HOUR);
}

/// The clock is a day ahead while callers spend their windows, then right again.
#[test]
fn brief_clock_error_bounds_refusal_by_window() {
    needs!(may_fake());
    let (plan, mut clock) = plan().rules("api.yaml", RULES).with_wall_clock();
    let daemon = plan.start();
    step(&daemon, &mut clock, 24 * HOUR);
    let mut wire = daemon.greeted();
    for k in ["aligned", "slides"] {
        assert_eq!((0..6).filter(|_| hit(&mut wire, k)).count(), 5, "{k}");
    }
    step(&daemon, &mut clock, -24 * HOUR);
    for (k, longest) in [("aligned", 3_600), ("slides", 7_200)] {
        let reply = wire.ask(&request(4, k));
        assert_eq!(verdict_of(&reply), 1, "{k} was used up: {reply}");
        let wait = reply[8].as_u64().unwrap();
        assert!(wait <= longest * 1_000_000, "{k} is refused for {wait} µs");
    }
    daemon.stopped();
}
