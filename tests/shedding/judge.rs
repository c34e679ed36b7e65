//! Runs cases over seeds and reports the results. It knows no scenario.

use std::fmt::Write as _;
use std::path::PathBuf;

use crate::cases::Case;
use crate::claims::{Claim, worst_and_median};
use crate::plan::{Plan, Service};
use crate::plant;
use crate::real::Real;

/// Returns the claims of one case by seed.
fn seen(case: &Case, seeds: u64) -> Vec<Vec<Claim>> {
    let claims = |seed| (case.claims)(&plant::run(&case.plan, &mut Real::new(&case.setting()), seed));
    (1..=seeds).map(claims).collect()
}

/// Formats lines of a table: case, claim, bound, worst and median.
fn table(case: &Case, by_seed: &[Vec<Claim>]) -> String {
    let mut lines = String::new();
    for place in 0..by_seed[0].len() {
        let claims: Vec<Claim> = by_seed.iter().map(|claims| claims[place]).collect();
        let (worst, median) = worst_and_median(&claims);
        let Claim { what, must, .. } = claims[0];
        let service = if case.plan.service == Service::Lognormal { "lognormal" } else { "exponential" };
        let failed = claims.iter().filter(|claim| !claim.holds()).count();
        let verdict =
            if failed == 0 { String::new() } else { format!("fails on {failed} of {}", claims.len()) };
        let (worst, median) = (number(worst), number(median));
        let name = case.name;
        writeln!(lines, "| {name} | {service} | {what} | {must} | {worst} | {median} | {verdict} |").unwrap();
    }
    lines
}

fn number(value: f64) -> String {
    if value == value.trunc() { format!("{value}") } else { format!("{value:.4}") }
}

/// Returns the seeds to run: 1 to `SEEDS`, by default only the first.
fn seeds() -> u64 {
    std::env::var("SEEDS").map_or(1, |text| text.parse().expect("SEEDS is a number"))
}

/// Returns whether `SEEDS` is set: overloads last longer then, and all cases run.
pub(crate) fn is_full() -> bool {
    std::env::var_os("SEEDS").is_some()
}

/// Runs a row, writes its table, and fails with it if a claim does not hold. With `SEEDS` it runs all cases
/// under both kinds of service; else under the one with the most claims.
pub(crate) fn row(name: &str, cases: &[Case]) {
    let mut lines = String::new();
    let mut holds = true;
    let services =
        if is_full() { &[Service::Lognormal, Service::Exponential][..] } else { &[Service::Exponential] };
    for &service in services {
        for case in cases.iter().filter(|case| is_full() || !case.is_extra) {
            let case = Case { plan: Plan { service, ..case.plan.clone() }, ..case.clone() };
            let by_seed = seen(&case, seeds());
            holds &= by_seed.iter().flatten().all(Claim::holds);
            lines += &table(&case, &by_seed);
        }
    }
    // For the documentation.
    std::fs::write(directory().join(format!("{name}.md")), &lines).unwrap();
    assert!(holds, "seeds 1 to {}:\n{lines}", seeds());
}

/// Returns the output directory of the suite.
pub(crate) fn directory() -> PathBuf {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("shedding");
    std::fs::create_dir_all(&directory).unwrap();
    directory
}
