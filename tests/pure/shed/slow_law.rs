//! The tables of the controller, computed from its formula: from rest to full shedding, back again, and
//! holding.

use std::time::Duration;

use tidegate::shed::{Controller, SlowSeverity, chance};

use super::SECOND;

/// The published controller: no leak.
pub(crate) const EXACT: Controller =
    Controller { good: 0.70, bad: 0.80, after: 28.0, full: 120.0, leak: 0.0 };

/// The severity after some seconds at one utilization.
pub(crate) fn run(
    severity: &mut SlowSeverity,
    law: &Controller,
    utilization: Option<f64>,
    seconds: u32,
) -> f64 {
    for _ in 0..seconds {
        severity.step(law, utilization, SECOND);
    }
    severity.value()
}

pub(crate) fn near(is: f64, expected: f64, what: &str) {
    assert!((is - expected).abs() < 0.000_06, "{what}: {is}, expected {expected}");
}

#[test]
fn full_load_sheds_all_after_148_seconds() {
    // Seconds, s, and the probabilities for four sheddable priorities and for three.
    let table: &[(u32, f64, [f64; 4], [f64; 3])] = &[
        (0, -0.233_33, [0.0; 4], [0.0; 3]),
        (14, -0.116_67, [0.0; 4], [0.0; 3]),
        (28, 0.0, [0.0; 4], [0.0; 3]),
        (29, 0.008_33, [0.033_33, 0.0, 0.0, 0.0], [0.025, 0.0, 0.0]),
        (38, 0.083_33, [0.333_33, 0.0, 0.0, 0.0], [0.25, 0.0, 0.0]),
        (58, 0.25, [1.0, 0.0, 0.0, 0.0], [0.75, 0.0, 0.0]),
        (68, 0.333_33, [1.0, 0.333_33, 0.0, 0.0], [1.0, 0.0, 0.0]),
        (88, 0.5, [1.0, 1.0, 0.0, 0.0], [1.0, 0.5, 0.0]),
        (108, 0.666_67, [1.0, 1.0, 0.666_67, 0.0], [1.0, 1.0, 0.0]),
        (118, 0.75, [1.0, 1.0, 1.0, 0.0], [1.0, 1.0, 0.25]),
        (128, 0.833_33, [1.0, 1.0, 1.0, 0.333_33], [1.0, 1.0, 0.5]),
        (148, 1.0, [1.0; 4], [1.0; 3]),
        (600, 1.0, [1.0; 4], [1.0; 3]),
    ];
    let mut severity = SlowSeverity::at_rest(&EXACT);
    let mut passed = 0;
    for (seconds, s, of_four, of_three) in table {
        let is = run(&mut severity, &EXACT, Some(1.0), seconds - passed);
        passed = *seconds;
        near(is, *s, &format!("s at {seconds} s"));
        for (place, expected) in of_four.iter().enumerate() {
            near(chance(is, 4, place), *expected, &format!("place {place} of 4 at {seconds} s"));
        }
        for (place, expected) in of_three.iter().enumerate() {
            near(chance(is, 3, place), *expected, &format!("place {place} of 3 at {seconds} s"));
        }
    }
}

#[test]
fn slope_depends_on_utilization() {
    // Utilization, severity for each second, seconds for 0 to 1 or from 1 to 0, seconds between rest and 0.
    let table: &[(f64, f64, u32, f64)] = &[
        (0.81, 0.000_417, 2_400, 560.0),
        (0.82, 0.000_833, 1_200, 280.0),
        (0.85, 0.002_083, 480, 112.0),
        (0.90, 0.004_167, 240, 56.0),
        (0.95, 0.006_250, 160, 37.3),
        (1.00, 0.008_333, 120, 28.0),
        (0.69, -0.000_119, 8_400, 1_960.0),
        (0.65, -0.000_595, 1_680, 392.0),
        (0.60, -0.001_190, 840, 196.0),
        (0.50, -0.002_381, 420, 98.0),
        (0.35, -0.004_167, 240, 56.0),
        (0.00, -0.008_333, 120, 28.0),
        // Above one counts as one, and below zero as zero.
        (7.00, 0.008_333, 120, 28.0),
        (f64::MAX, 0.008_333, 120, 28.0),
        (-0.50, -0.008_333, 120, 28.0),
        (f64::MIN, -0.008_333, 120, 28.0),
    ];
    for (utilization, per_second, whole_way, to_or_from_rest) in table {
        let what = format!("utilization {utilization}");
        let mut severity = SlowSeverity::at_rest(&EXACT);
        run(&mut severity, &EXACT, Some(1.0), 100);
        let before = severity.value();
        let step = run(&mut severity, &EXACT, Some(*utilization), 1) - before;
        assert!((step - per_second).abs() < 0.000_000_6, "{what}: {step}");
        assert!((28.0 / 120.0 / step.abs() - to_or_from_rest).abs() < 0.05, "{what}: {step}");
        // The whole way, from one end to the other, and a second less.
        let mut severity = SlowSeverity::at_rest(&EXACT);
        let start = if *per_second > 0.0 { 28 } else { 148 };
        run(&mut severity, &EXACT, Some(1.0), start);
        let end = if *per_second > 0.0 { 1.0 } else { 0.0 };
        let short = run(&mut severity, &EXACT, Some(*utilization), whole_way - 1);
        assert!((short - end).abs() > step.abs() * 0.9, "{what}: already at {short}");
        near(run(&mut severity, &EXACT, Some(*utilization), 1), end, &what);
    }
}

