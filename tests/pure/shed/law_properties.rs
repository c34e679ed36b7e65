//! Properties of the controller and the probabilities for any reading, step and numbers.

use std::time::Duration;

use proptest::prelude::*;
use tidegate::shed::{Controller, SlowSeverity, chance};

use super::slow_law::EXACT;

/// A possible reading of a source: mostly shares, sometimes nonsense.
fn reading() -> impl Strategy<Value = Option<f64>> {
    prop_oneof![
        6 => (0.0..1.2_f64).prop_map(Some),
        2 => any::<f64>().prop_map(Some),
        1 => Just(None),
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
    #![proptest_config(crate::cases(120))]

    #[test]
    fn severity_stays_in_range_and_moves_slowly(
        steps in proptest::collection::vec((reading(), elapsed()), 1..300), leak in 0.0..0.002_f64,
    ) {
        let law = Controller { leak, ..EXACT };
        let mut severity = SlowSeverity::at_rest(&law);
        for (utilization, elapsed) in steps {
            let before = severity.value();
            severity.step(&law, utilization, elapsed);
            let s = severity.value();
            prop_assert!((-28.0 / 120.0..=1.0).contains(&s), "{s}");
            let covered = elapsed.as_secs_f64().min(2.0);
            prop_assert!((s - before).abs() <= covered / 120.0 + 1e-12, "{before} to {s} in {covered} s");
            if utilization.is_none_or(|u| !u.is_finite() || u < 0.8) {
                prop_assert!(s <= before, "{before} to {s} at {utilization:?}: shed more without need");
            }
            if utilization.is_some_and(|u| u.is_finite() && u >= 0.8) {
                prop_assert!(s >= before);
            }
            prop_assert_eq!(severity.is_at_rest(&law), s <= -28.0 / 120.0);
        }
    }

    #[test]
    fn any_numbers_keep_severity_finite(
        law in any_law(), steps in proptest::collection::vec((reading(), elapsed()), 1..30),
    ) {
        let mut severity = SlowSeverity::at_rest(&law);
        for (utilization, elapsed) in steps {
            severity.step(&law, utilization, elapsed);
            prop_assert!(severity.value() <= 1.0, "{}", severity.value());
        }
    }

    #[test]
    fn step_length_does_not_change_severity(
        readings in proptest::collection::vec(proptest::option::weighted(0.8, 0.0..1.0_f64), 1..100), parts in 1_u32..9,
    ) {
        let (mut whole, mut parted) = (SlowSeverity::at_rest(&EXACT), SlowSeverity::at_rest(&EXACT));
        for utilization in readings {
            let step = Duration::from_nanos(840_000_000);
            whole.step(&EXACT, utilization, step);
            for _ in 0..parts {
                parted.step(&EXACT, utilization, step / parts);
            }
            prop_assert!((whole.value() - parted.value()).abs() < 1e-6);
        }
    }

    #[test]
    fn probability_rises_with_severity_and_falls_with_importance(
        s in -1.0..1.0_f64, more in 0.0..1.0_f64, sheddable in 0_usize..20, place in 0_usize..20,
    ) {
        let is = chance(s, sheddable, place);
        prop_assert!((0.0..=1.0).contains(&is));
        prop_assert!(chance(s + more, sheddable, place) >= is);
        prop_assert!(chance(s, sheddable, place + 1) <= is);
        if s <= 0.0 || place >= sheddable {
            prop_assert_eq!(is.to_bits(), 0.0_f64.to_bits());
        }
        // One priority is shed entirely before the next one is affected.
        if place > 0 && is > 0.0 {
            prop_assert!(chance(s, sheddable, place - 1) >= 1.0);
        }
    }

    #[test]
    fn probability_accepts_any_severity(s in any::<f64>(), sheddable in any::<usize>(), place in any::<usize>()) {
        prop_assert!((0.0..=1.0).contains(&chance(s, sheddable, place)));
    }
}

#[test]
fn nan_sheds_no_request() {
    assert_eq!(chance(f64::NAN, 3, 0).to_bits(), 0.0_f64.to_bits());
    assert_eq!(chance(f64::INFINITY, 3, 3).to_bits(), 0.0_f64.to_bits());
}
