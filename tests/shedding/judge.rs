//! Claims about a run, with observed values. Runs cases over seeds and reports the results; it knows no scenario.

use std::fmt::Write as _;
use std::path::PathBuf;

use crate::cases::Case;
use crate::plan::{Plan, Service};
use crate::plant;
use crate::real::Real;

/// One number and its bound.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Claim {
    what: &'static str,
    seen: f64,
    /// None: only reported.
    bound: Option<f64>,
    is_lower_worse: bool,
}

impl Claim {
    pub(crate) fn at_least(what: &'static str, bound: f64, seen: f64) -> Claim {
        Claim { what, seen, bound: Some(bound), is_lower_worse: true }
    }

    pub(crate) fn at_most(what: &'static str, bound: f64, seen: f64) -> Claim {
        Claim { what, seen, bound: Some(bound), is_lower_worse: false }
    }

    pub(crate) fn report(what: &'static str, seen: f64) -> Claim {
        Claim { what, seen, bound: None, is_lower_worse: false }
    }

    pub(crate) fn report_low(what: &'static str, seen: f64) -> Claim {
        Claim { what, seen, bound: None, is_lower_worse: true }
    }

    fn holds(&self) -> bool {
        let (seen, is_lower_worse) = (self.seen, self.is_lower_worse);
        self.bound.is_none_or(|bound| if is_lower_worse { seen >= bound } else { seen <= bound })
    }

    /// Formats the bound.
    fn must(&self) -> String {
        let sign = if self.is_lower_worse { '≥' } else { '≤' };
        self.bound.map_or("reported".to_owned(), |bound| format!("{sign} {bound}"))
    }
}

/// Returns the worst and the median of one claim over the seeds.
fn worst_and_median(claims: &[Claim]) -> (f64, f64) {
    let mut seen: Vec<f64> = claims.iter().map(|claim| claim.seen).collect();
    seen.sort_by(f64::total_cmp);
    let median = f64::midpoint(seen[(seen.len() - 1) / 2], seen[seen.len() / 2]);
    let worst = if claims[0].is_lower_worse { seen[0] } else { seen[seen.len() - 1] };
    (worst, median)
}

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
        let (what, must) = (claims[0].what, claims[0].must());
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
