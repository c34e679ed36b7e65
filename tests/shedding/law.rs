//! The law's exact table, as the engine keeps it: a pool whose utilization is told by a signal.

use std::sync::Arc;

use tidegate::clock::Now;
use tidegate::engine::{Descriptors, Engine, EngineAnswer, Op, Request, Session, Verdict};

use crate::plan::{MILLI, SECOND};
use crate::real::{engine, open, web};

/// A pool of one slot with one priority to shed, and a signal that counts.
fn pool(workers: &str, secret: u8) -> (Arc<Engine>, Session) {
    let rules = format!(
        "domain: api\npriorities: [critical, other]\nshed:\n- pool: web\n  workers: {workers}\n  \
         signals: {{load: {{use: true, map: [[0%, 0%], [100%, 100%]]}}}}\n"
    );
    let engine = engine(&rules, secret);
    let session = open(&engine, 1);
    (engine, session)
}

/// Ticks until a second, under a signal of so many thousandths.
fn pass(engine: &Engine, session: &Session, permille: u16, from: u64, until: u64) {
    for at in (from * SECOND..=until * SECOND).step_by(250 * MILLI as usize) {
        engine.record_pushed_signal(session, "web", "load", permille, Now::at_nanos(at)).unwrap();
        engine.tick(Now::at_nanos(at));
    }
}

#[test]
fn s_is_what_the_law_says_to_the_second() {
    let (engine, session) = pool("{leak: 0/1}", 7);
    let mut was = 0;
    let until = [(0, -28.0 / 120.0), (14, -14.0 / 120.0), (28, 0.0), (58, 0.25), (148, 1.0), (170, 1.0)];
    for (second, expected) in until {
        pass(&engine, &session, 1_000, was, second);
        let s = web(&engine, second * SECOND).severity;
        assert!((s - expected).abs() < 1e-9, "s after {second} s is {s}, not {expected}");
        was = second;
    }
    pass(&engine, &session, 500, 170, 170 + 420);
    let s = web(&engine, 590 * SECOND).severity;
    assert!(s.abs() < 1e-9, "back at 0 after 420 s at 0.5: {s}");
}

#[test]
fn between_good_and_bad_s_holds_without_a_leak() {
    for permille in [700, 750, 800] {
        let (engine, session) = pool("{leak: 0/1}", 7);
        pass(&engine, &session, 1_000, 0, 58);
        pass(&engine, &session, permille, 58, 600);
        let s = web(&engine, 600 * SECOND).severity;
        assert!((s - 0.25).abs() < 1e-9, "{permille}: {s}");
    }
}

#[test]
fn of_149_requests_at_one_a_second_60_and_a_half_are_lost_on_average() {
    let runs = 250;
    let mut lost = 0;
    for secret in 0..runs {
        let (engine, session) = pool("{stripe_exact: true}", secret as u8);
        let mut decider = engine.decider();
        for second in 0..149 {
            pass(&engine, &session, 1_000, second, second);
            let attributes = [("user", "u1")];
            let now = Now::at_nanos(second * SECOND);
            let request = Request {
                priority: Some("other"),
                session: Some(&session),
                ..Request::new(Op::Hit, "api", Descriptors::from_attributes(&attributes))
            };
            let EngineAnswer::Decided(decision) = decider.decide(&request, now) else { panic!() };
            lost += u32::from(decision.verdict == Verdict::Shed);
        }
    }
    // One run has a standard deviation of √(121/6) ≈ 4.5, their mean one of 0.28.
    let mean = f64::from(lost) / f64::from(runs);
    assert!((mean - 60.5).abs() < 1.2, "{mean}");
}
