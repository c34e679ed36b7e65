//! The cost of a decision by a fleet rule beside the same local rule.

use std::io;

use crate::contestant::{Limits, MEMORY_BYTES, with_tokens};
use crate::lender;
use crate::report::{Bound, Row};
use crate::rules;
use crate::stopwatch::cpu_nanos;
use crate::workload::{USERS, Users};

pub(crate) fn run(reps: usize) -> io::Result<Vec<Row>> {
    let in_hand = |keys| with_tokens(Limits::in_fleet(&of_fleet(lender::IN_HAND), MEMORY_BYTES), keys);
    let on_credit = || Limits::in_fleet(&of_fleet(lender::ON_CREDIT), MEMORY_BYTES).0.with_keys(USERS);
    Ok(vec![
        beside("20 k keys: fleet, tokens in hand", reps, FEW, in_hand(FEW)),
        // Here only the larger of the two tables exceeds a core's share of the caches.
        beside("45 k keys: fleet, tokens in hand", reps, IN_TOUCH, in_hand(IN_TOUCH)),
        beside("200 k keys: fleet, tokens in hand", reps, IN_TOUCH_MOST, in_hand(IN_TOUCH_MOST)),
        beside("1 M keys: fleet, on credit", reps, USERS, on_credit()),
    ])
}

/// Measures both in turn, alternating the first.
fn beside(what: &str, reps: usize, keys: u32, mut fleet: Limits) -> Row {
    let mut local = Limits::new(&rules::one(rules::TOKEN_BUCKET), MEMORY_BYTES).in_a_hurry().with_keys(keys);
    let mut users = Users::below(keys, 1);
    let (mut of_fleet, mut of_host) = (Vec::new(), Vec::new());
    for rep in 0..2 * reps {
        let mut measure = |limits: &mut Limits, nanos: &mut Vec<f64>| {
            // Warm the caches.
            limits.run(&mut users, DECISIONS / 10);
            nanos.push(cpu_nanos(|| limits.run(&mut users, DECISIONS)) / f64::from(DECISIONS));
        };
        if rep % 2 == 0 {
            measure(&mut fleet, &mut of_fleet);
            measure(&mut local, &mut of_host);
        } else {
            measure(&mut local, &mut of_host);
            measure(&mut fleet, &mut of_fleet);
        }
    }
    fleet.assert_few_refused();
    let figure = format!("CPU of a decision, {what}");
    Row::beside(&figure, "ns", &of_fleet, "token bucket", &of_host).must(Bound::AtMost(1.15))
}

pub(crate) fn of_fleet(terms: &str) -> String {
    rules::one(&format!("{}, scope: fleet, {terms}", rules::TOKEN_BUCKET))
}

/// Few enough that both tables fit in the caches.
const FEW: u32 = 20_000;

/// Keys that one of eight hosts tracks at 100 000 requests/s of a million callers (`--bench fleet`).
const IN_TOUCH: u32 = 45_000;

/// Slightly fewer than a host tracks at most.
const IN_TOUCH_MOST: u32 = 200_000;

/// Decisions of each in one repetition; tokens do not expire within it.
const DECISIONS: u32 = 300_000;
