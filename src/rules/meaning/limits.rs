//! Reader of a rule's limit, overrides and shadow rule.

use std::sync::Arc;
use std::time::Duration;

use super::classes::{Classes, OverrideQuota};
use super::numbers::{LimitFields, WrittenAlgorithm};
use super::overrides::{Keepers, overrides};
use crate::rules::fields::{Field, Fields, text};
use crate::rules::problem::ValueProblem;
use crate::rules::source::{Report, Span};
use crate::rules::written::{CANDIDATE, OVERRIDE};
use crate::rules::{KeyPart, Limit, Overrides, amount, rate_text};

/// The limit of a rule.
pub(super) struct Admitted {
    pub(super) limit: Limit,
    pub(super) overrides: Option<Arc<Overrides>>,
    /// The limit of the shadow rule, and its span.
    pub(super) candidate: Option<(Limit, Span)>,
    /// The expiry of leases; set if and only if the rule limits concurrency.
    pub(super) expires: Option<Duration>,
}

/// Reads the limit. Without a valid key, overrides are skipped.
pub(super) fn admitted(
    fields: &Fields<'_>,
    key: Option<&[KeyPart]>,
    report: &mut Report<'_>,
) -> Option<Admitted> {
    let rule = LimitFields::of_rule(fields, report);
    let at = fields.get("candidate").map(|node| node.at);
    let candidate = fields.get("candidate").and_then(|node| {
        let written = Fields::read(node, "a candidate", CANDIDATE, report)?;
        if written.is_empty() {
            report.error(
                node.at,
                "a candidate that says nothing",
                "write what is to be tried, such as `{rate: 10/h}`",
            );
            return None;
        }
        LimitFields::of_candidate(&written, rule.as_ref(), report)
    });
    let rule = rule?;
    let mut classes = Classes::default();
    let keepers = LimitNumbers { rule: &rule, candidate: candidate.as_ref() };
    let overrides = key.and_then(|key| overrides(fields, key, &keepers, &mut classes, report));
    let limit = rule.limit(&classes, report);
    let candidate = candidate.and_then(|candidate| candidate.limit(&classes, report)).zip(at);
    let admitted = Admitted { limit: limit?, overrides, candidate, expires: None };
    admitted.doubt(rule.at, report);
    Some(admitted)
}

impl Admitted {
    /// Warns of a rule without limits, at `at`, or of a shadow rule equal to its rule.
    pub(super) fn doubt(&self, at: Span, report: &mut Report<'_>) {
        match &self.candidate {
            Some((limit, at)) if *limit == self.limit => {
                report.warning(*at, "the candidate says what its rule says", "leave it out");
            }
            None if self.limit.allowances.iter().all(Option::is_none) => {
                report.warning(at, "nothing has a limit here: the rule refuses nobody", "leave the rule out");
            }
            _ => {}
        }
    }
}

/// The numbers of a rule of `limits` and of its shadow rule.
struct LimitNumbers<'n> {
    rule: &'n LimitFields,
    candidate: Option<&'n LimitFields>,
}

impl LimitNumbers<'_> {
    fn each(&self) -> impl Iterator<Item = &LimitFields> {
        std::iter::once(self.rule).chain(self.candidate)
    }
}

impl Keepers for LimitNumbers<'_> {
    type Terms = OverrideQuota;

    const ENTRY: &'static [Field] = OVERRIDE;
    const COLUMN: &'static str = "rate";
    const EXAMPLE: &'static str = "rate: 1000/s";
    const COLUMNS: &'static str = "`rate` and perhaps `burst`";

    fn have_bursts(&self) -> bool {
        self.each().any(|numbers| numbers.algorithm == WrittenAlgorithm::TokenBucket)
    }

    fn of_entry(&self, fields: &Fields<'_>, report: &mut Report<'_>) -> Option<(Span, OverrideQuota)> {
        let node = fields.required("rate", "write `rate: 1000/s`, or `rate: unlimited`", report);
        let rate = node.and_then(|node| {
            let text = text(node, "rate", report)?;
            report.settle(node.at, rate_text::parse(text))
        });
        let burst = match fields.get("burst") {
            Some(node) if !self.have_bursts() => {
                let message = "`burst` is a field of `token_bucket`, and this rule is none";
                report.error(node.at, message, "leave `burst` out");
                return None;
            }
            Some(node) => Some(report.settle(node.at, amount::read(node, "burst"))?),
            None => None,
        };
        Some((fields.get("burst").or(node)?.at, OverrideQuota { rate: rate?, burst }))
    }

    fn of_cell(&self, text: &str) -> Result<OverrideQuota, ValueProblem> {
        Ok(OverrideQuota { rate: rate_text::parse(text)?, burst: None })
    }

    fn with_burst(&self, terms: OverrideQuota, burst: u32) -> OverrideQuota {
        OverrideQuota { burst: Some(burst), ..terms }
    }

    fn check(&self, terms: &OverrideQuota) -> Result<(), ValueProblem> {
        terms.check()?;
        self.each().try_for_each(|numbers| numbers.allowance(terms, None).map(drop))
    }
}
