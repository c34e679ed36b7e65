//! Tests of the tests: what is wrong on purpose does not pass.

use crate::cases::{self, Case};
use crate::claims::Claim;
use crate::judge::seen;
use crate::model::{Flaw, Model};

/// What does not hold, on seed 1: the case and the claim.
fn fails(flaw: Flaw) -> Vec<(Case, Claim)> {
    let all = cases::all().into_iter().flat_map(|case| {
        let claims = seen(&case, 1, |setting| Model::new(flaw, setting)).concat();
        claims.into_iter().map(move |claim| (case.clone(), claim)).collect::<Vec<_>>()
    });
    all.filter(|(_, claim)| !claim.holds()).collect()
}

#[test]
fn show() {
    for flaw in [
        Flaw::Sound,
        Flaw::Frozen,
        Flaw::AtRest,
        Flaw::BangBang,
        Flaw::SteepRamp,
        Flaw::OneSample,
        Flaw::LongWindow,
        Flaw::IntegerRest,
        Flaw::UngatedBrake,
        Flaw::UnfedBrake,
    ] {
        println!("{flaw:?}");
        for (case, claim) in fails(flaw) {
            println!("    {}: {} {} but {:.4}", case.name, claim.what, claim.must, claim.seen);
        }
    }
}
