//! Defines claims about a run, with observed values. It runs nothing.

use std::fmt;

/// One number and its bound.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Claim {
    pub(crate) what: &'static str,
    pub(crate) must: Must,
    pub(crate) seen: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Must {
    AtLeast(f64),
    AtMost(f64),
    /// Reported only; higher is worse.
    Report,
    /// Reported only; lower is worse.
    ReportLow,
}

impl Claim {
    pub(crate) fn at_least(what: &'static str, bound: f64, seen: f64) -> Claim {
        Claim { what, must: Must::AtLeast(bound), seen }
    }

    pub(crate) fn at_most(what: &'static str, bound: f64, seen: f64) -> Claim {
        Claim { what, must: Must::AtMost(bound), seen }
    }

    pub(crate) fn report(what: &'static str, seen: f64) -> Claim {
        Claim { what, must: Must::Report, seen }
    }

    pub(crate) fn report_low(what: &'static str, seen: f64) -> Claim {
        Claim { what, must: Must::ReportLow, seen }
    }

    pub(crate) fn holds(&self) -> bool {
        match self.must {
            Must::AtLeast(bound) => self.seen >= bound,
            Must::AtMost(bound) => self.seen <= bound,
            Must::Report | Must::ReportLow => true,
        }
    }
}

impl fmt::Display for Must {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Must::AtLeast(bound) => write!(f, "≥ {bound}"),
            Must::AtMost(bound) => write!(f, "≤ {bound}"),
            Must::Report | Must::ReportLow => write!(f, "reported"),
        }
    }
}

/// Returns the worst and the median of one claim over the seeds.
pub(crate) fn worst_and_median(claims: &[Claim]) -> (f64, f64) {
    let mut seen: Vec<f64> = claims.iter().map(|claim| claim.seen).collect();
    seen.sort_by(f64::total_cmp);
    let median = f64::midpoint(seen[(seen.len() - 1) / 2], seen[seen.len() / 2]);
    let low_is_bad = matches!(claims[0].must, Must::AtLeast(_) | Must::ReportLow);
    let worst = if low_is_bad { seen[0] } else { seen[seen.len() - 1] };
    (worst, median)
}