#[test]
fn holds_or_leaks_between_good_and_bad() {
    for utilization in [0.70, 0.75, 0.80] {
        let mut severity = SlowSeverity::at_rest(&EXACT);
        let before = run(&mut severity, &EXACT, Some(1.0), 58);
        let after = run(&mut severity, &EXACT, Some(utilization), 542);
        assert!((before - after).abs() < f64::EPSILON, "{utilization} moves it from {before} to {after}");
    }
    let leaking = Controller::default();
    // Seconds until s = 0.25 is 0: 450 at 1/1800 a second, but not at `bad`, where such a host settles.
    for (utilization, s) in [(0.70, 0.0), (0.75, 0.0), (0.80, 0.25)] {
        let mut severity = SlowSeverity::at_rest(&leaking);
        run(&mut severity, &leaking, Some(1.0), 58);
        near(run(&mut severity, &leaking, Some(utilization), 450), s, &format!("leak at {utilization}"));
    }
}

#[test]
fn holds_thirty_seconds_without_sample_then_recovers() {
    for none in [None, Some(f64::NAN), Some(f64::INFINITY), Some(f64::NEG_INFINITY)] {
        let mut severity = SlowSeverity::at_rest(&EXACT);
        let full = run(&mut severity, &EXACT, Some(1.0), 148);
        near(full, 1.0, "before");
        near(run(&mut severity, &EXACT, none, 30), 1.0, "held");
        near(run(&mut severity, &EXACT, none, 1), 1.0 - 0.004_167, "a second of recovery");
        near(run(&mut severity, &EXACT, none, 239), 0.0, "as at 0.35");
        // One reading restarts the thirty seconds.
        let before = run(&mut severity, &EXACT, Some(0.75), 1);
        near(run(&mut severity, &EXACT, none, 30), before, "held again");
        run(&mut severity, &EXACT, none, 57);
        assert!(severity.is_at_rest(&EXACT));
    }
}

#[test]
fn hold_ends_within_a_step() {
    let mut severity = SlowSeverity::at_rest(&EXACT);
    run(&mut severity, &EXACT, Some(1.0), 148);
    for _ in 0..60 {
        severity.step(&EXACT, None, Duration::from_millis(700));
    }
    near(severity.value(), 1.0 - 12.0 * 0.5 / 120.0, "42 s, of which 12 count");
}

#[test]
fn sleep_counts_as_two_seconds() {
    let mut severity = SlowSeverity::at_rest(&EXACT);
    let before = severity.value();
    severity.step(&EXACT, Some(1.0), Duration::from_secs(3_600));
    near(severity.value() - before, 2.0 / 120.0, "one step");
    // Sleep does not count as thirty seconds without a reading.
    let before = severity.value();
    severity.step(&EXACT, None, Duration::from_secs(3_600));
    assert!((severity.value() - before).abs() < f64::EPSILON);
    severity.step(&EXACT, Some(1.0), Duration::ZERO);
    assert!((severity.value() - before).abs() < f64::EPSILON, "no time has passed");
}

#[test]
fn changed_controller_clamps_severity() {
    let deep = Controller { after: 60.0, ..EXACT };
    let mut severity = SlowSeverity::at_rest(&deep);
    near(severity.value(), -0.5, "deeper");
    assert!(severity.is_at_rest(&EXACT), "nothing would lower it");
    severity.step(&EXACT, Some(0.0), SECOND);
    assert_eq!(severity, SlowSeverity::at_rest(&EXACT));
    assert!(!severity.is_at_rest(&deep));
}
