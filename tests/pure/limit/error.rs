//! The error rate of the sliding window: its decisions against those of a sliding log over a synthetic load.
//!
//! Every caller has a limit of 100 a minute. Requests arrive singly or in bursts of 1 to 19, with gaps drawn
//! from an exponential distribution, at a mean rate that is a share of the limit. A log records exactly the
//! requests that the window allowed; a decision is wrong when the log would have decided otherwise. A wrongly
//! allowed request exceeds 100 in a minute; a wrongly refused one would not have. A caller above the limit is
//! always at its edge, where an error of one makes a wrong decision: so the size of the errors is printed
//! too, as the largest number in any minute.
//!
//! `cargo test --test pure limit::error -- --nocapture` prints the table.

use tidegate::clock::Now;
use tidegate::limit::{Outcome, sliding_log, sliding_window};

use crate::rng::Rng;

/// A name, mean rates of callers in percent of the limit (one is drawn for each caller), the longest burst, and
/// whether refused requests count as allowed ones do (`refused: counted`).
type Load = (&'static str, &'static [u64], u64, bool);

/// Wrong decisions, and the number of all.
#[derive(Clone, Copy, Debug, Default)]
struct Mistakes {
    requests: u64,
    let_through: u64,
    held_back: u64,
    /// The most allowed requests in any minute.
    most: u64,
}

impl Mistakes {
    fn per_million(self) -> u64 {
        (self.let_through + self.held_back) * 1_000_000 / self.requests
    }
}

/// The loads of docs/algorithms.md, from harmless to worst. The first is the usual load of a host: nearly all callers
/// far below the limit, and one in 200 without pause; in the second some of the others come near the limit, too.
const LOADS: [Load; 6] = [
    ("1 to 20 %, one caller in 200 at 5000 %", &MOSTLY_QUIET, 1, false),
    ("a long tail, refused requests counted", &LONG_TAIL, 1, true),
    ("all at 80 %", &[80], 1, false),
    ("all at 50 %, in bursts", &[50], 19, false),
    ("all at 100 %, in bursts", &[100], 19, false),
    ("all at 300 %", &[300], 1, false),
];

/// Runs `callers` callers for an hour each.
fn mistakes((_, percents, burst_max, counted): Load, buckets: u8, callers: u64) -> Mistakes {
    let window_quota = sliding_window::SlidingWindowQuota::new(LIMIT, WINDOW_NANOS, buckets).unwrap();
    // Counts beyond the limit, to measure by how much the window exceeds it.
    let log_quota = sliding_log::SlidingLogQuota::new(sliding_log::COUNT_MAX, WINDOW_NANOS).unwrap();
    let mut mistakes = Mistakes::default();
    for caller in 0..callers {
        // The same requests for every number of buckets.
        let mut rng = Rng::new(SEED ^ (caller << 32));
        let percent = *rng.pick(percents);
        let burst_mean = burst_max.div_ceil(2);
        let gap_mean = WINDOW_NANOS * 100 * burst_mean / (percent * u64::from(LIMIT));
        let mut window = sliding_window::SlidingWindowState::default();
        let mut log = sliding_log::SlidingLogState::default();
        let mut nanos = gap(&mut rng, gap_mean);
        while nanos < 60 * WINDOW_NANOS {
            let now = Now::at_nanos(nanos);
            for _ in 0..=rng.below(burst_max) {
                let passes = window.judge(&window_quota, now, 1) == Outcome::Pass;
                let level = log.level(&log_quota, now);
                let truly = level.limit - level.remaining;
                let should = truly < u64::from(LIMIT);
                if passes || counted {
                    window.charge(&window_quota, now, 1);
                    log.charge(&log_quota, now, 1);
                }
                if passes {
                    mistakes.most = mistakes.most.max(truly + 1);
                }
                mistakes.requests += 1;
                mistakes.let_through += u64::from(passes && !should);
                mistakes.held_back += u64::from(!passes && should);
            }
            nanos += gap(&mut rng, gap_mean);
        }
    }
    mistakes
}

#[test]
fn more_buckets_reduce_error() {
    // Factor for the number of callers: docs/algorithms.md has the figures for 4, also with ten buckets.
    let times: Option<u64> = std::env::var("TIMES").ok().map(|times| times.parse().unwrap());
    println!("seed {SEED}; wrong decisions per million (let through + held back), most in a minute");
    for load in LOADS {
        println!("{}:", load.0);
        let numbers: &[u8] = if times.is_some() { &[1, 10, 60] } else { &[1, 60] };
        let measured = numbers.iter().map(|&buckets| {
            // A load with a rare caller needs several of that kind.
            let callers = if load.1.len() > 1 { 50 } else { 5 } * times.unwrap_or(1);
            let seen = mistakes(load, buckets, callers);
            println!("  {buckets:2} buckets: {:6} per million, {seen:?}", seen.per_million());
            assert!(seen.most <= 2 * u64::from(LIMIT));
            seen.per_million()
        });
        let measured: Vec<u64> = measured.collect();
        let (few, many) = (measured[0], measured[measured.len() - 1]);
        assert!(many < few || few == 0, "{}: {few} with 1 bucket, {many} with 60", load.0);
    }
}

#[test]
fn no_error_far_below_the_limit() {
    assert_eq!(mistakes(("all at 20 %", &[20], 1, false), 1, 100).per_million(), 0);
}

/// An exponential gap: the time to the next of many independent arrivals.
fn gap(rng: &mut Rng, mean: u64) -> u64 {
    let even = ((rng.word() >> 11) + 1) as f64 / (1_u64 << 53) as f64;
    (-even.ln() * mean as f64) as u64
}

const LIMIT: u32 = 100;
const WINDOW_NANOS: u64 = 60_000_000_000;
const SEED: u64 = 20_260_101;

const MOSTLY_QUIET: [u64; 200] = {
    let mut percents = [1; 200];
    let mut caller = 80;
    while caller < 199 {
        percents[caller] = if caller < 140 { 5 } else { 20 };
        caller += 1;
    }
    percents[199] = 5_000;
    percents
};

/// Eight callers in ten at a hundredth of the limit, one in twenty from half of it upwards.
const LONG_TAIL: [u64; 200] = {
    let high = [50, 60, 70, 80, 90, 100, 110, 150, 200, 5_000];
    let mut percents = [1; 200];
    let mut caller = 160;
    while caller < 200 {
        percents[caller] = if caller < 190 { 5 } else { high[caller - 190] };
        caller += 1;
    }
    percents
};
