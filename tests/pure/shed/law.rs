//! The controller and the probabilities: the published tables, every step against the formula of the design, and any
//! numbers at all.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use tidegate::shed::{Controller, SlowSeverity, chance};

use super::SECOND;

/// The published controller: no leak.
const EXACT: Controller = Controller { good: 0.70, bad: 0.80, after: 28.0, full: 120.0, leak: 0.0 };

/// The severity after some seconds at one utilization.
fn run(severity: &mut SlowSeverity, utilization: Option<f64>, seconds: u32) -> f64 {
    (0..seconds).for_each(|_| severity.step(&EXACT, utilization, SECOND));
    severity.value()
}

fn near(is: f64, expected: f64, what: &str) {
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
    let (mut severity, mut passed) = (SlowSeverity::at_rest(&EXACT), 0);
    for (seconds, s, of_four, of_three) in table {
        let is = run(&mut severity, Some(1.0), seconds - passed);
        passed = *seconds;
        near(is, *s, &format!("s at {seconds} s"));
        for (count, chances) in [(4, &of_four[..]), (3, of_three)] {
            for (place, expected) in chances.iter().enumerate() {
                near(chance(is, count, place), *expected, &format!("{place} of {count} at {seconds} s"));
            }
        }
    }
}

#[test]
fn holds_thirty_seconds_without_sample_then_recovers() {
    for none in [None, Some(f64::NAN), Some(f64::INFINITY), Some(f64::NEG_INFINITY)] {
        let mut severity = SlowSeverity::at_rest(&EXACT);
        run(&mut severity, Some(1.0), 148);
        near(run(&mut severity, none, 30), 1.0, "held");
        near(run(&mut severity, none, 240), 0.0, "as at 0.35");
        // One reading restarts the thirty seconds.
        let before = run(&mut severity, Some(0.75), 1);
        near(run(&mut severity, none, 30), before, "held again");
        run(&mut severity, none, 57);
        assert!(severity.is_at_rest(&EXACT));
    }
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

#[test]
fn nan_sheds_no_request() {
    assert_eq!(chance(f64::NAN, 3, 0).to_bits(), 0.0_f64.to_bits());
    assert_eq!(chance(f64::INFINITY, 3, 3).to_bits(), 0.0_f64.to_bits());
}

/// A step as the design has it: s, and the seconds without a reading.
fn stepped((s, silent): (f64, f64), leak: f64, utilization: Option<f64>, elapsed: f64) -> (f64, f64) {
    let dt = elapsed.min(2.0);
    let (slope, dt, silent) = match utilization.filter(|u| u.is_finite()) {
        Some(u) if u < 0.7 => ((u / 0.7 - 1.0).clamp(-1.0, 1.0) / 120.0, dt, 0.0),
        Some(u) if u <= 0.8 => (-leak, dt, 0.0),
        Some(u) => (((u - 0.8) / 0.2).min(1.0) / 120.0, dt, 0.0),
        None => {
            let held = dt.min(30.0 - silent);
            (-0.5 / 120.0, dt - held, silent + held)
        }
    };
    ((s + dt * slope).clamp(-28.0 / 120.0, 1.0), silent)
}

/// A possible reading of a source: mostly shares, sometimes nonsense.
fn reading() -> impl Strategy<Value = Option<f64>> {
    prop_oneof![
        6 => (0.0..1.2_f64).prop_map(Some),
        1 => prop::sample::select(vec![0.70, 0.75, 0.80]).prop_map(Some),
        2 => any::<f64>().prop_map(Some),
        2 => Just(None),
        1 => prop_oneof![Just(f64::NAN), Just(f64::INFINITY), Just(f64::NEG_INFINITY), Just(f64::MAX)].prop_map(Some),
    ]
}

fn elapsed() -> impl Strategy<Value = Duration> {
    prop_oneof![
        4 => Just(Duration::from_secs(1)),
        2 => (0_u64..3_000).prop_map(Duration::from_millis),
        1 => any::<u64>().prop_map(Duration::from_nanos),
        1 => Just(Duration::MAX),
    ]
}

fn any_law() -> impl Strategy<Value = Controller> {
    let any_number = || prop_oneof![any::<f64>(), Just(0.0), Just(1.0), Just(f64::NAN), 0.0..200.0_f64];
    (any_number(), any_number(), any_number(), any_number(), any_number())
        .prop_map(|(good, bad, after, full, leak)| Controller { good, bad, after, full, leak })
}

proptest! {
    #![proptest_config(crate::rng::cases(120))]

    #[test]
    fn severity_follows_the_formula(steps in vec((reading(), elapsed()), 1..300), leak in 0.0..0.002_f64) {
        let law = Controller { leak, ..EXACT };
        let (mut severity, mut expected) = (SlowSeverity::at_rest(&law), (-28.0 / 120.0, 0.0));
        for (utilization, elapsed) in steps {
            severity.step(&law, utilization, elapsed);
            expected = stepped(expected, leak, utilization, elapsed.as_secs_f64());
            prop_assert!((severity.value() - expected.0).abs() < 1e-6, "{severity:?}, not {expected:?}");
            prop_assert_eq!(severity.is_at_rest(&law), severity.value() <= -28.0 / 120.0);
        }
    }

    #[test]
    fn any_numbers_keep_severity_finite(law in any_law(), steps in vec((reading(), elapsed()), 1..30)) {
        let mut severity = SlowSeverity::at_rest(&law);
        for (utilization, elapsed) in steps {
            severity.step(&law, utilization, elapsed);
            prop_assert!(severity.value() <= 1.0, "{}", severity.value());
        }
    }

    #[test]
    fn probability_is_that_of_the_design(s in any::<f64>(), usual in -1.0..1.5_f64, sheddable in 0_usize..20, place in any::<usize>()) {
        prop_assert!((0.0..=1.0).contains(&chance(s, sheddable, place)));
        let place = place % 21;
        let share = if place < sheddable { sheddable as f64 * usual.max(0.0) - place as f64 } else { 0.0 };
        prop_assert!((chance(usual, sheddable, place) - share.clamp(0.0, 1.0)).abs() < 1e-9);
    }
}
