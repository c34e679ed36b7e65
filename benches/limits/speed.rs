//! Time per decision with a million keys, all contestants in turn.

use crate::beside::Governor;
use crate::contestant::{HITS, Limits, MEMORY_BYTES};
use crate::report::{Bound, Row};
use crate::rules;
use crate::stopwatch::cpu_nanos;
use crate::workload::{USERS, Users};

/// A contestant and the time of its decisions in each repetition.
struct Contestant {
    name: &'static str,
    run: Run,
    nanos: Vec<f64>,
}

/// Makes that many decisions for drawn callers.
type Run = Box<dyn FnMut(&mut Users, u32)>;

/// Fills all, then measures them in turn; each repetition starts with another.
pub(crate) fn run(reps: usize) -> Vec<Row> {
    let mut contestants = contestants();
    let mut users = Users::uniform(1);
    for rep in 0..reps {
        let count = contestants.len();
        for turn in 0..count {
            let contestant = &mut contestants[(turn + rep) % count];
            // Warm the caches.
            (contestant.run)(&mut users, DECISIONS / 10);
            let nanos = cpu_nanos(|| (contestant.run)(&mut users, DECISIONS));
            contestant.nanos.push(nanos / f64::from(DECISIONS));
        }
    }
    rows(&contestants)
}

fn contestants() -> Vec<Contestant> {
    let of = |name: &'static str, rules: &str, hits: u32| {
        let mut limits = Limits::new(rules, MEMORY_BYTES).filled(hits);
        let run = move |users: &mut Users, decisions: u32| {
            limits.run(users, decisions);
            limits.assert_few_refused();
        };
        Contestant { name, run: Box::new(run), nanos: Vec::new() }
    };
    let mut governor = Governor::new().filled(USERS);
    let mut own_clock = Governor::with_own_clock().filled(USERS);
    vec![
        of(TOKEN_BUCKET, &rules::one(rules::TOKEN_BUCKET), 1),
        Contestant {
            name: GOVERNOR,
            run: Box::new(move |users, decisions| governor.run(users, decisions)),
            nanos: Vec::new(),
        },
        Contestant {
            name: OWN_CLOCK,
            run: Box::new(move |users, decisions| own_clock.run(users, decisions)),
            nanos: Vec::new(),
        },
        of(LEAKY_BUCKET, &rules::one(rules::LEAKY_BUCKET), 2),
        of(FIXED_WINDOW, &rules::one(rules::FIXED_WINDOW), 1),
        of(SLIDING_LOG, &rules::one(rules::SLIDING_LOG), HITS),
        of(ONE_BUCKET, &rules::one(&rules::sliding_window(1)), 2),
        of(TEN_BUCKETS, &rules::one(&rules::sliding_window(10)), 20),
        of(SIXTY_BUCKETS, &rules::one(&rules::sliding_window(60)), 20),
        of(THREE_RULES, &rules::three(), 1),
        of(FEW_RULES, &rules::many(33), 1),
        of(MANY_RULES, &rules::many(10_000), 1),
    ]
}

fn rows(contestants: &[Contestant]) -> Vec<Row> {
    let nanos = |name: &str| {
        let found = contestants.iter().find(|contestant| contestant.name == name);
        found.map_or(&[][..], |contestant| &contestant.nanos)
    };
    let beside = |one: &str, other: &str| {
        let figure = format!("CPU of a decision, 1 M keys: {one}");
        Row::beside(&figure, "ns", nanos(one), other, nanos(other))
    };
    let row = |one: &str, other: &str, most: f64| beside(one, other).must(Bound::AtMost(most));
    let mut rows = vec![row(TOKEN_BUCKET, GOVERNOR, 1.0), beside(TOKEN_BUCKET, OWN_CLOCK)];
    for name in [LEAKY_BUCKET, FIXED_WINDOW, ONE_BUCKET, TEN_BUCKETS] {
        rows.push(row(name, TOKEN_BUCKET, 2.0));
    }
    rows.push(row(SIXTY_BUCKETS, TOKEN_BUCKET, 1.8));
    rows.push(row(SLIDING_LOG, TOKEN_BUCKET, 2.5));
    rows.push(row(THREE_RULES, TOKEN_BUCKET, 1.6));
    rows.push(row(MANY_RULES, FEW_RULES, 1.1));
    rows
}

const TOKEN_BUCKET: &str = "token bucket";
const GOVERNOR: &str = "governor";
const OWN_CLOCK: &str = "governor, reading its clock";
const LEAKY_BUCKET: &str = "leaky bucket";
const FIXED_WINDOW: &str = "fixed window";
const SLIDING_LOG: &str = "sliding log, N = 100";
const ONE_BUCKET: &str = "sliding window, 1 bucket";
const TEN_BUCKETS: &str = "sliding window, 10 buckets";
const SIXTY_BUCKETS: &str = "sliding window, 60 buckets";
const THREE_RULES: &str = "three token buckets";
const FEW_RULES: &str = "33 rules, one matches";
const MANY_RULES: &str = "10 000 rules, one matches";

/// Decisions of one contestant in one repetition.
const DECISIONS: u32 = 300_000;
