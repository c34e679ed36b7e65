//! Reader of a rule's limit, overrides and shadow rule.

use std::sync::Arc;
use std::time::Duration;

use super::KindFields;
use super::classes::{OverrideQuota, QuotaClasses};
use super::numbers::Numbers;
use super::overrides::{OverrideReader, overrides};
use crate::rules::de::Mapping;
use crate::rules::file::{Algorithm, CommonFields, OverrideFields, RuleFields};
use crate::rules::problem::ValueProblem;
use crate::rules::source::{Report, Span};
use crate::rules::{KeyPart, Limit, Overrides, rate_text};

/// The limit of a rule.
pub(super) struct Admitted {
    pub(super) limit: Limit,
    pub(super) overrides: Option<Arc<Overrides>>,
    /// The limit of the shadow rule, and its span.
    pub(super) candidate: Option<(Limit, Span)>,
    /// The expiry of leases; set if and only if the rule limits concurrency.
    pub(super) expires: Option<Duration>,
}

pub(super) fn own<'n>(
    fields: &RuleFields<'n>,
    common: &CommonFields<'n>,
    key: &[KeyPart],
    mapping: Mapping<'n>,
    report: &mut Report<'_>,
) -> KindFields<'n> {
    KindFields {
        algorithm: fields.algorithm.unwrap_or_default().name(),
        admitted: admitted(fields, common, key, mapping, report),
        unit: fields.unit,
        refund_on: fields.refund_on,
        max_over: fields.max_over,
    }
}

fn admitted(
    fields: &RuleFields<'_>,
    common: &CommonFields<'_>,
    key: &[KeyPart],
    mapping: Mapping<'_>,
    report: &mut Report<'_>,
) -> Option<Admitted> {
    let rule = Numbers::of_rule(fields, mapping, report)?;
    let candidate = match (&fields.candidate, mapping.get("candidate").map(Mapping)) {
        (Some(candidate), Some(mapping)) => {
            if mapping.pairs().is_empty() {
                let mend = "write what is to be tried, such as `{rate: 10/h}`";
                report.error(mapping.0.at, "a candidate that says nothing", mend);
                return None;
            }
            Some(Numbers::of_candidate(candidate, mapping, &rule, report)?)
        }
        _ => None,
    };
    let mut classes = QuotaClasses::default();
    let keepers = LimitNumbers { rule: &rule, candidate: candidate.as_ref() };
    let overrides = overrides(common, mapping, key, &keepers, &mut classes, report);
    let limit = rule.limit(&classes, report);
    let candidate = candidate.and_then(|candidate| Some((candidate.limit(&classes, report)?, candidate.at)));
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
                report.warning(
                    at,
                    "nothing has a limit here: the rule refuses no request",
                    "leave the rule out",
                );
            }
            _ => {}
        }
    }
}

/// The numbers of a rule of `limits` and of its shadow rule.
struct LimitNumbers<'a, 'n> {
    rule: &'a Numbers<'n>,
    candidate: Option<&'a Numbers<'n>>,
}

impl<'n> LimitNumbers<'_, 'n> {
    fn each(&self) -> impl Iterator<Item = &Numbers<'n>> {
        std::iter::once(self.rule).chain(self.candidate)
    }
}

impl OverrideReader for LimitNumbers<'_, '_> {
    type Entry = OverrideFields;
    type Terms = OverrideQuota;

    const COLUMN: &'static str = "rate";
    const COLUMNS: &'static str = "`rate` and perhaps `burst`";

    fn have_bursts(&self) -> bool {
        self.each().any(|numbers| numbers.algorithm == Algorithm::TokenBucket)
    }

    fn of_entry(
        &self,
        fields: &OverrideFields,
        mapping: Mapping<'_>,
        report: &mut Report<'_>,
    ) -> Option<OverrideQuota> {
        if fields.burst.is_some() && !self.have_bursts() {
            let message = "`burst` is a field of `token_bucket`, and this rule is none";
            report.error(mapping.at("burst"), message, "leave `burst` out");
            return None;
        }
        Some(OverrideQuota { rate: fields.rate, burst: fields.burst.map(u32::from) })
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
