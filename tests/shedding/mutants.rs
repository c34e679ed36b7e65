//! Tests of the tests: what is wrong on purpose does not pass.

use crate::cases::{self, Case};
use crate::claims::Claim;
use crate::judge::{leave, seen};
use crate::model::{Flaw, Model};

/// What does not hold under a model, on seed 1: the case and the claim.
fn fails(flaw: Flaw, cases: Vec<Case>) -> Vec<(Case, Claim)> {
    let all = cases.into_iter().flat_map(|case| {
        let claims = seen(&case, 1, |setting| Model::new(flaw, setting)).concat();
        claims.into_iter().map(move |claim| (case.clone(), claim))
    });
    all.filter(|(_, claim)| !claim.holds()).collect()
}

/// Where its flaw is to be seen it fails.
#[track_caller]
fn check(flaw: Flaw, case: &str, what: &str) {
    let cases = cases::all().into_iter().filter(|known| known.name == case).collect();
    let failed = fails(flaw, cases);
    assert!(failed.iter().any(|(_, claim)| claim.what == what), "{flaw:?} passes “{case}: {what}”");
}

#[test]
#[ignore = "it asserts nothing: it leaves behind all that the mutants fail at"]
fn all_that_fails() {
    let line = |flaw: Flaw, (case, claim): &(Case, Claim)| {
        format!("| {flaw:?} | {} | {} | {} | {:.4} |\n", case.name, claim.what, claim.must, claim.seen)
    };
    let lines = |flaw| fails(flaw, cases::all()).iter().map(|failed| line(flaw, failed)).collect::<String>();
    leave("mutants", &Flaw::ALL.map(lines).concat());
}

#[test]
fn a_sound_model_passes() {
    let cases = cases::all().into_iter().filter(|case| !case.is_extra).collect();
    let failed: Vec<_> = fails(Flaw::Sound, cases).iter().map(|(case, claim)| (case.name, *claim)).collect();
    assert_eq!(failed, []);
}

#[test]
fn a_frozen_s_fails() {
    check(Flaw::Frozen, "1.5×", "s ≤ 0 after the load's end, s");
}

#[test]
fn an_s_that_is_always_at_rest_fails() {
    check(Flaw::AtRest, "1.5×, slow loop alone, leak 0", "first shed within, s");
}

#[test]
fn bang_bang_fails() {
    check(Flaw::BangBang, "90 % GET, 3×", "reversals");
}

#[test]
fn a_ramp_in_three_seconds_fails() {
    check(Flaw::SteepRamp, "90 % GET, 3×", "reversals");
}

#[test]
fn one_sample_in_eight_seconds_fails() {
    check(Flaw::OneSample, "90 % GET, 6×", "reversals");
}

#[test]
fn a_window_of_thirty_seconds_fails() {
    check(Flaw::LongWindow, "1.5×, slow loop alone, leak 0", "first shed within, s");
}

#[test]
fn a_resting_value_in_integers_fails() {
    check(Flaw::IntegerRest, "1.5×", "first shed by the slow loop within, s");
}

#[test]
fn a_brake_without_its_gate_fails() {
    check(Flaw::UngatedBrake, "16 workers at 0.55", "refused");
}

#[test]
fn a_brake_that_does_not_feed_the_slow_loop_fails() {
    check(Flaw::UnfedBrake, "1.5×", "first shed by the slow loop within, s");
}
